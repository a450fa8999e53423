"""Initial states of episodes (kick-offs, random states, balls in the air), and places of returning cars."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import rules
from .state import Cars, RocketState, new_ball, new_cars, new_state, replaced, team_signs, team_turns
from .vectors import constant, from_angles

_SINE, _COSINE = math.sin(rules.KICK_OFFS[-1][2]), math.cos(rules.KICK_OFFS[-1][2])
_AXES = (_COSINE, _SINE, 0.0, -_SINE, _COSINE, 0.0, 0.0, 0.0, 1.0)
_RETURNS = [(x, y, rules.RESPAWN_HEIGHT, *_AXES) for x, y in rules.RESPAWNS]
"""Position and rotation of returning cars, as blue sees them."""
_AIRBORNE = 0.4  # share of cars in the air in random states


@dataclass(frozen=True)
class RocketStarts:
    """Weights of the kinds of initial states, and the cars of a match.

    Attributes:
        blue, orange: number of cars of each team.
        kick_offs: weight of kick-offs: the ball rests in the middle, and teams mirror each other.
        random_states: weight of random states of all objects.
        aerials: weight of balls that fly 300 to 1500 uu high, with cars on the ground that face them.
        room: number of slots for cars of each team, if larger.

    Raises:
        ValueError: all weights are zero, or a team has no cars.
    """

    blue: int = 1
    orange: int = 1
    kick_offs: float = 1.0
    random_states: float = 0.0
    aerials: float = 0.0
    room: int = 0

    def __post_init__(self) -> None:
        for name in ("blue", "orange"):
            if not 1 <= getattr(self, name) <= 3:
                raise ValueError(f"{name}: {getattr(self, name)} cars, a team has 1 to 3")
        for name in ("kick_offs", "random_states", "aerials"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is negative, give a weight of at least 0")
        if self.kick_offs + self.random_states + self.aerials <= 0:
            raise ValueError("kick_offs, random_states, aerials: all weights are 0, one of them must be positive")

    @property
    def cars(self) -> int:
        """Number of cars: twice the larger team or its slots; cars beyond a team's size are absent."""
        return 2 * max(self.blue, self.orange, self.room)

    def ladder(self) -> list[tuple[int, int]]:
        """Returns the team sizes from one car each up to the full teams: 1v1, 1v2, 2v2, 2v3, 3v3."""
        steps = [(low, high) for low in (1, 2, 3) for high in (low, low + 1)]
        whole = (self.blue, self.orange)
        return [step for step in steps if step[0] <= whole[0] and step[1] <= whole[1] and step != whole] + [whole]

    def of_size(self, blue: int, orange: int) -> RocketStarts:
        """Returns the same weights with fewer cars and as many slots."""
        return replace(self, blue=blue, orange=orange, room=self.cars // 2)

    def draw(self, count: int, generator: torch.Generator, dtype: torch.dtype) -> RocketState:
        """Makes ``count`` initial states."""
        draws = _Draws(self.cars, count, generator, dtype)
        share = draws.uniform(1)[0, 0] * (self.kick_offs + self.random_states + self.aerials)
        states = (kick_off(draws), random_state(draws), aerial(draws))
        anywhere = (share >= self.kick_offs) & (share < self.kick_offs + self.random_states)
        flying = share >= self.kick_offs + self.random_states
        state = states[0]
        for where, other in zip((anywhere, flying), states[1:]):
            cars, ball = replaced(state.cars, other.cars, where), replaced(state.ball, other.ball, where)
            state = state.replace(cars=cars, ball=ball)
        # Absent cars are far apart, and never return.
        cars, half = state.cars, self.cars // 2
        places = torch.arange(self.cars, device=cars.boost.device)[:, None]
        absent = ((places >= self.blue) & (places < half)) | (places >= half + self.orange)
        aside = torch.stack((cars.position[0], cars.position[1], torch.full_like(cars.boost, -1000.0)))
        gone, position = torch.where(absent, math.inf, cars.gone), torch.where(absent, aside, cars.position)
        return state.replace(cars=cars.replace(gone=gone, position=position))


@dataclass(eq=False)
class _Draws:
    """Uniform random numbers for ``worlds`` worlds of ``cars`` cars."""

    cars: int
    worlds: int
    generator: torch.Generator
    dtype: torch.dtype

    def uniform(self, rows: int, low: float = 0.0, high: float = 1.0, cars: int = 1) -> Tensor:
        """Draws ``[rows, cars, W]``."""
        shape, device = (rows, cars, self.worlds), self.generator.device
        return torch.rand(shape, generator=self.generator, dtype=self.dtype, device=device) * (high - low) + low

    def per_car(self, rows: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Draws ``[rows, C, W]``."""
        return self.uniform(rows, low, high, self.cars)


def kick_off(draws: _Draws) -> RocketState:
    """Places teams at kick-offs drawn from five, orange opposite blue."""
    half = draws.cars // 2
    order = draws.uniform(len(rules.KICK_OFFS))[:, 0].argsort(0)[:half]  # [half, W]
    table = torch.tensor(rules.KICK_OFFS, dtype=draws.dtype, device=order.device)
    x, y, yaw = table[torch.cat((order, order))].unbind(-1)
    position, rotation = standing(x, y, yaw, rules.CAR_REST, team_signs(draws.cars, x))
    cars = _grounded(new_cars(position, rotation, torch.full_like(x, rules.BOOST_START)))
    middle = torch.zeros_like(x[:1]).expand(2, -1)
    return new_state(cars, new_ball(torch.cat((middle, torch.full_like(x[:1], rules.BALL_REST)))))


def _grounded(cars: Cars, share: Tensor | float = 1.0) -> Cars:
    """Sets the fields of cars that stand on their wheels, where ``share`` is 1."""
    return cars.replace(wheels=torch.ones_like(cars.wheels) * share)


def random_state(draws: _Draws) -> RocketState:
    """Places ball and cars at random, with random speeds; two cars in five are in the air."""
    x, y, yaw, forth = draws.per_car(4, -1.0, 1.0).unbind(0)
    height, pitch, roll, flies = draws.per_car(4).unbind(0)
    aloft = (flies < _AIRBORNE).to(x.dtype)
    z = rules.CAR_REST + aloft * (100.0 + 1200.0 * height)
    rotation = from_angles(math.pi * yaw, aloft * (pitch - 0.5) * math.pi, aloft * (roll - 0.5) * math.pi)
    cars = new_cars(torch.stack((3300 * x, 4300 * y, z)), rotation, draws.per_car(1, 0.0, 100.0)[0])
    drift = draws.per_car(3, -500.0, 500.0) * aloft
    velocity, spin = rotation[0] * (1000.0 * forth + 300.0) + drift, draws.per_car(3, -3.0, 3.0) * aloft
    cars = _grounded(cars, 1 - aloft).replace(velocity=velocity, spin=spin)
    place = draws.uniform(3, -1.0, 1.0)[:, 0]
    x, y, z = place[0] * 3500, place[1] * 4500, 800 + place[2] * 700
    velocity = draws.uniform(3, -1.0, 1.0)[:, 0] * 1500
    return new_state(cars, new_ball(torch.stack((x, y, z)), velocity, draws.uniform(3, -3.0, 3.0)[:, 0]))


def aerial(draws: _Draws) -> RocketState:
    """Places a ball in the air, and cars with full tanks on the ground that face it."""
    ball_x, ball_y, height = draws.uniform(3, -1.0, 1.0)[:, 0].unbind(0)
    ball = torch.stack((2500 * ball_x, 3000 * ball_y, 900 + 600 * height))
    drift = draws.uniform(3, -1.0, 1.0)[:, 0]
    velocity = torch.stack((300 * drift[0], 300 * drift[1], 300 + 250 * drift[2]))
    bearing, apart = draws.per_car(2).unbind(0)
    bearing, apart = 2 * math.pi * bearing, 800 + 1200 * apart
    x = (ball[0] + apart * bearing.cos()).clamp(-3500, 3500)
    y = (ball[1] + apart * bearing.sin()).clamp(-4500, 4500)
    yaw = torch.atan2(ball[1] - y, ball[0] - x)
    position, rotation = standing(x, y, yaw, rules.CAR_REST, torch.ones_like(x[:, :1]))
    cars = _grounded(new_cars(position, rotation, torch.full_like(x, rules.BOOST_MOST)))
    return new_state(cars, new_ball(ball, velocity))


def standing(x: Tensor, y: Tensor, yaw: Tensor, height: float, signs: Tensor) -> tuple[Tensor, Tensor]:
    """Returns position and rotation of upright cars ``[C, W]``, given in blue's view."""
    position = torch.stack((x * signs, y * signs, torch.full_like(x, height)))
    level = torch.zeros_like(x)
    rotation = from_angles(yaw, level, level)
    return position, torch.cat((rotation[:, :2] * signs, rotation[:, 2:]), 1)


def respawned(cars: Cars, clock: Tensor) -> Cars:
    """Returns cars with due ones (``gone`` of 1) placed according to the clock ``[W]``."""
    like = cars.boost
    count = len(like)
    table = constant([value for place in _RETURNS for value in place], like, 0).unflatten(0, (len(_RETURNS), -1))
    turn = constant([car % ((count + 1) // 2) for car in range(count)], like, 1, torch.int64)
    placed = table[(clock.long() + turn) % len(table)].movedim(-1, 0)
    placed = placed.unflatten(0, (4, 3)) * team_turns(count, like)
    return replaced(cars, new_cars(placed[0], placed[1:], torch.full_like(like, rules.BOOST_START)), cars.gone == 1)
