"""Worlds for tests: random states, and their mirror images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack import envs
from rlstack.envs.rocket.actions import chosen_for
from rlstack.envs.rocket.env import Rocket
from rlstack.envs.rocket.field import Field
from rlstack.envs.rocket.players import rule_controls
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


def put(env: Rocket, world: int, cars: Mapping[str, Any] | None = None, **ball: Any) -> None:
    """Changes entries of the cars and of the ball of one world."""
    state = env.worlds.world.map(torch.clone)
    for record, changes in ((state.cars, cars or {}), (state.ball, ball)):
        for name, value in changes.items():
            getattr(record, name)[..., world] = torch.tensor(value)
    env.worlds.world = state
    if env._simulators is not None:
        env._simulators.begin(state, None)


def first_matches(env: Rocket, random: list[int] | None = None, steps: int = 10_000) -> dict[str, Tensor]:
    """Returns the statistics of every world's first match, in which rules drive all but the ``random`` cars."""
    root, first = env._current() if env._begun else env.reset(), dict[str, Tensor]()
    over = torch.zeros(env.num_worlds, dtype=torch.bool)
    for _ in range(steps):
        action = chosen_for("multi", rule_controls(env.worlds.world))
        if random:
            action[:, random] = env.full_action_spec["agents", "action"].rand()[:, random]
        root["agents", "action"] = action
        root, following = env.step_and_maybe_reset(root)
        now = {name: value[:, 0] for name, value in root["next", "episode"].items()}
        first = {name: torch.where(over, first.get(name, value), value) for name, value in now.items()}
        over |= root["next", "done"][:, 0]
        if over.all():
            break
        root = following
    return first


# -- images of a state -------------------------------------------------------------------------------------------------


def image(state: RocketState, factors: tuple[float, ...], spins: tuple[float, ...]) -> RocketState:
    """Multiplies the components of all vectors by factors, and those of spins by others."""
    kinds = {**dict.fromkeys(("position", "velocity", "rotation", "touch_normal"), factors), "spin": spins}
    items = dict(state.items())
    for name, value in items.items():
        record, _, entry = name.partition(".")
        if entry in kinds:
            trailing = (1, 1) if record == "cars" else (1,)
            items[name] = value * torch.tensor(kinds[entry], dtype=value.dtype).view(3, *trailing)
    return RocketState.from_items(items)


def mirrored(state: RocketState) -> RocketState:
    """Mirrors left and right: the right axis of a car turns round, and all spins but that about x change sign."""
    state = image(state, (-1.0, 1.0, 1.0), (1.0, -1.0, -1.0))
    forward, right, up = state.cars.rotation
    return state.replace(cars=state.cars.replace(rotation=torch.stack((forward, -right, up))))


def turned(state: RocketState) -> RocketState:
    """Rotates the world by pi, and the teams with it."""
    cars = state.cars.map(lambda value: value.flip(-2))
    return image(
        state.replace(cars=cars, pads=state.pads.flip(0), goal=-state.goal), (-1.0, -1.0, 1.0), (-1.0, -1.0, 1.0)
    )
