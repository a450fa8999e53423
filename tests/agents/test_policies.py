"""Policies as TorchRL modules: in its rollouts and collectors, copied, and switched by its exploration types."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.envs.utils import ExplorationType, set_exploration_type

from rlstack import envs
from rlstack.agents import Agent, make_agent
from tests.agents.small_agents import ALGORITHMS, DISCRETE

MEMORY = {"recurrent": {"kind": "gru", "size": 4, "layers": 1, "sequence_length": 4}}
CARTPOLE = ("gymnasium", {"id": "CartPole-v1", "num_envs": 2, "workers": 0})
PENDULUM = ("gymnasium", {"id": "Pendulum-v1", "num_envs": 2, "workers": 0})
MARINENAV = ("marinenav", {"num_worlds": 2, "num_robots": 3})
CASES: dict[str, tuple[str, tuple[str, dict[str, Any]], dict[str, Any]]] = {
    **{name: (name, CARTPOLE if name in DISCRETE else PENDULUM, {}) for name in ALGORITHMS},
    **{f"recurrent {name}": (name, CARTPOLE, MEMORY) for name in ("ppo", "a2c", "dqn", "iqn")},
    "normalising ppo": ("ppo", PENDULUM, {"normalize_observations": True, "normalize_rewards": True}),
    "ppo in a group": ("ppo", MARINENAV, {}),
    "recurrent ppo in a group": ("ppo", MARINENAV, MEMORY),
    "acqn in a group": ("acqn", MARINENAV, {}),
    "ppo of two sides": ("ppo", ("rocket", {"num_worlds": 2}), {"parameters": "split"}),
}


def made(case: str) -> tuple[Any, Agent]:
    name, (world, options), overrides = CASES[case]
    env = envs.make(world, seed=1, **options)
    torch.manual_seed(5)
    return env, make_agent(name, env, **overrides)


def acted(policy: Any, shown: TensorDict, mode: ExplorationType | None = None, seed: int = 3) -> TensorDict:
    torch.manual_seed(seed)
    with set_exploration_type(mode):
        return policy(shown.clone()).select(*policy.out_keys)


@pytest.mark.parametrize("case", CASES)
def test_a_policy_acts_in_rollouts_and_collectors(case: str) -> None:
    env, agent = made(case)
    policy = agent.policy()
    assert sum(parameter.numel() for parameter in policy.parameters())
    rollout = env.rollout(3, policy, break_when_any_done=False)
    options: dict[str, Any] = {"frames_per_batch": 8, "total_frames": 16, "auto_register_policy_transforms": False}
    batches = list(Collector(env, policy, **options))
    assert len(batches) == 2 and batches[0].batch_size == (2, 4)
    for key in (*policy.in_keys, *policy.out_keys):
        assert key in rollout.keys(True) and key in batches[0].keys(True), key


@pytest.mark.parametrize("case", CASES)
def test_torchrl_says_whether_it_explores(case: str) -> None:
    env, agent = made(case)
    shown, policy = env.reset(), agent.policy()
    key = policy.out_keys[0]
    greedy = acted(agent.policy(explore=False), shown)[key]
    for mode in (None, ExplorationType.DETERMINISTIC, ExplorationType.MEAN, ExplorationType.MODE):
        assert torch.equal(acted(policy, shown, mode, seed=9)[key], greedy), mode
    assert (acted(policy, shown, ExplorationType.RANDOM) == acted(agent.policy(explore=True), shown)).all()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "copied", [deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))], ids=["copy", "pickle"]
)
def test_a_copy_has_its_own_networks_and_follows_the_weights_it_is_given(
    copied: Callable[[Any], Any], case: str
) -> None:
    env, agent = made(case)
    policy = agent.policy()
    copy, shown = copied(policy), env.reset()
    with torch.no_grad():
        for value in policy.parameters():
            value.add_(0.1 * torch.randn_like(value))
    agent.set_frames(400_000)
    copy.load_state_dict(policy.state_dict())
    for mode in (ExplorationType.DETERMINISTIC, ExplorationType.RANDOM):
        assert (acted(copy, shown, mode) == acted(policy, shown, mode)).all(), mode
    before = acted(copy, shown)
    with torch.no_grad():
        for value in policy.parameters():
            value.zero_()
    assert (acted(copy, shown) == before).all()


def test_a_copy_draws_nothing_from_the_random_numbers_of_its_surroundings() -> None:
    _, agent = made("ppo")
    before = torch.get_rng_state()
    deepcopy(agent.policy())
    assert torch.equal(torch.get_rng_state(), before)


def pendulum() -> Any:
    name, options = PENDULUM
    return envs.make(name, seed=1, **options)


@pytest.mark.slow
def test_torchrls_own_workers_take_a_policy_and_its_schedules() -> None:
    epsilon = {"kind": "linear", "start": 1.0, "end": 0.0}
    agent = make_agent("ddpg", pendulum(), noise=0.0, epsilon=epsilon)
    collector = MultiSyncCollector(
        [pendulum], agent.policy(), frames_per_batch=200, total_frames=-1, auto_register_policy_transforms=False
    )
    try:
        batches = iter(collector)
        wild = next(batches)
        agent.set_frames(agent.total_frames)
        with torch.no_grad():
            for value in agent.networks["actor"].parameters():
                value.zero_()
        collector.update_policy_weights_(agent.policy())
        tame = next(batches)
    finally:
        collector.shutdown()
    assert wild["action"].abs().max() > 1 and not tame["action"].any()
