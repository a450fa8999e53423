"""What only shows between two snapshots: who was hit, who is gone, whether the ship thrusts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .recording import Snapshot
from .rules import Rules

Array = NDArray[Any]
Kind = Literal["kill", "vanish", "birth", "destroyed", "spawner hit", "hurt", "heal", "death"]

DURATION: dict[Kind, int] = {
    "kill": 24,
    "vanish": 18,
    "birth": 14,
    "destroyed": 48,
    "spawner hit": 6,
    "hurt": 14,
    "heal": 30,
    "death": 75,
}
"""Steps for which an event is seen."""

_SLACK = 1.0  # px, for rounding
_THRUST = 0.05  # px per step: more than rounding, less than what thrust adds at full speed


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Attributes:
        step: when it was seen.
        at: where, px.
        slot: of the spawner it happened to.
    """

    kind: Kind
    step: int
    at: tuple[float, float]
    slot: int = -1


class Effects:
    """Keeps the events that are still seen; one object per episode and direction of time.

    Attributes:
        events: oldest first.
        thrusting: whether the ship has been pushed since the snapshot before.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._before: Snapshot | None = None
        self.events: list[Event] = []
        self.thrusting = False

    def watch(self, now: Snapshot, pause: int = 0) -> None:
        """Takes in the next snapshot, or the same once more. One of an earlier step belongs to a new episode.

        Args:
            pause: steps for which the game has stood still, after its end.
        """
        before, self._before = self._before, now
        if before is not None and now.step > before.step:
            self.events += happened(before, now, self._rules)
            self.thrusting = _pushed(before, now, self._rules)
        elif before is None or now.step < before.step:
            self.events, self.thrusting = [], False
        clock = now.step + pause
        self.events = [event for event in self.events if clock - event.step < DURATION[event.kind]]


def happened(before: Snapshot, now: Snapshot, rules: Rules) -> list[Event]:
    """The events between two snapshots of an episode."""
    found: list[Event] = []

    def add(kind: Kind, at: Array, slot: int = -1) -> None:
        found.append(Event(kind, now.step, (float(at[0]), float(at[1])), slot))

    next_phase = now.phase != before.phase
    set_up = next_phase and not now.won(rules)
    gone, fresh = _changed(before, now)
    for place in gone:
        add("vanish" if set_up else "kill", before.enemies[place])
    for place in fresh:
        add("birth", now.enemies[place])
    for slot in np.flatnonzero(before.spawner_health > 0):
        if set_up or now.spawner_health[slot] <= 0:
            add("destroyed", before.spawners[slot], int(slot))
        elif now.spawner_health[slot] < before.spawner_health[slot]:
            add("spawner hit", now.spawners[slot], int(slot))
    if now.health <= 0 < before.health:
        add("death", now.position)
    elif now.health != before.health:
        add("hurt" if now.health < before.health else "heal", now.position)
    return found


def _changed(before: Snapshot, now: Snapshot) -> tuple[list[int], list[int]]:
    """Places of the enemies that are gone in the one snapshot and new in the other: both keep the order of birth."""
    reach = before.enemy_speed * (now.step - before.step) + _SLACK
    gone, following = [], 0
    for place, position in enumerate(before.enemies):
        if following < len(now.enemies) and np.hypot(*(now.enemies[following] - position)) <= reach[place]:
            following += 1
        else:
            gone.append(place)
    return gone, list(range(following, len(now.enemies)))


def _pushed(before: Snapshot, now: Snapshot, rules: Rules) -> bool:
    """Whether the ship is faster along its nose than friction alone would have left it."""
    if rules.style != 1:
        return False
    coasting = before.velocity * rules.friction ** (now.step - before.step)
    nose = np.array([np.cos(now.rotation), np.sin(now.rotation)])
    return bool((now.velocity - coasting) @ nose > _THRUST)
