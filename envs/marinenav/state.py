"""The state of a batch of MarineNav worlds: plain tensors whose last dimension is the world."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..states import Record


@dataclass
class WorldState(Record):
    """``A`` robots, ``O`` obstacles, ``C`` vortex cores, ``W`` worlds.

    A robot that is padding is neither present nor active; an absent core has circulation 0.
    """

    pose: Tensor  # [3, A, W] x, y in m, heading in [0, 2 pi)
    velocity: Tensor  # [3, A, W] over ground, lagging, as observed; m/s, m/s, rad/s
    velocity_r: Tensor  # [3, A, W] relative to the water, world axes
    thrust: Tensor  # [2, A, W] left, right, N
    start: Tensor  # [2, A, W]
    goal: Tensor  # [2, A, W]
    present: Tensor  # [A, W] bool
    active: Tensor  # [A, W] bool: present and not deactivated
    collided: Tensor  # [A, W] bool, sticky
    reached: Tensor  # [A, W] bool, sticky
    obstacles: Tensor  # [3, O, W] x, y, r
    obstacle_present: Tensor  # [O, W] bool
    cores: Tensor  # [4, C, W] x, y, rotation flag (1 clockwise), Gamma
    steps: Tensor  # [W] int64: steps since the reset
    level: Tensor  # [W] int64: curriculum level the world was drawn at
    returns: Tensor  # [A, W] sum of rewards
    discounted: Tensor  # [A, W] sum of discount^t x reward
    time: Tensor  # [A, W] s while active
    energy: Tensor  # [A, W] sum of power_coefficient x |thrust| x s while active
    # Measured only with the option measure_safety; see ``measured`` in simulation.py.
    path: Tensor  # [A, W] m sailed
    closest: Tensor  # [A, W] smallest gap to anything, m
    rule_time: Tensor  # [A, W] s in which a rule of the road required a turn
    violation_time: Tensor  # [A, W] s of these without a turn to starboard


MEASURED = ("path", "closest", "rule_time", "violation_time")
"""Fields that are zero unless a world measures safety."""


def blank_state(
    robots: int, obstacles: int, cores: int, worlds: int, dtype: torch.dtype, device: torch.device
) -> WorldState:
    """Returns a state without robots, obstacles and cores."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(*shape, worlds, dtype=dtype, device=device)

    def false(*shape: int) -> Tensor:
        return torch.zeros(*shape, worlds, dtype=torch.bool, device=device)

    return WorldState(
        **{name: zeros(3, robots) for name in ("pose", "velocity", "velocity_r")},
        **{name: zeros(2, robots) for name in ("thrust", "start", "goal")},
        **{name: false(robots) for name in ("present", "active", "collided", "reached")},
        obstacles=zeros(3, obstacles),
        obstacle_present=false(obstacles),
        cores=zeros(4, cores),
        **{name: torch.zeros(worlds, dtype=torch.int64, device=device) for name in ("steps", "level")},
        **{name: zeros(robots) for name in ("returns", "discounted", "time", "energy", *MEASURED)},
    )


# -- what critics may see --------------------------------------------------------------------------------------------

_SPEED, _YAW_RATE, _THRUST, _MAP = 3.0, 0.7, 1000.0, 50.0

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
        shown = (rows * there[..., None]).gather(2, order[..., None].expand(-1, -1, -1, rows.shape[-1]))
        return pad(shown, (0, 0, 0, slots - shown.shape[2])).flatten(2)

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
