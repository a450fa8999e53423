"""The state of a batch of Arena worlds: plain tensors whose last dimension is the world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..foundation.tensors import constant, counting, looks_are_free, put_where
from ..states import Record
from .rules import FAR, NEVER, ArenaRules


class At(NamedTuple):
    """New values ``[..., n]`` for one place of each column; see :func:`spots`."""

    spots: Tensor
    values: Tensor


Changes = Mapping[str, "Tensor | float | Sequence[At]"]
"""New values of fields, one for all of a field, or of single places in them."""

_BULLETS = {"bullets": FAR, "bullet_velocity": 0.0, "bullet_born": 0.0, "bullet_ends": NEVER}
"""The values of an empty slot for enemy shots."""


@dataclass
class ArenaState(Record):
    """``E`` enemy slots, ``S`` spawner slots, ``T = E + S`` targets, ``N`` and ``K`` slots for shots, ``W`` worlds.

    Enemies fill their slots from the first on, in the order in which they were made; spawners keep theirs for a phase.
    Absent targets have health 0 and the coordinate ``FAR``, which empty slots for enemy shots have, too. Times are
    steps of the episode: ``ready`` is when an enemy may fire or a spawner may make an enemy, ``shot_ends`` when a shot
    vanishes unless it has left the arena, ``bullet_ends`` when one may vanish. Counts, times and flags (0 or 1) are
    floating-point numbers, which torch processes many times faster than booleans.
    """

    position: Tensor  # [2, W] the player, px
    velocity: Tensor  # [2, W] px per step
    rotation: Tensor  # [W] float64: it is summed up over turns
    health: Tensor  # [W]
    shot_ready: Tensor  # [W]
    targets: Tensor  # [2, T, W] enemies, then spawners
    target_health: Tensor  # [T, W]
    speed: Tensor  # [T, W] px per step, 0 for spawners
    ready: Tensor  # [T, W]
    period: Tensor  # [S, W] steps between two enemies
    enemies: Tensor  # [W] alive
    shots: Tensor  # [2, N, W] the player's; the k-th shot of an episode is in slot k mod N
    shot_velocity: Tensor  # [2, N, W]
    shot_ends: Tensor  # [N, W]
    fired: Tensor  # [W] shots so far
    bullets: Tensor  # [2, K, W] the enemies' shots, each in the first slot that was free
    bullet_velocity: Tensor  # [2, K, W]
    bullet_born: Tensor  # [K, W]
    bullet_ends: Tensor  # [K, W] NEVER where empty
    overflow: Tensor  # [W] enemy shots that found no slot
    quiet: Tensor  # [W] step before which none of the player's shots can hit anything
    step: Tensor  # [W]
    phase: Tensor  # [W] 0 to 4, 5 when won
    phase_start: Tensor  # [W]
    returns: Tensor  # [W] float64 sum of rewards
    kills: Tensor  # [W] enemies destroyed
    spawner_kills: Tensor  # [W]
    first_kill: Tensor  # [W] step of the first spawner kill, -1 before it
    damage_dealt: Tensor  # [W] health that targets lost to the player's shots
    damage_taken: Tensor  # [W] health that the player lost

    # -- some worlds ---------------------------------------------------------------------------------------------

    def part(self, worlds: Tensor) -> ArenaState:
        """Returns the worlds of an index tensor, with possible repetitions; fields are copied when they are read."""
        return cast(ArenaState, _SomeWorlds(self, worlds))

    def spots(self, row: Tensor) -> Tensor:
        """Returns places ``[W]`` of row ``row [W]`` of every world in a field of rows, for :meth:`pick` and changes."""
        return spots(row)

    def pick(self, name: str, where: Tensor) -> Tensor:
        """Returns a field's values ``[..., W]`` at :meth:`spots`."""
        return pick(getattr(self, name), where)

    def put(self, worlds: Tensor, changes: Changes) -> None:
        """Overwrites fields of the worlds of an index tensor, in place."""
        for name, change in changes.items():
            field = getattr(self, name)
            if isinstance(change, Tensor):
                field.index_copy_(-1, worlds, change)
                continue
            if isinstance(change, float):
                field.index_fill_(-1, worlds, change)
                continue
            flat = field.view(*field.shape[:-2], -1)
            for where, values in change:
                flat.index_copy_(-1, where, values)

    def changed(self, happens: Tensor, changes: Changes) -> ArenaState:
        """A new state with the changes in the worlds ``happens [W]``, bool."""
        new = {}
        for name, change in changes.items():
            field = getattr(self, name)
            if isinstance(change, Tensor):
                new[name] = torch.where(happens, change, field)
                continue
            if isinstance(change, float):
                new[name] = field.masked_fill(happens, change)
                continue
            for where, values in change:
                field = placed(field, where, torch.where(happens, values, pick(field, where)))
            new[name] = field
        return self.replace(**new)

    def restart(self, worlds: Tensor, fresh: ArenaState, places: slice) -> None:
        """Overwrites the worlds of an index tensor, in place, with those of another state at these places."""
        for name, value in self.items():
            if name in _BULLETS:  # of which the other state may have room for more, or for fewer
                value.index_fill_(-1, worlds, _BULLETS[name])
            else:
                value.index_copy_(-1, worlds, getattr(fresh, name)[..., places])

    def restart_where(self, ended: Tensor, fresh: ArenaState, places: Tensor) -> None:
        """Overwrites worlds ``[W]`` bool, in place, with those of another state at some places ``[W]``."""
        others = {name: value for name, value in self.items() if name not in _BULLETS}
        put_where(ended, others.items(), ((name, getattr(fresh, name)) for name in others), places)
        for name, empty in _BULLETS.items():
            getattr(self, name).masked_fill_(ended, empty)

    # -- slots ---------------------------------------------------------------------------------------------------

    def with_bullet_slots(self, count: int) -> ArenaState:
        """The same with ``count`` slots for enemy shots; slots taken away must be empty."""
        extra = count - self.bullet_ends.shape[0]
        if extra == 0:
            return self
        changed = {}
        for name, empty in _BULLETS.items():
            old = getattr(self, name)
            if extra > 0:
                changed[name] = torch.cat((old, old.new_full((*old.shape[:-2], extra, old.shape[-1]), empty)), -2)
            else:
                changed[name] = old[..., :count, :].clone()
        return self.replace(**changed)


