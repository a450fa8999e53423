"""Worker processes that hold simulators: shared arrays, short messages, and what happens if one fails."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Work = TypeVar("Work")

_CLOSE = b"c"
_DONE, _FAILED, _HOPELESS = b"+", b"!", b"x"
_PATIENCE = 5.0  # s in which a worker must end
_TO_BEGIN = 300.0  # s, as many simulators take a while
_FIRST_ANSWERS, _IN_VAIN = 100, 3  # a worker that fails within its first answers; how often in a row that may be
TIMEOUT = 60.0
"""Seconds in which a worker has to answer, else it is taken for hung."""


class WorkerFailed(RuntimeError):
    """A worker has failed, has died, or does not answer; the message is only the reason.

    Attributes:
        traceback: traceback of the worker, or an empty string.
    """

    def __init__(self, reason: str, traceback: str = "") -> None:
        super().__init__(reason)
        self.traceback = traceback


class WorkersFailed(WorkerFailed):
    """Workers fail repeatedly, so replacing them is useless; the message says which and why."""


class EnvironmentFailed(ValueError):
    """An environment's code cannot be used; the message is one line that names it and the fault.

    A worker with such an environment is not replaced.
    """


class EnvironmentRaised(RuntimeError):
    """An environment's own code has raised an error, the cause; the message is one line with its place in that code."""


class Shared(NamedTuple):
    """An array in memory shared by several processes, released with the last of them."""

    memory: Any
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def like(cls, array: NDArray[Any]) -> Shared:
        """Allocates memory for an array of this shape and type."""
        memory = multiprocessing.get_context("spawn").RawArray("b", max(array.nbytes, 1))
        return cls(memory, array.shape, array.dtype.str)

    def array(self) -> NDArray[Any]:
        """Returns the array itself."""
        size = int(np.prod(self.shape))
        return np.frombuffer(self.memory, self.dtype, size).reshape(self.shape)


