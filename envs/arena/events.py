"""Rare events: the player shoots, an enemy fires, enemy shots vanish, a spawner makes an enemy, a phase begins.

An event is a pure function of the ``n`` worlds in which it happens, and returns the changed fields.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..foundation.tensors import constant, made_once
from .rules import FAR, NEVER, SURELY, ArenaRules, ArenaTables
from .state import (
    ArenaState,
    At,
    Changes,
    blank_state,
    first_row,
    flagged,
    kept_inside,
    length,
    length2,
    outside,
    pick,
    rows_of,
    spots,
)

# -- random numbers --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ArenaDraws:
    """Random numbers in [0, 1) for the ``n`` worlds of an index tensor; None means all ``num_worlds``."""

    rules: ArenaRules
    num_worlds: int
    generator: torch.Generator
    dtype: torch.dtype

    def _uniform(self, worlds: Tensor | int | None, *shape: int) -> Tensor:
        count = self.num_worlds if worlds is None else worlds if isinstance(worlds, int) else len(worlds)
        generator = self.generator
        return torch.rand(*shape, count, generator=generator, dtype=self.dtype, device=generator.device)

    def fire(self, worlds: Tensor | None) -> Tensor:
        """Draws ``[E, n]``: whether each enemy that is ready fires."""
        return self._uniform(worlds, self.rules.max_enemies)

    def spawn(self, spawner: Tensor, worlds: Tensor | None) -> tuple[Tensor, Tensor]:
        """Draws angle ``[attempts + 1, n]`` and gap ``[attempts, n]`` of a new enemy of spawner ``[n]``."""
        tries = self.rules.spawn_attempts
        units = self._uniform(worlds, 2 * tries + 1)
        return units[: tries + 1], units[tries + 1 :]

    def jitter(self, worlds: Tensor | int | None) -> Tensor:
        """Draws ``[2, S, n]``: displacement of a new phase's spawners; ``worlds`` may be their number."""
        return self._uniform(worlds, 2, self.rules.num_spawners)


class Drawn(NamedTuple):
    """The random numbers of a step of all worlds, see :class:`ArenaDraws`."""

    fire: Tensor
    spawn: tuple[Tensor, Tensor]
    jitter: Tensor


def draw_everywhere(state: ArenaState, draws: ArenaDraws, rules: ArenaRules) -> Drawn:
    """Draws for everything that could happen in a step."""
    pairs = made_once(_pairs, rules.num_spawners, len(state.step), state.step.device)
    return Drawn(draws.fire(None), draws.spawn(*pairs), draws.jitter(None))


def _pairs(spawners: int, worlds: int, device: torch.device) -> Tensor:
    """Returns spawner and world of all pairs, ``[2, spawners * worlds]``."""
    pairs = torch.stack((torch.arange(spawners).repeat_interleave(worlds), torch.arange(worlds).repeat(spawners)))
    return pairs.to(device)


# -- shots -----------------------------------------------------------------------------------------------------------


_LONG = 1.0e6  # steps, longer than any episode
_SLACK = 0.05  # px, more than the accumulated rounding in a projectile's life


def flight_time(position: Tensor, velocity: Tensor, rules: ArenaRules, slack: float) -> Tensor:
    """Returns the number of moves ``[n]`` after which a projectile vanishes: expired, or its centre outside the arena.

    Positions are sums of many steps, so rounding makes the move uncertain: with ``slack`` px more room on all sides the
    result may be too late, with less room too early.
    """
    sides = constant((rules.width, rules.height), position[0])
    inside = torch.maximum((sides + slack - position) / velocity, (-slack - position) / velocity).floor()
    return (inside.amin(0) + 1).clamp_max(rules.shot_lifetime)


def gone(state: ArenaState, rules: ArenaRules) -> Tensor:
    """Returns the slots ``[N, n]`` bool without an active shot of the player."""
    return (state.shot_ends <= state.step) | outside(state.shots, rules)


