"""Ctrl-C and SIGTERM end a run between two batches, where its state is consistent, and other work between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from rlstack.envs.foundation.work import Work, at_work, following

from .hooks import Hook, Training

if TYPE_CHECKING:  # commands use this before they import torch
    from tensordict import TensorDictBase

    from .distributed import Ranks


@contextmanager
def receiving(receive: Callable[[int, FrameType | None], None], *signals: int) -> Iterator[None]:
    """A context in which a function receives signals (default: SIGINT and SIGTERM); in other threads it does nothing.

    Python allows signal handlers in the main thread alone.
    """
    ours = threading.current_thread() is threading.main_thread()
    numbers = signals or (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, receive) for number in numbers} if ours else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Interrupted(KeyboardInterrupt):
    """Ends a run at a consistent state after Ctrl-C."""


class Interrupts(Hook):
    """Ends a run on SIGINT or SIGTERM: after a batch or between two steps of an evaluation; a second signal at once.

    Before the first batch, when nothing would be lost, the first signal ends it at once, too.

    Args:
        ranks: the processes of the run, which end it together. With several, a second signal is ignored, since
            torchrun forwards a signal that the terminal has already sent to every process.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._requested = self._patient = False
        self._insist = ranks.count == 1
        self._signals = ExitStack()

    def on_start(self, training: Training) -> None:
        self._signals.enter_context(receiving(self._receive))

    def on_collected(self, training: Training, batch: TensorDictBase, sequences: TensorDictBase) -> None:
        self._patient = True

    def on_work(self, training: Training, work: Work) -> None:
        if self._requested and not work.over:
            raise Interrupted

    def on_iteration(self, training: Training) -> None:
        if training.ranks.any(self._requested) and not training.is_over():
            raise Interrupted

    def close(self) -> None:
        self._signals.close()

    def ask(self) -> None:
        """Ends the run after its batch."""
        self._requested = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        before, self._requested = self._requested, True
        if self._insist and (before or not self._patient):
            raise KeyboardInterrupt
        if not before:
            print("\nstopping after this batch; press Ctrl-C again to stop immediately", flush=True)


@contextmanager
def stopping_between_steps(show: Callable[[Work], None]) -> Iterator[None]:
    """A context in which the first SIGINT ends work after its step, and a second at once.

    When there is no work, the first SIGINT interrupts at once, too.

    Args:
        show: called with each step of work.
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

    with receiving(receive, signal.SIGINT), following(follow):
        yield
