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
        fixed: whether all calls have arguments of the same shapes and types, so that nothing is checked before a call,
            which then takes about 40 us less.
        options: further arguments of ``torch.compile``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        what: str,
        backend: str = "inductor",
        constants: Sequence[int] = (),
        fixed: bool = False,
        **options: Any,
    ) -> None:
        def compute(*arguments: Any) -> Any:
            return function(*arguments)

        # Compiled code is stored with the code object; if several share it, every call searches through all of them.
        compute.__code__ = compute.__code__.replace(co_name=getattr(function, "__name__", "compute"))
        if constants or fixed:
            known = ("G[", *(f"arguments[{position}]" for position in constants))

            def checked(guards: Sequence[Any]) -> list[bool]:
                """Drops those checks before every call that are of constants and of module globals, or all."""
                return [not (fixed or any(name in guard.name for name in known)) for guard in guards]

            options["options"] = {"guard_filter_fn": checked, **options.get("options", {})}
        if backend == "inductor":
            options["options"] = {"fallback_random": True, **options.get("options", {})}
        self.function, self.what = function, what
        self._fast: Callable[..., Any] | None = torch.compile(compute, backend=backend, fullgraph=True, **options)
        self._begun, self._fixed = False, fixed

    @property
    def failed(self) -> bool:
        """Whether compiling has failed, and the function runs uncompiled."""
        return self._fast is None

    def __deepcopy__(self, memo: Any) -> Compiled:
        return self  # compiled code, which cannot be copied, has no state

    def __call__(self, *arguments: Any) -> Any:
        if self._fast is None:
            return self.function(*arguments)
        if not self._begun:
            _tell(f"compiling {self.what}, which takes about a minute, less if it has been compiled before ...")
        begin = time.monotonic()
        if not self._begun:
            _under_way.append((self.what, begin))
        try:
            if self._fixed and not self._begun and hasattr(self._fast, "aot_compile"):  # torch 2.11 has none
                self._fast = self._fast.aot_compile((arguments, {}))
            result = self._fast(*arguments)
        except Exception as error:
            result = self.function(*arguments)  # raises the function's own errors
            self._fast = None
            line = f"{self.what} is not compiled, the run continues without: {_reason(error)}"
            if not _tell(line):
                warnings.warn(line, stacklevel=2)
            return result
        finally:
            if not self._begun:
                _under_way.pop()
        if not self._begun:
            self._begun = True
            _tell(f"compiled {self.what}, {time.monotonic() - begin:.0f} s")
        return result


def at_once(function: Callable[..., Any], *groups: Sequence[torch.Tensor]) -> list[Any]:
    """Returns the results of a function of one tensor ``[rows, ...]`` of each group, for the first of all, and so on.

    It is called once, with each group concatenated, since every operation has a cost of its own. Compiled code, which
    joins operations by itself, calls it for each. The results are tensors with as many rows, or tuples of them.
    """
    if torch.compiler.is_compiling():
        return [function(*tensors) for tensors in zip(*groups)]
    rows, results = [len(tensor) for tensor in groups[0]], function(*(torch.cat(tuple(group)) for group in groups))
    if isinstance(results, torch.Tensor):
        return list(results.split(rows))
    return list(zip(*(result.split(rows) for result in results)))


class CompiledColumns:
    """A function of columns that is compiled for ``size`` of them, and takes any number.

    Its tensors, arguments as well as results and also those in nested tuples, are ``[..., n]``, and every column of the
    results follows from the same column of the arguments. A call computes ``size`` columns at a time; copies of the
    last one fill the rest. Its other arguments are passed on.

    Args:
        function, what: see :class:`Compiled`.
    """

    def __init__(self, function: Callable[..., Any], what: str, size: int) -> None:
        self.size = size
        self._compiled = Compiled(function, what, dynamic=False)

    def __call__(self, *arguments: Any) -> Any:
        count = next(_tensors(arguments)).shape[-1]
        parts = [
            self._compiled(*_mapped(lambda value, start=start: self._part(value, start), arguments))
            for start in range(0, count, self.size)
        ]
        return _mapped(lambda *values: torch.cat(values, -1).narrow(-1, 0, count), *parts)

    def _part(self, value: torch.Tensor, start: int) -> torch.Tensor:
        part = value[..., start : start + self.size]
        missing = self.size - part.shape[-1]
        return torch.cat((part, part[..., -1:].expand(*part.shape[:-1], missing)), -1) if missing else part.contiguous()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)


def _mapped(function: Callable[..., torch.Tensor], *values: Any) -> Any:
    """Returns the first of some equally nested tuples with every tensor replaced by the function of all of them."""
    first = values[0]
    if isinstance(first, torch.Tensor):
        return function(*values)
    if not isinstance(first, tuple):
        return first
    items = [_mapped(function, *item) for item in zip(*values)]
    return type(first)(*items) if hasattr(first, "_fields") else tuple(items)


def _tell(line: str) -> bool:
    for listener in _listeners:
        listener(line)
    return bool(_listeners)


def _reason(error: BaseException) -> str:
    """Returns the first informative line of an error, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith("backend=")]
    return f"{type(error).__name__}: {(reasons or lines or [''])[0][:160]}"
