"""The league on disk and its command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlstack.config import ConfigError, build
from rlstack.league import LeagueConfig, play, rank, run_league
from rlstack.play.league import League
from rlstack.play.players import named
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
