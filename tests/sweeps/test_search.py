"""Searches with a stand-in for training: a trial's scores follow from its hyperparameters."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

import rlstack
from rlstack.config import ConfigError
from rlstack.sweeps.search import Pruning, Search, SearchConfig, falls_behind
from rlstack.sweeps.space import ChoiceDimension, RangeDimension, Space
from rlstack.training.config import ObjectiveConfig
from rlstack.training.loggers import scores
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
        ended = {}
        for number in numbers:
            if number >= stop_before:
                return subject
            scores: list[float] = []
            for score in curve(subject.study.trials[number].params):
                scores.append(score)
                if falls_behind(subject.study, number, scores):
                    break
            ended[number] = len(scores) == 4, scores
        subject.finish(ended)
    return subject


def trials(subject: Search) -> list[tuple[Any, ...]]:
    return [(t.params, t.state.name, t.value, t.intermediate_values) for t in subject.study.trials]


def states(subject: Search) -> list[str]:
    return [trial.state.name for trial in subject.study.trials]


@pytest.mark.parametrize("jobs", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_twenty_trials_are_ten_and_ten_more(tmp_path: Path, jobs: int) -> None:
    straight = run(search(tmp_path / "straight", n_jobs=jobs))
    run(search(tmp_path / "twice", n_jobs=jobs, n_trials=10))
    twice = run(search(tmp_path / "twice", n_jobs=jobs))
    assert len(trials(straight)) == 20 and trials(twice) == trials(straight)
    assert twice.ranked() == straight.ranked() and set(states(straight)) == {"COMPLETE", "PRUNED"}


def test_killed_it_makes_the_same_trials(tmp_path: Path) -> None:
    straight = run(search(tmp_path / "straight", n_trials=12))
    run(search(tmp_path / "killed", n_trials=12), stop_before=7)
    again = search(tmp_path / "killed", n_trials=12)
    assert states(again)[7:] == ["RUNNING"]
    assert trials(run(again)) == trials(straight)


@pytest.mark.slow
def test_the_sampler_learns_from_the_trials(tmp_path: Path) -> None:
    made = run(search(tmp_path, n_trials=40, pruner="none")).study.trials
    first, last = ([curve(trial.params)[-1] for trial in part] for part in (made[:10], made[-10:]))
    assert sum(last) / 10 > sum(first) / 10 + 0.3
    assert all(SPACE[key].holds(value) for trial in made for key, value in trial.params.items())


def test_another_seed_tries_something_else(tmp_path: Path) -> None:
    subjects = [search(tmp_path / str(seed), seed=seed, n_jobs=2) for seed in (0, 1)]
    assert [subject.batch() for subject in subjects] == [[0, 1], [0, 1]]
    assert len({trial.params["agent.lr"] for subject in subjects for trial in subject.study.trials}) == 4


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
    subject = search(tmp_path, **changes, n_jobs=4)
    before = {number: (number < 3, [0.0, second, 9.0]) for number, second in enumerate((1.0, 3.0, 5.0, 99.0))}
    assert subject.batch() == list(before)
    subject.finish(before)
    assert subject.batch()[0] == 4
    assert falls_behind(search(tmp_path, **changes).study, 4, scores) == pruned


def test_what_becomes_of_a_trial(tmp_path: Path) -> None:
    subject = search(tmp_path, n_jobs=4)
    told = [(True, [math.nan, 1.0]), (True, [1.0, math.nan]), (False, [1.0]), (True, [2.0])]
    subject.finish(dict(zip(subject.batch(), told)))
    assert states(subject) == ["COMPLETE", "FAIL", "FAIL", "COMPLETE"]
    assert subject.ranked()[2:] == [0, 3] and trials(search(tmp_path, n_jobs=4)) == trials(subject)


def test_a_search_in_which_all_fail_ends_and_can_be_tried_again(tmp_path: Path) -> None:
    subject = search(tmp_path)
    refused(ConfigError, "every trial so far has failed", subject.finish, dict.fromkeys(subject.batch(), (False, [])))
    assert search(tmp_path).batch() == [0]


def test_other_settings_are_refused_and_more_trials_are_not(tmp_path: Path) -> None:
    search(tmp_path).batch()
    search(tmp_path, n_trials=30, n_jobs=4)
    with pytest.raises(ConfigError, match=r"direction is maximize, not minimize; hydra.sweeper.folder="):
        search(tmp_path, direction="minimize")


def test_values_of_a_file_that_could_be_more_of_a_command_line_are_refused(tmp_path: Path) -> None:
    search(tmp_path).batch()
    file = tmp_path / "search.jsonl"
    whole = file.read_text()
    file.write_text(whole.replace('\\"ppo\\"', '\\"1,hydra.launcher=joblib\\"').replace('\\"a2c\\"', '\\"x\\"'))
    refused(ConfigError, "changed or damaged", search, tmp_path)
    (tmp_path / "manifest.json").unlink()  # whoever changes a file can remove its digest
    refused(ConfigError, "none of what varies", search, tmp_path)
    for wrong in ("{}\n", "[" * 100_000 + "\n", whole.replace('"known"', '"unknown"')):
        file.write_text(wrong)
        refused(ConfigError, "search.jsonl: not a search", search, tmp_path)
    file.unlink()
    os.mkfifo(file)
    refused(ConfigError, "search.jsonl", search, tmp_path)
    file.unlink()
    (tmp_path / "trial_0").mkdir()  # of a search whose file is lost
    refused(ConfigError, "search.jsonl", search, tmp_path)


def test_a_line_that_a_killed_process_left_is_cut(tmp_path: Path) -> None:
    drawn = search(tmp_path).batch()
    (tmp_path / "manifest.json").unlink()  # it is written when the work has ended
    file = tmp_path / "search.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"op_code": 6, "trial_id"')
    assert search(tmp_path).batch() == drawn and file.read_bytes() == whole


def test_a_run_that_falls_behind_ends_early(tmp_path: Path) -> None:
    """CartPole's return is at most 500; the previous trial has a higher one, except at first."""
    subject = search(tmp_path, n_jobs=1, n_trials=2, pruner_trials=1)
    assert subject.batch() == [0]
    subject.finish({0: (True, [-1.0, 1000.0, 1000.0, 1000.0])})
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
    assert falls_behind(subject.study, 1, scores(subject.run(1), ObjectiveConfig()))
    subject.finish({1: (False, [0.0, ended.score])})
    assert states(subject) == ["COMPLETE", "PRUNED"]
