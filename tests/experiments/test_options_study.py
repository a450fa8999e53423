"""The study of options in MarineNav: the figures read from runs, and the overrides of the runs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import yaml

from experiments.marinenav.options import AGENTS, EVALUATED, OPTIONS, judged, table
from rlstack.training.preflight import check_buildable, few_worlds
from tests.training.test_cadence import config

ROWS = [
    {"frames": 100, "time/cpu_seconds": 10, "eval/success": 0.5},
    {"frames": 150, "time/cpu_seconds": 15},
    {"frames": 200, "time/cpu_seconds": 20, "eval/success": 0.96},
    {"frames": 300, "time/cpu_seconds": 30, "eval/success": 0.9},
]


def run(folder: Path, rows: list[dict[str, float]]) -> Path:
    folder.mkdir()
    with open(folder / "metrics.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["frames", "time/cpu_seconds", "eval/success"])
        writer.writeheader()
        writer.writerows(rows)
    return folder


def test_the_goal_is_reached_where_an_evaluation_first_reaches_it(tmp_path: Path) -> None:
    found = judged(run(tmp_path / "run", ROWS))
    assert found == {"frames": 200, "cpu_seconds": 20, "last": 300, "success": 0.9, "all_cpu_seconds": 30}


def test_who_did_not_reach_it_has_a_dash(tmp_path: Path) -> None:
    late = judged(run(tmp_path / "late", ROWS[:2]))
    row = table({"sac symmetry: none": {"0": judged(run(tmp_path / "run", ROWS)), "1": late}}).splitlines()[-1]
    assert row == "| sac | symmetry: none | 200 (20); - | 0.900; 0.500 | 30; 15 |"


@pytest.mark.parametrize("option", OPTIONS)
def test_every_arm_can_be_trained(option: str) -> None:
    for agent in AGENTS[option]:
        for changes in OPTIONS[option].values():
            parts = (part.partition("=") for part in changes)
            given = {key.replace(".", "__"): yaml.safe_load(value) for key, _, value in parts}
            tried = config(f"agent={agent}", "env=marinenav", env__num_worlds=2, **given)
            with few_worlds(tried) as env:
                check_buildable(tried, env)
    assert all(part.startswith("eval.") for part in EVALUATED)
