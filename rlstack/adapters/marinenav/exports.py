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
"""Number of quantile levels that an IQN export takes for one decision."""
_COUNT = 3
_TYPES: dict[tuple[Any, ...], list[str]] = {
    (2, (_COUNT, LEVELS, CHOICES)): ["IQN"],
    (1, (_COUNT, ACTION_SIZE)): ["AC-IQN", "DDPG"],
    (1, (_COUNT, ACTION_SIZE), (_COUNT, ACTION_SIZE)): ["SAC"],
    (1, (_COUNT, CHOICES)): ["DQN"],
}
"""Agent types by the number of an export's arguments, and the shapes of its outputs for three observations."""


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

    def actions(self, observation: TensorDictBase) -> Tensor:
        """Returns actions ``[B, 2]`` or ``[B]``, chosen as published: of SAC a sample, of IQN at drawn levels."""
        parts = tuple(observation.get(key).to(self.device, self.dtype) for key in ("self", "objects", "mask"))
        kind, levels = self.agent_types[0], (len(parts[0]), LEVELS)
        drawn = [torch.rand(levels, dtype=self.dtype, device=self.device)] if kind == "IQN" else []
        output = self.module(parts, *drawn)
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
    dtype = next((value.dtype for value in module.state_dict().values() if value.is_floating_point()), torch.float64)
    shapes = ((SELF_SIZE,), (NUM_OBJECTS, OBJECT_SIZE), (NUM_OBJECTS,))
    sample: list[Any] = [tuple(torch.zeros(_COUNT, *shape, dtype=dtype, device=device) for shape in shapes)]
    if len(forward_arguments(module)) == 2:
        sample.append(torch.full((_COUNT, LEVELS), 0.5, dtype=dtype, device=device))
    with torch.no_grad():
        output = module(*sample)
    parts = output if isinstance(output, tuple | list) else (output,)
    shapes_out = [tuple(part.shape) for part in parts]
    distributions = len(shapes_out) == 1 and len(shapes_out[0]) == 3 and shapes_out[0][:2] == (_COUNT, CHOICES)
    types = ["Rainbow"] if distributions else _TYPES.get((len(sample), *shapes_out))
    if types is None:
        raise ValueError(f"{len(sample)} arguments and outputs {shapes_out} for 3 observations are those of none")
    return Export(module, types, dtype, device)


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