def quiet_steps(away: Tensor, velocity: Tensor, rules: ArenaRules) -> Tensor:
    """Returns the number of steps ``[..., n]`` until a shot may touch a target, 0 if it may now.

    A shot with velocity ``v`` and a target at the offset ``d`` that moves by at most ``s`` in any direction can touch
    at the distance ``r`` after ``k`` steps where ``|d - k v| < r + k s``: from the smaller root on of
    ``(v^2 - s^2) k^2 - 2 (d v + r s) k + d^2 - r^2``, if there is one and it is not past.

    Args:
        away: offset of the targets from the shot, ``[2, T, ..., n]``.
        velocity: velocity of the shot, ``[2, ..., n]``.
    """
    margin = rules.shot_radius + 0.1  # a tenth of a pixel for rounding
    reach = per_target(away, rules, rules.enemy_radius + margin, rules.spawner_radius + margin)
    speed = per_target(away, rules, rules.enemy_speed, 0.0)
    square = rules.shot_speed**2 - speed**2
    closing = torch.addcmul(away[0] * velocity[0], away[1], velocity[1]).add_(reach * speed)
    apart = length2(away).sub_(reach**2)
    past = torch.minimum(apart, -closing).clamp_min_(0)
    root2 = torch.addcmul(apart.mul_(-square), closing, closing)
    never = past.sub_(root2.clamp_max(0)).mul_(SURELY)
    first = closing.sub_(root2.clamp_min_(0).sqrt_()).div_(square).add_(never)
    return first.amin(0).ceil_().clamp_(0, _LONG)


def per_target(away: Tensor, rules: ArenaRules, enemy: float, spawner: float) -> Tensor:
    """Returns one number for each target, ``[T, 1, ...]`` for offsets ``[2, T, ...]``."""
    return constant([enemy] * rules.max_enemies + [spawner] * rules.num_spawners, away, away.dim() - 2)


def shoot(state: ArenaState, rules: ArenaRules, foresees: bool = True) -> Changes:
    """Adds the player's shot, already moved by its first step.

    Args:
        foresees: whether to compute from when on the shot may hit something; otherwise it may now.
    """
    angle = state.rotation.to(state.position.dtype)
    velocity = torch.stack((angle.cos(), angle.sin())) * rules.shot_speed
    where, start = state.spots(torch.remainder(state.fired, rules.shot_slots)), state.position + velocity
    quiet = state.step
    if foresees:
        quiet = quiet + quiet_steps(state.targets - start[:, None], velocity, rules)
    return {
        "shots": [At(where, start)],
        "shot_velocity": [At(where, velocity)],
        "shot_ends": [At(where, state.step - 1 + flight_time(state.position, velocity, rules, _SLACK))],
        "fired": state.fired + 1,
        "quiet": torch.minimum(state.quiet, quiet),
    }


