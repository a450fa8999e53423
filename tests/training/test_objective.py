"""The score of a run, computed from its metrics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rlstack.config import ConfigError
from rlstack.training.config import ObjectiveConfig
from rlstack.training.loggers import read_metrics, score

METRICS = "frames,eval/return,eval/success,train/return\n10,3,,1\n20,,,9\n30,7,,\n40,5,{success},\n"


@pytest.mark.parametrize(
    ("success", "objective", "expected"),
    [
        ("", ObjectiveConfig(), 5.0),
        ("0.25", ObjectiveConfig(), 0.25),
        ("0.25", ObjectiveConfig("eval/return"), 5.0),
        ("", ObjectiveConfig("eval/return", "max"), 7.0),
        ("", ObjectiveConfig("eval/return", "min"), 3.0),
        ("", ObjectiveConfig(value="mean"), 5.0),
        ("", ObjectiveConfig("train/return"), 9.0),
    ],
)
def test_the_score_of_a_run(success: str, objective: ObjectiveConfig, expected: float, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(METRICS.format(success=success))
    assert score(tmp_path, objective) == expected


@pytest.mark.parametrize(("value", "expected"), [("last", math.nan), ("max", 30.0), ("min", 20.0), ("mean", 25.0)])
def test_a_number_that_the_last_evaluation_leaves_out_is_not_that_of_one_before(
    value: Any, expected: float, tmp_path: Path
) -> None:
    rows = "frames,eval/success,eval/time,train/return\n10,0.5,20,\n20,0.5,30,\n30,0,,\n35,,,1\n"
    (tmp_path / "metrics.csv").write_text(rows)
    assert score(tmp_path, ObjectiveConfig("eval/time", value)) == pytest.approx(expected, nan_ok=True)


def test_a_row_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(METRICS.format(success="0.5") + "50,12")
    assert [row["frames"] for row in read_metrics(tmp_path / "metrics.csv")] == [10, 20, 30, 40]


def test_a_metric_that_was_not_logged_is_told_with_those_that_were(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(METRICS.format(success=""))
    with pytest.raises(ConfigError) as error:
        score(tmp_path, ObjectiveConfig("eval/retrun"))
    assert "did you mean 'eval/return'" in str(error.value)
    assert "eval/success" not in str(error.value), "a column without a value"
