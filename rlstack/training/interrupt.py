"""Ctrl-C and SIGTERM end a run between two batches, where its state is whole."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from typing_extensions import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While entered, the first SIGINT or SIGTERM only sets ``requested``; the second one interrupts at once.

    Args:
        insist: False ignores the second one: torchrun passes on what a terminal has already sent to everyone.

    Outside of the main thread, where Python allows no handlers, it does nothing.
    """

    def __init__(self, insist: bool = True) -> None:
        self.requested, self._insist = False, insist
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
        if self.requested:
            if self._insist:
                raise KeyboardInterrupt
            return
        self.requested = True
        print("\nstopping after this batch; once more stops at once", flush=True)
