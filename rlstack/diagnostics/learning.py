"""What an update of the networks costs, in parts, and what it would cost with other batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from rlstack.agents import Agent
from rlstack.agents.off_policy import OffPolicy
from rlstack.agents.on_policy import OnPolicy
from rlstack.agents.optimizer import Optimizer
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.training.monitor import count_frames

from .subject import Subject
from .threads import over_threads
from .timing import OTHER, Sections, repeat

PARTS = ("sample", "forward, loss", "backward", "clip", "optimiser", "targets", OTHER)
"""Of an update, in their order."""
_BESIDE = ("advantages", "memory")  # once for a batch of data
_PIECE = 4  # steps of an env between two looks at the clock
_LEAST_UPDATES, _MOST_CALLS = 20, 10_000
FACTORS = (0.25, 1, 4, 16)


class _Enough(Exception):
    """The time is over."""


class Lesson:
    """Data like those of the training, and a fresh agent to learn from them.

    Args:
        subject: whose agent and worlds.
    """

    def __init__(self, subject: Subject) -> None:
        self._clock = subject.clock
        env = subject.world()
        try:
            self.agent: Agent = subject.agent(env)
            batch = _gathered(subject, env, self.agent)
        finally:
            env.close(raise_if_closed=False)
        self.sequences = flatten_agents(batch, self.agent.interface.group)
        self.frames = subject.halfway
        self._new = count_frames(batch, self.sequences, subject.config.collector.count)
        self.batches: list[int] = []

    @property
    def row_size(self) -> int:
        """Samples in an entry of a batch: more than one where it is a sequence."""
        if isinstance(self.agent, OnPolicy):
            return self.agent.row_size
        recurrent = getattr(self.agent.config, "recurrent", None)
        return 1 if recurrent is None else recurrent.sequence_length

    def learn(self) -> None:
        """Learns from the data as if they were new."""
        self.frames += self._new
        self.agent.learn(self.sequences, self.frames)

    def prepare(self) -> None:
        """Learns until there has been an update."""
        for _ in range(_MOST_CALLS):
            try:
                with self.limited(0.0, least=1):
                    self.learn()
            except _Enough:
                return
            if self.agent.updates:
                return

    def learn_for(self, seconds: float, least: int = _LEAST_UPDATES) -> int:
        """Learns for so long; returns how many updates there have been."""
        before, begin = self.agent.updates, self._clock()
        try:
            with self.limited(begin + seconds, least):
                while self._clock() - begin < seconds or self.agent.updates - before < least:
                    self.learn()
        except _Enough:
            pass
        return self.agent.updates - before

    @contextmanager
    def limited(self, deadline: float, least: int) -> Iterator[None]:
        """In it an update that would begin after the deadline, and after so many others, does not."""
        name = "step" if isinstance(self.agent, OnPolicy) else "update"
        update: Callable[..., Any] = getattr(self.agent, name)
        count = 0

        def limited(batch: TensorDictBase, *options: Any) -> Any:
            nonlocal count
            if count >= least and self._clock() >= deadline:
                raise _Enough
            count += 1
            self.batches.append(len(batch))
            return update(batch, *options)

        vars(self.agent)[name] = limited
        try:
            yield
        finally:
            del vars(self.agent)[name]

    def update_of(self, factor: float) -> tuple[int, Callable[[], Any]] | None:
        """An update with a batch so many times as large, and its size; None for agents that cannot choose."""
        agent = self.agent
        if isinstance(agent, OnPolicy) and hasattr(agent.config, "minibatch_size"):
            with torch.no_grad():
                batch = agent.rollout(self.sequences)
            usual = min(agent.config.minibatch_size // agent.row_size, len(batch))
            update: Callable[..., Any] = agent.step
        elif isinstance(agent, OffPolicy):
            batch, update = agent.prepared(agent.sample()), agent.update
            usual = len(batch)
        else:
            return None
        size = int(factor * usual)
        if size < 2:
            return None
        part = batch[torch.arange(size, device=batch.device) % len(batch)]
        return size, lambda: update(part)


def _gathered(subject: Subject, env: EnvBase, agent: Agent) -> TensorDictBase:
    """A batch as the collector makes it; of slow worlds its first steps, repeated."""
    steps = subject.config.collector.steps_per_batch
    piece = min(_PIECE, steps)
    collector = make_collector(env, agent.policy(explore=True), piece)
    pieces, begin = list[TensorDictBase](), subject.clock()
    try:
        for batch in collector:
            pieces.append(batch)
            if len(pieces) * piece >= steps or subject.clock() - begin > subject.seconds / 2:
                break
    finally:
        collector.shutdown(close_env=False)
    rounds = -(-steps // (piece * len(pieces)))
    return torch.cat(pieces * rounds, -1)[..., :steps]


def measure_learning(subject: Subject) -> dict[str, Any]:
    """Milliseconds of an update and its parts, updates and samples per second, and a sweep over the batch size."""
    lesson = Lesson(subject)
    lesson.prepare()
    with Sections(subject.clock) as sections:
        watch_updates(sections, lesson.agent)
        lesson.batches.clear()
        sections.begin()
        updates = lesson.learn_for(subject.seconds)
        seconds = sections.end()
    parts = {name: 1e3 * seconds.get(name, 0.0) / updates for name in PARTS if name in seconds}
    took = sum(parts.values())
    found: dict[str, Any] = {
        "updates": updates,
        "batch": round(lesson.row_size * sum(lesson.batches) / len(lesson.batches)),
        "ms_per_update": took,
        "updates_per_second": 1e3 / took,
        "parts_ms": parts,
        "beside_ms": {name: 1e3 * seconds[name] / sections.calls[name] for name in _BESIDE if name in seconds},
    }
    found["samples_per_second"] = found["batch"] * found["updates_per_second"]
    found["threads"] = over_threads(subject, lambda time: _rate(subject, lesson, time))
    return {**found, "sweep": _sweep(subject, lesson)}


def watch_updates(sections: Sections, agent: Agent) -> None:
    """Gives the parts of an update, and what is done beside updates, to sections."""
    sections.watch(Optimizer, "_forward", "forward, loss", whole=True)
    sections.watch(torch.Tensor, "backward", "backward", whole=True)
    sections.watch_named("rlstack.agents.optimizer:clip", "clip")
    sections.watch(Optimizer, "_step", "optimiser")
    own = {"remember": "memory", "rollout": "advantages", "sample": "sample", "prepared": "sample"}
    for name, section in {**own, "_update_targets": "targets"}.items():
        if hasattr(agent, name):
            sections.watch(agent, name, section)


def _rate(subject: Subject, lesson: Lesson, seconds: float) -> float:
    begin = subject.clock()
    updates = lesson.learn_for(seconds, least=3)
    return updates / (subject.clock() - begin)


def _sweep(subject: Subject, lesson: Lesson) -> list[dict[str, Any]]:
    points = []
    for factor in FACTORS:
        found = lesson.update_of(factor)
        if found is None:
            continue
        size, update = found
        durations = repeat(update, subject.seconds / len(FACTORS), subject.clock)
        took, samples = sum(durations) / len(durations), size * lesson.row_size
        points.append({"batch": samples, "ms_per_update": 1e3 * took, "samples_per_second": samples / took})
        if factor >= 1 and 4 * took > subject.seconds:
            break
    return points
