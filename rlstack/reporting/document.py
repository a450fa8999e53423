"""The whole page: sections in their order, the template, the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from envs.whole_files import replacing
from rlstack import __version__
from rlstack.config import ConfigError
from rlstack.config.errors import did_you_mean

from . import comparison, curves, leagues, media, provenance
from .blocks import Block, Films, Section, Text, Tile, interval, number
from .comparison import Comparison
from .differences import Group, grouped, shorter
from .runs import Run, find
from .timing import CPU_SECONDS, SECONDS, duration

_PARTS = Path(__file__).with_name("page")


@dataclass
class Page:
    """What the template gets.

    Attributes:
        notes: what is missing, ``(run, line)``.
    """

    title: str
    subtitle: str
    tiles: list[Tile]
    sections: list[Section]
    notes: list[tuple[str, str]] = field(default_factory=list)


def report(folder: Path, score: str | None = None, films_mb: float = 20.0) -> Page:
    """A page about the runs in a folder.

    Args:
        folder: a run, or any folder with runs below it.
        score: metric that runs are compared by; None: success or return, whichever there is.
        films_mb: 10^6 bytes of films and pictures that the page may hold.

    Raises:
        ConfigError: no such folder, no runs in it, or no such metric.
    """
    if not folder.is_dir():
        raise ConfigError(f"folder: {folder} is not a folder")
    runs, league_folders = find(folder)
    if not runs and not league_folders:
        raise ConfigError(f"folder: {folder} holds no runs, neither itself nor below (no metrics.csv, no config.yaml)")
    _check(score, runs)
    groups = grouped(runs)
    found = Comparison.of(groups, score)
    notes = [(run.name, note) for run in runs for note in run.notes]
    sections: list[Section] = []
    if runs:
        sections = [comparison.results(found), *_films(found, films_mb)]
        sections += curves.sections(groups, found.colours, found.legend, found.first)
    sections += leagues.leagues(league_folders, notes)
    if runs:
        sections.append(provenance.time(groups, found.colours, found.legend))
        sections += [provenance.configuration(groups), provenance.environment(runs)]
    return Page(
        folder.resolve().name, _subtitle(groups), _tiles(found), [entry for entry in sections if entry.blocks], notes
    )


def _subtitle(groups: Sequence[Group]) -> str:
    if len(groups) > 1:
        return f"{sum(len(group.runs) for group in groups)} runs in {len(groups)} groups"
    if not groups:
        return "a league"
    (group,) = groups
    if len(group.runs) > 1:
        return f"{group.label}, {group.seeds}"
    seed = group.runs[0].seed
    return group.label if seed is None else f"{group.label}, seed {seed}"


def _check(score: str | None, runs: Sequence[Run]) -> None:
    names = sorted({name for run in runs for name in run.curves})
    if score is not None and score not in names:
        raise ConfigError(f"score: no run has logged {score!r}, {did_you_mean(score, names)}logged: {', '.join(names)}")


def _films(found: Comparison, films_mb: float) -> list[Section]:
    shown, missing = media.collect(media.best_and_worst(found.groups, found.metric), films_mb)
    blocks: list[Block] = [Films(shown)] if shown else []
    if missing:
        blocks.append(Text(missing))
    return [Section("Episodes", blocks)]


def _tiles(found: Comparison) -> list[Tile]:
    runs = found.runs
    if not runs:
        return []
    tiles = []
    best = found.ranked[0]
    score = found.scores[best.label]
    if score is not None:
        spread = f"{interval(score.interval)} (95 %)" if score.interval else score.kind
        tiles.append(Tile(f"{'Best ' if len(found.groups) > 1 else ''}{found.metric}", number(score.mean), spread))
    if len(found.groups) > 1:
        tiles.append(Tile("Best group", shorter(best.label, 28), best.seeds))
    complete = sum(run.complete for run in runs)
    if len(runs) > 1:
        tiles.append(Tile("Runs", str(len(runs)), f"{complete} complete" if complete < len(runs) else "all complete"))
    told = provenance.status(runs[0]) if len(runs) == 1 else "of all runs"
    tiles.append(Tile("Frames", number(sum(run.frames for run in runs)), told))
    wall, cpu = (sum(run.last(name) or 0.0 for run in runs) for name in (SECONDS, CPU_SECONDS))
    if wall:
        tiles.append(Tile("Time", duration(wall), f"{duration(cpu)} of CPU time"))
    return tiles


def render(page: Page) -> str:
    """The page as one HTML file that loads nothing; every text in it is escaped."""
    template = Environment(
        loader=FileSystemLoader(_PARTS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("page.html")
    ours: dict[str, Any] = {name: Markup((_PARTS / name).read_text(encoding="utf-8")) for name in _OURS}
    return template.render(page=page, version=__version__, style=ours["style.css"], script=ours["page.js"])


_OURS = ("style.css", "page.js")


def save(page: Page, path: Path) -> None:
    """Writes the page, wholly or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        with replacing(path) as (partial,):
            partial.write_text(render(page), encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"output: {path} cannot be written ({error.strerror})") from None
