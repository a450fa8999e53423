"""Recordings of matches: states as they were, and the events between them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from rlstack import envs
from rlstack.envs.echelon import rules
from rlstack.envs.echelon.recording import EchelonRecorder
from rlstack.envs.echelon.replay import COLUMNS, moment
from rlstack.envs.echelon.simulation import EVENTS
from tests.envs.echelon.episodes import DECISIONS, fight, fought


def counted(env: Any, name: str, world: int = 1) -> int:
    return int(env.worlds.events[EVENTS.index(name), ..., world].sum())


@pytest.mark.slow
def test_frames_are_the_states() -> None:
    env, recording = fight()
    frames, state = recording.frames, env.worlds.state
    assert frames.tick.tolist() == [5 * t for t in range(DECISIONS + 1)]
    assert [mech.name for mech in recording.record.mechs] == [f"{t}_{s}" for t in ("blue", "red") for s in range(5)]
    for name in ("yaw", "hp", "heat", "stability"):
        np.testing.assert_array_equal(getattr(frames, name)[-1], getattr(state, name)[..., 1].flatten().numpy())
    np.testing.assert_array_equal(frames.position[-1, 7], state.position[:, 1, 2, 1].numpy())
    np.testing.assert_array_equal(frames.clocks[-1, 3], state.clocks[0, :, 3, 1].numpy())
    np.testing.assert_array_equal(frames.score[-1], state.score[:, 1].numpy())
    assert {name: str(value.dtype) for name, value in vars(frames).items()} == {
        name: kind for name, (kind, _) in COLUMNS.items()
    }
    ground, base = recording.record.ground, int(state.base[1])
    assert int(ground.height[20, 41]) == int(env.tables.maps.height[base + 20 * 64 + 41])
    assert ground.zone == tuple(state.zone[:, 1].tolist()) and recording.options["opponent"] == "policy"


def test_events_are_all_that_the_simulation_counted() -> None:
    """Replays the sub-steps from the states; the world's own counters tell what must be found."""
    env, recording = fight()
    found = Counter(event.type for event in recording.record.events)
    pairs = {"laser_hit": "lasers", "flamer_hit": "flamers", "missile_launch": "missiles", "kinetic_fire": "kinetics"}
    pairs |= {"paint": "paints", "kill": "deaths", "assist": "assists", "ams_intercept": "intercepts"}
    pairs |= {"legged": "legged", "knock_down": "falls", "shutdown": "shutdowns"}
    assert {kind: found[kind] for kind in pairs} == {kind: counted(env, name) for kind, name in pairs.items()}
    assert min(found[kind] for kind in ("laser_hit", "kinetic_fire", "projectile_hit", "kill", "smoke_launch")) > 0
    kills = Counter(e.details["shooter"] for e in recording.record.events if e.type == "kill")
    names = [mech.name for mech in recording.record.mechs]
    assert {name: kills[name] for name in names} == dict(zip(names, recording.frames.kills[-1].tolist()))


def test_damage_and_deaths_are_those_of_the_frames() -> None:
    _, recording = fight()
    record, frames = recording.record, recording.frames
    for event in record.events:
        if event.type == "kill":
            place = [mech.name for mech in record.mechs].index(event.details["target"])
            after = int(np.searchsorted(frames.tick, event.tick))
            assert frames.hp[after, place] <= 0 < frames.hp[after - 1, place]
        if event.type in ("laser_hit", "projectile_hit"):
            assert event.details["damage"] > 0
            assert event.details["shooter"].split("_")[0] != event.details["target"].split("_")[0]


def test_shots_fly_from_their_owner_at_their_speed() -> None:
    _, recording = fight()
    speeds = {"missile": 12.0, "autocannon": 25.0, "smoke": 15.0}
    seen = Counter(flight.weapon for flight in recording.record.flights)
    assert seen["autocannon"] > 3 and seen["smoke"] > 0
    for flight in recording.record.flights:
        assert (np.diff(flight.ticks) == 1).all()
        way = np.linalg.norm(np.diff(flight.places, axis=0), axis=1) / rules.DT
        if flight.weapon in speeds and len(way) > 1:
            np.testing.assert_allclose(way[:-1], speeds[flight.weapon], rtol=1e-3)
        place = [mech.name for mech in recording.record.mechs].index(flight.owner)
        near = moment(recording.record, float(flight.ticks[0])).position[place]
        assert np.linalg.norm(near[:2] - flight.places[0, :2]) < 1.0


def test_smoke_spreads_where_its_shell_ends() -> None:
    _, recording = fight()
    record, frames = recording.record, recording.frames
    spread = [event for event in record.events if event.type == "smoke_cloud"]
    assert spread
    for event in spread:
        after = int(np.searchsorted(frames.tick, event.tick))
        away = np.linalg.norm(record.smoke[after][:, :3] - np.array(event.details["pos"]), axis=1)
        left = record.smoke[after][away.argmin(), 3]
        assert away.min() < 1e-2 and left == 200 - (frames.tick[after] - event.tick)
        assert any(flight.weapon == "smoke" and flight.ticks[-1] == event.tick for flight in record.flights)


def test_repeated_actions_are_told_in_full() -> None:
    env: Any = envs.make(
        "echelon", num_worlds=2, opponent="heuristic", action_repeat=3, seed=2, maps=2, visibility="partial"
    )
    recorder = EchelonRecorder(env, [1])
    fought(env, recorder, 8)
    recording = recorder.recordings()[0]
    assert recording.frames.tick.tolist() == [15 * t for t in range(9)]
    found = Counter(event.type for event in recording.record.events)
    assert found["laser_hit"] == counted(env, "lasers") and found["kinetic_fire"] == counted(env, "kinetics") > 0


def test_between_two_states_things_are_in_between() -> None:
    _, recording = fight()
    frames = recording.frames
    now = moment(recording.record, 2.5)
    np.testing.assert_allclose(now.position, (frames.position[0] + frames.position[1]) / 2, rtol=1e-5)
    np.testing.assert_array_equal(moment(recording.record, 5.0).hp, frames.hp[1])
    np.testing.assert_array_equal(moment(recording.record, 1e6).heat, frames.heat[-1])
