"""A run's memory is estimated before it is allocated, and what fits is not refused."""

from __future__ import annotations

import pytest
import torch

from rlstack.config import ConfigError, build
from rlstack.training import preflight
from rlstack.training.config import TrainConfig
from rlstack.training.preflight import few_worlds
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import composed

CPU = torch.device("cpu")


def config(*overrides: str) -> TrainConfig:
    return build(TrainConfig, composed("device=cpu", "env=cartpole", *overrides))


def check(*overrides: str) -> None:
    with few_worlds(config(*overrides)) as env:
        preflight.check_fits("the run", preflight.needs(config(*overrides), env))


def part(name: str, *overrides: str) -> float:
    with few_worlds(config(*overrides)) as env:
        return next(need.bytes for need in preflight.needs(config(*overrides), env) if name in need.part)


@pytest.fixture
def sixteen_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "free_bytes", lambda device: 16e9)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["agent=ppo", "env.num_worlds=1e11"], r"a batch of 100,000,000,000 worlds and 32 steps \(.*\) 153,600.0 GB"),
        (["agent=ppo", "env.frame_stack=1000", "env.num_worlds=100000"], "agent.steps_per_batch"),
        (["agent=ppo", "eval.episodes=4294967296"], r"episodes of an evaluation \(eval.episodes\) 859.0 GB"),
        (
            ["agent=dqn", "agent.buffer_size=1e13", "total_frames=1e13"],
            r"the replay buffer \(agent.buffer_size\) 4[0-9]{2},[0-9]{3}.0 GB",
        ),
        (["agent=dqn", "agent.n_step=10000", "env.num_worlds=1000000"], r"n-step returns \(agent.n_step\)"),
        (["agent=ppo", "agent.hidden=[10000000,10000000]"], r"networks \(agent.hidden and other widths\) 3,200,0"),
        (["agent=ppo", "agent.recurrent={kind: lstm, size: 10000000}"], "networks"),
    ],
)
def test_what_does_not_fit_is_told_in_gigabytes(overrides: list[str], message: str, sixteen_gigabytes: None) -> None:
    expected = rf"not enough memory: the run needs [\d,]+\.\d GB on cpu, where 16\.0 GB are free: .*{message}"
    refused(ConfigError, expected, check, *overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["agent=ppo"],
        ["agent=dqn", "agent.buffer_size=1000000000", "total_frames=1000"],  # a CPU's memory is taken as it fills
        ["env=marinenav", "agent=acqn"],
        ["env=rocket", "agent=ppo", "env.num_worlds=4096"],
    ],
)
def test_what_fits_is_not_refused(overrides: list[str], sixteen_gigabytes: None) -> None:
    check(*overrides)


def test_sizes_are_those_of_the_tensors() -> None:
    """CartPole has 4 numbers, a return and a length of 4 bytes each: 24 bytes a world and step."""
    assert part("a batch", "agent=ppo", "env.num_worlds=100", "agent.steps_per_batch=10") == 2 * 100 * 10 * 24
    stacked = part("a batch", "agent=ppo", "env.num_worlds=100", "agent.steps_per_batch=10", "env.frame_stack=3")
    assert stacked == 2 * 100 * 10 * (3 * 16 + 8)
    # Policy 4 to 8 to 2 and value function 4 to 8 to 1, with biases; gradients and two moments besides.
    assert part("networks", "agent=ppo", "agent.hidden=[8]") == 4 * 4 * ((4 * 8 + 8 + 8 * 2 + 2) + (4 * 8 + 8 + 8 + 1))


@exhaustive("agent", ["acqn", "sac", "td3", "ddpg", "ppo", "a2c"], quick=2)
def test_the_networks_of_every_agent_are_counted(agent: str) -> None:
    own = ["agent.critic=late"] if agent == "acqn" else []
    assert part("networks", "env=marinenav", f"agent={agent}", "agent.hidden=[100000,100000]", *own) >= 4 * 4 * 1e10


def test_the_free_memory_of_this_machine_is_known() -> None:
    free = preflight.free_bytes(CPU)
    assert free is not None and 1e6 < free < 1e15
