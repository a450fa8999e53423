"""Where cars begin: kick-offs, and the places to which demolished cars return."""

from __future__ import annotations

import torch
from torch import Tensor

from . import rules
from .state import Cars, new_cars
from .vectors import constant, from_angles


def team_signs(cars: int, like: Tensor) -> Tensor:
    """``[C, 1]``: 1 for blue, the first half of the cars, -1 for orange, whose world is turned by pi."""
    blue = (cars + 1) // 2
    signs = [1.0] * blue + [-1.0] * (cars - blue)
    return constant(signs, like, dims=1)


def standing(x: Tensor, y: Tensor, yaw: Tensor, height: float, signs: Tensor) -> tuple[Tensor, Tensor]:
    """Position and rotation of upright cars ``[C, W]``, given as blue would stand."""
    position = torch.stack((x * signs, y * signs, torch.full_like(x, height)))
    level = torch.zeros_like(x)
    rotation = from_angles(yaw, level, level)
    return position, torch.cat((rotation[:, :2] * signs, rotation[:, 2:]), 1)


def respawned(cars: Cars, clock: Tensor) -> Cars:
    """Cars with those that wait no longer (``gone`` of 1) at a place that depends on the clock ``[W]``."""
    like = cars.boost
    count = len(like)
    table = torch.stack([constant([place[axis] for place in rules.RESPAWNS], like, dims=0) for axis in (0, 1)], 1)
    turn = torch.arange(count, device=like.device) % ((count + 1) // 2)
    x, y = table[(clock.long() + turn[:, None]) % len(table)].unbind(-1)
    yaw = torch.full_like(like, rules.KICK_OFFS[-1][2])
    position, rotation = standing(x, y, yaw, rules.RESPAWN_HEIGHT, team_signs(count, like))
    fresh = new_cars(position, rotation, torch.full_like(like, rules.BOOST_START))
    return replaced(cars, fresh, cars.gone == 1)


def replaced(cars: Cars, fresh: Cars, where: Tensor) -> Cars:
    """Cars with those of ``where [C, W]`` bool taken from others."""
    return cars.replace(**{name: torch.where(where, getattr(fresh, name), old) for name, old in cars.own})
