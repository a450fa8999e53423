"""Builds the page from sections, films and the template; writes it, or serves it on this machine while runs go on."""

from __future__ import annotations

import base64
import gzip
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rlstack import __version__
from rlstack.config import ConfigError
from rlstack.config.errors import did_you_mean, writing
from rlstack.envs.foundation.files import replacing

from .blocks import Block, Films, Medium, Paragraphs, Section, breakable, duration, number, shorter
from .charts import page_data
from .differences import GroupComparison, grouped, repeated_seeds
from .listing import state_of
from .runs import CPU_SECONDS, SECONDS, StoredRun, check_folder, find
from .sections import all_curves, configurations, environments, explained_runs, leagues, results, status, times

_PARTS = Path(__file__).with_name("page")
KINDS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif", ".png": "image/png"}
_PICTURES = ("trajectories.png",)
_PER_RUN = 4


@dataclass(frozen=True)
class Tile:
    """A figure at the top of the page, with a line about it."""

    name: str
    value: str
    about: str = ""


@dataclass
class ReportPage:
    """The data of the template.

    Attributes:
        comparison: the runs that the charts are of.
        notes: missing files, each as ``(run, line)``.
    """

    title: str
    subtitle: str
    tiles: list[Tile]
    sections: list[Section]
    comparison: GroupComparison
    notes: list[tuple[str, str]] = field(default_factory=list)


def report(
    folder: Path,
    score: str | None = None,
    films_mb: float = 20.0,
    folders: Sequence[Path] = (),
    films_from: str | None = None,
) -> ReportPage:
    """Makes a page about the runs in a folder.

    Args:
        folder: a run, or any folder with runs below it.
        score: metric that compares runs; None: success or return, whichever exists.
        films_mb: limit on films and pictures in the page, in 10^6 bytes.
        folders: folders with further yaml files, for the defaults of agents and worlds.
        films_from: address below which a server has the files of ``folder``; None: films are in the page.

    Raises:
        ConfigError: the folder does not exist or holds no runs, or the metric does not exist.
    """
    runs, league_folders = find(check_folder("folder", folder))
    if not runs and not league_folders:
        raise ConfigError(f"folder: {folder} holds no runs, neither itself nor below (no metrics.csv, no config.yaml)")
    names = sorted({name for run in runs for name in run.curves})
    if score is not None and score not in names:
        raise ConfigError(f"score: no run has logged {score!r}, {did_you_mean(score, names)}logged: {', '.join(names)}")
    groups = grouped(runs)
    comparison = GroupComparison.of(groups, score)
    explained = explained_runs(runs)  # which may add notes to runs
    notes = []
    for run in runs:
        state, why = state_of(run)
        failure = [f"failed: {why}" if why else "failed"] if state == "failed" else []
        lines = [note.replace("incomplete:", "running:") for note in run.notes] if state == "running" else run.notes
        notes += [(run.name, note) for note in (*lines, *failure)]
    notes += [(run.name, note) for run, note in repeated_seeds(groups)]
    sections: list[Section] = []
    if runs:
        shown, missing = films(comparison, films_mb, folder, films_from)
        blocks: list[Block] = [Films(shown)] if shown else []
        sections = [results(comparison), Section("Episodes", blocks + ([Paragraphs(missing)] if missing else []))]
        sections.append(explained)
        sections += all_curves(comparison)
    sections += leagues(league_folders, notes)
    if runs:
        sections.append(times(comparison))
        sections += [configurations(groups, folders), environments(runs)]
    sections = [entry for entry in sections if entry.blocks]
    subtitle = f"{len(runs)} runs in {len(groups)} groups" if groups else "a league"
    if len(groups) == 1:
        seed = "" if runs[0].seed is None else f", seed {runs[0].seed}"
        subtitle = groups[0].label + (f", {groups[0].seeds}" if len(runs) > 1 else seed)
    return ReportPage(folder.resolve().name, subtitle, tiles_of(comparison), sections, comparison, notes)


