"""Playback: what is shown when, how a window stops and seeks, and what a terminal gets."""

from __future__ import annotations

import io
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest
from rich.segment import Segments

from rlstack.config import ConfigError
from rlstack.envs.rendering.canvas import WrittenText, write
from rlstack.evaluation.pictures import FinishedAnimation, TerminalScreen, blocks, frames, record, show
from rlstack.training.interrupt import stopping_between_steps

SMALL = (32, 48)


class Counting:
    """An episode of ten steps, ten of them a second: pictures are as bright as their time."""

    per_second, caption, legend = 10.0, "counting", ()

    def __init__(self, steps: int = 10, known: int = 0) -> None:
        self.steps, self.known = steps, known
        self.pauses: list[float] = []

    @property
    def span(self) -> tuple[float, float]:
        return 0.0, float(self.known)

    @property
    def over(self) -> bool:
        return self.known >= self.steps

    def grow(self) -> None:
        self.known += 1

    def draw(self, time: float, pause: float = 0.0, /) -> Any:
        assert time <= self.known
        self.pauses.append(pause)
        return np.full((*SMALL, 3), round(10 * time), np.uint8)


class FakeWindow:
    """``keys`` are those held down, picture by picture; closed after the last."""

    def __init__(self, keys: list[set[str]]) -> None:
        self.keys, self.times = keys, list[float]()

    @property
    def held(self) -> set[str]:
        return self.keys[len(self.times)]

    @property
    def is_open(self) -> bool:
        return len(self.times) < len(self.keys)

    def show(self, picture: Any) -> None:
        self.times.append(picture[0, 0, 0] / 10)


def stopped() -> float:
    return 0.0


def no_sleep(_: float) -> None:
    pass


def shown(animation: Any, keys: list[set[str]], **options: Any) -> list[float]:
    window = FakeWindow(keys)
    show(animation, window, clock=stopped, sleep=no_sleep, **options)
    return window.times


def test_an_episode_is_played_only_as_far_as_it_is_shown() -> None:
    animation = Counting()
    assert shown(animation, [set()] * 7) == pytest.approx([0, 0.3, 0.7, 1, 1.3, 1.7, 2], abs=0.04)  # a third of a step
    assert animation.known == 2


def test_keys_stop_seek_and_begin_anew() -> None:
    keys: list[set[str]] = [set(), {"Right"}, {"space"}, {"space"}, set(), {"Left"}, {"space"}, {"Return"}, set()]
    times = shown(Counting(), keys, speed=3.0)
    assert times == pytest.approx([0, 3, 3, 3, 3, 1, 2, 0, 1])


def test_the_end_stands_still_for_a_while() -> None:
    animation = Counting(steps=1)
    times = shown(animation, [set()] * 100, hold=0.5)
    assert len(times) == 3 + 1 + 15 and times[-1] == 1.0 and animation.pauses[-1] == pytest.approx(5.0, abs=0.4)
    assert len(shown(Counting(steps=1), [set()] * 50, hold=float("inf"))) == 50


def test_where_drawing_is_slow_pictures_are_left_out() -> None:
    clock = iter(np.arange(0.0, 50.0, 0.05))  # two readings for each picture
    window = FakeWindow([set()] * 4)
    show(Counting(), window, clock=lambda: float(next(clock)), sleep=no_sleep)
    assert window.times == pytest.approx([0, 1, 2, 3])


def test_a_film_has_even_times_and_a_still_end() -> None:
    animation = Counting(steps=2)
    times = [picture[0, 0, 0] / 10 for picture in frames(animation, 2.0, 10.0, hold=0.3)]
    assert times == [0, 2, 2, 2, 2] and animation.pauses == [0, 0, 2, 4, 6]


@pytest.mark.parametrize("name", ["film.mp4", "film.gif"])
def test_recording(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / name
    record(iter([Counting(steps=1), Counting(steps=1)]), path, speed=10.0)
    with imageio.get_reader(path) as reader:
        pictures = [np.asarray(picture) for picture in reader]
    fps = 15 if name.endswith("gif") else 30
    assert len(pictures) == 2 * (1 + round(1.5 * fps + 0.01)) or name.endswith("gif")  # GIFs merge what is the same
    assert pictures[0].shape[:2] == SMALL
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"record: .* cannot be written"):
        record(iter([Counting()]), tmp_path / "file" / "film.mp4", 1.0)


