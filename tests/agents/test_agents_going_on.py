"""The state of every agent: a restored agent continues exactly, and shares nothing with the one that was saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite

from rlstack.files.safe_load import from_file, to_file
from tests.agents.small_agents import CASES, FRESH, Decisions, equal, options_of, plain, small
from tests.exhaustive import exhaustive


def leaves(state: Any) -> list[Tensor]:
    if isinstance(state, dict):
        return [leaf for key in sorted(state, key=str) for leaf in leaves(state[key])]
    if isinstance(state, list | tuple):
        return [leaf for value in state for leaf in leaves(value)]
    return [] if state is None or isinstance(state, str) else [torch.as_tensor(state)]


def options(name: str) -> dict[str, Any]:
    """Returns options that switch on every part with a state: statistics, schedules, n-step returns, targets."""
    lr = {"kind": "linear", "start": 1e-3, "end": 0.0}
    own: dict[str, Any] = {"normalize_observations": True, "normalize_rewards": True}
    own |= options_of(name, **{"lr_actor" if options_of(name, lr_actor=lr) else "lr": lr})
    if name not in FRESH:
        own |= options_of(name, n_step=3, frames_per_update=7, target_every=50, target_tau=0.5)
    return own | ({"actor_every": 2} if name == "td3" else {})


def everything(agent: Any) -> dict[str, Any]:
    return {"agent": agent.state_dict(), "replay": None if agent.replay is None else agent.replay.state_dict()}


def both_go_on(agent: Any, other: Any, parts: list[Any], frames: list[int]) -> list[list[Tensor]]:
    """Returns metrics and states of an agent and of one restored from it, after both have learned the same parts."""
    saved, random = from_file(to_file(everything(agent))), torch.get_rng_state()
    other.load_state_dict(saved["agent"])
    if saved["replay"] is not None:
        other.replay.load_state_dict(saved["replay"])
    assert agent.updates == other.updates
    outcomes = []
    for each in (agent, other):
        torch.set_rng_state(random)
        metrics = [each.learn(part, count) for part, count in zip(parts, frames, strict=True)]
        outcomes.append([*leaves(metrics), *leaves(everything(each))])
    assert len(outcomes[0]) == len(outcomes[1])
    return outcomes


PRIORITIZED = {"replay": {"sampler": "prioritized"}, "priority_exponent": 0.5, "importance_exponent": 0.7}
ACQN_FIRST = sorted(CASES, key=lambda case: case[0] != "acqn")


DRAWN = [("td3", False, PRIORITIZED), ("iqn", True, PRIORITIZED)]


@exhaustive(("name", "discrete", "more"), [*DRAWN, *((*case, {}) for case in ACQN_FIRST)], quick=4)
def test_a_restored_agent_goes_on_exactly(name: str, discrete: bool, more: dict[str, Any]) -> None:
    env = plain(discrete)
    agent, other = (small(env, name=name, **options(name), **more) for _ in range(2))
    parts = [env.experience(agent, 3, 10) for _ in range(5)]
    for k, part in enumerate(parts[:3]):
        agent.learn(part, 30 * (k + 1))
    other.learn(parts[4], 30)  # has a past of its own
    outcomes = both_go_on(agent, other, parts[3:], [120, 150])
    for each, outcome in zip((agent, other), outcomes):
        torch.manual_seed(2)
        outcome += [each.policy(explore)(env.draw(6)).get("action") for explore in (True, False)]
    assert agent.updates == other.updates > 0
    assert equal(*outcomes)


@exhaustive(("name", "discrete"), ACQN_FIRST, quick=2)
def test_an_agent_restored_from_memory_shares_nothing(name: str, discrete: bool) -> None:
    env = plain(discrete)
    agent, twin = (small(env, name=name, **options(name)) for _ in range(2))
    parts = [env.experience(agent, 3, 10) for _ in range(3)]
    for k, part in enumerate(parts[:2]):
        agent.learn(part, 30 * (k + 1))
    twin.load_state_dict(agent.state_dict())
    if agent.replay is not None:
        twin.replay.load_state_dict(agent.replay.state_dict())
    before = leaves(from_file(to_file(everything(agent))))
    twin.learn(parts[2], 90)
    assert equal(before, leaves(everything(agent)))
    assert not equal(before, leaves(everything(twin)))


def test_the_published_memory_goes_on_too() -> None:
    env = plain(discrete=True)
    agent, other = (small(env, name="rainbow_published") for _ in range(2))
    parts = [env.experience(agent, 3, 1) for _ in range(40)]
    for k, part in enumerate(parts[:30]):
        agent.learn(part, 3 * (k + 1))
    outcomes = both_go_on(agent, other, parts[30:], list(range(93, 123, 3)))
    assert agent.updates > 0 and equal(*outcomes)


@pytest.mark.parametrize(("before", "after"), [("float32", "float16"), ("float16", "bfloat16")])
def test_a_run_may_go_on_in_another_precision(before: str, after: str) -> None:
    env = plain(discrete=True)
    agent, other = (small(env, name="dqn", precision=precision) for precision in (before, after))
    agent.learn(env.experience(agent, 3, 10), 30)
    other.load_state_dict(from_file(to_file(agent.state_dict())))
    assert other.learn(env.experience(other, 3, 10), 60)


def test_steps_that_wait_hold_structured_observations() -> None:
    env = Decisions(Composite({"self": Bounded(-2.0, 2.0, shape=(1,))}), Categorical(4, shape=()))
    agent, other = (small(env, name="dqn", n_step=3) for _ in range(2))
    parts = [env.experience(agent, 3, 10) for _ in range(2)]
    agent.learn(parts[0], 30)
    assert equal(*both_go_on(agent, other, parts[1:], [60]))
