"""Worlds for tests: random states, and their mirror images."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack import envs
from rlstack.envs.rocket.actions import chosen_for
from rlstack.envs.rocket.env import Rocket
from rlstack.envs.rocket.field import Field
from rlstack.envs.rocket.simulation import advance
from rlstack.envs.rocket.starts import RocketStarts
from rlstack.envs.rocket.state import RocketState

RAMPED = Field(True, 256.0, 512.0)


def lively(worlds: int, cars: int = 2, seed: int = 0, dtype: torch.dtype = torch.float64) -> RocketState:
    """Places cars and balls everywhere, at any speed, half of the cars full of boost."""
    starts = RocketStarts(cars // 2, cars // 2, kick_offs=0.0, random_states=1.0)
    state = starts.draw(worlds, torch.Generator().manual_seed(seed), dtype)
    # Half of the balls are near a car, so that something happens.
    near = state.cars.position[:, 0] + torch.tensor([[150.0], [40.0], [120.0]], dtype=dtype)
    half = torch.arange(worlds) % 2 == 0
    ball = state.ball.replace(position=torch.where(half, near, state.ball.position))
    boost = torch.where(half, 100.0, state.cars.boost)
    return state.replace(ball=ball, cars=state.cars.replace(boost=boost))


def random_controls(steps: int, cars: int, worlds: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Returns controls ``[steps, 8, C, W]``, each held for eight ticks by :func:`run`."""
    generator = torch.Generator().manual_seed(seed)
    sticks = torch.randint(0, 5, (steps, 5, cars, worlds), generator=generator).to(dtype) / 2 - 1
    sticks[:, 0] = sticks[:, 0].abs()
    buttons = (torch.rand(steps, 3, cars, worlds, generator=generator) < 0.3).to(dtype)
    return torch.cat((sticks, buttons), 1)


def run(state: RocketState, controls: Tensor, field: Field = RAMPED, ticks: int = 8) -> RocketState:
    """Returns the state after some steps."""
    with torch.no_grad():
        for now in controls:
            for _ in range(ticks):
                state, _ = advance(state, now, field)
    return state


def build(worlds: int = 4, **options: Any) -> Rocket:
    return envs.make("rocket", num_worlds=worlds, **options)  # type: ignore[return-value]


def act(env: Rocket, root: TensorDict, wanted: Tensor | None = None) -> TensorDict:
    """Takes one step; nothing is pressed unless given."""
    wanted = torch.zeros(8, env.starts.cars, env.num_worlds) if wanted is None else wanted
    root["agents", "action"] = chosen_for(env._actions, wanted)
    return env.step(root)["next"]