class _SomeWorlds:
    """Some worlds of a state; a field is gathered when it is first read."""

    def __init__(self, state: ArenaState, worlds: Tensor) -> None:
        self._state, self._worlds = state, worlds

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._state, name).index_select(-1, self._worlds)
        self.__dict__[name] = value
        return value

    def spots(self, row: Tensor) -> Tensor:
        return spots(row, self._worlds, len(self._state.step))

    def pick(self, name: str, where: Tensor) -> Tensor:
        return pick(getattr(self._state, name), where)


_ZERO = (
    *("shot_ready", "enemies", "fired", "overflow", "quiet", "step", "phase", "phase_start", "kills", "spawner_kills"),
    *("damage_dealt", "damage_taken"),
)
"""Numbers that are zero in the beginning."""


def blank_state(
    rules: ArenaRules, bullet_slots: int, worlds: int, dtype: torch.dtype, device: torch.device | str
) -> ArenaState:
    """Worlds with a player at the start and nobody else, before the first phase is set up."""

    def full(value: float, *shape: int) -> Tensor:
        return torch.full((*shape, worlds), value, dtype=dtype, device=device)

    spawners, shots = rules.num_spawners, rules.shot_slots
    targets = rules.max_enemies + spawners
    return ArenaState(
        position=torch.tensor(rules.start, dtype=dtype, device=device)[:, None].repeat(1, worlds),
        velocity=full(0.0, 2),
        **{name: torch.zeros(worlds, dtype=torch.float64, device=device) for name in ("rotation", "returns")},
        health=full(rules.max_health),
        first_kill=full(-1.0),
        **{name: full(0.0) for name in _ZERO},
        targets=full(FAR, 2, targets),
        target_health=full(0.0, targets),
        speed=full(0.0, targets),
        ready=full(NEVER, targets),
        period=full(NEVER, spawners),
        shots=full(FAR, 2, shots),
        shot_velocity=full(0.0, 2, shots),
        shot_ends=full(0.0, shots),
        bullets=full(FAR, 2, bullet_slots),
        bullet_velocity=full(0.0, 2, bullet_slots),
        bullet_born=full(0.0, bullet_slots),
        bullet_ends=full(NEVER, bullet_slots),
    )


# -- places ``[2, ...]`` in px -------------------------------------------------------------------------------------


def length(vector: Tensor) -> Tensor:
    """Returns the Euclidean length of ``[2, ...]``."""
    return length2(vector).sqrt()


def length2(vector: Tensor) -> Tensor:
    """Returns the squared length of ``[2, ...]``."""
    x, y = vector.unbind(0)
    return torch.addcmul(x * x, y, y)


