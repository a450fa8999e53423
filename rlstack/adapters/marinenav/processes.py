"""Several trials at once, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple, cast

from rlstack.command import INTERRUPTED_STATUS
from rlstack.config import ConfigError
from rlstack.training.interrupt import StopRequest

from .training import Job, run_trial

_PATIENCE = 0.5
"""Seconds between two looks at whether to stop."""


class _Running(NamedTuple):
    process: BaseProcess
    results: Connection
    folder: Path


def train_together(jobs: Sequence[Job], num_procs: int, train: Callable[[Job], float] = run_trial) -> None:
    """Trains ``num_procs`` trials at a time; says which begin and end.

    Ctrl-C or SIGTERM here makes every running trial save a checkpoint and stop; once more stops them at once.

    Args:
        jobs: what to train, in this order.
        num_procs: how many processes.
        train: what a process does with its job; returns the success rate.

    Raises:
        KeyboardInterrupt: it was stopped.
        ConfigError, RuntimeError: after all others have ended, for the first trial that failed: what it could not do,
            or that its process died, with a traceback on stderr.
    """
    waiting, running, told = deque(jobs), dict[int, _Running](), False
    errors: list[Exception] = []
    with StopRequest() as stop:
        try:
            while running or (waiting and not stop.requested):
                while waiting and len(running) < num_procs and not stop.requested:
                    started = _start(waiting.popleft(), train)
                    running[started.process.sentinel] = started
                    print(f"{started.folder}: begins", flush=True)
                if stop.requested and not told:
                    _terminate(running)
                    told = True
                for sentinel in wait(list(running), _PATIENCE):
                    ended = running.pop(cast(int, sentinel))
                    errors += _conclude(ended, stop.requested)
        finally:
            _terminate(running)
            for left in running.values():
                left.process.join()
    if stop.requested:
        raise KeyboardInterrupt
    if errors:
        raise errors[0]


def _start(job: Job, train: Callable[[Job], float]) -> _Running:
    context = multiprocessing.get_context("spawn")
    results, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(job, train, theirs), name=str(job.folder))
    with _without_interrupts():
        process.start()
    theirs.close()
    return _Running(process, results, job.folder)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """What starts inside never sees Ctrl-C: a terminal sends it to every process, but only this one decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(job: Job, train: Callable[[Job], float], results: Connection) -> None:
    try:
        results.send(train(job))
    except ConfigError as error:
        results.send(error)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_STATUS)


def _terminate(running: dict[int, _Running]) -> None:
    for left in running.values():
        left.process.terminate()


def _conclude(ended: _Running, stopping: bool) -> list[Exception]:
    """Says how a trial ended; what went wrong."""
    ended.process.join()
    try:
        result = ended.results.recv()
    except EOFError:
        if stopping:
            print(f"{ended.folder}: stopped", flush=True)
            return []
        result = RuntimeError(f"its process ended with status {ended.process.exitcode}")
    finally:
        ended.results.close()
    if isinstance(result, Exception):
        print(f"{ended.folder}: failed, {result}", flush=True)
        return [type(result)(f"{ended.folder}: {result}")]
    print(f"{ended.folder}: finished, success {result:.3f}", flush=True)
    return []
