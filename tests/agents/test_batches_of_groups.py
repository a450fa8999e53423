"""What agents learn where the number of decisions is not read, as on a GPU, is what they learn where it is."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

import rlstack
from rlstack.agents.base import Agent
from rlstack.data.collector import make_collector
from rlstack.data.flatten import COUNTS, flatten_agents, whole
from rlstack.data.normalizers import ObservationNormalizer, RunningMoments
from rlstack.envs.foundation import tensors
from rlstack.losses.ppo import normalized
from tests.exhaustive import exhaustive
from tests.recorded_worlds import Crowd

_ONE = {"minibatch_size": 1000, "epochs": 3, "hidden": [16, 16]}
"""One minibatch in an epoch: otherwise chance decides which decisions share one."""
_CASES: list[tuple[str, dict[str, Any]]] = [
    ("ppo", {**_ONE, "normalize_observations": True, "normalize_rewards": True, "rnd": {"coefficient": 1.0}}),
    ("ppo", {**_ONE, "critic": "central", "normalize_over": "rollout"}),
    ("ppo", {**_ONE, "symmetry": "augment", "accumulate": 5, "entropy_coefficient": 0.1, "clip_value": 0.2}),
    ("a2c", {"hidden": [16, 16], "normalize_advantage": True}),
    ("pqn", {**_ONE, "hidden": [16, 16], "normalize_observations": True}),
]


def taught(agent: Agent, batches: list[TensorDict]) -> dict[str, Any]:
    """Returns what an agent reports of the last of some batches, from which it learns."""
    metrics: dict[str, Any] = {}
    for number, batch in enumerate(batches):
        torch.manual_seed(number)
        metrics = agent.learn(batch.clone(), 100 * (number + 1))
    return metrics


@exhaustive(("agent", "options"), _CASES, quick=2)
def test_they_learn_the_same(agent: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    env = Crowd(num_worlds=6, choices=True)
    torch.manual_seed(0)
    known, unknown = (rlstack.make_agent(agent, env, 10_000, **options) for _ in range(2))
    unknown.load_state_dict(deepcopy(known.state_dict()))
    collected = iter(make_collector(env, known.policy(explore=True), 8))
    batches = [flatten_agents(next(collected)) for _ in range(2)]
    assert all(0.2 < batch["active"].float().mean() < 0.9 for batch in batches)
    told = taught(known, batches)
    monkeypatch.setattr(tensors, "FREE", set())
    torch.testing.assert_close(taught(unknown, batches), told, rtol=2e-4, atol=1e-5)
    networks = [one.state_dict()["networks"] for one in (unknown, known)]
    torch.testing.assert_close(*networks, rtol=1e-4, atol=1e-5)


def test_what_does_not_count_has_no_part() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(20, 3, generator=generator)
    counts = torch.rand(20, generator=generator) < 0.6
    spoiled = values.where(counts[:, None], torch.nan)
    for unbiased in (False, True):
        all_at_once, some = (RunningMoments(torch.Size([3]), unbiased) for _ in range(2))
        for moments, part in ((all_at_once, (values[counts],)), (some, (spoiled, counts))):
            moments.update(torch.ones(4, 3))
            moments.update(*part)
            moments.update(torch.zeros(5, 3), torch.zeros(5, dtype=torch.bool))
        torch.testing.assert_close(some.state_dict(), all_at_once.state_dict())
    few = torch.arange(20) < 1
    torch.testing.assert_close(normalized(values[:, 0], counts)[counts], normalized(values[counts, 0]))
    assert torch.equal(normalized(values[:, 0], few), values[:, 0])


def test_objects_that_are_not_there_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    env = rlstack.envs.make("marinenav", num_worlds=3, num_robots=2)
    seen = [env.rollout(1)["agents", "observation"].flatten(0, 2) for _ in range(2)]
    kept = []
    for free in ({"cpu"}, set()):
        monkeypatch.setattr(tensors, "FREE", free)
        normalizer = ObservationNormalizer(env.observation_spec["agents", "observation"][0, 0])
        for observation in seen:
            normalizer.update(observation)
        kept.append(normalizer.state_dict())
    torch.testing.assert_close(kept[1], kept[0])


def test_the_others_are_copies_of_one_that_counts() -> None:
    entries = {"reward": torch.tensor([[torch.nan, 1.0], [2.0, torch.nan]])}
    active = torch.tensor([[False, True], [True, False]])
    batch = whole(tensors.unchecked(entries, (2, 2)), active)
    assert batch["reward"].tolist() == [1.0, 1.0, 2.0, 1.0] and batch[COUNTS].tolist() == [False, True, True, False]


def test_an_update_that_has_moved_the_policy_changes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "FREE", set())
    options = {"minibatch_size": 16, "hidden": [16, 16], "lr": 0.01, "normalize_advantage": False}
    ends: list[tuple[list[Tensor], Any, int]] = []
    for more in ({"epochs": 1}, {"epochs": 4, "target_kl": 1e-9}):
        torch.manual_seed(0)
        env = Crowd(num_worlds=6, choices=True)
        agent = rlstack.make_agent("ppo", env, 10_000, **options, **more)
        metrics = agent.learn(flatten_agents(next(iter(make_collector(env, agent.policy(explore=True), 8)))), 100)
        ends.append(([*agent.parameters(), *agent.optimizers["lr"].moments()["step"]], metrics, agent.updates_made()))
        again = rlstack.make_agent("ppo", env, 10_000, **options, **more)
        again.load_state_dict(deepcopy(agent.state_dict()))
        assert again.updates_made() == agent.updates_made() == again.updates
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=0)
