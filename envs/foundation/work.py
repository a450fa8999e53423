"""Reports the progress of long work step by step to a follower, which may show it or end it between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class Work:
    """A piece of work and its progress.

    Attributes:
        what: name of the work, such as ``evaluating``.
        unit: unit of the counts, such as ``episodes``.
        total: number of units in all; None if unknown.
        done: number of units done.
        note: further information.
        part: share of the longest time that the work can take, so far; 0 if unknown.
        over: whether the work has ended, in any way.
    """

    what: str
    unit: str
    total: int | None
    done: int = 0
    note: str = ""
    part: float = 0.0
    over: bool = False

    def reach(self, done: int, note: str = "", part: float = 0.0) -> None:
        """Reports that ``done`` units are done.

        Raises:
            KeyboardInterrupt: the follower ends the work.
        """
        self.done, self.note, self.part = done, note, part
        _tell(self)


class _Part(Work):
    """Work within work of the same unit, to which it adds."""

    def __init__(self, whole: Work) -> None:
        super().__init__(whole.what, whole.unit, None)
        self._whole, self._before = whole, whole.done

    def reach(self, done: int, note: str = "", part: float = 0.0) -> None:
        self.done = done
        self._whole.reach(self._before + done, note)


Follower: TypeAlias = Callable[[Work], None]
_follower: ContextVar[Follower | None] = ContextVar("follower", default=None)
_current: ContextVar[Work | None] = ContextVar("current", default=None)


@contextmanager
def following(follower: Follower) -> Iterator[None]:
    """A context in which work calls ``follower``, instead of an outer one, at its beginning, each step and its end."""
    outer = _follower.get()
    _follower.set(follower)
    try:
        yield
    finally:
        _follower.set(outer)


@contextmanager
def working(what: str, unit: str, total: int | None = None) -> Iterator[Work]:
    """A context for work of many steps; the code inside calls :meth:`Work.reach` several times a second."""
    outer = _current.get()
    if outer is not None and outer.unit == unit:
        yield _Part(outer)
        return
    work = Work(what, unit, total)
    _current.set(work)
    try:
        _tell(work)
        yield work
    finally:
        _current.set(outer)
        work.over = True
        _tell(work)


def counted(items: Sequence[T], what: str, unit: str) -> Iterator[T]:
    """Yields the items as work of one step each."""
    with working(what, unit, len(items)) as work:
        for number, item in enumerate(items, 1):
            yield item
            work.reach(number)


def at_work() -> bool:
    """Returns whether this code runs within work, whose next step ends soon."""
    return _current.get() is not None


def step() -> None:
    """Reports a step of the current work, if there is any, without progress."""
    if (work := _current.get()) is not None:
        work.reach(work.done, work.note, work.part)


def _tell(work: Work) -> None:
    if (follower := _follower.get()) is not None:
        follower(work)
