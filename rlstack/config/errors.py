"""The one-line errors of a configuration and of a run, and the wording shared by everything that raises it."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class ConfigError(ValueError):
    """A mistake in the configuration, told in one line: which key, what is wrong, what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class RunError(RuntimeError):
    """A run cannot go on although its configuration is sound; told in one line: what happened, and what to do.

    Attributes:
        details: shown above that line, such as the traceback of a user's own code in another process.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(" ".join(message.split()))
        self.details = details


def unknown_key(key: str, allowed: Iterable[Any]) -> str:
    """The message for a key that does not exist among its ``allowed`` siblings."""
    name, siblings = key.rpartition(".")[2], sorted(map(str, allowed))
    if not siblings:
        return f"{key}: unknown key, nothing is allowed here"
    return f"{key}: unknown key, {did_you_mean(name, siblings)}allowed: {', '.join(siblings)}"


def missing_option(group: str, name: str, options: Sequence[str]) -> str:
    """The message for a group option (``agent=nope``) that does not exist."""
    exists = ", ".join(sorted(options)) or "none"
    return f"{group}: no option {name!r}, {did_you_mean(name, options)}available: {exists}"


def did_you_mean(name: Any, candidates: Iterable[str]) -> str:
    """``"did you mean 'lr'? "`` for the closest candidate, or nothing when none is close."""
    close = difflib.get_close_matches(str(name), list(candidates), n=1)
    return f"did you mean {close[0]!r}? " if close else ""
