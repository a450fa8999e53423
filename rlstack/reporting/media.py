"""Films and pictures of evaluated episodes, inside the page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .differences import Group
from .runs import Run

KINDS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif", ".png": "image/png"}
_PICTURES = ("trajectories.png",)
_PER_RUN = 4


@dataclass(frozen=True)
class Medium:
    """A film or a picture.

    Attributes:
        caption: what it shows.
        source: ``data:`` address with all of it.
        tag: the element that shows it.
    """

    caption: str
    source: str
    tag: Literal["video", "img"]


def collect(runs: Sequence[tuple[str, Run]], most_megabytes: float) -> tuple[list[Medium], list[str]]:
    """What fits of the runs' films and pictures, and a line for each that does not.

    Args:
        runs: with what is said of them, in the order in which they may take up room.
        most_megabytes: 10^6 bytes of files, in all.
    """
    left, shown, missing = most_megabytes * 1e6, [], []
    for words, run in runs:
        for path in _files(run.path / "evaluations")[:_PER_RUN]:
            name = f"{run.name}, " if len(runs) > 1 else ""
            where = path.relative_to(run.path).as_posix()
            try:
                size = path.stat().st_size
                if size > left:
                    missing.append(
                        f"{name}{where} was left out: {size / 1e6:.1f} MB, and films_mb={most_megabytes:g} is the most"
                    )
                    continue
                content = path.read_bytes()
            except OSError as error:
                missing.append(f"{name}{where} cannot be read ({error.strerror})")
                continue
            left -= size
            kind = KINDS[path.suffix.lower()]
            data = f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
            caption = f"{_told(path)}{words} ({name}{where})"
            shown.append(Medium(caption, data, "video" if kind.startswith("video") else "img"))
    return shown, missing


def best_and_worst(groups: Sequence[Group], metric: str | None) -> list[tuple[str, Run]]:
    """The runs whose films are shown: the best and the worst by a metric's last value, or the only one."""
    runs = [run for group in groups for run in group.runs]
    filmed = [run for run in runs if _files(run.path / "evaluations")]
    if len(runs) == 1 or len(filmed) < 2 or metric is None:
        return [("", run) for run in filmed[:2]]
    ranked = sorted(filmed, key=lambda run: -1e300 if (last := run.last(metric)) is None else last)
    return [(" of the best run", ranked[-1]), (" of the worst run", ranked[0])]


def _files(folder: Path) -> list[Path]:
    """Films and known pictures: the best first, then the worst, then others; of each the newest evaluation's first."""
    found = [path for path in folder.rglob("*") if path.suffix.lower() in KINDS and path.is_file()]
    wanted = [path for path in found if path.suffix.lower() != ".png" or path.name in _PICTURES]
    return sorted(wanted, key=lambda path: (_rank(path), [-ord(c) for c in path.parent.name], path.name))


def _rank(path: Path) -> int:
    name = path.name.lower()
    order = [name.startswith("best"), name.startswith("worst"), name not in _PICTURES, True]
    return order.index(True)


def _told(path: Path) -> str:
    return ("Best episode", "Worst episode", "Episode", "Recorded episodes")[_rank(path)]
