"""Layers of the published MarineNav networks by the names of the original release, and what weights are whose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlstack.config import ConfigError
from rlstack.config.errors import missing_option

Arrays = Mapping[str, np.ndarray]
Names = Mapping[str, str]

_ENCODER = {"self_encoder.0": "encoder.self_encoder.0", "object_encoder.0": "encoder.object_encoder.0"}
_TRUNK = {"hidden_layer": "trunk.0", "hidden_layer_2": "trunk.2"}
_OUTPUT = {"output_layer": "output"}
_ACTION = {"action_encoder.0": "action_encoder.0"}
_COSINES = {"cos_embedding": "embedding.linear"}

ACTOR_NAMES = _ENCODER | _TRUNK | _OUTPUT
"""Layers of the AC-IQN and DDPG actor: published name to ours in :class:`~rlstack.networks.actors.DeterministicActor`;
of DQN's network in :class:`~rlstack.networks.values.StateNetwork`."""
CRITIC_NAMES = _ENCODER | _COSINES | _ACTION | {"hidden_layer": "hidden", "hidden_layer_2": "hidden_2"} | _OUTPUT
"""Layers of the AC-IQN critic: published name to the one in :class:`~rlstack.networks.quantile.QuantileCritic`."""
VALUE_NAMES = _ENCODER | _ACTION | _TRUNK | _OUTPUT
"""Layers of the DDPG and SAC critics, in :class:`~rlstack.networks.values.ActionValue`."""
GAUSSIAN_NAMES = _ENCODER | _TRUNK | {"output_layer_mu": "mean", "output_layer_log_std": "log_std"}
"""Layers of the SAC actor, in :class:`~rlstack.networks.actors.GaussianActor`."""
QUANTILE_NAMES = _ENCODER | _COSINES | _TRUNK | _OUTPUT
"""Layers of IQN, in :class:`~rlstack.networks.quantile.QuantileNetwork`."""
NOISY_NAMES = {
    "hidden_layer_v": "value.0.0",
    "hidden_layer_a": "advantage.0.0",
    "hidden_layer_v_2": "value.0.2",
    "hidden_layer_a_2": "advantage.0.2",
    "output_layer_v": "value.1",
    "output_layer_a": "advantage.1",
}
RAINBOW_NAMES = _ENCODER | NOISY_NAMES
"""Layers of Rainbow, in :class:`~rlstack.networks.values.DuelingNetwork`; all but the encoders are noisy."""

NETWORKS: dict[str, dict[str, Names]] = {
    "AC-IQN": {"actor": ACTOR_NAMES, "critic": CRITIC_NAMES},
    "IQN": {"network": QUANTILE_NAMES},
    "DDPG": {"actor": ACTOR_NAMES, "critic": VALUE_NAMES},
    "DQN": {"network": ACTOR_NAMES},
    "SAC": {"actor": GAUSSIAN_NAMES, "critic_1": VALUE_NAMES, "critic_2": VALUE_NAMES},
    "Rainbow": {"network": RAINBOW_NAMES},
}
"""The agent types, and the layers of their networks."""

SELF_SIZE, OBJECT_SIZE, NUM_OBJECTS = 7, 5, 5
ACTION_SIZE, CHOICES = 2, 25
CONTINUOUS = ("AC-IQN", "DDPG", "SAC")

_PLAIN_KINDS = ("weight", "bias")
_NOISY_KINDS = ("weight_mu", "weight_sigma", "bias_mu", "bias_sigma")
_DRAWS = ("weight_epsilon", "bias_epsilon")


def agent_type_named(name: str) -> str:
    """Returns the agent type of this name; ``-`` or ``_``, capitals or not.

    Raises:
        ConfigError: there is none; it lists those there are.
    """
    known = {_folded(kind): kind for kind in NETWORKS}
    if _folded(name) not in known:
        raise ConfigError(missing_option("agent_type", name, list(NETWORKS)))
    return known[_folded(name)]


def _folded(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def type_in_name(name: str) -> str | None:
    """The agent type a file's name starts with (``AC_IQN_params.npz``), None if it starts with none."""
    return next((kind for kind in NETWORKS if _folded(name).startswith(_folded(kind))), None)


def widths(arrays: Arrays) -> dict[str, Any]:
    """Infers the options for layer widths from the shapes of weights.

    Args:
        arrays: weights of any of its networks.
    """
    noisy = "output_layer_v.bias_mu" in arrays
    layers = ("hidden_layer_v", "hidden_layer_v_2") if noisy else ("hidden_layer", "hidden_layer_2")
    options: dict[str, Any] = {
        "self_features": len(arrays["self_encoder.0.bias"]),
        "object_features": [len(arrays["object_encoder.0.bias"])],
        "hidden": [len(arrays[f"{layer}.{'bias_mu' if noisy else 'bias'}"]) for layer in layers],
    }
    return options | ({"num_atoms": len(arrays["output_layer_v.bias_mu"])} if noisy else {})


def published_state(arrays: Mapping[str, Any], names: Names) -> dict[str, Tensor]:
    """Arrays under published names as a ``state_dict``.

    Args:
        arrays: ``<layer>.weight [out, in]`` and ``<layer>.bias [out]``; of noisy layers ``weight_mu``,
            ``weight_sigma``, ``bias_mu``, ``bias_sigma`` and, if they are there, ``weight_epsilon``, ``bias_epsilon``.
        names: the table of that network, such as :data:`ACTOR_NAMES`.

    Raises:
        ConfigError: these are not the weights of that network.
    """
    expected, optional = _keys(names)
    missing, unknown = sorted(expected - set(arrays)), sorted(set(arrays) - expected - optional)
    if missing or unknown:
        faults = [f"{word} {', '.join(keys)}" for word, keys in (("lacks", missing), ("has also", unknown)) if keys]
        raise ConfigError(f"not the weights of this network: {'; '.join(faults)}")
    state = {}
    for name, values in arrays.items():
        layer, _, kind = name.rpartition(".")
        values = np.asarray(values)
        if values.dtype.kind != "f" or values.ndim != (2 if kind.startswith("weight") else 1):
            raise ConfigError(f"not the weights of this network: {name} is {values.dtype} of shape {values.shape}")
        if not np.isfinite(values).all():
            raise ConfigError(f"broken weights: {name} has numbers that are not finite")
        state[f"{names[layer]}.{kind}"] = torch.tensor(values)
    return state


def published_arrays(state: Mapping[str, Tensor], names: Names) -> dict[str, Tensor]:
    """The inverse of :func:`published_state`: a ``state_dict`` under the published names, on the CPU."""
    published = {ours: theirs for theirs, ours in names.items()}
    split = {key: key.rpartition(".") for key in state}
    return {f"{published[split[key][0]]}.{split[key][2]}": value.detach().cpu().clone() for key, value in state.items()}


def _keys(names: Names) -> tuple[set[str], set[str]]:
    """Returns the names of required and of optional arrays."""
    expected = {
        f"{layer}.{kind}" for layer in names for kind in (_NOISY_KINDS if layer in NOISY_NAMES else _PLAIN_KINDS)
    }
    return expected, {f"{layer}.{kind}" for layer in names if layer in NOISY_NAMES for kind in _DRAWS}
