"""Worlds with one learner as environments of Gymnasium: a single one, and a vector.

If a world has several agents, players or a policy control the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded

from .. import registry
from ..foundation.tensors import ACTION_MASK, GROUP, MEMORY
from ..world import Told, check_known, hand_on, hooks_of

Others = str | Callable[[TensorDictBase], TensorDictBase]
"""The controller of the other agents: the name of one of the world's players, or a function of a tensordict of all
agents that sets their actions, such as a ``TensorDictModule``."""


class OneLearner:
    """A batch of worlds in which the first agent that takes part is the learner.

    Args:
        world: a name or path for :func:`rlstack.envs.make`.
        num_worlds: number of worlds W.
        others: controller of the other agents, if there are any; None is the first of the world's players.
        options: options of the world. A two-sided world has the agents of both sides by default.

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
        self._group = (GROUP,) if GROUP in action.keys() else ()  # noqa: SIM118
        self.agents = int(action[GROUP].shape[1]) if self._group else 1
        first = (0, 0) if self._group else (0,)
        self.observation: TensorSpec = self.world.observation_spec[(*self._group, "observation")][first]
        self.action: TensorSpec = action[(*self._group, "action")][first]
        check_plain(self.action)
        self._mine = 0  # the learner's place among the agents; slots of smaller teams may be empty
        if self.agents > 1 and (others is None or isinstance(others, str)):
            hooks = hooks_of(self.world)
            sides, players = hooks.sides(), hooks.players()
            known = [*(() if sides is None else sides.scripted), *players]
            if others is None and not known:
                raise ValueError(f"{world}: {self.agents} agents, of whom one learns; others= says who drives the rest")
            others = known[0] if others is None else others
            if others not in known:
                raise ValueError(f"others: {world} has no player {others!r}, available: {', '.join(known) or 'none'}")
        self._others: Any = others
        self.root: TensorDictBase = TensorDict({}, [num_worlds])
        self._left: TensorDictBase | None = None  # entries under "next" of a policy that controls the others

    def _drive(self) -> Tensor:
        """Returns the actions ``[W, A, ...]`` of all agents that the controller of the others chooses."""
        if not isinstance(self._others, str):
            acted = self._others(self.root.copy())
            self._left = acted.get("next", None)
            return acted.get((GROUP, "action"))
        hooks = hooks_of(self.world)
        if (player := hooks.players().get(self._others)) is not None:
            return player(self.root.get((GROUP, "observation")))
        sides = hooks.sides()
        assert sides is not None
        every = torch.arange(self.world.num_worlds, device=self.world.device)
        made = sides.scripted[self._others](hooks.innermost, every)
        if not isinstance(made, Told):
            return made
        if made.actions.shape[1] > self.agents:  # the world's own bots play the other side
            return made.actions[:, : self.agents]
        hooks.tell(2 * every + 1, made.exact[1::2])  # only the other side, since the learner is on the first
        return made.actions

    def part(self, entries: TensorDictBase, name: str) -> Any:
        """Returns the learner's entry ``[W, ...]`` of a tensordict of all agents; None if there is none."""
        entry = entries.get((*self._group, name), None)
        return entry[:, self._mine] if self._group and entry is not None else entry

    def begin(self, seed: int | list[int] | None = None) -> TensorDictBase:
        """Begins an episode in every world and returns the root; ``seed`` is as for ``World.reset``."""
        self.root = self.world.reset() if seed is None else self.world.reset(seed=seed)
        active = self.root.get((GROUP, "active"), None)
        self._mine = 0 if active is None else int(active.any(0).byte().argmax())
        return self.root

    @torch.no_grad()
    def step(self, chosen: Tensor) -> tuple[TensorDictBase, Tensor, Tensor]:
        """Makes one step with the learner's actions ``[W, ...]``.

        Returns the entries under ``"next"``, and flags ``[W]`` whether the learner's episode, which ends with the
        learner or the world, is terminated or truncated.
        """
        if self.agents > 1:
            actions = self._drive().clone()
            actions[:, self._mine] = chosen.to(actions)
        else:
            actions = chosen[:, None] if self._group else chosen
        given = TensorDict({}, self.world.batch_size).set((*self._group, "action"), actions)
        following = self.root = self.world._advance(given)
        if self._left is not None:
            hand_on(self._left, following)
        done, terminated = (following.get(name).reshape(-1) for name in ("done", "terminated"))
        own_done, own_terminated = (self.part(following, name).reshape(-1) for name in ("done", "terminated"))
        ended = own_done | done
        terminated = torch.where(own_done, own_terminated, terminated)  # its own end counts before the world's
        return following, terminated, ended & ~terminated

    def begin_anew(self, ended: Tensor) -> TensorDictBase:
        """Restarts worlds ``[W]`` bool; returns the root of all."""
        memory = self.root.get((GROUP, MEMORY), None)
        self.world._restart(ended.nonzero()[:, 0])
        self.root = self.world._current()
        if memory is not None:
            self.root.set((GROUP, MEMORY), memory.masked_fill(ended[:, None, None], 0.0))
        return self.root

    def read(self, action: Any) -> Tensor:
        """Converts actions of the space to the learner's actions ``[W, ...]``.

        Raises:
            ValueError: the actions have another shape.
        """
        array = torch.as_tensor(np.asarray(action) if not isinstance(action, Tensor) else action)
        spec = self.action
        return array.to(self.world.device, spec.dtype).reshape(self.world.num_worlds, *spec.shape)


