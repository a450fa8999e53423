"""The state of a batch of Rocket worlds: plain tensors whose last dimension is the world."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..states import Fields, Record
from . import rules
from .vectors import constant


@dataclass
class Cars(Record):
    """``C`` cars, first blue's, then orange's. Flags are 0 or 1 and ticks integers, both in floating point."""

    position: Tensor  # [3, C, W]
    velocity: Tensor  # [3, C, W]
    spin: Tensor  # [3, C, W] rad/s, world axes
    rotation: Tensor  # [3, 3, C, W] axis (forward, right, up), component
    boost: Tensor  # [C, W] 0 to 100
    boosting: Tensor  # [C, W] ticks for which boost has been on
    handbrake: Tensor  # [C, W] 0 to 1
    # of the wheels, set in the last tick and used in this one
    engine: Tensor  # [C, W] uu/s^2 per wheel
    brake: Tensor  # [C, W]
    steering: Tensor  # [C, W] angle of the front wheels, + to the right
    side_grip: Tensor  # [4, C, W]
    long_grip: Tensor  # [4, C, W]
    wheels: Tensor  # [4, C, W] flag: on the ground
    # jumps and flips
    held: Tensor  # [C, W] flag: jump was pressed in the last tick
    jumping: Tensor  # [C, W] flag
    jumped: Tensor  # [C, W] flag
    jump_ticks: Tensor  # [C, W] since the jump began
    double_jumped: Tensor  # [C, W] flag
    flipped: Tensor  # [C, W] flag
    flipping: Tensor  # [C, W] flag
    flip_ticks: Tensor  # [C, W] since the flip began
    flip_axis: Tensor  # [2, C, W] share of the torque about forward and right
    air_ticks: Tensor  # [C, W] since the jump ended
    auto_flip: Tensor  # [C, W] ticks left, including the one in which it ends
    auto_side: Tensor  # [C, W] -1, 1
    # contacts
    touching: Tensor  # [C, W] flag: the body touched the field in the last tick
    touch_normal: Tensor  # [3, C, W] there
    extra_hit: Tensor  # [C, W] flag: the ball got the extra speed of a hit in the last tick
    supersonic: Tensor  # [C, W] flag
    supersonic_ticks: Tensor  # [C, W]
    bump_wait: Tensor  # [C, W] ticks until it can bump again
    bumped: Tensor  # [C, W] the car it bumped last, -1: none
    gone: Tensor  # [C, W] ticks until a demolished car is back
    age: Tensor  # [C, W] ticks since it was placed


@dataclass
class Ball(Record):
    """One per world."""

    position: Tensor  # [3, W]
    velocity: Tensor  # [3, W]
    spin: Tensor  # [3, W]


@dataclass
class RocketState(Record):
    """The state that a tick reads and writes."""

    records = {"cars": Cars, "ball": Ball}
    cars: Cars
    ball: Ball
    pads: Tensor  # [34, W] ticks until a pad is back, 0: available
    clock: Tensor  # [W] ticks since the kick-off
    goal: Tensor  # [W] 1: blue has scored, -1: orange has, 0: none yet


_CARS = [field.name for field in fields(Cars)]
_LEADS = {"velocity": (3,), "spin": (3,), "wheels": (4,), "side_grip": (4,), "long_grip": (4,), "flip_axis": (2,)}


def new_cars(position: Tensor, rotation: Tensor, boost: Tensor) -> Cars:
    """Makes cars at rest, whose entries share memory.

    Args:
        position: ``[3, C, W]``.
        rotation: ``[3, 3, C, W]``.
        boost: ``[C, W]``.
    """

    none = torch.zeros_like(boost)
    special = {
        "position": position,
        "rotation": rotation,
        "boost": boost,
        "bumped": none - 1,
        "touch_normal": torch.stack((none, none, none + 1)),
    }
    return Cars(**{name: special.get(name, none.expand(*_LEADS.get(name, ()), *none.shape)) for name in _CARS})


def new_state(cars: Cars, ball: Ball) -> RocketState:
    """Makes a state at the beginning of an episode, with all pads available."""
    worlds = ball.position.shape[-1]
    zeros = ball.position.new_zeros
    return RocketState(cars, ball, zeros(len(rules.PADS), worlds), zeros(worlds), zeros(worlds))


def new_ball(position: Tensor, velocity: Tensor | None = None, spin: Tensor | None = None) -> Ball:
    """Makes a ball ``[3, W]``, at rest by default."""
    still = torch.zeros_like(position)
    return Ball(position, still if velocity is None else velocity, still if spin is None else spin)


def team_signs(cars: int, like: Tensor) -> Tensor:
    """Returns ``[C, 1]``: 1 for blue, the first half of the cars, -1 for orange, whose world is turned by pi."""
    return constant(_team_signs(cars), like, dims=1)


def _team_signs(cars: int) -> list[float]:
    blue = (cars + 1) // 2
    return [1.0] * blue + [-1.0] * (cars - blue)


def team_turns(cars: int, like: Tensor) -> Tensor:
    """Returns ``[3, C, 1]``: factors that turn a vector by pi about the vertical for orange."""
    signs = _team_signs(cars)
    return constant([*signs, *signs, *[1.0] * cars], like, dims=1).unflatten(0, (3, cars))


def replaced(record: Fields, fresh: Fields, where: Tensor) -> Fields:
    """Replaces a record's tensors by another's ``where`` (bool, broadcastable against the last dimensions).

    All are chosen at once, since a GPU starts a kernel for every operation; the new ones are parts of one tensor.
    """

    def rows(one: Fields) -> list[Tensor]:
        return [value.reshape(-1, *value.shape[value.dim() - where.dim() :]) for _, value in one.own]

    old = rows(record)
    parts = torch.where(where, torch.cat(rows(fresh)), torch.cat(old)).split([len(row) for row in old])
    return record.replace(**{name: part.view(value.shape) for (name, value), part in zip(record.own, parts)})
