"""Worlds around worlds: the same action several times, and the last few observations at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, OneHot, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from .base import World

_GROUP = "agents"


def wrapped(env: EnvBase, action_repeat: int = 1, frame_stack: int = 1) -> EnvBase:
    """The env, each action taken ``action_repeat`` times, then its last ``frame_stack`` observations shown.

    1 leaves the env as it is.

    Raises:
        ValueError: a number that is not a positive int, or an env that is no :class:`World`.
    """
    for name, value in (("action_repeat", action_repeat), ("frame_stack", frame_stack)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: {value!r} is not a positive whole number")
        if value > 1 and not isinstance(env, World):
            raise ValueError(f"{name}: {type(env).__name__} is not an envs.base.World, only 1 is allowed")
    if action_repeat > 1:
        env = ActionRepeat(env, action_repeat)
    return FrameStack(env, frame_stack) if frame_stack > 1 else env


class Wrapper(World):
    """A world that shows another one, ``inner``, differently.

    Attributes that it lacks are those of the inner world, so that recorders and evaluations find what they need.
    """

    inner: World

    def __init__(self, inner: World) -> None:
        super().__init__(inner.num_worlds, inner.device, inner.float_dtype, None)
        self.inner = inner
        self.saves_episodes = inner.saves_episodes
        self.num_stages = inner.num_stages
        self.generator = inner.generator
        self.observation_spec = inner.observation_spec.clone()
        self.action_spec = inner.full_action_spec.clone()
        self.reward_spec = inner.full_reward_spec.clone()
        self.done_spec = inner.full_done_spec.clone()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "inner" not in self.__dict__.get("_modules", {}):
                raise
            return getattr(self.inner, name)

    def reset_to(self, configs: Sequence[Any]) -> TensorDictBase:
        """Starts given episodes, as the inner world does.

        Raises:
            AttributeError: the inner world cannot start given episodes.
        """
        start = self.inner.reset_to(configs)
        self._show_anew(None)
        return self._current().update(start.select(*self.done_keys))

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Random actions as the inner world draws them, which may know of masks."""
        return self.inner.rand_action(tensordict)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the inner world too."""
        super().close(raise_if_closed=raise_if_closed)
        self.inner.close(raise_if_closed=raise_if_closed)

    def _show_anew(self, worlds: Tensor | None) -> None:
        """Takes in what freshly started worlds of an index tensor (None: all) show."""

    def _restart(self, worlds: Tensor | None) -> None:
        self.inner._restart(worlds)
        self._show_anew(worlds)

    def _enter_stage(self, stage: int) -> None:
        self.inner.set_stage(stage)

    def share(self, first: int, all_worlds: int, seed: int) -> None:
        """See :meth:`World.share`."""
        self.all_worlds = all_worlds
        self.inner.share(first, all_worlds, seed)

    def _set_seed(self, seed: int | None) -> None:
        if "inner" in self._modules:  # the base class seeds before there is one
            self.inner._set_seed(seed)

    def _state_to_save(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def _load_state(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self.inner._continue_after_load = False  # this world decides about restarts

    def _loaded(self, entries: dict[str, Any]) -> TensorDict:
        """Saved root entries, as tensors of its own."""
        lead = [self.num_worlds]
        loaded = TensorDict(entries, lead, self.device).clone()
        if _GROUP in loaded.keys():  # noqa: SIM118
            loaded.get(_GROUP).batch_size = self.observation_spec[_GROUP].shape
        return loaded


class ActionRepeat(Wrapper):
    """Takes every action ``repeats`` times and sums the rewards.

    A world stops at its first end: what stands under ``"next"`` is what the step that ended it, else the last one,
    left there. Likewise an agent of the group ``agents`` (all but ``active``, which is always current): rewards
    that follow its own end do not count. ``("next", "episode", "length")`` and time limits count the inner world's
    steps. A world that ended early is stepped on with the others, which every world must bear.
    """

    def __init__(self, inner: World, repeats: int) -> None:
        super().__init__(inner)
        self.repeats = repeats
        self.reward_spec = _mapped(inner.full_reward_spec, lambda spec: _summed(spec, repeats))
        self._root_keys = list(self.observation_spec.keys(include_nested=True, leaves_only=True))
        self._shown = TensorDict({}, self.batch_size, self.device)

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        outcome = self.inner._advance(tensordict)
        for _ in range(self.repeats - 1):
            outcome = self._then(outcome, self.inner._advance(tensordict))
        self._shown = outcome.select(*self._root_keys)
        return outcome

    def _then(self, first: TensorDict, later: TensorDict) -> TensorDict:
        """Both one after the other; ``later`` does not count where ``first`` was the end."""
        outcome = _kept(first.get("done"), first, later)
        agents = first.get(_GROUP, None)
        if agents is not None and "done" in agents.keys():  # noqa: SIM118
            outcome.set(_GROUP, self._agents_then(agents, outcome.get(_GROUP)))
        for key in self.reward_keys:
            group = key[:-1] if isinstance(key, tuple) else ()
            over = first.get((*group, "done"), None)
            more = later.get(key)
            for flag in (first.get("done"), over):
                more = more if flag is None else more.masked_fill(_aligned(flag, more), 0)
            outcome.set(key, first.get(key) + more)
        return outcome

    def _agents_then(self, first: TensorDict, later: TensorDict) -> TensorDict:
        ended = first.get("done")
        flags = [name for name in ("done", "terminated", "truncated") if name in first.keys()]  # noqa: SIM118
        active = later.get("active", None)
        gone = ended if active is None else ended & ~active[..., None]
        outcome = _kept(gone, first, later)
        outcome.update(_kept(ended, first.select(*flags), later.select(*flags)))
        return outcome if active is None else outcome.set("active", active)

    def _show_anew(self, worlds: Tensor | None) -> None:
        now = self.inner._current()
        self._shown = now if worlds is None else _replaced(self._shown, worlds, now)

    def _current(self) -> TensorDict:
        return self._shown.copy()

    def _state_to_save(self) -> dict[str, Any]:
        return super()._state_to_save() | {"shown": self._shown.to_dict()}

    def _load_state(self, state: dict[str, Any]) -> None:
        super()._load_state(state)
        if self.saves_episodes:
            self._shown = self._loaded(state["shown"])
        else:  # the inner world began new episodes
            self._show_anew(None)


class FrameStack(Wrapper):
    """Shows the last ``frames`` observations as one, oldest first.

    They are joined along an observation's first axis: ``[F]`` becomes ``[frames * F]``, a number ``[frames]``; every
    entry of a dict observation likewise. Images (three axes) are joined along their channels, the smaller of the
    first and the last axis: ``[C, H, Wd]`` becomes ``[frames * C, H, Wd]``, ``[H, Wd, C]`` ``[H, Wd, frames * C]``;
    those without channels (uint8, two axes) become ``[frames, H, Wd]``. At a world's start its first observation
    stands in for those before it. ``input_features`` and ``nearest_obstacle`` are None: they know one frame only.

    Raises:
        ValueError: no observation, one with object slots, or one whose kind of spec cannot be stacked.
    """

    input_features = nearest_obstacle = None

    def __init__(self, inner: World, frames: int) -> None:
        super().__init__(inner)
        self.frames = frames
        name = type(inner).__name__
        grouped = _GROUP in inner.observation_spec.keys()  # noqa: SIM118
        self._key: Any = (_GROUP, "observation") if grouped else "observation"
        self._axis = 2 if grouped else 1
        if self._key not in inner.observation_spec.keys(include_nested=True):
            raise ValueError(f"frame_stack: {name} shows no observation under {self._key}")
        single = inner.observation_spec[self._key]
        if isinstance(single, Composite) and {"objects", "mask"} <= set(single.keys()):
            raise ValueError(
                f"frame_stack: the observation of {name} has object slots, whose order changes between frames; "
                "only flat or dict observations without them can be stacked"
            )
        spec = inner.observation_spec.clone()
        spec[self._key] = _mapped(single, self._stacked_spec)
        self.observation_spec = spec
        self._stack = TensorDict({}, self.batch_size, self.device)

    # -- specs ---------------------------------------------------------------------------------------------------

    def _stacked_spec(self, spec: TensorSpec) -> TensorSpec:
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

    # -- stacks --------------------------------------------------------------------------------------------------

    def _frame(self, value: Tensor) -> tuple[Tensor, int]:
        """One frame, and the axis along which frames are joined."""
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
        self._stack = self._stack.apply(self._pushed, following.select(self._key))
        return following.update(self._stack)

    def _show_anew(self, worlds: Tensor | None) -> None:
        fresh = self.inner._current().select(self._key).apply(self._repeated)
        self._stack = fresh if worlds is None else _replaced(self._stack, worlds, fresh)

    def _current(self) -> TensorDict:
        return self.inner._current().copy().update(self._stack)

    def _state_to_save(self) -> dict[str, Any]:
        return super()._state_to_save() | {"stack": self._stack.to_dict()}

    def _load_state(self, state: dict[str, Any]) -> None:
        super()._load_state(state)
        if self.saves_episodes:
            self._stack = self._loaded(state["stack"])
        else:  # the inner world began new episodes
            self._show_anew(None)


# -- tensors and specs -------------------------------------------------------------------------------------------


def _aligned(flag: Tensor, value: Tensor) -> Tensor:
    """``flag [..., 1]`` with as many dimensions as ``value [..., *]``."""
    return flag.reshape(*flag.shape[:-1], *[1] * (value.dim() - flag.dim() + 1))


def _kept(flag: Tensor, first: TensorDict, later: TensorDict) -> TensorDict:
    """``first`` where the flag holds, else ``later``."""
    return first.apply(lambda old, new: torch.where(_aligned(flag, old), old, new), later)


def _replaced(entries: TensorDict, worlds: Tensor, fresh: TensorDict) -> TensorDict:
    """The entries, those of some worlds fresh. Never in place: batches hold these tensors."""
    return entries.apply(lambda old, new: old.index_copy(0, worlds, new[worlds]), fresh)


def _mapped(spec: TensorSpec, function: Callable[[TensorSpec], TensorSpec]) -> TensorSpec:
    """A spec of the same nesting, made from every leaf."""
    if not isinstance(spec, Composite):
        return function(spec)
    leaves = {key: _mapped(entry, function) for key, entry in spec.items()}
    return Composite(leaves, shape=spec.shape, device=spec.device)


def _summed(spec: TensorSpec, most: int) -> TensorSpec:
    """The spec of a sum of one to ``most`` rewards."""
    kind = {"shape": spec.shape, "dtype": spec.dtype, "device": spec.device}
    if not isinstance(spec, Bounded):
        return Unbounded(**kind)
    low, high = spec.space.low, spec.space.high
    return Bounded(torch.minimum(low, most * low), torch.maximum(high, most * high), **kind)
