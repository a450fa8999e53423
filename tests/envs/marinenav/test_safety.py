"""Distances to obstacles and vessels, and what is measured of safety."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict

from rlstack import envs
from rlstack.envs.marinenav.episodes import make_episode
from rlstack.envs.marinenav.players import potential_field, reciprocal_velocity, sail
from rlstack.envs.marinenav.rules import HULL_RADIUS, MarineNavRules
from rlstack.envs.marinenav.simulation import begun, measured, safety_statistics
from rlstack.envs.marinenav.state import WorldState, blank_state
from rlstack.evaluation.evaluator import evaluate
from rlstack.play.versus import own_policy
from tests.envs.marinenav.recorded import build, robot

RULES = MarineNavRules()


def two_robots(apart: float) -> WorldState:
    """Returns two robots ``apart`` metres from hull to hull, and an obstacle of radius 1 m, 5 m beyond the second."""
    state = blank_state(2, 1, 0, 1, torch.float64, torch.device("cpu"))
    state.present[:], state.active[:] = True, True
    second = 2 * HULL_RADIUS + apart
    state.pose[0, 1] = second
    state.obstacles[:, 0, 0] = torch.tensor([second + HULL_RADIUS + 5.0 + 1.0, 0.0, 1.0], dtype=torch.float64)
    state.obstacle_present[:] = True
    return state


def test_gaps_are_those_from_hull_to_hull() -> None:
    state = begun(two_robots(7.0), RULES)
    assert state.closest[:, 0].tolist() == pytest.approx([7.0, 5.0])


def test_nobody_is_close_to_a_robot_that_is_gone() -> None:
    state = two_robots(7.0)
    state.active[1] = False
    assert begun(state, RULES).closest[0, 0] == pytest.approx(2 * HULL_RADIUS + 7.0 + 5.0)


def test_a_step_adds_its_distance_and_what_the_rules_asked_for() -> None:
    state = begun(two_robots(7.0), RULES)
    before = state.pose[:2].clone()
    state.pose[:2, 0] = torch.tensor([[3.0], [4.0]], dtype=torch.float64)
    state.velocity_r[2, 0], state.velocity_r[2, 1] = 0.3, -0.1  # to starboard, to port
    asked = torch.ones(2, 1, dtype=torch.bool)
    after = measured(state, before, asked, state.active, RULES)
    assert after.path[:, 0].tolist() == pytest.approx([5.0, 0.0])
    assert after.rule_time[:, 0].tolist() == pytest.approx([0.5, 0.5])
    assert after.violation_time[:, 0].tolist() == pytest.approx([0.0, 0.5])


def test_a_near_miss_is_no_collision() -> None:
    state = begun(two_robots(1.0), RULES)
    assert safety_statistics(state)["near_miss"].item() == 1.0
    hit = measured(
        state.replace(collided=torch.tensor([[True], [False]])),
        state.pose[:2],
        torch.zeros(2, 1, dtype=torch.bool),
        state.active,
        RULES,
    )
    assert hit.closest[:, 0].tolist() == pytest.approx([0.0, 1.0])
    assert safety_statistics(hit)["near_miss"].item() == 0.5


def test_an_episode_that_is_measured_is_the_same_episode() -> None:
    rewards = []
    for measuring in (False, True):
        world = envs.make("marinenav", num_worlds=4, measure_safety=measuring, seed=3)
        torch.manual_seed(0)
        rewards.append(world.rollout(12, break_when_any_done=False).get(("next", "agents", "reward")))
    assert torch.equal(*rewards)


def test_a_restarted_world_measures_anew() -> None:
    world = envs.make("marinenav", num_worlds=8, max_steps=3, measure_safety=True, seed=1)
    path = world.rollout(9, break_when_any_done=False).get(("next", "episode", "path"))[..., 0]
    assert (path[:, 4] < path[:, 3]).all()  # four steps an episode
    assert (path[:, 3] > 0).all()


@pytest.mark.parametrize("choose", [potential_field, reciprocal_velocity])
def test_a_player_alone_sails_to_its_goal(choose) -> None:
    world = build(2, 1)
    shown = world.reset_to([make_episode([robot((20.0, 20.0), (32.0, 28.0), theta)]) for theta in (0.0, 3.0)])
    reached = torch.zeros(2, dtype=torch.bool)
    for _ in range(60):
        shown["agents", "action"] = sail(choose, shown["agents", "observation"])
        shown = world.step(shown)
        reached |= shown["next", "episode", "success"][:, 0] > 0
        if reached.all():
            return
        shown = world.step_mdp(shown)
    raise AssertionError("a robot takes longer than half a minute")


def test_reciprocal_velocity_of_two_robots_that_meet_head_on_is_mirrored_in_a_point() -> None:
    """Both have the same view of each other, so each chooses the same in its own axes, off the line of sight."""
    world = envs.make("marinenav", num_worlds=1, num_robots=2, num_obstacles=0, dtype=torch.float64)
    shown = world.reset()["agents", "observation"].clone()
    shown["self"].zero_()
    shown["self"][..., 0], shown["self"][..., 2] = 30.0, 2.0
    shown["objects"].zero_()
    shown["objects"][..., 0, 0], shown["objects"][..., 0, 1] = 15.0, 0.5
    shown["objects"][..., 0, 2], shown["objects"][..., 0, 4] = -2.0, HULL_RADIUS
    shown["mask"].zero_()
    shown["mask"][..., 0] = True
    first, second = reciprocal_velocity(shown)[0]
    assert torch.equal(first, second)
    assert first[1] < -0.1, "away from the side on which the other one is"


@pytest.mark.slow
def test_orca_collides_less_often_than_a_blind_player() -> None:
    """In 24 episodes of 120 steps it has at most half the collisions of a player that steers straight to its goal."""

    def blind(observation):
        goal = observation.get("self")[..., :2]
        return 2.0 * goal / goal.norm(dim=-1, keepdim=True)

    env = envs.make("marinenav", num_worlds=1)
    collisions = {}
    for name in ("orca", "blind"):
        policy = own_policy(env, "orca")
        if name == "blind":
            policy.module = lambda observation: sail(blind, observation)
        collisions[name] = evaluate(policy, "marinenav", {}, 4, seed=5, max_steps=120).table()[-1]["collision"]
    assert collisions["orca"] < 0.5 * collisions["blind"]


# -- The distance to the nearest reported object, on which the caution of agents may depend --------------------------


HALF_DIAGONAL = 0.5 * math.hypot(5.0, 2.5)


def seen(*objects: tuple[float, float, float], slots: int = 5) -> TensorDict:
    """Returns an observation of objects given as x, y and radius."""
    rows = torch.zeros(slots, 5)
    for slot, (x, y, radius) in enumerate(objects):
        rows[slot] = torch.tensor([x, y, 9.0, -9.0, radius])
    mask = torch.arange(slots) < len(objects)
    return TensorDict({"self": torch.full((7,), 3.0), "objects": rows, "mask": mask})


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float32])
def test_distance_is_from_hull_to_hull(mask_dtype: torch.dtype) -> None:
    nearest = envs.make("marinenav", num_worlds=1).nearest_obstacle
    cases = [
        (seen((3.0, 4.0, 1.0), (0.0, 20.0, 0.5)), 5 - 1 - HALF_DIAGONAL),
        (seen((30.0, 40.0, 45.0), (0.0, 9.0, 0.5)), 5 - HALF_DIAGONAL),  # a large one further away
        (seen((1.0, 0.0, 1.0)), -HALF_DIAGONAL),  # overlapping
        (seen(), math.inf),  # empty slots are zeros, not near objects
    ]
    together = torch.stack([observation for observation, _ in cases])
    together["mask"] = together["mask"].to(mask_dtype)
    expected = torch.tensor([value for _, value in cases])
    torch.testing.assert_close(nearest(together), expected)
    torch.testing.assert_close(nearest(together.expand(3, 4)), expected.expand(3, 4))


def test_it_takes_the_worlds_own_observations() -> None:
    env = envs.make("marinenav", num_worlds=6, num_robots=3, perception_noise=False)
    td = env.reset()
    distance = env.nearest_obstacle(td["agents", "observation"])
    assert distance.shape == (6, 3) and (distance.isinf() == ~td["agents", "observation", "mask"].any(-1)).all()
    assert (distance[distance.isfinite()] > 0).all(), "nobody starts inside of something"
