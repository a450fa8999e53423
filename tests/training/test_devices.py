"""Worlds on a device other than their learner's."""

from pathlib import Path

import pytest
import torch

import rlstack
from rlstack import envs
from rlstack.config import ConfigError, build
from rlstack.data.collector import LeanCollector, make_collector
from rlstack.runs.checkpoint import read_checkpoint
from rlstack.training.config import TrainConfig
from rlstack.training.preflight import check_fits, few_worlds, needs
from rlstack.training.run import train
from tests.training.shared_runs import plain_config

ELSEWHERE = "cpu:0"
"""The CPU under another name, so that what would be a GPU's way is taken."""


def test_a_policy_elsewhere_gets_a_collector_that_moves_data() -> None:
    env = envs.make("gymnasium", id="CartPole-v1", num_envs=2)
    agent = rlstack.make_agent("ppo", env)
    policy = agent.policy(explore=True)
    assert isinstance(make_collector(env, policy, 4, policy_device=env.device), LeanCollector)
    moving = make_collector(env, policy, 4, policy_device=torch.device(ELSEWHERE))
    assert not isinstance(moving, LeanCollector)
    assert moving.policy_device == moving.storing_device == torch.device(ELSEWHERE)


@pytest.mark.slow
def test_a_run_with_worlds_elsewhere_is_the_same(tmp_path: Path) -> None:
    states = []
    for number, more in enumerate(([], [f"collector.device={ELSEWHERE}"])):
        plain = plain_config("ppo", tmp_path / str(number), "eval.every=1000", *more)
        train(plain)
        states.append(read_checkpoint(next((Path(plain["run_dir"]) / "checkpoints").glob("checkpoint_*.pt"))))
    here, there = (state["agent"]["networks"]["actor"] for state in states)
    assert all(torch.equal(here[name], there[name]) for name in here)


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    config = build(TrainConfig, plain_config("ppo", tmp_path, "collector.device=cuda:63"))
    with few_worlds(config) as env, pytest.raises(ConfigError, match=r"collector\.device: 'cuda:63' cannot be used"):
        check_fits("the run", needs(config, env))
