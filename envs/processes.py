"""Spawned worker processes: arrays that they share with this one, and messages of a few bytes that say what to do."""

from __future__ import annotations

import multiprocessing
import os
import signal
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
_PATIENCE = 5.0  # s that a worker has to end


class WorkerFailed(RuntimeError):
    """A worker has failed, has died, or does not answer; the message is the reason alone.

    Attributes:
        traceback: the worker's own, empty where it has left none.
    """

    def __init__(self, reason: str, traceback: str = "") -> None:
        super().__init__(reason)
        self.traceback = traceback


class WorkersFailed(WorkerFailed):
    """Workers fail again and again, and there is no use in replacing them; the message says which and why."""


class EnvironmentFailed(ValueError):
    """An environment's code cannot be used as it is; the message is one line that names it and what is wrong.

    A worker whose environment fails so is not replaced.
    """


class Shared(NamedTuple):
    """An array in memory that several processes see; it vanishes with the last of them."""

    memory: Any
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def like(cls, array: NDArray[Any]) -> Shared:
        """Room for an array of this shape and type."""
        memory = multiprocessing.get_context("spawn").RawArray("b", max(array.nbytes, 1))
        return cls(memory, array.shape, array.dtype.str)

    def array(self) -> NDArray[Any]:
        """The array itself."""
        size = int(np.prod(self.shape))
        return np.frombuffer(self.memory, self.dtype, size).reshape(self.shape)


class Processes:
    """Workers that live until they are closed, this object is collected, or the program ends.

    Args:
        target: what a worker runs: a module's function of a pipe's end and a task, which calls :func:`serve`.
        tasks: one for each worker.
        name: of the processes; a number follows.
    """

    def __init__(self, target: Callable[[Connection, Any], None], tasks: Sequence[Any], name: str) -> None:
        self._target, self._tasks, self._name = target, list(tasks), name
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        # Also when this object is collected, and when the program ends.
        self.close = weakref.finalize(self, _stop, self._connections, self._processes)
        for worker in range(len(self._tasks)):
            connection, process = self._start(worker)
            self._connections.append(connection)
            self._processes.append(process)

    def __len__(self) -> int:
        """Their number, 0 once they are closed."""
        return len(self._connections)

    def _start(self, worker: int) -> tuple[Connection, Any]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments, name = (theirs, self._tasks[worker]), f"{self._name}-{worker}"
        process = context.Process(target=self._target, args=arguments, name=name, daemon=True)
        process.start()
        theirs.close()  # or the end of the worker would go unnoticed here
        return ours, process

    def restart(self, worker: int) -> None:
        """Ends a worker at once, whatever it does, and starts another in its place."""
        self._connections[worker].close()
        _kill(self._processes[worker])
        self._connections[worker], self._processes[worker] = self._start(worker)

    def send(self, worker: int, message: bytes) -> None:
        """Gives a worker something to do; every message has one answer.

        Raises:
            WorkerFailed: it has died.
        """
        try:
            self._connections[worker].send_bytes(message)
        except OSError as error:
            raise WorkerFailed(self._last_words(worker)) from error

    def receive(self, worker: int, seconds: float | None = None) -> bytes:
        """A worker's next answer; the first one says that it has begun.

        Args:
            seconds: to wait for it, None: as long as it lives.

        Raises:
            WorkerFailed: it has died, has failed, or does not answer in time.
            WorkersFailed: it has failed, and so would another one in its place.
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
    """Ends all workers: asked first, then made to."""
    for connection in connections:
        with suppress(OSError):  # it may have gone already
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
    """The life of a worker: something is built, then messages are obeyed until the other side closes.

    Args:
        connection: the worker's end of the pipe.
        build: what the worker works on.
        obey: does what a message says, and answers.
        end: is called before the worker ends in peace.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the workers
    try:
        work = build()
        connection.send_bytes(_DONE)
        while (message := connection.recv_bytes()) != _CLOSE:
            connection.send_bytes(_DONE + obey(work, message))
        end(work)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the parent has gone
    except (Exception, SystemExit) as error:
        trace = "".join(traceback.format_exception(error))
        hopeless = isinstance(error, EnvironmentFailed | SystemExit)
        reason = f"{type(error).__name__}: {error} ({place_of(error)})"
        connection.send_bytes((_HOPELESS if hopeless else _FAILED) + f"{reason}\0{trace}".encode())


def place_of(error: BaseException) -> str:
    """File and line where an error was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(place.filename)}:{place.lineno}"
