"""``torch.compile`` for pure functions of tensors: told when it happens, and done without where it fails."""

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
    """A context that tells ``listener`` what is compiled, a line at a time; else only failures are, as warnings."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def under_way() -> str:
    """What is being compiled at this moment, and for how long, such as ``worlds, 12 s``; empty where nothing is."""
    return ", ".join(f"{what}, {time.monotonic() - begun:.0f} s" for what, begun in _under_way)


class Compiled:
    """A function, compiled on its first call; as it is from then on if that fails.

    The whole function becomes one graph. Random numbers are those that the function would draw by itself, so that
    results differ by rounding alone.

    Args:
        function: of tensors, or of what holds some.
        what: it is, for messages.
        backend: of ``torch.compile``.
        constants: positions of arguments that are the same in every call. What they hold is not compared with what
            the code was made for, which takes longer than small computations where they hold much.
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

        # Compiled code is kept with the code object; sharing one, every call would search what belongs to others.
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
        """It runs as it is."""
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
            line = f"{self.what} is not compiled, the run goes on without: {_reason(error)}"
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
    """A filter of the comparisons before every call: it drops those with constants and with globals of modules."""
    known = ("G[", *(f"arguments[{position}]" for position in constants))
    return lambda guards: [not any(name in guard.name for name in known) for guard in guards]


def _tell(line: str) -> bool:
    for listener in _listeners:
        listener(line)
    return bool(_listeners)


def _failures() -> tuple[type[BaseException], ...]:
    """The errors that compiling raises before anything of the function has run."""
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    return TorchDynamoException, FailOnRecompileLimitHit, CppCompileError, InvalidCxxCompiler


def _reason(error: BaseException) -> str:
    """The first line of an error that says something, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("backend=")]
    return f"{type(error).__name__}: {(told or lines or [''])[0][:160]}"