def aimed(state: ArenaState, origin: Tensor, rules: ArenaRules) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a shot from ``origin [2, ..., n]`` at the player: place after its first step, velocity, and its end."""
    position = state.position if origin.dim() == 2 else state.position[:, None]
    toward = position - origin
    distance = length(toward)
    # At the player's position there is no direction to aim in: use +x.
    on_top = (distance == 0).to(distance.dtype)
    velocity = torch.stack((toward[0] + on_top, toward[1])) * (rules.shot_speed / (distance + on_top))
    return origin + velocity, velocity, state.step - 1 + flight_time(origin, velocity, rules, -_SLACK)


def fire(state: ArenaState, enemy: Tensor, slot: Tensor, rules: ArenaRules) -> Changes:
    """Adds the shot of enemy ``[n]`` at the player in slot ``[n]``, already moved by its first step."""
    shooter, where = state.spots(enemy), state.spots(slot)
    place, velocity, ends = aimed(state, state.pick("targets", shooter), rules)
    return {
        "bullets": [At(where, place)],
        "bullet_velocity": [At(where, velocity)],
        "bullet_born": [At(where, state.step - 1)],
        "bullet_ends": [At(where, ends)],
        "ready": [At(shooter, state.step + rules.fire_cooldown)],
    }


def volley(state: ArenaState, fires: Tensor, rules: ArenaRules) -> dict[str, Tensor]:
    """Adds the shots of the enemies ``fires [E, n]`` bool, as :func:`fire` and :func:`jam` do one by one."""
    enemies = rules.max_enemies
    place, velocity, ends = aimed(state, state.targets[:, :enemies], rules)
    shots = torch.cat((place, velocity, ends[None]))  # [5, E, n]
    empty = state.bullet_ends >= NEVER
    number, count = empty.cumsum(0), fires.sum(0)
    rank = number - 1
    takes = empty & (rank < count)
    shots = shots.gather(1, flagged(fires, rank).expand(5, *rank.shape))
    ready = torch.where(fires, state.step + rules.fire_cooldown, state.ready[:enemies])
    return {
        "bullets": torch.where(takes, shots[:2], state.bullets),
        "bullet_velocity": torch.where(takes, shots[2:4], state.bullet_velocity),
        "bullet_born": torch.where(takes, state.step - 1, state.bullet_born),
        "bullet_ends": torch.where(takes, shots[4], state.bullet_ends),
        "ready": torch.cat((ready, state.ready[enemies:])),
        "overflow": state.overflow + (count - number[-1]).clamp_min(0),
    }


def jam(state: ArenaState, enemy: Tensor, rules: ArenaRules) -> Changes:
    """Handles an enemy ``[n]`` that would fire while all slots are taken."""
    ready = [At(state.spots(enemy), state.step + rules.fire_cooldown)]
    return {"ready": ready, "overflow": state.overflow + 1}


def free_slot(ends: Tensor, rank: Tensor | float = 0.0) -> Tensor:
    """Returns the empty slot ``[n]`` of ``bullet_ends [K, n]`` after ``rank`` others; K or more if there is none."""
    count = ends.shape[0]
    taken = ((NEVER - ends) * SURELY).clamp_max(1)
    before = (1 - taken).cumsum(0) - 1 - rank  # number of empty slots before this one, minus those already assigned
    return (rows_of(ends) + (before.abs() + taken) * count).amin(0)


def vanish(state: ArenaState, rules: ArenaRules) -> Changes:
    """Empties the slots of expired enemy shots, checking only those that may have expired."""
    due = state.bullet_ends <= state.step
    over = due & ((state.step - state.bullet_born >= rules.shot_lifetime) | outside(state.bullets, rules))
    return emptied(state, over, torch.where(due, state.step + 1, state.bullet_ends))


def emptied(state: ArenaState, slots: Tensor, ends: Tensor) -> dict[str, Tensor]:
    """Empties slots ``[K, n]`` bool of enemy shots; the others' ``bullet_ends`` become ``ends``."""
    return {
        "bullets": state.bullets.masked_fill(slots, FAR),
        "bullet_velocity": state.bullet_velocity.masked_fill(slots, 0.0),
        "bullet_ends": ends.masked_fill(slots, NEVER),
    }


# -- enemies and phases ----------------------------------------------------------------------------------------------


def waiting(state: ArenaState, rules: ArenaRules) -> Tensor:
    """Returns the worlds ``[n]`` bool in which a spawner may make an enemy now."""
    return (state.ready[rules.max_enemies :].amin(0) <= state.step) & (state.enemies < rules.enemy_cap)


def spawn(
    state: ArenaState,
    spawner: Tensor,
    before: Tensor | int,
    made: Tensor | int,
    units: tuple[Tensor, Tensor],
    rules: ArenaRules,
    tables: ArenaTables,
) -> Changes:
    """Adds an enemy of spawner ``[n]`` where it fits or, after a number of attempts, close to the spawner's rim.

    Args:
        before: number of enemies that other spawners of the world make earlier in the same step.
        made: number of enemies that all spawners of the world make in this step.
        units: see :meth:`ArenaDraws.spawn`.
    """
    slots = rules.max_enemies
    maker = state.spots(spawner + slots)
    where = state.spots((state.enemies + before).clamp_max(slots - 1))
    speed = tables.speeds.index_select(0, state.phase.long())
    resting = state.step + state.pick("period", state.spots(spawner))
    return {
        "targets": [At(where, _free_place(state.pick("targets", maker), state.targets[:, :slots], units, rules))],
        "target_health": [At(where, torch.full_like(speed, rules.enemy_health))],
        "speed": [At(where, speed)],
        "ready": [At(where, state.step), At(maker, resting)],
        "enemies": state.enemies + made,
        "quiet": state.step,
    }


