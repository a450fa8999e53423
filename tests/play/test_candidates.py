"""Files submitted to a league: which may join, under which names, and what is kept of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rlstack.config import ConfigError
from rlstack.play.games import pairing
from rlstack.play.league import League, add_candidates
from rlstack.play.matches import GameRunner
from rlstack.play.ratings import Glicko2
from tests.play.duel import NAME, constant_run
from tests.refusals import refused

WORLD = {"name": NAME, "length": 2}


@pytest.fixture
def arena() -> GameRunner:
    return GameRunner(NAME, {"length": 2})


@pytest.fixture
def league(tmp_path: Path) -> League:
    return League.create(tmp_path / "league", WORLD, Glicko2(anchors={"low": 1000.0}))


def test_a_run_joins_as_candidate_with_what_is_known_of_it(league: League, arena: GameRunner, tmp_path: Path) -> None:
    run = constant_run(tmp_path / "first", 2, frames=1234)
    file = run / "checkpoints" / "checkpoint_000000001234.pt"
    assert add_candidates(league, arena, [(None, str(run))], "a remark") == ["first"]
    entry = json.loads((league.folder / "league.json").read_text())["entries"][0]
    assert entry["kind"] == "candidate" and entry["commander_name"] is None and entry["source"] == str(run)
    assert entry["id"] == f"checkpoint_000000001234:{file.stat().st_size}:{file.stat().st_mtime_ns}"
    assert entry["meta"] == {"frames": 1234, "agent": "ppo", "note": "a remark"}
    assert len(entry["created_at"]) == len("2026-01-01T00:00:00Z")
    assert League.open(league.folder).members == league.members


def test_an_agent_of_the_zoo_joins(tmp_path: Path) -> None:
    world = {"name": "rocket", "blue": 1, "orange": 1}
    league = League.create(tmp_path / "league", world, Glicko2(anchors={}))
    runner = GameRunner("rocket", {"blue": 1, "orange": 1})
    assert add_candidates(league, runner, [(None, "zoo:rocket")]) == ["rocket"]
    assert league.members["rocket"].meta["agent"] == "ppo"


def test_the_league_does_not_need_the_run_any_more(league: League, tmp_path: Path) -> None:
    run = constant_run(tmp_path / "first", 2, opponents={"players": ["low"]})
    add_candidates(league, GameRunner(NAME, {"length": 2}), [(None, str(run))])
    shutil.rmtree(run)
    again, arena = League.open(league.folder), GameRunner(NAME, {"length": 2})
    arena.add(again.source("first"), "first")
    arena.add("low")
    assert [game.points_first for game in arena.play(pairing("first", "low", 2)[:1])] == [4.0]  # 2 in each of 2 steps


def test_the_same_file_joins_once(league: League, arena: GameRunner, tmp_path: Path) -> None:
    run = constant_run(tmp_path / "first", 2)
    add_candidates(league, arena, [(None, str(run))])
    copy = shutil.copytree(run, tmp_path / "copy")  # which keeps times
    before = (league.folder / "league.json").read_bytes()
    for source in (run, copy, next((run / "checkpoints").glob("*.pt"))):
        with pytest.raises(ConfigError, match="is in this league already, as 'first'") as error:
            add_candidates(league, arena, [("again", str(source))])
        assert "\n" not in str(error.value)
    assert (league.folder / "league.json").read_bytes() == before


@pytest.mark.slow
def test_names_are_given_or_found(league: League, arena: GameRunner, tmp_path: Path) -> None:
    runs = [constant_run(tmp_path / str(index) / "run", index) for index in range(3)]
    assert add_candidates(league, arena, [(None, str(runs[0])), (None, str(runs[1])), ("third", str(runs[2]))]) == [
        *("run", "run-2", "third")
    ]
    low = constant_run(tmp_path / "low", 0)  # the world has a player of this name
    assert add_candidates(league, arena, [(None, str(low))]) == ["low-2"]
    other = constant_run(tmp_path / "other", 1)
    for name in ("third", "low", "random", "self"):
        with pytest.raises(ConfigError, match=f"the name '{name}' is taken"):
            add_candidates(league, arena, [(name, str(other))])
    with pytest.raises(ConfigError, match=r"'\.\./up' cannot name a candidate"):
        add_candidates(league, arena, [("../up", str(other))])


def test_all_join_or_none(league: League, arena: GameRunner, tmp_path: Path) -> None:
    fits, foreign = constant_run(tmp_path / "fits", 2), tmp_path / "foreign.pt"
    foreign.write_bytes(b"nothing")
    refused(ConfigError, r"foreign\.pt", add_candidates, league, arena, [(None, str(fits)), (None, str(foreign))])
    assert League.open(league.folder).members == {}
    assert not list((league.folder / "players").glob("*.pt"))
    assert add_candidates(league, arena, [(None, str(fits))]) == ["fits"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("low", "'low' comes with the world and is not a candidate; pool.players="),
        ("random", "'random' comes with the world"),
        ("hihg", "opponent 'hihg' is unknown, did you mean 'high'"),
        ("callable:tests.play.test_versus:one", "is not a file; a candidate is a run, a checkpoint, or kind:path"),
        ("", "give a name, a path or kind:path"),
    ],
)
def test_who_is_no_file_is_no_candidate(league: League, arena: GameRunner, source: str, message: str) -> None:
    refused(ConfigError, message, add_candidates, league, arena, [(None, source)])
    assert League.open(league.folder).members == {}


def test_who_cannot_act_in_the_world_does_not_join(league: League, tmp_path: Path) -> None:
    run = constant_run(tmp_path / "first", 2)
    stacked = GameRunner(NAME, {"length": 2, "frame_stack": 2})
    with pytest.raises(ConfigError, match=r"the agent does not fit the env: observation is .*, it knows"):
        add_candidates(league, stacked, [(None, str(run))])
    assert League.open(league.folder).members == {}


def test_the_best_checkpoint_and_one_that_explores(league: League, arena: GameRunner, tmp_path: Path) -> None:
    run = constant_run(tmp_path / "first", 2)
    with pytest.raises(ConfigError, match="holds no best checkpoint"):
        add_candidates(league, arena, [(None, {"player": str(run), "which": "best"})])
    shutil.copy2(run / "checkpoints" / "checkpoint_000000001000.pt", run / "checkpoints" / "best.pt")
    add_candidates(league, arena, [(None, {"player": str(run), "which": "best", "explore": True})])
    assert league.members["first"].id.startswith("best:")
    assert league.source("first") == {"player": str(league.folder / "players" / "first.pt"), "explore": True}
