"""Errors for misspelt names suggest the nearest name."""

from pathlib import Path

import pytest

from rlstack.config.errors import did_you_mean, nearest, nearest_path, unknown_key


@pytest.mark.parametrize(
    ("name", "candidates", "expected"),
    [
        ("ppoo", ["ppo", "a2c"], ["ppo"]),
        ("PPO", ["ppo", "a2c"], ["ppo"]),
        ("lrr", ["lr_critic", "gamma", "lr_actor"], ["lr_actor", "lr_critic"]),
        ("nun_worlds", ["num_worlds", "num_cores"], ["num_worlds"]),
        ("nope", ["agent", "seed"], []),
        ("x", [], []),
    ],
)
def test_nearest(name: str, candidates: list[str], expected: list[str]) -> None:
    assert nearest(name, candidates) == expected


def test_what_is_unknown_is_told_with_the_nearest_and_all_others() -> None:
    assert did_you_mean(7, ["a"]) == ""
    assert unknown_key("agent.lrr", ["lr", "gamma"]) == "agent.lrr: unknown key, did you mean 'lr'? allowed: gamma, lr"
    assert "'agent.lr'" in unknown_key("lr", ["agent", "seed"], ["agent.lr", "env.lr"])


def test_paths(tmp_path: Path) -> None:
    right = tmp_path / "runs" / "ppo_arena_seed0_20260101"
    right.mkdir(parents=True)
    assert nearest_path(tmp_path / "runs" / "ppo_arna_seed0") == f", did you mean {str(right)!r}?"
    assert nearest_path(tmp_path / "rnus" / right.name) == f", did you mean {str(right)!r}?"
    assert nearest_path(tmp_path / "runs" / "other") == "" == nearest_path(right)
    (tmp_path / "file").touch()
    assert nearest_path(tmp_path / "file" / "below") == ""
