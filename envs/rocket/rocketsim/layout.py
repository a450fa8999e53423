"""How a world's state lies in a row of numbers, which processes share: cars, ball, pads, clock, and what happened.

Names and units are those of :class:`envs.rocket.state.RocketState` and :class:`envs.rocket.simulation.Events`; nothing
here needs more than NumPy.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import rules

CAR = {
    **{"position": 3, "velocity": 3, "spin": 3, "rotation": 9, "wheels": 4, "flip_axis": 2},
    **dict.fromkeys(
        ("boost", "boosting", "handbrake", "held", "touching", "supersonic", "supersonic_ticks", "gone"), 1
    ),
    **dict.fromkeys(("jumping", "jumped", "jump_ticks", "double_jumped", "flipped", "flipping", "flip_ticks"), 1),
    "air_ticks": 1,
}
"""Entries of a car and how many numbers each has. What only the torch world's own ticks need is not among them."""
BALL = ("position", "velocity", "spin")
EVENTS = (
    *("touches", "power", "bumps", "demolishes", "demolished"),
    *("big_pads", "small_pads", "boost_gained", "boost_used"),
)
CONTROLS = 8
"""Throttle, steer, pitch, yaw, roll, jump, boost, handbrake."""


class World(NamedTuple):
    """Views into rows ``[..., width]`` of as many worlds.

    Attributes:
        cars: ``[..., C, numbers of a car]``.
        ball: ``[..., 9]``.
        pads: ``[..., 34]``.
        clock: ``[..., 2]`` clock and goal.
        events: ``[..., C, 9]``.
    """

    cars: Any
    ball: Any
    pads: Any
    clock: Any
    events: Any


def sizes(cars: int) -> tuple[int, ...]:
    """How many numbers each part of :class:`World` has."""
    return cars * sum(CAR.values()), 3 * len(BALL), len(rules.PADS), 2, cars * len(EVENTS)


def parts(rows: NDArray[np.float32], cars: int) -> World:
    """The parts of rows as views."""
    car, ball, pads, clock, events = np.split(rows, np.cumsum(sizes(cars))[:-1], axis=-1)
    each = (*rows.shape[:-1], cars, -1)
    return World(car.reshape(each), ball, pads, clock, events.reshape(each))


class Arrays(NamedTuple):
    """What the processes share.

    Attributes:
        rows: float32 ``[W, width]``: states, before a step those of worlds that begin anew, after it those of all.
        controls: float32 ``[W, C, 8]``.
        fresh: uint8 ``[W]``: 1: begins anew from its row.
    """

    rows: NDArray[np.float32]
    controls: NDArray[np.float32]
    fresh: NDArray[np.uint8]

    @classmethod
    def zeros(cls, worlds: int, cars: int) -> Arrays:
        """Those of so many worlds."""
        width = sum(sizes(cars))
        return cls(
            np.zeros((worlds, width), np.float32),
            np.zeros((worlds, cars, CONTROLS), np.float32),
            np.zeros(worlds, np.uint8),
        )


def is_absent(gone: float) -> bool:
    """Whether a team lacks this car."""
    return math.isinf(gone)
