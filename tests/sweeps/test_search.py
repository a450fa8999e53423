"""Searches with a stand-in for training: a trial's scores follow from its hyperparameters."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import rlstack
from rlstack.config import ConfigError, allowed
from rlstack.runs.run_directory import RunDirectory
from rlstack.sweeps.population import Generation, Population, PopulationConfig, PopulationMember
from rlstack.sweeps.search import Pruning, Search, SearchConfig, falls_behind
from rlstack.sweeps.space import ChoiceDimension, RangeDimension, Space
from rlstack.training.config import ObjectiveConfig
from rlstack.training.loggers import scores
from tests.exhaustive import exhaustive
from tests.faults import Killed
from tests.refusals import refused

pytest.importorskip("optuna", minversion="4.0")

SPACE: Space = {
    "agent.lr": RangeDimension(1e-4, 1e-1, log=True, whole=False),
    "agent.epochs": RangeDimension(1, 9, log=False, whole=True),
    "agent": ChoiceDimension(("ppo", "a2c")),
}


def search(folder: Path, **changes: Any) -> Search:
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
    return Search(SearchConfig(**{**options, **changes}), SPACE, {"arguments": ["env=toy"]})


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
def test_twelve_trials_are_six_and_six_more(tmp_path: Path, jobs: int) -> None:
    straight = run(search(tmp_path / "straight", n_jobs=jobs, n_trials=12))
    run(search(tmp_path / "twice", n_jobs=jobs, n_trials=6))
    twice = run(search(tmp_path / "twice", n_jobs=jobs, n_trials=12))
    assert len(trials(straight)) == 12 and trials(twice) == trials(straight)
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
        ([math.nan, 2.9], {}, True),  # the first evaluation was left out; the second is judged by the others' second
        ([math.nan, math.nan, 8.9], {}, True),
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


SHORT: dict[str, Any] = {
    **{"agent": "ppo", "env": "cartpole", "env.num_worlds": 4, "agent.steps_per_batch": 32, "total_frames": 512},
    **{"threads": 1, "eval.every": 128, "eval.episodes": 2, "logger": "csv", "device": "cpu"},
}


def test_a_run_that_falls_behind_ends_early(tmp_path: Path) -> None:
    """CartPole's return is at most 500; the previous trial has a higher one, except at first."""
    subject = search(tmp_path, n_jobs=1, n_trials=2, pruner_trials=1)
    assert subject.batch() == [0]
    subject.finish({0: (True, [-1.0, 1000.0, 1000.0, 1000.0])})
    assert subject.batch() == [1]
    pruning = Pruning(subject.config, 1)
    ended = rlstack.train(hooks=[pruning], run_dir=str(subject.run(1)), quiet=True, **SHORT)
    assert [row["frames"] for row in ended.metrics if "eval/return" in row] == [128, 256]
    assert falls_behind(subject.study, 1, scores(subject.run(1), ObjectiveConfig()))
    subject.finish({1: (False, [0.0, ended.score])})
    assert states(subject) == ["COMPLETE", "PRUNED"]


def test_a_metric_that_is_first_logged_after_an_evaluation(tmp_path: Path) -> None:
    subject = search(tmp_path, n_trials=1)
    subject.batch()
    options = {**SHORT, "log_every": 512, "objective.metric": "train/return"}
    ended = rlstack.train(hooks=[Pruning(subject.config, 0)], run_dir=str(subject.run(0)), quiet=True, **options)
    assert ended.metrics[-1]["frames"] == 512 and math.isfinite(ended.score)


# -- Populations with a stand-in for training: a run's score is its frames times its learning rate -------------------


SPREAD: Space = {"agent.lr": RangeDimension(0.1, 10.0, log=True, whole=False)}
FAILS = 99.0


def population(folder: Path, **changes: Any) -> Population:
    options: dict[str, Any] = {
        "folder": str(folder),
        "members": 6,
        "generations": 4,
        "quantile": 0.34,
        "perturb": [0.8, 1.2],
        "resample": 0.0,
        "direction": "maximize",
        "seed": 0,
    }
    return Population(PopulationConfig(**{**options, **changes}), SPREAD, 1000, {"arguments": ["agent=toy"]})


