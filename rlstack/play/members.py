"""Who is in a league, as its file says it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from rlstack.config import ConfigError, Interval

from .players import Source

_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class Member:
    """A player in a league.

    Attributes:
        name: unlike all others in its league.
        source: as it was given, see :func:`~rlstack.play.players.make_player`.
        created_at: when it joined, UTC.
        kind: ``candidate``: a file that was handed in; ``commander``: one that was among the best when it was
            evaluated, and remains one; ``player``: who only takes part in tournaments, or is there to be met.
        id: of a file that was handed in, see :func:`identity`; None: it is no file.
        file: a copy of its checkpoint, relative to the league's folder; None: it is played from its source.
        commander_name: of a commander.
        matches: how many it was evaluated by.
        meta: what is known of it besides: ``frames`` of training, ``agent``, ``note``.
    """

    name: str
    source: str | dict[str, Any]
    created_at: str
    kind: Literal["player", "candidate", "commander"] = "player"
    id: str | None = None
    file: str | None = None
    commander_name: str | None = None
    matches: Annotated[int, Interval(low=0)] = 0
    meta: dict[str, Any] = field(default_factory=dict)

    def played_from(self, folder: Path) -> Source:
        """The source to make it play by, in the league of this folder."""
        if self.file is None:
            return self.source
        copy = str(folder / self.file)
        # Which of a run's checkpoints it was is settled; how it acts is not.
        more = {} if isinstance(self.source, str) else {"explore": self.source.get("explore", False)}
        return {"player": copy, **more} if more else copy

    def as_row(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def now() -> str:
    """The time, UTC, as ISO 8601 writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def identity(file: Path) -> str:
    """``stem:size:mtime`` of a file: the same for the same file and copies that kept their time (in ns).

    Raises:
        ConfigError: there is no such file.
    """
    try:
        facts = file.stat()
    except OSError as error:
        raise ConfigError(f"players: {file} cannot be read ({error.strerror})") from None
    return f"{file.stem}:{facts.st_size}:{facts.st_mtime_ns}"


def check_name(name: str) -> str:
    """The name, if a file can be called so.

    Raises:
        ConfigError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"players: {name!r} is no name for a candidate; letters, digits, _ - and . are allowed")
    return name


def free_name(name: str, taken: Mapping[str, Any]) -> str:
    """The name, or where it is taken the name with the first free number."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free
