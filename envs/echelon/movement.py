"""Turning, walking, jumping and falling; mechs push each other apart and walls stop them."""

from __future__ import annotations

import torch
from torch import Tensor

from . import rules
from .rules import DT, FORWARD, JET, STRAFE, YAW
from .state import State
from .tables import Tables
from .terrain import cell, look_up


def move(state: State, orders: Tensor, tables: Tables, wet: Tensor) -> State:
    """A sub-step of motion. + strafe goes to the left, as (-sin, cos) of the yaw.

    Args:
        orders: ``[2, 10, n, W]``.
        wet: ``[2, n, W]`` bool: wades through water.
    """
    alive, fallen = state.alive, state.fallen
    able = alive & ~fallen & (state.heat <= tables.heat_cap)
    legged = state.legs <= 0
    yaw = state.yaw + torch.where(able, orders[:, YAW] * (tables.yaw_rate * DT), 0.0)
    stays = fallen | ~alive
    planar = torch.where(able, _wish(orders, yaw, tables, wet, legged), state.velocity[:2])
    planar = torch.where(stays, 0.0, planar)
    lift = torch.where(able, orders[:, JET].clamp_min(0.0) * tables.jet, 0.0)
    lift = torch.where(legged, lift * rules.LEGGED_JET, lift)
    climb = state.velocity[2] + (lift - rules.GRAVITY) * DT
    climb = torch.where(alive, climb, 0.0)
    planar, climb = planar * rules.DAMPING, climb * rules.DAMPING
    shift = planar * DT + _push(state, tables, alive)
    return _walk(state.replace(yaw=yaw), tables, shift, planar, climb)


def _wish(orders: Tensor, yaw: Tensor, tables: Tables, wet: Tensor, legged: Tensor) -> Tensor:
    """The velocity that is steered for, ``[2 (x, y), 2, n, W]``."""
    forward, strafe = orders[:, FORWARD], orders[:, STRAFE]
    speed = tables.speed / (forward.square() + strafe.square()).sqrt().clamp_min(1.0)
    speed = torch.where(wet, speed * rules.WATER_SPEED, speed)
    speed = torch.where(legged, speed * rules.LEGGED_SPEED, speed)
    cos, sin = yaw.cos(), yaw.sin()
    return torch.stack(((forward * cos - strafe * sin) * speed, (forward * sin + strafe * cos) * speed))


def _push(state: State, tables: Tables, alive: Tensor) -> Tensor:
    """Half of the overlap with everyone else, away from them, ``[2 (x, y), 2, n, W]``."""
    x, y, z = state.position.flatten(1, 2).unbind(0)
    wide, high = (torch.cat((values, values)) for values in (tables.width / 2, tables.height / 2))
    wide = torch.where(alive.flatten(0, 1), wide, -tables.side)  # the dead touch nobody
    middle = z + high
    dx, dy = x[:, None] - x, y[:, None] - y
    apart = torch.addcmul(dx * dx, dy, dy).sqrt()
    overlap = (wide[:, None] + wide - apart).clamp_min(0.0)
    beside = (middle[:, None] - middle).abs() < high[:, None] + high
    amount = overlap / apart.clamp_min(1.0e-6) * beside
    pushed = torch.stack(((dx * amount).sum(1), (dy * amount).sum(1))) / 2
    return pushed.unflatten(1, (2, tables.mechs))


def _walk(state: State, tables: Tables, shift: Tensor, planar: Tensor, climb: Tensor) -> State:
    """Moves along x, then y, then z, each where the ground allows."""
    x, y, z = state.position.unbind(0)
    margin = tables.width / 2
    base = state.base + tables.floor_base
    limit = z + torch.where(state.velocity[2].abs() < rules.STEP_CALM, rules.STEP_UP, 0.0)
    to_x = torch.minimum((x + shift[0]).maximum(margin), tables.side - margin)
    high = look_up(tables.maps.floors, cell(to_x, y, base, tables.side), z)
    free_x = high <= limit
    x, ground = torch.where(free_x, to_x, x), torch.where(free_x, high, state.ground)
    to_y = torch.minimum((y + shift[1]).maximum(margin), tables.side - margin)
    high = look_up(tables.maps.floors, cell(x, to_y, base, tables.side), z)
    free_y = high <= limit
    y, ground = torch.where(free_y, to_y, y), torch.where(free_y, high, ground)
    to_z = z + climb * DT
    landed = (to_z <= ground) | (to_z >= rules.CEILING)
    z = torch.maximum(to_z, ground).clamp_max(rules.CEILING)
    velocity = torch.stack(
        (torch.where(free_x, planar[0], 0.0), torch.where(free_y, planar[1], 0.0), torch.where(landed, 0.0, climb))
    )
    return state.replace(position=torch.stack((x, y, z)), velocity=velocity, ground=ground)
