"""Do two policies act the same? Random inputs of an agent, and how far apart two answers to them are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from rlstack.agents.base import Interface

Act = Callable[[Any, Tensor | None], Tensor]
"""From an observation ``[N]`` and, where the env has one, an action mask ``[N, n]`` to the env's actions."""

TOLERANCE = 1e-5
"""How far apart continuous actions may be, in the env's units, or as a share of half their range if that is larger."""
_WIDE = 1e4
"""Bounds further out than this say nothing about what is observed."""
_NUDGES = 64


def random_inputs(interface: Interface, count: int, seed: int = 0) -> tuple[Any, Tensor | None]:
    """Observations ``[count]`` within their spec, and action masks that allow something, on the CPU.

    Features without bounds worth the name are normal numbers of sizes from 0.1 to 100.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        mask = None
        if interface.masked:
            parts = [_mask(count, choices) for choices in interface.choices or ()]
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


def _mask(count: int, choices: int) -> Tensor:
    mask = torch.rand(count, choices) < 0.5
    return mask | torch.nn.functional.one_hot(torch.randint(choices, (count,)), choices).bool()


def largest_difference(
    act: Act, answer: Tensor, observation: Any, mask: Tensor | None, interface: Interface
) -> tuple[float, int]:
    """How far answers are from what an agent does, and how many are wrong.

    An answer that differs is right all the same where the agent, too, would give it to an input that differs in
    the sixth digit: there it stands between two actions (of several candidates, or choices), and rounding decides.

    Args:
        act: the agent.
        answer: actions ``[N]`` of the other for the same inputs.

    Returns the largest difference of the right and the wrong alike, but for such ties, and the number of wrong ones.
    """
    wanted = act(observation, mask)
    difference = _difference(wanted, answer)
    wrong = difference > tolerance(interface)
    if bool(wrong.any()):
        legal = None if mask is None else mask[wrong]
        tied = _tied(act, answer[wrong], difference[wrong], observation[wrong], legal)
        difference[wrong] = torch.where(tied, 0.0, difference[wrong])
    return float(difference.max()), int((difference > tolerance(interface)).sum())


def _tied(act: Act, answer: Tensor, difference: Tensor, observation: Any, mask: Tensor | None) -> Tensor:
    """``[N]`` bool: on an input next to this one the agent jumps to the answer (and more than nine tenths of the way)."""
    found = torch.zeros(len(answer), dtype=torch.bool)
    with torch.random.fork_rng(devices=[]):
        for _ in range(_NUDGES):
            found |= _difference(act(_nudged(observation), mask), answer) <= 0.1 * difference
    return found


def _nudged(observation: Any) -> Any:
    if not isinstance(observation, Tensor):
        return observation.apply(_nudged)
    if not observation.is_floating_point():
        return observation
    return observation * (1 + TOLERANCE * (2 * torch.rand_like(observation) - 1))


def _difference(one: Tensor, other: Tensor) -> Tensor:
    """``[N]``: the largest of an action's numbers; of choices 1 where they differ."""
    if not one.is_floating_point():
        return (one != other).reshape(len(one), -1).any(-1).float()
    return (one - other).abs().reshape(len(one), -1).amax(-1).nan_to_num(torch.inf)


def tolerance(interface: Interface) -> float:
    """The largest difference that is none."""
    if not interface.continuous:
        return 0.0
    half = (interface.action.space.high - interface.action.space.low).float().max() / 2
    return TOLERANCE * max(1.0, float(half) if torch.isfinite(half) else 1.0)
