"""What a user sees while a run trains, or other work takes long: live on a terminal, plain lines everywhere else."""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from envs.working import Work

RETURN = "train/return"
SUCCESS = "train/success"  # a share in [0, 1]; its interval is in train/success_low and train/success_high
LEVEL = "curriculum/level"
UPDATES = "train/updates"  # gradient steps so far
LOSS_GROUP = "loss/"

_BAR_WIDTH = 30
_REFRESH_SECONDS = 0.25
_IDLE_SECONDS = 1.0  # without news, after which a panel is drawn again
_EVENTS_SHOWN = 4
_PATIENCE_SECONDS = 1.0  # what is quicker shows no bar


class Progress:
    """Shows how far a run is, how fast it goes and how well it does.

    Metrics that are shown: ``train/return``, ``train/success`` (with ``_low`` and ``_high``),
    ``curriculum/level``, everything under ``loss/``, and ``train/updates`` as a rate. Others are ignored;
    a metric keeps its last value until it is given again.

    Args:
        total_frames: length of the run.
        stream: where to write; ``sys.stdout`` by default. Only ASCII is written unless its encoding is UTF-8.
        start_frames: frames already done when this process began: rates and the time left count from there.
        start_updates: gradient steps done by then.
        interval: least number of seconds between two plain lines.
        clock: returns seconds; for tests.
    """

    def __init__(
        self,
        total_frames: int,
        stream: TextIO | None = None,
        start_frames: int = 0,
        start_updates: float = 0.0,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stream = sys.stdout if stream is None else stream
        self._encoding = getattr(stream, "encoding", None) or "ascii"
        self._unicode = self._encoding.lower().replace("-", "").replace("_", "") == "utf8"
        self._status = _Status(total_frames, start_frames, start_updates, clock)
        self._work = _WorkStatus(clock)
        self._stream, self._clock, self._interval = stream, clock, interval
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._shown_at, self._pending = -math.inf, False
        self._lock, self._closing = threading.RLock(), threading.Event()
        self._live: Live | None = None
        console = Console(file=stream)
        if console.is_terminal and not console.is_dumb_terminal:
            self._interval = _REFRESH_SECONDS
            # Refreshed by a thread of ours: that of rich would read what update() is changing.
            self._live = Live(console=console, auto_refresh=False)
            self._live.start()
            self._live.update(self._panel(), refresh=True)
            threading.Thread(target=self._refresh, name="progress", daemon=True).start()

    @property
    def due(self) -> bool:
        """What is given now is shown at once."""
        return self._clock() - self._shown_at >= self._interval

    def update(self, frames: int, metrics: Mapping[str, float] | None = None) -> None:
        """Take in the state of the run; shown at most every so often, so call it as often as you like."""
        with self._lock:
            self._status.observe(frames, metrics or {})
            self._pending = True
            if self.due:
                self._show()

    def event(self, text: str) -> None:
        """Tell of something that happened once, such as a saved checkpoint. Shown immediately."""
        text = self._encodable(" ".join(text.split()))
        with self._lock:
            self._events.append(f"{_duration(self._status.elapsed)}  {text}")
            if self._live is None:
                self._print(text)
            else:
                self._show()

    def work(self, work: Work) -> None:
        """Take in how far work within the run is, such as an evaluation; see :func:`envs.working.following`."""
        with self._lock:
            self._work.observe(work)
            self._status.now = "" if work.over else self._work.text
            if self._live is not None:
                if work.over or self.due:
                    self._show()
            elif not work.over and self._work.told(self._interval):
                self._print(self._encodable(self._work.text))

    def close(self) -> None:
        """Show the final state and give the terminal back. Closing again does nothing."""
        self._closing.set()
        with self._lock:
            if self._pending:
                self._show()
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _refresh(self) -> None:
        """Shows how time passes where a batch takes long, or compiling does."""
        while not self._closing.wait(_IDLE_SECONDS):
            with self._lock:
                if self._live is not None and self._clock() - self._shown_at >= _IDLE_SECONDS:
                    self._live.update(self._panel(), refresh=True)

    def _show(self) -> None:
        self._shown_at, self._pending = self._clock(), False
        if self._live is None:
            self._print(self._encodable(" | ".join(f"{name} {text}" for name, text in self._status.rows())))
        else:
            self._live.update(self._panel(), refresh=True)

    def _panel(self) -> Panel:
        table = Table.grid(padding=(0, 2))
        for name, text in self._status.rows():
            # Text, not str: rich reads square brackets in a str as markup.
            table.add_row(Text(name), Text(self._encodable(text)))
        events = [Text(event, style="dim") for event in self._events]
        # rich itself draws the border in ASCII where the encoding asks for it.
        return Panel(Group(Text(self._bar()), table, *events), title="rlstack", expand=False)

    def _bar(self) -> str:
        filled = round(_BAR_WIDTH * self._status.fraction)
        full, empty = ("█", "░") if self._unicode else ("#", "-")
        return full * filled + empty * (_BAR_WIDTH - filled)

    def _encodable(self, text: str) -> str:
        encoding = self._encoding if self._unicode else "ascii"
        return text.encode(encoding, "replace").decode(encoding)

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


@dataclass
class _Status:
    """The numbers behind the display, and how they read."""

    total_frames: int
    start_frames: int
    start_updates: float
    clock: Callable[[], float]
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.started_at = self.clock()
        self.frames = self.start_frames
        self.now = ""

    def observe(self, frames: int, metrics: Mapping[str, float]) -> None:
        self.frames = frames
        self.metrics.update(metrics)

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started_at

    @property
    def fraction(self) -> float:
        return min(max(self.frames / self.total_frames, 0.0), 1.0) if self.total_frames > 0 else 1.0

    @property
    def frames_per_second(self) -> float:
        return (self.frames - self.start_frames) / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def updates_per_second(self) -> float | None:
        """``None`` before the first update of this process."""
        updates = self.metrics.get(UPDATES, self.start_updates) - self.start_updates
        return updates / self.elapsed if updates > 0 and self.elapsed > 0 else None

    @property
    def seconds_left(self) -> float | None:
        rate = self.frames_per_second
        return max(self.total_frames - self.frames, 0) / rate if rate > 0 else None

    def rows(self) -> list[tuple[str, str]]:
        """Name and text of everything that is known by now."""
        rows = [
            ("frames", f"{self.frames:,} / {self.total_frames:,} ({100 * self.fraction:.1f}%)"),
            ("frames/s", f"{self.frames_per_second:,.0f}"),
        ]
        if (updates := self.updates_per_second) is not None:
            rows.append(("updates/s", f"{updates:,.1f}"))
        rows += self._metric_rows()
        rows.append(("elapsed", _duration(self.elapsed)))
        if (left := self.seconds_left) is not None:
            rows.append(("left", _duration(left)))
        if self.now:
            rows.append(("now", self.now))
        return rows

    def _metric_rows(self) -> list[tuple[str, str]]:
        rows = []
        if RETURN in self.metrics:
            rows.append(("return", f"{self.metrics[RETURN]:.4g}"))
        if SUCCESS in self.metrics:
            rows.append(("success", f"{self.metrics[SUCCESS]:.1%}{self._success_interval()}"))
        if LEVEL in self.metrics:
            rows.append(("level", f"{self.metrics[LEVEL]:.3g}"))
        losses = {name: value for name, value in self.metrics.items() if name.startswith(LOSS_GROUP)}
        if losses:
            text = ", ".join(f"{name.removeprefix(LOSS_GROUP)} {value:.4g}" for name, value in losses.items())
            rows.append(("loss", text))
        return rows

    def _success_interval(self) -> str:
        low, high = self.metrics.get(f"{SUCCESS}_low"), self.metrics.get(f"{SUCCESS}_high")
        return "" if low is None or high is None else f" [{low:.1%}, {high:.1%}]"


class WorkDisplay:
    """Shows work (:mod:`envs.working`) that takes long: a bar on a terminal, a plain line now and then elsewhere.

    Args:
        stream: where to write; ``sys.stderr`` by default.
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
        """Takes in how far it is; shown at most every so often."""
        self._status.observe(work)
        if work.over:
            self.close()
        elif self._is_live:
            now = self._clock()
            if now - max(self._shown_at + _REFRESH_SECONDS, self._status.began + _PATIENCE_SECONDS) >= 0:
                self._shown_at = now
                self._draw(work)
        elif self._status.told(self._interval):
            encoding = self._console.encoding
            print(self._status.text.encode(encoding, "replace").decode(encoding), file=self._console.file, flush=True)

    def close(self) -> None:
        """Takes the bar away."""
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
    """How the work that is under way reads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._work = clock, Work("", "", None)
        self.began, self._first, self._told_at = clock(), 0, -math.inf

    def observe(self, work: Work) -> None:
        if work is not self._work:
            self._work, self.began, self._first = work, self._clock(), work.done

    def told(self, interval: float) -> bool:
        """Whether a line about it is due, so many seconds after it began or after the last one."""
        now = self._clock()
        due = now - max(self.began, self._told_at) >= interval
        self._told_at = now if due else self._told_at
        return due

    @property
    def text(self) -> str:
        """Such as ``evaluating: 30 of 120 episodes, step 512, left 0:00:21``."""
        work, of = self._work, ""
        left = ""
        if work.total is not None:
            of = f" of {work.total:,}"
            if gained := work.done - self._first:
                seconds = (self._clock() - self.began) * max(work.total - work.done, 0) / gained
                left = f"left {_duration(seconds)}"
        parts = (f"{work.what}: {work.done:,}{of} {work.unit}", work.note, left)
        return ", ".join(part for part in parts if part)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
