"""Rare events: the player shoots, an enemy fires, enemy shots vanish.

An event is a pure function of the ``n`` worlds in which it happens; it returns what it changes in them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .movement import length, length2
from .rows import At, rows_of
from .rules import FAR, NEVER, Rules
from .state import ArenaState, Changes

_SURELY = 1.0e30  # makes a number beyond 1 of any positive one
_LONG = 1.0e6  # steps, longer than any episode
_SLACK = 0.05  # px, more than rounding adds up to in a projectile's life


def flight_time(position: Tensor, velocity: Tensor, rules: Rules, slack: float) -> Tensor:
    """``[n]`` moves after which a projectile is gone: spent, or with its centre outside of the arena.

    Positions are sums of many steps, so that the very move cannot be foretold to rounding: with ``slack`` px more room
    on all sides the answer may be too late, with less too early.
    """
    moves = position.new_full(position.shape[1:], float(rules.shot_lifetime))
    for axis, limit in enumerate((rules.width, rules.height)):
        where, speed = position[axis], velocity[axis]
        inside = torch.maximum((limit + slack - where) / speed, -(where + slack) / speed).floor()
        moves = torch.minimum(moves, inside + 1)
    return moves


def outside(position: Tensor, rules: Rules) -> Tensor:
    """Whether centres ``[2, ...]`` are outside of the arena, bool."""
    x, y = position
    return (x < 0) | (x > rules.width) | (y < 0) | (y > rules.height)


def flying(state: ArenaState, rules: Rules) -> Tensor:
    """The slots ``[N, n]`` bool of the player's shots that are alive."""
    return (state.shot_ends > state.step) & ~outside(state.shots, rules)


def quiet_steps(away: Tensor, velocity: Tensor, rules: Rules) -> Tensor:
    """How many steps pass ``[..., n]`` until a shot may touch a target, 0 if it may now.

    A shot with velocity ``v`` and a target at the offset ``d`` that moves by at most ``s`` in any direction can touch
    at the distance ``r`` after ``k`` steps where ``|d - k v| < r + k s``: from the smaller root on of
    ``(v^2 - s^2) k^2 - 2 (d v + r s) k + d^2 - r^2``, if there is one and it is not past.

    Args:
        away: from the shot ``[2, T, ..., n]``.
        velocity: ``[2, ..., n]``.
    """
    shape = (-1, *[1] * (away.dim() - 2))
    radius = per_target(away, rules, rules.enemy_radius, rules.spawner_radius).view(shape)
    reach = radius + (rules.shot_radius + 0.1)  # a tenth of a pixel for rounding
    speed = per_target(away, rules, rules.enemy_speed, 0.0).view(shape)
    square = rules.shot_speed**2 - speed**2
    closing = torch.addcmul(away[0] * velocity[0], away[1], velocity[1]).add_(reach * speed)
    apart = length2(away).sub_(reach**2)
    past = torch.minimum(apart, -closing).clamp_min_(0)
    root2 = torch.addcmul(apart.mul_(-square), closing, closing)
    never = past.sub_(root2.clamp_max(0)).mul_(_SURELY)
    first = closing.sub_(root2.clamp_min_(0).sqrt_()).div_(square).add_(never)
    return first.amin(0).ceil_().clamp_(0, _LONG)


def per_target(like: Tensor, rules: Rules, enemy: float, spawner: float) -> Tensor:
    """One number for each target, ``[T, 1]``."""
    counts = (rules.max_enemies, rules.num_spawners)
    return torch.cat([like.new_full((count, 1), value) for count, value in zip(counts, (enemy, spawner))])


def shoot(state: ArenaState, rules: Rules) -> Changes:
    """The player's shot, already moved by its first step."""
    angle = state.rotation.to(state.position.dtype)
    velocity = torch.stack((angle.cos(), angle.sin())) * rules.shot_speed
    where, start = state.spots(torch.remainder(state.fired, rules.shot_slots)), state.position + velocity
    quiet = state.step + quiet_steps(state.targets - start[:, None], velocity, rules)
    return {
        "shots": [At(where, start)],
        "shot_velocity": [At(where, velocity)],
        "shot_ends": [At(where, state.step - 1 + flight_time(state.position, velocity, rules, _SLACK))],
        "fired": state.fired + 1,
        "quiet": torch.minimum(state.quiet, quiet),
    }


def fire(state: ArenaState, enemy: Tensor, slot: Tensor, rules: Rules) -> Changes:
    """The shot of enemy ``[n]`` at the player, in slot ``[n]``, already moved by its first step."""
    shooter, where = state.spots(enemy), state.spots(slot)
    origin = state.pick("targets", shooter)
    toward = state.position - origin
    distance = length(toward)
    # On top of the player there is no direction to aim in: along +x then.
    on_top = (distance == 0).to(distance.dtype)
    velocity = torch.stack((toward[0] + on_top, toward[1])) * (rules.shot_speed / (distance + on_top))
    start = state.step - 1
    return {
        "bullets": [At(where, origin + velocity)],
        "bullet_velocity": [At(where, velocity)],
        "bullet_born": [At(where, start)],
        "bullet_ends": [At(where, start + flight_time(origin, velocity, rules, -_SLACK))],
        "ready": [At(shooter, state.step + rules.fire_cooldown)],
    }


def jam(state: ArenaState, enemy: Tensor, rules: Rules) -> Changes:
    """Enemy ``[n]`` would fire, but all slots are taken."""
    ready = [At(state.spots(enemy), state.step + rules.fire_cooldown)]
    return {"ready": ready, "overflow": state.overflow + 1}


def free_slot(ends: Tensor, rank: Tensor | float = 0.0) -> Tensor:
    """The empty slot ``[n]`` of ``bullet_ends [K, n]`` that ``rank`` empty ones precede; K or more if there is none."""
    count = ends.shape[0]
    taken = ((NEVER - ends) * _SURELY).clamp_max(1)
    before = (1 - taken).cumsum(0) - 1 - rank  # empty slots before this one, beyond those given away
    return (rows_of(ends) + (before.abs() + taken) * count).amin(0)


def vanish(state: ArenaState, rules: Rules) -> Changes:
    """Empties the slots of enemy shots whose time is over; a look at those that may be."""
    due = state.bullet_ends <= state.step
    over = due & ((state.step - state.bullet_born >= rules.shot_lifetime) | outside(state.bullets, rules))
    later = torch.where(due & ~over, state.step + 1, state.bullet_ends)
    return {**emptied(state, over), "bullet_ends": later.masked_fill(over, NEVER)}


def emptied(state: ArenaState, slots: Tensor) -> dict[str, Tensor]:
    """Empties slots ``[K, n]`` bool of enemy shots."""
    return {
        "bullets": state.bullets.masked_fill(slots, FAR),
        "bullet_velocity": state.bullet_velocity.masked_fill(slots, 0.0),
        "bullet_ends": state.bullet_ends.masked_fill(slots, NEVER),
    }
