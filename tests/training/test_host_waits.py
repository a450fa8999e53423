"""Waits for a GPU are seen on a CPU; what is recorded waits for nothing, see ``test_recorded_iterations.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from rlstack.config import build, conf_dir, to_plain
from rlstack.config.allowed import granting
from rlstack.evaluation.evaluator import Evaluation
from rlstack.runs.checkpoint import state_digest
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.config import TrainConfig
from rlstack.training.guard import Guard
from rlstack.training.hooks import Hook
from rlstack.training.loop import Training
from tests.host_waits import HostWaits
from tests.rehearsal import rehearsing


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


class Watch(Hook):
    """Counts waits between two of a run's iterations, and keeps what the run knows of its frames without asking."""

    def __init__(self, begin: int, end: int) -> None:
        self._begin, self._end, self._iterations = begin, end, 0
        self.waits = HostWaits()

    def on_iteration(self, training: Training) -> None:
        self._iterations += 1
        if self._iterations == self._begin:
            self.waits.__enter__()
        if self._iterations == self._end:
            self.waits.__exit__(None, None, None)


def crowded(folder: Path, *hooks: Hook, **changes: Any) -> Training:
    """Returns a run of PPO in a small world of groups, with an evaluation without episodes."""
    GlobalHydra.instance().clear()
    options = ["agent=ppo", "total_frames=1200"]
    small = ["agent.hidden=[8]", "agent.steps_per_batch=4", "agent.minibatch_size=16", "agent.epochs=2", "logger=csv"]
    falls = ["agent.lr={kind: linear, start: 1e-3, end: 0}", "log_every=600", "eval.every=600", "checkpoint.every=500"]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        plain = to_plain(compose("train", [*options, *small, *falls, "device=cpu", "threads=1", "seed=3"]))
    plain |= {"env": {"name": WORLD, "num_worlds": 4}, **changes}
    run = RunDirectory.create(folder, "test", 9) if not folder.exists() else RunDirectory.open(folder, 9)
    run.write_config(plain)
    made = Training(build(TrainConfig, plain), run, plain, hooks=hooks)
    made.evaluate = lambda: Evaluation({"return": torch.ones(1)}, ["all"], "none", {}, 0)  # type: ignore[method-assign]
    return made


def test_a_run_with_groups_reads_nothing_until_something_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with granting({"env": {"name": WORLD}}), rehearsing(monkeypatch):
        for event in ("on_collected", "on_batch"):  # which on a GPU learns its sums later
            monkeypatch.setattr(Guard, event, getattr(Hook, event))
        watch = Watch(begin=5, end=10)
        run = crowded(tmp_path / "run", watch)
        run.execute()
        assert not watch.waits.count, watch.waits.places
        again = crowded(tmp_path / "again", total_frames=1200)
        again.execute()
        assert again.frames == run.frames and state_digest(again.state()) == run.digest
        for path in sorted((tmp_path / "again" / "checkpoints").glob("checkpoint_*.pt"))[1:]:
            path.unlink()
        resumed = crowded(tmp_path / "again")
        resumed.restore()
        assert 500 <= resumed.frames < 600
        resumed.execute()
    assert resumed.digest == run.digest
