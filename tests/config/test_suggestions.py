"""Errors for misspelt names suggest the nearest name."""

from dataclasses import fields
from pathlib import Path

import pytest

from rlstack.config import catalogue, conf_dir
from rlstack.config import synonyms as synonyms_module
from rlstack.config.agents import OPTIONS
from rlstack.config.errors import did_you_mean, nearest, nearest_path, unknown_key


@pytest.mark.parametrize(
    ("name", "candidates", "expected"),
    [
        ("ppoo", ["ppo", "a2c"], ["ppo"]),
        ("PPO", ["ppo", "a2c"], ["ppo"]),
        ("lrr", ["lr_critic", "gamma", "lr_actor"], ["lr_actor", "lr_critic"]),
        ("nun_worlds", ["num_worlds", "num_cores"], ["num_worlds"]),
        ("learning_rate", ["learning_starts", "lr"], ["lr"]),
        ("n_envs", ["num_cores", "num_worlds"], ["num_worlds"]),
        ("n_steps", ["n_step", "gamma"], ["n_step"]),
        ("discount", ["discount", "gamma"], ["discount", "gamma"]),
        ("nope", ["agent", "seed"], []),
        ("x", [], []),
    ],
)
def test_nearest(name: str, candidates: list[str], expected: list[str]) -> None:
    assert nearest(name, candidates) == expected


def test_wording() -> None:
    assert did_you_mean("lrr", ["lr_actor", "lr_critic"]) == "did you mean 'lr_actor' or 'lr_critic'? "
    assert did_you_mean(7, ["a"]) == ""
    assert unknown_key("agent.lrr", ["lr", "gamma"]) == (
        "agent.lrr: unknown key, did you mean 'lr'? allowed: gamma, lr"
    )


def test_a_key_of_a_group_may_be_meant() -> None:
    assert unknown_key("lr", ["agent", "seed"], ["agent.lr", "env.lr"]) == (
        "lr: unknown key, did you mean 'agent.lr'? allowed: agent, seed"
    )


def test_every_synonym_means_an_option_that_exists() -> None:
    options = {field.name for config in OPTIONS.values() for field in fields(config)}
    options |= {path.stem for path in conf_dir().iterdir()}
    for path in (conf_dir() / "train.yaml", *(conf_dir() / "env").glob("*.yaml")):
        options |= {option.key for option in catalogue.options(path)}
    assert {name for names in synonyms_module._THEIRS for name in names.split()} <= options


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "runs" / "ppo_arena_seed0_20260101" / "checkpoints").mkdir(parents=True)
    right = tmp_path / "runs" / "ppo_arena_seed0_20260101"
    assert nearest_path(tmp_path / "runs" / "ppo_arna_seed0") == f", did you mean {str(right)!r}?"
    assert nearest_path(tmp_path / "rnus" / right.name) == f", did you mean {str(right)!r}?"
    assert nearest_path(tmp_path / "runs" / "other") == "" == nearest_path(right)
    (tmp_path / "file").touch()
    assert nearest_path(tmp_path / "file" / "below") == ""
