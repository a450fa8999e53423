"""Pure functions for a robot's perception, the rule of the road that applies, collisions and the goal.

All tensors are world-last: ``A`` robots, ``M`` candidates (obstacles, then the other robots), ``W`` worlds.
Source of the rules: the public MarineNav environment of arXiv 2412.09466.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import pad

from ..foundation.compilation import at_once
from ..foundation.tensors import constant, counting, looks_are_free, made_once
from ..world import Mirror
from .dynamics import add_scaled, rotate, rotate_back
from .rules import HULL_RADIUS, OBSERVED_OBJECTS, MarineNavRules, Number
from .state import WorldState

_FAR = 1.0e6
"""Coordinate of absent obstacles and inactive robots, m."""


class NoiseDraws(NamedTuple):
    """The standard draws of one perception call, which the rules scale; ``noise.py`` makes them.

    Recorded draws may also have ``N = O + A`` candidates, with every robot a candidate of itself.
    """

    position: Tensor  # [2, M, A, W] standard normal
    radius: Tensor  # [M, A, W] von Mises(0, kappa) angle, rad
    velocity: Tensor  # standard normal [2, K, A, W] per slot, or [2, M, A, W] per candidate (recorded draws)
    per_candidate: bool = False


class Percept(NamedTuple):
    """The result of one perception; values of inactive robots are meaningless."""

    self_state: Tensor  # [A, 7, W] goal (2), velocity (2), yaw rate, thrusts (2), body frame; zeros if inactive
    objects: Tensor  # [A, K, 5, W] px, py, vx, vy, r of the K nearest, nearest first, zero-padded
    mask: Tensor  # [A, K, W] bool: slot holds an object
    colregs: Tensor  # [A, W] bool: a rule of the road requires a turn to starboard
    phi: Tensor  # [A, W] the angle of that turn, rad, 0 where no rule applies
    collided: Tensor  # [A, W] bool
    reached: Tensor  # [A, W] bool


def perceive(state: WorldState, rules: MarineNavRules, noise: NoiseDraws | None) -> Percept:
    """Computes the percepts of all robots of all worlds; ``noise=None`` means without noise."""
    x, y, theta = state.pose.unbind()
    cos, sin = theta.cos(), theta.sin()
    num_robots, worlds = x.shape
    if state.obstacles.shape[1] + num_robots == 1:  # no candidates at all: add an absent obstacle
        nothing = x.new_zeros(1, worlds)
        state = state.replace(obstacles=nothing.expand(3, -1, -1), obstacle_present=nothing.bool())
        noise = None
    num_obstacles = state.obstacles.shape[1]
    later, far = made_once(_later, num_robots, x.dtype, x.device), constant((_FAR,), x, 0)

    def but_itself(robots: Tensor) -> Tensor:
        """Returns the rows of all other robots in order, ``[..., A - 1, A, W]``, from ``[..., A, 1 or A, W]``."""
        return torch.lerp(robots[..., :-1, :, :], robots[..., 1:, :, :], later)  # exact: the weights are 0 and 1

    def candidates(obstacle: Tensor, robot: Tensor) -> Tensor:
        """Returns ``[..., M, A, W]`` from ``[..., O, W]`` and ``[..., A, W]``."""
        still = obstacle.unsqueeze(-2).expand(*obstacle.shape[:-1], num_robots, worlds)
        return torch.cat((still, but_itself(robot.unsqueeze(-2))), -3)

    def radii(robot: Number) -> Tensor:
        """Returns ``[M, 1 or A, W]``."""
        if isinstance(robot, Tensor):
            return candidates(state.obstacles[2], robot.expand_as(x))
        return pad(state.obstacles[2], (0, 0, 0, num_robots - 1), value=robot)[:, None]

    def drawn(values: Tensor) -> Tensor:
        """Returns draws ``[..., M, A, W]``, also from those in which every robot is a candidate of itself."""
        if values.shape[-3] == num_obstacles + num_robots - 1:
            return values
        obstacles, robots = values.split((num_obstacles, num_robots), -3)
        return torch.cat((obstacles, but_itself(robots)), -3)

    # Absent objects are out of range, so no robot sees them.
    obstacles = torch.stack((torch.where(state.obstacle_present, state.obstacles[0], far), state.obstacles[1]))
    robots = torch.stack((torch.where(state.active, x, far), y))
    groups = (obstacles, torch.zeros_like(obstacles)), (robots, state.velocity[:2])
    position, speed = at_once(candidates, *groups)  # [2, M, A, W]
    offset, radius = position - state.pose[:2, None], radii(rules.detect_r)
    contact = (radius if isinstance(rules.r, float) and rules.r == rules.detect_r else radii(rules.r)) + rules.r
    gap = torch.addcmul(_squared_length(*offset), contact, contact, value=-1)
    seen_radius = radius.expand_as(gap)
    if noise is not None:
        offset = add_scaled(offset, rules.pos_std, drawn(noise.position))
        spread = (1 - rules.r_mean_ratio) / math.pi
        seen_radius = add_scaled(seen_radius * rules.r_mean_ratio, spread, radius, drawn(noise.radius))
    dx, dy = offset
    clearance = _squared_length(dx, dy).sqrt() - seen_radius
    if not (isinstance(rules.angle, float) and rules.angle >= 2 * math.pi):
        bearing = torch.atan2(cos * dy - sin * dx, cos * dx + sin * dy)
        clearance = clearance.where(bearing.abs() <= 0.5 * rules.angle, _FAR)
    # Touched and detected. (A minimum is far cheaper than any() of booleans.)
    collided = torch.maximum(gap, clearance - rules.range).amin(0) <= 0

    index = _nearest(clearance)
    place = counting(index[0].numel(), index.dtype, index.device).view_as(index[0])
    flat = torch.add(place, index, alpha=place.numel()).view(-1)

    def take(values: Tensor) -> Tensor:
        """Returns the values ``[..., K, A, W]`` of ``[..., M, A, W]`` at the nearest candidates; a faster gather()."""
        if not torch.compiler.is_compiling():
            return values.flatten(-3).index_select(-1, flat).unflatten(-1, index.shape)
        # Indexing would prevent vectorisation of the kernel around it; a chain of selections does not.
        rows = values.unsqueeze(-3).unbind(-4)
        chosen = rows[0].expand(*values.shape[:-3], *index.shape)
        for candidate in range(1, len(rows)):
            chosen = torch.where(index == candidate, rows[candidate], chosen)
        return chosen

    active = state.active.to(x.dtype)
    filled = (take(clearance) <= rules.range) * active
    slots = len(filled)
    if not (isinstance(rules.max_obj_num, float) and rules.max_obj_num >= OBSERVED_OBJECTS):
        filled = filled * (torch.arange(slots, device=x.device)[:, None, None] < rules.max_obj_num)
    velocity = take(speed)
    if noise is not None:
        jitter = take(drawn(noise.velocity)) if noise.per_candidate else noise.velocity[:, :slots]
        velocity = add_scaled(velocity, rules.vel_std, jitter)
    goal = state.goal - state.pose[:2]
    # In body axes: positions and velocities of objects, the goal, the own velocity.
    (px, py), (vx, vy), goal_body, own_velocity = at_once(
        partial(rotate_back, cos, sin),
        *zip(*(rows.unbind() for rows in (take(offset), velocity, goal[:, None], state.velocity[:2, None]))),
    )
    seen = (px, py, vx, vy, take(seen_radius))
    # Robot, slot, feature: the order of the observation, so that returning it is a plain transposition.
    shown = _all_slots(filled).transpose(0, 1)
    objects = _masked([_all_slots(feature).transpose(0, 1) for feature in seen], shown, 2)

    own = (*(row[0] for row in (*goal_body, *own_velocity)), state.velocity[2], *state.thrust)
    self_state = _masked(own, active, 1)
    reached = _squared_length(*goal) <= rules.goal_dis * rules.goal_dis
    colregs, phi = rules_of_the_road(seen, filled, own[2], own[3], rules.r)
    return Percept(self_state, objects, shown > 0, colregs, phi, collided, reached)


def _later(robots: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns ``[A - 1, A, 1]``: 1 where the k-th robot but the a-th one is number k + 1, 0 where it is number k."""
    number = torch.arange(robots, device=device)
    return (number[:-1, None] >= number)[..., None].to(dtype)


