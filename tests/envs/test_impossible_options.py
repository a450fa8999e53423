"""Options of worlds that are impossible: the error names the option, its value and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from rlstack import envs
from tests.envs.marinenav.test_env import CURRICULUM
from tests.refusals import refused

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(
        ("arena", {"start_health": health}, r"start_health: .* above 0 and at most 150")
        for health in (0, 151, [], [90, 30])
    ),
    ("arena", {"start_health": [30, 60, 90]}, r"start_health: .* above 0 and at most 150"),
    ("arena", {"reward_weights": {"quick": 0.0}}, "reward_weights: 'quick' .*step_reward"),
    ("marinenav", {"num_worlds": 0}, "num_worlds: 0"),
    ("marinenav", {"num_robots": 0}, "num_robots=0.*at least one"),
    ("marinenav", {"num_obstacles": -1}, "num_obstacles=-1.*no negative"),
    ("marinenav", {"min_start_goal_dis": 90}, "min_start_goal_dis: 90.* 0 to 70 m"),
    ("marinenav", {"max_steps": -1}, "max_steps: -1"),
    ("marinenav", {"goal_reward": 1e30}, r"goal_reward: 1e\+30 .*\[-1e\+06, 1e\+06\]"),
    ("marinenav", {"num_robots": 100_000}, "num_robots=100000.* 1000 robots"),
    ("marinenav", {"discount": 1.5}, r"discount: 1.5 .*\[0, 1\]"),
    ("marinenav", {"curriculum": CURRICULUM | {"robots": [1, 2, 3]}}, r"curriculum: unknown \['robots'\]; it takes"),
    ("marinenav", {"curriculum": {"num_robots": [1]}}, r"curriculum: missing \['min_start_goal_dis', "),
    ("marinenav", {"curriculum": CURRICULUM | {"num_robots": [1, 2]}}, "curriculum: .*'num_robots': 2"),
    ("marinenav", {"curriculum": CURRICULUM | {"timesteps": [0, 5]}}, "curriculum: .* one entry per level"),
    ("marinenav", {"curriculum": CURRICULUM | {"timesteps": [0, 9, 5]}}, r"timesteps: \[0, 9, 5\] must ascend from 0"),
    ("marinenav", {"curriculum": CURRICULUM | {"timesteps": [5, 6, 9]}}, r"timesteps: \[5, 6, 9\] must ascend from 0"),
    ("rocket", {"blue": 0}, "blue: 0 cars.* 1 to 3"),
    ("rocket", {"orange": 4}, "orange: 4 cars.* 1 to 3"),
    ("rocket", {"team_size": 4}, "4 cars.* 1 to 3"),
    ("rocket", {"observation": "pixels"}, "observation: 'pixels' .*rlbot180, compact"),
    ("rocket", {"actions": "keys"}, "actions: 'keys' .*multi, lookup90, box8"),
    ("rocket", {"rewards": "none"}, "rewards: 'none' .*sparse, dense, hybrid"),
    ("rocket", {"reward_weights": {"style": 1.0}}, "reward_weights: 'style' .*goal, "),
    ("rocket", {"kick_offs": 0.0}, "kick_offs, .*weights are 0"),
    ("rocket", {"aerials": -1.0}, "aerials: -1.0"),
    ("rocket", {"tick_skip": 0}, "tick_skip: 0 is outside"),
    ("rocket", {"tick_skip": 1_000_000_000}, r"tick_skip: 1e\+09 .*\[1, 1200\] ticks"),
    ("rocket", {"max_seconds": 1e300}, r"max_seconds: 1e\+300 is outside"),
    ("rocket", {"max_seconds": 0}, "max_seconds: 0 is outside"),
    ("echelon", {"blue": 0}, "blue: 0 mechs.* 1 to 10"),
    ("echelon", {"red": 11}, "red: 11 mechs.* 1 to 10"),
    ("echelon", {"reward_scale": 0.0}, r"reward_scale: 0 .*\[1e-06, 1e\+06\]"),
    ("echelon", {"max_steps": 10**18}, r"max_steps: 1e\+18 is outside"),
    ("echelon", {"max_steps": 0}, "max_steps: 0 is outside"),
    ("echelon", {"opponent": "me"}, "opponent: 'me' .*heuristic, veteran, rush, random, policy"),
    ("echelon", {"opponent_mix": {"me": 1.0}}, "opponent_mix: 'me' .*heuristic, veteran, rush, random"),
    ("echelon", {"opponent_mix": {"policy": 1.0}}, "opponent_mix: 'policy' .*heuristic"),
    ("echelon", {"opponent_mix": {"rush": -1.0}}, "opponent_mix: .*rush, -1.0"),
    ("echelon", {"opponent_mix": {"rush": 0.0}}, "opponent_mix: .*weights are 0"),
    ("echelon", {"opponent": "policy", "opponent_mix": {"rush": 1.0}}, "opponent_mix: bots .*'policy'"),
    ("echelon", {"fire_probability": 1.5}, r"fire_probability: 1.5 .*\[0, 1\]"),
    ("echelon", {"fire_probability": [0.9, 0.2]}, r"fire_probability: \[0.9, 0.2\] .*in order"),
    ("echelon", {"fire_stages": [0.5, 2.0]}, r"fire_stages: 2.0 .*\[0, 1\]"),
    ("echelon", {"visibility": "none"}, "visibility: 'none' .*full, partial"),
    ("echelon", {"actions": "keys"}, "actions: 'keys' .*hybrid, multi, box"),
    ("echelon", {"reward_weights": {"style": 1.0}}, "reward_weights: 'style' .*approach, zone"),
    ("echelon", {"maps": 0}, "maps: 0 "),
    *(("echelon", {"size": size}, f"^size: {size} .* even number from 48 to 128$") for size in (46, 65, 130, 64.0)),
    ("echelon", {"size": 128, "maps": 1025}, r"^maps: 1025 .* 1 to 1024 of size 128$"),
]


@pytest.mark.parametrize(("world", "options", "message"), REFUSED)
def test_impossible_options_are_named(world: str, options: dict[str, Any], message: str) -> None:
    refused(ValueError, message, envs.make, world, **{"num_worlds": 2} | options)
