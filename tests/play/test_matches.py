"""Games are played to their end, sides alternate, and results count for the right players."""

from __future__ import annotations

import csv
import json
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rlstack
from rlstack import envs
from rlstack.agents import Interface
from rlstack.config import ConfigError
from rlstack.evaluation.statistics import wilson_interval
from rlstack.play.games import GameResult, WinLossRecord, in_turns, pairing, pairs
from rlstack.play.league import League
from rlstack.play.matches import GameRunner
from rlstack.play.ratings import Elo, Glicko2
from rlstack.play.results import (
    challenge_report,
    cross_table,
    rated,
    rating_curves,
    save_curves,
    show_ranking,
    standings,
)
from rlstack.runs import loading
from tests.evaluation.scripted import Scripted
from tests.play.duel import NAME, Watching, constant_run, seated
from tests.refusals import refused


def arena(num_worlds: int = 4, **options: int) -> GameRunner:
    return seated(GameRunner(NAME, options, num_worlds=num_worlds), "high", "low")


def test_every_game_is_played_once_with_its_sides_and_to_its_end() -> None:
    games = arena(num_worlds=4, length=2).play(pairing("high", "low", 10))
    assert [(game.first, game.second) for game in games] == [("high", "low"), ("low", "high")] * 5
    # World w plays games w, w + 4, w + 8, each of 2 + w % 3 steps, in which `high` names 2.
    lengths = [2 + (game % 4) % 3 for game in range(10)]
    assert [game.steps for game in games] == lengths
    assert [max(game.points_first, game.points_second) for game in games] == [2 * steps for steps in lengths]
    assert [game.score for game in games] == [1.0, 0.0] * 5
    assert all(game.finished for game in games)


def test_many_pairings_share_a_batch_and_everyone_is_asked_once_a_step() -> None:
    built = arena(num_worlds=6, length=2)
    watching = Watching("watching", 1)
    built.add(watching)
    games = built.play([game for pair in pairs(["high", "low", "watching"]) for game in pairing(*pair, 2)])
    weakest_first = ["low", "watching", "high"]
    assert sorted(game[:2] for game in games) == sorted(permutations(weakest_first, 2))
    for first, second, score in ((game.first, game.second, game.score) for game in games):
        assert score == (weakest_first.index(first) > weakest_first.index(second))
    assert len(watching.seen) == 4  # the longest world's steps
    assert len(watching.seen[0][0]) == 4  # it plays in four of the six worlds


def test_games_are_cut_short_and_judged_as_they_stand() -> None:
    built = seated(GameRunner(NAME, {"length": 50}, num_worlds=2, max_steps=3), "high", "low")
    games = built.play(pairing("high", "low", 6))
    assert [game.steps for game in games] == [3] * 6
    # A world that was cut begins anew: nothing of the game before counts.
    assert [max(game.points_first, game.points_second) for game in games] == [6.0] * 6
    assert not any(game.finished for game in games)


def test_the_same_seed_gives_the_same_games() -> None:
    def play(seed: int) -> list[GameResult]:
        return seated(arena(num_worlds=8), "random", "random").play(pairing("random", "random-2", 24), seed=seed)

    assert play(1) == play(1)
    assert play(1) != play(2)


def test_games_are_played_under_the_options_of_evaluations_except_those_to_keep() -> None:
    def kick_offs(*kept: str) -> float:
        sample: Any = GameRunner("rocket", {"kick_offs": 0.5}, kept=kept).sample
        return float(sample.starts.kick_offs)

    assert kick_offs() == 1.0 and kick_offs("kick_offs") == 0.5


def test_who_does_not_play_is_refused() -> None:
    refused(ConfigError, "'x' is not a player here; known: high, low", arena().play, [("high", "x")])
    assert arena().play([]) == []


def test_only_the_worlds_own_players_have_their_names(tmp_path: Path) -> None:
    runner = GameRunner(NAME, {"length": 2})
    run = constant_run(tmp_path / "low", 2)
    for source, name in ((str(run), None), (str(run), "random"), ("high", "low")):
        refused(ConfigError, r"players: '(low|random)' is a player of the world itself", runner.add, source, name)
    assert runner.add("low") == "low" and runner.add(str(run), "mine") == "mine"


