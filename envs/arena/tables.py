"""The rules as tensors: rows to look up by phase and by action, factors of observations and rewards."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .rules import FAR, ArenaRules


class ArenaTables(NamedTuple):
    """``P`` phases and, like the last one, the time after a victory; ``A`` actions."""

    anchors: Tensor  # [2, S, P] the least coordinates after jitter
    spawner_health: Tensor  # [S, P] of new spawners, 0 where there is none
    periods: Tensor  # [P]
    speeds: Tensor  # [P] of new enemies
    shares: Tensor  # [P] what one spawner is of all in its phase
    controls: Tensor  # [3, A] style 1: thrust, turn, 0; style 2: velocity, heading in half turns (NaN: as it was)
    scale: Tensor  # [32, 1] observation = scale x raw + shift
    shift: Tensor  # [32, 1]
    pay: Tensor  # [8, 1] float64, reward of what collisions are counted as


def make_tables(rules: ArenaRules, dtype: torch.dtype, device: torch.device | str) -> ArenaTables:
    """The tables of a game."""
    slots, phases = rules.num_spawners, (*range(len(rules.phases)), len(rules.phases) - 1)
    places = [rules.phases[phase].anchors for phase in phases]
    anchors = [[*own, *[(FAR, FAR)] * (slots - len(own))] for own in places]
    health = [[rules.new_spawner_health * (slot < len(own)) for slot in range(slots)] for own in places]

    def real(values: object, kind: torch.dtype = dtype) -> Tensor:
        return torch.tensor(values, dtype=kind, device=device)

    scale, shift = zip(*_scaling(rules))
    return ArenaTables(
        real(anchors).permute(2, 1, 0).contiguous() - rules.jitter,
        real(health).T.contiguous(),
        real([rules.period(phase) for phase in phases]),
        real([rules.new_enemy_speed(phase) for phase in phases]),
        real([1 / len(own) for own in places]),
        real(_controls(rules)).T.contiguous(),
        real(scale)[:, None],
        real(shift)[:, None],
        real(_pay(rules), torch.float64)[:, None],
    )


def _controls(rules: ArenaRules) -> list[tuple[float, float, float]]:
    if rules.style == 1:
        return [(0, 0, 0), (rules.thrust, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, 0)]
    speed, kept = rules.walking_speed, (0.0, 0.0, math.nan)
    up, down = (0.0, -speed, -0.5), (0.0, speed, 0.5)
    return [kept, up, down, (-speed, 0.0, 1.0), (speed, 0.0, 0.0), kept]


def _scaling(rules: ArenaRules) -> list[tuple[float, float]]:
    x, y, distance = 1 / rules.width, 1 / rules.height, 1 / rules.diagonal
    speed, one, health = 1 / rules.top_speed, (1.0, 0.0), 1 / rules.spawner_health
    enemy, spawner = ((distance, 0.0), one, one), ((distance, 0.0), one, one, (health, 0.0))
    return [
        *((x, 0.0), (y, 0.0), (speed, 0.0), (speed, 0.0), (0.5 / math.pi, 0.0), (1 / rules.max_health, 0.0)),
        *((1 / rules.shot_cooldown, 0.0), (1 / len(rules.phases), 0.0), one, (-1 / rules.max_steps, 1.0)),
        *(*enemy, *enemy, *spawner, *spawner, (distance, 0.0), one, (1 / rules.danger_count, 0.0)),
        *((x, 0.0), (-x, 1.0), (y, 0.0), (-y, 1.0), (1 / rules.max_enemies, 0.0)),
    ]


def _pay(rules: ArenaRules) -> list[float]:
    return [
        *(rules.hit_enemy, rules.kill_enemy, rules.hit_spawner, rules.kill_spawner, rules.quick_kill),
        *(rules.damage * rules.stage.damage_penalty, rules.clear_phase, rules.death),
    ]
