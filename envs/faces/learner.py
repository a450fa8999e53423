"""Worlds in which one agent learns and players drive the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded

from .. import registry
from ..keys import ACTION_MASK, GROUP
from ..world import Told, hooks_of

Others = str | Callable[[TensorDictBase], TensorDictBase]
"""Who drives the other agents: a player of the world by its name, or a policy: a function of a tensordict of all agents
that sets their actions, such as a ``TensorDictModule``."""


class OneLearner:
    """A batch of worlds with one agent of each for a learner: the first one.

    Args:
        world: a name or path for :func:`envs.make`.
        num_worlds: W.
        others: drives the other agents where there are several; None takes the world's first own player.
        options: of the world. In a world of two sides all of their agents are there.

    Attributes:
        world: the worlds.
        observation, action: specs of the learner's observation and action, without batch dimensions.

    Raises:
        ValueError: an unknown world, option or player, an impossible value, or other agents whom nobody drives.
    """

    def __init__(self, world: str, num_worlds: int, others: Others | None = None, **options: Any) -> None:
        both = registry.world_hooks(world).two_sided_options
        self.world: Any = registry.make(world, num_worlds=num_worlds, **{**both, **options})
        action = self.world.full_action_spec
        self._grouped = GROUP in action.keys()  # noqa: SIM118
        self.agents = int(action[GROUP].shape[1]) if self._grouped else 1
        self.observation: TensorSpec = self._of_learner(self.world.observation_spec, "observation")
        self.action: TensorSpec = self._of_learner(action, "action")
        self._others = self._driver(world, others) if self.agents > 1 else None
        self.root: TensorDictBase = TensorDict({}, [num_worlds])

    def _of_learner(self, specs: Any, name: str) -> Any:
        return specs[GROUP, name][0, 0] if self._grouped else specs[name][0]

    def _driver(self, world: str, others: Others | None) -> Callable[[TensorDictBase], Tensor]:
        """A function of the root that returns everybody's actions ``[W, A, ...]``."""
        if others is not None and not isinstance(others, str):
            return lambda root: others(root.copy()).get((GROUP, "action"))
        hooks = hooks_of(self.world)
        sides, players = hooks.sides(), hooks.players()
        known = [*(() if sides is None else sides.scripted), *players]
        if others is None and not known:
            raise ValueError(f"{world}: {self.agents} agents, of whom one learns; others= says who drives the rest")
        name = known[0] if others is None else others
        if name not in known:
            raise ValueError(f"others: {world} has no player {name!r}, available: {', '.join(known) or 'none'}")
        if name in players:
            return lambda root: players[name](root.get((GROUP, "observation")))
        assert sides is not None
        scripted, inner = sides.scripted[name], hooks.innermost
        every = torch.arange(self.world.num_worlds, device=self.world.device)

        def drive(root: TensorDictBase) -> Tensor:
            chosen = scripted(inner, every)
            if not isinstance(chosen, Told):
                return chosen
            inner.tell(2 * every + 1, chosen.exact[1::2])  # the other side alone: the learner plays on the first
            return chosen.actions

        return drive

    def part(self, entries: TensorDictBase, name: str) -> Any:
        """The learner's entry ``[W, ...]`` of a tensordict of all."""
        return entries.get((GROUP, name))[:, 0] if self._grouped else entries.get(name)

    def mask(self, entries: TensorDictBase) -> Tensor | None:
        """The learner's action mask ``[W, n]``; None where the world has none."""
        mask = entries.get((GROUP, ACTION_MASK) if self._grouped else ACTION_MASK, None)
        return mask[:, 0] if self._grouped and mask is not None else mask

    def begin(self, seed: int | list[int] | None = None) -> TensorDictBase:
        """Begins an episode in every world; returns the root. Seeds are those of ``World.reset``."""
        self.root = self.world.reset() if seed is None else self.world.reset(seed=seed)
        return self.root

    @torch.no_grad()
    def step(self, chosen: Tensor) -> tuple[TensorDictBase, Tensor, Tensor]:
        """One step with the learner's actions ``[W, ...]``.

        Returns what it led to, where the learner's episode is terminated, and where it is truncated, ``[W]`` bool: it
        ends with the learner, or with the world.
        """
        if self._others is not None:
            actions = self._others(self.root).clone()
            actions[:, 0] = chosen.to(actions)
        else:
            actions = chosen[:, None] if self._grouped else chosen
        given: dict[str, Any] = {GROUP: {"action": actions}} if self._grouped else {"action": actions}
        following = self.root = self.world._advance(TensorDict(given, self.world.batch_size))
        done, terminated = (following.get(name).reshape(-1) for name in ("done", "terminated"))
        own_done, own_terminated = (self.part(following, name).reshape(-1) for name in ("done", "terminated"))
        ended = own_done | done
        terminated = own_terminated | (ended & terminated)
        return following, terminated, ended & ~terminated

    def begin_anew(self, ended: Tensor) -> TensorDictBase:
        """Gives worlds ``[W]`` bool a fresh start; returns the root of all."""
        self.world._restart(ended.nonzero()[:, 0])
        self.root = self.world._current()
        return self.root

    def read(self, action: Any) -> Tensor:
        """The learner's actions ``[W, ...]`` from those of a space.

        Raises:
            ValueError: of another shape.
        """
        array = torch.as_tensor(np.asarray(action) if not isinstance(action, Tensor) else action)
        spec = self.action
        return array.to(self.world.device, spec.dtype).reshape(self.world.num_worlds, *spec.shape)


def space_of(spec: TensorSpec) -> spaces.Space[Any]:
    """The Gymnasium space of a spec without batch dimensions.

    Numbers are a Box, flags a MultiBinary, choices Discrete or MultiDiscrete, nested entries a Dict.

    Raises:
        ValueError: a kind of spec that has no such space.
    """
    if isinstance(spec, Composite):
        return spaces.Dict({name: space_of(part) for name, part in spec.items()})
    if isinstance(spec, Binary):
        return spaces.MultiBinary(spec.shape)
    if isinstance(spec, MultiCategorical):
        return spaces.MultiDiscrete(spec.nvec.reshape(-1).numpy())
    if isinstance(spec, Categorical):
        return spaces.Discrete(int(spec.space.n))
    if isinstance(spec, Bounded | Unbounded):
        dtype = np.dtype(str(spec.dtype).removeprefix("torch."))
        if isinstance(spec, Bounded):
            low, high = (end.cpu().numpy() for end in (spec.space.low, spec.space.high))
        else:
            low, high = np.full(spec.shape, -np.inf), np.full(spec.shape, np.inf)
        return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
    raise ValueError(f"a {type(spec).__name__} has no Gymnasium space")


def arrays(value: Any) -> Any:
    """An observation as its space has it: new arrays, flags as bytes."""
    if isinstance(value, TensorDictBase):
        return {name: arrays(part) for name, part in value.items()}
    array = value.cpu().numpy().copy()
    return array.astype(np.int8) if array.dtype == np.bool_ else array


def statistics(root: TensorDictBase) -> Mapping[str, Tensor]:
    """The statistics ``[W]`` of the episodes so far, by name; empty where the world has none."""
    episode = root.get("episode", None)
    return {} if episode is None else {name: value.reshape(-1) for name, value in episode.items()}
