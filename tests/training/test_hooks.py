"""Hooks of a run: when they are called, what they may do, and what checkpoints hold of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from rlstack.evaluation.evaluator import Evaluation
from rlstack.runs.checkpoint import read_checkpoint
from rlstack.training.hooks import DropBatch, Hook
from rlstack.training.loggers import read_metrics
from rlstack.training.loop import Training
from rlstack.training.run import train
from tests.refusals import refused
from tests.small_run import CARTPOLE_RUN, begun, composed, reopened
from tests.training.test_failures import AtFrame


def training(folder: Path, *hooks: Hook) -> Training:
    return begun(folder, composed(*CARTPOLE_RUN), hooks=hooks)


class Recorder(Hook):
    """Records the methods that are called, and the number of frames at each call."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda training, *_: self.seen.append((name, training.frames)) or {}
        return super().__getattribute__(name)

    def close(self) -> None:
        self.seen.append(("close", -1))


def test_the_order_of_a_run(tmp_path: Path) -> None:
    recorder = Recorder()
    training(tmp_path / "run", recorder).execute()
    calls = [call for call in recorder.seen if call[0] not in ("on_work", "on_progress")]
    batch = ["on_collected", "on_batch"]
    due = [*batch, "on_log", "on_evaluation", "on_checkpoint", "on_iteration"]
    assert calls == [
        ("on_prepare", 0),
        ("on_start", 0),
        *((name, 32) for name in [*batch, "on_iteration"]),
        *((name, 64) for name in due),
        *((name, 96) for name in [*batch, "on_iteration"]),
        *((name, 128) for name in due),
        ("on_end", 128),
        ("close", -1),
    ]


class _EndsAtOnce(Hook):
    def on_start(self, training: Training) -> None:
        training.finish()


def test_a_run_that_ends_before_its_first_batch_is_judged_and_goes_on(tmp_path: Path) -> None:
    run = train(composed(*CARTPOLE_RUN, f"run_dir={tmp_path / 'run'}"), [_EndsAtOnce()])
    saved = run.checkpoints.load()
    assert saved["frames"] == 0 and read_metrics(run.path / "metrics.csv")[0]["eval/return"] > 0
    train(composed(*CARTPOLE_RUN, f"resume={run.path}"))
    assert run.checkpoints.load()["frames"] == 128


class Counter(Hook):
    """Counts the batches of a run, across interruptions."""

    name = "counter"

    def __init__(self) -> None:
        self.batches = 0

    def on_batch(self, training: Training, batch: Any, metrics: Mapping[str, Any]) -> None:
        self.batches += 1

    def on_log(self, training: Training) -> Mapping[str, Any]:
        return {"mine/batches": self.batches}

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "weights": torch.ones(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]


def test_its_state_is_in_checkpoints_and_its_metrics_in_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(composed(*CARTPOLE_RUN, f"run_dir={folder}", "until=64"), [Counter()])
    again = Counter()
    train(composed(*CARTPOLE_RUN, f"resume={folder}"), [again])
    assert again.batches == 4
    assert read_checkpoint(folder / "checkpoints" / "checkpoint_000000000064.pt")["counter"]["batches"] == 2
    logged = [row["mine/batches"] for row in read_metrics(folder / "metrics.csv") if "mine/batches" in row]
    assert logged == [2, 4]
    shutil.copytree(folder, tmp_path / "without")  # a hook may be left out later on
    reopened(tmp_path / "without", {**composed(*CARTPOLE_RUN), "total_frames": 160}).restore()


def test_a_dropped_batch_counts_but_nobody_learns_from_it(tmp_path: Path) -> None:
    counter = Counter()
    run = training(tmp_path / "run", AtFrame(32, Mock(side_effect=DropBatch)), counter)
    run.execute()
    assert (run.frames, counter.batches, run.agent.updates) == (128, 3, 3 * 2)


@pytest.mark.parametrize(("event", "frames", "judged"), [("on_evaluation", 64, [64]), ("on_iteration", 96, [64, 96])])
def test_what_a_hook_ends_is_logged_judged_and_saved(
    event: str, frames: int, judged: list[int], tmp_path: Path
) -> None:
    """Also after 96 frames, which no evaluation or checkpoint is due at; no row is due at either."""
    hook = Hook()
    setattr(hook, event, lambda run, *_: run.finish() if run.frames == frames else None)
    run = begun(tmp_path / "run", composed(*CARTPOLE_RUN, "log_every=1000"), hooks=[hook])
    assert run.execute() is not None
    latest = run.run.checkpoints.latest()
    assert run.frames == frames and latest is not None and latest.name == f"checkpoint_{frames:012}.pt"
    rows = read_metrics(tmp_path / "run/metrics.csv")
    assert [row["frames"] for row in rows if "eval/return" in row] == judged
    assert [row["frames"] for row in rows if "loss/total" in row] == [frames]


class Judge(Hook):
    """Evaluates after 96 frames and at the end, and returns a score of its own."""

    def evaluation_due(self, training: Training) -> bool | None:
        return training.frames in (96, 128)

    def evaluate(self, training: Training) -> Evaluation:
        returns = torch.tensor([float(training.frames)], dtype=torch.float64)
        return Evaluation({"return": returns, "success": torch.zeros(1)}, ["all"], "cartpole", {}, 0, "ppo")


def test_a_hook_evaluates_in_place_of_the_run_when_it_says(tmp_path: Path) -> None:
    evaluation = training(tmp_path / "run", Judge()).execute()
    assert evaluation is not None and evaluation.summary()["eval/return"] == 128
    rows = [row for row in read_metrics(tmp_path / "run/metrics.csv") if "eval/return" in row]
    assert [row["eval/return"] for row in rows] == [96, 128]


def test_hooks_are_closed_where_one_fails(tmp_path: Path) -> None:
    recorder, broken = Recorder(), Hook()
    broken.on_batch = Mock(side_effect=ValueError("mine"))  # type: ignore[method-assign]
    refused(ValueError, "mine", training(tmp_path / "run", recorder, broken).execute)
    assert recorder.seen[-1] == ("close", -1) and ("on_end", 32) not in recorder.seen


@pytest.mark.parametrize("name", ["agent", "curriculum", "monitor"])
def test_a_name_that_a_checkpoint_has_already_is_refused(name: str, tmp_path: Path) -> None:
    hook = Hook()
    hook.name = name
    refused(ValueError, f"hooks: the name {name!r} is taken", training, tmp_path / "run", hook)


def test_a_state_without_a_name_that_no_checkpoint_would_hold_is_refused(tmp_path: Path) -> None:
    hook = Counter()
    hook.name = ""
    told = "hooks: Counter has a state_dict, give it a name to be saved under"
    refused(ValueError, told, training, tmp_path / "run", hook)
