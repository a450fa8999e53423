"""Where the time of the training loop goes: the loop itself runs for a while, watched."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from rlstack.runs.run_directory import RunDirectory
from rlstack.training.loggers import MetricLogger
from rlstack.training.loop import Training
from rlstack.training.progress import Progress

from .subject import Subject
from .timing import OTHER, Sections

PARTS = ("simulate", "observe", "reset", "opponents", "policy", "store", "learn", "log", OTHER)
"""Of an iteration, in their order."""
MEANING = {
    "simulate": "steps of the worlds",
    "observe": "making what is seen of their state",
    "reset": "new episodes",
    "opponents": "the other side's players",
    "policy": "choosing actions",
    "store": "stacking steps, folding agents, replay memory",
    "learn": "advantages and updates",
    "log": "statistics, metrics, progress",
    OTHER: "everything else",
}
_WORLD = {
    **{"_advance": "simulate", "_step": "simulate", "_take": "simulate"},
    **{"_restart": "reset", "_reset": "reset", "_restart_rows": "reset"},
}


_PATIENCE = 60.0  # s, until an agent has learned
Iteration = tuple[float, int, dict[str, float]]
"""Seconds, frames, and seconds by part."""


class _Enough(Exception):
    """The time is over."""


class WatchedTraining(Training):
    """A training that ends after some seconds, begins in the middle of its schedules, and neither evaluates nor saves.

    Args:
        subject: what is trained.
        folder: for what it leaves behind.
        sections: which its parts are given to; None leaves them alone.
    """

    def __init__(self, subject: Subject, folder: Path, sections: Sections | None) -> None:
        quiet = dataclasses.replace(subject.config.logger, wandb="disabled")
        imitation = dataclasses.replace(subject.config.imitation, expert=None, episodes=None, only=False, replay=False)
        config = dataclasses.replace(
            subject.config, logger=quiet, imitation=imitation, total_frames=max(subject.config.total_frames, 2**62)
        )
        super().__init__(config, RunDirectory(folder), subject.raw)
        self._subject, self._sections = subject, sections
        # Schedules keep the length of the run that is meant; only its end is put off.
        self.agent = subject.agent(self.env)
        self.frames = subject.halfway
        self.iterations: list[Iteration] = []
        if sections is not None:
            _watch(sections, self)

    def execute_for_a_while(self) -> None:
        """Runs the loop until its time is over."""
        with contextlib.suppress(_Enough), contextlib.redirect_stdout(io.StringIO()):
            self.execute()

    def evaluation_due(self, previous: int) -> bool:
        return False

    def save(self, best: bool = False) -> Any:
        return self.run.path

    def _batches(self, collector: Any) -> Iterator[TensorDictBase]:
        clock, spent = self._subject.clock, 0.0
        before, frames = self._began(), self.frames
        began = clock()
        for batch in super()._batches(collector):
            yield batch
            parts = {} if self._sections is None else self._sections.end()
            took = clock() - before
            is_late = clock() - began > _PATIENCE + 20 * self._subject.seconds
            if self.agent.updates or is_late:
                self.iterations.append((took, self.frames - frames, parts))
                spent += took
                if is_late or self._is_enough(spent):
                    raise _Enough
            before, frames = self._began(), self.frames

    def _began(self) -> float:
        if self._sections is not None:
            self._sections.begin()
        return self._subject.clock()

    def _is_enough(self, spent: float) -> bool:
        """The first iteration also warms up: it only counts if another one would take too long."""
        first = self.iterations[0][0]
        return spent - (first if len(self.iterations) > 1 else 0.0) >= self._subject.seconds


def _watch(sections: Sections, training: WatchedTraining) -> None:
    env: Any = training.env
    for name, section in _WORLD.items():
        if hasattr(type(env), name):
            sections.watch(env, name, section)
    sections.watch_named("rlstack.play.sides:Seats.act", "opponents", whole=True)
    agent: Any = training.agent
    make = agent.policy

    def policy(explore: bool) -> TensorDictModuleBase:
        made = make(explore)
        for name in ("forward", "entries"):
            if hasattr(type(made), name):
                sections.watch(made, name, "policy", whole=True)
        return made

    vars(agent)["policy"] = policy
    sections.watch(agent, "learn", "learn")
    if hasattr(agent, "remember"):
        sections.watch(agent, "remember", "store", whole=True)
    sections.watch_named("rlstack.training.loop:flatten_agents", "store")
    sections.watch_named("rlstack.data.collector:stack_steps", "store", whole=True)
    sections.watch_named("rlstack.data.collector:LeanCollector.rollout", "store")
    for name in ("observe", "metrics"):
        sections.watch(training.monitor, name, "log", whole=True)
    sections.watch(MetricLogger, "log", "log", whole=True)
    sections.watch(Progress, "update", "log", whole=True)


@contextlib.contextmanager
def watched(subject: Subject, sections: Sections | None) -> Iterator[WatchedTraining]:
    """A training in a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="rlstack-diagnose-", ignore_cleanup_errors=True) as folder:
        training = WatchedTraining(subject, Path(folder), sections)
        try:
            yield training
        finally:
            training.env.close(raise_if_closed=False)


def measure_iterations(subject: Subject) -> dict[str, Any]:
    """Frames per second of the training loop, evaluations aside, and the parts of an iteration in seconds."""
    with Sections(subject.clock) as sections:
        for name in subject.observing:  # before the worlds are built, which may keep the functions
            sections.watch_named(name, "observe")
        with watched(subject, sections) as training:
            training.execute_for_a_while()
    return {**summary(training.iterations), "observing_apart": bool(subject.observing)}


def summary(iterations: Sequence[Iteration]) -> dict[str, Any]:
    """Means over iterations of seconds, frames and parts, the first left out if there is another."""
    counted = iterations[1:] or iterations
    count, seconds = len(counted), sum(took for took, _, _ in counted)
    frames = sum(made for _, made, _ in counted)
    parts = {name: sum(parts.get(name, 0.0) for _, _, parts in counted) / count for name in PARTS}
    return {
        "iterations": count,
        "warmed_up": len(iterations) > 1,
        "seconds_per_iteration": seconds / count,
        "frames_per_iteration": frames / count,
        "frames_per_second": frames / seconds,
        "parts_seconds": {name: took for name, took in parts.items() if took},
    }
