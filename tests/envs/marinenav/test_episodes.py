"""Episodes: files of them, and the published generator."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlstack.envs.marinenav.episodes import (
    PUBLISHED_LEVELS,
    default_robot,
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
        ("env.goal_rewards", 1.0, r"env has unknown keys \['goal_rewards'\]; allowed are .*'goal_reward'"),
        ("env.seed", 1.5, r"env.seed must be an integer, got 1.5"),
        ("env.is_eval_env", 1, r"env.is_eval_env must be true or false, got 1"),
        ("env.num_robots", 2, r"robots.dt must be a list of length 2, got \[0.05, 0.05, 0.05\]"),
        ("env.num_robots", 0, r"env.num_robots must be positive, got 0"),
        ("env.cores.positions", 3, r"env.cores.positions must be a list"),
        ("env.obstacles.positions", [[1.0, 2.0]], r"env.obstacles.r must be a list of length 1, got \[\]"),
        ("robots.start", [[1, 2], [3], [4, 5]], r"robots.start\[1\] must be a list of length 2, got \[3\]"),
        ("robots.init_theta", [0.0, float("nan"), 0.0], r"robots.init_theta\[1\] .*finite number, got nan"),
        ("robots.m", [400, True, 400], r"robots.m\[1\] must be a finite number, got True"),
        ("robots.N", [10, 0, 10], r"robots.N\[1\] must be positive, got 0"),
        ("robots.perception.range", ..., r"robots.perception lacks \['range'\]"),
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


# -- the generator reproduces published evaluation sets bit for bit; its clearances ------------------------------------


def assert_reproduces(records: list[dict[str, Any]]) -> None:
    """Equality of floats here is equality to the last bit; the published files hold their full repr."""
    for seed in {record["set_seed"] for record in records}:
        episodes = generate_episodes(seed, PUBLISHED_LEVELS, per_level=10)
        assert len(episodes) == 60
        for record in records:
            if record["set_seed"] == seed:
                assert episodes[record["eval_id"]] == record["config"], record["eval_id"]


def test_generator_reproduces_the_published_evaluation_set(fixtures_dir: Path) -> None:
    records = json.loads(gzip.decompress((fixtures_dir / "marinenav/eval_configs_253.json.gz").read_bytes()))
    assert [record["eval_id"] for record in records] == list(range(0, 60, 2))
    assert_reproduces(records)


@pytest.mark.slow
@pytest.mark.shared
def test_generator_reproduces_all_published_sets(shared_dir: Path) -> None:
    path = shared_dir / "golden/marinenav/eval_configs_public.json.gz"
    records = json.loads(gzip.decompress(path.read_bytes()))
    assert {record["set_seed"] for record in records} == {253, 254, 255, 256}
    assert_reproduces(records)


def test_generated_worlds_with_currents_obey_the_published_clearances() -> None:
    flags = []
    for episode in generate_episodes(7, [CROWDED], per_level=10):
        validate_episode(episode)
        env, robots = episode["env"], episode["robots"]
        start, goal = np.array(robots["start"]), np.array(robots["goal"])
        cores, obstacles = np.array(env["cores"]["positions"]), np.array(env["obstacles"]["positions"])
        flag = np.array(env["cores"]["clockwise"])
        assert (len(start), len(cores), len(obstacles)) == (6, 8, 8)
        assert (np.linalg.norm(goal - start, axis=-1) >= 30).all()
        assert min(closest(start), closest(goal)) > 10
        anchors = np.concatenate((start, goal))
        assert min(gaps(cores, anchors).min(), gaps(obstacles, anchors).min() - 0.5) >= 10.5
        assert gaps(obstacles, cores).min() > 1.5 and closest(obstacles) > 2
        assert cores.min() >= 0.5 and cores.max() <= 54.5
        assert min(closest(cores[flag == 0]), closest(cores[flag == 1])) >= 3.0
        opposite = gaps(cores[flag == 0], cores[flag == 1])
        assert ((opposite >= 1.625) | (opposite < 1.0)).all()
        assert np.allclose(env["cores"]["Gamma"], 9.42477796076938, rtol=1e-15)
        flags.extend(flag)
    assert 0.3 < np.mean(flags) < 0.7


def gaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.linalg.norm(a[:, None] - b, axis=-1)


def closest(points: np.ndarray) -> float:
    return float((gaps(points, points) + 1e9 * np.eye(len(points))).min(initial=1e9))


def test_config_counts_what_could_be_placed() -> None:
    level = CROWDED | {"num_robots": 40, "num_cores": 0, "num_obstacles": 0}
    (episode,) = generate_episodes(3, [level], per_level=1)
    assert 1 < episode["env"]["num_robots"] < 40
    assert len(episode["robots"]["start"]) == episode["env"]["num_robots"]
    validate_episode(episode)


def test_impossible_or_misspelt_levels_are_errors() -> None:
    with pytest.raises(ValueError, match="no robot could be placed in 500 attempts"):
        generate_episodes(0, [CROWDED | {"min_start_goal_dis": 80.0}], per_level=1)
    with pytest.raises(ValueError, match=r"levels\[1\] has unknown keys \['robots'\]; allowed are .*num_robots"):
        generate_episodes(0, [CROWDED, CROWDED | {"robots": 3}], per_level=1)


def test_episodes_share_no_mutable_value() -> None:
    first, second = generate_episodes(0, PUBLISHED_LEVELS[:1], per_level=2)
    first["env"]["v_range"][0] = -1.0
    first["robots"]["left_thrust_change"][0][0] = -1.0
    assert second["env"]["v_range"][0] == 3.0 and first["robots"]["left_thrust_change"][1][0] == 0.0
    assert default_robot((0, 0), (1, 1), 0)["left_thrust_change"][0] == 0.0