# -- records -----------------------------------------------------------------------------------------------------

GAMES = [
    GameResult("a", "b", 3, 1, 5),
    GameResult("b", "a", 0, 0, 5),
    GameResult("b", "a", 2, 0, 5),
    GameResult("a", "c", 1, 0, 5),
]


def test_records_count_from_either_side() -> None:
    record = WinLossRecord.of("a", GAMES)
    assert (record.wins, record.draws, record.losses) == (2, 1, 1)
    row = record.as_row()
    assert (row["goals_for"], row["goals_against"], row["goal_diff"]) == (4, 3, 1)
    assert row["score"] == 2.5 / 4 and row["win_rate"] == 0.5 and row["decided_win_rate"] == 2 / 3
    against = WinLossRecord.of("b", GAMES, "a")
    assert str(against) == "1-1-1" and against.as_row()["goal_diff"] == 3 - 3
    assert (row["decided_win_rate_low"], row["decided_win_rate_high"]) == wilson_interval(2, 3)
    assert (row["win_rate_low"], row["win_rate_high"]) == wilson_interval(2, 4)
    nobody = WinLossRecord.of("nobody", GAMES).as_row()
    assert nobody["games"] == 0 and nobody["win_rate"] is None and nobody["win_rate_low"] is None


def test_cross_table_mirrors_itself() -> None:
    rows = cross_table(GAMES, ["a", "b", "c"])
    assert rows[0] == {"player": "a", "a": "-", "b": "1-1-1", "c": "1-0-0", "total": "2-1-1"}
    assert rows[1]["a"] == "1-1-1" and rows[2]["a"] == "0-0-1" and rows[2]["b"] == "0-0-0"


def test_schedules_are_fair() -> None:
    schedule = in_turns([pairing(*pair, 4) for pair in pairs(["a", "b", "c"])])
    assert len(schedule) == 12
    for pair in (("a", "b"), ("a", "c"), ("b", "c")):
        assert schedule.count(pair) == schedule.count(pair[::-1]) == 2
    assert schedule[:3] == [("a", "b"), ("a", "c"), ("b", "c")]
    met = [pairing(*pair, 2) for pair in pairs(["a", "b", "c"], "challenger")]
    assert in_turns(met) == [("a", "b"), ("a", "c"), ("b", "a"), ("c", "a")]
    faults = {"a": "a, at least two are needed", "": "none, at least two", "aa": "not all different"}
    for names, message in faults.items():
        refused(ConfigError, message, pairs, list(names))


# -- tables ------------------------------------------------------------------------------------------------------


def test_ratings_game_by_game() -> None:
    ratings = Elo(anchors={"b": 1500})
    first, *_ = rows = rated(GAMES[:3], ratings)
    assert (first["expected_score"], first["elo_before"], first["elo_after"]) == (0.5, 1500, 1516)
    assert rows[1]["player"] == "b" and rows[1]["elo_change"] == 0


def test_standings_are_the_best_members_first(tmp_path: Path) -> None:
    league = League(tmp_path, {}, Elo(anchors={"c": 1000}))
    for name in "abc":
        league.join(name, name)
    league.rate([GAMES[0], GAMES[3]])  # `a` beats both
    rows = standings(league)
    assert [(row["rank"], row["player"]) for row in rows] == [(1, "a"), (2, "b"), (3, "c")]
    assert rows[1]["rating"] == 1484 and rows[2]["rating"] == 1000 and rows[0]["deviation"] is None
    assert (rows[0]["wins"], rows[2]["losses"], rows[2]["kind"]) == (2, 1, "player")


