"""Environments in other processes. They share the arrays; a message of a few bytes says what to do with them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from ..processes import Processes, Shared, WorkerFailed, serve
from .making import Recipe
from .simulators import Arrays, LocalSimulators

_STEP, _RESET, _RENDER = b"s", b"r", b"p"


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
        parts, leaves = [Shared.like(part) for part in arrays.parts()], len(arrays.observations)
        self.arrays = Arrays.of_parts([part.array() for part in parts], leaves)
        count = len(arrays.reward)
        starts = [count * k // workers for k in range(workers + 1)]
        self._rows = [range(first, stop) for first, stop in pairwise(starts)]
        shares = [Share(recipe, rows, dtype, parts, leaves) for rows in self._rows]
        self._processes = Processes(_work, shares, "environments")
        self.close = self._processes.close
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
        if not len(self._processes):
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
            self._processes.send(worker, message)
        except WorkerFailed as error:
            raise self._failure(worker, error) from error

    def _collect(self, workers: Iterable[int]) -> list[bytes]:
        answers = []
        for worker in workers:
            try:
                answers.append(self._processes.receive(worker))
            except WorkerFailed as error:
                raise self._failure(worker, error) from error
        return answers

    def _failure(self, worker: int, reason: WorkerFailed) -> RuntimeError:
        rows, count = self._rows[worker], len(self._rows)
        return RuntimeError(f"worker {worker} of {count} (environments {rows[0]} to {rows[-1]}): {reason}")


def _work(connection: Connection, share: Share) -> None:
    """What a worker runs."""

    def build() -> LocalSimulators:
        arrays = Arrays.of_parts([part.array() for part in share.parts], share.leaves)
        return LocalSimulators.make(share.recipe, share.rows, share.dtype, arrays)

    serve(connection, build, _obey, LocalSimulators.close)


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
