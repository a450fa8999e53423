"""A worker process with RocketSim, which computes the ticks of its worlds without torch.

A world's state is a row of numbers that the processes share; names and units are those of
:class:`rlstack.envs.rocket.state.RocketState` and :class:`rlstack.envs.rocket.simulation.Events`.
"""

from __future__ import annotations

import importlib
import math
from itertools import accumulate
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...foundation.processes import Shared, serve
from .. import rules

_FLAGS = {
    **{"has_jumped": "jumped", "has_double_jumped": "double_jumped", "has_flipped": "flipped"},
    **{"is_flipping": "flipping", "is_jumping": "jumping", "is_supersonic": "supersonic"},
    "has_world_contact": "touching",
}
_TIMES = {
    **{"boosting_time": "boosting", "jump_time": "jump_ticks", "flip_time": "flip_ticks"},
    **{"air_time_since_jump": "air_ticks", "supersonic_time": "supersonic_ticks"},
}
"""Names of a car's flags and times in the simulator and here."""
CAR = {
    **{"position": 3, "velocity": 3, "spin": 3, "rotation": 9, "wheels": 4, "flip_axis": 2},
    **dict.fromkeys(("boost", "handbrake", "held", "gone", *_FLAGS.values(), *_TIMES.values()), 1),
}
"""Entries of a car and their sizes, without those that only the ticks of the torch world need."""
BALL = ("position", "velocity", "spin")
EVENTS = (
    *("touches", "power", "bumps", "demolishes", "demolished"),
    *("big_pads", "small_pads", "boost_gained", "boost_used"),
)


def sizes(cars: int) -> tuple[int, ...]:
    """Returns the numbers of each part of a world's row: cars, ball, pads, clock and goal, events."""
    return cars * sum(CAR.values()), 3 * len(BALL), len(rules.PADS), 2, cars * len(EVENTS)


class SharedArrays(NamedTuple):
    """The arrays that the processes share.

    Attributes:
        rows: float32 ``[W, width]``: states, before a step of restarted worlds, after it of all.
        controls: float32 ``[W, C, 8]``: throttle, steer, pitch, yaw, roll, jump, boost, handbrake.
        fresh: uint8 ``[W]``: 1: the world restarts from its row.
    """

    rows: NDArray[np.float32]
    controls: NDArray[np.float32]
    fresh: NDArray[np.uint8]


_SECOND = rules.TICKS_PER_SECOND
_REACH = 210.0  # distance beyond which a car and a ball do not touch
_BURNT = rules.BOOST_USE * rules.DT  # per tick
_TOUCHES, _POWER, _BUMPS, _DEMOLISHES, _DEMOLISHED, _BIG, _SMALL, _GAINED, _USED = range(len(EVENTS))
_ENDS = list(accumulate(CAR.values()))
_WIDTH = _ENDS[-1]
_PLACES = {name: slice(end - size, end) for (name, size), end in zip(CAR.items(), _ENDS)}
_PAD_ROWS = {place: row for row, place in enumerate(rules.PADS)}
_WHEELS = (1, 0, 3, 2)  # right before left