def tiles_of(comparison: GroupComparison) -> list[Tile]:
    """Returns the figures at the top of the page: score, best group, runs, frames and time."""
    runs, several = comparison.runs, len(comparison.groups) > 1
    if not runs:
        return []
    tiles = []
    if len(comparison.worlds) > 1:
        tiles.append(Tile("Worlds", str(len(comparison.worlds)), "their scores do not compare"))
    elif comparison.leader is not None:
        label, title, why = comparison.leader
        if (score := comparison.scores[label]) is not None:
            tiles.append(Tile(f"{'Highest mean ' * several}{comparison.metric}", number(score.mean), score.spread))
            seeds = f"{len(score.values)} seeds" if len(score.values) > 1 else "1 seed"
            if several:
                tiles.append(Tile(title.capitalize(), shorter(label, 60), f"{seeds}, {why}"))
    complete = sum(run.complete for run in runs)
    if len(runs) > 1:
        tiles.append(Tile("Runs", str(len(runs)), f"{complete} complete" if complete < len(runs) else "all complete"))
    progress = status(runs[0]) if len(runs) == 1 else "of all runs"
    tiles.append(Tile("Frames", number(sum(run.frames for run in runs)), progress))
    wall, cpu = (sum(run.last(name) or 0.0 for run in runs) for name in (SECONDS, CPU_SECONDS))
    if wall:
        tiles.append(Tile("Time", duration(wall), f"{duration(cpu)} of CPU time"))
    return tiles


# -- films and pictures ------------------------------------------------------------------------------------------


def films(
    comparison: GroupComparison, most_megabytes: float, folder: Path, address: str | None = None
) -> tuple[list[Medium], list[str]]:
    """Returns films and pictures as far as they fit, and a line for each that does not.

    They are those of the only run, or of the runs with the highest and the lowest score.

    Args:
        comparison: the runs.
        most_megabytes: limit on the files in 10^6 bytes.
        folder: folder of the report.
        address: address of this folder on a server; None: the page holds the files.
    """
    left, shown, missing = most_megabytes * 1e6, list[Medium](), list[str]()
    metric, filmed = comparison.metric, [run for run in comparison.runs if _files(run)]
    runs = [("", run) for run in filmed[:2]]
    if len(filmed) > 1 and metric is not None:
        lowest, *_, highest = sorted(filmed, key=lambda run: -1e300 if (last := run.last(metric)) is None else last)
        runs = [
            (f" of the run with the {end} {metric}", run) for end, run in (("highest", highest), ("lowest", lowest))
        ]
    for words, run in runs:
        for path in _files(run)[:_PER_RUN]:
            name = f"{run.name}, " if len(runs) > 1 else ""
            where = f"{name}{path.relative_to(run.path).as_posix()}"
            try:
                size = path.stat().st_size
                if size > left:
                    most = f"{size / 1e6:.1f} MB, above what films_mb={most_megabytes:g} leaves"
                    missing.append(f"{where} was left out: {most}")
                    continue
                kind = KINDS[path.suffix.lower()]
                if address is None:
                    source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
                else:
                    source = address + quote(path.relative_to(folder).as_posix())
            except OSError as error:
                missing.append(f"{where} cannot be read ({error.strerror})")
                continue
            left -= size
            what = ("Best episode", "Worst episode", "Episode", "Recorded episodes")[_rank(path)]
            tag = "video" if kind.startswith("video") else "img"
            shown.append(Medium(f"{what}{words} ({where})", source, tag))
    return shown, missing


def _files(run: StoredRun) -> list[Path]:
    """Returns films and known pictures: best, worst, others; among each, those of the newest evaluation first."""
    paths = [path for path in (run.path / "evaluations").rglob("*") if path.suffix.lower() in KINDS and path.is_file()]
    whole = (path for path in paths if not path.name.startswith("."))  # hidden files are interrupted evaluations'
    wanted = [path for path in whole if path.suffix.lower() != ".png" or path.name in _PICTURES]
    return sorted(wanted, key=lambda path: (_rank(path), [-ord(c) for c in path.parent.name], path.name))


