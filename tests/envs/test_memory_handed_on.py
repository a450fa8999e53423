"""A policy's recurrent state persists within its episode, for all ways to step the world."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from rlstack import envs
from tests.agents.recall import Recall


class Counting:
    """A policy whose recurrent state counts its steps in the episode; it records the states that it receives."""

    def __init__(self, env: Any, key: Any = "memory") -> None:
        self.env, self.key, self.found = env, key, []
        self.lead = env.full_action_spec[key[:-1]].shape if isinstance(key, tuple) else env.batch_size

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        memory = tensordict.get(self.key, None)
        memory = torch.zeros(*self.lead, 1) if memory is None else memory
        self.found.append(memory[..., 0].clone())
        key = self.key if isinstance(self.key, tuple) else (self.key,)
        tensordict.set(self.key, memory).set(("next", *key), memory + 1)
        return self.env.rand_action(tensordict)


def by_hand(env: Any, policy: Counting, steps: int) -> None:
    tensordict = env.reset()
    for _ in range(steps):
        tensordict = env.maybe_reset(env.step_mdp(env.step(policy(tensordict))))


def quickly(env: Any, policy: Counting, steps: int) -> None:
    tensordict = env.reset()
    for _ in range(steps):
        _, tensordict = env.step_and_maybe_reset(policy(tensordict))


def rollout(env: Any, policy: Counting, steps: int) -> None:
    env.rollout(steps, policy, break_when_any_done=False)


def recall() -> Any:
    return Recall(3, delay=2)


def short_cartpole() -> Any:
    return envs.make("gymnasium", id="CartPole-v1", num_envs=3, max_steps=4)


def repeated_cartpole() -> Any:
    return envs.make("gymnasium", id="CartPole-v1", num_envs=3, max_steps=8, action_repeat=2, observation_keep=[0])


LENGTHS = {recall: [4, 5, 4], short_cartpole: [4] * 3, repeated_cartpole: [4] * 3}


@pytest.mark.parametrize("make", list(LENGTHS))
@pytest.mark.parametrize("step", [by_hand, quickly, rollout])
def test_memories_go_on_and_end_with_their_episodes(make: Any, step: Any) -> None:
    env = make()
    policy = Counting(env)
    step(env, policy, 14)
    for row, length in enumerate(LENGTHS[make]):
        assert [int(found[row]) for found in policy.found] == [t % length for t in range(14)]


@pytest.mark.parametrize("step", [by_hand, quickly, rollout])
def test_an_agents_memory_ends_with_its_own_episode(step: Any) -> None:
    env = envs.make("marinenav", num_worlds=2, num_robots=2, num_obstacles=0, max_steps=5, curriculum=None)
    policy = Counting(env, ("agents", "memory"))
    step(env, policy, 12)
    for t, found in enumerate(policy.found):
        assert (found == t % 6).all(), "the sixth step is too late"


def test_without_a_memory_nothing_is_handed_on() -> None:
    env = recall()
    rollout = env.rollout(9, break_when_any_done=False)
    assert rollout.get("memory", None) is None and rollout["next"].get("memory", None) is None
