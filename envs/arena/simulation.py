"""One step of a batch of Arena worlds.

Movement is computed for all worlds. Rare events (a shot, a new enemy, a collision) are computed by :func:`advance` only
for the worlds in which they happen, which saves most of the work on a CPU. :func:`advance_densely` computes them for
all worlds under a mask without branching on data, for CUDA graphs and ``torch.compile`` of the whole step. Both lead to
the same worlds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..foundation.compilation import Compiled
from ..foundation.tensors import constant
from . import events
from .events import ArenaDraws, Drawn
from .observation import closest, observe
from .rules import FAR, NEVER, SURELY, ArenaRules, ArenaTables
from .state import ArenaState, Changes, kept_inside, length, length2, pick, rows_of, spots

_TINY = 1.0e-20  # replaces a distance of 0 before dividing, so that an enemy at its destination does not move


def move(
    state: ArenaState, action: Tensor, rules: ArenaRules, tables: ArenaTables, in_place: bool = True
) -> tuple[ArenaState, Tensor]:
    """Moves all objects by one step; also returns ``[W]`` bool whether the player shoots.

    Args:
        action: ``[W]`` int64, see :attr:`ArenaRules.num_actions`.
        in_place: whether to update the tensors of targets and projectiles in place.
    """
    step, control = state.step + 1, tables.controls.index_select(1, action)
    if rules.style == 1:
        angle = state.rotation.to(control.dtype)
        push = torch.stack((angle.cos(), angle.sin())) * control[0]
        velocity = (state.velocity + push) * rules.friction
        velocity = velocity * (rules.top_speed / length(velocity)).clamp_max(1.0)
        rotation = torch.remainder(state.rotation + rules.turn * control[1].double(), 2 * math.pi)
    else:
        velocity, heading = control[:2], control[2].double() * math.pi
        rotation = torch.where(heading.isnan(), state.rotation, heading)
    position = kept_inside(state.position + velocity, rules.player_radius, rules)
    shoots = (action == rules.num_actions - 1) & (state.shot_ready <= step)
    add, addcmul = (Tensor.add_, Tensor.addcmul_) if in_place else (Tensor.add, Tensor.addcmul)
    # Enemies head for the player's current position; still targets have speed 0. Enemies cannot leave the arena this
    # way, since the player's box is smaller than theirs by more than a step.
    toward = position[:, None] - state.targets
    moved = state.replace(
        step=step,
        position=position,
        velocity=velocity,
        rotation=rotation,
        shot_ready=torch.where(shoots, step + rules.shot_cooldown, state.shot_ready),
        targets=addcmul(state.targets, toward, state.speed / length(toward).clamp_min_(_TINY)),
        shots=add(state.shots, state.shot_velocity),
        bullets=add(state.bullets, state.bullet_velocity),
    )
    return moved, shoots


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
    away = torch.add(away, events.gone(state, rules), alpha=FAR)
    enemy, spawner = (radius + rules.shot_radius for radius in (rules.enemy_radius, rules.spawner_radius))
    reach2 = events.per_target(away, rules, enemy**2, spawner**2)
    return (reach2 - length2(away)).mul_(SURELY).clamp_(0, 1), away


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
    # Only as many shots count as kill the player, in the order in which they were fired.
    most, slots = _blows(healed, rules.shot_damage), len(hit)
    order = torch.where(hit, state.bullet_born * slots + rows_of(state.bullet_born), NEVER)
    last = pick(order.sort(0).values, spots((most - 1).clamp(0, slots - 1)))
    consumed = hit & (order <= last) & (most > 0)
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
        **events.emptied(state, consumed, state.bullet_ends),
        **closed_ranks(state, target_health, rules),
    }
    return Impact(changes, reward, cleared)


def _blows(health: Tensor, damage: float) -> Tensor:
    """Returns the number of blows that kill the player."""
    return (health / damage).ceil()


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


def closed_ranks(state: ArenaState, health: Tensor, rules: ArenaRules) -> dict[str, Tensor]:
    """Removes dead targets: enemies move up, spawners leave their slots empty."""
    enemies = rules.max_enemies
    fields = torch.cat((state.targets, torch.stack((health, state.speed, state.ready))))  # [5, T, n]
    empty = constant((FAR, FAR, 0.0, 0.0, NEVER), health)
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


class ArenaOutcome(NamedTuple):
    """The outcome of a step, ``[W]``."""

    reward: Tensor  # float64
    terminated: Tensor  # bool
    time_out: Tensor  # bool
    observation: Tensor  # [W, 32]


class ArenaKernels(NamedTuple):
    """The functions that run over all worlds in every step, eager or compiled.

    Attributes:
        move, closest, observe: parts of :func:`advance`.
        dense: :func:`advance_densely`.
        slots: number of slots for enemy shots added at a time.
    """

    move: Callable[..., Any]
    closest: Callable[..., Any]
    observe: Callable[..., Any]
    dense: Callable[..., Any]
    slots: int


def advance(
    state: ArenaState, action: Tensor, rules: ArenaRules, tables: ArenaTables, draws: ArenaDraws, kernels: ArenaKernels
) -> tuple[ArenaState, ArenaOutcome]:
    """Steps all worlds, with events only where they happen. It may write into the tensors of ``state``.

    Args:
        action: ``[W]`` int64.
    """
    enemies = rules.max_enemies
    state, shoots = kernels.move(state, action, rules, tables)
    _apply(state, _where(shoots), events.shoot, rules)

    # The shots of all enemies at once; a world occurs once for each of its enemies that fires.
    ready = _where(state.ready[:enemies].amin(0) <= state.step)
    if len(ready):
        part = state.part(ready)
        fires = (draws.fire(ready) < rules.fire_probability) & (part.ready[:enemies] <= part.step)
        enemy, place = fires.nonzero().unbind(1)
        if len(place):
            worlds, rank = ready[place], (fires.cumsum(0) - 1)[enemy, place]
            taken = (state.bullet_ends.index_select(1, worlds) < NEVER).sum(0)
            wanted = min(int((taken + rank).amax()) + 1, rules.enemy_shot_slots)
            if wanted > len(state.bullet_ends):
                state = state.with_bullet_slots(-(-wanted // kernels.slots) * kernels.slots)
            slot = events.free_slot(state.bullet_ends.index_select(1, worlds), rank)
            fits = slot < len(state.bullet_ends)
            if not bool(fits.all()):
                _apply(state, worlds[~fits], events.jam, enemy[~fits], rules)
                worlds, enemy, slot = worlds[fits], enemy[fits], slot[fits]
            _apply(state, worlds, events.fire, enemy, slot, rules)

    # The new enemies of all spawners at once, which are too far apart to block each other's.
    worlds = _where(events.waiting(state, rules))
    if len(worlds):
        part = state.part(worlds)
        due = part.ready[enemies:] <= part.step
        rank = due.cumsum(0)
        makes = due & (part.enemies + rank <= rules.enemy_cap)
        spawner, place = makes.nonzero().unbind(1)
        before, made = (rank - 1)[spawner, place], makes.sum(0)[place]
        units = draws.spawn(spawner, worlds[place])
        _apply(state, worlds[place], events.spawn, spawner, before, made, units, rules, tables)
    _apply(state, _where(state.bullet_ends.amin(0) <= state.step), events.vanish, rules)

    # The worlds where anything touches anything.
    nearest_enemy, nearest_bullet = kernels.closest(state, rules)
    touched = nearest_bullet < (rules.player_radius + rules.shot_radius) ** 2
    touched = touched | (nearest_enemy < (rules.player_radius + rules.enemy_radius) ** 2)
    worlds = _where(state.quiet <= state.step)
    if len(worlds):
        part = state.part(worlds)
        touch, away = touching(part, rules)
        steps = events.quiet_steps(away, part.shot_velocity, rules).amin(0)
        state.put(worlds, {"quiet": part.step + steps.clamp_min(1)})
        touched[worlds[_where(touch.flatten(0, 1).amax(0))]] = True

    reward = torch.full_like(state.returns, rules.step_reward)
    worlds = _where(touched)
    if len(worlds):
        part = state.part(worlds)
        touch, _ = touching(part, rules)
        impact = collide(part, touch, int(touch.amax(0).sum(0).amax()), rules, tables)
        state.put(worlds, impact.changes)
        reward.index_add_(0, worlds, impact.reward)
        begins = worlds[_where(impact.cleared & (impact.changes["phase"] < len(rules.phases)))]
        if len(begins):
            _apply(state, begins, events.set_up, draws.jitter(begins), rules, tables)
    return _conclude(state, reward, kernels.observe(state, rules, tables), rules)


def _apply(state: ArenaState, worlds: Tensor, event: Callable[..., Changes], *arguments: Any) -> None:
    if len(worlds):
        state.put(worlds, event(state.part(worlds), *arguments))


def _where(mask: Tensor) -> Tensor:
    return mask.nonzero().flatten()


def _conclude(
    state: ArenaState, reward: Tensor, observation: Tensor, rules: ArenaRules
) -> tuple[ArenaState, ArenaOutcome]:
    terminated = (state.health <= 0) | (state.phase >= len(rules.phases))
    late = state.step >= rules.max_steps
    return state.replace(returns=state.returns + reward), ArenaOutcome(reward, terminated, late, observation)


def advance_densely(
    state: ArenaState, action: Tensor, rules: ArenaRules, tables: ArenaTables, drawn: Drawn
) -> tuple[ArenaState, ArenaOutcome]:
    """The same step with all random numbers given, without a branch on data and without writing to ``state``.

    Enemy shots need all their slots from the beginning, see :attr:`ArenaRules.enemy_shot_slots`.
    """
    state, shoots = move(state, action, rules, tables, in_place=False)
    state = state.changed(shoots, events.shoot(state, rules, foresees=False))
    fires = (drawn.fire < rules.fire_probability) & (state.ready[: rules.max_enemies] <= state.step)
    state = state.replace(**events.volley(state, fires, rules))
    state = state.replace(**events.spawn_everywhere(state, drawn.spawn, rules, tables))
    state = state.replace(**events.vanish(state, rules))
    touch, _ = touching(state, rules)
    impact = collide(state, touch, rules.shot_slots, rules, tables)
    state = state.replace(**impact.changes, quiet=state.step)
    begins = impact.cleared & (state.phase < len(rules.phases))
    state = state.changed(begins, events.set_up(state, drawn.jitter, rules, tables))
    reward = impact.reward + rules.step_reward
    return _conclude(state, reward, observe(state, rules, tables), rules)


def trimmed(state: ArenaState, kernels: ArenaKernels) -> ArenaState:
    """The state without the last slots for enemy shots, if they are empty everywhere; they come back when needed."""
    taken = (state.bullet_ends.amin(1) < NEVER).nonzero().flatten()
    wanted = int(taken[-1]) // kernels.slots + 1 if len(taken) else 1
    return state.with_bullet_slots(min(wanted * kernels.slots, len(state.bullet_ends)))


# -- compiled --------------------------------------------------------------------------------------------------------


_OPTIONS: dict[str, Any] = {
    # One loop over the worlds that keeps what it computes in registers, instead of dozens that write and read it.
    "max_fusion_size": 1000,
    "realize_opcount_threshold": 100,
    "realize_reads_threshold": 16,
}
PLAIN = ArenaKernels(move, closest, observe, advance_densely, 4)
"""The eager functions."""


def compiled_kernels() -> ArenaKernels:
    """The kernels, compiled for the shapes they are first called with."""
    eager = PLAIN[:4]
    compiled = (Compiled(each, f"{each.__name__} of arena", dynamic=False, options=_OPTIONS) for each in eager)
    return ArenaKernels(*compiled, slots=24)  # more than are almost ever needed: another number is compiled anew
