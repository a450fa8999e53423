"""Runs rows in processes of their own, side by side or one after the other."""

from __future__ import annotations

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
from threading import Lock
from typing import Any, Literal

Status = Literal["passed", "failed", "left out", "not run"]


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

    @property
    def fails(self) -> bool:
        """Whether it fails the command."""
        return self.group == "correctness" and self.status == "failed"


class Mismatch(Exception):
    """A check has failed; the message is one line."""


class LeftOut(Exception):
    """A requirement of a row is missing; the message is one line."""


class NoDevice(Exception):
    """The device cannot be used; the message is one line."""


class Runner:
    """Runs each row in a process of its own.

    After a failed assertion on a GPU nothing works in that process, and a row that hangs cannot be stopped otherwise.
    The processes are copies of one that has imported what they need. Their output, including tracebacks, goes to a
    file.

    Args:
        setting: the setting of the rows.
        seconds: time limit for all rows together.
        log: file for the processes' output.
        prepare: ``package.module:function`` of the setting that a process calls first; its module is imported once.

    Attributes:
        end: end of the time limit, by ``time.monotonic``.
    """

    def __init__(self, setting: Setting, seconds: float, log: Path, prepare: str | None = None) -> None:
        self.end = time.monotonic() + seconds
        self._log, self._given = log, (setting, prepare, str(log))
        self._context = multiprocessing.get_context("forkserver")
        # Asking the driver whether there is a GPU, as an import may, would leave none to the copies.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        if prepare is not None:
            self._context.set_forkserver_preload([prepare.partition(":")[0]])

    def run(
        self, rows: Sequence[Row], processes: int = 1, over: Callable[[Outcome], None] = lambda outcome: None
    ) -> Iterator[Outcome]:
        """Yields the outcome of each row, in their order.

        Args:
            rows: the rows.
            processes: number of rows that run side by side.
            over: function of every outcome as soon as there is one.
        """
        one_at_a_time = Lock()

        def one(row: Row) -> Outcome:
            outcome = self._outcome(row)
            with one_at_a_time:
                over(outcome)
            return outcome

        with ThreadPoolExecutor(processes) as pool:
            yield from pool.map(one, rows)

    def _outcome(self, row: Row) -> Outcome:
        def of(status: Status, line: str, figures: Mapping[str, Any] | None = None) -> Outcome:
            took = time.monotonic() - began
            return Outcome(row.name, row.group, status, " ".join(line.split()), took, figures or {})

        began = time.monotonic()
        left = self.end - began
        limit = row.limit if self._given[0].device.startswith("cuda") else 10 * row.limit  # for a loaded CPU, too
        if left < row.seconds:
            return of("not run", f"{max(left, 0):.0f} s were left, it takes {row.seconds:.0f}: {row.command()}")
        connection, other = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_attempt, args=(other, row, *self._given))
        process.start()
        other.close()
        try:
            if connection.poll(min(limit, left)):
                outcome = of(*connection.recv())
                process.join(5.0)  # it ends by itself, with the compiler's processes
                return outcome
            if left < limit:
                return of("not run", f"cut short, the time for all was over: {row.command()}")
            return of("failed", f"not over after {limit:.0f} s")
        except EOFError:
            process.join(10.0)
            return of("failed", f"its process died (exit status {process.exitcode}), see {self._log.name}")
        finally:
            process.kill()
            process.join(10.0)  # a driver may hold even a killed process


def _attempt(connection: Connection, row: Row, setting: Setting, prepare: str | None, log: str) -> None:
    """Runs a row in this process, and sends its status, line and figures."""
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    print(f"--- {row.name}", flush=True)
    if prepare is not None:
        _function(prepare)(setting)
    try:
        found = _function(row.function)(setting, **row.arguments)
        if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
            torch.cuda.synchronize()  # so that its errors belong to this row
        connection.send(("passed", found.line, found.figures))
    except LeftOut as reason:
        connection.send(("left out", str(reason)))
    except (Mismatch, NoDevice) as reason:
        connection.send(("failed", str(reason)))
    except Exception as error:
        traceback.print_exc()
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        connection.send(("failed", f"{type(error).__name__}: {first}"[:300]))


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
