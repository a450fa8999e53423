"""A learning rate that follows the KL divergence of the policy's updates, by the rule of rsl_rl."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rlstack import envs
from rlstack.agents.optimizer import Compiler, Optimizer
from rlstack.config.schedules import ScheduleConfig, in_words
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from tests.agents.recall import Recall
from tests.agents.small_agents import Detour, copies, equal, small

ADAPTIVE: dict[str, Any] = {"kind": "adaptive", "kl": 0.01}


def rates(kls: list[float], compiler: Compiler | None = None, **options: Any) -> list[float]:
    """Returns the learning rates with which steps are made whose losses report these divergences."""
    config = ScheduleConfig(**{**ADAPTIVE, **options})
    parameter = torch.zeros(3, requires_grad=True)
    optimizer = Optimizer([[parameter]], config.rates[-1], adaptive=config)
    if compiler is not None:
        optimizer.compile(compiler, "a test")
    optimizer.begin_update()
    found = []
    for kl in kls:
        batch = TensorDict({"kl": torch.full((4,), kl)}, [4])
        before = parameter.detach().clone()
        optimizer.minimize(lambda batch: (parameter.sum(), {"kl": batch["kl"].mean()}), batch)
        found.append(float(optimizer.lr))
        # Adam moves a parameter by its learning rate while the gradient stays the same.
        torch.testing.assert_close(before - parameter.detach(), torch.full((3,), found[-1]), rtol=1e-4, atol=1e-9)
    return found


def test_the_rule_by_hand() -> None:
    kls = [0.021, 0.004, 0.0, 0.012, 0.006, 0.0049, 0.5, 0.0201]
    wanted = [1e-3 / 1.5, 1e-3, 1e-3, 1e-3, 1e-3, 1.5e-3, 1e-3, 1e-3 / 1.5]
    assert rates(kls) == pytest.approx(wanted, rel=1e-6)


def test_the_first_step_does_not_raise_it_as_the_policy_has_not_moved() -> None:
    assert rates([1e-8, 1e-8]) == pytest.approx([1e-3, 1.5e-3])


def test_it_stays_within_its_bounds() -> None:
    assert rates([1.0] * 14)[-1] == pytest.approx(1e-5)
    assert rates([1e-4] * 8)[-1] == pytest.approx(1e-2)
    own = {"start": 0.02, "low": 0.01, "high": 0.05, "factor": 2.0}
    assert rates([1.0, 1.0, 1e-4, 1e-4, 1e-4], **own) == pytest.approx([0.01, 0.01, 0.02, 0.04, 0.05])


def test_a_divergence_that_is_not_a_number_changes_nothing() -> None:
    assert rates([0.021, float("nan")]) == pytest.approx([1e-3 / 1.5] * 2)


def test_compiled_steps_follow_it() -> None:
    kls = [0.021, 0.004, 0.0, 0.5]
    assert rates(kls, Compiler(backend="eager")) == pytest.approx(rates(kls))


def updates(agent: Any, parts: list[TensorDict]) -> list[float]:
    """Learns from each batch; returns the learning rates."""
    told = []
    for part in parts:
        agent.learn(part, agent.frames + part.numel())
        told.append(agent.schedule_metrics()["schedule/lr"])
    return told


@pytest.mark.parametrize("recurrent", [None, {"kind": "gru", "size": 8, "sequence_length": 4}])
def test_resuming_goes_on_with_the_same_rate(recurrent: dict[str, Any] | None) -> None:
    env = Recall(8, delay=2)
    options = {"lr": {**ADAPTIVE, "low": 1e-9}, "epochs": 3, "recurrent": recurrent}
    agent = small(env, name="ppo", **options)
    collector = make_collector(env, agent.policy(explore=True), 8)
    parts = [flatten_agents(batch, None) for batch in islice(iter(collector), 6)]
    updates(agent, parts[:3])
    state = agent.state_dict()
    resumed = small(env, name="ppo", **options)
    resumed.load_state_dict(state)
    assert float(resumed.optimizer.lr) == float(agent.optimizer.lr) != 1e-3
    found = []
    for each in (agent, resumed):
        torch.manual_seed(1)
        found.append((updates(each, parts[3:]), copies(each.parameters())))
    assert found[0][0] == found[1][0]
    assert equal(found[0][1], found[1][1])


def test_a_state_with_a_fixed_rate_goes_on_from_it() -> None:
    agent, adaptive = (small(Detour(), name="ppo", lr=lr) for lr in (2e-3, ADAPTIVE))
    adaptive.load_state_dict(agent.state_dict())
    assert float(adaptive.optimizer.lr) == pytest.approx(2e-3)


def test_it_is_told_in_words() -> None:
    assert in_words(ADAPTIVE) == "0.001 at first (adaptive, KL 0.01)"


@pytest.mark.slow
def test_a_rate_that_is_far_too_small_recovers() -> None:
    """CartPole within 40,000 steps: hopeless with a constant 1e-6, solved where the rate adapts from there."""
    found = {}
    for name, lr in (("constant", 1e-6), ("adaptive", {**ADAPTIVE, "start": 1e-6, "low": 1e-6})):
        torch.manual_seed(0)
        env = envs.make("cartpole", num_worlds=8, seed=0)
        options = {"hidden": [64, 64], "minibatch_size": 64, "epochs": 10, "lr": lr}
        agent = small(env, name="ppo", total_frames=40_000, **options)
        for batch in make_collector(env, agent.policy(explore=True), 128, total_frames=40_000):
            agent.learn(flatten_agents(batch, None), agent.frames + batch.numel())
        played = envs.make("cartpole", num_worlds=32, seed=9)
        rollout = played.rollout(500, agent.policy(explore=False), break_when_any_done=False)
        falls = float(rollout["next", "terminated"].float().sum()) / 32  # of each world in 500 steps
        found[name] = 500 / max(falls, 1)
    assert found["constant"] < 150 < 300 < found["adaptive"], found