def test_an_interrupted_film_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted(Counting):
        def grow(self) -> None:
            if self.known == 5:
                os.kill(os.getpid(), signal.SIGINT)
            assert self.known < 8, "the next picture is the last"
            super().grow()

    with pytest.raises(KeyboardInterrupt), stopping_between_steps(lambda work: None):
        record(iter([Interrupted()]), tmp_path / "film.mp4", 1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_finished_animation_is_over_from_the_beginning() -> None:
    recording = SimpleNamespace(animation=lambda: Counting(known=4), legend=tuple)
    replay = FinishedAnimation(recording, "best")  # type: ignore[arg-type]
    replay.grow()
    assert replay.over and replay.span == (0.0, 4.0) and replay.caption == "best" and replay.per_second == 10.0


# -- terminals ---------------------------------------------------------------------------------------------------


def seen(lines: Segments) -> list[list[tuple[str, Any, Any]]]:
    """The character, colour and background of every place of every line."""
    rows = [[]]  # type: list[list[tuple[str, Any, Any]]]
    for text, style, _ in lines.segments:
        if text == "\n":
            rows.append([])
        for sign in text.strip("\n"):
            assert style is not None and style.color is not None and style.bgcolor is not None
            rows[-1].append((sign, style.color.triplet, style.bgcolor.triplet))
    return rows[:-1]


def test_pictures_become_half_blocks_in_their_proportions() -> None:
    picture = np.zeros((40, 60, 3), np.uint8)
    picture[:20, :30] = (250, 10, 0)
    picture[20:, 30:] = (0, 130, 255)
    rows = seen(blocks(picture, columns=30, lines=50)[0])
    assert len(rows) == 10 and all(len(row) == 30 for row in rows)  # 30 x 20 pixels
    assert rows[0][0][1:] == ((250, 10, 0),) * 2 and rows[0][29][1:] == ((0, 0, 0),) * 2
    assert rows[9][29][1:] == ((0, 130, 255),) * 2
    assert len(seen(blocks(picture, columns=300, lines=4)[0])) == 4


def test_texts_of_a_picture_become_letters() -> None:
    texts = [
        WrittenText("shot", 5, 12, 0.0, (0, 0, 0)),  # the shadow of the next
        WrittenText("shot", 6, 12, 0.0, (255, 0, 0)),
        WrittenText("12", 99, 12, 1.0, (255, 255, 255)),
        WrittenText("near", 6, 13, 0.0, (255, 255, 255)),
        WrittenText("nor", 6, 14, 0.0, (255, 255, 255)),
        WrittenText("this", 6, 15, 0.0, (255, 255, 255)),
    ]
    lines, left = blocks(np.zeros((40, 100, 3), np.uint8), columns=20, lines=9, texts=texts)
    rows = seen(lines)
    assert ["".join(sign for sign, *_ in row).replace("▀", ".") for row in rows] == [
        ".nor................",
        ".shot.............12",
        ".near...............",
        "." * 20,
    ]
    assert left == ["this"] and rows[1][1] == ("s", (255, 0, 0), (0, 0, 0))


def test_a_terminal_shows_texts_and_a_legend_and_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class Writing(Counting):
        legend = (("●", "ball", (255, 0, 0)), ("■", "what does not fit any more", (0, 0, 0)))
        caption = "episode 1, step 2: return 3.5, success 0"

        def draw(self, time: float, pause: float = 0.0, /) -> Any:
            picture = super().draw(time, pause)
            write(picture, f"t {time:.0f}", 0, 16, 12, (255, 255, 255))
            return picture

    for name, value in {"COLUMNS": "24", "LINES": "9", "TERM": "xterm", "COLORTERM": "truecolor"}.items():
        monkeypatch.setenv(name, value)
    out, film = io.StringIO(), Writing(steps=1)
    with TerminalScreen(out, lambda: film) as screen:
        show(film, screen, hold=0.01, clock=stopped, sleep=no_sleep)
    text = out.getvalue()
    assert text.startswith("\x1b[?1049h") and text.endswith("\x1b[?25h\x1b[?1049l") and "success" not in text
    lines = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text).splitlines()
    assert any(line.startswith("t 0▀▀") for line in lines) and "● ball" in [line.strip() for line in lines]
    assert "episode 1, step 2: retur" in text
    assert len(np.unique(film.draw(1.0))) > 1  # and drawn, once the terminal is left
