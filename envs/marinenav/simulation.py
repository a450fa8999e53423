"""One MarineNav step for a batch of worlds as pure functions of the state.

:func:`advance` moves, :func:`~.perception.perceive` computes percepts, :func:`judge` rewards; :func:`conclude` does the
last two and returns contiguous world-first tensors in nested dicts with the environment's keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..keys import GROUP
from .dynamics import move, thrust_change
from .perception import NoiseDraws, Percept, perceive
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

    def __post_init__(self) -> None:
        if self.max_steps < 0:
            raise ValueError(f"max_steps: {self.max_steps} is negative")
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount: {self.discount} is outside [0, 1]")


class StepOutputs(NamedTuple):
    """Outputs per robot ``[A, W]``; zeros for robots that were inactive before the step, except where noted."""

    reward: Tensor
    info: Tensor  # int64 codes, for every robot
    energy: Tensor
    time_out: Tensor  # [W] bool


def advance(
    state: WorldState, action: Tensor, rules: MarineNavRules, continuous: bool
) -> tuple[WorldState, Tensor, Tensor]:
    """Moves by one action; returns the state and the distances to the goal before and after, ``[A, W]``."""
    change = thrust_change(action, rules, continuous).to(state.thrust.dtype)
    outcome = move(state.pose, state.velocity_r, state.thrust, change, state.cores, rules)
    old = (state.pose, state.velocity, state.velocity_r, state.thrust)
    # With weights 0 and 1 lerp returns either end exactly and, unlike where(), does not branch on every element.
    moving = state.active.to(state.pose.dtype)
    pose, velocity, velocity_r, thrust = (
        torch.lerp(previous, new, moving) for new, previous in zip(outcome, old, strict=True)
    )
    before, after = (torch.hypot(*(state.goal - where[:2])) for where in (state.pose, pose))
    return state.replace(pose=pose, velocity=velocity, velocity_r=velocity_r, thrust=thrust), before, after


def judge(
    state: WorldState, percept: Percept, progress: Tensor, rules: MarineNavRules, options: StepOptions
) -> tuple[WorldState, StepOutputs]:
    """Computes rewards, flags and deactivation after all robots have moved and perceived.

    Flags are numbers 0 and 1 here: arithmetic on them is several times faster than branching on booleans.
    """
    kind = state.pose.dtype
    active, present = state.active.to(kind), state.present.to(kind)
    collided = torch.maximum(state.collided.to(kind), percept.collided.to(kind) * active)
    reached = torch.maximum(state.reached.to(kind), percept.reached.to(kind) * active)
    is_late = state.steps >= options.max_steps
    # The time-out overrides both, and a collision overrides an arrival in the same step.
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
    return new, StepOutputs(reward, info.to(torch.int64), energy, is_late)


# -- outputs -------------------------------------------------------------------------------------------------------


Report = dict[str, Any]
"""Tensors by key, nested."""


def look_around(state: WorldState, rules: MarineNavRules, noise: NoiseDraws | None) -> tuple[WorldState, Report]:
    """Computes the percepts of a reset, which may already set flags."""
    percept = perceive(state.scene, rules, noise)
    state = state.replace(
        collided=state.collided | (percept.collided & state.active),
        reached=state.reached | (percept.reached & state.active),
    )
    info = torch.where(state.present, NORMAL, ABSENT)
    return state, show(state, percept, info, torch.zeros_like(state.energy))


def conclude(
    state: WorldState, progress: Tensor, rules: MarineNavRules, options: StepOptions, noise: NoiseDraws | None
) -> tuple[WorldState, Report, Report]:
    """Perceives and judges after the physics of a step; returns state, root entries, and reward with end flags."""
    percept = perceive(state.scene, rules, noise)
    after, out = judge(state, percept, progress, rules, options)
    return after, show(after, percept, out.info, out.energy), ends(after, state.active, out, options)


def show(state: WorldState, percept: Percept, info: Tensor, energy: Tensor) -> Report:
    """Returns all entries except reward and end flags."""
    observation = {
        "self": worlds_first(percept.self_state),
        "objects": worlds_first(percept.objects),
        "mask": worlds_first(percept.mask),
    }
    agents = {
        "observation": observation,
        "active": worlds_first(state.active),
        "info": worlds_first(info),
        "colregs": worlds_first(percept.colregs),
        "phi": worlds_first(percept.phi),
        "energy": worlds_first(energy),
    }
    return {GROUP: agents, "episode": episode(state)}


def episode(state: WorldState) -> dict[str, Tensor]:
    """Returns statistics of the episode so far, means over a world's robots; final when the world is done."""
    kind = state.returns.dtype
    present = state.present.to(kind)
    share = 1 / present.sum(0).clamp_min(1)

    def mean(values: Tensor) -> Tensor:
        return (values.sum(0) * share)[:, None]

    return {
        "return": mean(state.returns),
        "discounted_return": mean(state.discounted),
        "length": state.steps.to(kind)[:, None],
        "time": mean(state.time),
        "energy": mean(state.energy),
        "success": (torch.maximum(state.reached.to(kind), 1 - present).amin(0) * present.amax(0))[:, None],
        "collision": state.collided.to(kind).amax(0)[:, None],
        "level": state.level.to(kind)[:, None],
    }


def ends(state: WorldState, was_active: Tensor, out: StepOutputs, options: StepOptions) -> Report:
    """Returns reward and the three end flags of robots and worlds."""
    # Flags are numbers 0 and 1, as in judge().
    kind = out.reward.dtype
    active, time_out = state.active.to(kind), out.time_out.to(kind)
    world_done = torch.maximum(time_out, 1 - active.amax(0))
    if options.end_on_collision:
        world_done = torch.maximum(world_done, state.collided.to(kind).amax(0))
    # Truncated by the time limit, which overrides everything, or with the world by another robot's collision.
    late = torch.zeros_like(time_out) if options.timeout_is_terminal else time_out
    done = torch.maximum(world_done, 1 - active)
    truncated = was_active.to(kind) * torch.maximum(late, world_done * (1 - time_out) * active)
    flags = {"done": done, "terminated": done * (1 - truncated), "truncated": truncated}
    agents = {name: worlds_first(value > 0)[..., None] for name, value in flags.items()}
    return {
        GROUP: {"reward": worlds_first(out.reward)[..., None], **agents},
        "done": world_done[:, None] > 0,
        "terminated": (world_done * (1 - late))[:, None] > 0,
        "truncated": late[:, None] > 0,
    }


def worlds_first(value: Tensor) -> Tensor:
    """Transposes ``[..., W]`` to contiguous ``[W, ...]`` in two dimensions, which torch does in blocks.

    The result is always a copy, since resets write into the state in place.
    """
    rows = value.reshape(-1, value.shape[-1]).T.clone(memory_format=torch.contiguous_format)
    return rows.view(value.shape[-1], *value.shape[:-1])
