"""Recorders of all worlds: an episode from its first to its last state, and another after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlstack import envs
from tests.refusals import refused

WORLDS: dict[str, dict[str, Any]] = {
    "arena": {"max_steps": 3},
    "marinenav": {"max_steps": 2},
    "rocket": {"max_seconds": 0.2},
    "echelon": {"blue": 1, "red": 2, "maps": 2, "max_steps": 3},
}
"""Options with which an episode takes three steps."""
CLOCKS = {"arena": 1, "marinenav": 1, "rocket": 8, "echelon": 5}


def clocks(world: str, recording: Any) -> list[float]:
    """Returns the times of a recording's states in steps."""
    if world == "marinenav":
        return list(range(len(recording.pose)))
    frames = recording.frames
    times = [frame.step for frame in frames] if world == "arena" else getattr(frames, "clock", None)
    times = frames.tick if times is None else times
    return [float(time) / CLOCKS[world] for time in times]


@pytest.mark.parametrize("world", list(WORLDS))
def test_one_episode_after_another(world: str) -> None:
    wrapped = {"frame_stack": 2} if world in ("arena", "rocket") else {}  # wrapped worlds are recorded, too
    env = envs.make(world, num_worlds=3, **WORLDS[world], **wrapped)
    recorder = env.recorder([2, 0])
    refused(ValueError, r"call add\(\) after the reset", recorder.recordings)
    torch.manual_seed(0)
    root, lengths = env.reset(), []
    recorder.add()
    for _ in range(8):
        stepped = env.step(env.rand_action(root))
        recorder.add()
        if over := bool(stepped["next", "done"].all()):
            lengths.append(clocks(world, recorder.finish(0)))
        root = env.maybe_reset(env.step_mdp(stepped))
        if over:
            recorder.begin()
    assert lengths == [[0, 1, 2, 3]] * 2
    assert clocks(world, recorder.recordings()[0]) == [0, 1, 2]
    assert clocks(world, recorder.recordings()[1]) == [0, 1, 2, 3]  # the first, since it was not finished
    recording = recorder.finish(0)
    assert recording.title == "world 2" and recording.overview().ndim == 3 and recording.legend()


@pytest.mark.parametrize("world", list(WORLDS))
def test_a_restart_ends_a_recording(world: str) -> None:
    env = envs.make(world, num_worlds=1, **WORLDS[world])
    recorder = env.recorder([0], ["one"])
    for _ in range(2):
        root = env.reset()
        recorder.add()
        env.step(env.rand_action(root))
        recorder.add()
    assert clocks(world, recorder.recordings()[0]) == [0, 1]


def test_worlds_and_titles_must_fit_the_env() -> None:
    env = envs.make("arena", num_worlds=2)
    refused(ValueError, r"worlds: \[2\] are not among the 2 worlds", env.recorder, [1, 2])
    refused(ValueError, "1 titles for 2 worlds", env.recorder, [0, 1], ["one"])