def _rank(path: Path) -> int:
    name = path.name.lower()
    return [name.startswith("best"), name.startswith("worst"), name not in _PICTURES, True].index(True)


# -- the file ----------------------------------------------------------------------------------------------------


def render(page: ReportPage, live: bool = False) -> str:
    """Renders the page as one HTML file that loads nothing; all text is escaped.

    Args:
        live: whether a server is behind the page: it then loads plotly from there, and keeps itself up to date.

    Raises:
        ConfigError: plotly is not installed.
    """
    form: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=FileSystemLoader(_PARTS), undefined=StrictUndefined, **form)
    charts: list[Any] = []

    def numbered(chart: Any) -> int:
        charts.append(chart)
        return len(charts) - 1

    def data() -> Markup:  # once all charts have been numbered
        return Markup(page_data(page.comparison, charts).replace("<", r"\u003c"))

    style, script = (Markup((_PARTS / name).read_text(encoding="utf-8")) for name in ("style.css", "page.js"))
    environment.filters |= {"breakable": breakable, "numbered": numbered}
    more: dict[str, Any] = {"style": style, "script": script, "live": live, "library": "" if live else packed()}
    return environment.get_template("page.html").render(page=page, version=__version__, data=data, **more)


def plotly() -> bytes:
    """Returns plotly's script, as its Python package brings it.

    Raises:
        ConfigError: the package is not installed.
    """
    package = find_spec("plotly")
    if package is None or package.origin is None:
        raise ConfigError("a page needs the package plotly: pip install plotly")
    return (Path(package.origin).parent / "package_data" / "plotly.min.js").read_bytes()


@cache
def packed() -> str:
    """Returns plotly's script compressed, in base64: 1.9 MB instead of 4.8 MB."""
    return base64.b64encode(gzip.compress(plotly(), mtime=0)).decode("ascii")


