"""A value function that sees, in training, what all agents of a world see (``agent.critic=central``, Yu et al. 2022).

A rollout stores every observation once; what an agent's critic sees of the others is looked up when needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.config.options import Activation
from rlstack.networks.encoders import Observation, mlp
from rlstack.networks.values import StateNetwork


class CentralNetwork(StateNetwork):
    """Computes the value of an agent's state from its own observation and those of the others in its world.

    All observations go through the same encoder. The agent's own encoding is concatenated with the mean of the others'
    after one more layer (Zaheer et al. 2017), and with the share of them that are present; if none are, both are zero.

    Args:
        encoder: observation encoder.
        hidden: widths of the hidden layers; the first is also the width of the others' mean.
        others: the number of other agents that a world has room for.
    """

    def __init__(
        self, encoder: torch.nn.Module, hidden: Sequence[int], others: int, activation: Activation = "relu"
    ) -> None:
        super().__init__(encoder, 1, hidden, activation, besides=hidden[0] + 1)
        features: int = encoder.out_features  # type: ignore[assignment]
        self.view = mlp((features, hidden[0]), activation=activation)
        self.others = others

    def forward(self, observation: Observation, there: Tensor) -> Tensor:  # type: ignore[override]
        """Returns the values ``[..., A, 1]`` for worlds of A agents.

        Args:
            observation: observations of all agents, ``[..., A]``.
            there: ``[..., A, A]`` bool, which agents (last dimension) count for which; none counts for itself.
        """
        return self.joint(self.encoder(observation), there)

    def joint(self, features: Tensor, there: Tensor) -> Tensor:
        """Does what :meth:`forward` does, for observations that are already encoded, ``[..., A, F]``."""
        return self.head(torch.cat((features, self.pooled(features, apart(there))), -1))

    def pooled(self, features: Tensor, there: Tensor) -> Tensor:
        """Returns the pooled encodings of the others ``[..., Q, V]``, to be concatenated with those of Q agents.

        Args:
            features: encodings of M others, ``[..., M, F]``.
            there: ``[..., Q, M]`` bool, which of the M others count for each of the Q agents.
        """
        views = self.view(features)
        count = there.sum(-1, keepdim=True)
        mean = (there.to(views.dtype) @ views) / count.clamp(min=1)
        return torch.cat((mean, (count / self.others).to(mean.dtype)), -1)


def apart(there: Tensor) -> Tensor:
    """Returns ``there [..., A, A]`` with its diagonal set to False: no agent counts for itself."""
    return there & ~torch.eye(there.shape[-1], dtype=torch.bool, device=there.device)


class Others:
    """Computes the values that a :class:`CentralNetwork` gives the agents of one rollout.

    Rows of sequences ``[B, T]`` are in the order of :func:`~rlstack.data.flatten.flatten_agents`: the A agents of the
    first world, then those of the next one.

    Args:
        critic: the network that computes the values.
        agents: A, the number of agents in each world.

    Attributes:
        pieces: the rollout cut into sequences, for a critic with a recurrent core.
    """

    def __init__(self, critic: CentralNetwork, agents: int) -> None:
        self.critic, self.agents = critic, agents
        self.pieces: TensorDictBase | None = None
        self._observation: Any = None
        self._active = torch.empty(0, 0, dtype=torch.bool)

    def begin(self, observation: Any, active: Tensor) -> Tensor:
        """Takes a new rollout in place of the last one.

        Args:
            observation: as the networks see it, ``[B, T]``.
            active: ``[B, T]`` bool; agents that are not active do not count for the others.

        Returns the places ``[B, T]`` of its decisions, which identify them in :meth:`seen`.
        """
        self._observation, self._active = observation, active
        return torch.arange(active.numel(), device=active.device).view_as(active)

    def forget(self) -> None:
        """Releases the rollout."""
        self._observation = self.pieces = None

    @property
    def rows(self) -> int:
        """B, the number of rows of the rollout."""
        return len(self._active)

    def row_and_step(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rows and steps of some places in ``[B, T]``."""
        time = self._active.shape[1]
        return place // time, place % time

    def values(self, features: Tensor | None = None) -> Tensor:
        """Returns the values of all decisions ``[B, T, 1]``; encodings ``[B, T, F]`` may be passed if known."""
        if features is None:
            features = self.critic.encoder(self._observation)
        return self.critic.head(torch.cat((features, self._all(features)), -1))

    def seen(self, place: Tensor) -> Tensor:
        """Returns the pooled encodings ``[N, V]`` of the others at some places ``[N]``."""
        if len(place) * (self.agents - 1) >= self._active.numel():  # encoding everyone once is cheaper
            return self._all(self.critic.encoder(self._observation)).flatten(0, 1)[place]
        row, step = self.row_and_step(place)
        own = row % self.agents
        further = torch.arange(1, self.agents, device=place.device)
        others = (row - own)[:, None] + (own[:, None] + further) % self.agents
        chosen = (others, step[:, None].expand_as(others))
        features = self.critic.encoder(self._observation[chosen])
        return self.critic.pooled(features, self._active[chosen].unsqueeze(1)).squeeze(1)

    def among(self, features: Tensor, active: Tensor) -> Tensor:
        """Pools the encodings ``[G, A, T, F]`` of all agents of some worlds into those of the others ``[G, A, T, V]``.

        Args:
            active: ``[G, A, T]`` bool.
        """
        there = active.transpose(1, 2).unsqueeze(-2).expand(-1, -1, self.agents, -1)
        return self.critic.pooled(features.transpose(1, 2), apart(there)).transpose(1, 2)

    def _all(self, features: Tensor) -> Tensor:
        """:meth:`seen` for all places, ``[B, T, V]``, from the encodings of all, ``[B, T, F]``."""
        worlds = (-1, self.agents)
        return self.among(features.unflatten(0, worlds), self._active.unflatten(0, worlds)).flatten(0, 1)

    def values_after(
        self, sequences: TensorDictBase, ends: Tensor, encoded: Callable[[tuple[Tensor, Tensor]], Tensor]
    ) -> Tensor:
        """Returns the values of the states that follow some decisions, given what all agents see then.

        Other agents count if they go on, or if they are truncated at the same step. Those that terminated at this step
        or earlier do not count; nor do newcomers.

        Args:
            sequences: ``[B, T]``.
            ends: which decisions, ``[B, T]`` bool, E of them.
            encoded: maps indices (rows and steps) of decisions to the encodings of the observations that followed.

        Returns ``[E, 1]``.
        """
        following, active = sequences.get("next"), sequences.get("active")
        worlds, steps = ends.unflatten(0, (-1, self.agents)).any(1).nonzero(as_tuple=True)
        rows = worlds[:, None] * self.agents + torch.arange(self.agents, device=ends.device)
        chosen = (rows, steps[:, None].expand_as(rows))
        cut = (following.get("done") & ~following.get("terminated"))[..., 0][chosen]
        goes_on = following.get("active")[chosen].unsqueeze(-2) | (cut.unsqueeze(-1) & cut.unsqueeze(-2))
        values = self.critic.joint(encoded(chosen), goes_on & active[chosen].unsqueeze(-2))
        found = values.new_zeros(*ends.shape, 1)
        found[chosen] = values
        return found[ends]
