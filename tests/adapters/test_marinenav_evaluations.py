"""``evaluations.npz``: the published trainer's file is read, reproduced and written; hostile files are refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlstack.adapters.marinenav.evaluations import Episode, Evaluations, RobotHistory, play_episodes, read_evaluations
from rlstack.config import ConfigError
from tests.envs.marinenav.recorded import actor
from tests.evaluation.scripted import Scripted, episodes, full_ahead
from tests.refusals import refused

NAMES = ["timesteps", "observations", "actions", "trajectories", "rewards", "successes", "times"]
NAMES += ["energies", "relations"]


def as_users_load_it(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=True) as file:  # files that these tests wrote, or recorded themselves
        return {name: file[name] for name in file.files}


def assert_alike(ours: Any, theirs: Any, where: str) -> None:
    """Asserts the same nesting of lists and the same numbers up to rounding."""
    if isinstance(theirs, list):
        assert isinstance(ours, list) and len(ours) == len(theirs), where
        for index, (one, other) in enumerate(zip(ours, theirs)):
            assert_alike(one, other, f"{where}[{index}]")
    elif theirs is None:
        assert ours is None, where
    else:
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-7), where


def history(steps: int, absent: int = 0, choices: bool = False) -> RobotHistory:
    """Returns made-up numbers, all different; step t shows t % 3 objects."""
    rng = np.random.default_rng(steps)
    mask = np.arange(5) < np.arange(steps + 1)[:, None] % 3
    objects = rng.normal(size=(steps + 1, 5, 5)) * mask[..., None]
    action = rng.integers(0, 25, steps) if choices else rng.normal(size=(steps, 2))
    own, trajectory = rng.normal(size=(steps + 1, 7)), rng.normal(size=(steps + 1, 13))
    return RobotHistory(own, objects, mask, action, trajectory, absent)


def assert_same(one: Evaluations, other: Evaluations) -> None:
    np.testing.assert_equal(dataclasses.asdict(one), dataclasses.asdict(other))


# --- the published file


def test_the_published_file_is_read(fixtures_dir: Path) -> None:
    evaluations = read_evaluations(fixtures_dir / "marinenav/evaluations_example.npz")
    assert evaluations.timesteps == [2000, 60000]
    first, second = evaluations.episodes[0]
    assert [robot.action.shape for robot in first.robots] == [(29, 2), (24, 2)]
    assert [robot.trajectory.shape for robot in first.robots] == [(30, 13), (25, 13)]
    assert [robot.absent for robot in first.robots] == [0, 5]  # 30 observations each, the last five of nothing
    assert len(second.robots) == 3 and second.robots[0].mask[0].sum() == 1
    assert first.time == (29 + 24) / 2 * 0.5
    row = evaluations.summary()[1]
    assert row == pytest.approx(
        {
            "timestep": 60000,
            "success": 1.0,
            "return": (35.046861289551686 + 36.4368055304287) / 2,
            "time": (13.25 + 17.166666666666668) / 2,
            "energy": (22161.60461509451 + 26542.05071585253) / 2,
        }
    )


def test_our_evaluation_of_the_released_actor_makes_the_published_file(fixtures_dir: Path, tmp_path: Path) -> None:
    folder = fixtures_dir / "marinenav"
    configs = json.loads((folder / "evaluations_example_configs.json").read_text())
    policy = Scripted(actor(folder / "AC_IQN_params.npz"))
    evaluations, _ = play_episodes(policy, configs, noise_robots=3, dtype=torch.float64)
    ours = Evaluations()
    ours.add(2000, evaluations)
    ours.add(60000, evaluations)
    ours.save(tmp_path / "evaluations.npz")
    mine, theirs = (
        as_users_load_it(path) for path in (tmp_path / "evaluations.npz", folder / "evaluations_example.npz")
    )
    assert list(mine) == list(theirs) == NAMES
    for name in NAMES:
        assert (mine[name].shape, mine[name].dtype) == (theirs[name].shape, theirs[name].dtype), name
        assert_alike(mine[name].tolist(), theirs[name].tolist(), name)


# --- the rules of an evaluated episode


def test_the_first_collision_ends_the_recording_of_everybody() -> None:
    evaluations, statistics = play_episodes(Scripted(full_ahead), [episodes()["collides"]], 5, dtype=torch.float64)
    robots = evaluations[0].robots
    assert len({len(robot.action) for robot in robots}) == 1 and robots[0].absent == 0
    assert len(robots[0].action) == int(statistics["length"]) and not evaluations[0].success


def test_an_episode_does_not_depend_on_its_company(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [episodes()[name] for name in ("arrives", "collides", "both")]
    policy = Scripted(full_ahead)
    together, _ = play_episodes(policy, configs, 5, dtype=torch.float64)
    monkeypatch.setattr("rlstack.adapters.marinenav.evaluations.MAX_WORLDS", 2)
    in_turns, statistics = play_episodes(policy, configs, 5, dtype=torch.float64)
    assert len(statistics["length"]) == 3
    assert_same(Evaluations([0], [together]), Evaluations([0], [in_turns]))


# --- writing and reading


@pytest.mark.parametrize("choices", [False, True])
def test_what_is_written_is_read(tmp_path: Path, choices: bool) -> None:
    ours = Evaluations()
    ours.add(20, [Episode([history(3, 2, choices), history(5, 0, choices)], 1.5, False, 2.0, 7.0)])
    ours.add(40, [Episode([history(4, 0, choices)], -1.5, True, 2.5, 8.0)])
    ours.save(tmp_path / "file.npz")
    assert_same(read_evaluations(tmp_path / "file.npz"), ours)
    loaded = as_users_load_it(tmp_path / "file.npz")
    assert loaded["observations"].shape == (2, 1)
    assert loaded["observations"][0][0][0][-1] == [None, None]
    assert [len(robot) for robot in loaded["actions"][0][0]] == [3, 5]
    assert [path.name for path in tmp_path.iterdir()] == ["file.npz"]


def test_numbers_as_numpy_has_them_are_read_too(tmp_path: Path) -> None:
    """Covers other writers: arrays within lists, numbers of any width, arrays of plain numbers."""
    one = history(2)
    entry = [[np.float32(x) for x in one.own[0]], [list(row) for row in one.objects[1][:1]]]
    robots = {
        "observations": [[[one.own[0], []], entry, entry]],
        "actions": [[np.int64(3), np.uint8(24)]],
        "trajectories": [list(one.trajectory.astype(">f8"))],
        "relations": [[]],
    }
    arrays = {name: np.empty((1, 1), object) for name in robots}
    for name, value in robots.items():
        arrays[name][0, 0] = value
    numbers = {"rewards": np.array([[1.5]]), "times": np.array([[2]]), "energies": np.array([[3.0]], np.float32)}
    np.savez(
        tmp_path / "file.npz",
        timesteps=np.array([7]),
        successes=np.array([[np.bool_(True)]], object),
        **arrays,
        **numbers,
    )
    episode = read_evaluations(tmp_path / "file.npz").episodes[0][0]
    (robot,) = episode.robots
    np.testing.assert_array_equal(robot.own[0], one.own[0])
    np.testing.assert_array_equal(robot.own[1], one.own[0].astype(np.float32))
    np.testing.assert_array_equal(robot.action, [3, 24])
    np.testing.assert_array_equal(robot.trajectory, one.trajectory)
    assert (episode.reward, episode.success, episode.time) == (1.5, True, 2.0)


def test_a_resumed_run_replaces_the_evaluations_of_the_future_it_left_behind() -> None:
    ours = Evaluations()
    for step in (20, 40, 60):
        ours.add(step, [Episode([history(1)], float(step), False, 0.5, 1.0)])
    ours.add(40, [Episode([history(1)], -1.0, False, 0.5, 1.0)])
    assert ours.timesteps == [20, 40]
    assert [row["return"] for row in ours.summary()] == [20.0, -1.0]
    assert ours.summary()[0]["time"] is None


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    ours = Evaluations()
    ours.add(2000, [Episode([], 3.0, True, 12.5, 900.0), Episode([], 1.0, False, 50.0, 100.0)])
    ours.print_table()
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["timestep", "success", "return", "time", "energy"]
    assert row.split() == ["2000", "0.500", "2.00", "12.50", "900"]


# --- files that are refused


class Scalar:
    """An object whose pickle is that of a numpy number with a buffer of pointers."""

    def __reduce__(self) -> Any:
        return np.float64(1.0).__reduce__()[0], (np.dtype("O"), b"\0" * 8)


@pytest.mark.parametrize("value", [np.zeros(2, [("a", "f8"), ("b", "i4")]), Scalar(), [1.0]])
def test_anything_but_arrays_of_plain_numbers_is_refused(value: Any, tmp_path: Path) -> None:
    array = np.empty(1, object)
    array[0] = value
    np.savez(tmp_path / "file.npz", **dict.fromkeys(NAMES, array))
    refused(ConfigError, r"file\.npz: (refused|not a )", read_evaluations, tmp_path / "file.npz")


@pytest.mark.parametrize("actions", [["left"], [[1.0, 2.0, 3.0]], [None]])
def test_actions_that_are_none(tmp_path: Path, actions: list[Any]) -> None:
    ours = Evaluations()
    ours.add(20, [Episode([dataclasses.replace(history(1), action=Listed(actions))], 1.5, False, 2.0, 7.0)])
    ours.save(tmp_path / "file.npz")
    refused(ConfigError, r"not a MarineNav evaluations\.npz \(actions of", read_evaluations, tmp_path / "file.npz")


class Listed(list[Any]):
    def tolist(self) -> list[Any]:
        return [*self]


def test_files_of_another_kind_end_in_one_line(tmp_path: Path) -> None:
    text, other = tmp_path / "text.npz", tmp_path / "other.npz"
    text.write_text("hello")
    np.savez(other, timesteps=np.zeros(3))
    for file, time in (("empty.npz", 0.0), ("endless.npz", np.inf)):
        np.savez(tmp_path / file, **{name: np.zeros((1, 0)) for name in NAMES} | {"timesteps": np.full(1, time)})
    for path, message in (
        (tmp_path / "empty.npz", "an evaluation without episodes"),
        (tmp_path / "endless.npz", "not a MarineNav evaluations.npz"),
        (tmp_path / "none.npz", "No such file"),
        (text, "not a file of such arrays"),
        (other, "lacks observations, actions"),
    ):
        assert refused(ConfigError, message, read_evaluations, path).startswith(str(path))
