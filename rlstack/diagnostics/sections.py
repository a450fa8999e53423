"""Measures the time that functions take inside an unchanged program."""

from __future__ import annotations

import functools
import importlib
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

OTHER = "other"


class Sections(ExitStack):
    """Measures seconds by section; functions are assigned to sections.

    A section's time excludes that of sections inside it; the time outside all sections is ``other``. Leaving the
    context restores the functions.

    Args:
        clock: function that returns seconds; one that waits for a GPU waits at every border of a section.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock, self._last = clock, 0.0
        self._stack, self._closed, self._running = [OTHER], False, False
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.callback(self.end)

    def begin(self) -> None:
        """Starts counting from zero."""
        self.seconds, self.calls = defaultdict(float), Counter()
        self._running, self._last = True, self._clock()

    def end(self) -> dict[str, float]:
        """Stops counting; returns seconds by section."""
        self._account()
        self._running = False
        return dict(self.seconds)

    def watch(self, owner: Any, attribute: str, section: str, whole: bool = False) -> None:
        """Assigns ``owner.attribute``, a function of an object, class or module, to a section.

        Args:
            whole: whether sections inside it count towards this one.
        """
        own, original = vars(owner).get(attribute), getattr(owner, attribute)
        put: Callable[..., Any]
        take: Callable[..., Any]
        if isinstance(owner, type):
            put, take = functools.partial(setattr, owner), functools.partial(delattr, owner)
        else:  # bypasses the __setattr__ of worlds and networks
            put, take = vars(owner).__setitem__, vars(owner).pop
        put(attribute, self._timed(original, section, whole))
        self.callback(lambda: take(attribute) if own is None else put(attribute, own))

    def watch_named(self, name: str, section: str, whole: bool = False) -> None:
        """Assigns ``package.module:function`` or ``package.module:Class.method`` to a section."""
        module, _, path = name.partition(":")
        *owners, attribute = path.split(".")
        self.watch(functools.reduce(getattr, owners, importlib.import_module(module)), attribute, section, whole)

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
        if self._running:
            now = self._clock()
            self.seconds[self._stack[-1]] += now - self._last
            self._last = now
