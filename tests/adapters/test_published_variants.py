"""Runs that were stored when the rules of published learners were options of the usual agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlstack
from rlstack.config import ConfigError
from rlstack.config.earlier import renewed
from rlstack.runs.checkpoint import read_checkpoint, state_digest
from rlstack.runs.run_directory import RunDirectory
from tests.exhaustive import exhaustive
from tests.training.test_every_resume import AGENTS, configured, killed, resumed, training

FORMER: dict[str, dict[str, Any]] = {
    "ppo_published": {"short_minibatch": True, "report_over": "all", "unbiased_statistics": True},
    "sac_published": {"correction": "tanh"},
    "rainbow_published": {"memory": "interleaved"},
}
"""What the published variants had in their configurations, those of their algorithms."""
USUAL: dict[str, dict[str, Any]] = {
    "ppo": {"short_minibatch": False, "report_over": "last", "unbiased_statistics": False},
    "a2c": {"unbiased_statistics": False},
    "sac": {"correction": "exact"},
    "tqc": {"correction": "exact"},
    "rainbow": {"memory": "prioritized"},
}


def as_stored(plain: dict[str, Any]) -> dict[str, Any]:
    """Returns the configuration of a published variant as earlier versions stored it."""
    algorithm = plain["agent"]["algorithm"]
    agent = {**plain["agent"], "algorithm": algorithm.removesuffix("_published"), **FORMER[algorithm]}
    return {**plain, "agent": agent}


@exhaustive("name", FORMER)
def test_a_run_of_an_earlier_version_loads_and_goes_on(name: str, tmp_path: Path) -> None:
    plain, ends = configured(*AGENTS[name]), []
    for folder in (tmp_path / "straight", tmp_path / "killed"):
        run = training(folder, plain)
        run.raw_config = as_stored(plain)
        run.run.write_config(run.raw_config)
        if folder.name == "straight":
            run.execute()
        else:
            killed(run, 300)
            assert rlstack.load(folder).agent.config.algorithm == name
            stored = RunDirectory.open(folder).read_config()
            assert stored["agent"] == plain["agent"]
            resumed(folder, stored)
        ends.append(read_checkpoint(max((folder / "checkpoints").glob("checkpoint_*.pt"))))
    assert [end.pop("config")["agent"]["algorithm"] for end in ends] == [name.removesuffix("_published"), name]
    assert state_digest(ends[0]) == state_digest(ends[1])


@pytest.mark.parametrize("name", USUAL)
def test_former_options_at_their_usual_values_are_dropped(name: str) -> None:
    agent = {"name": name, "algorithm": name, "gamma": 0.9}
    assert renewed({"seed": 1, "agent": {**agent, **USUAL[name]}}) == {"seed": 1, "agent": agent}


def test_options_that_never_had_an_effect_are_dropped() -> None:
    agent = {"name": "torchrl_ppo", "algorithm": "torchrl", "data": "rollout", "epochs": 3}
    assert renewed({"agent": {**agent, "n_step": 5, "epsilon": 0.5}}) == {"agent": agent}
    replay = {**agent, "data": "replay", "n_step": 5}
    assert renewed({"agent": replay}) == {"agent": replay}


def test_an_option_of_the_same_name_that_another_algorithm_has_stays() -> None:
    config = {"agent": {"name": "dqn", "algorithm": "dqn", "correction": "retrace"}}
    assert renewed(config) == config


@pytest.mark.parametrize(
    ("algorithm", "options", "told"),
    [
        ("ppo", {"short_minibatch": True, "report_over": "last"}, "short_minibatch=true report_over=last"),
        ("a2c", {"unbiased_statistics": True}, "unbiased_statistics=true"),
        ("tqc", {"correction": "tanh"}, "correction=tanh"),
    ],
)
def test_mixtures_are_refused_in_one_line(algorithm: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=f"agent: {told} is no longer known, .* rlstack 0.1.0 reads such a run"):
        renewed({"agent": {"algorithm": algorithm, **options}})


@pytest.mark.parametrize("config", [{}, {"agent": 3}, {"agent": {}}, {"agent": {"algorithm": [1]}}])
def test_what_is_no_agent_stays_as_it_is(config: dict[str, Any]) -> None:
    assert renewed(config) == config
