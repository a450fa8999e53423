"""Events of a match and paths of projectiles, found by repeating its sub-steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import rules
from .match import PLAIN as KERNELS
from .match import EchelonMatch, EchelonOptions, conclude, sub_steps, with_rival
from .rewards import TERMS
from .rules import SLOTS, SUB_STEPS, TEAMS
from .sensors import look
from .simulation import EVENTS, PLAIN, Tally
from .state import State
from .tables import Tables

Array = NDArray[Any]


WEAPONS = ("missile", "gauss", "autocannon", "smoke")
"""Weapons with projectiles."""
TYPES = (
    *("laser_hit", "flamer_hit", "missile_launch", "kinetic_fire", "projectile_hit", "explosion", "smoke_launch"),
    *("smoke_cloud", "paint", "assist", "ams_intercept", "kill", "knock_down", "legged", "shutdown"),
)
"""Types of events."""


def mech_id(team: int, slot: int) -> str:
    """Returns the id of a mech, such as ``red_3``."""
    return f"{TEAMS[team]}_{slot}"


@dataclass(frozen=True)
class Event:
    """An event of a match.

    Attributes:
        tick: sub-steps of 0.05 s since the start.
        type: one of :data:`TYPES`.
        details: ids such as ``blue_0``, places (x, y, z) and amounts; see :mod:`rlstack.envs.echelon.replay`.
    """

    tick: int
    type: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Flight:
    """The path of a projectile from its launch to its end.

    Attributes:
        weapon: one of :data:`WEAPONS`.
        owner, target: ids; the target is None for an unaimed shot.
        ticks: ``[k]`` int32, sub-steps since the start, ascending.
        places: ``[k, 3]`` float32.
    """

    number: int
    weapon: str
    owner: str
    target: str | None
    ticks: Array
    places: Array

    def move(self, tick: int, place: Array) -> None:
        """Adds a place."""
        self.ticks = np.append(self.ticks, np.int32(tick))
        self.places = np.append(self.places, np.float32(place)[None], 0)


# -- repeated sub-steps --------------------------------------------------------------------------------------------


class SubSteps(NamedTuple):
    """N sub-steps of one match in order; ``was_`` marks values before the sub-step."""

    tick: Array  # [N] sub-steps since the start, 1 for the first
    was_position: Array  # [N, 3, 2, n]
    was_hp: Array  # [N, 2, n]
    was_shots: Array  # [N, 8, 2, S]
    hp: Array  # [N, 2, n]
    shots: Array  # [N, 8, 2, S]
    clocks: Array  # [N, 2, CLOCKS, n]
    painter: Array  # [N, 2, n]
    shells: Array  # [N, 7, 2, n]
    was_shells: Array
    credited: Array  # [N, 2, n, n], see Tally
    counted: Array  # [N, 8, 2, n]
    fired: Array  # [N, 2, P, 13]


def unfold(states: State, orders: Tensor, tables: Tables, options: EchelonOptions) -> SubSteps:
    """Repeats all sub-steps between the states of a match.

    Since the states before them are known, decisions are independent and run side by side, as worlds.

    Args:
        states: states of one match at T >= 2 times, as a batch of T worlds.
        orders: ``[teams, 10, n, T]``; those of column t led to state t.
    """
    steps = states.steps.round().long()
    length = steps.diff()  # number of decisions between two states, more than one in some replays of repeated actions
    parts: list[tuple[Array, SubSteps]] = []
    plain = PLAIN._replace(vent_blocks_fire=options.vent_blocks_fire)
    here, given = states.map(lambda value: value[..., :-1]), orders[..., 1:]
    for done in range(int(length.max())):
        left = (length > done).nonzero()[:, 0]
        started = here.map(lambda value, left=left: value.index_select(-1, left))  # type: ignore[misc]
        both = with_rival(started, given.index_select(-1, left), tables, options, KERNELS)
        now, tallies = started, list[Tally]()
        for sub, (after, tally) in enumerate(sub_steps(started, both, tables, plain), 1):
            ticks = started.steps.round().long() * SUB_STEPS + sub
            parts.append((ticks.cpu().numpy(), _arrays(ticks, now, after, tally)))
            now = after
            tallies.append(tally)
        if int(length.max()) > done + 1:  # the state from which the next decision begins
            none = torch.zeros_like(now.hp)
            terms, events = (none.new_zeros(len(names), *none.shape) for names in (TERMS, EVENTS))
            match = EchelonMatch(started, terms, events, none, torch.zeros_like(now.steps))
            seen, plainly = look(now, tables, False), replace(options, partial=False, actions="box")
            concluded = conclude(match, started, seen, Tally.summed(tallies), tables, plainly)[0].state
            pairs = zip(here.items(), concluded.items())
            here = State(**{name: value.index_copy(-1, left, new) for (name, value), (_, new) in pairs})
    order = np.argsort(np.concatenate([ticks for ticks, _ in parts]), kind="stable")
    return SubSteps(*(np.concatenate(rows)[order] for rows in zip(*(steps for _, steps in parts))))


def _arrays(ticks: Tensor, before: State, after: State, tally: Tally) -> SubSteps:
    rows = (
        *(ticks, before.position, before.hp, before.shots, after.hp, after.shots, after.clocks, after.painter),
        *(after.shells, before.shells, tally.credited, tally.counted, tally.fired),
    )
    return SubSteps(*(row.movedim(-1, 0).cpu().numpy() for row in rows))


# -- events and flights --------------------------------------------------------------------------------------------


_LAUNCHERS = (0, 0, 1, 2, 2, 2, 3, 3, 3)  # of a pack's shots: missile, gauss, two autocannons
_FIRST = (True, False, True, True, False, False, True, False, False)
_NEAR = 1.0e-3


class EventFinder:
    """Finds events and flights in the sub-steps of a match.

    Args:
        steps: all sub-steps.
        ground: heights ``[side, side]``, row y.

    Attributes:
        events: events in order.
        flights: flights in the order of their launch.
    """

    def __init__(self, steps: SubSteps, ground: Array) -> None:
        self._ground = ground
        self.events: list[Event] = []
        self._mechs = steps.hp.shape[2]
        slots = np.arange(self._mechs) % SLOTS
        self._lift = np.array([rules.PACK[slot].height for slot in slots]) / 2
        self._reach = np.array([max(rules.PACK[slot].width, rules.PACK[slot].height) for slot in slots]) / 2
        self._shots: dict[tuple[int, int], Flight] = {}
        self._shells: dict[tuple[int, int], Flight] = {}
        self.flights: list[Flight] = []
        for step in range(len(steps.tick)):
            self._now = SubSteps(*(rows[step] for rows in steps))
            self._tick = int(steps.tick[step])
            now = self._now
            if (now.was_shots[6] > 0).any():
                self._fly()
            if now.fired.any():
                self._fire()
            if (now.was_shells[6] > 0).any() or (now.shells[6] > 0).any():
                self._smoke()
            if now.counted.any() or ((now.was_hp > 0) & (now.hp <= 0)).any():
                self._suffer()

    def _tell(self, kind: str, **details: Any) -> None:
        self.events.append(Event(self._tick, kind, details))

    def _centre(self, team: int, slot: int) -> Array:
        place: Array = self._now.was_position[:, team, slot].astype(float)
        place[2] += self._lift[slot]
        return place

    def _nearest(self, team: int, slot: int, foes: list[int]) -> int:
        own = self._centre(team, slot)
        return min(foes, key=lambda foe: float(np.linalg.norm(self._centre(1 - team, foe) - own)))

    # -- shots in the air ----------------------------------------------------------------------------------------

    def _fly(self) -> None:
        now = self._now
        moved: dict[tuple[int, int], Flight] = {}
        for team, place in np.argwhere(now.was_shots[6] > 0).tolist():
            flight = self._shots.pop((team, place), None)
            if flight is None:  # launched before the recording began
                continue
            pack, local = divmod(place, rules.SHOTS)
            shifted = now.fired[team, pack, rules.LAUNCHERS][_LAUNCHERS[local]] > 0
            goes_on = not shifted or (local + 1 < rules.SHOTS and not _FIRST[local + 1])
            after = now.shots[:, team, place + int(shifted)] if goes_on else now.was_shots[:, team, place]
            start = now.was_shots[:3, team, place].astype(float)
            end = after[:3].astype(float)
            if goes_on and after[6] > 0:
                flight.move(self._tick, end)
                moved[team, place + int(shifted)] = flight
            else:
                self._end(flight, team, start, end, pack * SLOTS + rules.SHOT_OWNERS[local])
        self._shots.update(moved)

    def _end(self, flight: Flight, team: int, start: Array, end: Array, owner: int) -> None:
        """Ends a flight: intercepted, in an enemy, in the ground, or at the end of its range."""
        if flight.weapon == "missile":
            for slot in np.flatnonzero(self._now.counted[7, 1 - team] > 0).tolist():
                if np.linalg.norm(self._centre(1 - team, slot) - start) <= rules.AMS_RANGE + _NEAR:
                    flight.move(self._tick, start)
                    mech, pos = mech_id(1 - team, slot), _place(start)
                    self._tell("ams_intercept", mech=mech, projectile=flight.number, pos=pos)
                    return
        blocked, way = self._blocked(start, end), end - start
        victim: int | None = None  # the first enemy whose sphere the path meets, and where
        share = np.inf
        for slot in range(self._mechs):
            if self._now.was_hp[1 - team, slot] > 0:
                to = self._centre(1 - team, slot) - start
                nearest = float(np.clip(to @ way / max(float(way @ way), 1.0e-9), 0, 1))
                near = np.linalg.norm(to - nearest * way) <= self._reach[slot] + _NEAR
                if near and nearest <= blocked and nearest < share:
                    victim, share = slot, nearest
        in_ground = victim is None and blocked <= 1
        at = start + (share if victim is not None else blocked - 0.5 if in_ground else 1.0) * (end - start)
        flight.move(self._tick, at)
        named = {"projectile": flight.number, "weapon": flight.weapon, "shooter": flight.owner}
        if victim is not None:
            taken = float(self._now.credited[team, owner, victim])
            target = mech_id(1 - team, victim)
            self._tell("projectile_hit", **named, target=target, damage=_number(taken), pos=_place(at))
        radius = {"missile": rules.MISSILE_SPLASH, "gauss": rules.GAUSS_SPLASH}.get(flight.weapon)
        if radius is not None and (victim is not None or in_ground):
            self._tell("explosion", **named, radius=radius, pos=_place(at))

    def _blocked(self, start: Array, end: Array) -> float:
        """Returns the share of the path, a half or 1, at which it meets the ground; 2 if it is free."""
        side = len(self._ground)
        for share in (0.5, 1.0):
            x, y, z = start + share * (end - start)
            if not (0 <= x <= side and 0 <= y <= side) or z < 0:
                return share
            if self._ground[min(int(y), side - 1), min(int(x), side - 1)] > z:
                return share
        return 2.0

    # -- weapons -------------------------------------------------------------------------------------------------

    def _fire(self) -> None:
        now = self._now
        for team, pack, mount in np.argwhere(now.fired > 0).tolist():
            slot = rules.MOUNTS[mount].slot + pack * SLOTS
            if mount >= rules.PAINTERS.start:
                # The enemy that this mech, or simultaneously one in a higher slot, has painted.
                fresh = (now.clocks[1 - team, rules.PAINTED] == rules.PAINTED_TICKS) & (now.was_hp[1 - team] > 0)
                painted = np.flatnonzero(fresh & (now.painter[1 - team] >= slot)).tolist()
                own = [foe for foe in painted if int(now.painter[1 - team, foe]) == slot] or painted
                if own:
                    target = mech_id(1 - team, self._nearest(team, slot, own))
                    self._tell("paint", shooter=mech_id(team, slot), target=target)
            elif mount >= rules.LAUNCHERS.start:
                self._launch(team, slot, pack, mount - rules.LAUNCHERS.start)
            elif hurt := np.flatnonzero(now.credited[team, slot] > 0).tolist():
                # The nearest enemy that the shooter damaged, since shells may have hit others.
                foe = self._nearest(team, slot, hurt)
                names = {"shooter": mech_id(team, slot), "target": mech_id(1 - team, foe)}
                damage = _number(float(now.credited[team, slot, foe]))
                ends = {"start": _place(self._centre(team, slot)), "pos": _place(self._centre(1 - team, foe))}
                kind = "flamer_hit" if mount == rules.HITSCAN.stop - 1 else "laser_hit"
                self._tell(kind, **names, damage=damage, **ends)

    def _launch(self, team: int, slot: int, pack: int, launcher: int) -> None:
        now, place = self._now, pack * rules.SHOTS + _LAUNCHERS.index(launcher)
        shot = now.shots[:, team, place]
        weapon = ("missile", "gauss", "autocannon", "autocannon")[launcher]
        # An unaimed shot goes straight ahead, with slot 0 as its target; only missiles always have one.
        foe, aimed = int(shot[7]), weapon == "missile"
        if not aimed and now.was_hp[1 - team, foe] > 0:
            to = self._centre(1 - team, foe) - self._centre(team, slot)
            aimed = bool(np.cos(np.arctan2(to[1], to[0]) - np.arctan2(shot[4], shot[3])) > 1 - 1e-5)
        target = mech_id(1 - team, foe) if aimed else None
        flight = self._begin(weapon, mech_id(team, slot), target, shot[:3])
        self._shots[team, place] = flight
        kind = "missile_launch" if weapon == "missile" else "kinetic_fire"
        self._tell(kind, shooter=flight.owner, target=target, weapon=weapon, projectile=flight.number, pos=_place(shot))

    def _smoke(self) -> None:
        now = self._now
        for team, slot in np.argwhere((now.was_shells[6] > 0) | (now.shells[6] > 0)).tolist():
            flight = self._shells.get((team, slot))
            left, place = float(now.shells[6, team, slot]), now.shells[:3, team, slot]
            ended = now.was_shells[6, team, slot] > 0 and (left <= 0 or left != now.was_shells[6, team, slot] - 1)
            if ended and flight is not None:
                flight.move(self._tick, now.was_shells[:3, team, slot])
                self._shells.pop((team, slot))
                at = _place(now.was_shells[:3, team, slot])
                self._tell("smoke_cloud", shooter=flight.owner, radius=rules.SMOKE_RADIUS, pos=at)
            elif left > 0 and flight is not None:
                flight.move(self._tick, place)
            if left == rules.SHELL_TICKS:
                owner = mech_id(team, slot)
                flight = self._shells[team, slot] = self._begin("smoke", owner, None, place)
                self._tell("smoke_launch", shooter=owner, projectile=flight.number, pos=_place(place))

    def _begin(self, weapon: str, owner: str, target: str | None, place: Array) -> Flight:
        ticks, places = np.array([self._tick], np.int32), np.array([place[:3]], np.float32)
        flight = Flight(len(self.flights), weapon, owner, target, ticks, places)
        self.flights.append(flight)
        return flight

    # -- damage --------------------------------------------------------------------------------------------------

    def _suffer(self) -> None:
        now = self._now
        dies = (now.was_hp > 0) & (now.hp <= 0)
        for team, slot in np.argwhere(dies).tolist():
            taken = now.credited[1 - team, :, slot]
            killer = mech_id(1 - team, int(taken.argmax())) if taken.max() > 0 else None
            self._tell("kill", shooter=killer, target=mech_id(team, slot), pos=_place(self._centre(team, slot)))
        for team, slot in np.argwhere(now.counted[1] > 0).tolist():
            victims = [foe for foe in np.flatnonzero(dies[1 - team]).tolist() if now.painter[1 - team, foe] == slot]
            target = mech_id(1 - team, victims[0]) if victims else None
            self._tell("assist", shooter=mech_id(team, slot), target=target)
        for row, kind in ((3, "legged"), (5, "knock_down"), (6, "shutdown")):
            for team, slot in np.argwhere(now.counted[row] > 0).tolist():
                self._tell(kind, mech=mech_id(team, slot))


def _place(values: Array) -> tuple[float, float, float]:
    x, y, z = (_number(float(value)) for value in values[:3])
    return x, y, z


def _number(value: float) -> float:
    """Rounds to a thousandth, for numbers that are only shown."""
    return round(value, 3)
