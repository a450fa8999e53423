"""The statistics of the quality experiment, on made-up runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.marinenav import quality
from experiments.runs import logged
from rlstack.evaluation.results import Evaluation

HEADER = "frames,train/return,eval/success,eval/time,eval/collision,time/seconds,time/cpu_seconds\n"


def fake_run(folder: Path, successes: list[float]) -> Path:
    rows = [
        f"{k},1.0,,,,{60 * k},{50 * k}\n{k},,{value},20,0.1,{60 * k},{50 * k}\n" for k, value in enumerate(successes)
    ]
    folder.mkdir()
    (folder / "metrics.csv").write_text(HEADER + "".join(rows))
    return folder


def test_only_evaluations_make_the_curve(tmp_path: Path) -> None:
    curve = logged(fake_run(tmp_path / "a", [0.1, 0.8, 0.9]), "eval/success")
    assert [row["eval/success"] for row in curve] == [0.1, 0.8, 0.9]
    assert curve[2]["time/seconds"] == 120


def evaluated(success: list[float]) -> dict[str, Any]:
    """Returns the result of ``rlstack.evaluate`` for made-up episodes on two levels."""
    half = len(success) // 2
    columns = {name: torch.tensor(success) for name in ("success", "return", "discounted_return", "time", "energy")}
    columns |= {"length": torch.ones(2 * half), "collision": 1 - torch.tensor(success)}
    levels = [str(k) for k in range(quality.LEVELS) for _ in range(2 * half // quality.LEVELS)]
    return json.loads(Evaluation(columns, levels, "marinenav", {}, 0, "made up", {}).to_json())


def test_the_summary_pools_seeds_and_finds_the_time_to_the_published_rate(tmp_path: Path) -> None:
    first, other = [1.0] * 11 + [0.0], [1.0] * 6 + [0.0] * 6
    curves = {
        seed: logged(fake_run(tmp_path / str(seed), rate), "eval/success")
        for seed, rate in ((0, [0.1, 0.8]), (3, [0.2]))
    }
    summary = quality.summarise({0: evaluated(first), 3: evaluated(other)}, curves)
    assert summary["success_mean"] == pytest.approx((11 + 6) / 24)
    assert summary["success_min_max"] == pytest.approx([0.5, 11 / 12])
    assert summary["lowest_level"] == 0
    low, high = summary["success_interval"]
    assert 0.4 < low < (11 + 6) / 24 < high < 1
    assert summary["seeds"][0]["minutes_to_published"] == 1
    assert summary["seeds"][0]["cpu_minutes"] == pytest.approx(50 / 60)
    assert summary["seeds"][3]["minutes_to_published"] is None


def test_curve_files_are_written(tmp_path: Path) -> None:
    quality.write_curve({0: logged(fake_run(tmp_path / "a", [0.1, 0.8]), "eval/success")}, tmp_path)
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    assert lines[0].startswith("seed,time/seconds,time/cpu_seconds,frames,eval/success")
    assert len(lines) == 3 and lines[2].startswith("0,60.0,50.0,1.0,0.8")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
