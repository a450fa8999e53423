"""Scaled and derived inputs for a policy network, which describe the geometry of encounters.

The environment's observation stays as published, so that any policy can act in any world; a network may apply this
module before its encoder.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from ..world import Mirror
from .rules import HULL_RADIUS

_SPEED, _YAW_RATE, _THRUST, _FAR = 3.0, 0.7, 1000.0, 20.0
_HORIZON = 10.0
"""Closest approaches later than this many seconds are ignored."""


def nearest_obstacle(observation: TensorDictBase) -> Tensor:
    """Returns the distance from hull to hull of the nearest reported object ``[...]`` in m; infinity without objects.

    Args:
        observation: ``"objects" [..., K, 5]`` (position 2, velocity 2, radius) and ``"mask" [..., K]``. The distance is
            negative if hulls, taken as circles, overlap.
    """
    objects = observation.get("objects")
    gap = objects[..., :2].norm(dim=-1) - objects[..., 4] - HULL_RADIUS
    return gap.masked_fill(observation.get("mask") <= 0.5, torch.inf).amin(-1)


class EncounterFeatures(nn.Module):
    """Maps ``"self" [..., 7]`` to ``[..., 11]`` and ``"objects" [..., K, 5]`` to ``[..., K, 16]``; keeps the mask.

    All outputs are of order 1. Texts on marine collision avoidance define the closest point of approach.
    """

    self_size = 11
    object_size = 16

    def forward(self, observation: TensorDictBase) -> TensorDict:
        own, objects = observation.get("self"), observation.get("objects")
        return TensorDict(
            {"self": self._self(own), "objects": self._objects(own, objects), "mask": observation.get("mask")},
            batch_size=observation.batch_size,
        )

    @staticmethod
    def _self(own: Tensor) -> Tensor:
        goal, velocity, yaw_rate, thrust = own.split((2, 2, 1, 2), dim=-1)
        distance = goal.norm(dim=-1, keepdim=True)
        toward = goal / distance.clamp_min(1e-3)
        return torch.cat(
            (
                toward,
                (distance / 50).clamp_max(2),
                (distance / 10).clamp_max(1),
                velocity / _SPEED,
                (velocity * toward).sum(-1, keepdim=True) / _SPEED,
                yaw_rate / _YAW_RATE,
                thrust / _THRUST,
                (thrust[..., :1] - thrust[..., 1:]) / _THRUST,
            ),
            dim=-1,
        )

    @staticmethod
    def _objects(own: Tensor, objects: Tensor) -> Tensor:
        position, velocity, radius = objects.split((2, 2, 1), dim=-1)
        goal, own_velocity = own[..., None, :2], own[..., None, 2:4]
        distance = position.norm(dim=-1, keepdim=True).clamp_min(1e-3)
        toward = position / distance
        gap = distance - radius - HULL_RADIUS
        relative = velocity - own_velocity
        squared = relative.square().sum(-1, keepdim=True).clamp_min(1e-2)
        closest_in = (-(position * relative).sum(-1, keepdim=True) / squared).clamp(0, _HORIZON)
        miss = (position + relative * closest_in).norm(dim=-1, keepdim=True) - radius - HULL_RADIUS
        to_goal = goal / goal.norm(dim=-1, keepdim=True).clamp_min(1e-3)
        return torch.cat(
            (
                position / _FAR,
                toward,
                (gap / 5).clamp(-1, 2),
                1 / (1 + gap.clamp_min(0)),
                relative / _SPEED,
                velocity / _SPEED,
                -(relative * toward).sum(-1, keepdim=True) / _SPEED,
                closest_in / _HORIZON,
                (miss / 5).clamp(-1, 2),
                radius / HULL_RADIUS,
                (to_goal * toward).sum(-1, keepdim=True),
                (velocity.norm(dim=-1, keepdim=True) / _SPEED),
            ),
            dim=-1,
        )


# -- the mirror symmetry -------------------------------------------------------------------------------------------


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
