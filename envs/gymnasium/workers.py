"""Environments in other processes. They share the arrays; a message of a few bytes says what to do with them."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import traceback
import weakref
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from ..spaces import Array
from .making import Recipe
from .simulators import Arrays, LocalSimulators

_STEP, _RESET, _RENDER, _CLOSE = b"s", b"r", b"p", b"c"
_DONE, _FAILED = b"+", b"!"
_PATIENCE = 5.0  # s that a worker has to close its environments


class Shared(NamedTuple):
    """An array in memory that several processes see; it vanishes with the last of them."""

    memory: Any
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def like(cls, array: Array, context: Any) -> Shared:
        """Room for an array of this shape and type."""
        return cls(context.RawArray("b", max(array.nbytes, 1)), array.shape, array.dtype.str)

    def array(self) -> Array:
        """The array itself."""
        size = int(np.prod(self.shape))
        return np.frombuffer(self.memory, self.dtype, size).reshape(self.shape)


class Share(NamedTuple):
    """What one worker is given.

    Attributes:
        rows: of the arrays, its environments.
        parts: of :class:`Arrays`.
        leaves: how many of the parts are observations.
    """

    recipe: Recipe
    rows: range
    dtype: str
    parts: list[Shared]
    leaves: int


class WorkerSimulators:
    """Environments shared out among spawned processes.

    Args:
        recipe: of every environment.
        dtype: of floating-point observations and actions.
        arrays: shapes and types of what is shared.
        workers: number of processes, at most one for each environment.

    Attributes:
        arrays: in shared memory.

    Raises:
        RuntimeError: an environment failed, or a worker died; it says which.
    """

    def __init__(self, recipe: Recipe, dtype: str, arrays: Arrays, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        parts, leaves = [Shared.like(part, context) for part in arrays.parts()], len(arrays.observations)
        self.arrays = Arrays.of_parts([part.array() for part in parts], leaves)
        count = len(arrays.reward)
        starts = [count * k // workers for k in range(workers + 1)]
        self._rows = [range(first, stop) for first, stop in pairwise(starts)]
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        # Also when this object is collected, and when the program ends.
        self.close = weakref.finalize(self, _stop, self._connections, self._processes)
        for k, rows in enumerate(self._rows):
            ours, theirs = context.Pipe()
            share = Share(recipe, rows, dtype, parts, leaves)
            process = context.Process(target=_work, args=(theirs, share), name=f"environments-{k}", daemon=True)
            self._connections.append(ours)
            self._processes.append(process)
            process.start()
            theirs.close()  # or the end of the worker would go unnoticed here
        try:
            self._collect(range(workers))
        except BaseException:
            self.close()
            raise

    def step(self) -> None:
        self._exchange(dict.fromkeys(range(len(self._rows)), _STEP))

    def reset(self, rows: Iterable[int], seeds: Iterable[int | None]) -> None:
        wanted = dict(zip(rows, seeds))
        chosen = {k: [row for row in part if row in wanted] for k, part in enumerate(self._rows)}
        self._exchange(
            {
                worker: _RESET + json.dumps([part, [wanted[row] for row in part]]).encode()
                for worker, part in chosen.items()
                if part
            }
        )

    def render(self) -> Any:
        header, _, pixels = self._exchange({0: _RENDER})[0].partition(b"\n")
        shape = json.loads(header)
        return np.frombuffer(pixels, np.uint8).reshape(shape).copy() if shape else None

    def _exchange(self, messages: dict[int, bytes]) -> list[bytes]:
        """Sends every worker its message and waits for all answers."""
        if not self._connections:
            raise RuntimeError("the workers of this world have ended")
        try:
            for worker, message in messages.items():
                self._send(worker, message)
            return self._collect(messages)
        except BaseException:  # Ctrl-C too: an answer left behind would be taken for that to the next message
            self.close()
            raise

    def _send(self, worker: int, message: bytes) -> None:
        try:
            self._connections[worker].send_bytes(message)
        except OSError as error:
            raise self._failure(worker, self._last_words(worker)) from error

    def _collect(self, workers: Iterable[int]) -> list[bytes]:
        answers = []
        for worker in workers:
            try:
                answer = self._connections[worker].recv_bytes()
            except (EOFError, OSError) as error:
                raise self._failure(worker, self._last_words(worker)) from error
            if answer[:1] == _FAILED:
                raise self._failure(worker, answer[1:].decode(errors="replace"))
            answers.append(answer[1:])
        return answers

    def _last_words(self, worker: int) -> str:
        process = self._processes[worker]
        process.join(_PATIENCE)
        return f"the process has died (exit code {process.exitcode})"

    def _failure(self, worker: int, reason: str) -> RuntimeError:
        rows, count = self._rows[worker], len(self._rows)
        return RuntimeError(f"worker {worker} of {count} (environments {rows[0]} to {rows[-1]}): {reason}")


def _stop(connections: list[Connection], processes: list[Any]) -> None:
    """Ends all workers: asked first, then made to."""
    for connection in connections:
        with suppress(OSError):  # it may have gone already
            connection.send_bytes(_CLOSE)
        connection.close()
    for process in processes:
        if process.pid is None:  # never started
            continue
        process.join(_PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()
    connections.clear()
    processes.clear()


def _work(connection: Connection, share: Share) -> None:
    """The life of a worker: environments are made, then messages obeyed until the other side closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the workers
    try:
        arrays = Arrays.of_parts([part.array() for part in share.parts], share.leaves)
        simulators = LocalSimulators.make(share.recipe, share.rows, share.dtype, arrays)
        connection.send_bytes(_DONE)
        while (message := connection.recv_bytes()) != _CLOSE:
            connection.send_bytes(_DONE + _obey(simulators, message))
        simulators.close()
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the parent has gone
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        connection.send_bytes(_FAILED + f"{type(error).__name__}: {error} ({where})".encode())


def _obey(simulators: LocalSimulators, message: bytes) -> bytes:
    if message == _STEP:
        simulators.step()
        return b""
    if message[:1] == _RESET:
        simulators.reset(*json.loads(message[1:]))
        return b""
    picture = simulators.render()
    if not isinstance(picture, np.ndarray):
        return b"null\n"
    return json.dumps(picture.shape).encode() + b"\n" + np.ascontiguousarray(picture, np.uint8).tobytes()
