"""Recordings of a stepped env, and pictures of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlstack.envs.marinenav.episodes import make_episode
from rlstack.envs.marinenav.recording import MarineNavRecorder, view
from tests.envs.marinenav.recorded import act, assert_close, build, lively_episodes, replayed, robot
from tests.exhaustive import exhaustive
from tests.refusals import refused


@exhaustive("name", ["rollout_04", "rollout_22", "rollout_38"])
def test_a_recording_holds_what_happened(name: str) -> None:
    record, recording, _ = replayed(name)
    assert recording.title == "replay" and recording.dt == pytest.approx(0.5)
    assert_close(recording.pose, np.concatenate((record["init_pose"][None], record["pose"])), "pose")
    for ours, theirs in (("status", "info"), ("reached", "reach_goal")):
        np.testing.assert_array_equal(getattr(recording, ours)[1:], record[theirs])
    np.testing.assert_array_equal(recording.active[1:], ~record["deactivated_after"])
    np.testing.assert_array_equal(recording.active[0], True)
    for ours, theirs in (("goal", "goal"), ("start", "start"), ("obstacles", "obstacles"), ("cores", "cores")):
        assert_close(getattr(recording, ours), record[theirs], ours)
    assert_close(recording.perceived[1:], record["obs_objects"], "perceived")
    np.testing.assert_array_equal(recording.perceived_mask[1:].sum(-1), record["n_objects"].clip(0))
    assert recording.success == record["reach_goal"][-1].all()


def test_arriving_and_colliding_in_one_step_is_a_success_as_published() -> None:
    _, recording, td = replayed("rollout_25")
    assert recording.status[-1].tolist() == [2]
    assert recording.success and recording.collision
    assert bool(td["episode", "success"]) is bool(td["episode", "collision"]) is True


def test_each_world_is_recorded_up_to_its_end() -> None:
    env = build(4, 5, end_on_collision=True, max_steps=30)
    td = env.reset_to(lively_episodes())
    recorder = MarineNavRecorder(env, [3, 0, 1])
    recorder.add()
    ends: dict[int, int] = {}
    generator = torch.Generator().manual_seed(3)
    for step in range(1, 35):
        td = act(env, td, 2 * torch.rand(4, 5, 2, generator=generator, dtype=torch.float64) - 1)
        recorder.add()
        for world in td["done"][:, 0].nonzero()[:, 0].tolist():
            ends.setdefault(world, step)
    recordings = recorder.recordings()
    assert [len(r.pose) - 1 for r in recordings] == [ends[3], ends[0], ends[1]]
    assert len({*ends.values()}) > 1
    assert [r.title for r in recordings] == ["world 3", "world 0", "world 1"]
    assert [len(r.robots) for r in recordings] == [4, 5, 2]
    assert [len(r.obstacles) for r in recordings] == [3, 7, 1]
    assert [len(r.cores) for r in recordings] == [0, 0, 3]
    assert recordings[0].overview().shape == (270, 240, 3)  # without a current


def test_a_recording_may_consist_of_the_start_alone() -> None:
    env = build(1, 1)
    env.reset_to([make_episode([robot((20.0, 20.0))])])
    recorder = MarineNavRecorder(env, [0])
    refused(ValueError, r"call add\(\) after the reset", recorder.recordings)
    recorder.add()
    (recording,) = recorder.recordings()
    assert recording.pose.shape == (1, 1, 3) and recording.dt == 0.5
    assert not recording.success


def test_frames_of_unequal_vessels_have_the_longest_vessel_s_time() -> None:
    slow, quick = robot((20.0, 20.0)), robot((40.0, 40.0), N=4)
    env = build(1, 2)
    td = env.reset_to([make_episode([slow, quick])])
    recorder = MarineNavRecorder(env, [0])
    recorder.add()
    for _ in range(3):
        td = act(env, td, torch.zeros(1, 2, 2, dtype=torch.float64))
        recorder.add()
    assert recorder.recordings()[0].dt == pytest.approx(0.5)


def test_a_chart_grows_when_a_robot_leaves_the_map_but_not_without_end() -> None:
    assert view(np.array([[20.0, 10.0], [30.0, 40.0]]), 3.0) == (57.0, -2.0, 59.0)
    north, _, side = view(np.array([[20.0, 10.0], [1000.0, 40.0]]), 3.0)
    assert (north, side) == (75.0, 77.0)