def trainer(subject: Population, stop_after: int = 10**9) -> Callable[[Generation], None]:
    """Returns a training function; its weights are the sum of frames times the learning rate at that time."""
    steps = 0

    def train(generation: Generation) -> None:
        nonlocal steps
        for index, member in enumerate(generation.members):
            steps += 1
            if steps > stop_after:
                raise Killed
            run = subject.run(index)
            run.mkdir(parents=True, exist_ok=True)
            if not (run / "config.yaml").exists():
                OmegaConf.save(
                    {"agent": {"lr": member.hyperparameters["agent.lr"]}, "run_dir": str(run)}, run / "config.yaml"
                )
            stored = OmegaConf.load(run / "config.yaml")
            assert stored.agent.lr == member.hyperparameters["agent.lr"] and stored.run_dir == str(run)
            weights = json.loads((run / "weights").read_text()) if (run / "weights").exists() else {"at": 0, "sum": 0.0}
            weights["sum"] += (generation.until - weights["at"]) * stored.agent.lr
            weights["at"] = generation.until
            (run / "weights").write_text(json.dumps(weights))
            (run / "wandb_run_id").write_text(str(index))
            member.score = None if stored.agent.lr == FAILS else weights["sum"]

    return train


def test_the_worst_go_on_as_copies_of_the_best(tmp_path: Path) -> None:
    subject = population(tmp_path)
    scores = [3.0, 9.0, 1.0, 5.0, None, 7.0]
    members = [PopulationMember({"agent.lr": 0.5 + index}, score=score) for index, score in enumerate(scores)]
    following = subject.selected(members)
    for index in (0, 1, 3, 5):
        assert following[index] == PopulationMember({"agent.lr": 0.5 + index})
    for index in (2, 4):  # the worst of the finished members, and the failed one
        source = following[index].copied_from
        assert source in (1, 5)
        factor = following[index].hyperparameters["agent.lr"] / (0.5 + source)
        assert factor == pytest.approx(0.8) or factor == pytest.approx(1.2)


@pytest.mark.parametrize("members", range(2, 12))
def test_nobody_is_copied_and_replaced(members: int, tmp_path: Path) -> None:
    subject = population(tmp_path, members=members, quantile=0.5)
    scored = [PopulationMember({"agent.lr": 1.0}, score=float(score)) for score in range(members)]
    following = subject.selected(scored)
    replaced = {index for index, member in enumerate(following) if member.copied_from is not None}
    assert len(replaced) == members // 2 and not replaced & {member.copied_from for member in following}


def test_the_least_score_is_the_best_when_minimising(tmp_path: Path) -> None:
    subject = population(tmp_path, direction="minimize", members=3)
    members = [PopulationMember({"agent.lr": 1.0}, score=score) for score in (2.0, 1.0, None)]
    assert subject.ranked(members) == [2, 0, 1]


def test_weights_and_hyperparameters_spread_and_all_of_it_is_written_down(tmp_path: Path) -> None:
    subject = population(tmp_path)
    subject.evolve(trainer(subject))
    content = json.loads((tmp_path / "population.json").read_text())
    generations = content["generations"]
    assert [generation["until"] for generation in generations] == [250, 500, 750, 1000]
    assert all(generation["state"] == "finished" for generation in generations)
    alone = [1000 * member["hyperparameters"]["agent.lr"] for member in generations[0]["members"]]
    final = [member["score"] for member in generations[-1]["members"]]
    assert max(final) >= max(alone) and sum(final) > 1.5 * sum(alone)
    for before, after in itertools.pairwise(generations):
        for index, member in enumerate(after["members"]):
            source = index if member["copied_from"] is None else member["copied_from"]
            gained = 250 * member["hyperparameters"]["agent.lr"]
            assert member["score"] == pytest.approx(before["members"][source]["score"] + gained)


def test_options_that_refer_to_a_hyperparameter_follow_it_in_a_copy(tmp_path: Path) -> None:
    subject = population(tmp_path, members=2, generations=2)
    subject._composed = lambda values: {"agent": {"lr": values["agent.lr"], "lr_critic": 3 * values["agent.lr"]}}
    subject.evolve(trainer(subject))
    ((index, copied),) = [
        entry for entry in enumerate(subject.generations[1].members) if entry[1].copied_from is not None
    ]
    stored = OmegaConf.load(subject.run(index) / "config.yaml")
    assert stored.agent.lr_critic == 3 * copied.hyperparameters["agent.lr"]


def test_a_copy_logs_to_a_wandb_run_of_its_own(tmp_path: Path) -> None:
    subject = population(tmp_path, generations=1)
    subject.evolve(trainer(subject))
    subject._copy(subject.run(0), subject.run(1), ["++agent.lr=2.5"])
    assert not (subject.run(1) / "wandb_run_id").exists()
    assert (subject.run(1) / "weights").read_bytes() == (subject.run(0) / "weights").read_bytes()


