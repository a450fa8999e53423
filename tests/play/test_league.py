"""The league on disk, its command line and its file."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlstack.config import ConfigError, build
from rlstack.config.allowed import sign
from rlstack.league import LeagueConfig, add, evaluate, init, play, rank, run_league, show
from rlstack.play.league import League, LeagueMember, locked
from rlstack.play.matches import GameRunner
from rlstack.play.players import named
from rlstack.play.ratings import rating_system
from tests.exhaustive import exhaustive
from tests.play.duel import NAME
from tests.refusals import refused

DEFAULTS: dict[str, Any] = {
    "command": None,
    "players": ["high", "low", "random"],
    "mode": "round_robin",
    "games": 6,
    "round": 4,
    "ratings": {"system": "elo", "options": {}},
    "num_worlds": 8,
    "seed": 0,
    "device": "cpu",
    "plots": False,
    "env": {"name": NAME, "length": 2},
}


def config(folder: Path, **changes: Any) -> LeagueConfig:
    return build(LeagueConfig, {**DEFAULTS, "folder": str(folder), **changes})


def test_a_league_plays_ranks_and_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_league(config(tmp_path, plots=True))
    content = json.loads((tmp_path / "league.json").read_text())
    assert content["schema_version"] == 2 and content["rounds"] == 2
    assert [entry["name"] for entry in content["entries"]] == ["high", "low", "random"]
    assert len(content["games"]) == 3 * 6
    firsts = [tuple(game[:2]) for game in content["games"]]
    assert firsts.count(("high", "low")) == firsts.count(("low", "high")) == 3
    league = League.open(tmp_path)
    assert league.ratings.ranking()[0] == "high"
    assert league.ratings.rating("low") == 1000  # the world's anchor
    table = capsys.readouterr().out
    assert "high" in table and "18 games in 2 rounds" in table
    for name in ("ranking.csv", "cross_table.csv", "elo.png"):
        assert (tmp_path / name).stat().st_size > 0
    rank(config(tmp_path, players=None, env=None))
    assert capsys.readouterr().out == table


def test_the_results_rank_and_not_the_rating_that_beginners_start_with(tmp_path: Path) -> None:
    run_league(config(tmp_path, ratings={"system": "elo", "options": {"start": 0.0}}))
    lines = (tmp_path / "ranking.csv").read_text().splitlines()[1:]
    assert [line.split(",")[:2] for line in lines] == [["1", "high"], ["2", "random"], ["3", "low"]]


def test_an_interrupted_league_goes_on_to_the_same_games(tmp_path: Path) -> None:
    run_league(config(tmp_path / "whole"))
    run_league(config(tmp_path / "parts", games=4))
    assert League.open(tmp_path / "parts").rounds == 1
    run_league(config(tmp_path / "parts", env=None, players=None))
    whole, parts = (json.loads((tmp_path / name / "league.json").read_text()) for name in ("whole", "parts"))
    assert parts["games"] == whole["games"]
    assert parts["ratings"] == whole["ratings"]


def test_newcomers_play_what_is_missing(tmp_path: Path) -> None:
    run_league(config(tmp_path, players=["high", "low"], ratings={"system": "glicko2", "options": {"tau": 0.6}}))
    run_league(config(tmp_path, players=["high", "low", "random"]))
    league = League.open(tmp_path)
    assert len(league.games) == 18 and league.between("high", "random") == 6
    assert league.ratings.kind == "glicko2" and league.ratings.state_dict()["parameters"]["tau"] == 0.6


def test_another_world_is_refused(tmp_path: Path) -> None:
    run_league(config(tmp_path))
    with pytest.raises(ConfigError, match=r"env.length: 3, but the league in .* plays with 2"):
        run_league(config(tmp_path, env={"name": NAME, "length": 3}))
    with pytest.raises(ConfigError, match="players: 'high' is 'high' in this league"):
        run_league(config(tmp_path, players={"high": "low", "low": "low"}))
    content = json.loads((tmp_path / "league.json").read_text())
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "league.json").write_text(json.dumps({**content, "schema_version": 9}))
    refused(ConfigError, "schema_version 9, this program reads versions 1 and 2", rank, config(tmp_path))
    refused(ConfigError, "holds no league", rank, config(tmp_path / "nothing"))


def test_play_leaves_its_results_beside_the_league(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = {**DEFAULTS["env"], "dtype": "float32"}
    play(config(tmp_path, players=["high", "low", "random"], games=5, env=env))
    results = json.loads((tmp_path / "play" / "high" / "results.json").read_text())
    assert results["total_games"] == 10 and results["wins"] + results["draws"] == 10
    assert results["env"] == env
    assert not (tmp_path / "league.json").exists()
    assert "rating of high" in capsys.readouterr().out


def test_wrong_commands_are_refused(tmp_path: Path) -> None:
    refused(ConfigError, "play needs at least two", play, config(tmp_path, players=["high"]))
    refused(ConfigError, "at least two are needed", run_league, config(tmp_path, players=["high"]))
    refused(ConfigError, "no player names a world", run_league, config(tmp_path, env=None))
    assert named(["rule", "rule"]) == {"rule": "rule", "rule-2": "rule"}


# -- the file: versions, damage, other worlds, and several processes that write at once --------------------------


VERSION_1 = {
    "schema_version": 1,
    "env": {"name": NAME, "length": 2},
    "signature": {"name": NAME, "length": 2},
    "rounds": 1,
    "entries": [
        {"name": "high", "source": "high", "created_at": "2026-01-01T00:00:00Z"},
        {"name": "mine", "source": {"player": "sb3:a.zip"}, "created_at": "2026-01-01T00:00:00Z"},
    ],
    "ratings": {
        "system": "elo",
        "parameters": {"k": 32.0, "start": 1500.0, "anchors": {}},
        "players": {"high": {"rating": 1516.0, "games": 1}, "mine": {"rating": 1484.0, "games": 1}},
    },
    "games": [["high", "mine", 4.0, 0.0, 2, True]],
}


def bare(folder: Path, **changes: Any) -> LeagueConfig:
    return config(folder, **{"players": None, "env": None, **changes})


def written(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    sign(folder, [VERSION_1["entries"], VERSION_1["env"]])
    (folder / "league.json").write_text(json.dumps({**VERSION_1, **changes}))
    return folder / "league.json"


def test_version_1_is_read_and_written_as_version_2(tmp_path: Path) -> None:
    path = written(tmp_path)
    league = League.open(tmp_path)
    assert [member.kind for member in league.members.values()] == ["player", "player"]
    assert league.source("mine") == {"player": "sb3:a.zip"} and league.games[0].points_first == 4
    assert json.loads(path.read_text())["schema_version"] == 1  # reading changes nothing
    with league.changing():
        league.join("low", "low")
    content = json.loads(path.read_text())
    assert content["schema_version"] == 2 and content["games"] == VERSION_1["games"]
    assert content["entries"][0] == {
        **VERSION_1["entries"][0],
        **{"kind": "player", "id": None, "file": None, "commander_name": None, "matches": 0, "meta": {}},
    }
    assert League.open(tmp_path).members == league.members


FAULTS: dict[str, tuple[Callable[[str], str | bytes], str]] = {
    "truncated": (lambda text: text[:-40], "not valid JSON"),
    "empty": (lambda text: "", "not valid JSON"),
    "bytes": (lambda text: b"\xff\xfe\x00", "not valid JSON"),
    "deep": (lambda text: "[" * 100_000, "not valid JSON: nested too deeply"),
    "a list": (lambda text: "[]", "not a JSON object but a list"),
    "newer": (lambda text: text.replace('"schema_version": 1', '"schema_version": 3'), "schema_version 3"),
    "no ratings": (lambda text: text.replace('"ratings"', '"rating"'), "not a league .*ratings"),
    "a rating of nan": (
        lambda text: text.replace("1516.0", "NaN"),
        r"not a league .ratings\.players\.high\.rating: nan is outside",
    ),
    "a wrong kind": (lambda text: text.replace('"high", "source"', '"x", "kind": "boss", "source"'), "entries.0..kind"),
    "an unknown key": (lambda text: text.replace('"created_at"', '"created"'), "entries.0..created: unknown key"),
    "a wrong game": (lambda text: text.replace('"mine", 4.0', '"mine", "4"'), r"games\[0\]\[2\]: expected a number"),
}


@exhaustive("fault", FAULTS)
def test_a_damaged_file_is_one_clear_line_and_is_not_overwritten(fault: str, tmp_path: Path) -> None:
    damage, message = FAULTS[fault]
    path = written(tmp_path)
    damaged = damage(path.read_text())
    path.write_bytes(damaged.encode() if isinstance(damaged, str) else damaged)
    before = path.read_bytes()
    world = {"name": NAME, "length": 2}
    commands: list[tuple[Callable[[LeagueConfig], None], dict[str, Any]]] = [
        *[(rank, {}), (show, {}), (evaluate, {}), (add, {"players": ["runs/any"]})],
        (run_league, {"players": ["high", "low"], "env": world}),
    ]
    for command, changes in commands:
        assert "league.json" in refused(ConfigError, message, command, bare(tmp_path, **changes))
    refused(ConfigError, "already holds a league", init, bare(tmp_path, env=world))
    assert path.read_bytes() == before


def test_a_league_begins_empty_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = {"name": NAME, "length": 2}
    ratings = {"system": None, "options": {"tau": 0.4}}
    init(bare(tmp_path, env=world, ratings=ratings))
    state = League.open(tmp_path).ratings.state_dict()
    assert state["system"] == "glicko2" and state["parameters"]["tau"] == 0.4
    assert state["parameters"]["anchors"] == {"low": 1000.0}  # the world's
    init(bare(tmp_path / "elo", env=world, ratings={"system": "elo"}))
    assert League.open(tmp_path / "elo").ratings.kind == "elo"
    show(bare(tmp_path))
    assert "0 commanders, 0 candidates, 0 players; 0 games, glicko2" in capsys.readouterr().out
    refused(ConfigError, "env: missing", init, bare(tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"ratings.tauu: unknown key"):
        init(bare(tmp_path / "other", env=world, ratings={"system": None, "options": {"tauu": 1}}))
    refused(ConfigError, "Arena does not have two sides", init, bare(tmp_path / "other", env={"name": "arena"}))
    assert not (tmp_path / "other").exists()


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(ConfigError, "holds no league", show, bare(tmp_path / "file"))
    refused(ConfigError, "cannot be written to", init, bare(tmp_path / "file" / "league", env={"name": NAME}))
    (tmp_path / "league.json").mkdir()
    refused(ConfigError, "cannot be read", show, bare(tmp_path))


def test_worlds_differ_by_what_decides_games(tmp_path: Path) -> None:
    env = {"name": "rocket", "blue": 1, "num_worlds": 256, "rewards": "hybrid", "kick_offs": 0.7, "opponents": None}
    league = League(tmp_path, env, rating_system("glicko2"))
    # Rewards, opponents and where episodes begin are of training: games begin with kick-offs always.
    other = {"num_worlds": 2, "rewards": "sparse", "kick_offs": 0.1, "opponents": {"players": ["rule"]}}
    league.check_world({**env, **other})
    for key, value in (("blue", 2), ("name", "arena"), ("tick_skip", 4)):
        with pytest.raises(ConfigError, match=f"env.{key}: {value!r}, but the league in .* plays with"):
            league.check_world({**env, key: value})


# -- several processes -------------------------------------------------------------------------------------------


def member(name: str) -> LeagueMember:
    return LeagueMember(name, name, "2026-01-01T00:00:00Z")


def test_changes_of_others_are_taken_in_first(tmp_path: Path) -> None:
    written(tmp_path)
    one, other = League.open(tmp_path), League.open(tmp_path)
    with one.changing():
        one.admit(member("a"))
    with other.changing():
        other.admit(member("b"))
    assert list(League.open(tmp_path).members) == ["high", "mine", "a", "b"]
    with pytest.raises(ZeroDivisionError), one.changing():
        one.admit(member("c"))
        raise ZeroDivisionError
    assert list(League.open(tmp_path).members) == ["high", "mine", "a", "b"]
    (tmp_path / "manifest.json").unlink()
    written(tmp_path, env={"name": NAME, "length": 9})
    with pytest.raises(ConfigError, match=r"env.length: 2, but the league in .* plays with 9"), one.changing():
        pass


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    written(tmp_path)

    def write(writer: int) -> None:
        league = League.open(tmp_path)
        for number in range(8):
            with league.changing():
                league.admit(member(f"{writer}.{number}"))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(League.open(tmp_path).members) == 2 + 4 * 8


def test_a_killed_process_leaves_no_lock_and_no_half_file(tmp_path: Path) -> None:
    path = written(tmp_path)
    child = os.fork()
    if child == 0:
        try:
            with locked(tmp_path):
                os.kill(os.getpid(), 9)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 9
    league = League.open(tmp_path)
    with league.changing():
        league.admit(member("a"))
    assert "a" in League.open(tmp_path).members and path.stat().st_size


def test_games_that_ended_in_an_interrupted_round_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"env": {"name": NAME, "length": 2}, "players": ["high", "low"], "games": 8, "round": 8, "num_worlds": 2}

    class Stops(GameRunner):
        def play(self, schedule: Any, seed: int, best: Any, finished: Any) -> Any:
            def stops(game: Any) -> None:
                finished(game)
                seen.append(game)
                if len(seen) == 7:
                    raise KeyboardInterrupt

            return super().play(schedule, seed, best, stops)

    seen: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr("rlstack.play.matches.GameRunner", Stops)
        patch.setattr("rlstack.play.league.SAVED_EVERY", 0.0)
        with pytest.raises(KeyboardInterrupt):
            run_league(bare(tmp_path, **settings))
    assert League.open(tmp_path).unrated == seen and not League.open(tmp_path).games
    run_league(bare(tmp_path, **settings))
    league = League.open(tmp_path)
    assert league.games[:7] == seen and len(league.games) == 8 and not league.unrated
    assert league.ratings.state_dict()["players"]["high"]["games"] == 8 and league.rounds == 2


def test_a_round_that_others_have_played_does_not_count_twice(tmp_path: Path) -> None:
    world = {"name": NAME, "length": 2}
    run_league(bare(tmp_path, env=world, players=["high", "low"], games=2))

    class Late(GameRunner):
        def play(self, *arguments: Any, **more: Any) -> Any:
            run_league(bare(tmp_path, games=4))
            return super().play(*arguments, **more)

    arena, league = Late(NAME, {"length": 2}), League.open(tmp_path)
    for name in ("high", "low"):
        arena.add(name)
    assert league.play_round(arena, [("high", "low"), ("low", "high")], seed=0) == []
    assert len(League.open(tmp_path).games) == 4 and league.rounds == 2
