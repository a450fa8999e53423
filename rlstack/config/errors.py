"""The one-line errors of a configuration and of a run, and the wording shared by everything that raises it."""

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
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
    """``"did you mean 'lr'? "`` for what is nearest, or nothing when nothing is near."""
    close = nearest(str(name), candidates)
    return f"did you mean {' or '.join(map(repr, close))}? " if close else ""


def nearest(name: str, candidates: Iterable[str]) -> list[str]:
    """The closest candidate; where none is close, up to three that have a close part: ``lr_actor`` for ``lrr``."""
    known = {str(candidate).lower(): str(candidate) for candidate in candidates}
    if close := difflib.get_close_matches(name.lower(), known, n=1):
        return [known[close[0]]]
    parts: dict[str, list[str]] = {}
    for key, candidate in known.items():
        for part in set(re.split(r"[\W_]+", key)) - {""}:
            parts.setdefault(part, []).append(candidate)
    close = difflib.get_close_matches(name.lower(), parts, n=1, cutoff=0.75)
    return sorted(parts[close[0]])[:3] if close else []


def nearest_path(path: str | Path) -> str:
    """``", did you mean 'runs/ppo_arena'?"`` for a path whose first missing part has a close one beside it."""
    path = Path(path)
    missing = next((part for part in (*reversed(path.parents), path) if not part.exists()), None)
    if missing is None or not missing.parent.is_dir():
        return ""
    close = nearest(missing.name, [entry.name for entry in missing.parent.iterdir()])
    return f", did you mean {str(missing.with_name(close[0]) / path.relative_to(missing))!r}?" if close else ""
