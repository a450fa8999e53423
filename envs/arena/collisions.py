"""Collisions of shots with enemies and spawners, and of enemy shots and enemies with the player."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..foundation.tensors import made_once
from .events import emptied, gone, per_target
from .movement import length2
from .rules import FAR, NEVER, ArenaRules, ArenaTables
from .state import ArenaState, pick, rows_of, spots

_SURELY = 1.0e30  # multiplied with any positive number gives more than 1


class ShotHits(NamedTuple):
    """The effect of the player's shots."""

    health: Tensor  # [T, n] of the targets
    shot_ends: Tensor  # [N, n]
    enemies: Tensor  # [n] enemies hit
    killed: Tensor  # [n] enemies killed
    spawners: Tensor  # [n] spawners hit
    destroyed: Tensor  # [n] spawners killed


class Impact(NamedTuple):
    """The effect of the collisions of a step."""

    changes: dict[str, Tensor]
    reward: Tensor  # [n] float64
    cleared: Tensor  # [n] bool: the last spawner is destroyed, and the next phase, if there is one, begins


def touching(state: ArenaState, rules: ArenaRules) -> tuple[Tensor, Tensor]:
    """Returns whether the player's shots touch targets, ``[T, N, n]``, and their offsets, ``[2, T, N, n]``."""
    away = state.targets[:, :, None] - state.shots[:, None]
    away = torch.add(away, gone(state, rules), alpha=FAR)
    enemy, spawner = (radius + rules.shot_radius for radius in (rules.enemy_radius, rules.spawner_radius))
    reach2 = per_target(away, rules, enemy**2, spawner**2)
    return (reach2 - length2(away)).mul_(_SURELY).clamp_(0, 1), away


def strike(state: ArenaState, touch: Tensor, rounds: int, rules: ArenaRules) -> ShotHits:
    """Resolves the player's shots, oldest first; each hits the first of its targets that is still alive.

    Args:
        touch: ``[T, N, n]``, see :func:`touching`.
        rounds: number of shots resolved in each world, at least those that touch a target.
    """
    slots, enemies = rules.shot_slots, rules.max_enemies
    # Slots in the order of the shots' age; where not all are resolved, those that touch nothing come last.
    order = torch.remainder(rows_of(state.shot_ends) + state.fired, slots).long()
    if rounds < slots:
        last = (1 - touch.amax(0).gather(0, order)) * slots
        order = order.gather(0, (rows_of(last) + last).argsort(0)[:rounds])
    touch = touch.gather(1, order.expand(len(touch), *order.shape))
    left = [(state.target_health / rules.shot_damage).ceil().clamp_min(0)]  # hits that a target survives, and one more
    for touched in touch.unbind(1):
        struck = torch.minimum(touched, left[-1])
        first = struck.cumsum(0, dtype=torch.int16) == 1  # of floats, a GPU has no sum in a fixed order
        left.append(torch.addcmul(left[-1], struck, first, value=-1))
    health = torch.sub(state.target_health, left[0] - left[-1], alpha=rules.shot_damage).clamp_min(0)
    if not rounds:
        return ShotHits(health, state.shot_ends, *state.step.new_zeros(4, len(state.step)).unbind(0))
    lefts = torch.stack(left)
    hit = lefts[:-1] - lefts[1:]  # [rounds, T, n]
    killed = hit * (lefts[1:] <= 0)
    counts = torch.cat((hit, killed)).view(2, *hit.shape).sum(1)  # [2, T, n]
    of_enemies, of_spawners = counts[:, :enemies].sum(1), counts[:, enemies:].sum(1)
    ended = torch.where(hit.amax(1) > 0, state.step, state.shot_ends.gather(0, order))
    ends = state.shot_ends.scatter(0, order, ended)
    return ShotHits(health, ends, *of_enemies, *of_spawners)


