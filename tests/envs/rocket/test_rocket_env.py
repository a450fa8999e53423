"""The environment: specs, agents, observations, rewards, how episodes begin and end; and its rule-based player."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack import envs
from rlstack.envs.rocket.actions import chosen_for, controls, lookup_table
from rlstack.envs.rocket.observation import mirror, observe
from rlstack.envs.rocket.players import rule_controls
from rlstack.envs.rocket.prediction import forecast
from rlstack.envs.rocket.rewards import TERMS, make_weights
from rlstack.envs.rocket.rules import PADS
from rlstack.envs.rocket.state import Ball, RocketState
from tests.envs.rocket.fields import act, build, first_matches, lively, mirrored, put, random_controls, run, turned

MIXED = {"kick_offs": 0.4, "random_states": 0.3, "aerials": 0.3}


def test_absent_cars_are_marked_and_see_nothing() -> None:
    env = build(3, blue=1, orange=2, **MIXED)
    step = act(env, env.reset())
    active = torch.tensor([True, False, True, True])
    assert (step["agents", "active"] == active).all()
    assert not step["agents", "observation"][:, 1].any() and not step["agents", "reward"][:, 1].any()
    assert step["agents", "done"][:, 1].all() and not step["agents", "done"][:, [0, 2, 3]].any()
    assert not step["done"].any()
    # Nor are they seen: blue has no mate, and no third rival.
    blue = step["agents", "observation"][:, 0]
    assert not blue[:, 48:74].any() and blue[:, 74:100].any(1).all() and not blue[:, 100:113].any()


def test_published_observation_of_a_kick_off() -> None:
    env = build(16)
    seen = env.reset()["agents", "observation"]
    blue, orange = seen.unbind(1)
    world = env.worlds.world
    torch.testing.assert_close(blue[:, :2] * 4096, world.cars.position[:2, 0].T)
    torch.testing.assert_close(blue, orange)  # each sees the same from its side
    assert (blue[:, 18] * 100 - 100 / 3).abs().max() < 1e-4  # a third of a tank
    torch.testing.assert_close(blue[:, 9:18].view(-1, 3, 3).square().sum(2), torch.ones(16, 3))
    assert not blue[:, 22:24].any() and (blue[:, 24] * 4096 - 93.15).abs().max() < 0.1
    torch.testing.assert_close(blue[:, 31:34], blue[:, 22:25] - blue[:, :3])
    assert (blue[:, 41:46] == torch.tensor([1.0, 0, 0, 0, 0])).all()
    assert (blue[:, 47] > 0.99).all()  # cars look at the ball
    assert (blue[:, 74:76] == -blue[:, :2]).all()  # the rival stands opposite
    pads = blue[:, 113:173].view(16, 10, 6)
    assert (pads[..., 5].diff(dim=1) >= 0).all() and (pads[..., 3] == 1).all()
    nearest = (torch.tensor(PADS) - world.cars.position[:2, 0].T[:, None]).norm(dim=2).amin(1)
    assert ((pads[:, 0, 5] * 4096).square() - nearest.square()).abs().max() < 60.0**2  # pads are 53 uu higher
    assert (blue[:, 173] == 1).all() and (blue[:, 176:] == torch.tensor([1.0, 0, 0, 0])).all()


def test_the_order_of_equally_near_pads_does_not_depend_on_rounding() -> None:
    env = build(2)
    env.reset()
    state = env.worlds.world
    position = state.cars.position.clone()
    position[:2, 0] = torch.tensor([[-1e-5, 1e-5], [-4608.0, -4608.0]])  # pads to the left and to the right
    state = state.replace(cars=state.cars.replace(position=position))
    left, right = observe("rlbot180", state, forecast(state.ball))[:, 0, 113:173]
    torch.testing.assert_close(left, right, rtol=0, atol=1e-6)


def test_the_ball_can_be_met_where_it_rolls() -> None:
    env, speeds = build(2, random_states=1.0, kick_offs=0.0), torch.tensor([600.0, -900.0])
    env.reset()
    for world, speed in enumerate(speeds.tolist()):
        put(env, world, position=[0.0, 0.0, 93.15], velocity=[0.0, speed, 0.0])
    seen = act(env, env._current())["agents", "observation"][:, 0]
    seconds = seen[:, 40] * 4
    assert (seconds > 0).all() and (seconds < 4).all()
    way = speeds * (seconds + 8 / 120)
    torch.testing.assert_close(seen[:, 38] * 4096, way, rtol=0.1, atol=0)  # it hardly slows down


def test_a_goal_ends_the_match_and_pays_both_teams() -> None:
    env = build(2, rewards="sparse")
    root = env.reset()
    put(env, 0, position=[0.0, 5000.0, 200.0], velocity=[0.0, 3000.0, 0.0])
    for _ in range(3):
        step = act(env, root)
        if step["done"][0]:
            break
    assert step["terminated"][0] and not step["truncated"].any() and not step["done"][1]
    blue, orange = step["agents", "reward"][0, :, 0]
    assert blue == 10 and orange == -10
    episode = step["episode"]
    assert episode["goals_for"][0] == 1 and episode["success"][0] == 1 and episode["goals_against"][0] == 0
    assert episode["reward_goal"][0] == 10 and episode["return"][0] == 10 and not episode["return"][1]
    assert step["agents", "done"][0].all() and step["agents", "terminated"][0].all()


@pytest.mark.slow
def test_matches_are_cut_off_not_ended_by_time() -> None:
    for options in ({"max_seconds": 0.5}, {"idle_seconds": 0.5}):
        env = build(2, **options)
        root = env.reset()
        for step in range(8):
            after = act(env, root)
            assert after["truncated"].all() == (step == 7)
        assert not after["terminated"].any() and after["agents", "truncated"].all()
        assert (after["episode", "time"] - 8 * 8 / 120).abs().max() < 1e-6


def test_touch_shot_and_kick_off_pay_who_earns_them() -> None:
    env = build(1, reward_weights=dict.fromkeys(TERMS, 1.0), rewards="dense")
    root = env.reset()
    # Blue drives north to the ball; orange, which faces south, waits in its goal.
    ways = (
        [[0.0, 0.0], [1.0, -1.0], [0.0, 0.0]],
        [[-1.0, 1.0], [0.0, 0.0], [0.0, 0.0]],
        [[0.0] * 2, [0.0] * 2, [1.0] * 2],
    )
    cars = {"position": [[0.0, 0.0], [3500.0, 4608.0], [17.0, 17.0]], "velocity": [[0.0] * 2, [2000.0, 0.0], [0.0] * 2]}
    put(env, 0, {**cars, "rotation": ways}, position=[0.0, 3800.0, 93.15], velocity=[0.0, 0.0, -0.001])
    for _ in range(4):
        step = act(env, root)
    rewards = {name: float(step["episode", f"reward_{name}"][0]) for name in TERMS}
    assert step["episode", "touches_blue"][0] >= 1 and not step["episode", "touches_orange"][0]
    sparse = 0.2
    assert rewards["shot"] == pytest.approx(sparse) and 0.5 < rewards["touch"] <= 3
    assert rewards["approach"] > 0 and rewards["speed_to_ball"] > 0 and rewards["ball_to_goal"] > 0
    assert not rewards["save"] and not rewards["aerial_touch"] and not rewards["spacing"]


def test_modes_choose_groups() -> None:
    sparse, dense, hybrid = (make_weights(mode, None) for mode in ("sparse", "dense", "hybrid"))
    assert sparse["goal"] == 10 and sparse["touch"] == 0
    assert dense["goal"] == 2 and dense["touch"] == 0.1
    assert hybrid["goal"] == 10 and hybrid["touch"] == 0.05
    assert make_weights("sparse", {"goal": 3.0})["goal"] == 3


def test_actions_are_read_as_drivers_act() -> None:
    multi = torch.tensor([[[0, 1, 2, 3, 4, 1, 0, 1]]])
    assert controls("multi", multi)[:, 0, 0].tolist() == [-1, -0.5, 0, 0.5, 1, 1, 0, 1]
    box = torch.tensor([[[0.3, -2.0, 0, 0, 0, 0.1, -0.1, 1]]])
    assert controls("box8", box)[:, 0, 0].tolist() == pytest.approx([0.3, -1, 0, 0, 0, 1, 0, 1])
    table = lookup_table()
    assert len(table) == len(set(table)) == 90
    assert controls("lookup90", torch.tensor([[5], [89]])).shape == (8, 1, 2)
    wanted = torch.tensor(table[::7]).T.reshape(8, 1, -1)
    for kind in ("multi", "box8", "lookup90"):
        assert torch.equal(controls(kind, chosen_for(kind, wanted)), wanted)


def test_starts_are_of_the_kinds_asked_for() -> None:
    env = build(200, **MIXED)
    env.reset()
    world: RocketState = env.worlds.world
    ball: Ball = world.ball
    resting = (ball.velocity == 0).all(0)
    flying = (ball.position[2] >= 299) & (world.cars.boost == 100).all(0)
    assert 0.25 < resting.float().mean() < 0.55 and 0.15 < flying.float().mean() < 0.45
    kick_off = world.cars.position[:, :, resting]
    torch.testing.assert_close(kick_off[:2, 0], -kick_off[:2, 1])
    assert len(kick_off[:2, 0].T.unique(dim=0)) == 5


def test_demolished_cars_come_back() -> None:
    env = build(1, tick_skip=2)
    root = env.reset()
    put(env, 0, {"gone": [0.0, 5.0]})
    step = act(env, root)
    assert step["agents", "observation"][0, 1, 21] == 1 and step["agents", "active"].all()
    for _ in range(3):
        step = act(env, root)
    assert step["agents", "observation"][0, 1, 21] == 0
    place = env.worlds.world.cars.position[:, 1, 0]
    assert place[1] > 4000 and place[0].abs() > 2000  # before its own goal


# -- A mirrored match is the mirror image, and a match rotated by pi is the same for the other team ------------------


STEPS, WORLDS = 12, 24


def assert_same_motion(ours: RocketState, theirs: RocketState) -> None:
    for name in ("position", "velocity"):
        for one, two in ((ours.cars, theirs.cars), (ours.ball, theirs.ball)):
            off = (getattr(one, name) - getattr(two, name)).abs().amax(0)
            # Where boxes rest on two equally deep corners, order decides: such a tie may break the symmetry.
            assert (off < 1e-4).float().mean() > 0.9, f"{name}: {int((off >= 1e-4).sum())} of {off.numel()} differ"


def inverted(controls: Tensor) -> Tensor:
    return controls * torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 1.0]).view(8, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("cars", [2, 4])
@pytest.mark.parametrize(("image", "steered"), [(mirrored, inverted), (turned, lambda controls: controls.flip(-2))])
def test_the_image_of_a_match_moves_as_the_image_of_its_motion(image: Any, steered: Any, cars: int) -> None:
    state, controls = lively(WORLDS, cars), random_controls(STEPS, cars, WORLDS)
    assert_same_motion(image(run(state, controls)), run(image(state), steered(controls)))


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
    options: dict[str, Any] = {"actions": actions, "kick_offs": 0.0, "random_states": 1.0, "tick_skip": 2}
    env, other = (envs.make("rocket", num_worlds=WORLDS, dtype=torch.float64, seed=3, **options) for _ in range(2))
    image = pickle.loads(pickle.dumps(env.mirror()))
    for world in (env, other):
        world.reset()
    other.worlds = other.worlds.replace(world=with_pads(env.worlds.world))
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
    state = run(lively(WORLDS, 4), random_controls(1, 4, WORLDS), ticks=2)
    seen = observe(kind, state, forecast(state.ball))
    other = turned(state)
    seen_there = observe(kind, other, forecast(other.ball))
    # Mates and rivals are listed in the order of the cars, which is the other way round there.
    shared = [*range(48), *range(113, 180)] if kind == "rlbot180" else [*range(37), *range(76, 110)]
    torch.testing.assert_close(seen.flip(1)[..., shared], seen_there[..., shared], rtol=0, atol=1e-6)


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


# -- the rule-based player ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_rule_player_drives_through_the_ball_to_the_goal() -> None:
    env = build(3, observation="compact")
    env.reset()
    # The car faces the goal behind the ball; the rival is out of the way.
    north = [[[0.0] * 2, [1.0] * 2, [0.0] * 2], [[-1.0] * 2, [0.0] * 2, [0.0] * 2], [[0.0] * 2, [0.0] * 2, [1.0] * 2]]
    for world, x in enumerate((0.0, 300.0, -300.0)):
        cars = {"position": [[x, 0.0], [1500.0, -3000.0], [17.0, 17.0]], "rotation": north}
        put(env, world, cars, position=[0.0, 3000.0, 93.15])
    result = first_matches(env, [1], 60)
    assert result["goals_for"].tolist() == [1, 1, 1]
    assert (result["time"] < 4).all()


@pytest.mark.slow
def test_the_rule_player_is_first_at_the_ball_after_a_kick_off() -> None:
    result = first_matches(build(5, observation="compact"), [1], 50)
    assert (result["touches_blue"] >= 1).all() and not result["touches_orange"].any()


def test_the_rule_player_treats_both_teams_alike() -> None:
    state = lively(32, 4, dtype=torch.float32)
    ours, theirs = rule_controls(state), rule_controls(turned(state))
    torch.testing.assert_close(ours.flip(1), theirs, rtol=0, atol=2e-3)
    assert (ours.abs() <= 1).all() and len(ours[1].unique()) > 5
    assert set(ours[5:].unique().tolist()) == {0.0, 1.0}


@pytest.mark.slow
def test_the_rule_player_nearly_always_beats_random_actions() -> None:
    torch.manual_seed(0)
    result = first_matches(build(24, observation="compact", max_seconds=60.0), [1], 900)
    assert result["goals_for"].mean() > 0.9
    assert result["goals_against"].sum() <= 1
