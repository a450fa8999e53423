"""Populations with a stand-in for training: a run's score is its frames times its learning rate."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rlstack.config import ConfigError, allowed
from rlstack.runs.run_directory import RunDirectory
from rlstack.sweeps.population import Generation, Population, PopulationConfig, PopulationMember
from rlstack.sweeps.space import RangeDimension, Space
from tests.refusals import refused

SPACE: Space = {"agent.lr": RangeDimension(0.1, 10.0, log=True, whole=False)}
FAILS = 99.0


def config(folder: Path, **changes: Any) -> PopulationConfig:
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
    return PopulationConfig(**{**options, **changes})


def population(folder: Path, **changes: Any) -> Population:
    return Population(config(folder, **changes), SPACE, 1000, {"arguments": ["agent=toy"]})


class Killed(BaseException):
    """Stands in for SIGKILL."""


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


def test_a_copy_logs_to_a_wandb_run_of_its_own(tmp_path: Path) -> None:
    subject = population(tmp_path, generations=1)
    subject.evolve(trainer(subject))
    subject._copy(subject.run(0), subject.run(1), {"agent.lr": 2.5})
    assert not (subject.run(1) / "wandb_run_id").exists()
    assert (subject.run(1) / "weights").read_bytes() == (subject.run(0) / "weights").read_bytes()


@pytest.mark.parametrize(
    ("choice", "value"), [("null", None), ("[8,8]", [8, 8]), ("{kind: gru}", {"kind": "gru"}), ("my:Net", "my:Net")]
)
def test_a_copy_holds_what_a_choice_means(choice: str, value: Any, tmp_path: Path) -> None:
    """Choices are kept as they are written on a command line."""
    subject = population(tmp_path, generations=1)
    subject.evolve(trainer(subject))
    subject._copy(subject.run(0), subject.run(1), {"agent.hidden": choice})
    assert RunDirectory.open(subject.run(1)).read_config()["agent"]["hidden"] == value  # signed, if it is code


@pytest.mark.parametrize("kill", [0, 1, 5, 6, 7, 13, 23])
def test_killed_while_training_it_goes_on_to_the_same_end(kill: int, tmp_path: Path) -> None:
    straight = population(tmp_path / "straight")
    straight.evolve(trainer(straight))
    first = population(tmp_path / "killed")
    with pytest.raises(Killed):
        first.evolve(trainer(first, stop_after=kill))
    again = population(tmp_path / "killed")
    again.evolve(trainer(again))
    assert [g.members for g in again.generations] == [g.members for g in straight.generations]


@pytest.mark.parametrize("name", ["copytree", "rmtree"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_killed_while_copying_it_goes_on_to_the_same_end(
    name: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = population(tmp_path / "straight")
    straight.evolve(trainer(straight))
    real, calls = getattr(shutil, name), 0

    def dies(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        result = real(*args, **kwargs)
        if calls == call:
            raise Killed
        return result

    subject = population(tmp_path / "killed")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, name, dies)
        with pytest.raises(Killed):
            subject.evolve(trainer(subject))
    again = population(tmp_path / "killed")
    again.evolve(trainer(again))
    assert [g.members for g in again.generations] == [g.members for g in straight.generations]
    assert not list((tmp_path / "killed").glob(".*"))


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


@pytest.mark.parametrize(
    ("changes", "needle"), [({"members": 5}, "members is 6, not 5"), ({"quantile": 0.2}, "quantile is 0.34, not 0.2")]
)
def test_other_settings_are_refused(changes: dict[str, Any], needle: str, tmp_path: Path) -> None:
    population(tmp_path)
    refused(ConfigError, needle, population, tmp_path, **changes)


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
