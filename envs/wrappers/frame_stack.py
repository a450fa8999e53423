"""A world that shows its last few observations at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, OneHot, TensorSpec, Unbounded

from ..world import GROUP, World
from .base import Wrapper, mapped, replaced


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

    def __init__(self, inner: World, frames: int) -> None:
        super().__init__(inner)
        self.nearest_obstacle = None
        self.frames = frames
        name = type(inner).__name__
        grouped = GROUP in inner.observation_spec.keys()  # noqa: SIM118
        self._key: Any = (GROUP, "observation") if grouped else "observation"
        self._axis = 2 if grouped else 1
        if self._key not in inner.observation_spec.keys(include_nested=True):
            raise ValueError(f"frame_stack: {name} shows no observation under {self._key}")
        single = inner.observation_spec[self._key]
        if isinstance(single, Composite) and {"objects", "mask"} <= set(single.keys()):
            raise ValueError(
                f"frame_stack: the observation of {name} has object slots, whose order changes between frames; "
                "only flat or dict observations without them can be stacked"
            )
        flat = not isinstance(single, Composite) and single.ndim == self._axis + 1
        if inner.input_features is not None:
            self.input_features = partial(StackedFeatures, inner.input_features, frames) if flat else None
        spec = inner.observation_spec.clone()
        spec[self._key] = mapped(single, self._stacked_spec)
        self.observation_spec = spec
        self._stack = TensorDict({}, self.batch_size, self.device)

    def mirror(self) -> str:
        return "frame_stack: its mirror knows one frame only"

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
        self._stack = self._stack.apply(self._pushed, following.select(self._key))
        return following.update(self._stack)

    def _show_anew(self, worlds: Tensor | None) -> None:
        fresh = self.inner._current().select(self._key).apply(self._repeated)
        self._stack = fresh if worlds is None else replaced(self._stack, worlds, fresh)

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
