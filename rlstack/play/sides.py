"""The two sides of a world: its agents as half-worlds, and the players that control them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Composite
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.agents.interface import MASK, Interface
from rlstack.config import ConfigError
from rlstack.envs.world import GROUP, Sides, WorldHooks, hooks_of

if TYPE_CHECKING:
    from .players import Player

EMPTY = -1
"""Assignment of a side without a player: its actions are given from outside."""


def sides_of(env: EnvBase) -> Sides:
    """Returns the two sides of a world, looking inside wrappers.

    Raises:
        ConfigError: the world has no sides, or its agents do not form two halves.
    """
    hooks = hooks_of(env)
    name = type(env if type(hooks) is WorldHooks else hooks.innermost).__name__
    sides = hooks.sides()
    if sides is None:
        names = []
        for world in envs.names():
            with suppress(ValueError):  # an installed package may be broken
                if (other := envs.world_hooks(world)).sides is not WorldHooks.sides:
                    names.append(other.__name__)
        known = ", ".join(names)
        raise ConfigError(f"{name} does not have two sides that play against each other; known: {known}")
    if GROUP not in env.observation_spec.keys():  # noqa: SIM118
        raise ConfigError(f"{name} has no agents under {GROUP!r}, but two sides need at least one each")
    agents = env.observation_spec[GROUP].shape[1]
    if agents % 2:
        raise ConfigError(f"{name} has {agents} agents, but two sides need an even number")
    return sides


def half_worlds(agents: TensorDictBase) -> TensorDictBase:
    """Reshapes agents ``[W, A]`` to half-worlds ``[2 W, A / 2]``: rows 2 w and 2 w + 1 are the sides of world w."""
    worlds, count = agents.batch_size[:2]
    return agents.reshape(2 * worlds, count // 2)


def of_first(spec: Any, agents: int) -> Any:
    """Returns the spec of the first ``agents`` agents from a spec ``[W, A, ...]``."""
    if isinstance(spec, Composite):
        entries = {key: of_first(entry, agents) for key, entry in spec.items()}
        return Composite(entries, shape=(spec.shape[0], agents, *spec.shape[2:]), device=spec.device)
    if isinstance(spec, Binary) and spec.ndim == 2:  # TorchRL treats the agents as one binary vector
        return Binary(n=agents, shape=(spec.shape[0], agents), dtype=spec.dtype, device=spec.device)
    return spec[:, :agents].clone()


class Seats:
    """The sides of W worlds with the player of each. A step calls each player once, for all its sides.

    Args:
        env: the world with both sides.
        players: the available players.

    Attributes:
        assignment: ``[W, 2]`` int64, indices of players or :data:`EMPTY`.
    """

    def __init__(self, env: EnvBase, players: Sequence[Player] = ()) -> None:
        sides_of(env)
        self._env, self.players = env, list(players)
        self._spec = Interface.of(env).action
        self.assignment = torch.full((env.batch_size[0], 2), EMPTY, dtype=torch.int64, device=env.device)
        self._rows: list[tuple[int, Tensor]] | None = None

    def renumber(self, players: Sequence[Player], number: Tensor) -> None:
        """Replaces the players; index i becomes ``number[i]``, whose last entry is that of :data:`EMPTY`."""
        self.players = list(players)
        self.assignment = number[self.assignment]  # EMPTY is -1, the last entry
        self._rows = None

    def seat(self, worlds: Tensor, players: Tensor) -> None:
        """Assigns players ``[n, 2]`` to worlds ``[n]``, in which episodes begin."""
        self.assignment[worlds] = players
        self._rows = None
        self.begin(worlds)

    def begin(self, worlds: Tensor | None = None) -> None:
        """Resets the recurrent states of all players in these worlds (None: all)."""
        rows = None if worlds is None else torch.cat((2 * worlds, 2 * worlds + 1))
        for player in self.players:
            player.begin(rows)

    def act(self, agents: TensorDictBase, given: Tensor | None = None) -> Tensor:
        """Returns the actions ``[W, A, ...]`` of all agents.

        Args:
            agents: entries ``[W, A]``: ``observation``, and ``active`` and ``action_mask`` if the world has them.
            given: ``[W, A, ...]``, actions of agents without a player; None: zeros.
        """
        worlds, count = agents.batch_size[:2]
        lead = (2 * worlds, count // 2)
        shape, dtype = (*lead, *self._spec.shape), self._spec.dtype
        actions = torch.zeros(shape, dtype=dtype, device=agents.device) if given is None else given.reshape(shape)
        halves = half_worlds(agents.select("observation", "active", MASK, strict=False))
        if self._rows is None:  # players by index with their rows, ascending
            drivers, order = self.assignment.flatten().sort(stable=True)
            present, counts = drivers.unique_consecutive(return_counts=True)
            groups = order.split(counts.tolist())
            self._rows = [(index, rows) for index, rows in zip(present.tolist(), groups) if index != EMPTY]
        for index, rows in self._rows:
            chosen = self.players[index].act(self._env, halves, rows).to(actions.dtype)
            actions = chosen if len(rows) == len(actions) else actions.index_copy(0, rows, chosen)
        return actions.reshape(worlds, count, *self._spec.shape)
