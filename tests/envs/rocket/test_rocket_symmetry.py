"""A mirrored match is the mirror image, and a match rotated by pi is the same for the other team."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack import envs
from rlstack.envs.rocket.observation import mirror, observe
from rlstack.envs.rocket.prediction import forecast
from rlstack.envs.rocket.rules import PADS
from rlstack.envs.rocket.state import RocketState
from tests.envs.rocket.fields import lively, random_controls, run

STEPS, WORLDS = 12, 24
# Of a vector that is no spin under a mirror at the plane x = 0, and under a turn by pi.
MIRROR, TURN = (-1.0, 1.0, 1.0), (-1.0, -1.0, 1.0)


def signs(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype).view(3, *[1] * (like.dim() - 1))


def mirrored(state: RocketState) -> RocketState:
    """Mirrors left and right: the right axis of a car turns round, and all spins but that about x change sign."""
    cars, ball = state.cars, state.ball
    flip, back = signs(MIRROR, cars.position), signs((1.0, -1.0, -1.0), cars.position)
    rotation = cars.rotation * signs(MIRROR, cars.position)
    rotation = torch.stack((rotation[0], -rotation[1], rotation[2]))
    new_cars = cars.replace(
        position=cars.position * flip, velocity=cars.velocity * flip, spin=cars.spin * back, rotation=rotation
    )
    flip, back = signs(MIRROR, ball.position), signs((1.0, -1.0, -1.0), ball.position)
    new_ball = ball.replace(position=ball.position * flip, velocity=ball.velocity * flip, spin=ball.spin * back)
    return state.replace(cars=new_cars, ball=new_ball)


def turned(state: RocketState) -> RocketState:
    """Rotates the world by pi, and the teams with it."""
    cars = state.cars.map(lambda value: value.flip(-2))

    def turn(record: Any, *names: str) -> dict[str, Tensor]:
        return {name: getattr(record, name) * signs(TURN, getattr(record, name)) for name in names}

    rotation = cars.rotation * signs(TURN, cars.position)
    new_cars = cars.replace(**turn(cars, "position", "velocity", "spin", "touch_normal"), rotation=rotation)
    ball = state.ball.replace(**turn(state.ball, "position", "velocity", "spin"))
    return state.replace(cars=new_cars, ball=ball, pads=state.pads.flip(0), goal=-state.goal)


def assert_same_motion(ours: RocketState, theirs: RocketState) -> None:
    same = 0
    for name in ("position", "velocity"):
        for one, two in ((ours.cars, theirs.cars), (ours.ball, theirs.ball)):
            off = (getattr(one, name) - getattr(two, name)).abs().amax(0)
            same += int((off < 1e-4).sum())
            count = off.numel()
            # Where boxes rest on two equally deep corners, order decides: such a tie may break the symmetry.
            assert (off < 1e-4).float().mean() > 0.9, f"{name}: {int((off >= 1e-4).sum())} of {count} differ"
    assert same


@pytest.mark.slow
@pytest.mark.parametrize("cars", [2, 4])
def test_a_mirrored_match_is_the_mirror_image(cars: int) -> None:
    state, controls = lively(WORLDS, cars), random_controls(STEPS, cars, WORLDS)
    inverted = controls * torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 1.0]).view(8, 1, 1)
    plain, mirror = run(state, controls), run(mirrored(state), inverted)
    assert_same_motion(mirrored(plain), mirror)
    assert (plain.cars.boost - mirror.cars.boost).abs().max() < 101


@pytest.mark.slow
@pytest.mark.parametrize("cars", [2, 4])
def test_a_turned_match_is_the_same_for_the_other_team(cars: int) -> None:
    state, controls = lively(WORLDS, cars), random_controls(STEPS, cars, WORLDS)
    plain, other = run(state, controls), run(turned(state), controls.flip(-2))
    assert_same_motion(turned(plain), other)


def with_pads(state: RocketState) -> RocketState:
    """Returns the mirror image, with the pads on the other side as well."""
    order = [PADS.index((-x, y)) for x, y in PADS]
    return mirrored(state).replace(pads=state.pads[order])


@pytest.mark.parametrize("kind", ["rlbot180", "compact"])
def test_what_a_car_sees_in_the_mirror(kind: str) -> None:
    state = lively(WORLDS, 4)
    state = state.replace(pads=torch.rand(34, WORLDS, dtype=torch.float64).round())
    plain, image = observe(kind, state, forecast(state.ball)), with_pads(state)
    seen = mirror(kind, "multi", 4).observation(plain)
    torch.testing.assert_close(seen, observe(kind, image, forecast(image.ball)), rtol=0, atol=1e-9)
    assert (seen != plain).any()


@pytest.mark.parametrize("actions", ["multi", "lookup90", "box8"])
def test_a_match_does_not_notice_its_mirror(actions: str) -> None:
    """Takes a step and returns its rewards; contacts break ties by order, see :func:`assert_same_motion`."""
    options: dict[str, Any] = {"actions": actions, "kick_offs": 0.0, "random_states": 1.0}
    env, other = (envs.make("rocket", num_worlds=WORLDS, dtype=torch.float64, seed=3, **options) for _ in range(2))
    image = pickle.loads(pickle.dumps(env.mirror()))
    for world in (env, other):
        world.reset()
    other._match = other._match.replace(world=with_pads(env._match.world))
    action = env.rand_action()["agents", "action"]
    assert (image.action(image.action(action)) == action).all()
    ours, theirs = (
        world.step(TensorDict({"agents": {"action": chosen}}, [WORLDS]))["next", "agents"]
        for world, chosen in ((env, action), (other, image.action(action)))
    )
    off = (image.observation(ours["observation"]) - theirs["observation"]).abs().amax(-1)
    assert (off < 1e-4).double().mean() > 0.9
    rewards = (ours["reward"] - theirs["reward"]).abs()
    assert (rewards < 1e-6).double().mean() > 0.9 and ours["reward"].std() > 0


@pytest.mark.parametrize("kind", ["rlbot180", "compact"])
def test_orange_sees_what_blue_would_see_in_its_place(kind: str) -> None:
    state = run(lively(WORLDS, 4), random_controls(3, 4, WORLDS))
    seen = observe(kind, state, forecast(state.ball))
    other = turned(state)
    seen_there = observe(kind, other, forecast(other.ball))
    # Mates and rivals are listed in the order of the cars, which is the other way round there.
    shared = [*range(48), *range(113, 180)] if kind == "rlbot180" else [*range(37), *range(76, 110)]
    torch.testing.assert_close(seen.flip(1)[..., shared], seen_there[..., shared], rtol=0, atol=1e-6)


def test_cars_lose_energy_unless_they_are_driven() -> None:
    """Without controls, only the restitution of contacts with driven bodies adds energy."""
    state = lively(64)
    state = state.replace(cars=state.cars.replace(boost=torch.zeros_like(state.cars.boost)))

    def energy(state: RocketState) -> Tensor:
        cars, ball = state.cars, state.ball
        moving = 180 * (0.5 * (cars.velocity**2).sum(0) + 650 * cars.position[2]).sum(0)
        turning = 0.5 * 180 * 1200 * (cars.spin**2).sum(0).sum(0)
        return moving + turning + 30 * (0.5 * (ball.velocity**2).sum(0) + 650 * ball.position[2])

    before = energy(state)
    nothing = torch.zeros(1, 8, 2, 64, dtype=torch.float64)
    for _ in range(10):
        state = run(state, nothing)
        assert torch.isfinite(energy(state)).all()
    # Hits add speed by the rules; few worlds see one.
    assert (energy(state) < before * 1.02).float().mean() > 0.75
    assert energy(state).sum() < before.sum()


@pytest.mark.slow
def test_everything_stays_within_the_field() -> None:
    state = run(lively(64), random_controls(40, 2, 64))
    for position, margin in ((state.cars.position, 60.0), (state.ball.position, 0.0)):
        x, y, z = position.abs().unbind(0)
        assert (x < 4096 - margin + 100).all() and (y < 6000).all() and (z < 2048).all()
        assert (position[2] > -1).all()
    assert (state.cars.velocity.norm(dim=0) < 2300.01).all() and (state.ball.velocity.norm(dim=0) < 6000.1).all()
    axes = torch.einsum("ijcw,kjcw->ikcw", state.cars.rotation, state.cars.rotation)
    torch.testing.assert_close(axes, torch.eye(3, dtype=torch.float64)[..., None, None].expand_as(axes))
