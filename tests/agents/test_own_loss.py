"""The loss that rlstack/agents/README.md shows, as a user's own."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

import rlstack
from rlstack import envs
from rlstack.agents import Agent, build_agent, completed
from rlstack.config import ConfigError
from tests.agents.spo import SPOLoss

README = Path(rlstack.__file__).parent / "agents" / "README.md"
YAML = next(
    OmegaConf.to_container(OmegaConf.create(block))
    for block in re.findall(r"```yaml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    if "spo:SPOLoss" in block
)
OWN = {key: value for key, value in YAML.items() if key != "defaults"}  # type: ignore[union-attr]


def agent(**options: Any) -> Agent:
    config = completed({**OWN, "loss": "tests.agents.spo:SPOLoss", "hidden": [8], **options})
    return build_agent(config, envs.make("cartpole", num_worlds=2), 1000)


def test_its_losses_are_those_of_the_formula() -> None:
    """With ratio 1.5, advantages 2 and -2, and epsilon 0.2: |A| / 0.4 * 0.25 = 1.25, A r = 3 and -3."""
    loss, states = agent().loss, torch.randn(2, 4)
    action = torch.tensor([0, 1])
    with torch.no_grad():
        log_prob = loss.actor_network.get_dist(TensorDict(observation=states, batch_size=[2])).log_prob(action)
        value = loss.critic_network(TensorDict(observation=states, batch_size=[2]))["state_value"]
    data = {"observation": states, "action": action, "log_prob": log_prob - torch.tensor(1.5).log()}
    data |= {"advantage": torch.tensor([[2.0], [-2.0]]), "value_target": value + 1.0}
    told = loss(TensorDict(data, [2]))
    torch.testing.assert_close(told["loss_policy"], torch.tensor((1.25 - 3 + 1.25 + 3) / 2))
    torch.testing.assert_close(told["loss_value"], torch.tensor(0.5))


def test_torchrl_asks_for_no_annotations() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "replay"}, "value_estimator=gae needs sequences, data=rollout"),
        (
            {"data": "replay", "value_estimator": "td0"},
            '"advantage" not found.*; fresh rollouts bring it: agent.data=rollout',
        ),
        (
            {"loss": f"{__name__}:WithoutEstimator"},
            "; a loss of yours for rollouts needs a method make_value_estimator",
        ),
    ],
)
def test_what_is_missing_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent(**options)


class WithoutEstimator(SPOLoss):
    make_value_estimator = SPOLoss.__mro__[1].make_value_estimator  # type: ignore[assignment]
    default_value_estimator = None


@pytest.mark.slow
def test_it_learns_cartpole_from_python(tmp_path: Path) -> None:
    options = {f"agent.{key}": value for key, value in OWN.items() if key != "loss"}
    run = rlstack.train(
        agent="torchrl_options",
        env="cartpole",
        total_frames=60_000,
        seed=0,
        run_dir=tmp_path / "run",
        quiet=True,
        **{**options, "agent.loss": SPOLoss, "env.num_worlds": 8, "threads": 1, "logger": "csv", "device": "cpu"},
    )
    assert run.score > 400
