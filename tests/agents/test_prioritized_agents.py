"""Prioritised replay for every agent that learns from a replay buffer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import ReplayBuffer

from rlstack.agents import make_agent
from tests.agents.recall import Recall
from tests.agents.small_agents import CASES, FRESH, batches, plain, small
from tests.exhaustive import exhaustive

OFF_POLICY = [(name, discrete) for name, discrete in CASES if name not in FRESH]
PRIORITIZED: dict[str, Any] = {
    "replay": {"sampler": "prioritized"},
    "priority_exponent": 0.5,
    "importance_exponent": 0.7,
}


def watched(agent: Any) -> list[TensorDict]:
    """Records the samples that an agent draws from now on."""
    taken, sample = [], agent.replay.sample

    def watch() -> TensorDict:
        taken.append(sample())
        return taken[-1]

    agent.replay.sample = watch
    return taken


def one_update(agent: Any, sequences: TensorDict) -> tuple[TensorDict, torch.Tensor, torch.Tensor]:
    """Returns the sample of one update, and the stored priorities before and after it."""
    agent.extend(sequences)
    tree, taken = agent.replay.sampler.tree, watched(agent)
    chosen = torch.arange(0, len(agent.replay.storage), 3)
    agent.replay.update_priority(chosen, torch.linspace(0.1, 5.0, len(chosen)))
    before = tree.values.clone()
    agent.update(agent.prepared(agent.sample()))
    return taken[0], before, tree.values


def check(agent: Any, sample: TensorDict, before: torch.Tensor, after: torch.Tensor) -> None:
    drawn = torch.zeros(len(before), dtype=torch.bool)
    drawn[sample["index"]] = True
    assert torch.equal(before[~drawn], after[~drawn]) and 0 < drawn.sum() < len(agent.replay.storage)
    assert (before[drawn] != after[drawn]).all() and (after[drawn] > 0).all()
    # Schaul et al. 2016, 3.4: w = (N P)**-beta, over its maximum
    probability = before / before.sum()
    weight = (len(agent.replay.storage) * probability[sample["index"]]) ** -0.7
    torch.testing.assert_close(sample["priority_weight"].double(), weight / weight.max(), rtol=1e-5, atol=0)


@exhaustive("n_step", [3, 1])
@pytest.mark.parametrize(("name", "discrete"), OFF_POLICY)
def test_an_update_changes_the_priorities_of_what_it_drew(name: str, discrete: bool, n_step: int) -> None:
    env = plain(discrete)
    agent = small(env, name=name, n_step=n_step, **PRIORITIZED)
    assert isinstance(agent.replay, ReplayBuffer)
    check(agent, *one_update(agent, env.experience(agent, 3, 30)))


def remembering(name: str) -> tuple[Any, TensorDict]:
    """Returns an agent with a recurrent core, and what it has met in sixty steps of four worlds."""
    torch.manual_seed(0)
    memory = {"kind": "gru", "size": 8, "layers": 1, "sequence_length": 4, "burn_in": 2}
    sizes = {"hidden": [16], "batch_size": 16, "frames_per_update": 10, "learning_starts": 0, "n_step": 2}
    env = Recall(4, delay=2)
    agent = make_agent(name, env, 1000, recurrent=memory, **sizes, **PRIORITIZED)
    return agent, next(batches(env, agent, 15))


@pytest.mark.parametrize("name", ["dqn", "iqn"])
def test_so_does_one_of_an_agent_with_a_memory(name: str) -> None:
    agent, sequences = remembering(name)
    check(agent, *one_update(agent, sequences))


def test_the_priority_of_a_sequence_is_mostly_its_largest_error() -> None:
    """R2D2: 0.9 of the largest and 0.1 of the mean error of the steps that are learned from."""
    agent, sequences = remembering("dqn")
    agent.extend(sequences)
    batch = agent.prepared(agent.sample())
    errors = agent.loss.critic_loss(agent.unrolled(batch))[1]["td_error"]
    each = errors.split(batch["active"][:, 2:6].sum(1).tolist())
    wanted = torch.stack([0.9 * row.max() + 0.1 * row.mean() for row in each])
    torch.testing.assert_close(agent.objective(batch)[1]["td_error"], wanted)


def test_returns_of_several_steps_end_where_episodes_begin_anew() -> None:
    env = plain(discrete=True)
    fresh, agent = (small(env, name="dqn", n_step=3) for _ in range(2))
    first, second = env.experience(agent, 2, 4), env.experience(agent, 2, 4)
    agent.extend(first)
    before = len(agent.replay)
    agent.begin_episodes()
    for each in (fresh, agent):
        each.extend(second)
    assert len(agent.replay) == before + len(fresh.replay)
    rewards = (each.replay[:]["next", "reward"] for each in (agent, fresh))
    assert torch.equal(next(rewards)[before:], next(rewards))


def test_the_priority_of_a_dqn_transition_is_its_error() -> None:
    """Values and targets are zero except for the reward: the priority is (|r| + eps)**1/2."""
    env = plain(discrete=True)
    agent = small(env, name="dqn", n_step=1, **PRIORITIZED)
    sequences = env.experience(agent, 3, 30)
    with torch.no_grad():
        for network in (agent.network, agent.loss.target_network):
            for parameter in network.parameters():
                parameter.zero_()
    sample, _, after = one_update(agent, sequences)
    reward = sequences["next", "reward"].flatten()[sample["index"]].double()
    torch.testing.assert_close(after[sample["index"]], (reward.abs() + 1e-6).sqrt(), rtol=1e-6, atol=0)


def test_the_importance_exponent_is_a_schedule_of_those_who_use_it() -> None:
    env = plain(discrete=True)
    rising = {"kind": "linear", "start": 0.4, "end": 1.0}
    agent = small(env, name="iqn", **PRIORITIZED | {"importance_exponent": rising})
    for frames in (30, 500):
        agent.learn(env.experience(agent, 3, 10), frames)
    assert agent.replay.sampler.beta == pytest.approx(0.7)
    assert "schedule/importance_exponent" in agent.schedule_metrics()
    assert "schedule/importance_exponent" not in small(env, name="iqn").schedule_metrics()


def test_a_sampler_of_ones_own_is_named_by_its_path() -> None:
    env = plain(discrete=True)
    for name in ("Newest", "Noting"):
        agent = small(env, name="dqn", replay={"sampler": f"tests.agents.own_sampler:{name}"})
        taken = watched(agent)
        agent.learn(env.experience(agent, 3, 30), 90)
        sampler, drawn = agent.replay.sampler, taken[-1]["index"]
        assert agent.updates and drawn.tolist() == list(range(len(agent.replay) - len(drawn), len(agent.replay)))
        assert sampler.capacity == agent.config.buffer_size
        assert "schedule/importance_exponent" not in agent.schedule_metrics()
        if name == "Noting":
            index, error = sampler.noted
            assert torch.equal(index, drawn) and (error > 0).all()


def test_a_sampler_of_ones_own_gets_options() -> None:
    given = {"name": "tests.agents.own_sampler:Latest", "window": 12, "alpha": 0.25}
    sampler = small(plain(discrete=True), name="dqn", replay={"sampler": given}).replay.sampler
    assert (sampler.window, sampler.alpha) == (12, 0.25)
    del given["alpha"]
    agent = small(plain(discrete=True), name="dqn", replay={"sampler": given}, priority_exponent=0.7)
    assert agent.replay.sampler.alpha == 0.7


def test_an_agent_learns_from_files(tmp_path: Any) -> None:
    env, outcomes = plain(discrete=False), []
    on_disk = {"storage": "LazyMemmapStorage", "directory": str(tmp_path)}
    for replay in (on_disk, {"storage": "LazyTensorStorage"}):
        agent = small(env, name="td3", replay=replay)
        agent.learn(env.experience(agent, 3, 30), 90)
        outcomes.append(agent.parameters())
    assert agent.updates > 0 and all(torch.equal(*pair) for pair in zip(*outcomes))
