"""Sweeps: the options that vary, the folder and table of the runs, and the commands."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pytest

from rlstack import report, train
from rlstack.config import ConfigError
from rlstack.envs.foundation.files import write_json
from rlstack.sweeps.folder import SweepPlace, announced, show_results, sweep_folder, take_results, telling
from rlstack.sweeps.space import ChoiceDimension, RangeDimension, split
from rlstack.training.distributed import Ranks
from rlstack.training.progress import Progress
from tests.refusals import refused
from tests.reporting.made_runs import config, make_run, score_rows
from tests.small_run import python


def test_ranges_are_told_from_the_rest_of_the_command_line() -> None:
    line = ["agent=ppo", "++agent.lr=tag(log,interval(1e-4,1e-2))", "++agent.epochs=int(interval(1,9))", "env.id=A-v0"]
    space, fixed = split([*line, "agent.batch_size=64,256", "agent.gamma=choice(0.9,0.99)"])
    assert fixed == ["agent=ppo", "env.id=A-v0"]
    assert space == {
        "agent.lr": RangeDimension(1e-4, 1e-2, log=True, whole=False),
        "agent.epochs": RangeDimension(1, 9, log=False, whole=True),
        "agent.batch_size": ChoiceDimension((64, 256)),
        "agent.gamma": ChoiceDimension((0.9, 0.99)),
    }


def test_a_value_on_the_command_line_beats_a_range_of_the_yaml() -> None:
    space, fixed = split(["agent.lr=interval(0,1)", "agent.gamma=interval(0.9,1)", "++agent.lr=0.5"])
    assert list(space) == ["agent.gamma"] and fixed == ["++agent.lr=0.5"]


@pytest.mark.parametrize(
    ("line", "needles"),
    [
        (["agent=ppo"], ["nothing varies", "interval"]),
        (["seed=0,1"], ["seed", "agent."]),
        (["agent=ppo,sac"], ["agent:", "cannot vary"]),
        (["agent.lr=interval(1,0)"], ["agent.lr", "not a range"]),
        (["agent.lr=tag(log,interval(0,1))"], ["agent.lr", "above zero"]),
    ],
)
def test_what_cannot_vary_is_told(line: list[str], needles: list[str]) -> None:
    error = refused(ConfigError, ".", split, line)
    assert all(needle in error for needle in needles)


def test_a_logarithmic_range_draws_as_many_from_each_decade() -> None:
    values = [RangeDimension(1e-4, 1e-2, log=True, whole=False).draw(Random(seed)) for seed in range(400)]
    assert all(1e-4 <= value <= 1e-2 for value in values)
    assert 150 < sum(value < 1e-3 for value in values) < 250


def test_perturbed_values_stay_inside_and_whole_numbers_whole() -> None:
    rng = Random(0)
    assert RangeDimension(0.0, 1.0, False, False).perturb(0.5, [1.2], rng) == pytest.approx(0.6)
    assert RangeDimension(0.0, 1.0, False, False).perturb(0.9, [1.2], rng) == 1.0
    assert RangeDimension(1, 9, False, True).perturb(2, [1.2], rng) == 3
    assert RangeDimension(1, 9, False, True).perturb(2, [0.8], rng) == 1
    assert RangeDimension(1, 9, False, True).perturb(1, [0.8], rng) == 1
    assert isinstance(RangeDimension(1, 9, False, True).perturb(5, [0.7], rng), int)


def test_a_perturbed_choice_is_a_neighbour() -> None:
    choices = ChoiceDimension((64, 128, 256))
    assert choices.perturb(128, [1.2], Random(0)) == 256
    assert choices.perturb(128, [0.8], Random(0)) == 64
    assert choices.perturb(256, [1.2], Random(0)) == 256


# -- The table at the end of a sweep ---------------------------------------------------------------------------------


def result(seed: int, **entries: Any) -> dict[str, Any]:
    return {"overrides": ["agent=ppo", "agent.encoders={a: {b=c}}", f"seed={seed}"], **entries}


def test_configurations_come_first_by_their_mean_and_runs_below(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {0.1: (-21.0, -22.0, -23.0), 0.01: (-20.3, -90.0, -30.0), 0.5: (-40.0, math.nan)}
    results = [
        {"overrides": [f"lr={lr}", f"seed={seed}"], "score": score, "run": f"runs/{lr}_{seed}", "world": "toy"}
        for lr, of in scores.items()
        for seed, score in enumerate(of)
    ]
    results.append({"overrides": ["lr=0.5", "seed=2"], "error": "agent.gamma: no"})
    show_results(results, Path("runs/elsewhere"))
    first, header, *lines = capsys.readouterr().out.strip().splitlines()
    assert header.split() == ["lr", "seeds", "mean", "minimum", "maximum"] and "configurations" in first
    assert [line.split()[:3] for line in lines[:3]] == [
        *(["0.1", "3", "-22.000"], ["0.5", "1", "-40.000"], ["0.01", "3", "-46.767"])
    ]
    # The highest score of a run, -20.3, is of the configuration with the lowest mean.
    few = "3 against 1 seeds cannot reach p < 0.05; 4 against 4 can"
    assert lines[3] == f"highest mean: lr=0.1, not separated from lr=0.5 ({few})"
    assert lines[6].split() == ["lr", "seed", "score", "run"] and lines[7].split()[:3] == ["0.1", "0", "-21.000"]
    assert lines[-1].split(maxsplit=3)[2:] == ["-", "failed: agent.gamma: no"]


def test_a_single_seed_each_and_different_worlds_have_no_best(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        {"overrides": [f"env={world}"], "score": score, "run": world, "world": world}
        for world, score in (("toy", 1.0), ("other", 2.0))
    ]
    show_results(results, Path("runs"))
    assert "the scores of different worlds (other, toy) do not compare" in capsys.readouterr().out
    show_results([{**entry, "world": "toy"} for entry in results], Path("runs"))
    out = capsys.readouterr().out
    assert "highest score: env=other, not separated from env=toy (1 against 1 seeds" in out
    assert "configurations" not in out and "best" not in out


@pytest.mark.parametrize("results", [[], [result(0, error="what the command tells anyway")]])
def test_no_table_where_there_is_nothing_to_compare(
    results: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    show_results(results, Path())
    assert capsys.readouterr().out == ""


def test_results_are_read_in_the_order_of_jobs_and_once(tmp_path: Path) -> None:
    for number in (10, 2):
        write_json(tmp_path / f"job_{number:06d}.json", result(number))
    assert [entry["overrides"][-1] for entry in take_results(tmp_path)] == ["seed=2", "seed=10"]
    assert take_results(tmp_path) == [] and list(tmp_path.iterdir()) == []


# -- Each sweep has its own folder, and one command makes a report of it ---------------------------------------------


GROUPS = {"agent": "acqn", "env": "marinenav"}


def place(*arguments: str) -> tuple[list[str], Path | None]:
    with sweep_folder(arguments, GROUPS) as (given, folder):
        if folder is not None:
            (folder / "0_run").mkdir(parents=True)
        return given[len(arguments) :], folder


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["-m", "seed=0,1"], "acqn_marinenav"),
        (["agent=ppo,sac", "--multirun", "env=gymnasium", "env.id=CartPole-v1"], "ppo-sac_CartPole-v1"),
        (["-m", "experiment=arena/style1", "seed=0,1"], "arena-style1"),
    ],
)
def test_the_folder_says_what_is_swept(
    arguments: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [place(*arguments) for _ in range(2)]  # possibly within the same second
    for added, folder in folders:
        assert folder is not None and folder.match(f"runs/{name}_sweep_*")
        assert added == [f"hydra.sweep.dir='{folder}'"] and folder.is_dir()
    assert folders[0][1] != folders[1][1]


def test_folders_are_left_alone_where_there_is_no_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place("-m", "seed=0,1", "--cfg=job") == ([], None)
    assert place("-m", "hydra/sweeper=pbt") == (["hydra.sweep.dir=${hydra.sweeper.folder}/.jobs"], None)
    assert list(tmp_path.iterdir()) == []
    assert place("-m", "hydra.sweep.dir='mine'") == ([], Path("mine"))
    refused(ConfigError, r"^run_dir: all runs of -m would have this folder", place, "-m", "seed=0,1", "run_dir=mine")


@contextmanager
def stand_in(plain: dict[str, Any], hooks: list[Any]) -> Iterator[SimpleNamespace]:
    """Stands in for a run with a low score, for which a report plots the logarithm of nothing."""
    folder = Path(plain["run_dir"])
    score = -1.0 - plain["seed"]
    make_run(folder, config(plain["seed"], agent=plain["agent"]["name"]), score_rows(score))
    yield SimpleNamespace(run=SimpleNamespace(path=folder), ranks=Ranks(), execute=lambda: None)


def test_the_last_line_reports_on_the_runs_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlstack.training.run.begun", stand_in)
    words = ["train", "-m", "agent=ppo,sac", "env=cartpole", "hydra.sweep.dir='a sweep'"]
    monkeypatch.setattr(sys, "argv", words)
    train.main()
    folder = tmp_path / "a sweep"
    runs = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert runs == ["0_ppo_cartpole_seed0", "1_sac_cartpole_seed0"]
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.endswith("rlstack report 'a sweep'")
    monkeypatch.setattr(sys, "argv", shlex.split(line.partition("rlstack ")[2]))
    report.main()
    assert "2 runs in 2 groups" in capsys.readouterr().out and (folder / "report.html").is_file()


def test_a_sweep_without_a_run_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for words, told in (
        (["seedz=0,1"], "seedz: unknown key"),
        (["seed=0,1", "hydra.sweep.dir=file/x"], "hydra.sweep.dir: file/x cannot be made (Not a directory)"),
        (["hydra/sweeper=pbt", "hydra.sweeper.members=1", "agent.lr=interval(0,1)"], "hydra.sweeper.members: 1 is"),
        (["hydra/sweeper=pbt", "agent.lr=interval(0,1)", "total_frames=many"], "total_frames: expected"),
    ):
        monkeypatch.setattr(sys, "argv", ["train", "-m", "agent=ppo", *words])
        with pytest.raises(SystemExit):
            train.main()
        assert told in capsys.readouterr().err and [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["agent=ppo", "agent.lr=1e-3,1e-4", "seed=range(3)"], (6, ["agent.lr", "seed"])),
        (["agent=ppo", "agent.hidden=[64,64]"], (1, [])),
        (["agent=glob(*)"], None),
        (["hydra/sweeper=search", "agent.lr=interval(0,1)"], None),
    ],
)
def test_jobs_are_told_how_many_there_are(words: list[str], told: tuple[int, list[str]] | None) -> None:
    with announced(words):
        content = json.loads(os.environ.get("RLSTACK_SWEEP", "null"))
    assert "RLSTACK_SWEEP" not in os.environ
    assert (None if content is None else (content["runs"], content["keys"])) == told


def test_the_panel_shows_the_place_of_a_run_in_its_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    job = SimpleNamespace(
        job=SimpleNamespace(num=1),
        overrides=SimpleNamespace(task=["agent.lr=1e-4", "seed=0"]),
        launcher={"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"},
    )
    monkeypatch.setattr("rlstack.sweeps.folder.HydraConfig.get", lambda: job)
    monkeypatch.setattr("rlstack.sweeps.folder.time.time", lambda: 1000.0)
    progress = Progress(100, io.StringIO())
    training: Any = SimpleNamespace(frames=0, last_frame=100, progress=progress)
    with announced(["agent.lr=1e-3,1e-4"]):
        SweepPlace().on_start(training)
    monkeypatch.setattr("rlstack.sweeps.folder.time.time", lambda: 1090.0)
    training.frames = 60  # 1.6 runs of 2 in 90 s
    assert progress.rows["sweep"]() == "run 2 of 2, lr=1e-4, 0:00:22 left of all"
    job.overrides.task[0] = "agent.lr=0.0009490243844384462"
    with telling(4, ["agent.lr", "agent.gamma"], first=1):  # a trial of a search that continues at 60 frames
        SweepPlace().on_start(training)
    monkeypatch.setattr("rlstack.sweeps.folder.time.time", lambda: 1100.0)
    training.frames = 80  # half of what was left of it, of 3 trials that are left
    assert progress.rows["sweep"]() == "run 2 of 4, lr=0.000949, 0:00:50 left of all"


# -- sweeps by the commands that a user types --------------------------------------------------------------------------


CARTPOLE = [
    *("agent=ppo", "env=gymnasium", "env.id=CartPole-v1", "env.num_envs=4", "env.workers=0", "total_frames=512"),
    *("agent.steps_per_batch=32", "logger=csv", "threads=1", "device=cpu", "eval.episodes=2"),
]


def sweep(*arguments: str, cwd: Path) -> CompletedProcess[str]:
    return python("-m", "rlstack.train", "-m", *CARTPOLE, *arguments, cwd=cwd)


def table(output: str) -> dict[str, str]:
    """Returns the lines of the final table by the name of the run's folder."""
    return {match[1]: line for line in output.splitlines() if (match := re.match(r"\d.*\s(\S+_seed\d+)$", line))}


