"""Recordings as files are read back without loss, and wrong files give one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlstack.envs.echelon.recording import EchelonRecording, load_replay
from tests.envs.echelon.episodes import DECISIONS, fight
from tests.exhaustive import exhaustive
from tests.refusals import refused


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
        (set_in("players", ["one"]), r"players \['one'\] are not two names"),
        (set_in("frames", []), "a replay needs at least one"),
        (set_in("frames/3/tick", 2), "tick does not ascend"),
        (set_in("frames/3/mechs/blue_0/pos", [1, 2]), "position holds .*rows of different"),
        (set_in("frames/3/mechs/blue_0/heat", "hot"), "heat holds something else than numbers"),
        (set_in("frames/3/mechs/blue_0/heat", None), "heat holds (something|numbers that are not finite)"),
        (set_in("frames/3/mechs/blue_0/target", "red_9"), "target 'red_9' is not a mech of this match"),
        (set_in("frames/3/mechs/blue_0", ...), "frame 3 has other mechs than the first"),
        (set_in("frames/3/mechs/blue_0/yaw", ...), "not a whole replay, 'yaw' is missing"),
        (set_in("frames/3/objective", ...), "not a whole replay, 'objective' is missing"),
        (set_in("world/heights", ...), "not a whole replay, 'heights' is missing"),
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


def test_truncated_and_missing_files_are_one_line(recorded: EchelonRecording, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    recorded.save_replay(path)
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"\x80\x04", b"[" * 100_000, whole.replace(b'"t":0.25', b'"t":NaN')):
        path.write_bytes(content)
        refused(ValueError, r"one\.json: cannot be read as a replay \(damaged, or no JSON\)", load_replay, path)
    with pytest.raises(ValueError, match=r"cannot be read as a replay \(No such file or directory\)"):
        load_replay(tmp_path / "none.json")
