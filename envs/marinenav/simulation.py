"""One MarineNav step for a batch of worlds: pure functions, state in, state and outputs out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .dynamics import move, thrust_change
from .perception import Draws, Percept, perceive
from .rules import Rules
from .state import WorldState

NORMAL, TIME_OUT, COLLISION, GOAL, AFTER_COLLISION, AFTER_GOAL = range(6)
"""Info codes of a robot-step."""
ABSENT = -1
"""Info code of a robot that its world does not have."""


@dataclass(frozen=True)
class StepOptions:
    """What a step does beyond the physics."""

    continuous: bool = True
    max_steps: int = 1000
    discount: float = 0.99


class StepOutputs(NamedTuple):
    """Per robot ``[A, W]``, of the robots active before the step (zeros elsewhere) unless said otherwise."""

    percept: Percept
    reward: Tensor
    info: Tensor  # int64 codes, for every robot
    energy: Tensor
    time_out: Tensor  # [W] bool


def step(
    state: WorldState, action: Tensor, rules: Rules, options: StepOptions, noise: Draws | None
) -> tuple[WorldState, StepOutputs]:
    """Moves all active robots, lets them look, rewards them, and deactivates those that collided or arrived.

    Args:
        action: ``[2, A, W]`` rates (1000 N/s) or integers ``[A, W]`` (see :func:`dynamics.thrust_change`).
        noise: standard draws of this perception call, or None for exact perception.
    """
    moved, before, after = advance(state, action, rules, options.continuous)
    percept = perceive(moved.scene, rules, noise)
    return judge(moved, percept, before - after, rules, options)


def advance(
    state: WorldState, action: Tensor, rules: Rules, continuous: bool
) -> tuple[WorldState, Tensor, Tensor]:
    """The physics of one action; returns the state and the distances to the goal before and after, ``[A, W]``."""
    change = thrust_change(action, rules, continuous).to(state.thrust.dtype)
    outcome = move(state.pose, state.velocity_r, state.thrust, change, state.cores, rules)
    old = (state.pose, state.velocity, state.velocity_r, state.thrust)
    # With weights 0 and 1 lerp returns either end exactly, and unlike where() it does not branch on every element.
    moving = state.active.to(state.pose.dtype)
    pose, velocity, velocity_r, thrust = (
        torch.lerp(previous, new, moving) for new, previous in zip(outcome, old, strict=True)
    )
    before, after = (torch.hypot(*(state.goal - where[:2])) for where in (state.pose, pose))
    return replace(state, pose=pose, velocity=velocity, velocity_r=velocity_r, thrust=thrust), before, after


def judge(
    state: WorldState, percept: Percept, progress: Tensor, rules: Rules, options: StepOptions
) -> tuple[WorldState, StepOutputs]:
    """Rewards, flags and deactivation after everybody has moved and looked."""
    active = state.active
    collided = state.collided | (percept.collided & active)
    reached = state.reached | (percept.reached & active)
    time_out = state.steps >= options.max_steps
    # The time-out step overrides both, and a collision beats an arrival in the same step.
    collision, arrival = collided & ~time_out, reached & ~collided & ~time_out
    reward = rules.timestep_penalty + progress + rules.colregs_penalty * percept.phi
    reward = torch.where(collision, reward + rules.collision_penalty, reward)
    reward = torch.where(active, torch.where(arrival, reward + rules.goal_reward, reward), 0.0)

    info = time_out * TIME_OUT + collision * COLLISION + arrival * GOAL
    gone = torch.where(collided, AFTER_COLLISION, AFTER_GOAL)
    info = torch.where(active, info, torch.where(state.present, gone, ABSENT))

    seconds = rules.dt * (rules.substeps if rules.substeps_used is None else rules.substeps_used)
    energy = torch.where(active, rules.power_coefficient * state.thrust.abs().sum(0) * seconds, 0.0)
    new = replace(
        state,
        active=active & ~collided & ~reached,
        collided=collided,
        reached=reached,
        steps=state.steps + 1,
        returns=state.returns + reward,
        discounted=state.discounted + options.discount ** state.steps.to(reward.dtype) * reward,
        time=state.time + torch.where(active, seconds, 0.0),
        energy=state.energy + energy,
    )
    return new, StepOutputs(percept, reward, info, energy, time_out)
