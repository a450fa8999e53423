"""Scaled and derived inputs for networks: the geometry of encounters for a policy, and the whole state for critics.

The environment's observation stays as published, so that any policy can act in any world; a network may apply
:class:`EncounterFeatures` before its encoder.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import pad

from ..world import Mirror
from .rules import HULL_RADIUS
from .state import WorldState

_SPEED, _YAW_RATE, _THRUST, _FAR = 3.0, 0.7, 1000.0, 20.0
_MAP = 50.0
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


OWN, ROBOT, OBSTACLE = 10, 7, 4
"""Numbers of the robot itself, of each other robot and of each obstacle in :func:`true_state`."""


def true_state(state: WorldState, obstacles: int, max_steps: int) -> Tensor:
    """Returns what each robot would know without noise and limits of perception, ``[W, A, S]``, for critics.

    ``S = 10 + 7 (A - 1) + 4 obstacles``, all in the robot's body frame. The robot itself: goal (2), velocity over
    ground (2), yaw rate, thrusts (2), current of the water (2), share of the time that has passed. Every other active
    robot, the nearest first: 1, position (2), velocity (2), its goal (2). Every obstacle, the nearest first: 1,
    position (2), radius in m. Distances are divided by 50 m, speeds by 3 m/s, yaw rates by 0.7 rad/s, thrusts by
    1000 N. Empty slots and robots that are not active are zeros.

    Args:
        obstacles: number of slots for obstacles; of more, the farthest are left out.
    """
    position, heading = state.pose[:2].permute(2, 1, 0), state.pose[2].T
    velocity, through_water = state.velocity.permute(2, 1, 0), state.velocity_r[:2].permute(2, 1, 0)
    active, goal, thrust = state.active.T, state.goal.permute(2, 1, 0), state.thrust.permute(2, 1, 0)
    worlds, robots = active.shape
    cos, sin = heading.cos()[..., None], heading.sin()[..., None]

    def turned(ways: Tensor) -> Tensor:
        """Returns ``[W, A, n, 2]`` in the robots' axes."""
        x, y = ways.unbind(-1)
        return torch.stack((x * cos + y * sin, y * cos - x * sin), -1)

    def nearest(rows: Tensor, there: Tensor, offset: Tensor, slots: int) -> Tensor:
        """Returns the nearest of the objects that are there, ``[W, A, slots * F]``."""
        order = offset.norm(dim=-1).masked_fill(~there, torch.inf).argsort(dim=-1, stable=True)[..., :slots]
        found = (rows * there[..., None]).gather(2, order[..., None].expand(-1, -1, -1, rows.shape[-1]))
        return pad(found, (0, 0, 0, slots - found.shape[2])).flatten(2)

    ways = (goal - position, velocity[..., :2], velocity[..., :2] - through_water)
    to_goal, speed, current = turned(torch.stack(ways, 2)).unbind(2)
    passed = (state.steps[:, None, None] / max(max_steps, 1)).expand(worlds, robots, 1).to(goal.dtype)
    turn = velocity[..., 2:] / _YAW_RATE
    own = (to_goal / _MAP, speed / _SPEED, turn, thrust / _THRUST, current / _SPEED, passed)

    offset = position[:, None] - position[:, :, None]  # [W, A, A, 2], of the last A as seen by the first
    others = active[:, None] & ~torch.eye(robots, dtype=torch.bool, device=active.device)
    theirs = turned(velocity[:, None, :, :2].expand_as(offset)) / _SPEED, turned(goal[:, None] - position[:, :, None])
    rows = (others[..., None].to(goal.dtype), turned(offset) / _MAP, theirs[0], theirs[1] / _MAP)
    mates = nearest(torch.cat(rows, -1), others, offset, robots - 1)

    place = state.obstacles[:2].permute(2, 1, 0)[:, None] - position[:, :, None]
    there = state.obstacle_present.T[:, None].expand(place.shape[:-1])
    radius = state.obstacles[2].T[:, None, :, None].expand(*place.shape[:-1], 1)
    things = torch.cat((torch.ones_like(radius), turned(place) / _MAP, radius), -1)
    whole = torch.cat((*own, mates, nearest(things, there, place, obstacles)), -1)
    return whole * active[..., None]


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
