"""Displays of a run and of other long work: live on a terminal, plain lines elsewhere."""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from rlstack.envs.foundation.work import Work

_WIDTH = 92
"""Columns of the panel, at most; on a narrower terminal, all that it has."""
_BAR_WIDTH = 30
_REFRESH_SECONDS = 0.25
_IDLE_SECONDS = 1.0  # after this long without an update the panel is redrawn
_EVENTS_SHOWN = 4
_CURVE, _POINTS = 24, 1000
"""Columns of a curve, and the number of points that it keeps at most."""
_CURVES = ("train/return", "train/success")
_PHASES = ("collecting", "learning", "evaluating")
_STYLES = {"return": "bold", "success": "bold", "evaluation": "cyan", "warning": "yellow"}
"""Colours of rows of the panel."""
_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
_PATIENCE_SECONDS = 1.0  # shorter work shows no bar


class Progress:
    """Shows the progress, speed and results of a run.

    It shows the metrics ``train/return``, ``train/success`` (a share in [0, 1] with its interval in ``_low`` and
    ``_high``), ``curriculum/level``, everything under ``loss/``, and ``train/updates`` as a rate; it ignores others. A
    metric keeps its last value until a new one arrives. A terminal also shows the curves of return and success, the
    share of ``time/seconds`` that each ``time/<phase>_seconds`` took, the machine (``system/...``), and the rows of
    :meth:`latest` and :attr:`rows`. Rates and the time left exclude the time of other work, such as imitation and
    evaluations.

    Attributes:
        rows: further rows of the panel by name, which are asked for their text at each redraw; an empty text shows no
            row. A row named ``warning`` is yellow.

    Args:
        total_frames: length of the run.
        title: what is trained, such as ``ppo, cartpole, seed 0``.
        stream: output stream; ``sys.stdout`` by default. It gets only ASCII unless its encoding is UTF-8.
        start_frames: frames done before this process began, from which rates and the time left are counted.
        start_updates: updates done before this process began.
        interval: least number of seconds between two plain lines.
        clock: function that returns seconds, for tests.
    """

    def __init__(
        self,
        total_frames: int,
        stream: TextIO | None = None,
        title: str = "",
        start_frames: int = 0,
        start_updates: float = 0.0,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows: dict[str, Callable[[], str]] = {}
        self._title = title
        self._stream = sys.stdout if stream is None else stream
        encoding = (getattr(self._stream, "encoding", None) or "ascii").lower()
        self._unicode = encoding.replace("-", "").replace("_", "") == "utf8"
        self._total, self._start_frames, self._start_updates = total_frames, start_frames, start_updates
        self._frames, self._metrics, self._now = start_frames, dict[str, float](), ""
        self._clock, self._began, self._interval = clock, clock(), interval
        self._work, self._worked = _WorkStatus(clock), 0.0
        self._curves: dict[str, list[float]] = {name: [] for name in _CURVES}
        self._next_point = 0.0  # frames from which the curves get their next point
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._shown_at, self._pending = -math.inf, False
        self._lock, self._closing = threading.RLock(), threading.Event()
        self._live: Live | None = None
        console = self._console = Console(file=stream)
        if console.is_terminal and not console.is_dumb_terminal:
            self._interval = _REFRESH_SECONDS
            # Our own thread refreshes the panel: that of rich would read values while update() changes them.
            self._live = Live(console=console, auto_refresh=False)
            self._live.start()
            self._live.update(self._panel(), refresh=True)
            threading.Thread(target=self._refresh, name="progress", daemon=True).start()

    @property
    def due(self) -> bool:
        """Returns whether an update would be shown at once."""
        return self._clock() - self._shown_at >= self._interval

    def update(self, frames: int, metrics: Mapping[str, float] | None = None) -> None:
        """Updates the state of the run; the display is limited to its interval, so call this as often as you like."""
        with self._lock:
            self._frames, self._pending = frames, True
            self._metrics.update(metrics or {})
            new = {name: value for name in _CURVES if math.isfinite(value := (metrics or {}).get(name, math.nan))}
            if new and frames >= self._next_point:
                self._next_point = frames + self._total / _POINTS
                for name, value in new.items():
                    self._curves[name].append(value)
            if self.due:
                self._show()

    def latest(self, name: str, text: str) -> None:
        """Shows at once the latest of its kind, such as a checkpoint: as a row of the panel, or as a line."""
        with self._lock:
            self.rows[name] = lambda: text
            self._tell(f"{name} {text}")

    def event(self, text: str) -> None:
        """Shows at once something that happened."""
        text = self._encodable(" ".join(text.split()))
        with self._lock:
            self._events.append(f"{duration(self._clock() - self._began)}  {text}")
            self._tell(text)

    def work(self, work: Work) -> None:
        """Updates the progress of work within the run, such as an evaluation; see :func:`work.following`."""
        with self._lock:
            self._work.observe(work)
            self._now = "" if work.over else self._work.text
            self._worked += self._clock() - self._work.began if work.over else 0.0
            if self._live is not None:
                if work.over or self.due:
                    self._show()
            elif not work.over and self._work.line_due(self._interval):
                self._print(self._work.text)

    def close(self) -> None:
        """Shows the final state and releases the terminal. Closing again does nothing."""
        self._closing.set()
        with self._lock:
            if self._pending:
                self._show()
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _refresh(self) -> None:
        """Redraws the panel while a batch or compiling takes long."""
        while not self._closing.wait(_IDLE_SECONDS):
            with self._lock:
                if self._live is not None and self._clock() - self._shown_at >= _IDLE_SECONDS:
                    self._live.update(self._panel(), refresh=True)

    def _tell(self, line: str) -> None:
        """Redraws the panel; without one, prints a line."""
        if self._live is None:
            self._print(line)
        else:
            self._show()

    def _show(self) -> None:
        self._shown_at, self._pending = self._clock(), False
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)
            return
        self._print(" | ".join(f"{name} {text}" for name, text in self._rows().items()))

    def _print(self, line: str) -> None:
        print(self._encodable(line), file=self._stream, flush=True)

    def _panel(self) -> Panel:
        width = min(self._console.width, _WIDTH)
        rows = self._rows()
        left = f", {rows['left']} left" if "left" in rows else ""
        numbers = f"{100 * self._fraction:.1f}%  {rows['elapsed']} elapsed{left}"
        columns = max(width - len(numbers) - 6, 4)  # of the bar: without border, padding, and the space before the text
        filled = round(columns * self._fraction)
        full, empty = ("█", "░") if self._unicode else ("#", "-")
        bar = Text.assemble((full * filled, "green"), (empty * (columns - filled), "dim"), f"  {numbers}")
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(style="dim", no_wrap=True, min_width=max(map(len, _STYLES)))
        table.add_column(ratio=1, overflow="fold")
        for name, text in self._panel_rows(rows).items():
            # Text, not str: rich interprets square brackets in a str as markup.
            table.add_row(Text(name), Text(self._encodable(text), _STYLES.get(name, "")))
        events = [Text(event, style="dim", overflow="fold") for event in self._events]
        title = Text(self._encodable(f"rlstack: {self._title}" if self._title else "rlstack")[: width - 6], "bold")
        # rich draws the border in ASCII if the encoding requires it.
        return Panel(Group(bar, table, *events), title=title, border_style="dim", width=width)

    @property
    def _fraction(self) -> float:
        return min(max(self._frames / self._total, 0.0), 1.0) if self._total > 0 else 1.0

    def _rows(self) -> dict[str, str]:
        """Returns all known values by name."""
        metrics, elapsed = self._metrics, self._clock() - self._began
        learning = elapsed - self._worked
        rate = (self._frames - self._start_frames) / learning if learning > 0 else 0.0
        updates = metrics.get("train/updates", self._start_updates) - self._start_updates
        rows = {
            "frames": f"{self._frames:,} / {self._total:,} ({100 * self._fraction:.1f}%)",
            "frames/s": f"{rate:,.0f}",
        }
        if updates > 0 and learning > 0:
            rows["updates/s"] = f"{updates / learning:,.1f}"
        if "train/return" in metrics:
            rows["return"] = f"{metrics['train/return']:.4g}"
        if "train/success" in metrics:
            ends = [metrics.get(f"train/success_{end}") for end in ("low", "high")]
            interval = "" if None in ends else f" [{ends[0]:.1%}, {ends[1]:.1%}]"
            rows["success"] = f"{metrics['train/success']:.1%}{interval}"
        if "curriculum/level" in metrics:
            rows["level"] = f"{metrics['curriculum/level']:.3g}"
        losses = {name.removeprefix("loss/"): metrics[name] for name in metrics if name.startswith("loss/")}
        if losses:
            rows["loss"] = ", ".join(f"{name} {value:.4g}" for name, value in losses.items())
        rows["elapsed"] = duration(elapsed)
        if rate > 0:
            rows["left"] = duration(max(self._total - self._frames, 0) / rate)
        return {**rows, "now": self._now} if self._now else rows

    def _panel_rows(self, known: Mapping[str, str]) -> dict[str, str]:
        """Returns the rows of the panel, given those of a plain line."""
        metrics = self._metrics
        updates = f", {known['updates/s']} updates/s" if "updates/s" in known else ""
        rows = {"frames": f"{self._frames:,} of {self._total:,}, {known['frames/s']} frames/s{updates}"}
        if total := metrics.get("time/seconds"):
            shares = {phase: metrics.get(f"time/{phase}_seconds", 0.0) / total for phase in _PHASES}
            rows["time"] = ", ".join(f"{phase} {share:.0%}" for phase, share in shares.items() if share)
        uses = {"CPU": "cpu_percent", "GPU": "gpu_percent", "memory": "memory_mb", "GPU memory": "gpu_memory_mb"}
        machine = {name: use for name, entry in uses.items() if (use := metrics.get(f"system/{entry}")) is not None}
        rows["machine"] = ", ".join(
            f"{name} {use / 1000:.1f} GB" if "memory" in name else f"{name} {use:.0f}%" for name, use in machine.items()
        )
        rows |= {name: known[name] for name in ("return", "success", "level", "loss") if name in known}
        for name, points in self._curves.items():
            if (short := name.rpartition("/")[2]) in rows and len(points) > 1:
                rows[short] += f"  {sparkline(points, _CURVE, not self._unicode)}"
        rows |= {name: text() for name, text in self.rows.items()} | {"now": self._now}
        return {name: text for name, text in rows.items() if text}

    def _encodable(self, text: str) -> str:
        encoding = "utf-8" if self._unicode else "ascii"
        return text.encode(encoding, "replace").decode(encoding)