def save(page: ReportPage, path: Path) -> None:
    """Writes the page atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    with writing(f"output: {path}"), replacing(path) as (partial,):
        partial.write_text(render(page), encoding="utf-8", errors="replace")


# -- a live page -------------------------------------------------------------------------------------------------------


HOST = "127.0.0.1"
FILES = "files/"
_HOSTS = {HOST, "localhost"}
"""Names by which a browser may ask: a page of another site that resolves to this machine has another."""
_POLICY = "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
_POLICY += "img-src 'self' data: blob:; media-src 'self'; connect-src 'self'; frame-ancestors 'none'"
_AT_LEAST_EVERY = 60.0  # s; a process that was killed changes no file
_SHOWN, _NOT_SHOWN = (".csv", ".json", ".yaml", *KINDS), ("checkpoints", "tensorboard", "wandb")
"""Endings of files, and folders."""


@dataclass
class LivePage:
    """The page of a folder, made anew when a file that it shows has changed.

    Args:
        folder: a run, or any folder with runs below it.
        make: makes the page.
    """

    folder: Path
    make: Callable[[], ReportPage]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _made: tuple[Any, float, bytes] = (None, 0.0, b"")

    def html(self) -> bytes:
        """Returns the present page; what is wrong with the folder, such as that it has no runs yet, is on it."""
        with self._lock:
            files, (before, since, html) = self._files(), self._made
            if files != before or time.monotonic() - since > _AT_LEAST_EVERY:
                try:
                    page = self.make()
                except ConfigError as error:
                    nothing, notes = GroupComparison([], None), [(self.folder.name, str(error))]
                    page = ReportPage(self.folder.resolve().name, "nothing to show yet", [], [], nothing, notes)
                html = render(page, live=True).encode(errors="replace")
                self._made = (files, time.monotonic(), html)
            return html

    def _files(self) -> list[tuple[str, int, int]]:
        """Returns names, sizes and times of the files that a page may show."""
        shown = []
        for path, folders, files in os.walk(self.folder):
            folders[:] = [name for name in folders if name not in _NOT_SHOWN and not name.startswith(".")]
            for file in (os.path.join(path, name) for name in files if Path(name).suffix in _SHOWN):
                with suppress(OSError):  # it may have gone
                    shown.append((file, os.stat(file).st_size, os.stat(file).st_mtime_ns))
        return shown


class Answers(BaseHTTPRequestHandler):
    """Answers GET and HEAD: the page, plotly, and films and pictures below the folder; nothing else exists."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "rlstack", ""

    def __init__(self, page: LivePage, *arguments: Any) -> None:
        self._page = page
        super().__init__(*arguments)

    def do_GET(self) -> None:
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        path = unquote(urlsplit(self.path).path)
        if host not in _HOSTS:
            self.send_error(403, "this server is for this machine alone")
        elif path == "/":
            self._send(self._page.html(), "text/html; charset=utf-8", "no-cache")
        elif path == "/plotly.js":
            self._send(plotly(), "text/javascript", "max-age=86400")
        elif (file := self._file(path.removeprefix(f"/{FILES}"))) is None or not path.startswith(f"/{FILES}"):
            self.send_error(404)
        else:  # or the range of it that a player of films asks for
            with file.open("rb") as content:
                size = os.fstat(content.fileno()).st_size
                asked = re.fullmatch(r"bytes=(\d{1,15})-(\d{1,15})?", self.headers.get("Range", ""))
                first, last = (int(asked[1]), min(int(asked[2] or size), size - 1)) if asked else (0, size - 1)
                if asked and first > last:
                    self.send_error(416)
                    return
                self.send_response(206 if asked else 200)
                more = {"Content_Range": f"bytes {first}-{last}/{size}"} if asked else {}
                length = last - first + 1
                self._headers(KINDS[file.suffix.lower()], Content_Length=str(length), Accept_Ranges="bytes", **more)
                if self.command == "GET":
                    content.seek(first)
                    self.wfile.write(content.read(length)) if asked else shutil.copyfileobj(content, self.wfile)

    do_HEAD = do_GET

    def _file(self, name: str) -> Path | None:
        """Returns a film or picture below the folder, also after links have been followed."""
        try:
            top = self._page.folder.resolve()
            path = (top / name).resolve()
            inside = path.is_relative_to(top) and path.suffix.lower() in KINDS and path.is_file()
        except (OSError, ValueError, RuntimeError):  # such as a null byte, or links in a circle
            return None
        return path if inside else None

    def _send(self, content: bytes, kind: str, cached: str) -> None:
        self.send_response(200)
        self._headers(kind, Cache_Control=cached, Content_Length=str(len(content)))
        if self.command == "GET":
            self.wfile.write(content)

    def _headers(self, kind: str, **headers: str) -> None:
        safe = {"Content_Security_Policy": _POLICY, "X_Content_Type_Options": "nosniff"}
        safe |= {"Content_Type": kind, "Referrer_Policy": "no-referrer"}
        for name, value in {**safe, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Prints nothing."""


def server_of(page: LivePage, port: int) -> ThreadingHTTPServer:
    """Returns a server of the page on this machine alone, not yet serving; port 0 takes any that is free.

    Raises:
        ConfigError: the port cannot be had.
    """
    try:
        return ThreadingHTTPServer((HOST, port), partial(Answers, page))
    except OSError as error:
        raise ConfigError(f"port: {port} cannot be had ({error.strerror}); port=0 takes one that is free") from None


def serve(page: LivePage, port: int) -> None:
    """Serves the page until Ctrl-C."""
    with server_of(page, port) as server:
        address = f"http://{HOST}:{server.server_port}/"
        print(f"{address} shows {page.folder}, for this machine alone; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")