@pytest.mark.slow
def test_a_population_trains_and_is_complete_then(tmp_path: Path) -> None:
    options = ["hydra/sweeper=pbt", "hydra.sweeper.members=3", "hydra.sweeper.generations=2"]
    options += ["agent.lr=tag(log,interval(1e-4,1e-2))", "agent.gae_lambda=0.9,0.98", "seed=5"]
    options += ["agent.entropy_coefficient=${agent.lr}"]
    first = sweep(*options, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    folder = tmp_path / "runs" / "population"
    generations = json.loads((folder / "population.json").read_text())["generations"]
    assert [generation["until"] for generation in generations] == [256, 512]
    (copied,) = [index for index, member in enumerate(generations[1]["members"]) if member["copied_from"] is not None]
    for index, member in enumerate(generations[1]["members"]):
        run = folder / f"member_{index}"
        config = (run / "config.yaml").read_text()
        assert f"lr: {member['hyperparameters']['agent.lr']}" in config
        assert f"entropy_coefficient: {member['hyperparameters']['agent.lr']}" in config
        source = member["copied_from"] if index == copied else index
        assert f"seed: {5 + source}\n" in config and "until: null" in config
        assert (run / "checkpoints" / "checkpoint_000000000512.pt").is_file()
        assert isinstance(member["score"], float)
    again = sweep(*options, cwd=tmp_path)
    assert again.returncode == 0 and "frames/s" not in again.stdout
    tables = [done.stdout.partition("population finished")[2] for done in (first, again)]
    assert tables[0] == tables[1] and f"{generations[1]['members'][copied]['copied_from']}" in tables[0]
    other = sweep(*options, "hydra.sweeper.quantile=0.5", cwd=tmp_path)
    assert other.returncode == 2 and "quantile is 0.25, not 0.5" in other.stderr


@pytest.mark.slow
def test_joblib_runs_side_by_side(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    result = sweep("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1", "agent.gamma=0.9,1.5", cwd=tmp_path)
    assert result.returncode == 2 and "agent.gamma: 1.5 is outside [0, 1]" in result.stderr
    runs = table(result.stdout)
    (folder,) = (tmp_path / "runs").iterdir()
    assert {run.name for run in folder.iterdir() if run.is_dir()} == set(runs) and len(runs) == 2
    assert result.stdout.count("failed: agent.gamma") == 2


def trials_in(folder: Path) -> list[Any]:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(folder / "search.jsonl")))
    return storage.get_all_trials(0)


