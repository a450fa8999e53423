"""RecurrentPPO: an LSTM before the heads of PPO."""

from __future__ import annotations

import re
from typing import TypeAlias

from torch import Tensor, nn

from rlstack.adapters.sb3.networks import Heads, Layers, Network, Weights, describe, linears_of, perceptron
from rlstack.config import ConfigError

State: TypeAlias = tuple[Tensor, ...]
"""Hidden and cell state of the actor's LSTM ``[layers, N, H]``, then those of the critic's, if it has one."""


class RecurrentActorCritic(Network):
    """LSTM, then separate actor and critic; the critic has an LSTM of its own, a linear layer, or the actor's LSTM.

    Args:
        weights: as of PPO, with ``lstm_actor.*`` and perhaps ``lstm_critic.*`` or ``critic.*``.
    """

    def __init__(self, weights: Weights, activation: str, discrete: bool) -> None:
        super().__init__()
        self.lstm_actor = _lstm(weights, "lstm_actor")
        separate, linear = "lstm_critic.weight_ih_l0" in weights, "critic.weight" in weights
        self.lstm_critic = _lstm(weights, "lstm_critic") if separate else None
        self.linear_critic = perceptron([weights.linear("critic")], activation) if linear else None
        self.heads = Heads(weights, activation, discrete)
        describe(self, self.layers(), "actor")
        self.in_features = self.lstm_actor.input_size

    def initial_state(self, count: int) -> State:
        """Zeros for ``count`` entries."""
        states: list[Tensor] = []
        for lstm in (self.lstm_actor, self.lstm_critic):
            if lstm is not None:
                zeros = next(lstm.parameters()).new_zeros(lstm.num_layers, count, lstm.hidden_size)
                states += [zeros, zeros]
        return tuple(states)

    def outputs(self, features: Tensor, state: State, starts: Tensor) -> tuple[dict[str, Tensor], State]:
        """One step.

        Args:
            features: ``[N, F]``.
            state: after the step before.
            starts: ``[N]`` bool, whose memory begins anew.

        Returns ``value`` with ``logits`` or ``mean`` and ``log_std``, and the new state.
        """
        actor, critic, state = self._latent(features, state, starts)
        return self.heads.outputs(actor, critic), state

    def act(self, features: Tensor, state: State, starts: Tensor, deterministic: bool = True) -> tuple[Tensor, State]:
        """Index ``[N]`` of an action or an action ``[N, n]``, and the new state; arguments as of :meth:`outputs`."""
        actor, _, state = self._latent(features, state, starts)
        return self.heads.act(actor, deterministic), state

    def _latent(self, features: Tensor, state: State, starts: Tensor) -> tuple[Tensor, Tensor, State]:
        keep = (~starts).to(features.dtype)[None, :, None]
        state = tuple(part * keep for part in state)
        actor, following = self.lstm_actor(features[None], state[:2])
        critic = actor
        if self.lstm_critic is not None:
            critic, of_critic = self.lstm_critic(features[None], state[2:])
            following = (*following, *of_critic)
        elif self.linear_critic is not None:
            critic = self.linear_critic(features)[None]
        return actor[0], critic[0], following

    def layers(self) -> dict[str, Layers]:
        """The linear layers behind the LSTMs."""
        return {"actor": linears_of(self.heads.actor), "critic": linears_of(self.heads.critic)}


def _lstm(weights: Weights, name: str) -> nn.LSTM:
    known = r"(weight|bias)_(ih|hh)_l\d+"
    names = [key.removeprefix(f"{name}.") for key in weights.state if key.startswith(f"{name}.")]
    strange = [key for key in names if not re.fullmatch(known, key)]
    if strange:
        raise ConfigError(f"only a plain LSTM with biases is supported, {name} has also {strange[0]}")
    state = {key: weights.take(f"{name}.{key}") for key in names}
    count = len({key.rpartition("_l")[2] for key in names})
    try:
        hidden, size = state["weight_hh_l0"].shape[1], state["weight_ih_l0"].shape[1]
        lstm = nn.LSTM(size, hidden, count)
        lstm.load_state_dict(state)
    except (KeyError, RuntimeError) as error:
        raise ConfigError(f"the weights of {name} do not make an LSTM ({str(error).splitlines()[0]})") from None
    return lstm
