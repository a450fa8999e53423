"""Smoke shells and the clouds they leave."""

from __future__ import annotations

import torch
from torch import Tensor

from . import rules
from .rules import DT
from .sensors import centres
from .state import State
from .tables import Tables
from .terrain import cell, look_up

_LIFE = 27.0  # range over speed, in sub-steps


def drift(state: State, tables: Tables) -> State:
    """Moves shells; where one meets the ground or has flown its range, a cloud begins."""
    place = state.shells[:3] + state.shells[3:6] * DT
    x, y, z = place.unbind(0)
    left = state.shells[6]
    outside = (x < 0) | (x > tables.side) | (y < 0) | (y > tables.side)
    stopped = (look_up(tables.maps.height, cell(x, y, state.base, tables.side), z) > z) | outside | (left <= 1)
    bursts = (left > 0) & stopped
    clouds = torch.cat((state.clouds[:3], (state.clouds[3:] - 1).clamp_min(0.0)))
    fresh = torch.cat((state.shells[:3], torch.full_like(left, rules.CLOUD_TICKS)[None]))
    clouds = torch.where(bursts, torch.stack((fresh, clouds[:, 0]), 1), clouds)
    left = torch.where(bursts, 0.0, (left - 1).clamp_min(0.0))
    return state.replace(shells=torch.cat((place, state.shells[3:6], left[None])), clouds=clouds)


def launch_smoke(state: State, orders: Tensor, tables: Tables, able: Tensor) -> State:
    """Fires shells straight ahead; smoke and missiles share a clock."""
    clock = state.clocks[:, rules.MISSILE]
    fires = (orders[:, rules.SPECIAL] > 0) & able & (clock == 0)
    yaw = state.yaw
    velocity = torch.stack((yaw.cos(), yaw.sin(), torch.zeros_like(yaw))) * rules.SMOKE_SPEED
    fresh = torch.cat((centres(state, tables), velocity, torch.full_like(yaw, _LIFE)[None]))
    row = torch.where(fires, rules.SMOKE_TICKS, clock)
    clocks = state.clocks.select_scatter(row, 1, rules.MISSILE)
    heat = state.heat + torch.where(fires, rules.SMOKE_HEAT, 0.0)
    return state.replace(shells=torch.where(fires, fresh, state.shells), clocks=clocks, heat=heat)
