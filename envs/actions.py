"""Makes any actions of a policy valid for a world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torchrl.data import Bounded, Composite, MultiCategorical, TensorSpec

Reader = Callable[[Any], Any]


def reader(spec: TensorSpec, name: str, clamped: bool = True, strict: bool = False) -> Reader:
    """Returns a function that leaves valid actions unchanged and makes others valid.

    It clips numbers to the bounds of a ``Bounded`` spec and choices to the first or last, and replaces NaN by 0 (or the
    bound nearest to 0). It does not wait for a GPU.

    Args:
        spec: spec of the action; for a Composite the function maps a tensordict to a dict.
        name: name of the action, for messages.
        clamped: whether numbers are clipped; NaN always becomes 0.
        strict: whether choices out of range raise an error instead, which waits for a GPU.

    Raises:
        ValueError: raised by the function for an action of another shape, or with ``strict`` for a choice out of range.
    """
    if isinstance(spec, Composite):
        parts = {key: reader(part, f"{name}.{key}", clamped, strict) for key, part in spec.items()}
        return lambda action: {key: part(action.get(key)) for key, part in parts.items()}
    if spec.dtype.is_floating_point:
        return _numbers(spec, name, clamped)
    return _choices(spec, name, strict)


def _numbers(spec: TensorSpec, name: str, clamped: bool) -> Reader:
    shape = spec.shape
    low, high = (spec.space.low, spec.space.high) if clamped and isinstance(spec, Bounded) else (None, None)

    def read(action: Tensor) -> Tensor:
        if action.shape != shape:
            raise ValueError(_misfit(name, action, shape))
        known = action.nan_to_num(0.0, float("inf"), float("-inf"))
        return known if low is None else known.clamp(low, high)

    return read


def _choices(spec: Any, name: str, strict: bool) -> Reader:
    shape, dtype = spec.shape, spec.dtype
    last: Any = int(spec.space.n) - 1 if not isinstance(spec, MultiCategorical) else spec.nvec.to(dtype) - 1
    first: Any = last.new_zeros(()) if isinstance(last, Tensor) else 0

    def read(action: Tensor) -> Tensor:
        nonlocal first, last
        if action.shape != shape:
            raise ValueError(_misfit(name, action, shape))
        if isinstance(last, Tensor) and last.device != action.device:  # once, since a spec keeps counts on the CPU
            first, last = first.to(action.device), last.to(action.device)
        whole = not action.is_floating_point()
        valid = (action if whole else action.nan_to_num(0.0)).clamp(first, last).to(dtype)
        if strict and not bool((valid == action).all()):
            wrong = action[valid != action][0].item()
            raise ValueError(f"{name}: {wrong} is none of the choices, which are {_range(spec)}")
        return valid

    return read


def _misfit(name: str, action: Tensor, shape: Any) -> str:
    return f"{name}: an action has shape {list(action.shape)}, but {list(shape)} is needed"


def _range(spec: Any) -> str:
    if not isinstance(spec, MultiCategorical):
        return f"0 to {int(spec.space.n) - 1}"
    counts = spec.nvec.reshape(-1, spec.shape[-1])[0].tolist()
    return f"of each part 0 to {', '.join(str(int(count) - 1) for count in counts)}"