def _squared_length(x: Tensor, y: Tensor) -> Tensor:
    return torch.addcmul(x * x, y, y)


def _masked(rows: Sequence[Tensor], mask: Tensor, dim: int) -> Tensor:
    """Returns ``mask`` times each of the rows, stacked; compiled code would compute all rows for each product."""
    if torch.compiler.is_compiling():
        return torch.stack([row * mask for row in rows], dim)
    return torch.stack(tuple(rows), dim) * mask.unsqueeze(dim)


def _all_slots(values: Tensor) -> Tensor:
    """Returns ``[K, A, W]``, zero-padded if there are fewer candidates than slots."""
    return values if len(values) == OBSERVED_OBJECTS else pad(values, (0, 0, 0, 0, 0, OBSERVED_OBJECTS - len(values)))


def candidate_pairs(obstacle_present: Tensor, active: Tensor) -> Tensor:
    """Returns whether robot a may see candidate n, ``[N, A, W]`` bool (not itself, and no inactive robot)."""
    obstacles = obstacle_present[:, None].expand(-1, len(active), -1)
    return torch.cat((obstacles, active[:, None] & others(len(active), active.device))) & active


def others(robots: int, device: torch.device) -> Tensor:
    """Returns ``[A, A, 1]``: whether a robot is another one."""
    return ~torch.eye(robots, dtype=torch.bool, device=device)[:, :, None]


