"""TorchScript exports of the published MarineNav agents: called as they are, whatever is inside.

Such a program cannot run Python, but may compute anything: run what you got from people you trust.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.adapters.marinenav.weights import ACTION_SIZE, CHOICES, NUM_OBJECTS, OBJECT_SIZE, SELF_SIZE
from rlstack.agents.base import Policy
from rlstack.agents.interface import Interface
from rlstack.config import ConfigError
from rlstack.files.safe_load import forward_arguments

LEVELS = 32
"""Quantile levels an IQN export takes for one decision."""


@dataclass(frozen=True)
class Export:
    """A loaded export.

    Attributes:
        module: ``((self [B, 7], objects [B, 5, 5], mask [B, 5]),)``, for IQN also ``taus [B, 32]``, to actions
            ``[B, 2]`` (AC-IQN, DDPG), values ``[B, 25]`` (DQN), mean and log standard deviation ``[B, 2]`` (SAC),
            quantiles ``[B, 32, 25]`` (IQN) or probabilities ``[B, 25, K]`` (Rainbow).
        agent_types: what it can be.
        dtype: of its inputs.
        device: where it runs.
    """

    module: Any
    agent_types: list[str]
    dtype: torch.dtype
    device: torch.device

    def __call__(self, observation: TensorDictBase) -> Any:
        """The output for a batch ``[B]`` of observations; IQN's levels are drawn."""
        parts = tuple(observation.get(key).to(self.device, self.dtype) for key in ("self", "objects", "mask"))
        if self.agent_types == ["IQN"]:
            return self.module(parts, torch.rand(len(parts[0]), LEVELS, dtype=self.dtype, device=self.device))
        return self.module(parts)

    def actions(self, observation: TensorDictBase) -> Tensor:
        """``[B, 2]`` or ``[B]``, chosen as published: greedy, of SAC a sample."""
        output, kind = self(observation), self.agent_types[0]
        if kind == "SAC":
            mean, log_std = output
            return (mean + log_std.exp() * torch.randn_like(mean)).arctan() * (2 / math.pi)
        if kind == "IQN":
            return output.mean(-2).argmax(-1)
        if kind == "DQN":
            return output.argmax(-1)
        if kind == "Rainbow":
            atoms = torch.linspace(-1, 1, output.shape[-1], dtype=output.dtype, device=output.device)
            return (output @ atoms).argmax(-1)
        return output


def load_export(path: Path, device: torch.device | str = "cpu") -> Export:
    """Loads a TorchScript export and tries it, to see which agent it is.

    A program that makes tensors of its own may be bound to the CPU, where it was traced: it then runs there.

    Raises:
        ConfigError: not TorchScript, or not a program of the form :class:`Export` describes.
    """
    for where in dict.fromkeys((torch.device(device), torch.device("cpu"))):
        try:
            return _load_on(path, where)
        except Exception as error:  # torch raises all sorts for programs that are no such
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    raise ConfigError(f"{path}: not an export of a published MarineNav agent ({reason})")


def _load_on(path: Path, device: torch.device) -> Export:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.load(str(path), map_location=device).eval()
    arguments = forward_arguments(module)
    dtype = next((value.dtype for value in module.state_dict().values() if value.is_floating_point()), torch.float64)
    shapes = ((SELF_SIZE,), (NUM_OBJECTS, OBJECT_SIZE), (NUM_OBJECTS,))
    sample: list[Any] = [tuple(torch.zeros(3, *shape, dtype=dtype, device=device) for shape in shapes)]
    if len(arguments) == 2:
        sample.append(torch.full((3, LEVELS), 0.5, dtype=dtype, device=device))
    with torch.no_grad():
        output = module(*sample)
    return Export(module, _types(output, len(arguments)), dtype, device)


def _types(output: Any, arguments: int) -> list[str]:
    """Agent types with such outputs for three observations; a ValueError if there are none."""
    parts = output if isinstance(output, tuple | list) else (output,)
    shapes = [tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__ for part in parts]
    if shapes == [(3, LEVELS, CHOICES)] and arguments == 2:
        return ["IQN"]
    if arguments == 1 and shapes == [(3, ACTION_SIZE)]:
        return ["AC-IQN", "DDPG"]
    if arguments == 1 and shapes == [(3, ACTION_SIZE)] * 2:
        return ["SAC"]
    if arguments == 1 and shapes == [(3, CHOICES)]:
        return ["DQN"]
    if arguments == 1 and len(shapes) == 1 and len(shapes[0]) == 3 and shapes[0][:2] == (3, CHOICES):
        return ["Rainbow"]
    raise ValueError(f"{arguments} arguments and outputs {shapes} for 3 observations are those of none")


def export_policy(export: Export, interface: Interface) -> Policy:
    """The export as a policy of an env that it fits, in its own dtype."""

    def act(observation: TensorDictBase) -> Tensor:
        lead = observation.batch_size
        actions = export.actions(observation.reshape(-1))
        action = actions.view(*lead, *actions.shape[1:])
        dtype = interface.dtype if action.is_floating_point() else action.dtype
        return interface.to_env(action.to(observation.get("self").device, dtype))

    policy = Policy(interface, act)
    policy.network = export.module
    return policy
