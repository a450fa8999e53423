"""One step of a batch of Arena worlds.

Movement is computed for all worlds. Rare events (a shot, a new enemy, a collision) are computed by :func:`advance` only
for the worlds in which they happen, which saves most of the work on a CPU. :func:`advance_densely` computes them for
all worlds under a mask without branching on data, for CUDA graphs and ``torch.compile`` of the whole step. Both lead to
the same worlds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..foundation.compilation import Compiled
from .collisions import collide, touching
from .events import (
    ArenaDraws,
    Drawn,
    draw_everywhere,
    fire,
    free_slot,
    jam,
    quiet_steps,
    set_up,
    shoot,
    spawn,
    spawn_everywhere,
    vanish,
    volley,
    waiting,
)
from .movement import move
from .observation import closest, observe
from .rules import NEVER, ArenaRules, ArenaTables
from .state import ArenaState, Changes


class ArenaOutcome(NamedTuple):
    """The outcome of a step, ``[W]``."""

    reward: Tensor  # float64
    terminated: Tensor  # bool
    time_out: Tensor  # bool
    observation: Tensor  # [W, 32]


class ArenaKernels(NamedTuple):
    """The functions that run over all worlds in every step, eager or compiled.

    Attributes:
        slots: number of slots for enemy shots added at a time.
        everywhere: see :func:`advance_densely`.
    """

    move: Callable[..., Any] = move
    closest: Callable[..., Any] = closest
    observe: Callable[..., Any] = observe
    slots: int = 4
    everywhere: Callable[..., Any] | None = None


def advance(
    state: ArenaState, action: Tensor, rules: ArenaRules, tables: ArenaTables, draws: ArenaDraws, kernels: ArenaKernels
) -> tuple[ArenaState, ArenaOutcome]:
    """Steps all worlds, with events only where they happen. It may write into the tensors of ``state``.

    Args:
        action: ``[W]`` int64.
    """
    state, shoots = kernels.move(state, action, rules, tables)
    _apply(state, _where(shoots), shoot, rules)
    state = _fire_all(state, rules, draws, kernels.slots)
    _spawn_all(state, rules, tables, draws)
    _apply(state, _where(state.bullet_ends.amin(0) <= state.step), vanish, rules)
    reward = torch.full_like(state.returns, rules.step_reward)
    worlds = _where(_touched(state, kernels.closest(state, rules), rules))
    if len(worlds):
        _collide_all(state, worlds, reward, rules, tables, draws)
    return _conclude(state, reward, kernels.observe(state, rules, tables), rules)


def _apply(state: ArenaState, worlds: Tensor, event: Callable[..., Changes], *arguments: Any) -> None:
    if len(worlds):
        state.put(worlds, event(state.part(worlds), *arguments))


def _where(mask: Tensor) -> Tensor:
    return mask.nonzero().flatten()


def _fire_all(state: ArenaState, rules: ArenaRules, draws: ArenaDraws, added: int) -> ArenaState:
    """Adds the shots of all enemies at once; a world occurs once for each of its enemies that fires."""
    enemies = rules.max_enemies
    ready = _where(state.ready[:enemies].amin(0) <= state.step)
    if not len(ready):
        return state
    part = state.part(ready)
    fires = (draws.fire(ready) < rules.fire_probability) & (part.ready[:enemies] <= part.step)
    enemy, place = fires.nonzero().unbind(1)
    if not len(place):
        return state
    worlds, rank = ready[place], (fires.cumsum(0) - 1)[enemy, place]
    taken = (state.bullet_ends.index_select(1, worlds) < NEVER).sum(0)
    wanted = min(int((taken + rank).amax()) + 1, rules.enemy_shot_slots)
    if wanted > len(state.bullet_ends):
        state = state.with_bullet_slots(-(-wanted // added) * added)
    slot = free_slot(state.bullet_ends.index_select(1, worlds), rank)
    fits = slot < len(state.bullet_ends)
    if not bool(fits.all()):
        _apply(state, worlds[~fits], jam, enemy[~fits], rules)
        worlds, enemy, slot = worlds[fits], enemy[fits], slot[fits]
    _apply(state, worlds, fire, enemy, slot, rules)
    return state


def _spawn_all(state: ArenaState, rules: ArenaRules, tables: ArenaTables, draws: ArenaDraws) -> None:
    """Adds the new enemies of all spawners at once, which are too far apart to block each other's."""
    worlds = _where(waiting(state, rules))
    if not len(worlds):
        return
    part = state.part(worlds)
    due = part.ready[rules.max_enemies :] <= part.step
    rank = due.cumsum(0)
    makes = due & (part.enemies + rank <= rules.enemy_cap)
    spawner, place = makes.nonzero().unbind(1)
    before, made = (rank - 1)[spawner, place], makes.sum(0)[place]
    units = draws.spawn(spawner, worlds[place])
    _apply(state, worlds[place], spawn, spawner, before, made, units, rules, tables)


