import io
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rlstack.envs.foundation.work import Work, following, working
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.monitor import Hardware
from rlstack.training.progress import Progress, WorkDisplay, sparkline
from tests.small_run import CARTPOLE_RUN, begun, composed


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Stream(io.StringIO):
    """Stands in for a terminal or a file."""

    def __init__(self, encoding: str, terminal: bool = False) -> None:
        super().__init__()
        self._encoding, self._terminal = encoding, terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        text.encode(self._encoding)  # as a real stream: fails on what it cannot show
        return super().write(text)

    def lines(self) -> list[str]:
        return self.getvalue().splitlines()


@pytest.fixture(autouse=True)
def ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def plain(text: str) -> str:
    """Removes colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def display(frames: int, terminal: bool = False, **options: Any) -> tuple[Progress, Stream, Clock]:
    clock, stream = Clock(), Stream("utf-8", terminal)
    return Progress(frames, stream, clock=clock, **options), stream, clock


METRICS = {
    "train/return": 12.3456,
    "train/success": 0.755,
    "train/success_low": 0.7,
    "train/success_high": 0.8,
    "curriculum/level": 2,
    "loss/policy": 0.0123,
    "loss/value": 1.0,
    **{"time/seconds": 10.0, "time/collecting_seconds": 6.0, "time/learning_seconds": 3.1},
    **{"system/cpu_percent": 98.4, "system/memory_mb": 1230.0},
}


def test_a_plain_line_says_it_all() -> None:
    progress, stream, clock = display(10_000)
    clock.now += 20
    progress.update(2_000, METRICS)
    assert stream.lines() == [
        "frames 2,000 / 10,000 (20.0%) | frames/s 100 | return 12.35 | success 75.5% [70.0%, 80.0%] | "
        "level 2 | loss policy 0.0123, value 1 | elapsed 0:00:20 | left 0:01:20"
    ]


def test_rates_count_from_where_this_process_began() -> None:
    progress, stream, clock = display(1_100_000, start_frames=1_000_000, start_updates=6_990, interval=0)
    clock.now += 5
    progress.update(1_000_500, {"train/updates": 7_000})
    clock.now += 5
    progress.update(1_001_000, {"train/updates": 7_010})
    first, second = stream.lines()
    assert "frames/s 100 " in first and "updates/s 2.0 " in first  # the first line has the true rate, too
    assert "frames/s 100 " in second and "updates/s 2.0 " in second
    assert second.endswith("left 0:16:30")  # 99,000 frames at 100 a second


def test_no_rate_of_updates_before_the_first() -> None:
    progress, stream, clock = display(1_000, start_updates=10, interval=0)
    for updates in (10, 15):  # as in random frames at first
        clock.now += 1
        progress.update(100, {"train/updates": updates})
    first, second = stream.lines()
    assert "updates/s" not in first and "updates/s 2.5 " in second


def test_plain_lines_are_rare_but_events_and_the_end_are_not_lost() -> None:
    progress, stream, clock = display(1_000, interval=10)
    for second in range(25):
        progress.update(second * 10, {})
        clock.now += 1
        if second == 4:
            progress.event("checkpoint saved")
    progress.close()
    progress.close()
    starts = [line.partition(" (")[0] for line in stream.lines()]
    assert starts == [
        "frames 0 / 1,000",
        "checkpoint saved",
        "frames 100 / 1,000",
        "frames 200 / 1,000",
        "frames 240 / 1,000",
    ]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize("terminal", [False, True])
def test_only_ascii_on_a_stream_that_is_not_utf8(encoding: str, terminal: bool) -> None:
    stream = Stream(encoding, terminal)
    progress = Progress(100, stream)
    progress.update(50, METRICS)
    progress.event("level 1 → 2: §")
    progress.close()
    assert stream.getvalue().isascii()
    assert "level 1 ? 2: ?" in stream.getvalue()


def test_the_panel_on_a_terminal() -> None:
    progress, stream, clock = display(10_000, terminal=True, title="ppo, cartpole, seed 0")
    clock.now += 20
    progress.update(2_000, {**METRICS, "loss/q[red]": 1.0})
    for index in range(6):
        progress.event(f"event {index} [bold]")
        progress.latest("checkpoint", f"number {index}")
    progress.close()
    shown = stream.getvalue()
    last = plain(shown[shown.rindex("╭") :])
    assert last.count("█") == round((last.count("█") + last.count("░")) / 5) > 3
    assert last.count("checkpoint") == 1 and "number 5" in last
    for text in (
        " rlstack: ppo, cartpole, seed 0 ",
        "20.0%  0:00:20 elapsed, 0:01:20 left",
        "2,000 of 10,000, 100 frames/s",
        "collecting 60%, learning 31%",
        "CPU 98%, memory 1.2 GB",
        "[70.0%, 80.0%]",
        "q[red] 1",
        "event 5 [bold]",
        "event 2 [bold]",
    ):
        assert text in last
    assert "event 1" not in last
    assert shown.rstrip().endswith("\x1b[?25h")  # the cursor is given back


def test_the_panel_shows_what_is_measured_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 37)
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda device: 5_200_000_000)
    progress, stream, _ = display(100, terminal=True)
    progress.update(10, Hardware("cuda:0").read(10, 1.0))
    progress.close()
    assert re.search(r"machine +CPU \d+%, GPU 37%, memory \d\.\d GB, GPU memory 5\.2 GB ", plain(stream.getvalue()))


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_panel_keeps_one_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    progress, stream, _ = display(10_000, terminal=True, title="a_long_name_of_an_agent, " * 5)
    progress.event("word " * 40)
    for frames in range(300):
        progress.update(frames, {"train/return": float(frames), "loss/a_very_long_name_of_a_loss_" + "x" * 90: 1.0})
    progress.close()
    widths = {len(line) for line in plain(stream.getvalue()).splitlines() if line.startswith(("╭", "│", "╰"))}
    assert widths == {min(columns, 92)}


def test_the_panel_shows_the_curve_and_rows_that_are_asked_at_each_redraw() -> None:
    progress, stream, _ = display(10_000, terminal=True)
    now = ["worlds, 12 s"]
    progress.rows["compiling"] = lambda: now[0]
    for frames in range(300):
        progress.update(frames, {"train/return": float(frames), "train/success": frames / 300})
    progress.latest("evaluation", "at 300 frames: return -3.50")
    last = plain(stream.getvalue()[stream.getvalue().rindex("╭") :])
    assert re.search(r"return +299  ▁[▁-█]{20,23} ", last) and re.search(r"compiling +worlds, 12 s", last)
    assert re.search(r"evaluation +at 300 frames: return -3.50", last)
    now[0] = ""
    progress.update(301)
    progress.close()
    assert "compiling" not in stream.getvalue()[stream.getvalue().rindex("╭") :]


def test_the_latest_of_a_kind_is_a_line_elsewhere() -> None:
    progress, stream, _ = display(100)
    progress.latest("checkpoint", "a.pt")
    progress.latest("checkpoint", "b.pt")
    assert stream.lines() == ["checkpoint a.pt", "checkpoint b.pt"]


@pytest.mark.parametrize(("setting", "coloured"), [(None, True), ("1", False)])
def test_colour_is_where_the_terminal_has_it(
    setting: str | None, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting is not None:
        monkeypatch.setenv("NO_COLOR", setting)
    progress, stream, _ = display(100, terminal=True)
    progress.update(50)
    progress.close()
    assert ("\x1b[32m█" in stream.getvalue()) == coloured


def test_the_curve_of_a_long_run_is_even_and_keeps_few_points() -> None:
    progress = Progress(100_000, Stream("utf-8"), clock=Clock())
    for frames in range(0, 100_000, 10):
        progress.update(frames, {"train/return": float(frames)})
    assert progress._curves["train/return"] == [100.0 * point for point in range(1000)]


def test_a_sparkline_is_as_high_as_its_values() -> None:
    assert sparkline([0.0, 7.0, 3.0, 1.0], 10) == "▁█▄▂  0 to 7"
    assert sparkline([0.0, 2.0, 6.0, 8.0], 2) == "▁█  1 to 7"  # means of pairs
    assert sparkline([0.0, 7.0], 2, ascii_only=True) == "_#  0 to 7"
    assert sparkline([5.0, 5.0], 4) == "▁▁  5 to 5"


def test_a_terminal_is_not_redrawn_at_every_update() -> None:
    progress, stream, clock = display(1_000, terminal=True)
    for frames in range(100):
        clock.now += 0.01
        progress.update(frames)
    drawn = stream.getvalue().count("╭")
    progress.close()
    assert 3 <= drawn <= 6


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Stream("utf-8", terminal=True)
    Progress(10, stream).update(5)
    assert stream.getvalue().startswith("frames 5 / 10 (50.0%)") and "\x1b" not in stream.getvalue()


def test_a_panel_is_there_at_once_and_moves_without_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """The display before the first batch, which may take a minute; its clock advances a second at each reading."""
    monkeypatch.setattr("rlstack.training.progress._IDLE_SECONDS", 0.001)
    clock, stream = Clock(), Stream("utf-8", terminal=True)

    def passing() -> float:
        clock.now += 1
        return clock.now

    progress = Progress(10_000, stream, clock=passing)
    assert stream.getvalue().count("╭") >= 1
    begun = stream.getvalue().count("╭")
    for _ in range(30_000):
        if stream.getvalue().count("╭") >= begun + 3:
            break
        time.sleep(0.001)
    else:
        pytest.fail("it does not move")
    progress.close()
    drawn = stream.getvalue().count("╭")
    time.sleep(0.01)
    assert stream.getvalue().count("╭") == drawn, "nothing is drawn once it is closed"


def test_the_first_news_are_shown_at_once() -> None:
    progress, stream, _ = display(10_000, terminal=True)
    assert progress.due
    progress.update(40)
    assert "40 of 10,000" in stream.getvalue() and not progress.due
    progress.close()


# -- other work --------------------------------------------------------------------------------------------------


def evaluated(display: WorkDisplay, clock: Clock, seconds: float, episodes: int = 40) -> None:
    """Shows the progress of so many steps, in so many seconds."""
    with following(display), working("evaluating", "episodes", episodes) as work:
        for done in range(1, episodes + 1):
            clock.now += seconds / episodes
            work.reach(done, f"step {10 * done}")


def test_other_work_does_not_count_in_rates() -> None:
    progress, stream, clock = display(1_000)
    with following(progress.work), working("imitating", "decisions", 10) as work:
        for done in range(1, 11):
            clock.now += 60
            work.reach(done)
    clock.now += 10
    progress.update(100)
    line = stream.lines()[-1]
    assert "frames/s 10 " in line and line.endswith("elapsed 0:10:10 | left 0:01:30")


def test_long_work_is_told_in_plain_lines_now_and_then() -> None:
    clock, stream = Clock(), Stream("ascii")
    evaluated(WorkDisplay(stream, clock=clock), clock, seconds=40)
    for line, done in zip(stream.lines(), (10, 20, 30, 40), strict=True):
        assert line == f"evaluating: {done} of 40 episodes, step {10 * done}, left 0:00:{40 - done:02}"


@pytest.mark.parametrize(
    ("longest", "left"),
    [(None, ["left 0:00:10", "", ""]), (40, ["left 0:00:10", "left at most 0:00:20", "left at most 0:00:10"])],
)
def test_the_last_long_episode_has_no_time_left_but_its_bound(longest: int | None, left: list[str]) -> None:
    clock, stream = Clock(), Stream("ascii")
    with following(WorkDisplay(stream, clock=clock)), working("evaluating", "episodes", 4) as work:
        for step in range(1, 31):
            clock.now += 1
            work.reach(min(step // 4, 3), part=0.0 if longest is None else step / longest)
    shown = [f"evaluating: {done} of 4 episodes, {text}" for done, text in zip((2, 3, 3), left)]
    assert stream.lines() == [line.removesuffix(", ") for line in shown]


def test_work_of_unknown_length_has_no_time_left() -> None:
    clock, stream = Clock(), Stream("ascii")
    display, work = WorkDisplay(stream, clock=clock), Work("reading", "runs", None)
    display(work)
    clock.now += 11
    work.done = 3
    display(work)
    assert stream.lines() == ["reading: 3 runs"]


def test_long_work_is_a_bar_on_a_terminal_that_goes_away() -> None:
    clock, stream = Clock(), Stream("utf-8", terminal=True)
    evaluated(WorkDisplay(stream, clock=clock), clock, seconds=4)
    shown = stream.getvalue()
    assert re.search(r"evaluating: 2\d of 40 episodes, step 2\d0, left 0:00:01", shown)
    assert 8 <= shown.count("evaluating") <= 15  # from the second second on, four times a second
    assert shown.endswith(("\x1b[2K", "\x1b[1A\x1b[2K"))  # the line is erased


@pytest.mark.parametrize("terminal", [False, True])
def test_quick_work_shows_nothing(terminal: bool) -> None:
    clock, stream = Clock(), Stream("utf-8", terminal)
    display = WorkDisplay(stream, clock=clock)
    for _ in range(30):
        evaluated(display, clock, seconds=0.9)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_work_within_a_run(terminal: bool) -> None:
    progress, stream, clock = display(1_000, terminal=terminal)
    with following(progress.work), working("evaluating", "episodes", 40) as work:
        for done in range(1, 21):
            clock.now += 1
            work.reach(done)
            inside = stream.getvalue()
    assert ("evaluating: 20 of 40 episodes, left 0:00:20" in inside) and (terminal or inside.count("evaluating") == 2)
    progress.update(10)
    progress.close()
    assert "evaluating" not in stream.getvalue()[len(inside) :]


def test_the_panel_lasts_from_the_beginning_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Stream("utf-8", terminal=True)
    monkeypatch.setattr("sys.stdout", screen)
    begun(tmp_path / "run", composed(*CARTPOLE_RUN, "log_every=1")).execute()
    assert "frames/s" in screen.getvalue() and "100.0%" in screen.getvalue()
    assert RunDirectory(tmp_path / "run").checkpoints.latest() is not None
