"""A value function that sees, in training, what all agents of a world see (``agent.critic=central``, Yu et al. 2022).

A rollout keeps every observation once; what an agent's critic sees of the others is looked up where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.config.agents import Activation
from rlstack.networks.encoders import Observation, mlp
from rlstack.networks.values import StateNetwork


class CentralNetwork(StateNetwork):
    """The value of an agent's state from its own observation and those of the others in its world.

    All observations go through the same encoder. The own encoding is joined by the mean of the others' after one more
    layer (Zaheer et al. 2017), and by the share of them that are there; without any, both are zero.

    Args:
        encoder: observation encoder.
        hidden: widths of the hidden layers; the first is that of the others' mean, too.
        others: how many other agents a world has room for.
    """

    def __init__(
        self, encoder: torch.nn.Module, hidden: Sequence[int], others: int, activation: Activation = "relu"
    ) -> None:
        super().__init__(encoder, 1, hidden, activation, besides=hidden[0] + 1)
        features: int = encoder.out_features  # type: ignore[assignment]
        self.view = mlp((features, hidden[0]), activation=activation)
        self.others = others

    def forward(self, observation: Observation, there: Tensor) -> Tensor:  # type: ignore[override]
        """Values ``[..., A, 1]`` of worlds of A agents.

        Args:
            observation: of all of them, ``[..., A]``.
            there: ``[..., A, A]`` bool, who counts for whom; nobody does for itself.
        """
        return self.joint(self.encoder(observation), there)

    def joint(self, features: Tensor, there: Tensor) -> Tensor:
        """:meth:`forward` for observations that are encoded already, ``[..., A, F]``."""
        return self.head(torch.cat((features, self.pooled(features, apart(there))), -1))

    def pooled(self, features: Tensor, there: Tensor) -> Tensor:
        """The pooled encodings of the others, which join those of Q agents, ``[..., Q, V]``.

        Args:
            features: encodings of M others, ``[..., M, F]``.
            there: ``[..., Q, M]`` bool, which of them count for whom.
        """
        views = self.view(features)
        count = there.sum(-1, keepdim=True)
        mean = (there.to(views.dtype) @ views) / count.clamp(min=1)
        return torch.cat((mean, (count / self.others).to(mean.dtype)), -1)


def apart(there: Tensor) -> Tensor:
    """``[..., A, A]`` without oneself."""
    return there & ~torch.eye(there.shape[-1], dtype=torch.bool, device=there.device)


class Mates:
    """The values that a :class:`CentralNetwork` gives the agents of one rollout.

    Rows of sequences ``[B, T]`` are those of :func:`~rlstack.data.flatten.flatten_agents`: A agents of the first
    world, then those of the next one.

    Args:
        critic: whose values they are.
        agents: A.

    Attributes:
        pieces: the rollout cut into sequences, for a critic with a recurrent core.
    """

    def __init__(self, critic: CentralNetwork, agents: int) -> None:
        self.critic, self.agents = critic, agents
        self.pieces: TensorDictBase | None = None
        self._observation: Any = None
        self._active = torch.empty(0, 0, dtype=torch.bool)

    def begin(self, observation: Any, active: Tensor) -> Tensor:
        """Takes a new rollout, in place of the last one.

        Args:
            observation: as the networks see it, ``[B, T]``.
            active: ``[B, T]`` bool; others that are not are not there.

        Returns the places ``[B, T]`` of its decisions, by which :meth:`seen` knows them.
        """
        self._observation, self._active = observation, active
        return torch.arange(active.numel(), device=active.device).view_as(active)

    def forget(self) -> None:
        """Lets the rollout go."""
        self._observation = self.pieces = None

    @property
    def rows(self) -> int:
        """B."""
        return len(self._active)

    def row_and_step(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Row and step of some places in ``[B, T]``."""
        time = self._active.shape[1]
        return place // time, place % time

    def values(self, features: Tensor | None = None) -> Tensor:
        """The values of all decisions, ``[B, T, 1]``; their own encodings ``[B, T, F]`` may be known already."""
        if features is None:
            features = self.critic.encoder(self._observation)
        return self.critic.head(torch.cat((features, self._all(features)), -1))

    def seen(self, place: Tensor) -> Tensor:
        """The pooled encodings of the others at some places ``[N]``, ``[N, V]``."""
        if len(place) * (self.agents - 1) >= self._active.numel():  # everyone once is less
            return self._all(self.critic.encoder(self._observation)).flatten(0, 1)[place]
        row, step = self.row_and_step(place)
        own = row % self.agents
        further = torch.arange(1, self.agents, device=place.device)
        others = (row - own)[:, None] + (own[:, None] + further) % self.agents
        chosen = (others, step[:, None].expand_as(others))
        features = self.critic.encoder(self._observation[chosen])
        return self.critic.pooled(features, self._active[chosen].unsqueeze(1)).squeeze(1)

    def among(self, features: Tensor, active: Tensor) -> Tensor:
        """The pooled encodings of the others for all agents of some worlds, ``[G, A, T, F]`` to ``[G, A, T, V]``.

        Args:
            active: ``[G, A, T]`` bool.
        """
        there = active.transpose(1, 2).unsqueeze(-2).expand(-1, -1, self.agents, -1)
        return self.critic.pooled(features.transpose(1, 2), apart(there)).transpose(1, 2)

    def _all(self, features: Tensor) -> Tensor:
        """:meth:`seen` of everyone, ``[B, T, V]``, of the encodings of all, ``[B, T, F]``."""
        worlds = (-1, self.agents)
        return self.among(features.unflatten(0, worlds), self._active.unflatten(0, worlds)).flatten(0, 1)

    def values_after(
        self, sequences: TensorDictBase, ends: Tensor, encoded: Callable[[tuple[Tensor, Tensor]], Tensor]
    ) -> Tensor:
        """The values of the states that follow some decisions, by what everyone sees then.

        Others are there who go on, or who are cut off at the same step. Those who died with it, or before, are not;
        nor are newcomers.

        Args:
            sequences: ``[B, T]``.
            ends: which decisions, ``[B, T]`` bool, E of them.
            encoded: encodings of what followed the decisions with such indices of row and step.

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
