"""The page of a replay holds the whole match, and its script computes what the film shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlstack.envs.echelon.player import main, page, save_page
from rlstack.envs.echelon.replay import as_json, moment
from tests.conftest import REPO
from tests.envs.echelon.episodes import fight

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
    with pytest.raises(ValueError, match=r"the ending of a page is \.html"):
        save_page(fight()[1].replay, tmp_path / "one.pdf")


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