def sparkline(values: Sequence[float], columns: int, ascii_only: bool = False) -> str:
    """Draws a curve as a line of block characters between its least and greatest value, and adds these two.

    Args:
        columns: greatest number of characters; values that share one are averaged.
        ascii_only: whether to draw in ASCII.
    """
    columns = min(columns, len(values))
    cuts = [round(len(values) * place / columns) for place in range(columns + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(cuts)]
    low, high, levels = min(means), max(means), _ASCII_LEVELS if ascii_only else _LEVELS
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return f"{''.join(levels[round(scale * (mean - low))] for mean in means)}  {low:.4g} to {high:.4g}"


class WorkDisplay:
    """Shows long work (:mod:`rlstack.envs.foundation.work`): a bar on a terminal, occasional plain lines elsewhere.

    Args:
        stream: output stream; ``sys.stderr`` by default.
        interval: least number of seconds before the first plain line, and between two.
        clock: returns seconds; for tests.
    """

    def __init__(
        self, stream: TextIO | None = None, interval: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._status, self._clock, self._interval = _WorkStatus(clock), clock, interval
        self._console = Console(file=sys.stderr if stream is None else stream)
        self._shown_at = -math.inf
        self._bars: Bars | None = None
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal

    def __call__(self, work: Work) -> None:
        """Updates the progress; the display is limited to its interval."""
        self._status.observe(work)
        if work.over:
            self.close()
        elif self._is_live:
            now = self._clock()
            if now - max(self._shown_at + _REFRESH_SECONDS, self._status.began + _PATIENCE_SECONDS) >= 0:
                self._shown_at = now
                self._draw(work)
        elif self._status.line_due(self._interval):
            encoding = self._console.encoding
            print(self._status.text.encode(encoding, "replace").decode(encoding), file=self._console.file, flush=True)

    def close(self) -> None:
        """Removes the bar."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _draw(self, work: Work) -> None:
        if self._bars is not None:
            (task,) = self._bars.task_ids
            self._bars.update(task, completed=work.done, description=self._status.text, refresh=True)
            return
        columns = BarColumn(_BAR_WIDTH), TextColumn("{task.description}", markup=False)
        self._bars = Bars(*columns, console=self._console, auto_refresh=False, transient=True)
        self._bars.add_task(self._status.text, completed=work.done, total=work.total)
        self._bars.start()


class _WorkStatus:
    """Describes the current work."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._work = clock, Work("", "", None)
        self.began, self._first, self._line_at = clock(), 0, -math.inf
        self._done, self._gained_at = 0, -math.inf

    def observe(self, work: Work) -> None:
        if work is not self._work:
            self._work, self.began, self._first = work, self._clock(), work.done
        if work.done != self._done:
            self._done, self._gained_at = work.done, self._clock()

    def line_due(self, interval: float) -> bool:
        """Returns whether a line is due: ``interval`` seconds have passed since the work began or the last line."""
        now = self._clock()
        due = now - max(self.began, self._line_at) >= interval
        self._line_at = now if due else self._line_at
        return due

    @property
    def text(self) -> str:
        """Returns the line to show, such as ``evaluating: 30 of 120 episodes, step 512, left 0:00:21``."""
        work, of, left, now = self._work, "", "", self._clock()
        longest = (now - self.began) * (1 - work.part) / work.part if work.part else math.inf
        if work.total is not None:
            of = f" of {work.total:,}"
            gained = work.done - self._first
            seconds = (now - self.began) * max(work.total - work.done, 0) / gained if gained else -math.inf
            # The last episodes often take longer than the pace predicts; then only a bound is known, if any.
            if now - self._gained_at <= seconds:
                left = f"left {duration(min(seconds, longest))}"
            elif longest < math.inf:
                left = f"left at most {duration(longest)}"
        parts = (f"{work.what}: {work.done:,}{of} {work.unit}", work.note, left)
        return ", ".join(part for part in parts if part)


def duration(seconds: float) -> str:
    """Formats seconds as ``1:02:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