class StepLog:
    """The events of a step by seat of the car, recorded by the simulator's callbacks."""

    def __init__(self, seats: int) -> None:
        self.seats: dict[int, int] = {}  # by the simulator's own number of the car
        self.goal = 0.0
        self.begin([0.0] * seats, [False] * seats, 0)

    def begin(self, boost: list[float], burns: list[bool], tick: int) -> None:
        """Begins a step.

        Args:
            boost: boost in the tanks.
            burns: whether boost is pressed.
            tick: tick of the simulator.
        """
        self.boost, self._burns, self._tick = boost, burns, tick
        self.touching: set[int] = set()
        self.picked: list[tuple[int, int]] = []  # pad, ticks of the step until then
        self.counts = [[0.0] * len(EVENTS) for _ in boost]

    def touch(self, car: Any, **_: Any) -> None:
        """Records that a car touches the ball."""
        self.touching.add(self.seats[car.id])

    def bump(self, bumper: Any, victim: Any, is_demo: bool, **_: Any) -> None:
        """Records that a car bumps or demolishes another."""
        attacker = self.counts[self.seats[bumper.id]]
        attacker[_BUMPS] += 1
        attacker[_DEMOLISHES] += is_demo
        self.counts[self.seats[victim.id]][_DEMOLISHED] += is_demo

    def pick_up(self, arena: Any, car: Any, boost_pad: Any, **_: Any) -> None:
        """Records when the tank was filled; the simulator does not report the amount."""
        seat, pad = self.seats[car.id], _row_of(boost_pad)
        ticks, big = arena.tick_count - self._tick + 1, rules.PADS[pad] in rules.BIG_PADS
        self.picked.append((pad, ticks))
        counts = self.counts[seat]
        counts[_BIG if big else _SMALL] += 1
        gained = rules.BIG_BOOST if big else rules.SMALL_BOOST
        if car.get_state().boost >= rules.BOOST_MOST:
            used = ticks * _BURNT if self._burns[seat] else 0.0
            gained = rules.BOOST_MOST - max(self.boost[seat] + counts[_GAINED] - used, 0.0)
        counts[_GAINED] += gained

    def score(self, arena: Any, data: Any, **team: int) -> None:
        """Records a goal; called in every tick with the ball behind the line, of which the first counts."""
        (side,) = team.values()  # the key differs between versions
        self.goal = self.goal or (1.0 if side == 0 else -1.0)


