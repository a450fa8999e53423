"""Spawned worker processes with shared arrays and short messages."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Work = TypeVar("Work")

_CLOSE = b"c"
_DONE, _FAILED, _HOPELESS = b"+", b"!", b"x"
_PATIENCE = 5.0  # s in which a worker must end


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


class Processes:
    """Workers that run until they are closed, this object is garbage-collected, or the program ends.

    Args:
        target: module-level function of a pipe's end and a task that a worker runs, and that calls :func:`serve`.
        tasks: one task for each worker.
        name: name of the processes, to which a number is added.
    """

    def __init__(self, target: Callable[[Connection, Any], None], tasks: Sequence[Any], name: str) -> None:
        self._target, self._tasks, self._name = target, list(tasks), name
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        # Also runs when this object is garbage-collected, and when the program ends.
        self.close = weakref.finalize(self, _stop, self._connections, self._processes)
        for worker in range(len(self._tasks)):
            connection, process = self._start(worker)
            self._connections.append(connection)
            self._processes.append(process)

    def __len__(self) -> int:
        """Number of workers, 0 once they are closed."""
        return len(self._connections)

    def _start(self, worker: int) -> tuple[Connection, Any]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments, name = (theirs, self._tasks[worker]), f"{self._name}-{worker}"
        process = context.Process(target=self._target, args=arguments, name=name, daemon=True)
        process.start()
        theirs.close()  # otherwise the end of the worker would go unnoticed
        return ours, process

    def restart(self, worker: int) -> None:
        """Kills a worker and starts another in its place."""
        self._connections[worker].close()
        _kill(self._processes[worker])
        self._connections[worker], self._processes[worker] = self._start(worker)

    def send(self, worker: int, message: bytes) -> None:
        """Sends a worker a message; every message has one answer.

        Raises:
            WorkerFailed: the worker has died.
        """
        try:
            self._connections[worker].send_bytes(message)
        except OSError as error:
            raise WorkerFailed(self._last_words(worker)) from error

    def receive(self, worker: int, seconds: float | None = None) -> bytes:
        """Returns a worker's next answer; the first one reports that it has begun.

        Args:
            seconds: time to wait; None waits as long as the worker lives.

        Raises:
            WorkerFailed: the worker has died, has failed, or does not answer in time.
            WorkersFailed: the worker has failed, and another one in its place would fail too.
        """
        connection = self._connections[worker]
        try:
            if seconds is not None and not connection.poll(max(seconds, 0.0)):
                raise WorkerFailed("the process does not answer")
            answer = connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise WorkerFailed(self._last_words(worker)) from error
        if answer[:1] in (_FAILED, _HOPELESS):
            reason, _, trace = answer[1:].decode(errors="replace").partition("\0")
            raise (WorkerFailed if answer[:1] == _FAILED else WorkersFailed)(reason, trace)
        return answer[1:]

    def _last_words(self, worker: int) -> str:
        process = self._processes[worker]
        process.join(_PATIENCE)
        return f"the process has died (exit code {process.exitcode})"


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
    obey: Callable[[Work, bytes], bytes],
    end: Callable[[Work], None] = lambda work: None,
) -> None:
    """Runs a worker: builds an object, then answers messages until the other side closes.

    Args:
        connection: the worker's end of the pipe.
        build: function that builds the worker's object.
        obey: function that handles a message and returns the answer.
        end: function called with the object before the worker ends, also after an error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the workers
    try:
        work = build()
        try:
            connection.send_bytes(_DONE)
            while (message := connection.recv_bytes()) != _CLOSE:
                connection.send_bytes(_DONE + obey(work, message))
        finally:
            end(work)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the parent has ended
    except (Exception, SystemExit) as error:
        trace = "".join(traceback.format_exception(error))
        hopeless = isinstance(error, EnvironmentFailed | SystemExit)
        told = f"{type(error).__name__}: {error} ({place_of(error)})"
        reason = str(error) if isinstance(error, EnvironmentFailed | EnvironmentRaised) else told
        connection.send_bytes((_HOPELESS if hopeless else _FAILED) + f"{reason}\0{trace}".encode())


def place_of(error: BaseException) -> str:
    """Returns file and line where an error was raised, or where a ``sys.exit`` that a library replaced was called."""
    places = list(traceback.walk_tb(error.__traceback__))
    replacement = getattr(sys.exit, "__code__", None)  # of wandb, for example
    frame, line = next((place for place in reversed(places) if place[0].f_code is not replacement), places[-1])
    return f"{os.path.basename(frame.f_code.co_filename)}:{line}"
