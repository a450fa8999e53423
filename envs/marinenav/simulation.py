"""One MarineNav step for a batch of worlds as pure functions of the state.

:func:`advance` moves; :func:`conclude` computes percepts, rewards and ends, and returns contiguous world-first tensors
in nested dicts with the environment's keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..foundation.compilation import Compiled, at_once
from ..foundation.tensors import GROUP, chosen, chosen_together, made_once, put_where
from ..states import mapped
from .dynamics import add_scaled, move, thrust_change
from .perception import NoiseDraws, Percept, others, perceive
from .rules import MarineNavRules
from .state import WorldState

NORMAL, TIME_OUT, COLLISION, GOAL, AFTER_COLLISION, AFTER_GOAL = range(6)
"""Info codes of a robot in a step."""
ABSENT = -1
"""Info code of a robot that is padding."""


@dataclass(frozen=True)
class StepOptions:
    """The options of a step beyond the physics."""

    continuous: bool = True
    max_steps: int = 1000
    discount: float = 0.99
    timeout_is_terminal: bool = False
    end_on_collision: bool = False


def advance(state: WorldState, action: Tensor, rules: MarineNavRules, continuous: bool) -> tuple[WorldState, Tensor]:
    """Moves by one action; returns the state and by how much the distances to the goals shrank, ``[A, W]`` in m."""
    change = thrust_change(action, rules, continuous).to(state.thrust.dtype)
    new = move(state.pose, state.velocity_r, state.thrust, change, state.cores, rules)
    old = torch.cat((state.pose, state.velocity, state.velocity_r, state.thrust))
    # With weights 0 and 1 lerp returns either end exactly and, unlike where(), does not branch on every element.
    pose, velocity, velocity_r, thrust = torch.lerp(old, new, state.active.to(old.dtype)).split((3, 3, 3, 2))
    before, after = torch.hypot(*(state.goal - torch.stack((state.pose[:2], pose[:2]))).unbind(1))
    return state.replace(pose=pose, velocity=velocity, velocity_r=velocity_r, thrust=thrust), before - after


def begin_anew(
    state: WorldState, shown: dict[Any, Tensor], new: WorldState, begun: dict[Any, Tensor], ended: Tensor, at: Tensor
) -> tuple[WorldState, dict[Any, Tensor]]:
    """Replaces ended worlds by fresh ones.

    Args:
        state, shown: the worlds and what they show, tensors ``[W, ...]`` by key; the state may be written to.
        new, begun: other worlds and what these show.
        ended: which worlds have ended, ``[W]`` bool.
        at: index of the other world that replaces each, ``[W]``.
    """
    if torch.compiler.is_compiling():  # each tensor passes through memory once
        left = [torch.where(ended, other[..., at], old) for (_, other), (_, old) in zip(new.own, state.own)]
        return WorldState(*left), {key: chosen(ended, begun[key], at, old) for key, old in shown.items()}
    put_where(ended, state.items(), new.items(), at)
    return state, chosen_together(ended, begun, at, shown)


# -- outputs -------------------------------------------------------------------------------------------------------


Report = dict[str, Any]
"""Tensors by key, nested."""


def look_around(state: WorldState, rules: MarineNavRules, noise: NoiseDraws | None) -> tuple[WorldState, Report]:
    """Computes the percepts of a reset, which may already set flags."""
    percept = perceive(state, rules, noise)
    state = state.replace(
        collided=state.collided | (percept.collided & state.active),
        reached=state.reached | (percept.reached & state.active),
    )
    info = torch.where(state.present, NORMAL, ABSENT)
    return state, show(state, percept, {"info": info, "energy": torch.zeros_like(state.energy)})


def conclude(
    state: WorldState, progress: Tensor, rules: MarineNavRules, options: StepOptions, noise: NoiseDraws | None
) -> tuple[WorldState, Report, Report]:
    """Computes percepts, rewards, ends and deactivation after all robots have moved.

    Of booleans, ``a > b`` is "a and not b", which is several times faster than other operations on them, and ``a >= b``
    is "a or not b".

    Returns:
        The state, root entries, and reward with end flags; zeros for robots that were inactive before the step.
    """
    percept = perceive(state, rules, noise)
    late, was_active = state.steps >= options.max_steps, state.active
    collided = state.collided | (percept.collided & was_active)
    reached = state.reached | (percept.reached & was_active)
    # The time-out overrides both, and a collision overrides an arrival in the same step.
    arrived, active = reached > collided, was_active.to(state.pose.dtype)
    reward = add_scaled(progress, rules.colregs_penalty, percept.phi) + rules.timestep_penalty
    reward = add_scaled(reward, rules.collision_penalty, collided > late)
    reward = add_scaled(reward, rules.goal_reward, arrived > late) * active

    # A robot that has collided or arrived keeps the code of that, plus this from the next step on:
    after = AFTER_GOAL - GOAL
    info = (after - ABSENT) * state.present
    for flag, code in ((collided, COLLISION), (arrived, GOAL), (was_active, -after)):
        info = info.add(flag, alpha=code)
    info = (info + ABSENT).masked_fill(late & was_active, TIME_OUT)

    seconds = rules.dt * (rules.substeps if rules.substeps_used is None else rules.substeps_used)
    energy = state.thrust.abs().sum(0) * (rules.power_coefficient * seconds) * active
    state = state.replace(
        active=was_active > (collided | reached),
        collided=collided,
        reached=reached,
        steps=state.steps + 1,
        returns=state.returns + reward,
        discounted=torch.addcmul(state.discounted, options.discount ** state.steps.to(reward.dtype), reward),
        time=add_scaled(state.time, seconds, active),
        energy=state.energy + energy,
    )

    over = late >= state.active.any(0)
    if options.end_on_collision:
        over = over | state.collided.any(0)
    truncated = time_out = torch.zeros_like(late) if options.timeout_is_terminal else late
    if options.end_on_collision:  # a robot is also truncated with its world, by another robot's collision
        truncated = truncated | ((over > late) & state.active)
    truncated, done = was_active & truncated, over >= state.active
    flags = {"done": done, "terminated": done > truncated, "truncated": truncated}
    root = show(state, percept, {"info": info, "energy": energy, "reward": reward, **flags})
    own = {name: root[GROUP].pop(name)[..., None] for name in ("reward", *flags)}
    worlds = {"done": over, "terminated": over > time_out, "truncated": time_out}
    return state, root, {GROUP: own, **{name: flag[:, None] for name, flag in worlds.items()}}


def show(state: WorldState, percept: Percept, more: dict[str, Tensor]) -> Report:
    """Returns all entries except the end flags of worlds, with ``more`` entries of robots ``[A, W]``."""
    observation = {
        "self": worlds_first(percept.self_state),
        "objects": worlds_first(percept.objects),
        "mask": worlds_first(percept.mask),
    }
    rows = {"active": state.active, "colregs": percept.colregs, "phi": percept.phi, **more}
    shown = {name: worlds_first(row) for name, row in rows.items()} if torch.compiler.is_compiling() else {}
    for kind in () if shown else dict.fromkeys(row.dtype for row in rows.values()):  # those of one type as one
        same = {name: row for name, row in rows.items() if row.dtype == kind}
        shown |= zip(same, torch.stack(list(same.values())).mT.contiguous())
    return {GROUP: {"observation": observation, **shown}, "episode": episode(state)}


def episode(state: WorldState) -> dict[str, Tensor]:
    """Returns statistics of the episode so far, means over a world's robots; final when the world is done."""
    kind, count = state.returns.dtype, state.present.sum(0).clamp_min(1)
    rows = (state.returns, state.discounted, state.time, state.energy, state.collided, state.reached)
    means = at_once(lambda row: row.sum(-2) / count, [row[None] for row in rows])
    returned, discounted, time, energy, collided, reached = (mean.view(-1, 1) for mean in means)
    counts = (state.steps[:, None], state.level[:, None], reached >= 1, collided > 0)
    length, level, success, collision = at_once(lambda row: row.to(kind), counts)
    return {
        "return": returned,
        "discounted_return": discounted,
        "length": length,
        "time": time,
        "energy": energy,
        "success": success,
        "collision": collision,
        "level": level,
    }


