"""Searches with a stand-in for training: a trial's scores follow from its hyperparameters."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import rlstack
from rlstack.config import ConfigError
from rlstack.sweeps.search import Pruning, Search, SearchConfig, SearchTrial, _finished, falls_behind
from rlstack.sweeps.space import ChoiceDimension, RangeDimension, Space
from rlstack.training.config import ObjectiveConfig
from tests.refusals import refused

pytest.importorskip("optuna", minversion="4.0")

SPACE: Space = {
    "agent.lr": RangeDimension(1e-4, 1e-1, log=True, whole=False),
    "agent.epochs": RangeDimension(1, 9, log=False, whole=True),
    "agent": ChoiceDimension(("ppo", "a2c")),
}


def config(folder: Path, **changes: Any) -> SearchConfig:
    options: dict[str, Any] = {
        "folder": str(folder),
        "n_trials": 20,
        "n_jobs": 1,
        "direction": "maximize",
        "seed": 0,
        "pruner": "median",
        "pruner_trials": 3,
        "pruner_evaluations": 1,
    }
    return SearchConfig(**{**options, **changes})


def search(folder: Path, **changes: Any) -> Search:
    return Search(config(folder, **changes), SPACE, {"arguments": ["env=toy"]})


def curve(values: dict[str, Any]) -> list[float]:
    """Returns four evaluations; the score is best at a learning rate of 0.01, few epochs and ppo."""
    merit = -abs(math.log10(values["agent.lr"]) + 2) - 0.1 * values["agent.epochs"] - (values["agent"] == "a2c")
    return [merit * (1 + 1 / evaluation) for evaluation in (1, 2, 3, 4)]


def run(subject: Search, stop_before: int = 10**9) -> Search:
    """Runs the remaining trials, and is killed before trial ``stop_before`` starts."""
    while numbers := subject.batch():
        for number in numbers:
            if number >= stop_before:
                return subject
            trial, scores = subject.trials[number], []
            for score in curve(trial.hyperparameters):
                scores.append(score)
                if falls_behind(subject.config, subject.trials[: trial.known], scores):
                    break
            subject.finish(number, len(scores) == 4, scores)
        subject.keep()
    return subject


@pytest.mark.parametrize("jobs", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_twenty_trials_are_ten_and_ten_more(tmp_path: Path, jobs: int) -> None:
    straight = run(search(tmp_path / "straight", n_jobs=jobs))
    run(search(tmp_path / "twice", n_jobs=jobs, n_trials=10))
    twice = run(search(tmp_path / "twice", n_jobs=jobs))
    assert len(straight.trials) == 20 and twice.trials == straight.trials
    assert twice.ranked() == straight.ranked()
    assert {trial.state for trial in straight.trials} == {"complete", "pruned"}


def test_killed_it_makes_the_same_trials(tmp_path: Path) -> None:
    straight = run(search(tmp_path / "straight", n_trials=12))
    run(search(tmp_path / "killed", n_trials=12), stop_before=7)
    again = search(tmp_path / "killed", n_trials=12)
    assert len(again.trials) == 8 and again.trials[7].state == "running"
    assert run(again).trials == straight.trials


@pytest.mark.slow
def test_the_sampler_learns_from_the_trials(tmp_path: Path) -> None:
    trials = run(search(tmp_path, n_trials=40, pruner="none")).trials
    first, last = ([curve(trial.hyperparameters)[-1] for trial in part] for part in (trials[:10], trials[-10:]))
    assert sum(last) / 10 > sum(first) / 10 + 0.3
    assert all(SPACE[key].holds(value) for trial in trials for key, value in trial.hyperparameters.items())


def test_another_seed_tries_something_else(tmp_path: Path) -> None:
    one, two = (search(tmp_path / str(seed), seed=seed, n_jobs=2) for seed in (0, 1))
    one.batch(), two.batch()
    values = [trial.hyperparameters["agent.lr"] for subject in (one, two) for trial in subject.trials]
    assert len(set(values)) == 4


@pytest.mark.parametrize(
    ("scores", "changes", "pruned"),
    [
        ([0.0, 2.9], {}, True),  # the median of 1, 3 and 5 after two evaluations is 3
        ([0.0, 3.1], {}, False),
        ([9.0, 0.0], {}, False),  # the best score so far counts
        ([0.0], {}, False),  # the first evaluation never ends a trial
        ([0.0, 2.9], {"pruner": "none"}, False),
        ([0.0, 2.9], {"pruner_trials": 4}, False),
        ([9.0, 3.1], {"direction": "minimize"}, True),
        ([9.0, 2.9], {"direction": "minimize"}, False),
        ([], {}, False),
    ],
)
def test_the_median_of_the_trials_before_prunes(
    tmp_path: Path, scores: list[float], changes: dict[str, Any], pruned: bool
) -> None:
    before = [SearchTrial({}, 0, "complete", [0.0, second, 9.0]) for second in (1.0, 3.0, 5.0)]
    before += [SearchTrial({}, 0, "pruned", [0.0, 99.0]), SearchTrial({}, 0, "failed")]
    assert falls_behind(config(tmp_path, **changes), before, scores) == pruned


def test_what_becomes_of_a_trial(tmp_path: Path) -> None:
    subject = search(tmp_path, n_jobs=4)
    numbers = subject.batch()
    told = [(True, [math.nan, 1.0]), (True, [1.0, math.nan]), (False, [1.0]), (True, [2.0])]
    for number, (complete, scores) in zip(numbers, told):
        subject.finish(number, complete, scores)
    subject.keep()
    assert [trial.state for trial in subject.trials] == ["complete", "failed", "failed", "complete"]
    assert subject.ranked()[2:] == [0, 3] and search(tmp_path, n_jobs=4).trials == subject.trials


def test_a_search_in_which_all_fail_ends_and_can_be_tried_again(tmp_path: Path) -> None:
    subject = search(tmp_path)
    subject.finish(subject.batch()[0], False, [])
    refused(ConfigError, "every trial so far has failed", subject.keep)
    assert search(tmp_path).batch() == [0]


def test_other_settings_are_refused_and_more_trials_are_not(tmp_path: Path) -> None:
    search(tmp_path).batch()
    search(tmp_path, n_trials=30, n_jobs=4)
    with pytest.raises(ConfigError, match=r"direction is maximize, not minimize; hydra.sweeper.folder="):
        search(tmp_path, direction="minimize")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"hyperparameters": {"agent.lr": "1,hydra.launcher=joblib", "agent.epochs": 1, "agent": "ppo"}},
            "none of what",
        ),
        ({"known": 5}, "not a search"),
        ({"state": "complete"}, "has no score"),
        ({"state": "done"}, "not a search"),
    ],
)
def test_a_file_holds_nothing_but_trials(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    search(tmp_path).batch()
    file = tmp_path / "search.json"
    content = json.loads(file.read_text())
    (tmp_path / "manifest.json").unlink()
    content["trials"][0] |= changes
    file.write_text(json.dumps(content))
    refused(ConfigError, message, search, tmp_path)


def test_a_run_that_falls_behind_ends_early(tmp_path: Path) -> None:
    """CartPole's return is at most 500; the previous trial has a higher one, except at first."""
    subject = search(tmp_path, n_jobs=1, n_trials=2, pruner_trials=1)
    subject.finish(subject.batch()[0], True, [-1.0, 1000.0, 1000.0, 1000.0])
    subject.keep()
    assert subject.batch() == [1]
    options: dict[str, Any] = {
        "env": "cartpole",
        "env.num_worlds": 4,
        "agent.steps_per_batch": 32,
        "total_frames": 512,
        "threads": 1,
    }
    options |= {"eval.every": 128, "eval.episodes": 2, "logger": "csv", "device": "cpu"}
    pruning = Pruning(subject.config, 1)
    ended = rlstack.train(agent="ppo", hooks=[pruning], run_dir=str(subject.run(1)), quiet=True, **options)
    assert [row["frames"] for row in ended.metrics if "eval/return" in row] == [128, 256]
    assert _finished(subject, 1, ObjectiveConfig())
    assert subject.trials[1].state == "pruned" and subject.trials[1].scores[-1] == ended.score
