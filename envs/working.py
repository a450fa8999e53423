"""Progress of long work, told step by step to whoever follows it: to show it, or to end it between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

T = TypeVar("T")


class Work:
    """A piece of work.

    Attributes:
        what: is done, such as ``evaluating``.
        unit: of what is counted, such as ``episodes``.
        total: how many there are, None where that is not known.
        done: how many are.
        note: what else there is to say.
        over: it has ended, in whatever way.
    """

    def __init__(self, what: str, unit: str, total: int | None) -> None:
        self.what, self.unit, self.total = what, unit, total
        self.done, self.note, self.over = 0, "", False

    def reach(self, done: int, note: str = "") -> None:
        """Tells that so much is done now.

        Raises:
            KeyboardInterrupt: whoever follows wants it to end.
        """
        self.done, self.note = done, note
        _tell(self)


class _Part(Work):
    """Work inside of work that counts the same: it adds to that."""

    def __init__(self, whole: Work) -> None:
        super().__init__(whole.what, whole.unit, None)
        self._whole, self._before = whole, whole.done

    def reach(self, done: int, note: str = "") -> None:
        self.done = done
        self._whole.reach(self._before + done, note)


Follower: TypeAlias = Callable[[Work], None]
_follower: ContextVar[Follower | None] = ContextVar("follower", default=None)
_current: ContextVar[Work | None] = ContextVar("current", default=None)


@contextmanager
def following(follower: Follower) -> Iterator[None]:
    """Calls ``follower``, and no outer one, as work in the context begins, after each of its steps and at its end."""
    outer = _follower.get()
    _follower.set(follower)
    try:
        yield
    finally:
        _follower.set(outer)


@contextmanager
def working(what: str, unit: str, total: int | None = None) -> Iterator[Work]:
    """Around work of many steps; what is inside calls :meth:`Work.reach` several times a second."""
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
    """The items, as work of a step each."""
    with working(what, unit, len(items)) as work:
        for number, item in enumerate(items, 1):
            yield item
            work.reach(number)


def at_work() -> bool:
    """Somewhere up the stack there is work, whose next step ends soon."""
    return _current.get() is not None


def step() -> None:
    """A step of the work that is under way, if there is any, which is no further for that."""
    if (work := _current.get()) is not None:
        work.reach(work.done, work.note)


def _tell(work: Work) -> None:
    if (follower := _follower.get()) is not None:
        follower(work)
