"""The studies: what each trains, and the figures that it reads from runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium.utils.env_checker import check_env

from experiments.benchmarks import operations
from experiments.corrections import curves
from experiments.marinenav import benchmark, quality
from experiments.marinenav.offline import Results, gain, pooled
from experiments.marinenav.options import AGENTS, EVALUATED, OPTIONS, judged
from experiments.reference_scores.deep_sea import DeepSea
from experiments.rocket.ablation import EVERYTHING, KEPT, variants, won
from experiments.runs import logged
from rlstack.envs.marinenav.episodes import PUBLISHED_LEVELS, evaluation_set
from rlstack.envs.rocket.rewards import TERMS
from rlstack.evaluation.results import Evaluation
from rlstack.training.preflight import check_buildable, few_worlds
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.reporting.made_runs import make_run
from tests.training.test_cadence import config

ROWS = ("100,10,0.5", "150,15,", "200,20,0.96", "300,30,0.9")


@pytest.mark.parametrize(
    ("rows", "reached"),
    [
        (ROWS, {"frames": 200, "cpu_seconds": 20, "last": 300, "success": 0.9, "all_cpu_seconds": 30}),
        (ROWS[:2], {"frames": None, "cpu_seconds": None, "last": 100, "success": 0.5, "all_cpu_seconds": 15}),
    ],
)
def test_the_goal_is_reached_where_an_evaluation_first_reaches_it(
    rows: tuple[str, ...], reached: dict[str, Any], tmp_path: Path
) -> None:
    assert judged(make_run(tmp_path / "run", None, rows, "frames,time/cpu_seconds,eval/success")) == reached


@exhaustive("option", OPTIONS)
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


def test_unknown_names_are_refused() -> None:
    refused(SystemExit, "chess: neither a world nor an agent; known: rocket, ", operations.main, ["chess"])


# -- The curves of off-policy corrections: each arm runs, and the lag is exact -----------------


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
    refused(pytest.fail.Exception, "not yet", next, curves.train("vtrace", "late", 0, 1280))
    assert seen == [0, 0, 0, 256, 512]


def test_areas_under_curves() -> None:
    rows = [
        {"arm": arm, "seed": seed, "frames": 10 * point, "return": float(point + seed)}
        for arm in ("A2C, no lag", "PPO, no lag")
        for seed in (0, 1)
        for point in range(curves.POINTS)
    ]
    told = curves.summary(rows, 1.0)["arms"]["A2C, no lag"]
    assert told["areas"] == [5.5, 6.5] and told["area"] == 6.0 and told["last quarter"] == 10.5  # mean of 9, 10 and 11


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


# -- The statistics of the quality experiment, on made-up runs -------------------------------------------------------


def curve_of(folder: Path, *successes: float) -> list[dict[str, float]]:
    """Returns the evaluations of a made-up run, which has logged other rows between them."""
    header = "frames,train/return,eval/success,eval/time,eval/collision,time/seconds,time/cpu_seconds"
    rows = [
        row
        for k, value in enumerate(successes)
        for row in (f"{k},1.0,,,,{60 * k},{50 * k}", f"{k},,{value},20,0.1,{60 * k},{50 * k}")
    ]
    return logged(make_run(folder, None, tuple(rows), header), "eval/success")


def evaluated(success: list[float]) -> dict[str, Any]:
    """Returns the result of ``rlstack.evaluate`` for made-up episodes on two levels."""
    half = len(success) // 2
    columns = {name: torch.tensor(success) for name in ("success", "return", "discounted_return", "time", "energy")}
    columns |= {"length": torch.ones(2 * half), "collision": 1 - torch.tensor(success)}
    levels = [str(k) for k in range(quality.LEVELS) for _ in range(2 * half // quality.LEVELS)]
    return json.loads(Evaluation(columns, levels, "marinenav", {}, 0, "made up", {}).to_json())


def test_the_summary_pools_seeds_and_finds_the_time_to_the_published_rate(tmp_path: Path) -> None:
    first, other = [1.0] * 11 + [0.0], [1.0] * 6 + [0.0] * 6
    curves = {0: curve_of(tmp_path / "0", 0.1, 0.8), 3: curve_of(tmp_path / "3", 0.2)}
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
    quality.write_curve({0: curve_of(tmp_path / "a", 0.1, 0.8)}, tmp_path)
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    assert lines[0].startswith("seed,time/seconds,time/cpu_seconds,frames,eval/success")
    assert len(lines) == 3 and lines[2].startswith("0,60.0,50.0,1.0,0.8")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


# -- The table of the experiment on recorded episodes, for made-up results -------------------------------------------


def test_the_interval_is_that_of_the_episodes_whatever_the_number_of_seeds() -> None:
    """Two equal seeds know as much as one: a bootstrap over 20 episodes, nearly the normal interval .6 +- .215."""
    row = {"solved": [1] * 12 + [0] * 8}
    # Wilson (1927) for 12 of 20: (12 + 1.92) / (20 + 3.84) = .584, half-width .197.
    assert pooled([row]) == pytest.approx((0.6, 0.387, 0.781), abs=5e-4)
    assert pooled([row, row]) == (0.6, pytest.approx(0.385, abs=0.04), pytest.approx(0.815, abs=0.04))


def test_a_gain_is_that_of_the_same_episodes() -> None:
    """One seed solves one more of four episodes, the other none: a gain of 1/8, from one of the four episodes."""
    worse, better = {"solved": [1, 0, 0, 0]}, {"solved": [1, 1, 0, 0]}
    results: Results = {"bc": [worse, worse], "iql": [better, worse]}
    mean, low, high = gain(results, "iql", "bc")
    assert mean == 0.125 and low == 0 and 0.125 < high <= 0.5


# -- The value of Rocket's rewards: what is trained, and what counts -------------------------------------------------


def test_every_variant_lacks_one_group_but_never_the_goals() -> None:
    found = variants()
    own = found.pop(EVERYTHING)
    for name, weights in found.items():
        group = name.removeprefix("without ")
        off = {term for term, (of, _) in TERMS.items() if of == group and term not in KEPT}
        assert off and all(weights[term] == 0 for term in off)
        assert {term: weight for term, weight in weights.items() if term not in off} == {
            term: weight for term, weight in own.items() if term not in off
        }


def test_games_of_the_last_quarter_count_however_they_are_logged(tmp_path: Path) -> None:
    rows = ("100,50,0.0", "300,30,0.5", "400,10,1.0")
    share, low, high = won(make_run(tmp_path / "run", None, rows, "frames,train/episodes,train/success"))
    assert share == pytest.approx(25 / 40) and low < share < high


# -- The frozen benchmark of MarineNav: its episodes, and its comparison of players ----------------------------------


@pytest.mark.slow
def test_the_frozen_episodes_are_those_that_were_frozen() -> None:
    episodes = benchmark.frozen()
    robots = [config["env"]["num_robots"] for config in episodes.configs]
    assert robots == [int(level["num_robots"]) for level in PUBLISHED_LEVELS for _ in range(300)]
    assert episodes.levels[0] == "0" and episodes.levels[-1] == "5" and len(episodes.levels) == 1800


def test_another_file_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(benchmark, "FROZEN", tmp_path / "episodes.json.gz")
    monkeypatch.setattr(benchmark, "PER_LEVEL", 1)
    benchmark.freeze(benchmark.FROZEN)
    refused(ValueError, "not the file that was frozen", benchmark.frozen)


@pytest.mark.slow
def test_the_public_episodes_are_those_of_twelve_seeds() -> None:
    episodes = benchmark.public()
    assert len(episodes.configs) == 720 and episodes.levels.count("3") == 120
    assert episodes.configs[10] == evaluation_set(10, 254)[0][0], "the second seed's first episode of level 0"


def test_players_are_compared_where_both_arrive() -> None:
    first = {"success": [1, 1, 0, 1], "time": [20, 40, 9, 50], "energy": [10, 10, 1, 10]}
    other = {"success": [1, 1, 1, 0], "time": [10, 20, 9, 50], "energy": [15, 15, 1, 1]}
    found = benchmark.both_solve(first, other)
    assert found["episodes"] == 2
    assert found["time"]["ratio"] == pytest.approx(0.5) and found["energy"]["ratio"] == pytest.approx(1.5)
    assert found["time"]["interval"] == pytest.approx([0.5, 0.5]), "half in every episode"
    assert benchmark.both_solve(first, other | {"success": [0, 0, 1, 0]}) is None


@pytest.mark.slow
def test_players_are_measured_and_kept(tmp_path, monkeypatch) -> None:
    two = benchmark.public()
    few = benchmark.EpisodeSet(two.configs[::360], two.levels[::360])
    monkeypatch.setattr(benchmark, "public", lambda: few)
    benchmark.run(["orca"], "public", tmp_path)
    text = benchmark.run(["apf"], "public", tmp_path)
    rows = text.splitlines()
    assert rows[2].startswith("| orca |") and rows[3].startswith("| apf |")
    assert list(json.loads((tmp_path / "benchmark_public.json").read_text())["players"]) == ["orca", "apf"]