def divided(count: int, parts: int) -> list[range]:
    """Divides the numbers below ``count`` among at most so many parts, as evenly as possible."""
    parts = max(1, min(parts, count))
    return [range(*ends) for ends in pairwise(count * part // parts for part in range(parts + 1))]


class Workers:
    """Spawned processes that hold simulators, each those of some rows of shared arrays.

    They run until they are closed, this object is garbage-collected, or the program ends. A worker that fails, dies, or
    does not answer in time is replaced; the first time causes a warning.

    Args:
        target: module-level function that a worker runs, and that calls :func:`serve`; its arguments are its end of a
            pipe, its rows and ``arguments``.
        rows: rows of each worker.
        name: what a row is, in the plural, for messages and the names of the processes.
        timeout: seconds in which a worker must answer.

    Attributes:
        failures: number of workers that have been replaced.

    Raises:
        WorkersFailed: a worker cannot begin.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        rows: Sequence[range],
        name: str,
        timeout: float = TIMEOUT,
    ) -> None:
        self.rows, self.timeout, self.failures = rows, timeout, 0
        self._target, self._arguments, self._name = target, arguments, name
        self._answers, self._in_vain = Counter[int](), Counter[int]()
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        # Also runs when this object is garbage-collected, and when the program ends.
        self.close = weakref.finalize(self, _stop, self._connections, self._processes)
        for worker in range(len(rows)):
            connection, process = self._start(worker)
            self._connections.append(connection)
            self._processes.append(process)
        for worker in range(len(rows)):
            self._await(worker)

    def exchange(self, messages: Mapping[int, bytes]) -> list[int]:
        """Sends messages to workers and waits until they have obeyed; returns those that failed and have been replaced.

        Raises:
            WorkersFailed: a worker fails again and again, or another one in its place would fail too.
            RuntimeError: the workers have been closed.
        """
        if not self._connections:
            raise RuntimeError("the workers of this world have ended")
        failed: dict[int, WorkerFailed] = {}
        try:
            for worker, message in messages.items():
                with suppress(OSError):  # of a worker that has died, which has no answer either
                    self._connections[worker].send_bytes(message)
            end = time.monotonic() + self.timeout
            for worker in messages:
                try:
                    self._receive(worker, end - time.monotonic())
                except WorkerFailed as error:
                    failed[worker] = error
            for worker, failure in failed.items():
                self._replace(worker, failure)
        except BaseException:  # Ctrl-C too: an answer left behind would be taken for that to the next message
            self.close()
            raise
        self._answers.update(messages.keys() - failed.keys())
        return list(failed)

    def _start(self, worker: int) -> tuple[Connection, Any]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments, name = (theirs, self.rows[worker], *self._arguments), f"{self._name}-{worker}"
        process = context.Process(target=self._target, args=arguments, name=name, daemon=True)
        process.start()
        theirs.close()  # otherwise the end of the worker would go unnoticed
        return ours, process

    def _await(self, worker: int) -> None:
        """Waits until a worker has begun."""
        try:
            self._receive(worker, max(_TO_BEGIN, self.timeout))
        except BaseException as error:
            self.close()
            if not isinstance(error, WorkerFailed):
                raise
            raise WorkersFailed(f"{self._named(worker)} cannot begin: {error}", error.traceback) from error

    def _receive(self, worker: int, seconds: float) -> None:
        """Waits for a worker's next answer; the first one reports that it has begun."""
        connection, process = self._connections[worker], self._processes[worker]
        try:
            if not connection.poll(max(seconds, 0.0)):
                raise WorkerFailed("the process does not answer")
            answer = connection.recv_bytes()
        except (EOFError, OSError) as error:
            process.join(_PATIENCE)
            raise WorkerFailed(f"the process has died (exit code {process.exitcode})") from error
        if answer[:1] in (_FAILED, _HOPELESS):
            reason, _, trace = answer[1:].decode(errors="replace").partition("\0")
            raise (WorkerFailed if answer[:1] == _FAILED else WorkersFailed)(reason, trace)

    def _replace(self, worker: int, error: WorkerFailed) -> None:
        text = f"{self._named(worker)}: {error}"
        early = self._answers.pop(worker, 0) < _FIRST_ANSWERS
        self._in_vain[worker] = self._in_vain[worker] + 1 if early else 0
        times = self._in_vain[worker]
        if isinstance(error, WorkersFailed) or times > _IN_VAIN:
            again = f"; it has failed {times} times in a row within its first {_FIRST_ANSWERS} answers"
            raise WorkersFailed(text + again * (times > _IN_VAIN), error.traceback) from error
        if not self.failures:
            text += "; it is replaced, its episodes are truncated, as after any further failure"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        self.failures += 1
        self._connections[worker].close()
        _kill(self._processes[worker])
        self._connections[worker], self._processes[worker] = self._start(worker)
        self._await(worker)

    def _named(self, worker: int) -> str:
        rows = self.rows[worker]
        return f"worker {worker} of {len(self.rows)} ({self._name} {rows[0]} to {rows[-1]})"


def _stop(connections: list[Connection], processes: list[Any]) -> None:
    """Ends all workers: first by a request, then by force."""
    for connection in connections:
        with suppress(OSError):  # it may have ended already
            connection.send_bytes(_CLOSE)
        connection.close()
    for process in processes:
        process.join(_PATIENCE)
        _kill(process)
    connections.clear()
    processes.clear()


def _kill(process: Any) -> None:
    if process.is_alive():
        process.kill()
        process.join()
    process.close()


def serve(
    connection: Connection,
    build: Callable[[], Work],
    obey: Callable[[Work, bytes], None],
    end: Callable[[Work], None] = lambda work: None,
) -> None:
    """Runs a worker: builds an object, then answers messages until the other side closes.

    Args:
        connection: the worker's end of the pipe.
        build: function that builds the worker's object.
        obey: function that does what a message says.
        end: function called with the object before the worker ends, also after an error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the workers
    try:
        work = build()
        try:
            connection.send_bytes(_DONE)
            while (message := connection.recv_bytes()) != _CLOSE:
                obey(work, message)
                connection.send_bytes(_DONE)
        finally:
            end(work)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the parent has ended
    except (Exception, SystemExit) as error:
        trace = "".join(traceback.format_exception(error))
        hopeless = isinstance(error, EnvironmentFailed | SystemExit)
        failure = f"{type(error).__name__}: {error} ({place_of(error)})"
        reason = str(error) if isinstance(error, EnvironmentFailed | EnvironmentRaised) else failure
        connection.send_bytes((_HOPELESS if hopeless else _FAILED) + f"{reason}\0{trace}".encode())


def place_of(error: BaseException) -> str:
    """Returns file and line where an error was raised, or where a ``sys.exit`` that a library replaced was called."""
    places = list(traceback.walk_tb(error.__traceback__))
    replacement = getattr(sys.exit, "__code__", None)  # of wandb, for example
    frame, line = next((place for place in reversed(places) if place[0].f_code is not replacement), places[-1])
    return f"{os.path.basename(frame.f_code.co_filename)}:{line}"
