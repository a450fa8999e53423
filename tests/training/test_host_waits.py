"""A steady iteration (collect, learn, statistics) does not wait for a GPU; a CPU stands in for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import rlstack
from rlstack import envs
from rlstack.agents.compilation import CannotCompile, Compiler
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.envs import waiting
from rlstack.training.monitor import Monitor, count_frames
from tests.agents.small_agents import CONTINUOUS, DISCRETE, SMALL, options_of
from tests.exhaustive import exhaustive
from tests.host_waits import HostWaits

_WORLDS: dict[str, dict[str, Any]] = {
    "cartpole": {"num_worlds": 6, "max_steps": 7},
    "marinenav": {"num_worlds": 6, "max_steps": 7},
    "arena": {"num_worlds": 6, "max_steps": 7},
    "rocket": {"num_worlds": 4, "max_seconds": 0.5},
    "echelon": {"num_worlds": 4, "blue": 2, "red": 2, "max_steps": 7, "maps": 4},
}
_GROUPED = 2
"""Waits of an iteration with agents that may leave: how many frames it was, and which entries to keep."""
_CASES = [
    *[("ppo", world, {}) for world in _WORLDS],
    *[(agent, "marinenav", {}) for agent in CONTINUOUS if agent != "ppo"],
    *[(agent, "arena", {}) for agent in DISCRETE if agent != "ppo"],
    ("sac", "arena", {"inputs": "raw", "normalize_observations": True, "normalize_rewards": True}),
    ("ppo", "arena", {"inputs": "raw", "normalize_observations": True, "normalize_rewards": True}),
    ("ppo", "arena", {"advantage": "vtrace"}),
    ("dqn", "arena", {"n_step": 3, "epsilon": 0.5}),
]


@pytest.fixture(autouse=True)
def _like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(waiting, "FREE", set())
    yield


def _small(agent: str) -> dict[str, Any]:
    return {**SMALL[agent], **options_of(agent, buffer_size=5000, frames_per_update=40, minibatch_size=64)}


class Loop:
    """Runs the steady part of a training."""

    def __init__(self, agent: str, world: str, **overrides: Any) -> None:
        torch.manual_seed(0)
        self.env = envs.make(world, **_WORLDS[world])
        self.agent = rlstack.make_agent(agent, self.env, 100_000, **{**_small(agent), **overrides})
        self.batches = iter(make_collector(self.env, self.agent.policy(explore=True), 8))
        self.monitor, self.frames = Monitor(), 0

    def iterate(self) -> None:
        batch = next(self.batches)
        sequences = flatten_agents(batch, self.agent.interface.group)
        self.frames += count_frames(batch, sequences, "decisions")
        self.monitor.observe(batch, self.agent.learn(sequences, self.frames))


@exhaustive(("agent", "world", "overrides"), _CASES)
def test_a_steady_iteration_waits_for_nothing(agent: str, world: str, overrides: dict[str, Any]) -> None:
    loop = Loop(agent, world, **overrides)
    for _ in range(3):
        loop.iterate()
    updates = loop.agent.updates
    with HostWaits() as waits:
        loop.iterate()
    assert loop.agent.updates > updates, "an iteration without an update shows nothing"
    most = 0 if loop.agent.interface.group is None else _GROUPED
    assert waits.count <= most, waits.places


_SCHEDULED = ("clip", "entropy_coefficient", "epsilon", "noise", "noise_scale")


@exhaustive(
    ("agent", "world"),
    [("ppo", "cartpole"), *[(agent, "marinenav") for agent in CONTINUOUS], *[(agent, "arena") for agent in DISCRETE]],
)
def test_what_is_recorded_as_a_graph_waits_for_nothing_whatever_follows_a_schedule(agent: str, world: str) -> None:
    falling = options_of(agent, **{name: {"kind": "linear", "start": 0.2, "end": 0.1} for name in _SCHEDULED})
    loop = Loop(agent, world, **falling)
    try:
        loop.agent.compile(Compiler(compiles=False, graphs=True))
    except CannotCompile as error:
        pytest.skip(str(error))
    loop.batches = iter(make_collector(loop.env, loop.agent.policy(explore=True), 8))
    loop.iterate()
    updates = loop.agent.updates
    with HostWaits() as waits:
        loop.iterate()
    assert loop.agent.updates > updates and loop.agent._live.keys() >= falling.keys()
    most = 0 if loop.agent.interface.group is None else _GROUPED
    assert waits.count <= most, waits.places


def test_waits_are_seen() -> None:
    x = torch.arange(4.0)
    with HostWaits() as waits:
        float(x.sum()), x[x > 1], x.nonzero(), x[[0, 1]], torch.tensor([1.0]), bool(x[0] > 0)
        x[x > 1] = x[:2].clone()
    assert waits.count == 7, waits.places
    with HostWaits() as waits:
        torch.add(x, x, alpha=x[0])
    assert waits.count == 1, waits.places
    with HostWaits() as waits:
        torch.where(x > 1, x, 0.0), x.masked_fill(x > 1, 0.0), x[1:], x.index_select(0, torch.arange(2))
    assert not waits.count, waits.places
