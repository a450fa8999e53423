"""The mirror symmetry of MarineNav, which swaps port and starboard."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ..world import Mirror


def seen(observation: TensorDictBase) -> TensorDict:
    """Mirrors a robot's observation ``[...]``; body axes are x ahead and y to starboard."""
    goal_x, goal_y, velocity_x, velocity_y, yaw_rate, left, right = observation.get("self").unbind(-1)
    own = (goal_x, -goal_y, velocity_x, -velocity_y, -yaw_rate, right, left)
    x, y, object_x, object_y, radius = observation.get("objects").unbind(-1)
    entries = {
        "self": torch.stack(own, -1),
        "objects": torch.stack((x, -y, object_x, -object_y, radius), -1),
        "mask": observation.get("mask"),
    }
    return TensorDict(entries, observation.batch_size, observation.device)


def thrusts(action: Tensor) -> Tensor:
    """Swaps the left and right thrust rates ``[..., 2]``."""
    return action.flip(-1)


def choices(action: Tensor) -> Tensor:
    """Swaps left and right in one of 25 pairs of thrust rates, ``5 left + right``."""
    return action % 5 * 5 + action // 5


CONTINUOUS, DISCRETE = Mirror(seen, thrusts), Mirror(seen, choices)
