"""The table at the end of a sweep."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rlstack.envs.foundation.files import write_json
from rlstack.sweeps.folder import show_results, take_results


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