def check_plain(action: TensorSpec) -> None:
    """Checks that an action is one array.

    Raises:
        ValueError: it has several parts.
    """
    if isinstance(action, Composite):
        parts = ", ".join(map(str, action.keys()))
        raise ValueError(f"actions: an action of several parts ({parts}) is not possible here, choose another form")


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


class SingleWorld(gymnasium.Env[Any, Any]):
    """One world with one learner; the world's players, or a policy, control any other agents.

    Spaces follow from the world's specs; see :func:`~rlstack.envs.faces.gymnasium.space_of`. ``info`` holds the world's
    episode statistics so far, ``action_mask`` if the world has one, and at the end ``is_success`` if the world defines
    success. The episode ends with the learner or with the world; time limits are the world's own.

    Args:
        world: a name or path for :func:`rlstack.envs.make`.
        render_mode: ``"rgb_array"`` for :meth:`render`, or None.
        others: controller of the other agents: the name of one of the world's players, such as Rocket's ``rule``, or a
            policy; None is the first of its players.
        options: options of the world.

    Raises:
        ValueError: a world, option or player is unknown, or a value is impossible.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self, world: str, render_mode: str | None = None, others: Others | None = None, **options: Any
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode: {render_mode!r} is unknown, allowed: rgb_array and None")
        self._learner = OneLearner(world, 1, others, **options)
        self.world = self._learner.world
        self.render_mode = render_mode
        self._recorder: Any = None
        self._animation: Any = None
        self.observation_space = space_of(self._learner.observation)
        self.action_space = space_of(self._learner.action)
        self._is_seeded = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; the same seed repeats the same episodes. ``options`` are ignored."""
        super().reset(seed=seed)
        if seed is not None or not self._is_seeded:
            self.world.set_seed(int(self.np_random.integers(2**31)))
            self._is_seeded = True
        self._recorder = None
        root = self._learner.begin()
        return arrays(self._learner.part(root, "observation")[0]), self._info(root)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Makes one step of the world."""
        following, terminated, truncated = self._learner.step(self._learner.read(action))
        if self._recorder is not None:
            self._recorder.add()
        part = self._learner.part
        info = self._info(following)
        if "success" in info and bool(terminated | truncated):
            info["is_success"] = info["success"] > 0
        observation = arrays(part(following, "observation")[0])
        return observation, float(part(following, "reward")), bool(terminated), bool(truncated), info

    def _info(self, root: TensorDictBase) -> dict[str, Any]:
        info: dict[str, Any] = {name: float(value) for name, value in statistics(root).items()}
        mask = self._learner.part(root, ACTION_MASK)
        return info if mask is None else {**info, "action_mask": arrays(mask[0])}

    def render(self) -> Any:
        """Draws the current state of the world, uint8 ``[height, width, 3]``; None without a ``render_mode``.

        Trails begin with the first picture of an episode.
        """
        if self.render_mode is None:
            return None
        if self._recorder is None:
            self._recorder, self._animation = hooks_of(self.world).recorder([0], [""]), None
            if self._recorder is None:
                return np.asarray(self.world.render())
            self._recorder.add()
        recording = self._recorder.recordings()[0]
        self._animation = recording.animation() if self._animation is None else self._animation.longer(recording)
        return self._animation.draw(self._animation.span[1])

    def close(self) -> None:
        """Closes the world."""
        self.world.close(raise_if_closed=False)


class VectorWorld(VectorEnv[Any, Any, Any]):
    """Worlds stepped at once with one learner each: ``gymnasium.make_vec("rlstack/Arena-v0", num_envs=64)``.

    Worlds reset by the rules of Gymnasium 1.x: with ``NEXT_STEP`` in the step after an episode's last one, whose action
    is ignored and whose reward is 0; with ``SAME_STEP`` in the last step, whose observation is then under
    ``final_obs``. For ended episodes (mask ``_statistics``), ``info["statistics"]`` holds return ``r``, length ``l``
    and the world's statistics, as arrays over the worlds; Gymnasium's own wrappers use ``info["episode"]``.

    Args:
        world: a name or path for :func:`rlstack.envs.make`.
        num_envs: number of worlds W.
        autoreset_mode: ``NEXT_STEP`` or ``SAME_STEP``, or its name.
        output: ``numpy`` arrays, or ``torch`` tensors on the device of the worlds.
        others: see :class:`~rlstack.envs.faces.gymnasium.SingleWorld`.
        options: options of the world.

    Raises:
        ValueError: a world, option, player or mode is unknown, or a value is impossible.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        world: str,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        output: Literal["numpy", "torch"] = "numpy",
        others: Others | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        modes = {mode.value: mode for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)}
        modes |= {mode.name: mode for mode in modes.values()}
        mode = autoreset_mode.value if isinstance(autoreset_mode, AutoresetMode) else autoreset_mode
        if mode not in modes:
            raise ValueError(f"autoreset_mode: {mode!r} is unknown, allowed: NEXT_STEP and SAME_STEP")
        check_known("output", [output], ("numpy", "torch"))
        if render_mode is not None:
            raise ValueError("render_mode: a vector draws nothing, leave it out; gymnasium.make draws one world")
        self.num_envs, self.render_mode, self.autoreset_mode = num_envs, None, modes[mode]
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self._learner = OneLearner(world, num_envs, others, **options)
        self.world = self._learner.world
        self.single_observation_space = space_of(self._learner.observation)
        self.single_action_space = space_of(self._learner.action)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.output, self._numpy = output, output == "numpy"
        self._over = torch.zeros(num_envs, dtype=torch.bool, device=self.world.device)
        self._returns = torch.zeros(num_envs, dtype=torch.float64, device=self.world.device)
        self._lengths = torch.zeros(num_envs, dtype=torch.int64, device=self.world.device)
        self._is_seeded = False

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins episodes in all worlds; a seed s stands for seeds s, s + 1, ... ``options`` are ignored."""
        if seed is None and not self._is_seeded:
            self.world.set_seed(int(np.random.SeedSequence().generate_state(1)[0] >> 1))
        self._is_seeded = True
        seeds = [seed + index for index in range(self.num_envs)] if isinstance(seed, int | np.integer) else seed
        root = self._learner.begin(seeds)
        self._forget(torch.ones_like(self._over))
        self._over = torch.zeros_like(self._over)
        return self._shown(root), self._masked({}, root)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all worlds."""
        following, terminated, truncated = self._learner.step(self._learner.read(actions))
        ended = terminated | truncated
        reward = self._learner.part(following, "reward").reshape(-1).double()
        waiting = self._over  # worlds whose episode ended in the last step: this step only resets them
        anew = ended if self.autoreset_mode is AutoresetMode.SAME_STEP else waiting
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            reward, ended = reward.masked_fill(waiting, 0.0), ended & ~waiting
            terminated, truncated = terminated & ~waiting, truncated & ~waiting
            self._over = ended
        self._returns, self._lengths = self._returns + reward, self._lengths + (~waiting).long()
        info: dict[str, Any] = {}
        if bool(ended.any()):
            columns = {"r": self._returns, "l": self._lengths, **statistics(following)}
            mask = self._out(ended)
            info = {"statistics": {name: self._out(value) for name, value in columns.items()}, "_statistics": mask}
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                info |= {"final_obs": self._shown(following), "_final_obs": mask}
        root: TensorDictBase = following
        if bool(anew.any()):
            root = self._learner.begin_anew(anew)
            self._forget(anew)
        flags = (self._out(reward), self._out(terminated), self._out(truncated))
        return self._shown(root), *flags, self._masked(info, root)

    def _forget(self, worlds: Tensor) -> None:
        self._returns, self._lengths = self._returns.masked_fill(worlds, 0.0), self._lengths.masked_fill(worlds, 0)

    def _masked(self, info: dict[str, Any], root: TensorDictBase) -> dict[str, Any]:
        mask = self._learner.part(root, ACTION_MASK)
        return info if mask is None else {**info, "action_mask": self._shown_value(mask)}

    def _shown(self, root: TensorDictBase) -> Any:
        return self._shown_value(self._learner.part(root, "observation"))

    def _shown_value(self, value: Any) -> Any:
        return arrays(value) if self._numpy else value.clone()

    def _out(self, value: Tensor) -> Any:
        return value.cpu().numpy().copy() if self._numpy else value.clone()

    def close_extras(self, **_: Any) -> None:
        """Closes the worlds."""
        self.world.close(raise_if_closed=False)
