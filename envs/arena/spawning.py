"""Rare events: a spawner makes an enemy, a phase is set up."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .movement import length2
from .rows import At, first_row, pick, spots
from .rules import FAR, NEVER, Rules
from .state import ArenaState, Changes, blank_state
from .tables import Tables


def waiting(state: ArenaState, rules: Rules) -> Tensor:
    """Worlds ``[n]`` bool where a spawner may make an enemy now."""
    return (state.ready[rules.max_enemies :].amin(0) <= state.step) & (state.enemies < rules.enemy_cap)


def next_spawner(state: ArenaState, rules: Rules) -> Tensor:
    """The first spawner ``[n]`` whose time has come (the last, where there is none)."""
    due = (state.ready[rules.max_enemies :] <= state.step).to(state.step.dtype)
    return first_row(due).clamp_max(rules.num_spawners - 1)


def spawn(
    state: ArenaState,
    spawner: Tensor,
    before: Tensor | int,
    made: Tensor | int,
    units: tuple[Tensor, Tensor],
    rules: Rules,
    tables: Tables,
) -> Changes:
    """A new enemy of spawner ``[n]``, where one fits or, after so many attempts, close to the spawner's rim.

    Args:
        before: enemies that other spawners of the world make before, in the same step.
        made: enemies that all spawners of the world make in this step.
        units: see :meth:`Draws.spawn`.
    """
    slots = rules.max_enemies
    maker = state.spots(spawner + slots)
    places = _places(state.pick("targets", maker), units, rules)  # [2, attempts + 1, n]
    gaps = length2(places[:, :, None] - state.targets[:, None, :slots]).amin(1)
    free = (gaps >= rules.spawn_clearance**2).to(gaps.dtype)
    free[-1:].fill_(1.0)
    where = state.spots((state.enemies + before).clamp_max(slots - 1))
    speed = tables.speeds.index_select(0, phase_index(state.phase, rules))
    resting = state.step + state.pick("period", state.spots(spawner))
    return {
        "targets": [At(where, pick(places, spots(first_row(free))))],
        "target_health": [At(where, torch.full_like(speed, rules.enemy_health))],
        "speed": [At(where, speed)],
        "ready": [At(where, state.step), At(maker, resting)],
        "enemies": state.enemies + made,
        "quiet": state.step,
    }


def _places(centre: Tensor, units: tuple[Tensor, Tensor], rules: Rules) -> Tensor:
    """Where the attempts would put an enemy: at the rim plus a gap, the last one at a fixed small gap."""
    low, high = rules.spawn_gap
    rims = rules.spawner_radius + rules.enemy_radius
    angle, gap = units
    distance = torch.cat((rims + low + (high - low) * gap, torch.full_like(gap[:1], rims + low)))
    angle = 2 * math.pi * angle
    radius = rules.enemy_radius
    x = centre[0] + distance * angle.cos()
    y = centre[1] + distance * angle.sin()
    return torch.stack((x.clamp(radius, rules.width - radius), y.clamp(radius, rules.height - radius)))


def set_up(state: ArenaState, jitter: Tensor, rules: Rules, tables: Tables) -> dict[str, Tensor]:
    """The phase that ``state.phase`` names: its spawners, and no enemies.

    Args:
        jitter: see :meth:`Draws.jitter`.
    """
    phase, slots = phase_index(state.phase, rules), rules.max_enemies
    exists = tables.exists[:, phase]
    radius = rules.spawner_radius
    shifted = tables.anchors[..., phase] + rules.jitter * (2 * jitter - 1)
    x, y = shifted[0].clamp(radius, rules.width - radius), shifted[1].clamp(radius, rules.height - radius)
    spawners = torch.stack((x, y)).masked_fill(~exists, FAR)
    health = torch.where(exists, rules.new_spawner_health, 0.0).to(spawners.dtype)
    nobody = torch.zeros_like(state.speed[:slots])
    return {
        "targets": torch.cat((nobody.expand(2, *nobody.shape) + FAR, spawners), 1),
        "target_health": torch.cat((nobody, health)),
        "speed": torch.zeros_like(state.speed),
        "ready": torch.cat((nobody + NEVER, torch.where(exists, state.step, NEVER))),
        "period": tables.periods[phase].repeat(rules.num_spawners, 1),
        "enemies": torch.zeros_like(state.enemies),
        "phase_start": state.step,
        "quiet": state.step,
    }


def begin(
    phase: Tensor, health: float | None, jitter: Tensor, bullet_slots: int, rules: Rules, tables: Tables
) -> ArenaState:
    """New episodes that start in phase ``[n]``, with another health than the full one if given."""
    state = blank_state(rules, bullet_slots, len(phase), jitter.dtype, jitter.device)
    if health is not None:
        state.health.fill_(health)
    state.phase = phase.to(jitter.dtype)
    new = set_up(state, jitter, rules, tables)
    # Fields that begin alike must not be one tensor: steps write into them.
    return state.replace(**{name: value.clone() for name, value in new.items()})


def phase_index(phase: Tensor, rules: Rules) -> Tensor:
    """The phase ``[n]`` as an index; after the last one it stays the last."""
    return phase.clamp_max(len(rules.phases) - 1).long()
