"""Recordings: one episode a world, from its first to its last state, and the events between states."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlstack import envs
from rlstack.envs.arena.env import Arena
from rlstack.envs.arena.recording import DURATION, ArenaRecorder, Effects, happened, snapshot
from tests.envs.arena.pictured import ENEMY_AT, SPAWNER_AT, rules_of, shown
from tests.envs.played import played


def test_recorded_frames_are_the_states_and_stay_as_they_were() -> None:
    env = Arena(num_worlds=3, start_phases=[4], seed=5)
    recorder, expected = ArenaRecorder(env, [1]), []
    torch.manual_seed(1)
    root = env.reset()
    for _ in range(130):
        recorder.add()
        expected.append(snapshot(env.worlds, 1, env.rules))
        root = env.step_mdp(env.step(env.rand_action(root)))
    for frame, state in zip(recorder.recordings()[0].frames, expected, strict=True):
        for name, value in vars(state).items():
            np.testing.assert_array_equal(getattr(frame, name), value, err_msg=name)
    last = expected[-1]
    assert len(last.enemies) == 8 and (last.spawner_health > 0).sum() == 5
    assert any(len(frame.bullets) for frame in expected) and any(len(frame.shots) for frame in expected)


def test_a_recording_ends_with_a_death() -> None:
    env = Arena(num_worlds=2)
    recorder, root = ArenaRecorder(env, [0, 1]), env.reset()
    for step in range(4):
        recorder.add()
        if step == 1:
            env.worlds.health[1] = 0  # stepped on all the same
        root = env.step_mdp(env.step(env.rand_action(root)))
    assert [[frame.step for frame in one.frames] for one in recorder.recordings()] == [[0, 1, 2, 3], [0, 1, 2]]


def test_every_step_of_a_repeated_action_is_recorded_up_to_the_end() -> None:
    env = envs.make("arena", num_worlds=2, action_repeat=4, max_steps=10, frame_stack=2)
    for actions, steps in ((2, 8), (3, 10), (4, 10)):
        recorder = env.recorder([0])
        played(env, recorder, actions)
        assert [frame.step for frame in recorder.recordings()[0].frames] == list(range(steps + 1))


# --- events


def test_events_are_where_they_happened() -> None:
    before = shown()
    later = {"step": before.step + 1}
    none = np.zeros((0, 2))
    shot = replace(before, enemies=none, enemy_speed=np.zeros(0), enemy_ready=np.zeros(0), **later)
    assert [(e.kind, e.at) for e in happened(before, shot, rules_of())] == [("kill", ENEMY_AT)]
    assert [
        (e.kind, e.at) for e in happened(replace(shot, step=before.step), replace(before, **later), rules_of())
    ] == [("birth", ENEMY_AT)]
    struck = replace(before, spawner_health=np.array([90.0, 0, 0, 0, 0]), **later)
    assert [(e.kind, e.at, e.slot) for e in happened(before, struck, rules_of())] == [("spawner hit", SPAWNER_AT, 0)]
    for health, kind in ((140.0, "hurt"), (0.0, "death")):
        assert [e.kind for e in happened(before, replace(before, health=health, **later), rules_of())] == [kind]


def test_a_new_phase_sweeps_the_board_and_a_win_does_not() -> None:
    before = shown()
    empty = {"enemies": np.zeros((0, 2)), "enemy_speed": np.zeros(0), "enemy_ready": np.zeros(0)}
    swept = replace(before, step=before.step + 1, phase=2, **empty)
    kinds = {(e.kind, e.at) for e in happened(before, swept, rules_of())}
    assert kinds == {("vanish", ENEMY_AT), ("destroyed", SPAWNER_AT)}
    won = replace(before, step=before.step + 1, phase=5, spawner_health=np.zeros(5))
    assert [e.kind for e in happened(replace(before, phase=4), won, rules_of())] == ["destroyed"]


def test_of_several_enemies_the_right_one_explodes() -> None:
    before = shown()
    places = np.array([[100.0, 100], [300, 100], [500, 100]])
    before = replace(before, enemies=places, enemy_speed=np.full(3, 2.0), enemy_ready=np.zeros(3))
    moved = np.array([[101.0, 101], [501, 101], [900, 900]])  # the last one is new
    now = replace(before, step=before.step + 1, enemies=moved)
    assert [(e.kind, e.at) for e in happened(before, now, rules_of())] == [("kill", (300, 100)), ("birth", (900, 900))]


@pytest.mark.slow
def test_a_played_episode_has_as_many_explosions_as_kills() -> None:
    env = Arena(num_worlds=6, style=2, start_phases=[4], seed=1)
    recorder = ArenaRecorder(env, range(6))
    played(env, recorder, 250)
    for one in recorder.recordings():
        frames = list(zip(one.frames[:-1], one.frames[1:]))
        counts = Counter(event.kind for pair in frames for event in happened(*pair, env.rules))
        assert (counts["kill"], counts["destroyed"]) == (one.frames[-1].kills, one.frames[-1].spawner_kills)
        assert counts["hurt"] + counts["death"] > 0


def test_effects_end_and_a_new_episode_starts_without_them() -> None:
    before, effects = shown(), Effects(rules_of())
    effects.watch(before)
    dead = replace(before, step=before.step + 1, health=0.0)
    effects.watch(dead)
    assert [event.kind for event in effects.events] == ["death"]
    effects.watch(dead, pause=DURATION["death"] - 1)
    assert [event.kind for event in effects.events] == ["death"]
    effects.watch(dead, pause=DURATION["death"])
    assert effects.events == []
    effects.watch(before)
    effects.watch(dead)
    effects.watch(replace(before, step=0))
    assert effects.events == []


@pytest.mark.parametrize(("style", "number", "thrusts"), [(1, 1, True), (1, 0, False), (2, 1, False)])
def test_thrust_is_known_by_the_speed_along_the_nose(style: int, number: int, thrusts: bool) -> None:
    env, effects = Arena(num_worlds=1, style=style), Effects(rules_of(style))
    root = env.reset()
    for _ in range(3):
        root = env.step_mdp(env.step(root.set("action", torch.tensor([number]))))
        effects.watch(snapshot(env.worlds, 0, env.rules))
    assert effects.thrusting is thrusts
