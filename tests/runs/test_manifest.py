"""The digests of the files of runs, evaluations, leagues and sweeps, and the damage that they reveal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlstack.config import ConfigError
from rlstack.play.league import League
from rlstack.play.ratings import rating_system
from rlstack.reporting.runs import StoredRun
from rlstack.runs.manifest import MANIFEST, changed, sealed
from rlstack.sweeps.population import Population, PopulationConfig
from rlstack.sweeps.space import RangeDimension
from tests.reporting.made_runs import config, make_evaluation, make_run


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
    made = League(folder, {"name": "rocket"}, rating_system("elo"))
    made.rounds = 10
    made.save()
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
