"""Converts a replay of Echelon to an HTML page: ``python -m rlstack.envs.echelon.player replay.json [page.html]``.

The page is one self-contained file. The space bar plays and pauses, the arrow keys step by a decision; a click on a
mech, on the map or in the list, shows it over time; a click on a chart seeks to that time.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ..foundation.files import write_text
from .replay import Replay, as_json, read_replay

_PARTS = Path(__file__).with_name("page")
_SCRIPTS = ("data.js", "board.js", "page.js")


def page(replay: Replay) -> str:
    """Returns the page's text."""
    title = f"Echelon: {' against '.join(replay.players)}"
    # The data must not contain the end tag of a script.
    content = as_json(replay).replace("<", "\\u003c")
    script = "\n".join(_part(name).replace('"use strict";\n', "") for name in _SCRIPTS)
    parts = {"TITLE": html.escape(title), "STYLE": _part("style.css"), "SCRIPT": script, "REPLAY": content}
    return re.sub("%([A-Z]+)%", lambda match: parts[match[1]], _part("page.html"))


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8").strip()


def save_page(replay: Replay, path: str | Path) -> None:
    """Writes the page atomically; makes missing folders.

    Raises:
        ValueError: the suffix is not ``.html``.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise ValueError(f"cannot write {path.name}: the ending of a page is .html")
    write_text(path, page(replay))


def main(arguments: Sequence[str]) -> int:
    """Writes the page of a replay, or prints in one line why it cannot; returns the exit status."""
    if len(arguments) not in (1, 2):
        print("error: give a replay and, if you like, a page: replay.json page.html", file=sys.stderr)
        return 2
    replay = Path(arguments[0])
    target = Path(arguments[1]) if len(arguments) == 2 else replay.with_suffix(".html")
    try:
        save_page(read_replay(replay), target)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
