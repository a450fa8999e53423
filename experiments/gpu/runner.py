"""Runs rows one after the other in a separate process, and writes their results."""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
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
        group: group of the row; a failed row of ``correctness`` fails the command.
        function: ``package.module:function`` of a setting and the arguments, which returns a :class:`Found`.
        arguments: arguments by name.
        limit: time limit in seconds.
    """

    name: str
    group: Literal["correctness", "speed"]
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    limit: float = 60.0


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
    """Runs rows in a worker process that is replaced after a row that may have left it broken.

    After a failed assertion on a GPU nothing works in that process, and a row that hangs cannot be stopped otherwise.
    The worker's output, including tracebacks, goes to a file.

    Args:
        setting: the setting of the rows.
        seconds: time limit for all rows together.
        log: file for the workers' output.
        machine: ``package.module:function`` that takes the setting and describes the machine.

    Attributes:
        machine: description of the machine, empty before the first row.
        end: end of the time limit, by ``time.monotonic``.
    """

    def __init__(self, setting: Setting, seconds: float, log: Path, machine: str) -> None:
        self.machine: dict[str, Any] = {}
        self._setting, self._log, self._describe = setting, log, machine
        self.end = time.monotonic() + seconds
        self._worker: tuple[Any, Connection] | None = None

    def run(self, rows: Sequence[Row]) -> Iterator[Outcome]:
        """Yields the outcome of each row.

        Raises:
            NoDevice: the worker cannot use the device, or has not confirmed within the time limit that it can.
        """
        try:
            for row in rows:
                began = time.monotonic()
                outcome = self._outcome(row)
                seconds = time.monotonic() - began
                yield Outcome(**{**vars(outcome), "seconds": seconds})
        finally:
            self._end_worker()

    def _outcome(self, row: Row) -> Outcome:
        left = self.end - time.monotonic()
        if left < row.limit / 4:
            return _of(row, "not run", f"{max(left, 0):.0f} s were left of the time for all")
        try:
            connection = self._ready()
            limit = min(row.limit, self.end - time.monotonic())
            connection.send(row)
            if connection.poll(max(limit, 0.0)):
                status, line, figures, broken = connection.recv()
            elif limit < row.limit:
                status, line, figures, broken = "not run", "cut short: the time for all was over", {}, True
            else:
                status, line, figures, broken = "failed", f"not over after {row.limit:.0f} s", {}, True
        except (EOFError, OSError):
            code = self._end_worker()
            return _of(row, "failed", f"its process died (exit status {code}), see {self._log.name}")
        if broken:
            self._end_worker()
        return _of(row, status, line, figures)

    def _ready(self) -> Connection:
        """Returns the connection to a worker that waits for a row."""
        if self._worker is None:
            context = multiprocessing.get_context("spawn")
            connection, other = context.Pipe()
            process = context.Process(target=_serve, args=(other, self._setting, self._describe, str(self._log)))
            process.start()
            other.close()
            self._worker = process, connection
            if not connection.poll(max(self.end - time.monotonic(), 0.0)):
                self._end_worker()
                raise NoDevice("the time for all was over before the device could be used")
            sound, told = connection.recv()
            if not sound:
                raise NoDevice(told)
            self.machine = self.machine or told
        return self._worker[1]

    def _end_worker(self) -> int | None:
        if self._worker is None:
            return None
        process, connection = self._worker
        self._worker = None
        connection.close()
        process.join(1.0)  # closing the connection ends a worker that waits for a row
        if process.is_alive():
            process.kill()
            process.join()
        return process.exitcode


def _of(row: Row, status: Status, line: str, figures: Mapping[str, Any] | None = None) -> Outcome:
    return Outcome(row.name, row.group, status, " ".join(line.split()), figures=figures or {})


def _serve(connection: Connection, setting: Setting, machine: str, log: str) -> None:
    """Runs a worker: describes the machine, then runs rows until the connection closes."""
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        told = _function(machine)(setting)
    except Exception as error:
        traceback.print_exc()
        connection.send((False, str(error) if isinstance(error, NoDevice) else f"no row can run: {_brief(error)}"))
        return
    connection.send((True, told))
    while True:
        try:
            row = connection.recv()
        except (EOFError, OSError):
            return
        print(f"--- {row.name}", flush=True)
        connection.send(attempt(row, setting))


def attempt(row: Row, setting: Setting) -> tuple[Status, str, Mapping[str, Any], bool]:
    """Runs a row in this process; returns status, line, figures, and whether the process may be broken."""
    try:
        found = _function(row.function)(setting, **row.arguments)
        _settle()
    except LeftOut as reason:
        return "left out", str(reason), {}, False
    except Mismatch as reason:
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


def write(folder: Path, about: Mapping[str, Any], outcomes: Sequence[Outcome]) -> None:
    """Writes ``gpu.json`` and ``gpu.md`` into a folder.

    Args:
        about: the machine and the command.
    """
    content = {**about, "rows": [asdict(outcome) for outcome in outcomes]}
    (folder / "gpu.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "gpu.md").write_text(table(about, outcomes), encoding="utf-8")


def table(about: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    """Returns a Markdown table with the machine and a line for every row."""
    lines = [f"- {name}: {_cell(value)}" for name, value in about.items() if value is not None]
    for group in ("correctness", "speed"):
        lines += ["", f"| {group} | | | s |", "|---|---|---|---|"]
        for outcome in outcomes:
            if outcome.group == group:
                cells = (outcome.name, outcome.status, _cell(outcome.line), f"{outcome.seconds:.1f}")
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    told = ", ".join(f"{name} {entry}" for name, entry in value.items()) if isinstance(value, Mapping) else str(value)
    return told.replace("|", "\\|")


def fails(outcomes: Sequence[Outcome]) -> bool:
    """Whether a check failed."""
    return any(outcome.group == "correctness" and outcome.status == "failed" for outcome in outcomes)
