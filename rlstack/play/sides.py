"""The two sides of a world: its agents as half-worlds, and who drives which of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Composite
from torchrl.envs import EnvBase

import envs
from envs.world import GROUP, Sides, WorldHooks, hooks_of
from rlstack.agents.interface import MASK, Interface
from rlstack.config import ConfigError

if TYPE_CHECKING:
    from .players import Player

EMPTY = -1
"""The entry of an assignment for a side that nobody drives: its action comes from elsewhere."""


def sides_of(env: EnvBase) -> Sides:
    """The two sides of a world, of the innermost one where it is wrapped.

    Raises:
        ConfigError: a world without sides, or one whose agents are no two halves.
    """
    hooks = hooks_of(env)
    name = type(env if type(hooks) is WorldHooks else hooks.innermost).__name__
    sides = hooks.sides()
    if sides is None:
        known = ", ".join(_two_sided())
        raise ConfigError(f"{name} has no two sides to play against each other; known: {known}")
    if GROUP not in env.observation_spec.keys():  # noqa: SIM118
        raise ConfigError(f"{name} has no agents under {GROUP!r}, two sides need at least one each")
    agents = env.observation_spec[GROUP].shape[1]
    if agents % 2:
        raise ConfigError(f"{name} has {agents} agents, two sides need an even number")
    return sides


def _two_sided() -> list[str]:
    """Names of the classes of two-sided worlds."""
    found = []
    for world in envs.names():
        with suppress(ValueError):  # of an installed package that is broken
            if (hooks := envs.world_hooks(world)).sides is not WorldHooks.sides:
                found.append(hooks.__name__)
    return found


def half_worlds(agents: TensorDictBase) -> TensorDictBase:
    """Agents ``[W, A]`` as half-worlds ``[2 W, A / 2]``: rows 2 w and 2 w + 1 are the two sides of world w."""
    worlds, count = agents.batch_size[:2]
    return agents.reshape(2 * worlds, count // 2)


def of_first(spec: Any, agents: int) -> Any:
    """The spec of the first so many agents, of one of ``[W, A, ...]``."""
    if isinstance(spec, Composite):
        entries = {key: of_first(entry, agents) for key, entry in spec.items()}
        return Composite(entries, shape=(spec.shape[0], agents, *spec.shape[2:]), device=spec.device)
    if isinstance(spec, Binary) and spec.ndim == 2:  # TorchRL takes its agents for one binary vector
        return Binary(n=agents, shape=(spec.shape[0], agents), dtype=spec.dtype, device=spec.device)
    return spec[:, :agents].clone()


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
            given: ``[W, A, ...]``, the actions of agents that nobody drives; None: zeros.
        """
        worlds, count = agents.batch_size[:2]
        lead = (2 * worlds, count // 2)
        if given is None:
            actions = torch.zeros(*lead, *self._spec.shape, dtype=self._spec.dtype, device=agents.device)
        else:
            actions = given.reshape(*lead, *self._spec.shape)
        halves = half_worlds(agents.select("observation", "active", MASK, strict=False))
        for index, rows in self._seated():
            chosen = self.players[index].act(self._env, halves, rows).to(actions.dtype)
            actions = chosen if len(rows) == len(actions) else actions.index_copy(0, rows, chosen)
        return actions.reshape(worlds, count, *self._spec.shape)

    def _seated(self) -> list[tuple[int, Tensor]]:
        """Players by index with the rows that they drive, ascending."""
        if self._rows is None:
            drivers, order = self.assignment.flatten().sort(stable=True)
            present, counts = drivers.unique_consecutive(return_counts=True)
            groups = order.split(counts.tolist())
            self._rows = [(index, rows) for index, rows in zip(present.tolist(), groups) if index != EMPTY]
        return self._rows
