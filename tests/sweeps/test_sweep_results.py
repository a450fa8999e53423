"""The table at the end of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlstack.envs.whole_files import write_json
from rlstack.sweeps.folder import show_results, take_results


def result(seed: int, **entries: Any) -> dict[str, Any]:
    return {"overrides": ["agent=ppo", "agent.encoders={a: {b=c}}", f"seed={seed}"], **entries}


def test_the_table_names_what_differs_and_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    results = [result(0, score=1.5, run="runs/a"), result(1, error="agent.gamma: no")]
    show_results([*results, result(2, score=7.0, run="runs/c")], Path("runs/elsewhere"))
    title, header, *rows, high, low = capsys.readouterr().out.strip().splitlines()
    assert header.split() == ["seed", "score", "run"] and "sweep" in title
    assert rows[0].split() == ["0", "1.500", "runs/a"]
    assert rows[1].split(maxsplit=2) == ["1", "-", "failed: agent.gamma: no"]
    assert high.split() == ["highest", "score:", "7,", "runs/c"] and low.split()[-2:] == ["1.5,", "runs/a"]


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