def collide(state: ArenaState, touch: Tensor, rounds: int, rules: ArenaRules, tables: ArenaTables) -> Impact:
    """Resolves all collisions of a step in the order of the game, and computes their reward.

    Args:
        touch, rounds: see :func:`strike`.
    """
    enemies = rules.max_enemies
    hits = strike(state, touch, rounds, rules)
    healed = state.health.add(hits.destroyed, alpha=rules.heal).clamp_max(rules.max_health)
    healed = torch.where(hits.destroyed > 0, healed, state.health)
    player = state.position[:, None]

    hit = length2(state.bullets - player) < (rules.player_radius + rules.shot_radius) ** 2
    consumed = _in_order(hit, state, _blows(healed, rules.shot_damage))
    taken = consumed.sum(0)
    health = healed.sub(taken, alpha=rules.shot_damage).clamp_min(0)

    near = length2(state.targets[:, :enemies] - player) < (rules.player_radius + rules.enemy_radius) ** 2
    near = near & (hits.health[:enemies] > 0)
    contact = near & (near.cumsum(0) <= _blows(health, rules.contact_damage))
    crashed = contact.sum(0)
    health = health.sub(crashed, alpha=rules.contact_damage).clamp_min(0)

    target_health = torch.cat((hits.health[:enemies].masked_fill(contact, 0.0), hits.health[enemies:]))
    cleared = (hits.destroyed > 0) & (target_health[enemies:].amax(0) <= 0)
    kills = hits.killed + crashed
    died = (state.health > 0) & (health <= 0)
    quick = hits.destroyed * (state.step - state.phase_start < rules.quick_steps)
    counted = (*hits[2:], quick, taken + crashed, cleared, died)
    reward = (torch.stack(counted) * tables.pay).sum(0)
    reward = reward + shaping(state, health, target_health, kills, rules)
    changes = {
        "health": health,
        "shot_ends": hits.shot_ends,
        "kills": state.kills + kills,
        "spawner_kills": state.spawner_kills + hits.destroyed,
        "first_kill": torch.where((hits.destroyed > 0) & (state.first_kill < 0), state.step, state.first_kill),
        "damage_dealt": state.damage_dealt + (state.target_health - hits.health).sum(0),
        "damage_taken": state.damage_taken + healed - health,
        "phase": state.phase + cleared,
        **emptied(state, consumed, state.bullet_ends),
        **closed_ranks(state, target_health, rules),
    }
    return Impact(changes, reward, cleared)


def _blows(health: Tensor, damage: float) -> Tensor:
    """Returns the number of blows that kill the player."""
    return (health / damage).ceil()


def _in_order(hit: Tensor, state: ArenaState, most: Tensor) -> Tensor:
    """Returns the first ``most [n]`` of the enemy shots ``hit [K, n]`` bool in the order in which they were fired."""
    slots = len(hit)
    order = torch.where(hit, state.bullet_born * slots + rows_of(state.bullet_born), NEVER)
    last = pick(order.sort(0).values, spots((most - 1).clamp(0, slots - 1)))
    return hit & (order <= last) & (most > 0)


def shaping(state: ArenaState, health: Tensor, target_health: Tensor, kills: Tensor, rules: ArenaRules) -> Tensor:
    """Returns the shaped part of the reward ``[n]``, float64: damage dealt, weighted by health, minus damage taken.

    It is 0 in the first step of an episode or phase.
    """
    spawners = slice(rules.max_enemies, None)
    dealt = (state.target_health[spawners] - target_health[spawners]).sum(0).double()
    taken = (state.health - health).clamp_min(0).double()
    offence = dealt.add(kills, alpha=rules.shaping_kill)
    weight = 0.5 + 0.5 / rules.max_health * health.double()
    effect = (offence * weight).sub(taken, alpha=rules.shaping_damage)
    shaped = (rules.shaping * rules.stage.shaping * effect).clamp(-rules.shaping_limit, rules.shaping_limit)
    return shaped * (state.step - 1 > state.phase_start)


def _empty_slot(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.tensor((FAR, FAR, 0.0, 0.0, NEVER), dtype=dtype, device=device)[:, None, None]


def closed_ranks(state: ArenaState, health: Tensor, rules: ArenaRules) -> dict[str, Tensor]:
    """Removes dead targets: enemies move up, spawners leave their slots empty."""
    enemies = rules.max_enemies
    fields = torch.cat((state.targets, torch.stack((health, state.speed, state.ready))))  # [5, T, n]
    empty = made_once(_empty_slot, fields.device, fields.dtype)
    alive = health > 0
    order = alive[:enemies].sort(dim=0, descending=True, stable=True).indices.expand(len(fields), -1, -1)
    moved = torch.cat((fields[:, :enemies].gather(1, order), fields[:, enemies:]), 1)
    count = alive[:enemies].sum(0)
    there = torch.cat((rows_of(health[:enemies]) < count, alive[enemies:]))
    targets, (health, speed, ready) = torch.where(there, moved, empty).split((2, 3))
    return {
        "targets": targets,
        "target_health": health,
        "speed": speed,
        "ready": ready,
        "enemies": count.to(health.dtype),
    }
