"""Runs rows in other processes, side by side or one after the other."""

from __future__ import annotations

import gc
import importlib
import math
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any, Literal

Status = Literal["passed", "failed", "left out", "not run"]
Attempt = tuple[Status, str, Mapping[str, Any], bool]
"""Status, line and figures of a row, and whether its process may be broken."""


@dataclass(frozen=True)
class Setting:
    """The setting of every row.

    Attributes:
        device: torch's name of the device.
        quick: whether to use smaller sizes and fewer repetitions.
    """

    device: str
    quick: bool


@dataclass(frozen=True)
class Row:
    """A check or a measurement.

    Attributes:
        name: name in the table.
        group: group of the row; a failed row of ``correctness`` fails the command, and one of ``speed`` runs alone.
        function: ``package.module:function`` of a setting and the arguments, which returns a :class:`Found`.
        arguments: arguments by name.
        limit: time limit in seconds.
        seconds: about how long it takes; it does not begin if less time is left.
    """

    name: str
    group: Literal["correctness", "speed", "machine", "compiling"]
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    limit: float = 60.0
    seconds: float = 15.0

    def command(self) -> str:
        """Returns the command that runs this row alone."""
        minutes = f" minutes={math.ceil(self.limit / 60) + 1}" if self.limit > 240 else ""
        return f'python -m experiments.gpu "only={self.name}"{minutes}'


@dataclass(frozen=True)
class Found:
    """The result of a passed row: a line for the table, and figures for the file."""

    line: str
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a row.

    Attributes:
        line: the result, or the reason of a failure, in one line.
        seconds: wall-clock time.
    """

    name: str
    group: str
    status: Status
    line: str
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)


class Mismatch(Exception):
    """A check has failed; the message is one line."""


class LeftOut(Exception):
    """A requirement of a row is missing; the message is one line."""


class NoDevice(Exception):
    """The device cannot be used; the message is one line."""


class Runner:
    """Runs rows in worker processes, each of which is replaced after a row that may have left it broken.

    After a failed assertion on a GPU nothing works in that process, and a row that hangs cannot be stopped otherwise.
    The workers' output, including tracebacks, goes to a file.

    Args:
        setting: the setting of the rows.
        seconds: time limit for all rows together.
        log: file for the workers' output.
        prepare: ``package.module:function`` of the setting that a new worker calls first.

    Attributes:
        end: end of the time limit, by ``time.monotonic``.
    """

    def __init__(self, setting: Setting, seconds: float, log: Path, prepare: str | None = None) -> None:
        self.end = time.monotonic() + seconds
        self._log, self._given = log, (setting, prepare, str(log))
        self._workers: list[_Worker] = []

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []

    def run(
        self, rows: Sequence[Row], processes: int = 1, over: Callable[[Outcome], None] = lambda outcome: None
    ) -> Iterator[Outcome]:
        """Yields the outcome of each row, in their order.

        Args:
            rows: the rows.
            processes: number of rows that run side by side. A process that runs alone stays for the next call.
            over: function of every outcome as soon as there is one.
        """
        count = max(min(processes, len(rows)), 1)
        self._workers += [_Worker(self._given) for _ in range(count - len(self._workers))]
        free: SimpleQueue[_Worker] = SimpleQueue()
        one_at_a_time = Lock()
        for worker in self._workers:
            free.put(worker)

        def one(row: Row) -> Outcome:
            worker = free.get()
            try:
                outcome = self._outcome(worker, row)
            finally:
                free.put(worker)
            with one_at_a_time:
                over(outcome)
            return outcome

        with ThreadPoolExecutor(count) as pool:
            futures = [pool.submit(one, row) for row in rows]
            try:
                for future in futures:
                    yield future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        if count > 1:
            self.__exit__()

    def _outcome(self, worker: _Worker, row: Row) -> Outcome:
        def of(status: Status, line: str, figures: Mapping[str, Any] | None = None) -> Outcome:
            took = time.monotonic() - began
            return Outcome(row.name, row.group, status, " ".join(line.split()), took, figures or {})

        began = time.monotonic()
        left = self.end - began
        if left < row.seconds:
            return of("not run", f"{max(left, 0):.0f} s were left, it takes {row.seconds:.0f}: {row.command()}")
        late = f"cut short, the time for all was over: {row.command()}"
        try:
            if not worker.ready(left):
                worker.end()
                return of("not run", late)
            began = time.monotonic()
            limit = min(row.limit, self.end - began)
            told = worker.attempt(row, max(limit, 0.0))
        except (EOFError, OSError):
            return of("failed", f"its process died (exit status {worker.end()}), see {self._log.name}")
        if told is None:
            worker.end()
            if limit < row.limit:
                return of("not run", late)
            return of("failed", f"not over after {row.limit:.0f} s")
        status, line, figures, broken = told
        if broken:
            worker.end()
        return of(status, line, figures)


class _Worker:
    """A process that runs rows; it is started when it is needed, and again once it has ended."""

    def __init__(self, given: tuple[Setting, str | None, str]) -> None:
        self._given = given
        self._running: tuple[Any, Connection] | None = None

    def ready(self, seconds: float) -> bool:
        """Waits for the process to be ready for a row; returns whether it is, after that many seconds at most."""
        if self._running is not None:
            return True
        context = multiprocessing.get_context("spawn")
        connection, other = context.Pipe()
        process = context.Process(target=_serve, args=(other, *self._given))
        process.start()
        other.close()
        self._running = process, connection
        return connection.poll(seconds) and bool(connection.recv())  # raises EOFError if the process has died

    def attempt(self, row: Row, seconds: float) -> Attempt | None:
        """Runs a row; returns None if it takes longer."""
        assert self._running is not None
        _, connection = self._running
        connection.send(row)
        return connection.recv() if connection.poll(seconds) else None

    def end(self) -> int | None:
        """Ends the process; returns its exit status."""
        if self._running is None:
            return None
        process, connection = self._running
        self._running = None
        connection.close()
        process.join(1.0)  # closing the connection ends a worker that waits for a row
        if process.is_alive():
            process.kill()
            process.join(10.0)  # a driver may hold even a killed process
        code: int | None = process.exitcode
        return code


def _serve(connection: Connection, setting: Setting, prepare: str | None, log: str) -> None:
    """Runs a worker: prepares it, then runs rows until the connection closes."""
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if prepare is not None:
        _function(prepare)(setting)
    connection.send(True)
    while True:
        try:
            row = connection.recv()
        except (EOFError, OSError):
            return
        print(f"--- {row.name}", flush=True)
        connection.send(attempt(row, setting))


def attempt(row: Row, setting: Setting) -> Attempt:
    """Runs a row in this process."""
    try:
        found = _function(row.function)(setting, **row.arguments)
        _settle()
    except LeftOut as reason:
        return "left out", str(reason), {}, False
    except (Mismatch, NoDevice) as reason:
        return "failed", str(reason), {}, False
    except Exception as error:
        traceback.print_exc()
        return "failed", _brief(error), {}, True
    return "passed", found.line, found.figures, False


def _brief(error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:300]


def _settle() -> None:
    """Waits for the GPU, so that its errors belong to this row and not to the next, and frees its memory."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def fails(outcomes: Sequence[Outcome]) -> bool:
    """Whether a check failed."""
    return any(outcome.group == "correctness" and outcome.status == "failed" for outcome in outcomes)
