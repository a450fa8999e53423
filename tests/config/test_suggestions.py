"""Errors for misspelt names suggest the nearest name."""

from pathlib import Path

import pytest

from rlstack.config import to_plain
from rlstack.config.errors import OF_OTHERS, did_you_mean, nearest, nearest_path, unknown_key
from rlstack.config.groups import compose_config


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


@pytest.mark.parametrize(
    ("theirs", "allowed", "ours"),
    [
        ("ent_coef", ["encoders", "entropy_coefficient", "epochs"], "'entropy_coefficient'"),
        ("learning_rate", ["lr_actor", "lr_critic", "learning_starts"], "'lr_actor' or 'lr_critic'"),
        ("n_steps", ["steps_per_batch", "epochs"], "'steps_per_batch'"),
        ("net_arch", ["hidden", "network"], "'hidden'"),
        ("batch_size", ["minibatch_size", "batch"], "'minibatch_size'"),
        ("ent_coef", ["encoders"], "'encoders'"),  # as before where there is no such option
    ],
)
def test_options_of_other_libraries_are_known(theirs: str, allowed: list[str], ours: str) -> None:
    assert f"did you mean {ours}? " in unknown_key(f"agent.{theirs}", allowed)


def test_names_of_other_libraries_stand_for_options_that_exist() -> None:
    groups = [to_plain(compose_config("train", words)) for words in (["agent=ppo"], ["agent=sac"], ["agent=td3"])]
    groups += [to_plain(compose_config("train", ["agent=dqn", f"env={env}"])) for env in ("cartpole", "gymnasium")]
    known = {key for config in groups for part in (config, config["agent"], config["env"]) for key in part}
    assert set(OF_OTHERS) <= known


def test_paths(tmp_path: Path) -> None:
    right = tmp_path / "runs" / "ppo_arena_seed0_20260101"
    right.mkdir(parents=True)
    assert nearest_path(tmp_path / "runs" / "ppo_arna_seed0") == f", did you mean {str(right)!r}?"
    assert nearest_path(tmp_path / "rnus" / right.name) == f", did you mean {str(right)!r}?"
    assert nearest_path(tmp_path / "runs" / "other") == "" == nearest_path(right)
    (tmp_path / "file").touch()
    assert nearest_path(tmp_path / "file" / "below") == ""
