"""One MarineNav step for a batch of worlds: pure functions, state in, state and outputs out.

:func:`advance` moves, ``perception.perceive`` looks, :func:`judge` rewards; ``report.conclude`` does the last two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .dynamics import move, thrust_change
from .perception import Percept
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
    timeout_is_terminal: bool = False
    end_on_collision: bool = False

    def __post_init__(self) -> None:
        if self.max_steps < 0:
            raise ValueError(f"max_steps: {self.max_steps} is negative")
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount: {self.discount} is outside [0, 1]")


class StepOutputs(NamedTuple):
    """Per robot ``[A, W]``, of the robots active before the step (zeros elsewhere) unless said otherwise."""

    percept: Percept
    reward: Tensor
    info: Tensor  # int64 codes, for every robot
    energy: Tensor
    time_out: Tensor  # [W] bool


def advance(state: WorldState, action: Tensor, rules: Rules, continuous: bool) -> tuple[WorldState, Tensor, Tensor]:
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
    return state.replace(pose=pose, velocity=velocity, velocity_r=velocity_r, thrust=thrust), before, after


def judge(
    state: WorldState, percept: Percept, progress: Tensor, rules: Rules, options: StepOptions
) -> tuple[WorldState, StepOutputs]:
    """Rewards, flags and deactivation after everybody has moved and looked.

    Flags are numbers, 0 or 1, in here: arithmetic on them is several times faster than branching by booleans.
    """
    kind = state.pose.dtype
    active, present = state.active.to(kind), state.present.to(kind)
    collided = torch.maximum(state.collided.to(kind), percept.collided.to(kind) * active)
    reached = torch.maximum(state.reached.to(kind), percept.reached.to(kind) * active)
    is_late = state.steps >= options.max_steps
    # The time-out step overrides both, and a collision beats an arrival in the same step.
    late = is_late.to(kind)
    collision, arrival = collided * (1 - late), reached * (1 - collided) * (1 - late)
    reward = rules.timestep_penalty + progress + rules.colregs_penalty * percept.phi
    reward = (reward + rules.collision_penalty * collision + rules.goal_reward * arrival) * active

    now = TIME_OUT * late + COLLISION * collision + GOAL * arrival
    gone = AFTER_GOAL + (AFTER_COLLISION - AFTER_GOAL) * collided
    info = now * active + (1 - active) * (gone * present + ABSENT * (1 - present))

    seconds = rules.dt * (rules.substeps if rules.substeps_used is None else rules.substeps_used)
    energy = state.thrust.abs().sum(0) * (rules.power_coefficient * seconds) * active
    new = state.replace(
        active=active * (1 - collided) * (1 - reached) > 0,
        collided=collided > 0,
        reached=reached > 0,
        steps=state.steps + 1,
        returns=state.returns + reward,
        discounted=state.discounted + options.discount ** state.steps.to(kind) * reward,
        time=state.time + seconds * active,
        energy=state.energy + energy,
    )
    return new, StepOutputs(percept, reward, info.to(torch.int64), energy, is_late)