@pytest.mark.parametrize(
    ("choice", "value"), [("null", None), ("[8,8]", [8, 8]), ("{kind: gru}", {"kind": "gru"}), ("my:Net", "my:Net")]
)
def test_a_copy_holds_what_a_choice_means(choice: str, value: Any, tmp_path: Path) -> None:
    """Choices are kept as they are written on a command line."""
    subject = population(tmp_path, generations=1)
    subject.evolve(trainer(subject))
    subject._copy(subject.run(0), subject.run(1), [f"++agent.hidden={choice}"])
    assert RunDirectory.open(subject.run(1)).read_config()["agent"]["hidden"] == value  # signed, if it is code


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Population:
    """A population that has been trained without a break."""
    subject = population(tmp_path_factory.mktemp("straight"))
    subject.evolve(trainer(subject))
    return subject


def goes_on_to_the_same_end(folder: Path, straight: Population, **options: int) -> None:
    """Trains a population that is killed and continued, which ends as the one that was not."""
    killed = population(folder)
    with pytest.raises(Killed):
        killed.evolve(trainer(killed, **options))
    again = population(folder)
    again.evolve(trainer(again))
    assert [g.members for g in again.generations] == [g.members for g in straight.generations]


@exhaustive("kill", [1, 6, 23, 0, 5, 7, 13], quick=3)
def test_killed_while_training_it_goes_on_to_the_same_end(kill: int, straight: Population, tmp_path: Path) -> None:
    goes_on_to_the_same_end(tmp_path, straight, stop_after=kill)


@exhaustive("call", [2, 1, 3])
@pytest.mark.parametrize("name", ["copytree", "rmtree"])
def test_killed_while_copying_it_goes_on_to_the_same_end(
    name: str, call: int, straight: Population, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = getattr(shutil, name), 0

    def dies(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        result = real(*args, **kwargs)
        if calls == call:
            raise Killed
        return result

    monkeypatch.setattr(shutil, name, dies)  # once, and works again afterwards
    goes_on_to_the_same_end(tmp_path, straight)
    assert not list(tmp_path.glob(".*"))


def test_lineage_follows_the_copies_back(tmp_path: Path) -> None:
    subject = population(tmp_path, members=3)
    sources = [[None, None, None], [1, None, None], [None, None, 0]]
    subject.generations = [
        Generation(100, [PopulationMember({"agent.lr": 1.0}, copied) for copied in row]) for row in sources
    ]
    assert subject.lineage(2) == [2, 0, 1]
    assert subject.lineage(0) == [0, 1]
    assert subject.lineage(1) == [1]


def test_all_failed_is_an_error(tmp_path: Path) -> None:
    refused(ConfigError, "generation 1 has failed", population(tmp_path).evolve, lambda generation: None)


def test_other_settings_are_refused(tmp_path: Path) -> None:
    population(tmp_path)
    refused(ConfigError, "members is 6, not 5", population, tmp_path, members=5)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "rlstack-population", "version": 2}', "{" * 10_000])
def test_a_damaged_file_is_told_and_left_alone(content: str, tmp_path: Path) -> None:
    path = tmp_path / "population.json"
    path.write_text(content)
    refused(ConfigError, "not a population", population, tmp_path)
    assert path.read_text() == content


def test_members_are_not_trained_through_links_that_another_user_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "population"
    population(folder)
    (folder / "member_1").symlink_to(tmp_path)
    refused(ConfigError, re.escape(f"population.json names '{tmp_path}'"), population, folder)
    allowed.sign(folder, allowed.links_in(folder))
    assert population(folder).generations
    monkeypatch.setattr(allowed, "_key", lambda: b"a stranger's")
    refused(ConfigError, "only if you allow it", population, folder)


@pytest.mark.parametrize(
    "values", [{"agent.lr": "1,hydra.launcher=joblib"}, {"env.name": "a:b"}, {"agent.lr": 99.0}, {}]
)
def test_a_file_gives_members_nothing_but_values_of_what_varies(values: dict[str, Any], tmp_path: Path) -> None:
    """The values become command lines."""
    subject = population(tmp_path)
    file = tmp_path / "population.json"
    content = json.loads(file.read_text())
    (tmp_path / "manifest.json").unlink()
    content["generations"][0]["members"][2]["hyperparameters"] = values
    file.write_text(json.dumps(content))
    refused(ConfigError, "are none of what varies", population, tmp_path)
    content["generations"][0]["members"][2] |= {"hyperparameters": {"agent.lr": 1.0}, "copied_from": 77}
    file.write_text(json.dumps(content))
    refused(ConfigError, "there is no member 77 to copy", population, tmp_path)
    assert subject.generations
