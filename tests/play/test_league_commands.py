"""``rlstack league init|add|evaluate|train|list`` as a user types it, with tiny runs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from rlstack import league
from rlstack.config import ConfigError
from rlstack.play import league as leagues
from rlstack.play.league import League, OpenRun
from rlstack.play.ratings import rating_system
from rlstack.runs.checkpoint import CheckpointStore
from rlstack.runs.run_directory import RunDirectory
from tests.play.duel import NAME, Duel, constant_run
from tests.refusals import refused

WORLD = [f"++env.name={NAME}", "++env.num_worlds=8", "++env.length=2"]
TINY = [
    *("agent=ppo", "agent.hidden=[4]", "agent.steps_per_batch=8", "agent.epochs=1", "agent.minibatch_size=64"),
    *("total_frames=256", "log_every=128", "eval.every=256", "eval.episodes=2", "checkpoint.every=64"),
    *("logger=csv", "threads=1", "device=cpu", "games=4", "folder=league"),
]
Command = Callable[..., str]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line in an empty folder; returns what it prints, or the one line of its error."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str, status: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["league", *words])
        capsys.readouterr()
        try:
            league.main()
        except SystemExit as end:
            assert end.code == status != 0
            lines = capsys.readouterr().err.strip().splitlines()
            assert len(lines) == 1, lines
            return lines[0]
        assert status == 0
        return capsys.readouterr().out

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

    class Killed(BaseException):
        pass

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
    with (run / "metrics.csv").open(newline="") as stream:
        frames = [int(float(row["frames"])) for row in csv.DictReader(stream)]
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
        (["train", *TINY, "pool.comanders=3"], "pool.comanders"),
        (["train", *TINY, "total_frmes=3"], "total_frmes: unknown key, did you mean 'total_frames'?"),
        (["train", *TINY, "env.opponents={players: [self]}"], "evaluation: self exists only during training"),
        (["add", "folder=league"], "players: missing; say who joins"),
        (["add", "players=[runs/none]", "folder=league"], "opponent 'runs/none' is unknown"),
        (["init", *WORLD, "folder=league"], "folder: league already holds a league"),
        (
            ["evaluate", "players=[nobody]", "folder=league"],
            "'nobody' is not in the league in league, which has nobody",
        ),
        (["evaluate", "pool.sampler=pfps", "folder=league"], "sampler: no option 'pfps', did you mean 'pfsp'"),
        (["lst", "folder=league"], "lst"),
        (["run", "note=mine", "folder=league"], "note: 'run' does not use it, only add"),
        (["run", "pool.players=[low]", "folder=league"], "pool: 'run' does not use it, only evaluate"),
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