def worlds_first(value: Tensor) -> Tensor:
    """Transposes ``[..., W]`` to contiguous ``[W, ...]`` in two dimensions, which torch does in blocks.

    The result is always a copy, since resets write into the state in place.
    """
    rows = value.reshape(-1, value.shape[-1]).T.clone(memory_format=torch.contiguous_format)
    return rows.view(value.shape[-1], *value.shape[:-1])


# -- compiling -----------------------------------------------------------------------------------------------------


Outcome = TypeVar("Outcome")


def compiled_for_speed(function: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Returns the function compiled for fixed shapes.

    The compiled code returns booleans as bytes made from floats: for booleans the CPU code generator would write a
    vector's mask element by element, which takes ten times as long as all the arithmetic before it.
    """

    def to_byte(value: Tensor) -> Tensor:
        return torch.where(value, 1.0, 0.0).to(torch.uint8) if value.dtype == torch.bool else value

    def to_flag(value: Tensor) -> Tensor:
        return value.view(torch.bool) if value.dtype == torch.uint8 else value

    def compute(*arguments: Any) -> Any:
        return mapped(to_byte, function(*arguments))

    fast = Compiled(compute, f"{function.__name__} of marinenav", dynamic=False)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return mapped(to_flag, fast(*arguments))

    return call


NEAR_MISS = 2.0
"""Gap between two hulls, taken as circles, below which an encounter without a collision is a near miss, m."""

SAFETY_STATISTICS = ("path", "closest", "near_miss", "rule_time", "violation_time")
"""Statistics of an episode, means over its robots:

- ``path``: distance sailed, m.
- ``closest``: smallest gap from hull to hull to an obstacle or another active robot, m; 0 after a collision, and at
  most the range of perception.
- ``near_miss``: share of robots that came closer than :data:`NEAR_MISS` and did not collide.
- ``rule_time``: time in which a rule of the road (COLREGs, as in the world's reward) required a turn to starboard, s.
- ``violation_time``: part of this time in which the robot did not turn to starboard, s.
"""


def begun(state: WorldState, rules: MarineNavRules) -> WorldState:
    """Returns the state at the beginning of episodes, with the initial gaps; other measures are zero."""
    path, rule_time, violation_time = state.energy.new_zeros(3, *state.energy.shape)
    return state.replace(path=path, closest=_gaps(state, rules), rule_time=rule_time, violation_time=violation_time)


def measured(state: WorldState, before: Tensor, asked: Tensor, was_active: Tensor, rules: MarineNavRules) -> WorldState:
    """Returns the state after a step with updated measures.

    Args:
        state: state after the step.
        before: position before the step, ``[2, A, W]``.
        asked: whether a rule required a turn to starboard when the robots chose their actions, ``[A, W]`` bool.
        was_active: robots active before the step, ``[A, W]`` bool; the measures of others do not change.
        rules: rules of the worlds.
    """
    seconds = rules.dt * (rules.substeps if rules.substeps_used is None else rules.substeps_used)
    moving = was_active.to(state.energy.dtype)
    ruled = (asked & was_active).to(moving.dtype) * seconds
    # The y axis of a robot points to starboard, so a turn to starboard is a positive yaw rate.
    strayed = ruled * (state.velocity_r[2] <= 0)
    gaps = torch.where(was_active & state.collided, 0.0, _gaps(state, rules))
    return state.replace(
        path=state.path + torch.hypot(*(state.pose[:2] - before)) * moving,
        closest=torch.where(was_active, torch.minimum(state.closest, gaps), state.closest),
        rule_time=state.rule_time + ruled,
        violation_time=state.violation_time + strayed,
    )


def safety_statistics(state: WorldState) -> dict[str, Tensor]:
    """Returns :data:`SAFETY_STATISTICS` of the episodes so far, ``[W, 1]`` each."""
    present = state.present.to(state.energy.dtype)
    near = (state.closest < NEAR_MISS) & ~state.collided
    values = (state.path, state.closest, near.to(present.dtype), state.rule_time, state.violation_time)
    share = present / present.sum(0).clamp_min(1)
    return {name: (value * share).sum(0)[:, None] for name, value in zip(SAFETY_STATISTICS, values, strict=True)}


def _gaps(state: WorldState, rules: MarineNavRules) -> Tensor:
    """Returns the gap ``[A, W]`` from each robot to the nearest object, from 0 to the range of perception, m."""
    x, y = state.pose[:2]
    hull = rules.r.expand_as(x) if isinstance(rules.r, Tensor) else torch.full_like(x, rules.r)

    def to(there: Tensor, other_x: Tensor, other_y: Tensor, radius: Tensor) -> Tensor:
        """Returns gaps ``[M, A, W]`` to others ``[M, W]``, infinite for absent ones."""
        gap = torch.hypot(other_x[:, None] - x, other_y[:, None] - y) - radius[:, None] - hull
        return gap.masked_fill(~there, torch.inf)

    robots = to(state.active[:, None] & made_once(others, len(x), x.device), x, y, hull)
    obstacles = to(state.obstacle_present[:, None], *state.obstacles)
    return torch.cat((robots, obstacles)).amin(0).clamp_min(0).clamp_max(rules.range)
