"""Clocks, and the time that functions take inside a program that is left as it is."""

from __future__ import annotations

import functools
import importlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch
from typing_extensions import Self

from envs.working import step

OTHER = "other"


class Clock:
    """Seconds; calling it waits for the device first, or what was asked of a GPU would not count.

    Args:
        kind: ``"wall"``, or ``"cpu"``: time of this process and its threads, which other programs do not lengthen.
        device: what computes.
    """

    def __init__(self, kind: Literal["wall", "cpu"] = "wall", device: torch.device | str = "cpu") -> None:
        self.kind, self._device = kind, torch.device(device)
        self._read = time.perf_counter if kind == "wall" else time.process_time

    def __call__(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._read()


def repeat(function: Callable[[], Any], seconds: float, clock: Clock, least: int = 3, warm_up: int = 1) -> list[float]:
    """Calls a function for so long; returns the seconds of every call but the first ones."""
    for _ in range(warm_up):
        function()
    durations: list[float] = []
    begin = now = clock()
    while len(durations) < least or now - begin < seconds:
        before = clock()
        function()
        now = clock()
        durations.append(now - before)
        step()
    return durations


def percentiles(durations: list[float]) -> dict[str, float]:
    """``mean_ms``, ``p95_ms`` and ``p99_ms`` of durations in seconds."""
    milliseconds = 1e3 * np.asarray(durations)
    p95, p99 = np.percentile(milliseconds, (95, 99))
    return {"mean_ms": float(milliseconds.mean()), "p95_ms": float(p95), "p99_ms": float(p99)}


class Sections:
    """Seconds by section, while functions run that have been given to one.

    A section's time is without that of others inside it; what belongs to none is ``other``. Leaving the context puts
    the functions back.

    Args:
        clock: on a GPU, every border of a section waits for the device.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._undo = clock, list[Callable[[], None]]()
        self._stack, self._closed, self._running = [OTHER], False, False
        self._last = 0.0
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()

    def begin(self) -> None:
        """Counts from here on, from zero."""
        self.seconds, self.calls = defaultdict(float), Counter()
        self._running, self._last = True, self._clock()

    def end(self) -> dict[str, float]:
        """Stops counting; seconds by section."""
        if self._running:
            self._account()
        self._running = False
        return dict(self.seconds)

    def watch(self, owner: Any, attribute: str, section: str, whole: bool = False) -> None:
        """Gives ``owner.attribute``, a function of an object, class or module, to a section.

        Args:
            whole: sections inside it do not count for themselves.
        """
        own, original = vars(owner).get(attribute), getattr(owner, attribute)
        put: Callable[..., Any]
        take: Callable[..., Any]
        if isinstance(owner, type):
            put, take = functools.partial(setattr, owner), functools.partial(delattr, owner)
        else:  # without asking worlds and networks, which have a say in what is set on them
            put, take = vars(owner).__setitem__, vars(owner).pop
        put(attribute, self._timed(original, section, whole))
        self._undo.append(lambda: take(attribute) if own is None else put(attribute, own))

    def watch_named(self, name: str, section: str, whole: bool = False) -> None:
        """The same for ``package.module:function`` or ``package.module:Class.method``."""
        module, _, path = name.partition(":")
        *owners, attribute = path.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        self.watch(owner, attribute, section, whole)

    def _timed(self, function: Callable[..., Any], section: str, whole: bool) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._running or self._closed:
                return function(*args, **kwargs)
            self._account()
            self._stack.append(section)
            self._closed = whole
            try:
                return function(*args, **kwargs)
            finally:
                self._closed = False
                self._account()
                self._stack.pop()
                self.calls[section] += 1

        return timed

    def _account(self) -> None:
        now = self._clock()
        if self._running:
            self.seconds[self._stack[-1]] += now - self._last
        self._last = now

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running = False
        while self._undo:
            self._undo.pop()()
