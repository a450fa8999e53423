"""Worlds in which one agent learns and players control the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded

from .. import registry
from ..foundation.tensors import ACTION_MASK, GROUP
from ..world import Scripted, Told, hooks_of

Others = str | Callable[[TensorDictBase], TensorDictBase]
"""The controller of the other agents: the name of one of the world's players, or a function of a tensordict of all
agents that sets their actions, such as a ``TensorDictModule``."""


class OneLearner:
    """A batch of worlds in which the first agent of each is the learner.

    Args:
        world: a name or path for :func:`rlstack.envs.make`.
        num_worlds: number of worlds W.
        others: controller of the other agents, if there are any; None is the first of the world's players.
        options: options of the world. A two-sided world has the agents of both sides.

    Attributes:
        world: the worlds.
        observation, action: specs of the learner's observation and action, without batch dimensions.

    Raises:
        ValueError: a world, option or player is unknown, a value is impossible, or other agents have no controller.
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
        """Returns a function from the root to the actions ``[W, A, ...]`` of all agents."""
        if others is not None and not isinstance(others, str):
            return partial(_by_policy, others)
        hooks = hooks_of(self.world)
        sides, players = hooks.sides(), hooks.players()
        known = [*(() if sides is None else sides.scripted), *players]
        if others is None and not known:
            raise ValueError(f"{world}: {self.agents} agents, of whom one learns; others= says who drives the rest")
        name = known[0] if others is None else others
        if name not in known:
            raise ValueError(f"others: {world} has no player {name!r}, available: {', '.join(known) or 'none'}")
        if name in players:
            return partial(_by_player, players[name])
        assert sides is not None
        every = torch.arange(self.world.num_worlds, device=self.world.device)
        return partial(_by_script, sides.scripted[name], hooks.innermost, every)

    def part(self, entries: TensorDictBase, name: str) -> Any:
        """Returns the learner's entry ``[W, ...]`` of a tensordict of all agents."""
        return entries.get((GROUP, name))[:, 0] if self._grouped else entries.get(name)

    def mask(self, entries: TensorDictBase) -> Tensor | None:
        """Returns the learner's action mask ``[W, n]``; None if the world has none."""
        mask = entries.get((GROUP, ACTION_MASK) if self._grouped else ACTION_MASK, None)
        return mask[:, 0] if self._grouped and mask is not None else mask

    def begin(self, seed: int | list[int] | None = None) -> TensorDictBase:
        """Begins an episode in every world and returns the root; ``seed`` is as for ``World.reset``."""
        self.root = self.world.reset() if seed is None else self.world.reset(seed=seed)
        return self.root

    @torch.no_grad()
    def step(self, chosen: Tensor) -> tuple[TensorDictBase, Tensor, Tensor]:
        """Makes one step with the learner's actions ``[W, ...]``.

        Returns the entries under ``"next"``, and flags ``[W]`` whether the learner's episode, which ends with the
        learner or the world, is terminated or truncated.
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
        """Restarts worlds ``[W]`` bool; returns the root of all."""
        self.world._restart(ended.nonzero()[:, 0])
        self.root = self.world._current()
        return self.root

    def read(self, action: Any) -> Tensor:
        """Converts actions of the space to the learner's actions ``[W, ...]``.

        Raises:
            ValueError: the actions have another shape.
        """
        array = torch.as_tensor(np.asarray(action) if not isinstance(action, Tensor) else action)
        spec = self.action
        return array.to(self.world.device, spec.dtype).reshape(self.world.num_worlds, *spec.shape)


# Functions of a module, since drivers are pickled.


def _by_policy(policy: Callable[[TensorDictBase], TensorDictBase], root: TensorDictBase) -> Tensor:
    return policy(root.copy()).get((GROUP, "action"))


def _by_player(player: Callable[[Any], Tensor], root: TensorDictBase) -> Tensor:
    return player(root.get((GROUP, "observation")))


def _by_script(scripted: Scripted, world: Any, every: Tensor, root: TensorDictBase) -> Tensor:
    chosen = scripted(world, every)
    if not isinstance(chosen, Told):
        return chosen
    world.tell(2 * every + 1, chosen.exact[1::2])  # only the other side, since the learner is on the first
    return chosen.actions


def space_of(spec: TensorSpec) -> spaces.Space[Any]:
    """Returns the Gymnasium space of a spec without batch dimensions.

    Numbers are a Box, flags a MultiBinary, choices Discrete or MultiDiscrete, nested entries a Dict.

    Raises:
        ValueError: the kind of spec has no such space.
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
    """Converts an observation to its space's form: new arrays, with flags as bytes."""
    if isinstance(value, TensorDictBase):
        return {name: arrays(part) for name, part in value.items()}
    array = value.cpu().numpy().copy()
    return array.astype(np.int8) if array.dtype == np.bool_ else array


def statistics(root: TensorDictBase) -> Mapping[str, Tensor]:
    """Returns the statistics ``[W]`` of the episodes so far by name; empty if the world has none."""
    episode = root.get("episode", None)
    return {} if episode is None else {name: value.reshape(-1) for name, value in episode.items()}