class RocketSimMatch:
    """A match of up to ``seats`` cars, the first half of them blue.

    Args:
        simulator: the module ``RocketSim`` with its meshes loaded.
    """

    def __init__(self, simulator: Any, seats: int) -> None:
        self._rs, self._seats, self._blue = simulator, seats, (seats + 1) // 2
        # Hardly slower than the heavy mode, which starts in seven times the time and needs four times the memory.
        memory = simulator.MemoryWeightMode.LIGHT
        self._arena = simulator.Arena(simulator.GameMode.SOCCAR, memory_weight_mode=memory)
        self._pads = {_row_of(pad): pad for pad in self._arena.get_boost_pads()}
        self._log = StepLog(seats)  # has no reference to the arena, so that both can be freed
        self._arena.set_ball_touch_callback(self._log.touch)
        self._arena.set_car_bump_callback(self._log.bump)
        self._arena.set_boost_pickup_callback(self._log.pick_up)
        self._arena.set_goal_score_callback(self._log.score)
        self._cars: dict[int, Any] = {}  # by seat
        self._states: dict[int, Any] = {}
        self._waiting = np.zeros(len(rules.PADS), np.float32)
        self._clock = 0.0

    # -- begin ---------------------------------------------------------------------------------------------------

    def place(self, row: NDArray[np.float32]) -> None:
        """Begins from a row."""
        rs = self._rs
        cars, places, pads, clock, _ = np.split(row, np.cumsum(sizes(self._seats))[:-1])
        cars = cars.reshape(self._seats, -1)
        # New cars, since the controls of an old car's wheels would persist.
        for car in self._cars.values():
            self._arena.remove_car(car)
        present = [seat for seat in range(self._seats) if not math.isinf(cars[seat][_PLACES["gone"]][0])]
        teams = {seat: rs.Team.BLUE if seat < self._blue else rs.Team.ORANGE for seat in present}
        self._cars = {seat: self._arena.add_car(team, rs.CarConfig.OCTANE) for seat, team in teams.items()}
        self._log.seats = {car.id: seat for seat, car in self._cars.items()}
        for seat, car in self._cars.items():
            state = rs.CarState()
            value = {name: cars[seat][place].tolist() for name, place in _PLACES.items()}
            state.pos, state.vel, state.ang_vel = (rs.Vec(*value[name]) for name in ("position", "velocity", "spin"))
            axes = value["rotation"]
            state.rot_mat = rs.RotMat(*(rs.Vec(*axes[first : first + 3]) for first in (0, 3, 6)))
            state.boost, state.handbrake_val = value["boost"][0], value["handbrake"][0]
            for theirs, ours in _FLAGS.items():
                setattr(state, theirs, bool(value[ours][0]))
            for theirs, ours in _TIMES.items():
                setattr(state, theirs, value[ours][0] / _SECOND)
            state.wheels_with_contact = tuple(bool(value["wheels"][wheel]) for wheel in _WHEELS)
            state.is_on_ground = sum(value["wheels"]) >= 3
            state.flip_rel_torque = rs.Vec(*value["flip_axis"], 0.0)
            state.last_controls = rs.CarControls(jump=bool(value["held"][0]))
            gone = value["gone"][0]
            state.is_demoed, state.demo_respawn_timer = gone > 0, max(gone - 1, 0.0) / _SECOND
            car.set_state(state)
        ball, numbers = rs.BallState(), places.tolist()
        ball.pos, ball.vel, ball.ang_vel = (rs.Vec(*numbers[first : first + 3]) for first in (0, 3, 6))
        self._arena.ball.set_state(ball)
        self._waiting[:] = pads
        for place, pad in self._pads.items():
            state, ticks = pad.get_state(), float(pads[place])
            state.is_active, state.cooldown, state.prev_locked_car_id = ticks <= 0, ticks / _SECOND, 0
            pad.set_state(state)
        self._clock, self._log.goal = clock.tolist()
        self._look()

    # -- step ----------------------------------------------------------------------------------------------------

    def play(self, controls: NDArray[np.float32], ticks: int) -> None:
        """Makes ticks with the same controls ``[C, 8]``."""
        wanted, boost = controls.tolist(), [0.0] * self._seats
        for seat, car in self._cars.items():
            *axes, jump, boosts, handbrake = wanted[seat]
            pressed = {"jump": jump > 0, "boost": boosts > 0, "handbrake": handbrake > 0}
            car.set_controls(self._rs.CarControls(*axes, **pressed))
            boost[seat] = self._states[seat].boost
        self._log.begin(boost, [chosen[6] > 0 for chosen in wanted], self._arena.tick_count)
        # All ticks can be made at once if no car can reach the ball or return.
        x, y, z = self._ball.pos.as_tuple()
        speed = sum(map(abs, self._ball.vel.as_tuple())) + rules.CAR_TOP_SPEED
        reach, stretch = (_REACH + speed * ticks * rules.DT) ** 2, ticks
        for state in self._states.values():
            east, north, up = state.pos.as_tuple()
            if (x - east) ** 2 + (y - north) ** 2 + (z - up) ** 2 < reach or state.is_demoed:
                stretch = 1
        for _ in range(ticks // stretch):
            self._advance(stretch)
        np.maximum(self._waiting - ticks, 0.0, out=self._waiting)
        for pad, before in self._log.picked:
            whole = rules.BIG_TICKS if rules.PADS[pad] in rules.BIG_PADS else rules.SMALL_TICKS
            self._waiting[pad] = max(whole - (ticks - before), 0)
        self._look()

    def _advance(self, ticks: int) -> None:
        log = self._log
        before = self._arena.ball.get_state().vel
        away = [seat for seat, state in self._states.items() if state.is_demoed]
        self._arena.step(ticks)
        self._clock += ticks
        if log.touching:
            after = self._arena.ball.get_state().vel
            power = sum((new - old) ** 2 for new, old in zip(after.as_tuple(), before.as_tuple())) ** 0.5
            for seat in log.touching:
                log.counts[seat][_TOUCHES] += 1
                log.counts[seat][_POWER] += power
            log.touching.clear()
        for seat in away:
            self._states[seat] = self._cars[seat].get_state()
            if not self._states[seat].is_demoed:
                self._return(seat)

    def _return(self, seat: int) -> None:
        """Puts a returning car at the torch world's place instead of the simulator's random one."""
        rs, side = self._rs, 1.0 if seat < self._blue else -1.0
        x, y = rules.RESPAWNS[(int(self._clock) + seat % self._blue) % len(rules.RESPAWNS)]
        state = self._cars[seat].get_state()
        state.pos = rs.Vec(side * x, side * y, rules.RESPAWN_HEIGHT)
        state.rot_mat = rs.Angle(side * rules.KICK_OFFS[-1][2], 0.0, 0.0).as_rot_mat()
        self._cars[seat].set_state(state)
        self._log.boost[seat] = state.boost

    def _look(self) -> None:
        self._states = {seat: car.get_state() for seat, car in self._cars.items()}
        self._ball = self._arena.ball.get_state()

    # -- results -------------------------------------------------------------------------------------------------

    def write(self, row: NDArray[np.float32]) -> None:
        """Writes the state and the events of the step into a row; absent cars do not change."""
        log, ball = self._log, self._ball
        numbers: list[float] = []
        for seat in range(self._seats):
            state = self._states.get(seat)
            if state is None:
                numbers += row[seat * _WIDTH : (seat + 1) * _WIDTH].tolist()
                continue
            numbers += _numbers(state)
            counts = log.counts[seat]
            counts[_USED] = max(log.boost[seat] + counts[_GAINED] - state.boost, 0.0)
        numbers += (*ball.pos.as_tuple(), *ball.vel.as_tuple(), *ball.ang_vel.as_tuple())
        numbers += self._waiting.tolist()
        numbers += (self._clock, log.goal)
        row[:] = numbers + [number for counts in log.counts for number in counts]


def _numbers(state: Any) -> list[float]:
    """Returns a car in the order of :data:`~rlstack.envs.rocket.rocketsim.worker.CAR`."""
    here = not state.is_demoed  # a demolished car does not move
    forward, right, up = state.rot_mat.as_tuple()
    wheels = state.wheels_with_contact
    return [
        *state.pos.as_tuple(),
        *(state.vel.as_tuple() if here else (0.0, 0.0, 0.0)),
        *(state.ang_vel.as_tuple() if here else (0.0, 0.0, 0.0)),
        *forward,
        *right,
        *up,
        *(wheels[wheel] for wheel in _WHEELS),
        *state.flip_rel_torque.as_tuple()[:2],
        state.boost,
        state.handbrake_val,
        state.last_controls.jump,
        0 if here else round(state.demo_respawn_timer * _SECOND) + 1,
        *(getattr(state, name) for name in _FLAGS),
        *(round(getattr(state, name) * _SECOND) for name in _TIMES),
    ]


def _row_of(pad: Any) -> int:
    """Returns the index of a pad in :data:`rlstack.envs.rocket.rules.PADS`."""
    x, y, _ = pad.get_pos().as_tuple()
    return _PAD_ROWS[x, y]


class RocketSimMatches:
    """The matches of one worker.

    Args:
        rows: its rows of the arrays.
        cars: number of cars of a world.
        ticks: number of ticks of a step.
        meshes: folder of the field's meshes.
        arrays: parts of :class:`SharedArrays`.
    """

    def __init__(self, rows: range, cars: int, ticks: int, meshes: str, arrays: tuple[Shared, ...]) -> None:
        simulator = importlib.import_module("RocketSim")
        simulator.init(meshes)  # all matches of a process have the same field
        self._arrays, self._ticks = SharedArrays(*(part.array() for part in arrays)), ticks
        self._arenas = {row: RocketSimMatch(simulator, cars) for row in rows}

    def step(self, _: bytes) -> None:
        """Makes a step of all matches, the only request; matches marked as fresh begin before it."""
        fresh = self._arrays.fresh.tolist()
        for row, arena in self._arenas.items():
            if fresh[row]:
                arena.place(self._arrays.rows[row])
                self._arrays.fresh[row] = 0
            arena.play(self._arrays.controls[row], self._ticks)
            arena.write(self._arrays.rows[row])


def work(connection: Connection, *share: Any) -> None:
    """Runs a worker with the arguments of :class:`RocketSimMatches`."""
    serve(connection, lambda: RocketSimMatches(*share), RocketSimMatches.step)
