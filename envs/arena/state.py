"""The state of a batch of Arena worlds: plain tensors whose last dimension is the world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ..record import Record
from ..waiting import put_where
from .rows import At, pick, placed, spots
from .rules import FAR, NEVER, ArenaRules

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
        rotation=torch.zeros(worlds, dtype=torch.float64, device=device),
        health=full(rules.max_health),
        shot_ready=full(0.0),
        targets=full(FAR, 2, targets),
        target_health=full(0.0, targets),
        speed=full(0.0, targets),
        ready=full(NEVER, targets),
        period=full(NEVER, spawners),
        enemies=full(0.0),
        shots=full(FAR, 2, shots),
        shot_velocity=full(0.0, 2, shots),
        shot_ends=full(0.0, shots),
        fired=full(0.0),
        bullets=full(FAR, 2, bullet_slots),
        bullet_velocity=full(0.0, 2, bullet_slots),
        bullet_born=full(0.0, bullet_slots),
        bullet_ends=full(NEVER, bullet_slots),
        overflow=full(0.0),
        quiet=full(0.0),
        step=full(0.0),
        phase=full(0.0),
        phase_start=full(0.0),
        returns=torch.zeros(worlds, dtype=torch.float64, device=device),
        kills=full(0.0),
        spawner_kills=full(0.0),
        first_kill=full(-1.0),
        damage_dealt=full(0.0),
        damage_taken=full(0.0),
    )


@dataclass(frozen=True)
class ArenaStart:
    """Worlds that have just begun."""

    state: ArenaState
    observation: Tensor  # [n, .]
    statistics: Tensor  # [., n]

    def __len__(self) -> int:
        return len(self.observation)

    def saved(self) -> dict[str, Any]:
        """Nested dict of tensors."""
        return {"state": dict(self.state.items()), "shown": [self.observation, self.statistics]}

    @classmethod
    def restored(cls, saved: dict[str, Any], device: torch.device) -> ArenaStart:
        """The inverse of :meth:`saved`."""
        state = ArenaState(**{name: value.to(device) for name, value in saved["state"].items()})
        return cls(state, *(value.to(device) for value in saved["shown"]))
