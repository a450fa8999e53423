"""An algorithm written by a user: one file and a YAML file, as the README of the agents shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

from rlstack import envs
from rlstack.agents import Agent, build_agent, completed
from rlstack.config import ConfigError
from tests.agents.munchausen import MunchausenConfig, MunchausenLoss
from tests.conftest import Ended
from tests.refusals import refused

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CLASS = "tests.agents.munchausen:MunchausenDQN"


def agent(**options: object) -> Agent:
    config = completed({"name": "munchausen", "algorithm": CLASS, **options})
    return build_agent(config, envs.make("cartpole", num_worlds=2), 1000)


def test_its_options_are_checked_like_ours() -> None:
    expected = MunchausenConfig("munchausen", CLASS, alpha=0.5, precision="float32")
    assert agent(alpha=0.5, precision="float32").config == expected
    refused(ConfigError, r"agent.alpha: 5.0 is outside \[0, 1\]", agent, alpha=5.0)
    refused(ConfigError, r"agent.alhpa: unknown key, did you mean 'alpha'", agent, alhpa=0.5)


def test_its_target_is_that_of_the_paper() -> None:
    network = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.eye(2))  # the values are the observation
    loss = MunchausenLoss(network, MunchausenConfig("munchausen", CLASS, alpha=0.5, temperature=1.0, gamma=0.5))
    following = {"observation": torch.zeros(1, 2), "reward": torch.ones(1, 1), "terminated": torch.zeros(1, 1).bool()}
    batch = TensorDict({"observation": torch.zeros(1, 2), "action": torch.tensor([1]), "next": following}, [1])
    # Uniform policies: 1 + 0.5 log(1/2) + 0.5 log 2.
    torch.testing.assert_close(loss.target_value(batch), torch.ones(1, 1))


@pytest.mark.parametrize("by_yaml", [True, False])
def test_it_trains_from_a_yaml_and_from_its_name_alone(
    by_yaml: bool, rlstack_command: Callable[..., Ended], tmp_path: Path
) -> None:
    if by_yaml:
        (tmp_path / "conf/agent").mkdir(parents=True)
        yaml = f"defaults: [dqn, _self_]\nname: munchausen\nalgorithm: {CLASS}\nalpha: 0.8\n"
        (tmp_path / "conf/agent/mine.yaml").write_text(yaml)
        given = ["--config-dir=conf", "agent=mine", "agent.epsilon.end=0.2"]
    else:
        given = [f"agent={CLASS}", "agent.alpha=0.8", "agent.epsilon.end=0.2"]
    words = ["env=cartpole", "debug=300", "logger=csv", "device=cpu", "threads=1", "run_dir=run"]
    done = rlstack_command("train", *given, *words)
    assert done.status == 0, done.err
    stored = OmegaConf.load(tmp_path / "run/config.yaml").agent
    assert (stored.algorithm, stored.alpha, stored.epsilon.end, stored.temperature) == (CLASS, 0.8, 0.2, 0.03)
