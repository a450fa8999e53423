"""The tools that show on a CPU what a GPU refuses or waits for, and a run that does neither."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.gpu import correctness
from experiments.gpu.correctness import compare_lessons, compare_worlds, configured, gathered, played, taught
from experiments.gpu.rows import WORLDS, agents
from experiments.gpu.runner import Setting
from rlstack.config.allowed import granting
from rlstack.training.guard import Guard
from rlstack.training.hooks import Hook
from rlstack.training.loop import Training
from tests.exhaustive import exhaustive
from tests.host_waits import HostWaits
from tests.refusals import refused
from tests.rehearsal import rehearsing
from tests.small_run import composed
from tests.stand_in_gpu import DEVICE, stand_in
from tests.training.test_every_resume import training

_TINY: dict[str, Any] = {
    **{"steps_per_batch": 4, "minibatch_size": 16, "epochs": 1, "batch_size": 8, "buffer_size": 100, "hidden": [8, 8]},
    **{"learning_starts": 8, "random_frames": 0, "frames_per_update": 10, "candidates": 2, "precision": "float32"},
    **{"self_features": 4, "object_features": [4]},
}
_AGENTS = {name: overrides for name, overrides in agents().items() if "memory" not in name}
"""A GPU computes a memory in one operation, which no CPU has."""
_LOOPS = {
    "one agent": ["agent=ppo", "env=cartpole", "agent.normalize_rewards=true"],
    "arena": ["agent=ppo", "env=arena"],
    "replay": ["agent=dqn", "env=cartpole"],
    "opponents": ["agent=ppo", "env=rocket", "env.tick_skip=2", "env.opponents={players: [rule, random]}"],
    "hybrid": ["agent=ppo", "env=echelon", "env.actions=hybrid", "env.visibility=partial", "env.maps=8"],
    "raw": ["agent=sac", "env=marinenav", "agent.inputs=raw", "agent.normalize_observations=true"],
    "central": ["agent=ppo", "env=marinenav", "agent.critic=central"],
    "wrapped": ["agent=ppo", "env=arena", "env.frame_stack=2", "env.action_repeat=2"],
}
"""Collecting and learning together; the first takes a second."""


@pytest.fixture(autouse=True)
def _its_own_draws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The numbers are the CPU's already; the test checks which generator draws them."""
    monkeypatch.setattr(correctness, "DrawnOnCpu", nullcontext)
    yield


def test_the_stand_in_refuses_what_a_gpu_refuses() -> None:
    with stand_in() as device:
        x = torch.arange(3.0, device=device)
        assert x.device.type == "standin" and (2 * x + 1).device == x.device
        assert (2 * x + torch.tensor(1.0)).cpu().tolist() == [1.0, 3.0, 5.0]  # a number may come from the CPU
        assert x[torch.tensor([2, 0])].cpu().tolist() == [2.0, 0.0]  # indices, too
        for mixed in (
            lambda: x + torch.ones(3),
            lambda: torch.stack((x.sum(), torch.zeros(()))),
            lambda: torch.ones(3).mul_(x),
            lambda: torch.where(torch.ones(3, dtype=torch.bool), x, 0.0),
            lambda: torch.ones(3)[x.long()],
        ):
            refused(RuntimeError, "on the CPU", mixed)
        refused(RuntimeError, "aten::cumsum does not have a deterministic implementation", x.cumsum, 0)
        assert x.long().cumsum(0).cpu().tolist() == [0, 1, 3]
        refused(RuntimeError, "the generator is not on", torch.rand, 2, device=device, generator=torch.Generator())
        refused(RuntimeError, "the generator is not on", torch.rand, 2, generator=torch.Generator(device=device))
        with pytest.raises((RuntimeError, TypeError)):
            x.numpy()


@exhaustive("name", sorted(WORLDS, key=lambda name: name in ("echelon", "rocket")), quick=len(WORLDS) - 2)
def test_worlds_step_where_they_are(name: str) -> None:
    options: dict[str, Any] = {**WORLDS[name], "num_worlds": 2}
    options |= {"max_steps": 3} if "max_steps" in options else {}
    with stand_in():
        ours, theirs = (played(device, name, options, 4) for device in ("cpu", DEVICE))
    assert compare_worlds(ours, theirs, 1e-6) == (1.0, pytest.approx(0.0, abs=1e-6))


@exhaustive("name", sorted(_AGENTS, key=lambda name: name not in ("ppo", "sac")), quick=2)
def test_agents_learn_where_they_are(name: str) -> None:
    hidden = {"hidden": [8, 8, 8]} if name == "ppo_published" else {}
    plain = configured(*_AGENTS[name], small={**_TINY, **hidden})
    plain["env"]["num_worlds"] = 2
    if "frames_per_update" in plain["agent"]:
        plain["agent"]["frames_per_update"] = 10  # a check's own number would give so short a run no update
    batches = gathered(plain, steps=8)
    with stand_in(), correctness.as_on_a_gpu():
        ours, theirs = (taught(plain, device, batches) for device in ("cpu", DEVICE))
    found = compare_lessons(ours, theirs)
    assert found["losses"] < 1e-5 and found["parameters"] < 1e-3, found


@exhaustive("name", _LOOPS)
def test_iterations_stay_where_they_are(name: str) -> None:
    with stand_in() as device:
        found = correctness.waiting_for_nothing(Setting(device, quick=True), _LOOPS[name])
    assert found.figures["updates"] > 0


# -- waits for a GPU are seen on a CPU; what is recorded waits for nothing, see ``test_recorded_iterations.py`` --------


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


WORLD = "tests.recorded_worlds:Crowd"


def crowded(folder: Path, *hooks: Hook) -> Training:
    """Returns a run of PPO in a small world of groups, with an evaluation without episodes."""
    options = ["agent=ppo", "total_frames=700"]
    small = ["agent.hidden=[8]", "agent.steps_per_batch=4", "agent.minibatch_size=16", "agent.epochs=1", "logger=csv"]
    falls = ["agent.lr={kind: linear, start: 1e-3, end: 0}", "log_every=600", "eval.every=600", "checkpoint.every=500"]
    plain = composed(*options, *small, *falls, "device=cpu", "threads=1", "seed=3")
    plain |= {"env": {"name": WORLD, "num_worlds": 4}}
    return training(folder, plain, hooks=hooks)


def test_a_run_with_groups_reads_nothing_until_something_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with granting({"env": {"name": WORLD}}), rehearsing(monkeypatch):
        for event in ("on_collected", "on_batch"):  # which on a GPU learns its sums later
            monkeypatch.setattr(Guard, event, getattr(Hook, event))
        watch, waits, iterations = Hook(), HostWaits(), itertools.count(1)
        change = {5: waits.__enter__, 10: lambda: waits.__exit__(None, None, None)}
        watch.on_iteration = lambda _: change.get(next(iterations), lambda: None)()  # type: ignore[method-assign]
        run = crowded(tmp_path / "run", watch)
        run.execute()
        assert next(iterations) > 11 and not waits.count, waits.places
        for path in sorted((tmp_path / "run" / "checkpoints").glob("checkpoint_*.pt"))[1:]:
            path.unlink()
        resumed = crowded(tmp_path / "run")
        resumed.restore()
        assert 500 <= resumed.frames < 600
        resumed.execute()
    assert resumed.digest == run.digest