def _touched(state: ArenaState, closest: tuple[Tensor, Tensor], rules: ArenaRules) -> Tensor:
    """Worlds ``[W]`` bool where anything touches anything."""
    enemy, bullet = closest
    touched = bullet < (rules.player_radius + rules.shot_radius) ** 2
    touched = touched | (enemy < (rules.player_radius + rules.enemy_radius) ** 2)
    worlds = _where(state.quiet <= state.step)
    if len(worlds):
        part = state.part(worlds)
        touch, away = touching(part, rules)
        steps = quiet_steps(away, part.shot_velocity, rules).amin(0)
        state.put(worlds, {"quiet": part.step + steps.clamp_min(1)})
        touched[worlds[_where(touch.flatten(0, 1).amax(0))]] = True
    return touched


def _collide_all(
    state: ArenaState, worlds: Tensor, reward: Tensor, rules: ArenaRules, tables: ArenaTables, draws: ArenaDraws
) -> None:
    part = state.part(worlds)
    touch, _ = touching(part, rules)
    impact = collide(part, touch, int(touch.amax(0).sum(0).amax()), rules, tables)
    state.put(worlds, impact.changes)
    reward.index_add_(0, worlds, impact.reward)
    begins = worlds[_where(impact.cleared & (impact.changes["phase"] < len(rules.phases)))]
    if len(begins):
        _apply(state, begins, set_up, draws.jitter(begins), rules, tables)


def _conclude(
    state: ArenaState, reward: Tensor, observation: Tensor, rules: ArenaRules
) -> tuple[ArenaState, ArenaOutcome]:
    terminated = (state.health <= 0) | (state.phase >= len(rules.phases))
    late = state.step >= rules.max_steps
    return state.replace(returns=state.returns + reward), ArenaOutcome(reward, terminated, late, observation)


def advance_densely(
    state: ArenaState,
    action: Tensor,
    rules: ArenaRules,
    tables: ArenaTables,
    draws: ArenaDraws,
    everywhere: Callable[..., tuple[ArenaState, ArenaOutcome]] | None = None,
) -> tuple[ArenaState, ArenaOutcome]:
    """The same step without a branch on data and without writing to ``state``.

    Enemy shots need all their slots from the beginning, see :attr:`ArenaRules.enemy_shot_slots`.

    Args:
        everywhere: :func:`step_everywhere`, eager (None) or compiled.
    """
    return (everywhere or step_everywhere)(state, action, draw_everywhere(state, draws, rules), rules, tables)


def step_everywhere(
    state: ArenaState, action: Tensor, drawn: Drawn, rules: ArenaRules, tables: ArenaTables
) -> tuple[ArenaState, ArenaOutcome]:
    """Computes :func:`advance_densely` with given random numbers, as one graph."""
    state, shoots = move(state, action, rules, tables, in_place=False)
    state = state.changed(shoots, shoot(state, rules, foresees=False))
    fires = (drawn.fire < rules.fire_probability) & (state.ready[: rules.max_enemies] <= state.step)
    state = state.replace(**volley(state, fires, rules))
    state = state.replace(**spawn_everywhere(state, drawn.spawn, rules, tables))
    state = state.replace(**vanish(state, rules))
    touch, _ = touching(state, rules)
    impact = collide(state, touch, rules.shot_slots, rules, tables)
    state = state.replace(**impact.changes, quiet=state.step)
    begins = impact.cleared & (state.phase < len(rules.phases))
    state = state.changed(begins, set_up(state, drawn.jitter, rules, tables))
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
_SLOTS = 24  # more than are almost ever needed at once: another number of slots is compiled anew


def compiled_kernels() -> ArenaKernels:
    """The kernels, compiled for the shapes they are first called with."""
    return ArenaKernels(_compiled(move), _compiled(closest), _compiled(observe), _SLOTS, _compiled(step_everywhere))


def _compiled(function: Callable[..., Any]) -> Compiled:
    return Compiled(function, f"{function.__name__} of arena", dynamic=False, options=_OPTIONS)
