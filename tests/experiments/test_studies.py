"""The studies: what each trains, and the figures that it reads from runs."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium.utils.env_checker import check_env

from experiments.against import SHOWN
from experiments.benchmarks import operations
from experiments.corrections import curves
from experiments.echelon import memory
from experiments.echelon.contacts import Net
from experiments.marinenav.options import AGENTS, EVALUATED, OPTIONS, judged, table
from experiments.reference_scores.deep_sea import DeepSea
from experiments.runs import Job
from rlstack.envs.echelon.observation import CONTACT, SELF, SOUNDS, size
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


# -- The count of operations of steps and updates --------------------------------------------------------------------


def test_views_are_free_and_a_backward_pass_is_counted() -> None:
    weight = torch.ones(3, requires_grad=True)
    with operations.Operations() as counted:
        value = (weight.view(3, 1)[1:] * 2.0).sum()  # a product and a sum
    assert counted.number == 2
    with operations.Operations() as counted:
        value.backward()
    assert counted.number > 0


def test_the_table_has_both_columns() -> None:
    result = {
        "steps": {"cartpole": 27.0},
        "updates": {"sac": 1234.4},
        "earlier": {"commit": "50b0caa1ff", "steps": {"cartpole": 49.0}, "updates": {}},
    }
    assert operations.table(result).splitlines() == [
        "| | operations, commit 50b0caa1 | operations now |",
        "|---|---|---|",
        "| a step of `cartpole` | 49 | 27 |",
        "| an update of `sac` |  | 1,234 |",
    ]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SystemExit, match="chess: neither a world nor an agent; known: rocket, "):
        operations.main(["chess"])


# -- The curves of off-policy corrections: each arm runs, the lag is exact, and a picture is written -----------------


def test_late_data_are_those_of_weights_so_many_updates_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """The acting policy's clock shows the age of its weights, in batches of 16 worlds and 16 steps."""
    seen: list[int] = []

    class Spy:
        def __init__(self, env: Any, policy: Any, steps: int) -> None:
            self.made = iter(make(env, policy, steps))
            self.policy = policy

        def __iter__(self) -> Spy:
            return self

        def __next__(self) -> Any:
            seen.append(int(self.policy.frames))
            return next(self.made)

    make = curves.make_collector
    monkeypatch.setattr(curves, "make_collector", Spy)
    monkeypatch.setattr(curves, "evaluate", lambda *_: pytest.fail("not yet"))
    monkeypatch.setitem(curves.ARMS["vtrace"], "late", ("a2c", 2, {"steps_per_batch": 16, "hidden": [8]}))
    monkeypatch.setattr(curves, "POINTS", 1)
    with pytest.raises(pytest.fail.Exception, match="not yet"):
        next(curves.train("vtrace", "late", 0, 1280))
    assert seen == [0, 0, 0, 256, 512]


def test_areas_and_pictures(tmp_path: Path) -> None:
    rows = [
        {"arm": arm, "seed": seed, "frames": 10 * point, "return": float(point + seed)}
        for arm in ("A2C, no lag", "PPO, no lag")
        for seed in (0, 1)
        for point in range(curves.POINTS)
    ]
    told = curves.summary(rows, 1.0)["arms"]["A2C, no lag"]
    assert told["areas"] == [5.5, 6.5] and told["area"] == 6.0 and told["last quarter"] == 10.5  # mean of 9, 10 and 11
    curves.draw(rows, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000


# -- The deep sea: only the diver who never turns left finds the treasure --------------------------------------------


def test_it_keeps_gymnasiums_rules() -> None:
    check_env(gymnasium.make("experiments.reference_scores.deep_sea:DeepSea-v0").unwrapped, skip_render_check=True)


@pytest.mark.parametrize(
    ("actions", "expected"), [([1] * 4, 0.99), ([0] * 4, 0.0), ([1, 1, 1, 0], -0.0075), ([0, 1, 1, 1], -0.0075)]
)
def test_a_step_to_the_right_costs_and_the_last_corner_pays(actions: list[int], expected: float) -> None:
    sea = DeepSea(size=4)
    sea.reset()
    steps = [sea.step(np.int64(action)) for action in actions]
    assert sum(step[1] for step in steps) == pytest.approx(expected)
    assert [step[2] for step in steps] == [False, False, False, True]
    assert all(step[0].sum() == 1 for step in steps[:-1])


# -- The comparison of policies under partial observation: its results, and the network with attention ---------------


def test_attention_takes_nothing_from_contacts_that_are_unknown() -> None:
    torch.manual_seed(0)
    net, x = Net(size(5), 7), torch.randn(2, size(5))
    contacts = x[:, SELF + SOUNDS :][:, : 9 * CONTACT].view(2, 9, CONTACT)
    contacts[..., 13] = 1.0
    contacts[:, 4, 13] = 0.0
    before = net(x)
    contacts[:, 4, :13] = 5.0
    torch.testing.assert_close(net(x), before)
    contacts[:, 5, :13] = 5.0
    assert not torch.allclose(net(x), before)


def test_new_seeds_join_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {**dict.fromkeys(SHOWN, 1.0), "train/success": 0.5}

    def train(jobs: list[Job], parallel: int) -> list[Path]:
        for seed, folder, _ in jobs:
            (folder / f"seed{seed}").mkdir(parents=True)
            with open(folder / f"seed{seed}" / "metrics.csv", "w", newline="") as file:
                writer = csv.DictWriter(file, list(columns))
                writer.writeheader()
                writer.writerows([{**columns, "frames": frames} for frames in (1, 2)])
        return [folder / f"seed{seed}" for seed, folder, _ in jobs]

    judged = dict.fromkeys(("success", "hp_margin", "length", "frames", "cpu_minutes"), 0.5)
    monkeypatch.setattr(memory, "train", train)
    monkeypatch.setattr(memory, "judge", lambda *_: judged)
    for seed in ("0", "1"):
        words = ["--kinds", "lstm", "--seeds", seed, "--folder", str(tmp_path / "runs"), "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["memory", *words])
        memory.main()
    assert json.loads((tmp_path / "memory.json").read_text()) == {"lstm": {"0": judged, "1": judged}}
    rows = csv.DictReader((tmp_path / "memory.csv").read_text().splitlines())
    assert [(row["seed"], row["frames"]) for row in rows] == [("0", "1"), ("0", "2"), ("1", "1"), ("1", "2")]
