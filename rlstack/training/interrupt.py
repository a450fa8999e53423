"""Ctrl-C and SIGTERM end a run between two batches, where its state is whole; other work between two of its steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from envs.working import Work, at_work, following

from .hooks import Hook

if TYPE_CHECKING:  # commands use this before they import torch
    from tensordict import TensorDictBase

    from .distributed import Ranks
    from .loop import Training

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Ends a run where its state is whole, as Ctrl-C asked for."""


class Interrupts(Hook):
    """Ends a run on SIGINT or SIGTERM: after a batch, or between two steps of an evaluation; at once before the first.

    Args:
        ranks: the processes of the run, which end it together.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._stop = StopRequest(insist=ranks.count == 1)

    def on_start(self, training: Training) -> None:
        self._stop.patient = False  # a step may take minutes where worlds are compiled first
        self._stop.__enter__()

    def on_collected(self, training: Training, batch: TensorDictBase, sequences: TensorDictBase) -> None:
        self._stop.patient = True

    def on_work(self, training: Training, work: Work) -> None:
        if self._stop.requested and not work.over:
            raise Interrupted

    def on_iteration(self, training: Training) -> None:
        if training.ranks.any(self._stop.requested) and training.frames < training.last_frame:
            raise Interrupted

    def close(self) -> None:
        self._stop.__exit__(None, None, None)


class StopRequest:
    """While entered, the first SIGINT or SIGTERM only sets ``requested``; the second one interrupts at once.

    Attributes:
        patient: False while nothing would be lost: then the first one interrupts at once, too.

    Args:
        insist: False ignores the second one: torchrun passes on what a terminal has already sent to everyone.

    Outside of the main thread, where Python allows no handlers, it does nothing.
    """

    def __init__(self, insist: bool = True) -> None:
        self.requested, self.patient, self._insist = False, True, insist
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._insist and (self.requested or not self.patient):
            self.requested = True
            raise KeyboardInterrupt
        if self.requested:
            return
        self.requested = True
        print("\nstopping after this batch; once more stops at once", flush=True)


@contextmanager
def stopping_between_steps(show: Callable[[Work], None]) -> Iterator[None]:
    """In it, the first SIGINT lets a step of work (:mod:`envs.working`) end, the second one interrupts at once.

    So does one where there is no work.

    Args:
        show: is told of all work.
    """
    requested = False

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested or not at_work():
            raise KeyboardInterrupt
        requested = True

    def follow(work: Work) -> None:
        show(work)
        if requested and not work.over:
            raise KeyboardInterrupt

    ours = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, receive) if ours else None
    try:
        with following(follow):
            yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
