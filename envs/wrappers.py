"""Wrappers of worlds: repeated actions, stacked observations, and observations with hidden entries.

TorchRL's ``FrameSkipTransform`` and ``CatFrames`` do not serve here: the first steps on worlds that have ended, and a
``TransformedEnv`` lacks a world's quick steps, recurrent states and exact checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, OneHot, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from .recording import EpisodeRecorder
from .world import GROUP, World

MOST_REPEATS, MOST_STACKED = 10_000, 1000
"""Greatest numbers of steps per action, and of observations shown at once."""


def wrapped(
    env: EnvBase, action_repeat: int = 1, frame_stack: int = 1, observation_keep: Sequence[int] | None = None
) -> EnvBase:
    """Wraps an env: selects entries of its observation, repeats actions, and stacks observations.

    Args:
        action_repeat: number of times that every action is taken.
        frame_stack: number of observations shown at once.
        observation_keep: indices of the entries to show; None shows all.

    Raises:
        ValueError: a number is not a positive int, indices are impossible, or the env is not a :class:`World`.
    """
    for name, value, most in (
        ("action_repeat", action_repeat, MOST_REPEATS),
        ("frame_stack", frame_stack, MOST_STACKED),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: {value!r} is not a positive whole number")
        if value > most:
            raise ValueError(f"{name}: {value} is more than {most}")
    options = {"action_repeat": action_repeat > 1, "frame_stack": frame_stack > 1}
    asked = [name for name, used in {**options, "observation_keep": observation_keep is not None}.items() if used]
    if not asked:
        return env
    if not isinstance(env, World):
        raise ValueError(f"{asked[0]}: {type(env).__name__} is not an rlstack.envs.world.World, it cannot be wrapped")
    if observation_keep is not None:
        env = KeepObservation(env, observation_keep)
    if action_repeat > 1:
        env = ActionRepeat(env, action_repeat)
    return FrameStack(env, frame_stack) if frame_stack > 1 else env


def _of_inner(name: str) -> Any:
    """Returns a property of a wrapper, or a method, that is that of the world within."""
    return property(lambda wrapper: getattr(wrapper.inner, name))


class Wrapper(World):
    """A world that presents another one, ``inner``, in another form.

    It forwards attributes that it lacks to the inner world, so that recorders and evaluations find what they need.

    Attributes:
        keeps: name in checkpoints of the root entries that it keeps from step to step; empty if there are none.
    """

    inner: World
    keeps: ClassVar[str] = ""

    def __init__(self, inner: World) -> None:
        super().__init__(inner.num_worlds, inner.device, inner.float_dtype, None)
        self.inner = inner
        self.input_features, self.nearest_obstacle = inner.input_features, inner.nearest_obstacle
        self.generator = inner.generator
        self.observation_spec = inner.observation_spec.clone()
        self.action_spec = inner.full_action_spec.clone()
        self.reward_spec = inner.full_reward_spec.clone()
        self.done_spec = inner.full_done_spec.clone()
        grouped = GROUP in inner.observation_spec.keys()  # noqa: SIM118
        self._key: Any = (GROUP, "observation") if grouped else "observation"
        self._axis = 2 if grouped else 1
        """Number of dimensions before those of an observation."""
        self._kept = TensorDict({}, self.batch_size, self.device)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name == "inner":
                raise
            return getattr(self.inner, name)

    # -- hooks of the inner world ----------------------------------------------------------------------------------

    innermost = _of_inner("innermost")
    saves_episodes = _of_inner("saves_episodes")
    pictures_per_second = _of_inner("pictures_per_second")
    evaluation_steps = _of_inner("evaluation_steps")
    num_stages, stage_names = _of_inner("num_stages"), _of_inner("stage_names")
    total_steps, count_on_from = _of_inner("total_steps"), _of_inner("count_on_from")
    worker_failures = _of_inner("worker_failures")
    recordable, phase, make_ready = _of_inner("recordable"), _of_inner("phase"), _of_inner("make_ready")
    set_noise_source = _of_inner("set_noise_source")
    players, sides, tell = _of_inner("players"), _of_inner("sides"), _of_inner("tell")
    mirror, recorder, render = _of_inner("mirror"), _of_inner("recorder"), _of_inner("render")
    rand_action = _of_inner("rand_action")  # which may respect masks

    @property
    def run_type_checks(self) -> bool:
        return self.inner.run_type_checks

    @run_type_checks.setter
    def run_type_checks(self, value: bool) -> None:
        if hasattr(self, "inner"):  # the base class sets it before it exists
            self.inner.run_type_checks = value

    def reset_to(self, configs: Sequence[Any]) -> TensorDictBase:
        """Starts given episodes, as the inner world does."""
        start = self.inner.reset_to(configs)
        self._show_anew(None)
        self._begun, self._continue_after_load = True, False
        return self._current().update(start.select(*self.done_keys))

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the inner world too."""
        super().close(raise_if_closed=raise_if_closed)
        self.inner.close(raise_if_closed=raise_if_closed)

    def _enter_stage(self, stage: int) -> None:
        self.inner.set_stage(stage)

    def share(self, first: int, all_worlds: int, seed: int) -> None:
        """See :meth:`World.share`."""
        self.all_worlds = all_worlds
        self.inner.share(first, all_worlds, seed)

    def _set_seed(self, seed: int | None) -> None:
        if hasattr(self, "inner"):  # the base class seeds before it exists
            self.inner._set_seed(seed)

    # -- episodes and checkpoint ---------------------------------------------------------------------------------

    def _first_kept(self) -> TensorDict:
        """Returns what it keeps at the beginning of an episode, for all worlds."""
        raise NotImplementedError

    def _show_anew(self, worlds: Tensor | None) -> None:
        """Updates what it keeps of restarted worlds, given by an index tensor or a mask (None: all)."""
        if not self.keeps:
            return
        fresh = self._first_kept()
        if worlds is None:
            self._kept = fresh
        elif worlds.dtype == torch.bool:
            mask = worlds[:, None]
            self._kept = fresh.apply(lambda new, old: torch.where(_aligned(mask, new), new, old), self._kept)
        else:  # not in place, since batches refer to the tensors
            self._kept = self._kept.apply(lambda old, new: old.index_copy(0, worlds, new[worlds]), fresh)

    def _restart(self, worlds: Tensor | None) -> None:
        self.inner._begun = True
        self.inner._restart(worlds)
        self._show_anew(worlds)

    def _restart_where(self, ended: Tensor) -> bool:
        if not self.inner._restart_where(ended):
            return False
        self._show_anew(ended)
        return True

    def _restart_seeded(self, seed: int | Sequence[int]) -> None:
        self.inner._begun = True
        self.inner._restart_seeded(seed)
        self._show_anew(None)

    def _state_to_save(self) -> dict[str, Any]:
        kept = {self.keeps: self._kept.to_dict()} if self.keeps else {}
        return {"inner": self.inner.state_dict(), **kept}

    def _load_state(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self.inner._continue_after_load = False  # this world decides about restarts
        if not self.keeps or not self.saves_episodes:  # the inner world began new episodes
            self._show_anew(None)
            return
        self._kept = TensorDict(state[self.keeps], [self.num_worlds], self.device).clone()
        if GROUP in self._kept.keys():  # noqa: SIM118
            self._kept.get(GROUP).batch_size = self.observation_spec[GROUP].shape


def _mapped(spec: TensorSpec, function: Callable[[TensorSpec], TensorSpec]) -> TensorSpec:
    """Applies a function to every leaf of a spec, keeping the nesting."""
    if not isinstance(spec, Composite):
        return function(spec)
    leaves = {key: _mapped(entry, function) for key, entry in spec.items()}
    return Composite(leaves, shape=spec.shape, device=spec.device)


# -- repeated actions ------------------------------------------------------------------------------------------------

_RECORDERS: WeakKeyDictionary[World, WeakSet[EpisodeRecorder[Any]]] = WeakKeyDictionary()
"""The recorders of each world; not attributes, since they would prevent pickling."""


class ActionRepeat(Wrapper):
    """Takes every action ``repeats`` times and sums the rewards.

    A world stops at its first end: the entries under ``"next"`` are those of the step that ended it, or of the last.
    The same holds for an agent of the group ``agents`` (except ``active``, which is always current): rewards after its
    own end do not count. ``("next", "episode", "length")`` and time limits count the inner world's steps. A world that
    ended early is still stepped with the others, which every world must tolerate. Recordings (:meth:`recorder`) show
    every step of the inner world up to the end.
    """

    keeps = "shown"
    pictures_per_second: Any = property(lambda wrapper: wrapper.inner.pictures_per_second / wrapper.repeats)
    """A world that draws itself is drawn once for each action, not for each of its repeats."""

    def __init__(self, inner: World, repeats: int) -> None:
        super().__init__(inner)
        self.repeats = repeats
        self.reward_spec = _mapped(inner.full_reward_spec, lambda spec: _summed(spec, repeats))
        self._root_keys = list(self.observation_spec.keys(include_nested=True, leaves_only=True))
        self._told: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def tell(self, half_worlds: Tensor, exact: Tensor, counts: Tensor | None = None) -> None:
        """See :meth:`~rlstack.envs.world.WorldHooks.tell`; the choices are taken as often as the actions."""
        self._told.append((half_worlds, exact, counts))

    def recorder(self, worlds: Sequence[int], titles: Sequence[str] | None = None) -> EpisodeRecorder[Any] | None:
        """See :meth:`~rlstack.envs.world.WorldHooks.recorder`; it records while this world exists."""
        made = self.inner.recorder(worlds, titles)
        if isinstance(made, EpisodeRecorder):
            _RECORDERS.setdefault(self, WeakSet()).add(made)
        return made

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        outcome = self._advance_once(tensordict)
        for _ in range(self.repeats - 1):
            for recorder in _RECORDERS.get(self, ()):
                recorder.add(outcome.get("done")[:, 0])
            # The later step does not count for worlds, and agents, that have ended.
            first, later = outcome, self._advance_once(tensordict)
            outcome = _first_where(first.get("done"), first, later)
            agents = first.get(GROUP, None)
            if agents is not None and "done" in agents.keys():  # noqa: SIM118
                current = outcome.get(GROUP)
                ended, active = agents.get("done"), current.get("active", None)
                joined = _first_where(ended if active is None else ended & ~active[..., None], agents, current)
                flags = [name for name in ("done", "terminated", "truncated") if name in agents.keys()]  # noqa: SIM118
                joined.update(_first_where(ended, agents.select(*flags), current.select(*flags)))
                outcome.set(GROUP, joined if active is None else joined.set("active", active))
            for key in self.reward_keys:
                group = key[:-1] if isinstance(key, tuple) else ()
                more = later.get(key)
                for flag in (first.get("done"), first.get((*group, "done"), None)):
                    more = more if flag is None else more.masked_fill(_aligned(flag, more), 0)
                outcome.set(key, first.get(key) + more)
        self._told.clear()
        self._kept = outcome.select(*self._root_keys)
        return outcome

    def _advance_once(self, tensordict: TensorDictBase) -> TensorDict:
        for told in self._told:
            self.inner.tell(*told)
        return self.inner._advance(tensordict)

    def _first_kept(self) -> TensorDict:
        return self.inner._current()

    def _current(self) -> TensorDict:
        return self._kept.copy()


def _aligned(flag: Tensor, value: Tensor) -> Tensor:
    """Returns ``flag [..., 1]`` with as many dimensions as ``value [..., *]``."""
    return flag.reshape(*flag.shape[:-1], *[1] * (value.dim() - flag.dim() + 1))


def _first_where(flag: Tensor, first: TensorDict, later: TensorDict) -> TensorDict:
    """Returns ``first`` where the flag is set, ``later`` elsewhere."""
    return first.apply(lambda old, new: torch.where(_aligned(flag, old), old, new), later)


def _summed(spec: TensorSpec, most: int) -> TensorSpec:
    """Returns the spec of a sum of one to ``most`` rewards."""
    kind = {"shape": spec.shape, "dtype": spec.dtype, "device": spec.device}
    if not isinstance(spec, Bounded):
        return Unbounded(**kind)
    low, high = spec.space.low, spec.space.high
    return Bounded(torch.minimum(low, most * low), torch.maximum(high, most * high), **kind)


# -- stacked observations --------------------------------------------------------------------------------------------


class StackedFeatures(nn.Module):
    """Maps ``frames`` stacked observations ``[..., frames * F]`` to the features of the newest and their changes.

    First come the newest frame's ``size`` features ``[..., size]``, then, for each earlier frame, oldest first, how
    much they have changed since: ``tanh(10 * change)``, since features change little from one frame to the next.

    Args:
        features: builds a world's own scaling of one observation, with its number of features as ``size``.
    """

    def __init__(self, features: Callable[[], Any], frames: int) -> None:
        super().__init__()
        self.features, self.frames = features(), frames
        self.size = frames * self.features.size

    def forward(self, observation: Tensor) -> Tensor:
        seen = self.features(observation.unflatten(-1, (self.frames, -1)))
        newest = seen[..., -1:, :]
        return torch.cat([newest, (10 * (newest - seen[..., :-1, :])).tanh()], -2).flatten(-2)


class FrameStack(Wrapper):
    """Shows the last ``frames`` observations as one, oldest first.

    They are concatenated along an observation's first axis: ``[F]`` becomes ``[frames * F]``, a number ``[frames]``,
    and likewise for every entry of a dict observation. Images (three axes) are concatenated along their channels, the
    smaller of the first and the last axis: ``[C, H, Wd]`` becomes ``[frames * C, H, Wd]``, ``[H, Wd, C]`` becomes ``[H,
    Wd, frames * C]``; images without channels (uint8, two axes) become ``[frames, H, Wd]``. At the beginning of an
    episode its first observation fills the stack. A world's ``input_features`` of a vector become
    :class:`StackedFeatures`; ``nearest_obstacle`` is None, since it applies to a single frame.

    Raises:
        ValueError: there is no observation, it has object slots, or its kind of spec cannot be stacked.
    """

    keeps = "stack"

    def __init__(self, inner: World, frames: int) -> None:
        super().__init__(inner)
        self.nearest_obstacle = None
        self.frames = frames
        name = type(inner).__name__
        if self._key not in inner.observation_spec.keys(include_nested=True):
            raise ValueError(f"frame_stack: {name} shows no observation under {self._key}")
        single = inner.observation_spec[self._key]
        if isinstance(single, Composite) and {"objects", "mask"} <= set(single.keys()):
            raise ValueError(f"frame_stack: the observation of {name} has object slots, whose order changes")
        flat = not isinstance(single, Composite) and single.ndim == self._axis + 1
        if inner.input_features is not None:
            self.input_features = partial(StackedFeatures, inner.input_features, frames) if flat else None

        def stacked(spec: TensorSpec) -> TensorSpec:
            shape = self._repeated(spec.zero()).shape
            kind: dict[str, Any] = {"shape": shape, "dtype": spec.dtype, "device": self.device}
            if isinstance(spec, Bounded):
                return Bounded(self._repeated(spec.space.low), self._repeated(spec.space.high), **kind)
            if isinstance(spec, Unbounded):
                return Unbounded(**kind)
            if isinstance(spec, Binary | OneHot):
                return Binary(n=shape[-1], **kind)
            if isinstance(spec, Categorical) and not isinstance(spec, MultiCategorical):
                return Categorical(spec.space.n, **kind)
            raise ValueError(f"frame_stack: observations of kind {type(spec).__name__} cannot be stacked")

        spec = inner.observation_spec.clone()
        spec[self._key] = _mapped(single, stacked)
        self.observation_spec = spec

    def mirror(self) -> str:
        return "frame_stack: its mirror knows one frame only"

    def _frame(self, value: Tensor) -> tuple[Tensor, int]:
        """Returns one frame, and the axis along which frames are concatenated."""
        shape = value.shape[self._axis :]
        if len(shape) == 0 or (len(shape) == 2 and value.dtype == torch.uint8):
            return value.unsqueeze(self._axis), self._axis
        channels_last = len(shape) == 3 and shape[-1] < shape[0]
        return value, value.dim() - 1 if channels_last else self._axis

    def _repeated(self, value: Tensor) -> Tensor:
        frame, axis = self._frame(value)
        return torch.cat([frame] * self.frames, axis)

    def _pushed(self, stack: Tensor, value: Tensor) -> Tensor:
        frame, axis = self._frame(value)
        size = frame.shape[axis]
        return torch.cat([stack.narrow(axis, size, size * (self.frames - 1)), frame], axis)

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        following = self.inner._advance(tensordict).copy()
        self._kept = self._kept.apply(self._pushed, following.select(self._key))
        return following.update(self._kept)

    def _first_kept(self) -> TensorDict:
        return self.inner._current().select(self._key).apply(self._repeated)

    def _current(self) -> TensorDict:
        return self.inner._current().copy().update(self._kept)


# -- hidden entries --------------------------------------------------------------------------------------------------


class KeepObservation(Wrapper):
    """Selects entries of a vector ``[F]`` in the given order: CartPole without velocities is ``keep=[0, 2]``.

    The rest often does not determine good actions, and a policy needs a recurrent state. ``input_features`` and
    ``nearest_obstacle`` are None, since they apply to whole observations.
    """

    def __init__(self, inner: World, keep: Sequence[int]) -> None:
        super().__init__(inner)
        self.input_features = self.nearest_obstacle = None
        whole = inner.observation_spec[self._key]
        if not isinstance(whole, Bounded | Unbounded) or len(whole.shape) != self._axis + 1:
            raise ValueError(f"observation_keep: the observation of {type(inner).__name__} is not a vector of numbers")
        size = whole.shape[-1]
        chosen = list(keep) if isinstance(keep, Sequence) and not isinstance(keep, str) else []
        whole_numbers = all(type(k) is int and 0 <= k < size for k in chosen)
        if not chosen or not whole_numbers or len(set(chosen)) < len(chosen):
            raise ValueError(f"observation_keep: {keep!r} are not different indices from 0 to {size - 1}")
        self._indices = torch.tensor(chosen, device=self.device)
        kind: dict[str, Any] = {"shape": (*whole.shape[:-1], len(chosen)), "dtype": whole.dtype, "device": self.device}
        spec = inner.observation_spec.clone()
        if isinstance(whole, Bounded):
            ends = (end.index_select(-1, self._indices) for end in (whole.space.low, whole.space.high))
            spec[self._key] = Bounded(*ends, **kind)
        else:
            spec[self._key] = Unbounded(**kind)
        self.observation_spec = spec

    def mirror(self) -> str:
        return "observation_keep: its mirror knows whole observations only"

    def _shown(self, entries: TensorDict) -> TensorDict:
        return entries.copy().set(self._key, entries.get(self._key).index_select(-1, self._indices))

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        return self._shown(self.inner._advance(tensordict))

    def _current(self) -> TensorDict:
        return self._shown(self.inner._current())
