"""What runs differ in, and what a run has otherwise than by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlstack.config import ConfigError, to_plain
from rlstack.config.groups import compose_config
from rlstack.reporting.differences import ABSENT, GroupScore, compared_by, from_default, grouped, varied
from rlstack.reporting.runs import Curve, StoredRun
from tests.reporting.made_runs import config


def runs_of(*configs: dict[str, Any]) -> list[StoredRun]:
    return [StoredRun(Path(str(index)), str(index), settings) for index, settings in enumerate(configs)]


def test_mappings_are_looked_into_and_other_values_compared_whole() -> None:
    one = {"a": 1, "b": {"c": [1, 2], "d": 0}, "e": None}
    other = {"a": 1.0, "b": {"c": [1, 3], "d": 0}, "e": {"kind": "lstm"}, "f": 5}
    assert varied([one, other]) == {
        "a": [1, 1.0],
        "b.c": [[1, 2], [1, 3]],
        "e": [None, {"kind": "lstm"}],
        "f": [ABSENT, 5],
    }
    assert varied([one, one]) == {}


def test_runs_that_differ_in_their_seed_alone_are_one_group() -> None:
    groups = grouped(
        runs_of(*(config(seed, lr, logger={"x": seed}, until=seed or None) for lr in (0.1, 0.2) for seed in (0, 1)))
    )
    assert [(group.label, [run.seed for run in group.runs]) for group in groups] == [
        ("lr=0.1", [0, 1]),
        ("lr=0.2", [0, 1]),
    ]
    (alone,) = grouped(runs_of(config(0), config(1)))
    assert alone.label == "ppo · toy" and alone.values == {}


def test_options_that_follow_from_the_agent_or_change_with_another_are_no_difference_of_their_own() -> None:
    def settings(agent: str, lr: float, decay: float) -> dict[str, Any]:
        made = config(agent=agent, lr=lr, total_frames=100 if agent == "ppo" else 200)
        made["agent"] |= {"decay": decay, f"only_{agent}": 1}
        return made

    groups = grouped(runs_of(settings("ppo", 0.1, 1), settings("ppo", 0.2, 2), settings("sac", 0.7, 9)))
    assert [group.values for group in groups] == [
        {"agent.name": "ppo", "agent.lr": 0.1},
        {"agent.name": "ppo", "agent.lr": 0.2},
        {"agent.name": "sac", "agent.lr": 0.7},
    ]
    assert [group.label for group in groups] == ["ppo · lr=0.1", "ppo · lr=0.2", "sac · lr=0.7"]


def test_a_run_without_a_configuration_is_a_group_of_its_own() -> None:
    groups = grouped(runs_of(config(0), config(1), {}))
    assert [len(group.runs) for group in groups] == [2, 1]


@pytest.mark.slow
def test_the_difference_from_the_default_is_what_was_given() -> None:
    plain = to_plain(compose_config("train", ["agent=ppo", "env=marinenav_published", "agent.gamma=0.5", "seed=4"]))
    (run,) = runs_of({**plain, "run_dir": "runs/x"})
    given, found = from_default(run)
    assert given == "agent=ppo env=marinenav_published"
    assert found == {"agent.gamma": [0.99, 0.5], "seed": [0, 4]}


def test_yaml_files_of_a_folder_have_defaults(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "mellow.yaml").write_text("defaults: [dqn, _self_]\nname: mellow\nlr: 0.5\n")
    default = to_plain(compose_config("train", ["agent=dqn", "env=cartpole"]))
    (run,) = runs_of({**default, "agent": {**default["agent"], "name": "mellow", "lr": 0.25}})
    assert from_default(run, [tmp_path]) == ("agent=mellow env=cartpole", {"agent.lr": [0.5, 0.25]})


@pytest.mark.slow
def test_what_auto_decides_is_no_difference_from_the_default() -> None:
    plain = to_plain(compose_config("train", ["agent=ppo", "env=arena"]))
    for precision, found in (("float32", {}), ("bfloat16", {}), ("float16", {"agent.precision": ["auto", "float16"]})):
        (run,) = runs_of({**plain, "agent": {**plain["agent"], "precision": precision}})
        assert from_default(run)[1] == found


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (config(agent="mine"), "agent: no option 'mine'"),
        (config(), "env: no option 'toy'"),
        ({}, "does not say which agent"),
    ],
)
def test_a_default_that_does_not_exist_is_told(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_default(runs_of(settings)[0])


def having(**metrics: float) -> StoredRun:
    return StoredRun(Path("x"), "x", {}, {name.replace("__", "/"): Curve(*[[9.0], [v]]) for name, v in metrics.items()})


def test_runs_are_compared_by_what_all_that_were_evaluated_have() -> None:
    both, returns = having(eval__success=0.5, eval__return=1), having(eval__return=2)
    unjudged = having(train__success=0.1, train__return=3)
    assert compared_by([both, both, unjudged]) == "eval/success"
    assert compared_by([both, returns]) == "eval/return"
    assert compared_by([unjudged]) == "train/success"
    assert compared_by([StoredRun(Path("x"), "x")]) is None


def test_scores_are_summed_up_with_the_interval_that_there_is() -> None:
    values = [0.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 1000.0]
    score = GroupScore.of([having(eval__return=value) for value in values], "eval/return")
    assert score is not None and score.interval is not None
    assert score.iqm == 12.5 and score.mean == 134.375  # the lowest and the highest two are left out
    assert score.interval[0] < 134.375 < score.interval[1]
    few = GroupScore.of([having(eval__return=value) for value in values[:4]], "eval/return")
    assert few is not None and few.interval is None and few.spread == "0 to 12 in 4 seeds"
    single = GroupScore.of([having(eval__success=0.5, eval__success_low=0.3, eval__success_high=0.7)], "eval/success")
    assert single is not None and single.interval == (0.3, 0.7)
    alone = GroupScore.of([having(eval__return=1.0)], "eval/return")
    assert alone is not None and alone.interval is None
    assert GroupScore.of([having()], "eval/return") is None
