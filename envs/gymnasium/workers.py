"""Environments in other processes. They share the arrays; a message of a few bytes says what to do with them."""

from __future__ import annotations

import json
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from ..processes import Processes, Shared, WorkerFailed, WorkersFailed, serve
from .making import Recipe
from .simulators import LocalSimulators, SimulatorArrays

TIMEOUT = 60.0
"""Seconds in which a worker has to answer, else it is taken for hung."""
_TO_BEGIN = 300.0  # s, as many simulators take a while
_FIRST_STEPS, _IN_VAIN = 100, 3  # a worker that fails within its first steps; how often in a row that may be
_STEP, _RESET, _RENDER = b"s", b"r", b"p"


class EnvironmentShare(NamedTuple):
    """The share of one worker.

    Attributes:
        rows: of the arrays, its environments.
        parts: of :class:`SimulatorArrays`.
        leaves: how many of the parts are observations.
        every_step: see :class:`LocalSimulators`.
    """

    recipe: Recipe
    rows: range
    dtype: str
    parts: list[Shared]
    leaves: int
    every_step: bool


class WorkerSimulators:
    """Environments shared out among spawned processes.

    A worker that fails, dies, or does not answer in time is replaced. The episodes of its environments end as
    truncated, with reward 0 and what was seen of them last; the next ones begin from seeds of their own. The first time
    there is a warning.

    Args:
        recipe: of every environment.
        dtype: of floating-point observations and actions.
        arrays: shapes and types of what is shared.
        workers: number of processes, at most one for each environment.
        timeout: seconds that a worker has for an answer.
        every_step: see :class:`LocalSimulators`.

    Attributes:
        arrays: in shared memory.
        failures: how many workers have been replaced.

    Raises:
        RuntimeError: a worker cannot begin.
        WorkersFailed: a worker fails again and again within its first steps, or its environment ends the process or
            is none of Gymnasium's; it says which, and why.
    """

    def __init__(
        self,
        recipe: Recipe,
        dtype: str,
        arrays: SimulatorArrays,
        workers: int,
        timeout: float = TIMEOUT,
        every_step: bool = False,
    ) -> None:
        parts, leaves = [Shared.like(part) for part in arrays.parts()], len(arrays.observations)
        self.arrays = SimulatorArrays.of_parts([part.array() for part in parts], leaves)
        count = len(arrays.reward)
        starts = [count * k // workers for k in range(workers + 1)]
        self._rows = [range(first, stop) for first, stop in pairwise(starts)]
        shares = [EnvironmentShare(recipe, rows, dtype, parts, leaves, every_step) for rows in self._rows]
        self.failures, self._timeout = 0, timeout
        self._lost: set[int] = set()  # rows whose next episode has no random numbers to go on with
        self._cut: set[int] = set()  # rows whose episode ends in the next step
        self._steps, self._in_vain = Counter[int](), Counter[int]()
        self._processes = Processes(_work, shares, "environments")
        self.close = self._processes.close
        for worker in range(len(shares)):
            self._await(worker)

    def step(self) -> None:
        self._end(self._cut)
        self._cut.clear()
        over = self.arrays.flags[0, :, 0].copy()
        for worker in self._exchange(dict.fromkeys(range(len(self._rows)), _STEP))[1]:
            self.arrays.reward[list(self._rows[worker])] = 0.0
            self._end(row for row in self._rows[worker] if not over[row])
        self._steps.update(range(len(self._rows)))

    def reset(self, rows: Iterable[int], seeds: Iterable[int | None]) -> None:
        wanted = {row: self._seed(row) if seed is None else seed for row, seed in zip(rows, seeds)}
        chosen = {k: [row for row in part if row in wanted] for k, part in enumerate(self._rows)}
        messages = {
            worker: _RESET + json.dumps([part, [wanted[row] for row in part]]).encode()
            for worker, part in chosen.items()
            if part
        }
        while messages:
            failed = self._exchange(messages)[1]
            for worker in failed:
                over = self.arrays.flags[0, :, 0]
                self._cut.update(row for row in self._rows[worker] if row not in wanted and not over[row])
            messages = {worker: messages[worker] for worker in failed}

    def render(self) -> Any:
        answers, failed = self._exchange({0: _RENDER})
        if failed:
            self._cut.update(self._rows[0])
            return None
        header, _, pixels = answers[0].partition(b"\n")
        kind, shape = json.loads(header)
        return np.frombuffer(pixels, kind).reshape(shape).copy() if kind else None

    def _end(self, rows: Iterable[int]) -> None:
        """Their episodes are truncated; the worker leaves environments alone that have ended."""
        for row in rows:
            self.arrays.flags[:, row, 0] = True, False, True

    def _seed(self, row: int) -> int | None:
        """The seed of the next episode: None where an environment continues with its own random numbers."""
        if row not in self._lost:
            return None
        self._lost.remove(row)
        return int(np.random.SeedSequence((self.failures, row)).generate_state(1)[0] >> 1)

    def _exchange(self, messages: dict[int, bytes]) -> tuple[dict[int, bytes], list[int]]:
        """Sends every worker its message; the answers, and the workers that had none and have been replaced."""
        if not len(self._processes):
            raise RuntimeError("the workers of this world have ended")
        failed: dict[int, WorkerFailed] = {}
        try:
            for worker, message in messages.items():
                try:
                    self._processes.send(worker, message)
                except WorkerFailed as error:
                    failed[worker] = error
            answers = self._collect([worker for worker in messages if worker not in failed], failed)
            for worker, failure in failed.items():
                self._replace(worker, failure)
        except BaseException:  # Ctrl-C too: an answer left behind would be taken for that to the next message
            self.close()
            raise
        return answers, list(failed)

    def _collect(self, workers: Iterable[int], failed: dict[int, WorkerFailed]) -> dict[int, bytes]:
        """Their answers; those that have none go to ``failed``."""
        answers, end = {}, time.monotonic() + self._timeout
        for worker in workers:
            try:
                answers[worker] = self._processes.receive(worker, end - time.monotonic())
            except WorkerFailed as error:
                failed[worker] = error
        return answers

    def _replace(self, worker: int, error: WorkerFailed) -> None:
        if isinstance(error, WorkersFailed):
            raise WorkersFailed(f"{self._named(worker)}: {error}", error.traceback) from error
        early = self._steps.pop(worker, 0) < _FIRST_STEPS
        self._in_vain[worker] = self._in_vain[worker] + 1 if early else 0
        text = f"{self._named(worker)}: {error}"
        if self._in_vain[worker] > _IN_VAIN:
            times = f"it has failed {self._in_vain[worker]} times in a row within its first {_FIRST_STEPS} steps"
            raise WorkersFailed(f"{text}; {times}", error.traceback) from error
        if not self.failures:
            text += "; it is replaced, its episodes are truncated, as after any further failure"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        self.failures += 1
        self._lost.update(self._rows[worker])
        self._processes.restart(worker)
        self._await(worker)

    def _await(self, worker: int) -> None:
        """Waits until a worker has begun."""
        try:
            self._processes.receive(worker, max(_TO_BEGIN, self._timeout))
        except BaseException as error:
            self.close()
            if isinstance(error, WorkerFailed):
                raise WorkersFailed(f"{self._named(worker)}: {error}", error.traceback) from error
            raise

    def _named(self, worker: int) -> str:
        rows = self._rows[worker]
        return f"worker {worker} of {len(self._rows)} (environments {rows[0]} to {rows[-1]})"


def _work(connection: Connection, share: EnvironmentShare) -> None:
    """The main function of a worker."""

    def build() -> LocalSimulators:
        arrays = SimulatorArrays.of_parts([part.array() for part in share.parts], share.leaves)
        return LocalSimulators.make(share.recipe, share.rows, share.dtype, arrays, share.every_step)

    serve(connection, build, _obey, LocalSimulators.close)


def _obey(simulators: LocalSimulators, message: bytes) -> bytes:
    if message == _STEP:
        simulators.step()
        return b""
    if message[:1] == _RESET:
        simulators.reset(*json.loads(message[1:]))
        return b""
    picture = simulators.render()
    if not isinstance(picture, np.ndarray) or picture.dtype.hasobject:
        return b"[null, null]\n"
    return json.dumps([picture.dtype.str, picture.shape]).encode() + b"\n" + picture.tobytes()
