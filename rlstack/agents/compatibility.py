"""Checks that a policy from elsewhere fits an env: samples of its observations, and checks of its actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchrl.data import Categorical, Composite, MultiCategorical, OneHot, TensorSpec
from torchrl.envs import EnvBase

from rlstack.agents.interface import Interface
from rlstack.config import ConfigError
from rlstack.files.safe_load import first_line

BOUNDS_TOLERANCE = 1e-5
"""How far float32 rounding may put a rescaled action outside its bounds, relative to their width."""


def choices(spec: TensorSpec) -> int | None:
    """Returns the number of discrete actions; None for other kinds of action."""
    return int(spec.space.n) if isinstance(spec, Categorical | OneHot) and type(spec) in (Categorical, OneHot) else None


def encode(spec: TensorSpec, index: Tensor) -> Tensor:
    """Returns indices ``[...]`` of discrete actions in the env's form: unchanged, or one-hot."""
    if isinstance(spec, OneHot):
        return torch.nn.functional.one_hot(index.long(), int(spec.space.n)).to(spec.dtype)
    return index.reshape(*index.shape, *spec.shape).to(spec.dtype)


def describe_observation(interface: Interface) -> str:
    """Returns the keys and shapes of an observation, for messages."""
    spec = interface.observation
    if not isinstance(spec, Composite):
        return f"a vector of shape {tuple(spec.shape)}"
    return str({str(key): tuple(leaf.shape) for key, leaf in spec.items(include_nested=True, leaves_only=True)})


def leaves(observation: Any, interface: Interface) -> list[Tensor]:
    """Returns the leaves of an observation in the env's order, each ``[..., *shape]``."""
    if isinstance(observation, Tensor):
        return [observation]
    spec: Any = interface.observation
    return [observation.get(key) for key in spec.keys(include_nested=True, leaves_only=True)]


def batch_of(observation: Any, interface: Interface) -> torch.Size:
    """Returns the batch dimensions of an observation."""
    spec = interface.observation
    if isinstance(spec, Composite):
        spec = next(iter(spec.values(include_nested=True, leaves_only=True)))
    part = leaves(observation, interface)[0]
    return part.shape[: part.dim() - len(spec.shape)]


def as_actions(answer: Any, lead: torch.Size, spec: TensorSpec, device: Any, who: str) -> Tensor:
    """Converts the answer of a policy to a tensor of the env's shape and dtype.

    Args:
        answer: tensor, array or nested list: actions ``[*lead, *shape]`` or, with the batch flattened, ``[N, *shape]``.
            Discrete actions may have a last dimension of 1, or be indices where the env takes one-hot vectors.

    Raises:
        ConfigError: not numbers, the wrong shape, or discrete actions that are fractions or outside the env's.
    """
    try:
        action = torch.as_tensor(answer, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{who}: the action is not an array of numbers ({first_line(error)})") from None
    count, entries = choices(spec), lead.numel()
    if count is not None:
        if action.is_floating_point() and not bool((action == action.round()).all()):
            raise ConfigError(f"{who}: {action.dtype} fractions as actions, the env takes indices below {count}")
        indices = (action.numel() == entries and action.shape[:1] == (entries,)) or action.shape in (lead, (*lead, 1))
        if indices:
            _check_choices(action, torch.tensor(count), who)
            return encode(spec, action.reshape(lead))
    if action.shape not in ((*lead, *spec.shape), (entries, *spec.shape)):
        expected = " or ".join(str(shape) for shape in dict.fromkeys(((*lead, *spec.shape), (entries, *spec.shape))))
        raise ConfigError(f"{who}: actions of shape {tuple(action.shape)}, the env takes {expected}")
    if spec.dtype.is_floating_point is not (action.dtype.is_floating_point) and count is None:
        raise ConfigError(f"{who}: actions of {action.dtype}, the env takes {spec.dtype}")
    if isinstance(spec, MultiCategorical):
        _check_choices(action, spec.nvec, who)
    return action.reshape(*lead, *spec.shape).to(spec.dtype)


def _check_choices(action: Tensor, counts: Tensor, who: str) -> None:
    """Raises an error unless indices ``[..., *counts.shape]`` are below ``counts``."""
    if bool(((action < 0) | (action >= counts.to(action.device))).any()):
        seen = f"[{float(action.min()):g}, {float(action.max()):g}]"
        raise ConfigError(f"{who}: actions in {seen}, the env takes [0, {int(counts.max()) - 1}]")


@contextmanager
def telling(interface: Interface, who: str) -> Iterator[None]:
    """Turns an error that foreign code raises inside the context into one clear line that names the policy.

    Raises:
        ConfigError: the code fails on an observation of this env.
    """
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        what = ": ".join(dict.fromkeys((type(error).__name__, first_line(error))))
        raise ConfigError(f"{who}: fails on {describe_observation(interface)}: {what}") from error


def try_out(act: Callable[[Any], Tensor], env: EnvBase, interface: Interface, who: str) -> None:
    """Acts once on a sample observation, always the same, and checks the shape, dtype and bounds of the action.

    Raises:
        ConfigError: the policy fails on an observation of this env, or its action is not one of the env's.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # not torch.manual_seed: the generators of GPUs would not be restored
        observation = env.observation_spec[interface.key("observation")].to("cpu").rand().to(env.device or "cpu")
    with torch.no_grad(), telling(interface, who):
        action = act(observation)
    check_bounds(action, interface.action, who)


def check_bounds(action: Tensor, spec: TensorSpec, who: str) -> None:
    """Checks an action of the env's shape against the bounds of its spec.

    Raises:
        ConfigError: the action is not finite, or out of bounds.
    """
    if not bool(torch.isfinite(action.float()).all()):
        raise ConfigError(f"{who}: an action is not a finite number")
    count = choices(spec)
    if count is not None and not isinstance(spec, OneHot):
        low, high = action.new_tensor(0), action.new_tensor(count - 1)
    elif hasattr(spec.space, "low"):
        low, high = spec.space.low.to(action), spec.space.high.to(action)
    else:
        return
    slack = BOUNDS_TOLERANCE * (high - low).clamp(min=1) if action.is_floating_point() else 0
    if bool(((action < low - slack) | (action > high + slack)).any()):
        seen = f"[{float(action.min()):g}, {float(action.max()):g}]"
        raise ConfigError(f"{who}: actions in {seen}, the env takes [{float(low.min()):g}, {float(high.max()):g}]")
