"""What the outside gets to see of a step: pure functions from world-last state to contiguous world-first tensors.

Nested dicts of tensors, so that they compile together with the simulation; the keys are those of the environment.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .perception import Draws, Percept, perceive
from .rules import Rules
from .simulation import ABSENT, NORMAL, StepOptions, StepOutputs, judge
from .state import WorldState

Report = dict[str, Any]
"""Tensors by key, nested."""


def look_around(state: WorldState, rules: Rules, noise: Draws | None) -> tuple[WorldState, Report]:
    """The perception call of a reset; it may already set flags."""
    percept = perceive(state.scene, rules, noise)
    state = state.replace(
        collided=state.collided | (percept.collided & state.active),
        reached=state.reached | (percept.reached & state.active),
    )
    info = torch.where(state.present, NORMAL, ABSENT)
    return state, show(state, percept, info, torch.zeros_like(state.energy))


def conclude(
    state: WorldState, progress: Tensor, rules: Rules, options: StepOptions, noise: Draws | None
) -> tuple[WorldState, Report, Report]:
    """What follows the physics of a step; returns the state, the root entries, and reward and end flags."""
    percept = perceive(state.scene, rules, noise)
    after, out = judge(state, percept, progress, rules, options)
    return after, show(after, percept, out.info, out.energy), ends(after, state.active, out, options)


def show(state: WorldState, percept: Percept, info: Tensor, energy: Tensor) -> Report:
    """Everything but reward and end flags."""
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
    return {"agents": agents, "episode": episode(state)}


def episode(state: WorldState) -> dict[str, Tensor]:
    """Statistics of the episode so far, means over the robots a world has; final where the world is done."""
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
        "success": torch.maximum(state.reached.to(kind), 1 - present).amin(0)[:, None],
        "collision": state.collided.to(kind).amax(0)[:, None],
        "level": state.level.to(kind)[:, None],
    }


def ends(state: WorldState, was_active: Tensor, out: StepOutputs, options: StepOptions) -> Report:
    """Reward and the three end flags, of robots and of worlds."""
    # Flags are numbers, 0 or 1, as in judge().
    kind = out.reward.dtype
    active, time_out = state.active.to(kind), out.time_out.to(kind)
    world_done = torch.maximum(time_out, 1 - active.amax(0))
    if options.end_on_collision:
        world_done = torch.maximum(world_done, state.collided.to(kind).amax(0))
    # Cut short: by the time limit, which overrides everything, or with the world by somebody else's collision.
    late = torch.zeros_like(time_out) if options.timeout_is_terminal else time_out
    done = torch.maximum(world_done, 1 - active)
    truncated = was_active.to(kind) * torch.maximum(late, world_done * (1 - time_out) * active)
    flags = {"done": done, "terminated": done * (1 - truncated), "truncated": truncated}
    agents = {name: worlds_first(value > 0)[..., None] for name, value in flags.items()}
    return {
        "agents": {"reward": worlds_first(out.reward)[..., None], **agents},
        "done": world_done[:, None] > 0,
        "terminated": (world_done * (1 - late))[:, None] > 0,
        "truncated": late[:, None] > 0,
    }


def worlds_first(value: Tensor) -> Tensor:
    """``[..., W]`` to contiguous ``[W, ...]`` as one two-dimensional transposition, which torch does in blocks.

    Always a copy: the state is written in place at resets, what was handed out must not change with it.
    """
    rows = value.reshape(-1, value.shape[-1]).T.clone(memory_format=torch.contiguous_format)
    return rows.view(value.shape[-1], *value.shape[:-1])
