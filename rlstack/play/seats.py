"""Who drives which side of which world, and everyone's actions at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack.agents.base import GROUP
from rlstack.agents.interface import Interface

from .players import Player
from .sides import half_worlds, sides_of

EMPTY = -1
"""In an assignment: nobody drives this side, its action comes from elsewhere."""


class Seats:
    """The sides of W worlds, each driven by one of some players; players are asked once a step for all their sides.

    Args:
        env: the world, with both sides.
        players: who can be seated.

    Attributes:
        assignment: ``[W, 2]`` int64, indices of players, or :data:`EMPTY`.
    """

    def __init__(self, env: EnvBase, players: Sequence[Player] = ()) -> None:
        sides_of(env)
        self._env, self.players = env, list(players)
        self._spec = Interface.of(env).action
        self.assignment = torch.full((env.batch_size[0], 2), EMPTY, dtype=torch.int64, device=env.device)
        self._rows: list[tuple[int, Tensor]] | None = None

    def renumber(self, players: Sequence[Player], number: Tensor) -> None:
        """Replaces the players; who sits on index i now sits on ``number[i]``, of which the last is :data:`EMPTY`'s."""
        self.players = list(players)
        self.assignment = number[self.assignment]  # EMPTY is -1, the last entry
        self._rows = None

    def seat(self, worlds: Tensor, players: Tensor) -> None:
        """Seats players ``[n, 2]`` in worlds ``[n]``, where episodes begin."""
        self.assignment[worlds] = players
        self._rows = None
        self.begin(worlds)

    def begin(self, worlds: Tensor | None = None) -> None:
        """Makes everyone forget what it remembers of these worlds (None: all)."""
        rows = None if worlds is None else torch.cat((2 * worlds, 2 * worlds + 1))
        for player in self.players:
            player.begin(rows)

    def act(self, agents: TensorDictBase, given: Tensor | None = None) -> Tensor:
        """The actions ``[W, A, ...]`` of all agents.

        Args:
            agents: what they see, ``[W, A]``: ``observation``, and ``active`` and ``action_mask`` where there are any.
            given: ``[W, A, ...]``, what those do whom nobody drives; None: nothing (zeros).
        """
        worlds, count = agents.batch_size[:2]
        lead = (2 * worlds, count // 2)
        if given is None:
            actions = torch.zeros(*lead, *self._spec.shape, dtype=self._spec.dtype, device=agents.device)
        else:
            actions = given.reshape(*lead, *self._spec.shape)
        halves = half_worlds(_seen(agents))
        for index, rows in self._seated():
            chosen = self.players[index].act(self._env, halves, rows).to(actions.dtype)
            actions = chosen if len(rows) == len(actions) else actions.index_copy(0, rows, chosen)
        return actions.reshape(worlds, count, *self._spec.shape)

    def _seated(self) -> list[tuple[int, Tensor]]:
        """Players by index with the rows that they drive."""
        if self._rows is None:
            drivers, order = self.assignment.flatten().sort(stable=True)
            present, counts = drivers.unique_consecutive(return_counts=True)
            groups = order.split(counts.tolist())
            self._rows = [(index, rows) for index, rows in zip(present.tolist(), groups) if index != EMPTY]
        return self._rows


class SidedPolicy(TensorDictModuleBase):
    """A policy of a two-sided world: one player drives one side, the other side another one, drawn for every episode.

    Args:
        env: the world.
        player: drives ``side`` of all worlds.
        opponents: one of them drives the other side of a world, drawn when its episode begins.
        side: 0, the first, or 1; None: the first in every other world.
        weights: how often each opponent is drawn, else all as often.

    Raises:
        ValueError: no opponents, or weights that do not fit them.
    """

    def __init__(
        self,
        env: EnvBase,
        player: Player,
        opponents: Sequence[Player],
        side: int | None = 0,
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if not opponents:
            raise ValueError("opponents: none is given, one at least is needed")
        self.in_keys, self.out_keys = Interface.of(env).observation_keys(), [(GROUP, "action")]
        self.weights = torch.ones(len(opponents)) if weights is None else torch.tensor(weights, dtype=torch.float32)
        if len(self.weights) != len(opponents) or not bool((self.weights >= 0).all() and self.weights.sum() > 0):
            raise ValueError(f"weights: {weights} are not {len(opponents)} weights of which one is positive")
        self.seats = Seats(env, [player, *opponents])
        worlds = torch.arange(env.batch_size[0], device=env.device)
        self._side = worlds % 2 if side is None else torch.full_like(worlds, side)
        self._last: TensorDictBase | None = None

    def reset(self) -> None:
        """The next call begins episodes everywhere."""
        self._last = None

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        starts = self._starts()
        if len(starts):
            self.seats.seat(starts, self._drawn(starts))
        tensordict.set((GROUP, "action"), self.seats.act(tensordict.get(GROUP)))
        self._last = tensordict
        return tensordict

    def _starts(self) -> Tensor:
        """Worlds whose episode begins: the env's step has put ``next`` into the last tensordict meanwhile."""
        if self._last is None:
            return torch.arange(len(self._side), device=self._side.device)
        done: Any = self._last.get(("next", "done"), None)
        if done is None:
            return self._side.new_zeros(0)
        return done.reshape(len(self._side)).nonzero()[:, 0]

    def _drawn(self, worlds: Tensor) -> Tensor:
        drawn = torch.multinomial(self.weights, len(worlds), replacement=True).to(worlds.device) + 1
        own = torch.zeros_like(drawn)
        first = self._side[worlds] == 0
        return torch.stack((torch.where(first, own, drawn), torch.where(first, drawn, own)), -1)


def _seen(agents: TensorDictBase) -> TensorDict:
    """What players see of the agents, nothing else."""
    entries = {name: value for name, value in agents.items() if name in ("observation", "active", "action_mask")}
    return TensorDict._new_unsafe(entries, batch_size=agents.batch_size[:2], device=agents.device)
