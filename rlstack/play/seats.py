"""Who drives which side of which world, and everyone's actions at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

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


def _seen(agents: TensorDictBase) -> TensorDict:
    """What players see of the agents, nothing else."""
    entries = {name: value for name, value in agents.items() if name in ("observation", "active", "action_mask")}
    return TensorDict._new_unsafe(entries, batch_size=agents.batch_size[:2], device=agents.device)
