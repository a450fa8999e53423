"""``torch.compile`` for pure functions of tensors, with progress messages and a fallback if it fails."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_listeners: list[Callable[[str], None]] = []
_under_way: list[tuple[str, float]] = []


@contextmanager
def telling(listener: Callable[[str], None]) -> Iterator[None]:
    """A context in which ``listener`` gets a line for everything compiled; outside, failures alone cause warnings."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def under_way() -> str:
    """Returns what is being compiled at the moment and for how long, such as ``worlds, 12 s``, or ``""``."""
    return ", ".join(f"{what}, {time.monotonic() - begun:.0f} s" for what, begun in _under_way)


class Compiled:
    """A function that is compiled on its first call; if that fails, it runs uncompiled.

    The whole function becomes one graph. It draws the same random numbers as uncompiled, so results differ only by
    rounding.

    Args:
        function: function of tensors, or of containers of tensors.
        what: name of the function, for messages.
        backend: backend of ``torch.compile``.
        constants: positions of arguments that are equal in every call. Their content is not checked before a call,
            which would take longer than a small computation.
        options: further arguments of ``torch.compile``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        what: str,
        backend: str = "inductor",
        constants: Sequence[int] = (),
        **options: Any,
    ) -> None:
        def compute(*arguments: Any) -> Any:
            return function(*arguments)

        # Compiled code is stored with the code object; if several share it, every call searches through all of them.
        compute.__code__ = compute.__code__.replace(co_name=getattr(function, "__name__", "compute"))
        if constants:
            options["options"] = {"guard_filter_fn": _all_but(constants), **options.get("options", {})}
        if backend == "inductor":
            options["options"] = {"fallback_random": True, **options.get("options", {})}
        self.function, self.what = function, what
        self._fast: Callable[..., Any] | None = torch.compile(compute, backend=backend, fullgraph=True, **options)
        self._begun = False

    @property
    def failed(self) -> bool:
        """Whether compiling has failed, and the function runs uncompiled."""
        return self._fast is None

    def __call__(self, *arguments: Any) -> Any:
        if self._fast is None:
            return self.function(*arguments)
        if not self._begun:
            _tell(f"compiling {self.what}, which takes about a minute, less if it has been compiled before ...")
        begin = time.monotonic()
        if not self._begun:
            _under_way.append((self.what, begin))
        try:
            result = self._fast(*arguments)
        except Exception as error:
            if not isinstance(error, _failures()):
                raise
            self._fast = None
            line = f"{self.what} is not compiled, the run continues without: {_reason(error)}"
            if not _tell(line):
                warnings.warn(line, stacklevel=2)
            return self.function(*arguments)
        finally:
            if not self._begun:
                _under_way.pop()
        if not self._begun:
            self._begun = True
            _tell(f"compiled {self.what}, {time.monotonic() - begin:.0f} s")
        return result


def _all_but(constants: Sequence[int]) -> Callable[[Sequence[Any]], list[bool]]:
    """Returns a filter of the checks before every call that drops those of constants and of module globals."""
    known = ("G[", *(f"arguments[{position}]" for position in constants))
    return lambda guards: [not any(name in guard.name for name in known) for guard in guards]


def _tell(line: str) -> bool:
    for listener in _listeners:
        listener(line)
    return bool(_listeners)


def _failures() -> tuple[type[BaseException], ...]:
    """Returns the errors that compiling raises before the function has run."""
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    return TorchDynamoException, FailOnRecompileLimitHit, CppCompileError, InvalidCxxCompiler


def _reason(error: BaseException) -> str:
    """Returns the first informative line of an error, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("backend=")]
    return f"{type(error).__name__}: {(told or lines or [''])[0][:160]}"
