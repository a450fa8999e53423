"""Measures a run: its frames and time, the machine, and means of episodes and learning between two log lines."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.data.flatten import STAYS
from rlstack.data.graphs import Recorded
from rlstack.envs.foundation.tensors import looks_are_free
from rlstack.evaluation.statistics import wilson_interval

from .hooks import Hook, Training

EPISODE = ("next", "episode")
_SECONDS = "time/seconds"
COLLECTING, LEARNING, EVALUATING = (f"time/{use}_seconds" for use in ("collecting", "learning", "evaluating"))
_BY_THEMSELVES = ("success", "level")
"""Statistics that are logged with more than their mean, or under another name."""

_MEGABYTE = 1e6
_SPANS = 64  # measured on a GPU before they are added up
_EVERY = 0.5  # s; NVML itself averages over a sixth of a second to a second


class Monitor(Hook):
    """Accumulates episode statistics, and keeps the learner's latest metrics; :meth:`flush` returns both."""

    name = "monitor"

    def __init__(self, records: bool = True) -> None:
        self._records = records
        # Values stay on their device: reading a number from a GPU waits for it.
        self._names: list[str] = []
        self._sums: Tensor | None = None  # of episodes, and of their statistics by name
        self._learned: dict[str, Tensor | float] = {}
        self._add: Callable[..., Tensor] | None = None

    def on_batch(self, training: Training, batch: TensorDictBase, metrics: Mapping[str, Any]) -> None:
        self.observe(batch, metrics)

    def on_progress(self, training: Training) -> Mapping[str, Any]:
        return self.metrics()

    def on_log(self, training: Training) -> Mapping[str, Any]:
        return self.flush(training.ranks.everyone)

    def observe(self, batch: TensorDictBase, metrics: Mapping[str, Tensor | float]) -> None:
        """Adds a collector batch ``[W, T]`` and the metrics that ``learn`` returned."""
        self._learned.update(metrics)
        episode = batch.get(EPISODE, None)
        if episode is None:
            return
        done = batch.get(("next", "done"))
        if self._add is None:
            recorded = Recorded(_added, "summing up episodes", (), done.device, lent=True)
            self._add = recorded if self._records else _added
        self._names = list(episode.keys())
        if self._sums is None:
            self._sums = torch.zeros(len(self._names) + 1, dtype=torch.float64, device=done.device)
        self._sums = self._add(self._sums.to(done.device), episode, done)

    def flush(self, everyone: Callable[[Any], list[Any]] = lambda state: [state]) -> dict[str, float]:
        """Returns :meth:`metrics` and resets the statistics.

        Args:
            everyone: gathers the states of all processes that learn together, given this one's.
        """
        first, *others = everyone(self.state_dict())
        for name in first["learned"]:
            first["learned"][name] += sum(state["learned"][name] for state in others)
            first["learned"][name] /= len(others) + 1
        for name in first["sums"]:
            first["sums"][name] += sum(state["sums"][name] for state in others)
        first["episodes"] += sum(state["episodes"] for state in others)
        if self._sums is not None:
            self._sums.zero_()
        return _means(first)

    def metrics(self) -> dict[str, float]:
        """Returns ``train/<statistic>``, means of the episodes since the last flush, and the learner's metrics."""
        return _means(self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Returns the statistics accumulated so far."""
        episodes, *sums = [0.0] if self._sums is None else self._sums.tolist()
        learned = {name: float(value) for name, value in self._learned.items()}
        return {"sums": dict(zip(self._names, sums)), "episodes": int(episodes), "learned": learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self._names, self._learned = list(state["sums"]), dict(state["learned"])
        numbers = [float(state["episodes"]), *state["sums"].values()]
        self._sums = torch.tensor(numbers, dtype=torch.float64) if state["sums"] else None


def _added(sums: Tensor, episode: TensorDictBase, done: Tensor) -> Tensor:
    """Adds the number of episodes that ended in a batch ``[W, T]``, and each of their statistics, to their sums."""
    ended = done[..., 0]
    parts = [ended.sum().double()]
    for value in episode.values():
        going_on = ~ended.view(*ended.shape, *[1] * (value.dim() - ended.dim()))
        parts.append(value.double().masked_fill(going_on, 0).sum())
    return sums.add_(torch.stack(parts))


def _means(state: dict[str, Any]) -> dict[str, float]:
    metrics, sums, count = dict(state["learned"]), state["sums"], state["episodes"]
    if count:
        metrics["train/episodes"] = float(count)
        means = {name: total / count for name, total in sums.items() if name not in _BY_THEMSELVES}
        metrics |= {f"train/{name}": mean for name, mean in means.items()}
        if "success" in sums:
            successes = round(sums["success"])
            metrics["train/success"] = successes / count
            metrics["train/success_low"], metrics["train/success_high"] = wilson_interval(successes, count)
        if "level" in sums:
            metrics["curriculum/level"] = sums["level"] / count
    return metrics


def count_frames(batch: TensorDictBase, sequences: TensorDictBase, unit: str) -> int | Tensor:
    """Returns the frames in a batch: decisions of active agents, or steps of worlds (see ``CollectorConfig.count``).

    A number of decisions that a GPU counts stays there, as a tensor (0-d).
    """
    if unit == "env_steps" or sequences.get(STAYS, None) is None:  # no agent can leave: every entry counts
        return batch.numel()
    active = sequences.get("active")
    count = torch.count_nonzero(active)
    return int(count) if looks_are_free(active.device) else count


class Clock:
    """Wall-clock and CPU time of a run, which may have begun in an earlier process.

    Attributes:
        total: seconds of the whole run at the last reading: wall-clock time, CPU time of all threads, and wall-clock
            time of collecting, learning and evaluations.
        runs: number of runs that take turns in this process; each has an equal part of its CPU time.

    Args:
        gpu: whether collecting and learning are measured on the GPU, which the host runs ahead of.
    """

    def __init__(self, gpu: bool = False) -> None:
        self.total = dict.fromkeys((_SECONDS, "time/cpu_seconds", COLLECTING, LEARNING, EVALUATING), 0.0)
        self.runs = 1
        self._gpu, self._spans = gpu, deque[tuple[str, torch.cuda.Event, torch.cuda.Event]]()
        self._unused: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.start(0)

    def start(self, frames: int) -> None:
        """Starts the clock of this process at ``frames`` frames."""
        self._before, self._frames = dict(self.total), frames
        self._wall, self._cpu = time.monotonic(), time.process_time()

    @contextmanager
    def spending(self, use: str) -> Iterator[None]:
        """A context whose time is added to an entry of :attr:`total`, such as ``time/learning_seconds``."""
        if self._gpu and use != EVALUATING:  # an evaluation waits for the GPU
            if len(self._spans) > _SPANS:
                self.read()
            if not self._unused:
                self._unused.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
            began, ended = self._unused.pop()
            began.record()
            yield
            ended.record()
            self._spans.append((use, began, ended))
            return
        since = time.monotonic()
        try:
            yield
        finally:
            self.total[use] += time.monotonic() - since

    def learning(self, runs: int = 1) -> float:
        """Returns the wall-clock seconds of the whole run without evaluations; the share of one of several ``runs``."""
        return self.read()[_SECONDS] / runs - self.total[EVALUATING]

    def rate(self, frames: int) -> float:
        """Returns frames per second of this process, without the time of evaluations."""
        before = self._before[_SECONDS] - self._before[EVALUATING]
        return (frames - self._frames) / max(self.learning() - before, 1e-9)

    def read(self) -> dict[str, float]:
        """Updates and returns :attr:`total`."""
        self.total[_SECONDS] = self._before[_SECONDS] + max(time.monotonic() - self._wall, 1e-9)
        cpu = (time.process_time() - self._cpu) / self.runs
        self.total["time/cpu_seconds"] = self._before["time/cpu_seconds"] + cpu
        while self._spans and self._spans[0][2].query():  # passed by the GPU; this does not wait for it
            use, began, ended = self._spans.popleft()
            self.total[use] += began.elapsed_time(ended) / 1000
            self._unused.append((began, ended))
        return self.total


def is_due(every: float, previous: int, now: int, last: int) -> bool:
    """Returns whether a multiple of ``every`` frames lies between two counts; True at the end of the run."""
    return now >= last or now // every > previous // every


# -- the machine -----------------------------------------------------------------------------------------------------


class Hardware(Hook):
    """Adds use of the CPU, RAM of the process, and utilisation and memory of the GPU to log lines.

    A thread samples the GPU twice a second through NVML (package ``nvidia-ml-py``, extra ``gpu``) if it is installed.

    Args:
        device: device of the learner.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._gpu = GpuWatch(torch.device(device))
        self._frames, self._since = 0, 0.0
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def on_start(self, training: Training) -> None:
        self._frames, self._since = training.frames, training.clock.learning()
        self._gpu.start()

    def on_log(self, training: Training) -> Mapping[str, float]:
        return self.read(training.frames, training.clock.learning(), training.worker_failures)

    def close(self) -> None:
        self._gpu.stop()

    def read(self, frames: int, now: float, worker_failures: int = 0) -> dict[str, float]:
        """Returns metrics ``system/...`` since the last call, at ``now`` seconds of collecting and learning.

        These are ``frames_per_second``, without the time of evaluations; ``cpu_percent``, the time of all threads of
        this process in percent of one core's; ``memory_mb`` of the process (10^6 bytes); for a GPU the mean, least and
        greatest ``gpu_percent`` of time in use, and ``gpu_memory_mb``; and, after the first, ``worker_restarts``, the
        number of processes with worlds that have been replaced.
        """
        rate = (frames - self._frames) / max(now - self._since, 1e-9)
        self._frames, self._since = frames, now
        (wall, cpu), (self._wall, self._cpu) = (self._wall, self._cpu), (time.monotonic(), time.process_time())
        metrics = {"system/frames_per_second": rate, "system/memory_mb": resident_bytes() / _MEGABYTE}
        metrics["system/cpu_percent"] = 100 * (self._cpu - cpu) / max(self._wall - wall, 1e-9)
        if worker_failures:
            metrics["system/worker_restarts"] = float(worker_failures)
        return metrics | {f"system/{name}": value for name, value in self._gpu.read().items()}


class GpuWatch:
    """Samples utilisation and memory of a GPU; does nothing for a CPU.

    Attributes:
        sees_utilisation: whether NVML answers.
    """

    def __init__(self, device: torch.device, every: float = _EVERY) -> None:
        self._device, self._every = device, every
        self._busy: list[float] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.sees_utilisation = False
        with suppress(Exception):  # package, driver and device each fail with errors of their own
            self.sees_utilisation = device.type == "cuda" and min(self._look()) >= 0

    def start(self) -> None:
        """Begins to sample, in a thread."""
        if self.sees_utilisation and self._thread is None:
            self._over.clear()
            self._thread = threading.Thread(target=self._ask, name="gpu-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            self._thread = None

    def read(self) -> dict[str, float]:
        """Returns ``gpu_percent``, ``gpu_percent_low`` and ``gpu_percent_high`` since the last call, if NVML answers.

        ``gpu_memory_mb`` counts all programs with NVML, otherwise this one.
        """
        if self._device.type != "cuda":
            return {}
        if not self.sees_utilisation:
            return {"gpu_memory_mb": torch.cuda.memory_reserved(self._device) / _MEGABYTE}
        (now, memory), busy = self._look(), self._busy
        self._busy, busy = [], busy or [now]
        ends = {"gpu_percent": sum(busy) / len(busy), "gpu_percent_low": min(busy), "gpu_percent_high": max(busy)}
        return ends | {"gpu_memory_mb": memory / _MEGABYTE}

    def _look(self) -> tuple[float, float]:
        """Returns the percentage of recent time in which a kernel ran, and the bytes in use."""
        return float(torch.cuda.utilization(self._device)), float(torch.cuda.device_memory_used(self._device))

    def _ask(self) -> None:
        while not self._over.wait(self._every):
            self._busy.append(self._look()[0])


def resident_bytes() -> int:
    """Returns the RAM of this process, or its maximum so far if the system does not report the current value."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most
    return pages * os.sysconf("SC_PAGE_SIZE")
