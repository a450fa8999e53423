"""The reference studies: their files, their table, and a real run of a fast subset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.reference_scores import scores
from experiments.reference_scores.scores import STUDIES, judge, recipe, table
from experiments.results import read_csv
from experiments.runs import train
from rlstack.config import conf_dir
from tests.refusals import refused
from tests.reporting.made_runs import make_run

RESULT: dict[str, Any] = {
    **STUDIES["cartpole_ppo"]._asdict(),
    **{"frames": 100_000, "scores": {0: 500.0, 1: 470.0}, "mean": 485.0, "iqm": 485.0, "interval": [470.0, 500.0]},
    **{"lowest": 470.0, "passed": False, "cpu_seconds": {0: 20.0, 1: 30.0}},
}


def test_every_study_has_a_file_and_every_file_a_study() -> None:
    files = {path.stem for path in (conf_dir() / "experiment" / "reference").glob("*.yaml")}
    assert files == {study.recipe or name for name, study in STUDIES.items()}


def test_a_row_says_whether_the_bar_was_reached(tmp_path: Path) -> None:
    (tmp_path / "cartpole_ppo.json").write_text(json.dumps(RESULT))
    row = table(tmp_path).splitlines()[-1]
    assert row.startswith("| CartPole-v1 | PPO | 100,000 | 2 | 485.0 | 485.0 (470.0 to 500.0) | 470.0 | each ≥ 475")
    assert "MISSED" in row and row.endswith("| 25 |")


def test_a_bar_is_for_every_seed_for_the_mean_or_from_above() -> None:
    study = STUDIES["cartpole_ppo"]
    assert not study.passed([500.0, 470.0]) and study.passed([500.0, 475.0])
    assert study._replace(of="mean").passed([500.0, 470.0])
    assert study._replace(of="none above").passed([475.0, 30.0])
    assert not study._replace(of="none above").passed([500.0, 30.0])


def test_curves_of_other_studies_and_seeds_stay(tmp_path: Path) -> None:
    curves = {("cartpole_ppo", "0"): ("20.0", "500.0"), ("cartpole_ppo", "1"): ("30.0", "400.0")}
    for (study, seed), values in {**curves, ("cartpole_dqn", "0"): ("10.0",)}.items():
        rows = (*(f"{1000 * k},{value}" for k, value in enumerate(values)), "9000,")  # the last one is no evaluation
        run = make_run(tmp_path / study / seed, None, rows, "frames,eval/return")
        scores.write_curves({study: {seed: run}}, tmp_path)
    written = read_csv(tmp_path / "curves.csv")
    assert [(row["study"], row["seed"], row["return"]) for row in written] == [
        ("cartpole_dqn", "0", "10.0"),
        ("cartpole_ppo", "0", "20.0"),
        ("cartpole_ppo", "0", "500.0"),
        ("cartpole_ppo", "1", "30.0"),
        ("cartpole_ppo", "1", "400.0"),
    ]
    (tmp_path / "cartpole_ppo.json").write_text(json.dumps(RESULT))
    scores.draw(tmp_path, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_other_seeds_of_an_earlier_result_stay_unless_they_trained_for_other_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "final_evaluation", lambda *_, **__: {"summary": {"eval/return": 9.0}})
    monkeypatch.setattr(scores, "cost", lambda run: {"frames": 512.0, "cpu_minutes": 0.05})
    monkeypatch.setattr(scores, "trained_on", lambda run: "new")
    earlier = {"frames": 512, "machine": "old"}
    earlier |= {"scores": {"0": 7.0, "1": 8.0}, "cpu_seconds": {"0": 1.0, "1": 2.0}}
    result = judge("cartpole_ppo", {"1": tmp_path}, earlier)
    assert result["scores"] == {"0": 7.0, "1": 9.0} and result["machine"] == "new; old"
    other = {**earlier, "frames": 1024}
    late = {"1": tmp_path}
    refused(SystemExit, "cartpole_ppo: the result file holds seeds after 1,024", judge, "cartpole_ppo", late, other)
    assert judge("cartpole_ppo", {"0": tmp_path, **late}, other)["scores"] == {"0": 9.0, "1": 9.0}


@pytest.mark.slow
@pytest.mark.parametrize("study", ["cartpole_ppo", "cartpole_dqn", "pendulum_td3"])
def test_a_fast_subset_reaches_its_bar(study: str, tmp_path: Path) -> None:
    (run,) = train([(0, tmp_path, recipe(study))])
    result = judge(study, {"0": run}, {})
    assert result["passed"], result["scores"]