@pytest.mark.slow
def test_a_search_with_optuna_goes_on_with_more_trials(tmp_path: Path) -> None:
    pytest.importorskip("optuna", minversion="4.0")
    options = ["hydra/sweeper=search", "agent.lr=tag(log,interval(1e-4,1e-2))", "eval.seed=7,8"]
    done = sweep(*options, "hydra.sweeper.n_trials=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "search"
    (first,) = trials_in(folder)
    done = sweep(*options, "hydra.sweeper.n_trials=2", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.count("run finished") == 1, done.stderr
    trials = trials_in(folder)
    assert len(trials) == 2 and trials[0] == first and [trial.state.name for trial in trials] == ["COMPLETE"] * 2
    for number, trial in enumerate(trials):
        chosen = (folder / f"trial_{number}" / "config.yaml").read_text()
        assert f"lr: {trial.params['agent.lr']}" in chosen
        assert f"seed: {trial.params['eval.seed']}" in chosen
    assert {path.name for path in folder.iterdir()} == {"search.jsonl", "manifest.json", "trial_0", "trial_1", ".jobs"}


@pytest.mark.slow
def test_submitit_runs_each_in_a_job_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    result = sweep("hydra/launcher=submitit_local", "seed=0,1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert len(table(result.stdout)) == 2
    (folder,) = (tmp_path / "runs").iterdir()
    assert result.stdout.splitlines()[-1].endswith(f"rlstack report runs/{folder.name}")
    assert (folder / ".submitit").is_dir()
