"""Playing: keys become actions, the loop keeps time, and where nobody can play, one line says why."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest

from rlstack.envs.arena.play import Game, action, main, play, settings
from tests.evaluation.test_watch_command import FakeWindow

IDLE, THRUST, LEFT, RIGHT, SHOOT = range(5)
SMALL = (320, 256)


def stopped() -> float:
    return 0.0


def no_sleep(_: float) -> None:
    pass


def game(**options: int) -> Game:
    return Game(size=SMALL, seed=1, **options)


@pytest.mark.parametrize(
    ("style", "held", "expected"),
    [
        (1, set(), IDLE),
        (1, {"Up"}, THRUST),
        (1, {"Left"}, LEFT),
        (1, {"d"}, RIGHT),
        (1, {"s", "Down", "x"}, IDLE),
        (1, {"space"}, SHOOT),
        (1, {"space", "Up"}, SHOOT),
        (2, {"Up"}, 1),
        (2, {"s"}, 2),
        (2, {"a"}, 3),
        (2, {"Right"}, 4),
        (2, {"space"}, 5),
    ],
)
def test_keys_are_actions(style: int, held: set[str], expected: int) -> None:
    assert action(held, style, ready=True, step=0) == expected


def test_several_keys_take_turns_and_an_empty_gun_does_not_block() -> None:
    assert [action({"Up", "Left"}, 1, True, step) for step in range(4)] == [THRUST, LEFT, THRUST, LEFT]
    assert action({"Up", "space"}, 1, ready=False, step=0) == THRUST
    assert action({"space"}, 1, ready=False, step=0) == IDLE


def test_the_keys_move_the_ship_and_the_window_shows_it() -> None:
    one, window = game(style=2), FakeWindow([{"Right"}, {"Right"}, {"Down"}, set()])
    play(one, window, stopped, no_sleep)
    assert one.now.position.tolist() == [810.0, 645.0] and one.now.step == 4
    assert len(window.pictures) == 4 and window.pictures[0].shape == (256, 320, 3)
    assert (window.pictures[0] != window.pictures[2]).any()


def test_sustained_fire_shoots_every_tenth_step() -> None:
    one, fired = game(style=1), []
    for _ in range(25):
        one.advance({"space", "Up"})
        fired.append(len(one.now.shots))
    assert [fired.index(number) for number in (1, 2, 3)] == [0, 10, 20]
    assert np.hypot(*one.now.velocity) > 3  # between the shots it thrusts


def test_after_the_end_enter_starts_a_new_game() -> None:
    one = game(style=1)
    one.advance({"Up"})
    one._env.worlds.health.zero_()
    for _ in range(3):
        one.advance({"Up"})
    assert one.now.health == 0 and one.now.step == 2  # it stands still
    assert (one.picture() != game().picture()).any()
    one.advance({"Return"})
    assert one.now.step == 0 and one.now.health == 150


def ticking(seconds: float) -> Callable[[], float]:
    """A clock that advances by a fixed time whenever it is read."""
    ticks: Iterator[int] = count()
    return lambda: seconds * next(ticks)


def test_a_fast_computer_waits_and_a_slow_one_leaves_out_pictures() -> None:
    slept: list[float] = []
    one, window = game(), FakeWindow([set()] * 10)
    play(one, window, stopped, slept.append)
    assert one.now.step == 10 and slept == pytest.approx([number / 60 for number in range(1, 11)])
    one, window = game(), FakeWindow([set()] * 10)
    play(one, window, ticking(1.0), slept.append)
    assert one.now.step == pytest.approx(20, abs=1) and len(slept) == 10


def test_settings() -> None:
    chosen = settings(["style=2", "stage=3", "seed=4", "size=1000x800"])
    assert chosen == {"style": 2, "stage": 3, "seed": 4, "size": (1000, 800)}
    assert isinstance(settings([])["seed"], int)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("speed=3", "speed=3: unknown setting, allowed: style, stage, seed, size"),
        ("style=one", "style=one: style must be a whole number"),
        ("size=800", "size=800: size must be two numbers such as 800x640"),
        ("style=3", "style: 3 is unknown, allowed: 1"),
        ("stage=9", "stage: 9 is unknown"),
        ("size=20x20", "size: 20 x 20 is too small"),
    ],
)
def test_a_wrong_setting_is_one_line(argument: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([argument]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}") and error.count("\n") == 1


def test_without_a_display_or_tk_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tkinter = pytest.importorskip("tkinter")

    def no_display() -> None:
        raise tkinter.TclError("couldn't connect")

    monkeypatch.setattr(tkinter, "Tk", no_display)
    assert main(["style=1"]) == 2
    assert capsys.readouterr().err == "error: playing needs a display: couldn't connect\n"
    monkeypatch.setitem(sys.modules, "tkinter", None)
    assert main(["style=1"]) == 2
    assert capsys.readouterr().err.startswith("error: playing needs tkinter, which this Python lacks")
