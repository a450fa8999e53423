"""Compares two policies: draws random inputs, and measures how far apart two policies' actions for them are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from rlstack.agents.interface import Interface

Act = Callable[[Any, Tensor | None], Tensor]
"""Maps an observation ``[N]`` and, where the env has one, an action mask ``[N, n]`` to the env's actions."""

TOLERANCE = 1e-5
"""The largest difference of equal continuous actions, in the env's units, or relative to half their range if over 1."""
_WIDE = 1e4
"""Bounds beyond this say nothing about typical observations."""
_NUDGES, _NUDGE = 64, 1e-6


def random_inputs(interface: Interface, count: int, seed: int = 0) -> tuple[Any, Tensor | None]:
    """Draws observations ``[count]`` within their spec, and action masks that allow something, on the CPU.

    Features without meaningful bounds are normal numbers of standard deviations from 0.1 to 100.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed: the generators of GPUs are not restored
        mask = None
        if interface.masked:
            parts = []
            for size in interface.choices or ():
                legal = torch.rand(count, size) < 0.5
                parts.append(legal | torch.nn.functional.one_hot(torch.randint(size, (count,)), size).bool())
            mask = torch.cat(parts, -1)
        return _sample(interface.observation, count), mask


def _sample(spec: TensorSpec, count: int) -> Any:
    if isinstance(spec, Composite):
        return TensorDict({key: _sample(leaf, count) for key, leaf in spec.items()}, [count])
    if not spec.dtype.is_floating_point:
        return spec.cpu().expand(count, *spec.shape).rand()
    size = 10 ** torch.randint(-1, 3, (count, *[1] * len(spec.shape))).to(spec.dtype)
    free = size * torch.randn(count, *spec.shape, dtype=spec.dtype)
    if not hasattr(spec.space, "low"):
        return free
    low, high = spec.space.low.cpu(), spec.space.high.cpu()
    bounded = (low.abs() < _WIDE) & (high.abs() < _WIDE)
    uniform = low + (high - low) * torch.rand(count, *spec.shape, dtype=spec.dtype)
    return torch.where(bounded, uniform, free.clamp(low, high))


@dataclass(frozen=True)
class Agreement:
    """The result of :func:`compare`.

    Attributes:
        largest: the largest difference, except where rounding decides.
        rounded: number of actions that differ by more than :func:`tolerance` where rounding decides.
        wrong: number of actions that differ by more than that where it does not.
    """

    largest: float
    rounded: int
    wrong: int

    def __str__(self) -> str:
        rounded = f", but for {self.rounded} where rounding decides," if self.rounded else ""
        return f"its greedy actions differ by {self.largest:.1e} at most{rounded}"


@torch.no_grad()
def compare(act: Act, answer: Tensor, observation: Any, mask: Tensor | None, interface: Interface) -> Agreement:
    """Measures how far another policy's actions are from an agent's.

    Rounding decides where the agent's own action moves that far (for choices: to that choice) if its input changes in
    the sixth digit: between two actions of the same value, or where large numbers cancel.

    Args:
        act: the agent.
        answer: actions ``[N]`` of the other policy for the same inputs.
    """
    wanted = act(observation, mask)
    difference = _difference(wanted, answer)
    beyond = difference > tolerance(interface)
    rounded = beyond.clone()
    if bool(beyond.any()):
        given, ours, legal = answer[beyond], wanted[beyond], None if mask is None else mask[beyond]
        decided = torch.zeros(len(given), dtype=torch.bool)
        with torch.random.fork_rng(devices=[]):
            for _ in range(_NUDGES):
                near = act(_nudged(observation[beyond]), legal)
                if given.is_floating_point():
                    decided |= _difference(near, ours) >= 0.9 * _difference(given, ours)
                else:
                    decided |= _difference(near, given) == 0
        rounded[beyond] = decided
    wrong = int((beyond & ~rounded).sum())
    return Agreement(float(difference.masked_fill(rounded, 0.0).max()), int(rounded.sum()), wrong)


def _nudged(observation: Any) -> Any:
    if not isinstance(observation, Tensor):
        return observation.apply(_nudged)
    if not observation.is_floating_point():
        return observation
    return observation * (1 + _NUDGE * (2 * torch.rand_like(observation) - 1))


def _difference(one: Tensor, other: Tensor) -> Tensor:
    """Returns differences ``[N]``: the largest over an action's numbers; for choices 1 where they differ."""
    if not one.is_floating_point():
        return (one != other).reshape(len(one), -1).any(-1).float()
    return (one - other).abs().reshape(len(one), -1).amax(-1).nan_to_num(torch.inf)


def tolerance(interface: Interface) -> float:
    """Returns the largest difference that counts as none."""
    if not interface.continuous:
        return 0.0
    half = (interface.action.space.high - interface.action.space.low).float().max() / 2
    return TOLERANCE * max(1.0, float(half) if torch.isfinite(half) else 1.0)
