"""Recorded matches, their replays, and the page that plays them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlstack import envs
from rlstack.envs.echelon import rules
from rlstack.envs.echelon.recording import EchelonRecorder, EchelonRecording, load_replay
from rlstack.envs.echelon.replay import COLUMNS, as_json, main, moment, page, save_page
from rlstack.envs.echelon.simulation import EVENTS
from tests.conftest import REPO
from tests.envs.echelon.episodes import DECISIONS, fight, fought
from tests.exhaustive import exhaustive
from tests.refusals import refused


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
    fought(env, recorder, 3)
    recording = recorder.recordings()[0]
    assert recording.frames.tick.tolist() == [15 * t for t in range(4)]
    found = Counter(event.type for event in recording.record.events)
    assert found["laser_hit"] == counted(env, "lasers") and found["kinetic_fire"] == counted(env, "kinetics") > 0


def test_between_two_states_things_are_in_between() -> None:
    _, recording = fight()
    frames = recording.frames
    now = moment(recording.record, 2.5)
    np.testing.assert_allclose(now.position, (frames.position[0] + frames.position[1]) / 2, rtol=1e-5)
    np.testing.assert_array_equal(moment(recording.record, 5.0).hp, frames.hp[1])
    np.testing.assert_array_equal(moment(recording.record, 1e6).heat, frames.heat[-1])


# -- Recordings as files are read back without loss, and wrong files give one line -----------------------------------


@pytest.fixture(scope="module")
def recorded() -> EchelonRecording:
    return fight()[1]


@pytest.fixture
def document(recorded: EchelonRecording, tmp_path: Path) -> dict[str, Any]:
    recorded.save_replay(tmp_path / "one.json")
    content: dict[str, Any] = json.loads((tmp_path / "one.json").read_text())
    return content


def test_a_replay_is_the_recording(recorded: EchelonRecording, tmp_path: Path) -> None:
    recorded.save_replay(tmp_path / "deep" / "one.json")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["one.json"]
    read = load_replay(tmp_path / "deep" / "one.json")
    assert (read.players, read.title, dict(read.options)) == (("ours", "theirs"), "a title", dict(recorded.options))
    for name, value in vars(recorded.frames).items():
        np.testing.assert_array_equal(getattr(read.frames, name), value, err_msg=name)
        assert getattr(read.frames, name).dtype == value.dtype
    one, other = read.record, recorded.record
    assert (one.mechs, one.events, one.winner, one.to_win) == (other.mechs, other.events, other.winner, other.to_win)
    np.testing.assert_array_equal(one.ground.height, other.ground.height)
    np.testing.assert_array_equal(one.ground.kind, other.ground.kind)
    assert one.ground.zone == other.ground.zone
    for cloud, cloud_before in zip(one.smoke, other.smoke, strict=True):
        np.testing.assert_array_equal(cloud, cloud_before)
    for flight, before in zip(one.flights, other.flights, strict=True):
        for name, value in vars(before).items():
            np.testing.assert_array_equal(getattr(flight, name), value, err_msg=name)
    refused(ValueError, r"the ending of a replay is \.json", recorded.save_replay, tmp_path / "one.npz")


def test_the_documented_entries_are_there(document: dict[str, Any]) -> None:
    world, frame = document["world"], document["frames"][-1]
    assert world["size"] == [64, 64, 20] and np.array(world["heights"]).shape == (64, 64)
    assert len(document["frames"]) == DECISIONS + 1 and frame["tick"] == 5 * DECISIONS and frame["t"] == DECISIONS / 4
    assert set(frame["objective"]) == {"center", "radius", "score", "to_win", "control"}
    heavy = document["frames"][0]["mechs"]["red_0"]
    named = {"team": "red", "class": "heavy", "hp": 200, "hp_max": 200, "heat_cap": 130}
    assert {name: heavy[name] for name in named} == named
    assert heavy["heat"] == 120 and heavy["alive"] and not heavy["fallen"] and not heavy["shutdown"]
    painted = [mech["painted_time"] for frame in document["frames"] for mech in frame["mechs"].values()]
    assert 0 < max(painted) <= 5.0
    for frame in document["frames"]:
        for part in frame["projectiles"]:
            assert all(frame["tick"] - 5 < point[0] <= frame["tick"] for point in part["path"])
        assert all(frame["tick"] - 5 < event["tick"] <= frame["tick"] for event in frame["events"])


def set_in(path: str, value: Any) -> Any:
    """Returns a function that changes one entry, found by its keys; ... removes it."""

    def change(document: Any) -> None:
        *keys, last = [int(key) if key.isdigit() else key for key in path.split("/")]
        for key in keys:
            document = document[key]
        document[last] = value
        if value is ...:
            del document[last]

    return change


@exhaustive(
    ("change", "message"),
    [
        (set_in("schema_version", 2), "schema_version 2, this program reads version 1"),
        (set_in("kind", "rocket"), "not a replay of echelon"),
        (set_in("frames", []), "a replay needs at least one"),
        (set_in("frames/3/tick", 2), "tick does not ascend"),
        (set_in("frames/3/mechs/blue_0/pos", [1, 2]), "position holds .*rows of different"),
        (set_in("frames/3/mechs/blue_0/heat", None), "heat holds (something|numbers that are not finite)"),
        (set_in("frames/3/mechs/blue_0", ...), "frame 3 has other mechs than the first"),
        (set_in("frames/3/mechs/blue_0/yaw", ...), "not a whole replay, 'yaw' is missing"),
        (set_in("world/heights", [[0] * 64] * 63), r"world.heights has the shape \[63, 64\], expected \[64, 64\]"),
        (set_in("world/terrain", [[9] * 64] * 64), "world.terrain holds numbers that are not within 0 to 4"),
        (set_in("frames/3/events", [{"tick": 1, "type": "dance"}]), "event of the unknown type 'dance'"),
        (set_in("frames/3/events", [{"tick": 1, "type": "legged", "mech": "x"}]), "event: mech 'x' is not a mech"),
        (set_in("frames/3/projectiles", 5), "a part has another shape than it should"),
        (set_in("winner", "green"), "'green' is missing|winner"),
    ],
)
def test_wrong_files_are_one_line(document: dict[str, Any], tmp_path: Path, change: Any, message: str) -> None:
    change(document)
    (tmp_path / "wrong.json").write_text(json.dumps(document))
    assert "wrong.json: " in refused(ValueError, message, load_replay, tmp_path / "wrong.json")


# -- The page of a replay holds the whole match, and its script computes what the film shows -------------------------


NODE = shutil.which("node")
SCRIPT = REPO / "envs/echelon/page/data.js"


def embedded(text: str) -> Any:
    found = re.search(r'<script id="replay" type="application/json">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def test_the_page_is_whole_and_asks_for_nothing() -> None:
    recording = fight()[1].named(("</script><b>", "%STYLE%"), "%REPLAY% & so on")
    text = page(recording.replay)
    assert embedded(text) == json.loads(as_json(recording.replay))
    assert text.count("<script") == 2 and "</script><b>" not in text
    # The only mark left is that of the second player's name, in the title and in the replay.
    assert text.count("%STYLE%") == 2 and not re.search(r"https?:|\bsrc=|@import|url\(|fetch\(|import\(", text)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fight()[1].save_replay(tmp_path / "one.json")
    assert main([str(tmp_path / "one.json")]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'one.html'}\n"
    assert main([str(tmp_path / "one.json"), str(tmp_path / "deep/two.html")]) == 0
    assert (tmp_path / "deep/two.html").read_text() == (tmp_path / "one.html").read_text()
    capsys.readouterr()
    (tmp_path / "bad.json").write_text("{")
    for arguments, message in (
        ([], "give a replay"),
        ([str(tmp_path / "bad.json")], "cannot be read as a replay (damaged, or no JSON)"),
        ([str(tmp_path / "one.json"), str(tmp_path / "one.txt")], "the ending of a page is .html"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    refused(ValueError, r"the ending of a page is \.html", save_page, fight()[1].replay, tmp_path / "one.pdf")


def asked(tmp_path: Path, question: str) -> Any:
    """Returns what the page's script answers, run by node."""
    fight()[1].save_replay(tmp_path / "one.json")
    program = f"""
    const d = require({json.dumps(str(SCRIPT))});
    const text = require("fs").readFileSync({json.dumps(str(tmp_path / "one.json"))}, "utf8");
    const replay = d.readReplay(JSON.parse(text));
    console.log(JSON.stringify({question}));
    """
    assert NODE is not None
    done = subprocess.run([NODE, "-e", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(NODE is None, reason="needs node")
def test_the_script_knows_every_moment(tmp_path: Path) -> None:
    record = fight()[1].record
    for tick in (0.0, 7.5, 63.2, 160.0):
        state, now = asked(tmp_path, f"d.stateAt(replay, {tick})"), moment(record, tick)
        dead = {event.details["target"] for event in record.events if event.type == "kill" and event.tick <= tick}
        for place, mech in enumerate(state["mechs"]):
            np.testing.assert_allclose(mech["pos"], now.position[place], atol=1e-4)
            np.testing.assert_allclose(mech["heat"], now.heat[place], atol=1e-3)
            np.testing.assert_allclose(np.cos(mech["yaw"] - now.yaw[place]), 1.0, atol=1e-5)
            assert mech["alive"] == (mech["id"] not in dead)
        np.testing.assert_allclose(state["objective"]["score"], now.score, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(NODE is None, reason="needs node")
def test_the_script_knows_shots_targets_and_events(tmp_path: Path) -> None:
    record = fight()[1].record
    flight = next(flight for flight in record.flights if flight.weapon == "autocannon" and len(flight.ticks) > 2)
    number, tick = record.flights.index(flight), int(flight.ticks[1])
    where = asked(tmp_path, f"d.flightAt(replay.flights[{number}], {tick}, 1)")
    np.testing.assert_allclose(where["head"], flight.places[1], atol=1e-4)
    np.testing.assert_allclose(where["tail"], flight.places[0], atol=1e-4)
    assert asked(tmp_path, f"d.flightAt(replay.flights[{number}], {int(flight.ticks[-1]) + 1}, 1)") is None
    spans = asked(tmp_path, "d.targetsOf(replay, 'blue_1')")
    names = [mech.name for mech in record.mechs]
    for start, _, target in spans:
        place = int(record.frames.target[np.searchsorted(record.frames.tick, start), 1])
        alive = record.frames.hp[np.searchsorted(record.frames.tick, start), 1] > 0
        assert target == (names[place] if place >= 0 and alive else None)
    kills = [event for event in record.events if event.type == "kill"]
    told = asked(tmp_path, "d.eventsFor(replay, 'main').filter((e) => e.type === 'kill').map(d.sentence)")
    assert told == [[{"id": e.details["shooter"]}, " destroys ", {"id": e.details["target"]}] for e in kills]
    sentences = asked(tmp_path, "replay.events.map(d.sentence)")
    assert len(sentences) == len(record.events) and all(len(sentence) > 1 for sentence in sentences)