def spawn_everywhere(
    state: ArenaState, units: tuple[Tensor, Tensor], rules: ArenaRules, tables: ArenaTables
) -> dict[str, Tensor]:
    """Adds the enemies of all spawners of all worlds that are due and allowed, as :func:`spawn` does one by one.

    Args:
        units: see :meth:`ArenaDraws.spawn`, for all spawners of all worlds.
    """
    slots, makers, worlds = rules.max_enemies, rules.num_spawners, len(state.step)
    due = state.ready[slots:] <= state.step
    makes = due & (state.enemies + due.cumsum(0) <= rules.enemy_cap)
    made = makes.sum(0)
    enemies, spawners = state.targets[:, :slots], state.targets[:, slots:].flatten(1)
    places = _free_place(spawners, enemies.repeat(1, 1, makers), units, rules).view(2, makers, worlds)
    rank = (rows_of(enemies[0]) - state.enemies).long()  # among the new enemies, of the enemy in each slot
    new = (rank >= 0) & (rank < made)
    places = places.gather(1, flagged(makes, rank).expand(2, slots, worlds))
    speed = tables.speeds.index_select(0, state.phase.long())
    ready = torch.where(makes, state.step + state.period, state.ready[slots:])

    def of_enemies(old: Tensor, value: Tensor | float) -> Tensor:
        return torch.cat((torch.where(new, value, old[..., :slots, :]), old[..., slots:, :]), -2)

    return {
        "targets": of_enemies(state.targets, places),
        "target_health": of_enemies(state.target_health, rules.enemy_health),
        "speed": of_enemies(state.speed, speed),
        "ready": torch.cat((torch.where(new, state.step, state.ready[:slots]), ready)),
        "enemies": state.enemies + made,
        "quiet": torch.where(made > 0, state.step, state.quiet),
    }


def _free_place(centre: Tensor, enemies: Tensor, units: tuple[Tensor, Tensor], rules: ArenaRules) -> Tensor:
    """Returns the first place ``[2, n]`` around spawners that is far enough from ``enemies [2, E, n]``, or the last.

    A place is at the rim plus a gap, that of the last attempt plus a fixed small one.
    """
    low, high = rules.spawn_gap
    angle, gap = units
    distance = rules.spawner_radius + rules.enemy_radius + low + (high - low) * pad(gap, (0, 0, 0, 1))
    angle = 2 * math.pi * angle
    places = torch.addcmul(centre[:, None], torch.stack((angle.cos(), angle.sin())), distance)
    places = kept_inside(places, rules.enemy_radius, rules)  # [2, attempts + 1, n]
    gaps = length2(places[:, :, None] - enemies[:, None]).amin(1)
    free = (gaps >= rules.spawn_clearance**2).to(gaps.dtype)
    free[-1:].fill_(1.0)
    return pick(places, spots(first_row(free)))


def set_up(state: ArenaState, jitter: Tensor, rules: ArenaRules, tables: ArenaTables) -> Changes:
    """Sets up the phase ``state.phase`` with its spawners and no enemies.

    Args:
        jitter: see :meth:`ArenaDraws.jitter`.
    """
    phase, slots = state.phase.long(), rules.max_enemies
    health = tables.spawner_health.index_select(1, phase)
    exists = health > 0
    shifted = torch.add(tables.anchors.index_select(2, phase), jitter, alpha=2 * rules.jitter)
    spawners = torch.where(exists, kept_inside(shifted, rules.spawner_radius, rules), FAR)
    nobody = (0, 0, slots, 0)  # the padding of fields for targets without enemies
    return {
        "targets": pad(spawners, nobody, value=FAR),
        "target_health": pad(health, nobody),
        "speed": 0.0,
        "ready": pad(torch.where(exists, state.step, NEVER), nobody, value=NEVER),
        "period": tables.periods.index_select(0, phase).expand(rules.num_spawners, -1),
        "enemies": 0.0,
        "phase_start": state.step,
        "quiet": state.step,
    }


def begin(
    phase: Tensor, health: Tensor, jitter: Tensor, bullet_slots: int, rules: ArenaRules, tables: ArenaTables
) -> ArenaState:
    """Begins episodes in phase ``[n]`` with a health ``[n]``."""
    state = blank_state(rules, bullet_slots, len(phase), jitter.dtype, jitter.device)
    state.phase, state.health = phase.to(jitter.dtype), health
    new = set_up(state, jitter, rules, tables)
    # Fields with equal initial values must not share a tensor, since steps write into them.
    return state.replace(**{name: value.clone() for name, value in new.items() if isinstance(value, Tensor)})
