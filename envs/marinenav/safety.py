"""Measures of safe sailing: closest approaches, path lengths, and violations of the rules of the road."""

from __future__ import annotations

import torch
from torch import Tensor

from ..foundation.tensors import made_once
from .rules import MarineNavRules
from .state import WorldState

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

    others = made_once(_others, len(x), x.device)
    robots = to(state.active[:, None] & others, x, y, hull)
    obstacles = to(state.obstacle_present[:, None], *state.obstacles)
    return torch.cat((robots, obstacles)).amin(0).clamp_min(0).clamp_max(rules.range)


def _others(robots: int, device: torch.device) -> Tensor:
    """Returns ``[A, A, 1]``: whether a robot is another one."""
    return ~torch.eye(robots, dtype=torch.bool, device=device)[:, :, None]