def _nearest(clearance: Tensor) -> Tensor:
    """Returns indices ``[min(K, M), A, W]`` (int32 or int64) of the K smallest clearances ``[M, A, W]``, ascending.

    Float bits, read as an integer with the negatives flipped, sort like the floats; the lowest bits hold the
    candidate's index, so that integer minima and maxima carry the index along and ties go to the lower index. A partial
    bubble sort of them is branch-free, vectorises over worlds and needs no argsort.
    """
    count = len(clearance)
    kind = torch.int64 if clearance.dtype == torch.float64 else torch.int32
    index_bits = (1 << max(count - 1, 1).bit_length()) - 1
    bits = clearance.view(kind)
    order = bits ^ ((bits >> (torch.iinfo(kind).bits - 1)) & torch.iinfo(kind).max)
    order = order & ~index_bits | counting(count, kind, clearance.device)[:, None, None]
    slots = min(OBSERVED_OBJECTS, count)
    if not (looks_are_free(clearance.device) or torch.compiler.is_compiling()):
        return order.sort(0).values[:slots] & index_bits  # one kernel on a GPU
    keys = list(order.unbind())
    for slot in range(slots):
        for k in range(count - 1, slot, -1):
            keys[k - 1], keys[k] = torch.minimum(keys[k - 1], keys[k]), torch.maximum(keys[k - 1], keys[k])
    return torch.stack(keys[:slots]) & index_bits


def rules_of_the_road(
    objects: tuple[Tensor, ...], filled: Tensor, own_vx: Tensor, own_vy: Tensor, own_radius: Number
) -> tuple[Tensor, Tensor]:
    """Applies COLREGs: whether head-on or crossing traffic requires a turn to starboard, and by which angle.

    Args:
        objects: px, py, vx, vy, radius, each ``[K, A, W]``.
        filled: 0 for empty slots, ``[K, A, W]``.
        own_vx, own_vy: body-frame velocity over ground ``[A, W]``.

    Returns (applies ``[A, W]`` bool, phi ``[A, W]`` rad) for the nearest object to which a rule applies. Angles are
    compared by their sines and cosines; only phi is computed by an arctangent.
    Zones are tested as "largest excess <= 0", because maxima are much cheaper than comparisons.
    """
    px, py, vx, vy, radius = objects
    speed2 = _squared_length(vx, vy)
    under_way = _squared_length(own_vx, own_vy) >= 0.25
    per_speed = speed2.clamp_min(0.25).rsqrt()
    # The ego robot seen from the other vessel: metres astern of it and to its starboard.
    astern = torch.addcmul(vx * px, vy, py) * per_speed
    starboard = torch.addcmul(vy * px, vx, py, value=-1) * per_speed
    course_x, course_y = rotate_back(vx, vy, own_vx, own_vy)
    excess = (
        (astern + 1.5).abs() - 10.5,  # from 12 m ahead to 9 m astern
        (starboard + 8.5).abs() - 8.5,  # up to 17 m to port
        torch.sub(starboard, astern, alpha=7 / 12),
        course_x.abs() - course_y,
    )
    crossing = reduce(torch.maximum, excess)
    head_on = torch.maximum((astern + 8.5).abs() - 8.5, starboard.abs() - 4.5)
    zone = (crossing <= 0) | ((head_on <= 0) & (course_x + course_y.abs() < 0))

    # phi: the bearing of the tangent that clears the other vessel to starboard, relative to the own course;
    # the argument of p (q + i b) (q + i R) conj(w), all as complex numbers, q the length of the tangent.
    clearance = radius + 1
    tangent2 = torch.addcmul(_squared_length(px, py), clearance, clearance, value=-1)
    tangent = tangent2.clamp_min(0).sqrt()
    turn_x, turn_y = tangent2 - clearance * own_radius, tangent * (clearance + own_radius)
    goal_x, goal_y = rotate(turn_x, turn_y, px, py)
    cosine, sine = rotate_back(own_vx, own_vy, goal_x, goal_y)
    applies = zone & under_way & (torch.minimum(speed2 - 0.25, tangent2) >= 0)
    sine = sine * (filled * applies)  # positive where a rule applies

    here, first_sine, first_cosine = sine > 0, sine[-1], cosine[-1]
    for slot in range(len(sine) - 2, -1, -1):
        first_sine = torch.where(here[slot], sine[slot], first_sine)
        first_cosine = torch.where(here[slot], cosine[slot], first_cosine)
    colregs = first_sine > 0
    return colregs, torch.atan2(first_sine, first_cosine) * colregs


_SPEED, _YAW_RATE, _THRUST, _RANGE = 3.0, 0.7, 1000.0, 20.0
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
                position / _RANGE,
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
