"""The bookkeeping of the quality experiment, on made-up runs."""

from pathlib import Path

import pytest

from experiments.marinenav import quality
from rlstack.evaluation.statistics import wilson_interval

HEADER = "frames,train/return,eval/success,eval/time,eval/collision,time/seconds,time/cpu_seconds\n"


def fake_run(folder: Path, successes: list[float]) -> Path:
    rows = [
        f"{k},1.0,,,,{60 * k},{50 * k}\n{k},,{value},20,0.1,{60 * k},{50 * k}\n" for k, value in enumerate(successes)
    ]
    folder.mkdir()
    (folder / "metrics.csv").write_text(HEADER + "".join(rows))
    return folder


def test_only_evaluations_make_the_curve(tmp_path: Path) -> None:
    curve = quality.read_curve(fake_run(tmp_path / "a", [0.1, 0.8, 0.9]))
    assert [row["eval/success"] for row in curve] == [0.1, 0.8, 0.9]
    assert curve[2]["time/seconds"] == 120


def test_the_summary_pools_seeds_and_finds_the_time_to_the_published_rate(tmp_path: Path) -> None:
    curves = {
        0: quality.read_curve(fake_run(tmp_path / "a", [0.1, 0.8])),
        3: quality.read_curve(fake_run(tmp_path / "b", [0.2])),
    }
    finals = {
        seed: {
            "summary": {"eval/success": rate, "other": 1.0},
            "episodes": {"success": [1.0] * hits + [0.0] * (10 - hits)},
        }
        for seed, rate, hits in ((0, 0.9, 9), (3, 0.5, 5))
    }
    summary = quality.summarise(finals, curves)
    assert summary["success_mean"] == pytest.approx(0.7)
    assert summary["success_min_max"] == [0.5, 0.9]
    assert summary["success_interval"] == wilson_interval(14, 20)
    assert summary["seeds"][0]["minutes_to_published"] == 1
    assert summary["seeds"][0]["cpu_minutes"] == pytest.approx(50 / 60)
    assert summary["seeds"][3]["minutes_to_published"] is None


def test_curve_files_are_written(tmp_path: Path) -> None:
    quality.write_curve({0: quality.read_curve(fake_run(tmp_path / "a", [0.1, 0.8]))}, tmp_path)
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    assert lines[0].startswith("seed,time/seconds,time/cpu_seconds,frames,eval/success")
    assert len(lines) == 3 and lines[2].startswith("0,60.0,50.0,1.0,0.8")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
