"""Recordings of matches, and their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlstack.envs.recording import Frames
from rlstack.envs.rocket.actions import controls
from rlstack.envs.rocket.env import Rocket
from rlstack.envs.rocket.recording import ABSENT, COLUMNS, RocketAnimation, RocketRecorder, RocketRecording, load_replay
from tests.envs.played import played
from tests.refusals import refused

STEP = 2  # ticks


@pytest.fixture(scope="module")
def recorded() -> RocketRecording:
    env = Rocket(num_worlds=2, blue=1, orange=2, max_seconds=0.125, tick_skip=STEP)
    recorder = RocketRecorder(env, [1], ["a title"])
    played(env, recorder, 9)
    return recorder.recordings()[0].named(("ours", "theirs"), "a title")


def test_a_recording_ends_with_its_episode(recorded: RocketRecording) -> None:
    clock = recorded.frames.clock
    assert clock.tolist() == [STEP * step for step in range(9)]  # 16 ticks are just above an eighth of a second
    assert recorded.options["orange"] == 2 and recorded.goals == (0, 0)
    assert (recorded.frames.gone[:, 1] == ABSENT).all() and (recorded.frames.gone[:, [0, 2, 3]] == 0).all()


def test_recorded_frames_are_the_states_and_what_was_pressed() -> None:
    env = Rocket(num_worlds=3, seed=4, random_states=1.0, kick_offs=0.0, tick_skip=STEP)
    recorder = RocketRecorder(env, [2])
    taken = played(env, recorder, 5)
    frames = recorder.recordings()[0].frames
    cars, ball = env.worlds.world.cars, env.worlds.world.ball
    np.testing.assert_array_equal(frames.ball_position[-1], ball.position[:, 2].numpy())
    np.testing.assert_array_equal(frames.rotation[-1, 1, 2], cars.rotation[2, :, 1, 2].numpy())  # up, of orange
    np.testing.assert_array_equal(frames.boost[-1], cars.boost[:, 2].numpy())
    assert not frames.controls[0].any()
    for row, stepped in zip(frames.controls[1:], taken, strict=True):
        np.testing.assert_array_equal(row, controls("multi", stepped["agents", "action"])[:, :, 2].T.numpy())
    assert {name: str(value.dtype) for name, value in vars(frames).items()} == {
        name: kind for name, (kind, _) in COLUMNS.items()
    }


def test_between_two_states_things_are_in_between() -> None:
    env = Rocket(num_worlds=1, random_states=1.0, kick_offs=0.0, seed=2, tick_skip=STEP)
    recorder = RocketRecorder(env, [0])
    played(env, recorder, 2)
    recording = recorder.recordings()[0]
    frames, middle = recording.frames, recording.at(STEP / 2)
    np.testing.assert_allclose(middle.position, (frames.position[0] + frames.position[1]) / 2, rtol=1e-5, atol=0.01)
    np.testing.assert_allclose(
        middle.rotation @ middle.rotation.transpose(0, 2, 1), np.tile(np.eye(3), (2, 1, 1)), atol=1e-5
    )
    np.testing.assert_allclose(recording.at(STEP).rotation, frames.rotation[1], atol=1e-6)
    far = {name: value.copy() for name, value in vars(frames).items()}
    far["position"][1, 0] = (4000.0, -4000.0, 17.0)  # it came back elsewhere
    far["position"][0, 0] = (-4000.0, 4000.0, 17.0)
    leapt = RocketRecording(Frames(**far)).at(STEP / 2)
    assert leapt.position[0].tolist() == [-4000.0, 4000.0, 17.0]


@pytest.mark.slow
def test_the_landing_is_where_the_ball_comes_down() -> None:
    env = Rocket(num_worlds=1, tick_skip=2)
    env.reset()
    ball = env.worlds.world.ball
    ball.position[:, 0], ball.velocity[:, 0] = torch.tensor([-1500.0, -1000, 300]), torch.tensor([500.0, 900, 700])
    recorder = RocketRecorder(env, [0])
    recorder.add()
    nothing = TensorDict({"agents": {"action": torch.tensor([[[2, 2, 2, 2, 2, 0, 0, 0]] * 2])}}, [1])
    for _ in range(170):
        env.step(nothing.clone())
        recorder.add()
    recording = recorder.recordings()[0]
    down = int(recording.frames.ball_position[:, 2].argmin())
    _, landing = RocketAnimation(recording)._flight(recording.at(0.0))
    assert landing is not None
    assert np.linalg.norm(landing[:2] - recording.frames.ball_position[down, :2]) < 40.0


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_replay_is_the_recording(recorded: RocketRecording, tmp_path: Path) -> None:
    recorded.save_replay(tmp_path / "deep" / "one.npz")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["one.npz"]
    read = load_replay(tmp_path / "deep" / "one.npz")
    assert (read.players, read.title, dict(read.options)) == (("ours", "theirs"), "a title", dict(recorded.options))
    for name, value in vars(recorded.frames).items():
        np.testing.assert_array_equal(getattr(read.frames, name), value, err_msg=name)
        assert getattr(read.frames, name).dtype == value.dtype
    refused(ValueError, r"the ending of a replay is \.npz", recorded.save_replay, tmp_path / "one.json")


def changed(path: Path, **entries: Any) -> None:
    """Rewrites a replay with other entries; None drops one."""
    with np.load(path, allow_pickle=False) as archive:
        content = {name: archive[name] for name in archive.files}
    content = {name: value for name, value in {**content, **entries}.items() if value is not None}
    np.savez_compressed(path, **content)


def meta(**changes: Any) -> np.ndarray[Any, Any]:
    usual = {"format": "rlstack-replay", "version": 1, "world": "rocket", "players": ["a", "b"], "options": {}}
    return np.array(json.dumps({**usual, **changes}))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"meta": meta(version=2)}, "version 2, this program reads version 1"),
        ({"meta": np.array("{")}, "not a replay of rocket"),
        ({"meta": None}, "not a replay of rocket"),
        ({"meta": meta(players=["one"])}, r"players \['one'\] are not two names"),
        ({"boost": None}, "not a whole replay, 'boost' is missing"),
        ({"boost": np.zeros((9, 3), np.float32)}, r"boost \(9, 3\), expected \[T\] and \[T, C\] with C of 2, 4 or 6"),
        ({"pads": np.zeros((9, 30), np.int16)}, r"pads is int16 \[9, 30\], expected int16 \[9, 34\]"),
        ({"ball_spin": np.zeros((8, 3), np.float32)}, r"ball_spin is float32 \[8, 3\], expected float32 \[9, 3\]"),
        ({"spin": np.full((9, 4, 3), np.nan, np.float32)}, "spin holds numbers that are not finite"),
        ({"clock": np.zeros(9, np.float32)}, "clock does not ascend"),
        ({"gone": np.full((9, 4), -2, np.int16)}, "gone holds numbers below -1"),
        ({"boost": np.array([None] * 9, object)}, r"damaged, or no \.npz"),  # would have to be unpickled
    ],
)
def test_wrong_files_are_one_line(
    recorded: RocketRecording, tmp_path: Path, entries: dict[str, Any], message: str
) -> None:
    recorded.save_replay(tmp_path / "one.npz")
    changed(tmp_path / "one.npz", **entries)
    refused(ValueError, message, load_replay, tmp_path / "one.npz")
