"""The LSTMs of Stable-Baselines3's RecurrentPPO as the memory of a native agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlstack.adapters.sb3 import SB3Model
from rlstack.adapters.sb3.recurrent import RecurrentActorCritic
from rlstack.config import ConfigError


def memory_of(model: SB3Model, given: Any = None) -> Any:
    """``agent.recurrent`` for a recurrent model.

    Args:
        given: what else it is to be, such as ``sequence_length``.

    Raises:
        ConfigError: its critic has no LSTM of its own, as native agents' have, or what is given contradicts the model.
    """
    network = model.network
    assert isinstance(network, RecurrentActorCritic)
    if network.lstm_critic is None:
        raise ConfigError("its critic has no LSTM of its own, native ones have; agent=legacy uses it as it is")
    if (network.lstm_critic.hidden_size, network.lstm_critic.num_layers) != (
        network.lstm_actor.hidden_size,
        network.lstm_actor.num_layers,
    ):
        raise ConfigError("the LSTMs of its actor and critic differ, native ones do not; agent=legacy uses it as it is")
    ours = {"kind": "lstm", "size": network.lstm_actor.hidden_size, "layers": network.lstm_actor.num_layers}
    if given is None:
        return ours
    wanted = given if isinstance(given, Mapping) else {}
    if not wanted or any(wanted.get(key, value) != value for key, value in ours.items()):
        raise ConfigError(f"agent.recurrent: {given} contradicts the model, which has {ours}")
    return {**ours, **wanted}


def fill_memories(agent: Any, model: SB3Model, columns: Tensor) -> Tensor:
    """Puts the model's LSTMs into an agent's cores.

    Args:
        columns: which of the encoder's features each feature of the model is ``[F]``.

    Returns which of a core's outputs each input of the layers behind it is.
    """
    network = model.network
    assert isinstance(network, RecurrentActorCritic)
    for name, lstm in (("actor", network.lstm_actor), ("critic", network.lstm_critic)):
        assert lstm is not None
        core = agent.memories[name].core
        state = dict(lstm.state_dict())
        wide = torch.zeros_like(core.cells.weight_ih_l0)
        wide[:, columns] = state["weight_ih_l0"]
        core.cells.load_state_dict({**state, "weight_ih_l0": wide})
    return torch.arange(network.lstm_actor.hidden_size)
