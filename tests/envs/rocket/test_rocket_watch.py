"""Rocket in a window, without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envs.rocket.film import Film
from envs.rocket.replay import save_replay
from envs.rocket.watch import main, match, settings, watch

SIZE = (640, 360)


class Screen:
    """Keeps what it is shown; ``keys`` are those held down, picture by picture."""

    def __init__(self, keys: list[set[str]]) -> None:
        self.keys, self.pictures = keys, []  # type: ignore[var-annotated]

    @property
    def held(self) -> set[str]:
        return self.keys[len(self.pictures)]

    @property
    def is_open(self) -> bool:
        return len(self.pictures) < len(self.keys)

    def show(self, picture: Any) -> None:
        self.pictures.append(picture)


def test_a_match_is_shown_stopped_and_begun_anew() -> None:
    film = Film(match(seed=1, max_seconds=1.0), SIZE)
    assert film.recording.players == ("rule", "rule") and film.recording.seconds >= 1.0
    screen = Screen([set(), set(), {"space"}, set(), {"Return"}, set()])
    watch(film, screen, clock=lambda: 0.0, sleep=lambda _: None)
    shown = screen.pictures
    expected = [film.draw(ticks) for ticks in (4.0, 8.0, 8.0, 8.0, 0.0, 0.0)]  # 30 pictures a second
    for one, other in zip(shown, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    late = Screen([set()] * 3)
    watch(film, late, speed=100.0, clock=lambda: 0.0, sleep=lambda _: None)
    np.testing.assert_array_equal(late.pictures[-1], film.draw(None, 1200 - float(film.recording.frames.clock[-1])))


def test_settings_and_mistakes(tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    assert settings(["blue=2", "speed=0.5"]) == {"blue": 2, "speed": 0.5}
    for arguments, message in (
        (["size=2"], "size=2: unknown setting, allowed: replay, blue, orange, seed, speed"),
        (["blue=two"], "blue=two: blue must be a number"),
        (["blue=7"], "blue: 7 cars, a team has 1 to 3"),
        ([f"replay={tmp_path}/none.npz"], "cannot be read as a replay (No such file or directory)"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    monkeypatch.setattr("envs.rocket.watch.TkWindow", lambda size, title: Screen([]))
    save_replay(match(max_seconds=0.1), tmp_path / "one.npz")
    assert main([f"replay={tmp_path / 'one.npz'}"]) == 0