def kept_inside(position: Tensor, radius: float, rules: ArenaRules) -> Tensor:
    """Returns the nearest places ``[2, ...]`` at which circles are inside the arena."""
    most = constant((rules.width - radius, rules.height - radius), position[0])
    return position.clamp_min(radius).minimum(most)


def outside(position: Tensor, rules: ArenaRules) -> Tensor:
    """Returns whether centres ``[2, ...]`` are outside the arena."""
    x, y = position != kept_inside(position, 0.0, rules)
    return x | y


# -- rows of columns: the first or nearest slot of each world ------------------------------------------------------


# Rows and flags are floating-point numbers until they serve as indices, since reductions that return indices, and
# booleans, are ten times slower on a CPU.

_STEEP = 1.0e20  # multiplied with the smallest difference of two squared distances exceeds any number of rows

_FARTHEST = 1.0e18  # a squared distance beyond all others


def rows_of(values: Tensor) -> Tensor:
    """Returns 0 to R - 1 as ``[R, 1]`` for ``[R, n]``."""
    return counting(values.shape[0], values.dtype, values.device)[:, None]


def first_row(flags: Tensor) -> Tensor:
    """Returns the first row ``[n]`` of ``[R, n]`` with a flag of 1; R if there is none."""
    count = flags.shape[0]
    return torch.sub(rows_of(flags) + count, flags, alpha=count).amin(0).clamp_max(count)


def flagged(flags: Tensor, rank: Tensor) -> Tensor:
    """Returns the row ``[Q, n]`` int64 of the flag of rank ``[Q, n]``, 0 for a column's first, in ``[R, n]`` bool.

    A rank without a flag gets any row.
    """
    return flags.sort(dim=0, descending=True, stable=True).indices.gather(0, rank.clamp(0, len(flags) - 1))


def nearest(distance2: Tensor, values: Tensor) -> Tensor:
    """Returns the values ``[C, n]`` of ``[C, R, n]`` in the row with the least squared distance ``[R, n]``."""
    if torch.compiler.is_compiling() or not looks_are_free(values.device):
        return two_nearest(distance2, values)[0]
    return pick(values, spots(_nearest_row(distance2)))


def two_nearest(distance2: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the values ``[C, n]`` of ``[C, R, n]`` in the two rows with the least squared distances ``[R, n]``.

    The nearest comes first; of equally near ones, the first row.
    """
    if torch.compiler.is_compiling():  # row by row, which is vectorised over worlds, as indexing cannot be
        near, far = distance2[0], torch.full_like(distance2[0], _FARTHEST)
        one = two = list(values[:, 0].unbind(0))
        for row in range(1, len(distance2)):
            here, value = distance2[row], values[:, row].unbind(0)
            nearer, near_enough = here < near, here < far
            two = [torch.where(nearer, a, torch.where(near_enough, new, b)) for a, b, new in zip(one, two, value)]
            one = [torch.where(nearer, new, a) for a, new in zip(one, value)]
            near, far = torch.minimum(here, near), torch.where(nearer, near, torch.minimum(here, far))
        return torch.stack(one), torch.stack(two)
    if not looks_are_free(values.device):  # a GPU sorts in one operation
        order = distance2.sort(dim=0, stable=True).indices[:2]
        first, second = values.gather(1, order.expand(len(values), 2, -1)).unbind(1)
        return first, second
    first = _nearest_row(distance2)
    second = _nearest_row(distance2.scatter(0, first.long()[None], _FARTHEST))
    columns = counting(len(first), torch.int64, first.device)
    return pick(values, spots(first, columns)), pick(values, spots(second, columns))


def _nearest_row(distance2: Tensor) -> Tensor:
    return rows_of(distance2).add(distance2 - distance2.amin(0), alpha=_STEEP).amin(0)


def spots(row: Tensor, columns: Tensor | None = None, width: int | None = None) -> Tensor:
    """Returns places ``[n]`` int64 in a flattened ``[R, width]``: ``row [n]`` of columns ``[n]`` (None: all)."""
    if columns is None:
        columns = counting(len(row), torch.int64, row.device)
    return torch.add(columns, row.long(), alpha=len(row) if width is None else width)


def pick(values: Tensor, where: Tensor) -> Tensor:
    """Returns the values ``[..., n]`` at ``spots`` of ``[..., R, n]``."""
    return values.flatten(-2).index_select(-1, where)


def placed(values: Tensor, where: Tensor, new: Tensor) -> Tensor:
    """Returns ``[..., R, n]`` with new values ``[..., n]`` at ``spots``."""
    flat = values.flatten(-2)
    return flat.index_copy(-1, where, new).view(values.shape)
