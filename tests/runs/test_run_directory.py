"""Folders of runs: their names, ``latest``, digests of their files, versions and random generators."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlstack import convert, evaluate, runs, train, watch
from rlstack.config import ConfigError
from rlstack.config.groups import compose_config
from rlstack.play.league import League
from rlstack.reporting.runs import StoredRun
from rlstack.runs.manifest import MANIFEST, changed, seal, sealed
from rlstack.runs.run_directory import RunDirectory, named, taken
from rlstack.runs.seeding import restore_rng, rng_state
from rlstack.sweeps.population import Population, PopulationConfig
from rlstack.sweeps.space import RangeDimension
from tests.reporting.made_runs import config, make_evaluation, make_run
from tests.test_writers import league as write_league


def new_run() -> Path:
    run = RunDirectory.create(None, "ppo", 1)
    run.write_config({"seed": 0})
    return run.path


def test_runs_that_start_in_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(16) as threads:
        runs = list(threads.map(lambda _: new_run(), range(64)))
    assert len(set(runs)) == 64
    assert all(run.is_dir() and run.parent == Path("runs") for run in runs)


def test_a_folder_that_nothing_came_to_be_in_is_gone(tmp_path: Path) -> None:
    with taken(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()


# -- the word ``latest`` in place of a run -----------------------------------------------------------------------------


def run(folder: str, time: int, *files: str) -> None:
    """Makes a run directory with checkpoints of the given time in seconds."""
    path = Path("runs", folder)
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.yaml").touch()
    for file in files:
        (path / "checkpoints" / file).touch()
        os.utime(path / "checkpoints" / file, (time, time))


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_newest_run_that_has_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    run("begun_first", 100, "checkpoint_000000000100.pt", "best.pt")
    run("sweep/a", 300, "checkpoint_000000000100.pt")
    run("z_older", 200, "checkpoint_000000009999.pt")
    run("no_checkpoint", 400)
    run("being_written", 500, ".checkpoint_000000000100.pt")
    Path("runs/elsewhere/checkpoints").mkdir(parents=True)
    Path("runs/elsewhere/checkpoints/no_run.pt").touch()
    assert named("latest", "resume") == str(Path("runs/sweep/a"))
    assert capsys.readouterr().out == f"resume: latest is {Path('runs/sweep/a')}\n"


def test_other_names_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["runs/a", "./latest", "sb3:latest"]
    assert [named(name, "resume") for name in names] == names
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("command", "module", "key"),
    [
        *(("train", train, "resume"), ("train", train, "init")),
        *(("evaluate", evaluate, "checkpoint"), ("watch", watch, "checkpoint"), ("convert", convert, "checkpoint")),
    ],
)
def test_every_command_that_takes_a_run_takes_the_latest(command: str, module: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: latest is the newest run below runs/, where .* set {key}=<run>$"):
        module.run(compose_config(command, [f"{key}=latest"]))


# -- the digests of the files of runs, evaluations, leagues and sweeps, and the damage that they reveal ----------------


def made(folder: Path) -> Path:
    """Makes a sealed run with an evaluation, and an evaluation that is sealed by itself."""
    run = make_run(folder / "run", config())
    with sealed(run):
        make_evaluation(run / "evaluations/000000000200.json", [1.0])
        (run / "checkpoints").mkdir()
        (run / "checkpoints/best.pt").touch()
        (run / "tensorboard").mkdir()
        (run / "tensorboard/events").touch()
        (run / ".hidden").touch()
        with sealed(run / "evaluations/greedy"):
            make_evaluation(run / "evaluations/greedy/evaluation.json", [1.0])
    return run


def test_a_manifest_names_the_files_whose_damage_nothing_else_reveals(tmp_path: Path) -> None:
    run = made(tmp_path)
    files = json.loads((run / MANIFEST).read_text())["files"]
    assert list(files) == ["config.yaml", "evaluations/000000000200.json", "metrics.csv"] and not changed(run)
    assert list(json.loads((run / "evaluations/greedy" / MANIFEST).read_text())["files"]) == ["evaluation.json"]
    with sealed(run):
        assert not (run / MANIFEST).exists()  # and so it is if the process is killed here
    (run / "exports").mkdir()
    for name in ("report.html", "explanation.json", "exports/policy.onnx"):  # made before the run was resumed
        (run / name).write_text("old")
    with sealed(run):
        pass
    (run / "report.html").write_text("new")
    assert list(json.loads((run / MANIFEST).read_text())["files"]) == list(files) and not changed(run)
    seal(run, [*files, "report.html"])  # as earlier versions did
    (run / "report.html").write_text("newer")
    assert not changed(run)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a digit": lambda path: path.write_text(path.read_text().replace("1", "2")),
    "gone": Path.unlink,
    "a link": lambda path: (path.rename(path.with_suffix(".old")), path.symlink_to(path.with_suffix(".old"))),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_changed_names_what_differs(damage: str, tmp_path: Path) -> None:
    run = made(tmp_path)
    DAMAGES[damage](run / "metrics.csv")
    assert changed(run) == changed(run, "config.yaml", "metrics.csv") == ["metrics.csv"]
    assert changed(run, "config.yaml") == []


@pytest.mark.parametrize("content", [b"", b"[]", b'{"files": 1}', b"[" * 100_000, b"\xff"])
def test_a_damaged_manifest_is_named_itself(content: bytes, tmp_path: Path) -> None:
    run = made(tmp_path)
    (run / MANIFEST).write_bytes(content)
    assert changed(run) == [MANIFEST]


def test_a_report_names_damage(tmp_path: Path) -> None:
    run = made(tmp_path)
    assert StoredRun.read(run, "run").notes == []
    for path in (run / "metrics.csv", run / "evaluations/greedy/evaluation.json"):
        path.write_text(path.read_text().replace("0.5", "0.6"))
    first, second = StoredRun.read(run, "run").notes
    assert first == "greedy/evaluation.json was changed or damaged after the evaluation"
    assert second.startswith("metrics.csv was changed or damaged after the run ended")


@pytest.mark.parametrize("name", [MANIFEST, "metrics.csv", "environment.json", "evaluations/000000000200.json"])
def test_reading_a_run_never_waits_for_a_pipe(name: str, tmp_path: Path) -> None:
    run = made(tmp_path)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    for whole in (True, False):
        assert StoredRun.read(run, "run", whole).config


def league(folder: Path) -> tuple[Path, Callable[[], Any]]:
    write_league(folder, 10)
    return folder / "league.json", lambda: League.open(folder)


def sweep(folder: Path) -> tuple[Path, Callable[[], Any]]:
    config = PopulationConfig(str(folder), 2, 1, 0.5, [1.5], 0.5, "maximize", seed=10)
    space = {"agent.lr": RangeDimension(0.0, 1.0, log=False, whole=False)}

    def made() -> Population:
        return Population(config, space, 100, {})

    made()
    return folder / "population.json", made


@pytest.mark.parametrize("make", [league, sweep])
def test_what_would_go_on_from_damage_refuses_it(make: Any, tmp_path: Path) -> None:
    path, read = make(tmp_path)
    read()
    path.write_text(path.read_text() + " ")
    with pytest.raises(ConfigError, match=f"{path}: changed or damaged .* delete {MANIFEST} to use it as it is"):
        read()
    (tmp_path / MANIFEST).unlink()
    read()


# -- what files say about the packages on which results depend ---------------------------------------------------------


@pytest.mark.parametrize("there", [{"torchrl"}, {"torchrl-nightly"}, {"torch", "mujoco"}])
def test_installed_packages_and_simulators_are_named(there: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A nightly build counts as the package."""

    def installed(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return "2026.10.27"

    monkeypatch.setattr(runs, "version", installed)
    found = runs.versions()
    assert found.keys() - {"rlstack", "python"} == {name.removesuffix("-nightly") for name in there}
    assert {found[name.removesuffix("-nightly")] for name in there} == {"2026.10.27"}


# -- states of all random generators, on machines with various numbers of GPUs -----------------------------------------


@pytest.mark.parametrize("here", [0, 1, 3])
def test_generators_go_on_with_as_many_gpus_as_there_are(here: int, monkeypatch: pytest.MonkeyPatch) -> None:
    state, set_to = {**rng_state(), "cuda": ["first", "second"]}, {}
    drawn = [random.random(), np.random.random(), float(torch.rand(()))]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: here)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda own, gpu: set_to.update({gpu: own}))
    restore_rng(state)
    assert [random.random(), np.random.random(), float(torch.rand(()))] == drawn
    assert set_to == dict(enumerate(["first", "second"][:here]))
