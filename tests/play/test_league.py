"""The league on disk, its command line and its file."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, count
from pathlib import Path
from typing import Any

import pytest

from rlstack import league
from rlstack.config import ConfigError, build
from rlstack.config.allowed import sign
from rlstack.league import LeagueConfig, add, evaluate, init, play, rank, run_league, show
from rlstack.play import league as leagues
from rlstack.play.league import League, LeagueMember, OpenRun, locked
from rlstack.play.matches import GameRunner
from rlstack.play.players import named
from rlstack.play.ratings import rating_system
from rlstack.runs.checkpoint import CheckpointStore
from rlstack.runs.run_directory import RunDirectory
from tests.conftest import Ended
from tests.exhaustive import exhaustive
from tests.faults import Killed
from tests.play.duel import NAME, Duel, constant_run, seated
from tests.refusals import refused
from tests.small_run import logged

GAME = {"name": NAME, "length": 2}
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
    "env": GAME,
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


@pytest.mark.parametrize(("system", "start"), [("elo", "start"), ("glicko2", "rating")])
def test_fitted_ratings_have_the_scale_of_the_options(system: str, start: str, tmp_path: Path) -> None:
    ratings = {"system": system, "options": {start: 100.0, "anchors": {"low": 100.0}}}
    options = config(tmp_path, players=["high", "low"], games=2, ratings=ratings)
    # Two wins against 100 and a drawn game against a beginner, of 100: odds of 2.5 to 0.5, or 400 log10(5) points more.
    play(options)
    assert json.loads((tmp_path / "play" / "high" / "results.json").read_text())["fitted_elo"] == pytest.approx(379.588)
    run_league(options)
    ranking = csv.DictReader((tmp_path / "ranking.csv").read_text().splitlines())
    fitted = {row["player"]: float(row["fitted_elo"]) for row in ranking}
    assert fitted == pytest.approx({"high": 379.588, "low": 100.0})


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


def test_sides_are_shared_whatever_the_order_of_the_players(tmp_path: Path) -> None:
    run_league(config(tmp_path, players=["high", "low"], games=3))
    run_league(config(tmp_path, players=["low", "high"], games=6))
    games = League.open(tmp_path).games
    assert sum(game.first == "high" for game in games) == 3 and len(games) == 6


def test_another_world_is_refused(tmp_path: Path) -> None:
    run_league(config(tmp_path))
    with pytest.raises(ConfigError, match=r"env.length: 3, but the league in .* plays with 2"):
        run_league(config(tmp_path, env={"name": NAME, "length": 3}))
    with pytest.raises(ConfigError, match="players: 'high' is 'high' in this league"):
        run_league(config(tmp_path, players={"high": "low", "low": "low"}))
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
    added = {"kind": "player", "id": None, "file": None, "commander_name": None, "matches": 0, "meta": {}}
    assert content["entries"][0] == VERSION_1["entries"][0] | added
    assert League.open(tmp_path).members == league.members


FAULTS: dict[str, tuple[Callable[[str], str], str]] = {
    "truncated": (lambda text: text[:-40], "not valid JSON"),
    "deep": (lambda text: "[" * 100_000, "not valid JSON: nested too deeply"),
    "a list": (lambda text: "[]", "not a JSON object but a list"),
    "newer": (
        lambda text: text.replace('"schema_version": 1', '"schema_version": 3'),
        "schema_version 3, this program reads versions 1 and 2",
    ),
    "a rating of nan": (
        lambda text: text.replace("1516.0", "NaN"),
        r"not a league .ratings\.players\.high\.rating: nan is outside",
    ),
    "a wrong kind": (lambda text: text.replace('"high", "source"', '"x", "kind": "boss", "source"'), "entries.0..kind"),
    "a wrong game": (lambda text: text.replace('"mine", 4.0', '"mine", "4"'), r"games\[0\]\[2\]: expected a number"),
}


@exhaustive("fault", FAULTS)
def test_a_damaged_file_is_one_clear_line_and_is_not_overwritten(fault: str, tmp_path: Path) -> None:
    damage, message = FAULTS[fault]
    path = written(tmp_path)
    path.write_text(damage(path.read_text()))
    before = path.read_bytes()
    commands: list[tuple[Callable[[LeagueConfig], None], dict[str, Any]]] = [
        *[(rank, {}), (show, {}), (evaluate, {}), (add, {"players": ["runs/any"]})],
        (run_league, {"players": ["high", "low"], "env": GAME}),
    ]
    for command, changes in commands:
        assert "league.json" in refused(ConfigError, message, command, bare(tmp_path, **changes))
    refused(ConfigError, "already holds a league", init, bare(tmp_path, env=GAME))
    assert path.read_bytes() == before


def test_a_league_begins_empty_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(bare(tmp_path, env=GAME, ratings={"system": None, "options": {"tau": 0.4}}))
    state = League.open(tmp_path).ratings.state_dict()
    assert state["system"] == "glicko2" and state["parameters"]["tau"] == 0.4
    assert state["parameters"]["anchors"] == {"low": 1000.0}  # the world's
    init(bare(tmp_path / "elo", env=GAME, ratings={"system": "elo"}))
    assert League.open(tmp_path / "elo").ratings.kind == "elo"
    show(bare(tmp_path))
    assert "0 commanders, 0 candidates, 0 players; 0 games, glicko2" in capsys.readouterr().out
    refused(ConfigError, "env: missing", init, bare(tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"ratings.tauu: unknown key"):
        init(bare(tmp_path / "other", env=GAME, ratings={"system": None, "options": {"tauu": 1}}))
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
        for number in range(4):
            with league.changing():
                league.admit(member(f"{writer}.{number}"))

    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(write, range(4)))) == 4
    assert len(League.open(tmp_path).members) == 2 + 4 * 4


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


@pytest.mark.parametrize("steps", [3, 12])  # one game has ended before it, or seven
def test_an_interrupted_round_is_played_again_without_favouring_short_games(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"env": GAME, "players": ["high", "low"], "games": 8, "round": 8, "num_worlds": 2}
    advance, calls, minutes = Duel._advance, count(1), count()

    def stops(self: Duel, tensordict: Any) -> Any:
        if next(calls) == steps:
            raise KeyboardInterrupt
        return advance(self, tensordict)

    with monkeypatch.context() as patch:
        patch.setattr(Duel, "_advance", stops)
        patch.setattr("time.monotonic", lambda: 60.0 * next(minutes))  # nothing is saved however long it takes
        with pytest.raises(KeyboardInterrupt):
            run_league(bare(tmp_path, **settings))
    assert not League.open(tmp_path).games
    run_league(bare(tmp_path, **settings))
    league = League.open(tmp_path)
    # Each of the two worlds plays four of the eight games, in 2 or 3 steps each.
    assert sorted(game.steps for game in league.games) == 4 * [2] + 4 * [3]
    assert sum(game.first == "high" for game in league.games) == 4
    assert league.ratings.state_dict()["players"]["high"]["games"] == 8 and league.rounds == 1


def test_a_round_that_others_have_played_does_not_count_twice(tmp_path: Path) -> None:
    run_league(bare(tmp_path, env=GAME, players=["high", "low"], games=2))

    class Late(GameRunner):
        def play(self, *arguments: Any, **more: Any) -> Any:
            run_league(bare(tmp_path, games=4))
            return super().play(*arguments, **more)

    arena, league = seated(Late(NAME, {"length": 2}), "high", "low"), League.open(tmp_path)
    assert league.play_round(arena, [("high", "low"), ("low", "high")], seed=0) == []
    assert len(League.open(tmp_path).games) == 4 and league.rounds == 2


# -- ``rlstack league init|add|evaluate|train|list`` as a user types it, with tiny runs ------------------------------


WORLD = [f"++env.name={NAME}", "++env.num_worlds=8", "++env.length=2"]
TINY = [
    *("agent=ppo", "agent.hidden=[4]", "agent.steps_per_batch=8", "agent.epochs=1", "agent.minibatch_size=64"),
    *("total_frames=256", "log_every=128", "eval.every=256", "eval.episodes=2", "checkpoint.every=64"),
    *("logger=csv", "threads=1", "device=cpu", "games=4", "folder=league"),
]
Command = Callable[..., str]


@pytest.fixture
def command(rlstack_command: Callable[..., Ended]) -> Command:
    """Runs ``rlstack league``; returns what it prints, or the one line of its error."""

    def call(*words: str, status: int = 0) -> str:
        ended = rlstack_command("league", *words)
        assert ended.status == status, ended.err
        return ended.refused().rstrip() if status else ended.out

    return call


def entries(folder: str = "league") -> list[dict[str, object]]:
    return json.loads((Path(folder) / "league.json").read_text())["entries"]


@pytest.mark.slow
def test_candidates_from_beginning_to_list(command: Command) -> None:
    assert "a league of tests.play.duel:Duel, glicko2, in league" in command("init", *WORLD, "folder=league")
    for number in range(3):
        constant_run(Path(f"runs/n{number}"), number)
    assert "n1 joined as candidate checkpoint_000000001000:" in command("add", "players=[runs/n1]", "folder=league")
    command("add", "players={weak: runs/n0, strong: runs/n2}", "note=both", "folder=league")
    first = command("evaluate", "players=[n1]", "pool.players=[low]", "folder=league")
    assert "n1: " in first and "against a pool of 3" in first and "; now commander " in first
    printed = command("evaluate", "folder=league", "games=6", "num_worlds=4").splitlines()
    assert [line.partition(":")[0] for line in printed[:2]] == ["weak", "strong"]
    table = command("list", "folder=league").splitlines()
    assert table == printed[2:]
    header = ["rank", "player", "kind", "commander", "rating", "deviation", "conservative", "games"]
    assert table[0].split() == header
    ranks = {row.split()[1]: row.split() for row in table[1:-1]}
    assert set(ranks) == {"n1", "weak", "strong", "low"} and ranks["strong"][0] == "1"
    rating, deviation, conservative = (int(word) for word in ranks["strong"][-4:-1])
    assert abs(rating - 2 * deviation - conservative) <= 2  # each is rounded
    assert table[-1] == "3 commanders, 0 candidates, 1 player; 22 games, glicko2, in league"
    assert "no candidate is waiting to be evaluated" in command("evaluate", "folder=league")
    assert [entry["matches"] for entry in entries()] == [10, 6, 6, 0]
    command("run", "games=2", "folder=league", "plots=false")  # tournaments go on in the same league
    league = League.open("league")
    assert all(league.between(*pair) >= 2 for pair in combinations(league.members, 2))


def test_a_run_trains_against_the_pool_joins_and_is_evaluated(command: Command) -> None:
    command("init", *WORLD, "folder=league")
    constant_run(Path("runs/n1"), 1)
    command("add", "players=[runs/n1]", "folder=league")
    out = command("train", *TINY, "pool.players=[low]", "env.opponents={players: [self], refresh: 5}", "note=mine")
    assert "begins against n1, low, self" in out and "(won-drawn-lost) against a pool of 2" in out
    run = next(Path("league/runs").glob("ppo_*"))
    opponents = RunDirectory(run).read_config()["env"]["opponents"]
    assert opponents["players"] == ["league/players/n1.pt", "low", "self"]
    assert (opponents["refresh"], opponents["loaded"], opponents["sampler"]) == (5, 20, "uniform")
    assert RunDirectory(run).read_config()["env"]["length"] == 2
    n1, mine, low = entries()
    assert (mine["name"], mine["kind"], mine["matches"]) == (run.name, "commander", 4)
    assert mine["meta"] == {"frames": 256, "agent": "ppo", "note": "mine"}
    assert (n1["kind"], low["kind"]) == ("candidate", "player")
    # Again: another run, which meets the first one.
    assert f"begins against {run.name}, n1" in command("train", *TINY, "submit=false", "env.num_worlds=4")
    assert len(entries()) == 3


@pytest.mark.slow
def test_train_goes_on_wherever_it_was_killed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command("init", *WORLD, "folder=league")
    save = CheckpointStore.save

    def kill(*arguments: object, **more: object) -> None:
        raise Killed

    def saves_once(self: CheckpointStore, state: dict[str, object], frames: int, best: bool = False) -> Path:
        if frames > 100:
            raise Killed
        return save(self, state, frames, best)

    with monkeypatch.context() as patch:  # in the middle of training
        patch.setattr(CheckpointStore, "save", saves_once)
        with pytest.raises(Killed):
            command("train", *TINY)
    (run,) = Path("league/runs").glob("ppo_*")
    assert [path.name for path in (run / "checkpoints").glob("*.pt")] == ["checkpoint_000000000064.pt"]
    with monkeypatch.context() as patch:  # trained, but not handed in
        patch.setattr(league, "submit", kill)
        with pytest.raises(Killed):
            command("train", *TINY, "checkpoint.every=128")
    assert not entries()
    with monkeypatch.context() as patch:  # handed in, but not evaluated
        patch.setattr(leagues, "evaluate", kill)
        with pytest.raises(Killed):
            command("train", *TINY, "pool.players=[high]")
    assert [entry["name"] for entry in entries()] == [run.name, "high"]
    out = command("train", *TINY, "pool.players=[high]")
    assert f"{run.name}: " in out and "continues" not in out and "begins" not in out
    assert [entry["matches"] for entry in entries()] == [4, 0]
    assert list(Path("league/runs").glob("ppo_*")) == [run]
    frames = [int(float(row["frames"])) for row in logged(run)]
    assert frames == sorted(frames) and frames[-1] == 256


def test_runs_of_other_configurations_or_processes_are_left_alone(tmp_path: Path) -> None:
    league = League.create(tmp_path, {"name": NAME}, rating_system("glicko2"))
    plain = {"seed": 0, "total_frames": 100, "run_dir": None, "resume": None, "imitation": {"only": False}}
    plain |= {"env": {"name": NAME, "opponents": {"players": ["low"]}}, "agent": {"name": "ppo"}}

    def begin(changes: dict[str, Any], name: str = "run") -> OpenRun:
        opened = OpenRun(league, {**plain, **changes}, name, submit=False)
        opened.path.mkdir(exist_ok=True)
        RunDirectory(opened.path).write_config({**plain, **changes, "run_dir": str(opened.path)})
        return opened

    first, second = begin({}), begin({})  # at the same time, the same command
    assert first.path != second.path
    first.close()
    again = begin({"env": {"name": NAME, "opponents": {"players": ["high"]}}, "total_frames": 200})
    assert again.path == first.path and again.begun and not again.complete
    assert again.configuration(plain)["resume"] == str(first.path)
    again.close()
    others = [begin({"seed": 1}), begin({"agent": {"name": "ppo", "gamma": 0.9}}), begin({"env": {"name": "other"}})]
    assert len({opened.path for opened in (first, second, *others)}) == 5
    named = begin({"run_dir": str(first.path)})
    assert named.path == first.path
    for fault, message in (({"seed": 2}, "already holds another run"), ({}, "another process trains")):
        refused(ConfigError, message, begin, {**fault, "run_dir": str(first.path)})


@pytest.mark.slow
def test_mistakes_are_one_line_and_change_nothing(command: Command) -> None:
    command("init", *WORLD, "folder=league")
    before = Path("league/league.json").read_bytes()
    for words, message in (
        (["train", *TINY, "folder=nowhere"], "folder: nowhere holds no league (league.json); 'init' or 'run' begins"),
        (["train", *TINY, "env.length=3"], "env.length: 3, but the league in league plays with 2"),
        (["train", *TINY, "env.lenght=2"], "env.lenght: unknown key, did you mean 'length'?"),
        (["train", *TINY, "env=rocket"], "env.name: 'rocket', but the league in league plays with 'tests.play.duel"),
        (["train", *TINY, "agent=sac"], "agent"),
        (["train", *TINY, "resume=runs/any"], "resume: 'league train' finds the run to continue by itself"),
        (["train", *TINY, "env.opponents={players: [self]}"], "evaluation: self exists only during training"),
        (["add", "folder=league"], "players: missing; say who joins"),
        (["add", "players=[runs/none]", "folder=league"], "opponent 'runs/none' is unknown"),
        (["lst", "folder=league"], "lst"),
        (["run", "note=mine", "folder=league"], "note: 'run' does not use it, only add"),
        (["run", "output=film.mp4", "folder=league"], "output: 'run' does not use it, only play"),
        (["play", "output=film.mp4", "players=[low,high]"], "output: has no effect without replay="),
        (["run", "keep=3", "folder=league"], "keep: has no effect without save="),
    ):
        assert message in command(*words, status=2)
    assert Path("league/league.json").read_bytes() == before
    assert not list(Path("league").glob("runs/ppo*")) and not Path("nowhere").exists()


def test_play_takes_options_that_evaluations_replace_and_a_league_refuses_them(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Duel, "evaluation_options", {"length": 5})

    def lengths(*words: str) -> tuple[int, set[int]]:
        command("play", f"++env.name={NAME}", "players=[low,high]", "games=6", "num_worlds=3", *words)
        results = json.loads(Path("runs/league/play/low/results.json").read_text())
        return results["env"]["length"], {game["steps"] for game in results["game_by_game"]}

    assert lengths() == (5, {5, 6, 7})
    assert lengths("++env.length=2") == (2, {2, 3, 4})
    printed = command("run", *WORLD, "players=[low,high]", "games=2", status=2)
    assert printed == "error: env.length: a league plays with 5, as evaluations do; leave it out"


@pytest.mark.parametrize("word", ["play", "run"])
def test_games_need_a_world_that_exists(word: str, command: Command) -> None:
    assert command(word, "++env.num_worlds=2", "players=[low,high]", status=2).startswith("error: env.name: missing")
    assert "unknown world 'nope'" in command(word, "++env.name=nope", "players=[low,high]", status=2)
    assert list(Path().iterdir()) == []