@pytest.mark.parametrize("system", [Elo, Glicko2])
def test_a_member_without_games_is_in_the_ranking(
    system: type[Elo | Glicko2], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    league = League(tmp_path, {}, system())
    for name in "abc":
        league.join(name, name)
    league.rate([GAMES[0]])  # between `a` and `b`
    show_ranking(league, plots=False)
    table, _, _ = capsys.readouterr().out.split("\n\n")
    head, *rows = [line.split() for line in table.splitlines()]
    (fitted,) = [row[head.index("fitted_elo")] for row in rows if row[1] == "c"]
    assert len(rows) == 3 and fitted == "-"


def test_a_challenge_is_summed_up_by_opponent() -> None:
    ratings = Elo(anchors={"b": 1200, "c": 800})
    report = json.loads(json.dumps(challenge_report("a", GAMES, ratings, timestep=7)))
    assert (report["total_games"], report["wins"], report["draws"], report["losses"]) == (4, 2, 1, 1)
    assert [entry["opponent"] for entry in report["elo_history"]] == ["b", "b", "b", "c"]
    assert report["final_elo"] == report["elo_history"][-1]["elo"] == report["elo_ratings"]["a"]
    by_opponent = {row["opponent"]: row for row in report["opponents"]}
    assert by_opponent["b"]["goal_diff"] == 0 and by_opponent["b"]["timestep"] == 7
    assert sum(row["elo_change"] for row in report["opponents"]) == pytest.approx(report["final_elo"] - 1500)
    assert [row["player"] for row in report["game_by_game"]] == ["a"] * 4
    assert [row["goal_diff"] for row in report["game_by_game"]] == [2, 0, -2, 1]


def test_with_glicko_a_challenge_is_one_period() -> None:
    report = challenge_report("a", GAMES, Glicko2(anchors={"b": 1200, "c": 800}))
    change = report["final_elo"] - report["initial_elo"]
    assert change and [row["elo_change"] for row in report["opponents"]] == [change, change]
    assert {row["elo_change"] for row in report["game_by_game"]} == {None}


def test_curves_are_drawn(tmp_path: Path) -> None:
    league = League(tmp_path, {}, Elo(anchors={"b": 1200}))
    league.rate(GAMES)
    curves = rating_curves(league)
    assert {name: len(values) for name, values in curves.items()} == {"a": 4, "b": 3, "c": 1}
    assert curves["b"] == [1200] * 3
    save_curves(tmp_path / "elo.png", curves, {"b": 1200.0})
    assert (tmp_path / "elo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_rules_beat_chance_in_rocket() -> None:
    options = {"observation": "compact", "max_seconds": 20.0}
    built = seated(GameRunner("rocket", options, num_worlds=4), "rule", "random")
    record = WinLossRecord.of("rule", built.play(pairing("rule", "random", 4)))
    assert record.losses == 0 and record.wins >= 1
    assert record.points_for - record.points_against == record.wins


# -- An agent judged by games: what is played, shown and written -----------------------------------------------------


def ones(explore: bool) -> Scripted:
    """Returns a policy that names 1, or 2 when it explores."""
    return Scripted(lambda root: torch.full(root["agents"].batch_size, 2 if explore else 1))


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a run that was trained against opponents, in a world whose second side lacks one of its two agents."""
    env = {"name": NAME, "num_worlds": 4, "size": 2, "absent": True, "opponents": {"players": ["gone:forever"]}}
    interface = Interface.of(envs.make(NAME, size=2, absent=True))
    agent: Any = SimpleNamespace(interface=interface, policy=ones)
    path = tmp_path / "r7"
    file = path / "checkpoints" / "checkpoint_000000001234.pt"
    loaded = loading.LoadedRun(agent, {"env": env}, 1234, file, path)
    monkeypatch.setattr(loading, "load", lambda *_, **__: loaded)
    return path


def command(*overrides: str) -> None:
    rlstack.evaluate("checkpoint=run", *overrides)


def test_games_replace_the_opponents_of_training(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("opponents=[low,high,random]", "episodes=30")
    folder = run_dir / "evaluations" / "000000001234_seed1000_30games_against_low_high_random"
    names = ["elo.png", "game_by_game.csv", "manifest.json", "results.json", "summary.csv"]
    assert sorted(path.name for path in folder.iterdir()) == names
    results = json.loads((folder / "results.json").read_text())
    assert results["player"] == "r7" and results["total_games"] == 90 and results["env"]["size"] == 2
    assert "opponents" not in results["env"]
    low, high, random = results["opponents"]
    # The second side has one agent less. With two agents it names 2 a step, alone 1; `high` 4 and 2, `low` nothing.
    assert (low["wins"], low["draws"], low["losses"], low["timestep"]) == (30, 0, 0, 1234)
    assert (high["wins"], high["draws"], high["losses"]) == (0, 15, 15)
    assert low["decided_win_rate"] == 1.0 and low["decided_win_rate_low"] == pytest.approx(0.886, abs=1e-3)
    assert random["games"] == 30 and 0 < random["wins"] < 30  # the first side wins mostly
    assert results["fitted_elo"] > 1000 and len(results["elo_history"]) == 90
    rows = list(csv.DictReader((folder / "summary.csv").read_text().splitlines()))
    assert rows[1]["losses"] == "15" and rows[1]["opponent"] == "high"
    published = {"timestamp", "timestep", "opponent", "wins", "losses", "win_rate", "elo_before", "elo_after"}
    assert published | {"elo_change"} <= rows[0].keys()
    games = list(csv.DictReader((folder / "game_by_game.csv").read_text().splitlines()))
    assert {"player_score", "opponent_score", "goal_diff", "expected_score"} <= set(games[0]) and len(games) == 90
    heading, header, *_, rating = [line for line in capsys.readouterr().out.splitlines() if "wrote" not in line]
    assert heading.endswith(f"(greedy, 1,234 frames) in {NAME}, seed 1000, 30 games against each")
    assert header.split()[:6] == ["opponent", "games", "wins", "draws", "losses", "success"]
    assert rating.startswith("rating of r7: ") and "fitted to all games at once: " in rating


def test_the_picture_of_ratings_shows_only_those_who_played(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("rlstack.play.results.save_curves", lambda path, *lines: drawn.append(lines))
    command("opponents=[low]", "episodes=2")
    command("opponents=[high]", "episodes=2")
    assert [(list(curves), anchors) for curves, anchors in drawn] == [(["r7"], {"low": 1000.0}), (["r7"], {})]


def test_the_exploring_policy_and_no_plots(run_dir: Path) -> None:
    command("opponents=[high]", "episodes=4", "policy=explore", "plots=false")
    (folder,) = (run_dir / "evaluations").iterdir()
    assert folder.name == "000000001234_seed1000_4games_explore_against_high"
    # As `high` does; the side of two agents wins.
    assert [json.loads((folder / "results.json").read_text())[key] for key in ("wins", "losses")] == [2, 2]
    assert not (folder / "elo.png").exists()


def test_opponents_of_one_name_have_folders_of_their_own(run_dir: Path, tmp_path: Path) -> None:
    for place, number in (("one", 1), ("two", 2)):
        path = constant_run(tmp_path / place / "seed0", number)
        for source in (path, f"checkpoint:{path}"):
            command(f"opponents=['{source}']", "episodes=2", "plots=false")
    folders = sorted((run_dir / "evaluations").iterdir())
    assert len(folders) == 2 and all("_2games_against_seed0_" in folder.name for folder in folders)


def test_an_opponent_with_the_name_of_a_player_of_the_world_gets_a_number(run_dir: Path, tmp_path: Path) -> None:
    one = "{player: callable:tests.play.test_versus:one, batched: true}"
    command(f"opponents=[{constant_run(tmp_path / 'low', 2)},low,{one}]", "episodes=2", "plots=false")
    (folder,) = (run_dir / "evaluations").iterdir()
    results = json.loads((folder / "results.json").read_text())
    assert [row["opponent"] for row in results["opponents"]] == ["low-2", "low", "one"]
    assert results["elo_ratings"]["low"] == 1000 != results["elo_ratings"]["low-2"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["opponents=[]"], "opponents: .* names nobody to play against"),
        (["opponents=[hih]"], "opponent 'hih' is unknown, did you mean 'high'\\? allowed: random, high, low, a run"),
        (["opponents=[self]"], "opponent 'self' is unknown, allowed: random, high, low, a run"),
        (["opponents=low"], "opponents: "),
        (["opponents=[low]", "episodes_file=x.json"], "episodes_file: given episodes cannot be played"),
        (["opponents=[low]", "env=marinenav"], "env=marinenav does not fit the agent"),
    ],
)
def test_mistakes_are_one_line(run_dir: Path, overrides: list[str], message: str) -> None:
    refused(ConfigError, message, command, *overrides)
    assert not run_dir.exists()
