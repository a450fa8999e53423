"""Episode files: reading, writing, and one clear line for each fault."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from rlstack.envs.marinenav.episodes import (
    PUBLISHED_LEVELS,
    generate_episodes,
    load_episodes,
    save_episodes,
    validate_episode,
)
from tests.refusals import refused

CROWDED = {"num_robots": 6, "num_cores": 8, "num_obstacles": 8, "min_start_goal_dis": 30.0}


@pytest.mark.parametrize("name", ["episodes.json", "episodes.json.gz"])
def test_saved_episodes_load_unchanged(tmp_path: Path, name: str) -> None:
    episodes = generate_episodes(0, [CROWDED], per_level=2)
    save_episodes(tmp_path / name, episodes)
    assert load_episodes(tmp_path / name) == episodes
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_refused_episode_leaves_the_old_file(tmp_path: Path) -> None:
    episodes = generate_episodes(0, PUBLISHED_LEVELS[:1], per_level=1)
    save_episodes(tmp_path / "episodes.json", episodes)
    refused(ValueError, "config lacks", save_episodes, tmp_path / "episodes.json", [*episodes, {}])
    assert load_episodes(tmp_path / "episodes.json") == episodes
    assert len(list(tmp_path.iterdir())) == 1


def test_load_takes_single_configs_lists_and_records(tmp_path: Path, fixtures_dir: Path) -> None:
    (episode,) = generate_episodes(0, PUBLISHED_LEVELS[:1], per_level=1)
    for content in (episode, [episode], {"config": episode}, [{"config": episode, "level": 0}]):
        (tmp_path / "one.json").write_text(json.dumps(content))
        assert load_episodes(tmp_path / "one.json") == [episode]
    assert len(load_episodes(fixtures_dir / "marinenav/eval_configs_253.json.gz")) == 30


def test_trainer_histories_are_accepted() -> None:
    (episode,) = generate_episodes(0, PUBLISHED_LEVELS[:1], per_level=1)
    histories: dict[str, Any] = {"observation_history": [[]], "action_history": [], "trajectory": [[1.0]]}
    episode["robots"].update(histories)
    validate_episode(episode)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("env", ..., r"config lacks \['env'\]"),
        ("robots", [], r"robots must be a dictionary, got \[\]"),
        ("env.goal_reward", ..., r"env lacks \['goal_reward'\]"),
        ("env.goal_rewards", 1.0, r"env has unknown keys \['goal_rewards'\]; allowed are .*'goal_reward'"),
        ("env.seed", 1.5, r"env.seed must be an integer, got 1.5"),
        ("env.is_eval_env", 1, r"env.is_eval_env must be true or false, got 1"),
        ("env.num_robots", 2, r"robots.dt must be a list of length 2, got \[0.05, 0.05, 0.05\]"),
        ("env.num_robots", 0, r"env.num_robots must be positive, got 0"),
        ("env.v_range", [3.0], r"env.v_range must be a list of length 2, got \[3.0\]"),
        ("env.cores.positions", 3, r"env.cores.positions must be a list"),
        ("env.cores.Gamma", [1.0], r"env.cores.Gamma must be a list of length 0, got \[1.0\]"),
        ("env.obstacles.positions", [[1.0, 2.0]], r"env.obstacles.r must be a list of length 1, got \[\]"),
        ("env.obstacles", {"positions": [[1.0]], "r": [1.0]}, r"env.obstacles.positions\[0\] .* length 2"),
        ("robots.start", [[1.0, 2.0]], r"robots.start must be a list of length 3"),
        ("robots.start", [[1, 2], [3], [4, 5]], r"robots.start\[1\] must be a list of length 2, got \[3\]"),
        ("robots.goal", [[1, 2], [3, "4"], [5, 6]], r"robots.goal\[1\]\[1\] .*finite number, got '4'"),
        ("robots.init_theta", [0.0, float("nan"), 0.0], r"robots.init_theta\[1\] .*finite number, got nan"),
        ("robots.m", [400, True, 400], r"robots.m\[1\] must be a finite number, got True"),
        ("robots.N", [10, 0, 10], r"robots.N\[1\] must be positive, got 0"),
        ("robots.perception.range", ..., r"robots.perception lacks \['range'\]"),
        ("robots.perception.r_kappa", [1.0], r"robots.perception.r_kappa must be a list of length 3"),
    ],
)
def test_each_fault_is_named(path: str, value: Any, message: str) -> None:
    (episode,) = copy.deepcopy(generate_episodes(0, PUBLISHED_LEVELS[:1], per_level=1))
    *parents, key = path.split(".")
    holder = episode
    for parent in parents:
        holder = holder[parent]
    if value is ...:
        del holder[key]
    else:
        holder[key] = value
    refused(ValueError, message, validate_episode, episode)


def test_rotation_flags_are_binary() -> None:
    (episode,) = generate_episodes(0, [CROWDED], per_level=1)
    episode["env"]["cores"]["clockwise"][2] = 2
    refused(ValueError, r"env.cores.clockwise may hold 0 and 1 only", validate_episode, episode)


def test_load_names_file_and_entry(tmp_path: Path) -> None:
    episodes = generate_episodes(0, PUBLISHED_LEVELS[:1], per_level=2)
    episodes[1]["robots"]["goal"].pop()
    (tmp_path / "bad.json").write_text(json.dumps(episodes))
    with pytest.raises(ValueError, match=r"bad.json, episode 1: robots.goal must be a list of length 3"):
        load_episodes(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text("{")
    refused(ValueError, r"bad.json: not valid JSON", load_episodes, tmp_path / "bad.json")
