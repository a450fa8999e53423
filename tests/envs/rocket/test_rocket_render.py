"""Pictures of matches show everything where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlstack.envs.recording import Frames
from rlstack.envs.rendering.canvas import width_of, write
from rlstack.envs.rendering.films import save_animation
from rlstack.envs.rocket.env import Rocket
from rlstack.envs.rocket.pitch import BLUE, ORANGE, RocketPictureLayout, background
from rlstack.envs.rocket.recording import RocketAnimation, RocketRecorder, RocketRecording
from tests.exhaustive import exhaustive

SIZE = (640, 360)
Array = np.ndarray[Any, Any]


def empty(steps: int = 2, cars: int = 2, **changes: Any) -> RocketRecording:
    """Puts cars and ball on the ground in the middle; changes apply to all states or to each."""
    rotation = np.tile(np.eye(3, dtype=np.float32), (steps, cars, 1, 1))
    zeros = np.zeros
    columns = {
        "clock": np.arange(steps, dtype=np.float32) * 8,
        **{name: zeros((steps, 3), np.float32) for name in ("ball_position", "ball_velocity", "ball_spin")},
        **{name: zeros((steps, cars, 3), np.float32) for name in ("position", "velocity", "spin")},
        **{"rotation": rotation, "boost": zeros((steps, cars), np.float32), "boosting": zeros((steps, cars), bool)},
        **{"wheels": zeros((steps, cars), np.int8), "gone": zeros((steps, cars), np.int16)},
        **{"controls": zeros((steps, cars, 8), np.float32), "touches": zeros((steps, cars), bool)},
        **{"pads": zeros((steps, 34), np.int16), "goal": zeros(steps, np.int8)},
    }
    columns["ball_position"][:, 2] = 93.15
    columns["position"][..., 2] = 17.0
    for name, value in changes.items():
        columns[name][:] = value
    return RocketRecording(Frames(**columns))


def at(picture: Array, x: float, y: float, z: float | None = None) -> Array:
    """Returns the colour at a place on the field or, with ``z``, in the side view."""
    layout = RocketPictureLayout((picture.shape[1], picture.shape[0]))
    centre, up = (layout.above, x) if z is None else (layout.beside, z)
    column, row = centre[0] + y * layout.scale, centre[1] - up * layout.scale
    return picture[int(row), int(column)].astype(int)


def is_like(colour: Array, wanted: tuple[int, int, int]) -> bool:
    """Returns whether two colours have the same hue, whatever their brightness."""
    one, other = np.asarray(colour, float), np.asarray(wanted, float)
    return bool(one @ other > 0.97 * np.linalg.norm(one) * np.linalg.norm(other))


@pytest.mark.slow
def test_cars_and_ball_are_where_they_are() -> None:
    places = [[1500.0, -2500.0, 17.0], [-1500.0, 2000.0, 17.0]]
    picture = RocketAnimation(empty(position=places, ball_position=[-2000.0, -1000.0, 1000.0]), (1280, 720)).draw()
    # A car's bonnet points forward, to +x here, its cabin is behind it.
    assert is_like(at(picture, 1640.0, -2500.0), BLUE) and is_like(at(picture, -1360.0, 2000.0), ORANGE)
    assert at(picture, -2000.0, -1000.0).min() > 180 and at(picture, 0.0, -1000.0, 1000.0).min() > 180
    assert is_like(at(picture, 0.0, 2000.0, 60.0), ORANGE)
    assert at(picture, 2000.0, 1000.0).max() < 80  # nobody there


def test_absent_and_demolished_cars_are_not_seen() -> None:
    one = RocketAnimation(empty(cars=4, position=[[1500.0, 1000.0, 17.0]] * 4, gone=[0, -1, -1, -1]), SIZE).draw()
    none = RocketAnimation(empty(cars=4, position=[[1500.0, 1000.0, 17.0]] * 4, gone=[200, -1, -1, -1]), SIZE).draw()
    layout = RocketPictureLayout(SIZE)
    top, left = int(layout.above[1] - 1900 * layout.scale), int(layout.above[0] + 600 * layout.scale)
    window = (slice(top, top + 25), slice(left, left + 25))
    assert (none[window] == background(layout)[window]).all()
    assert (one[window] != none[window]).any()


def test_pads_fill_up() -> None:
    there, gone = (RocketAnimation(empty(pads=ticks), SIZE).draw() for ticks in (0, 480))
    assert at(there, 3584.0, 0.0).sum() > at(gone, 3584.0, 0.0).sum() + 200


def test_score_clock_and_end() -> None:
    scored = empty(goal=[0, 1], ball_position=[0.0, 5400.0, 93.0])
    film = RocketAnimation(scored, SIZE)
    layout, before, after = RocketPictureLayout(SIZE), film.draw(0.0), film.draw(None)
    score = (slice(int(30 * layout.unit), int(120 * layout.unit)), slice(0, int(layout.panel)))
    assert (before[score] != after[score]).any()
    end = film.draw(None, 200.0)
    assert is_like(end[int(layout.above[1] - 45 * layout.unit), SIZE[0] // 2], BLUE)  # the banner's edge
    nobody = RocketAnimation(empty(), SIZE).draw(None, 200.0)
    assert not is_like(nobody[int(layout.above[1] - 45 * layout.unit), SIZE[0] // 2], BLUE)


@pytest.mark.slow
def test_the_landing_is_where_the_ball_comes_down() -> None:
    env = Rocket(num_worlds=1, tick_skip=2)
    env.reset()
    ball = env.worlds.world.ball
    ball.position[:, 0], ball.velocity[:, 0] = torch.tensor([-1500.0, -1000, 300]), torch.tensor([500.0, 900, 700])
    recorder = RocketRecorder(env, [0])
    recorder.add()
    nothing = TensorDict({"agents": {"action": torch.tensor([[[2, 2, 2, 2, 2, 0, 0, 0]] * 2])}}, [1])
    for _ in range(170):
        env.step(nothing.clone())
        recorder.add()
    recording = recorder.recordings()[0]
    down = int(recording.frames.ball_position[:, 2].argmin())
    _, landing = RocketAnimation(recording, SIZE)._flight(recording.at(0.0))
    assert landing is not None
    assert np.linalg.norm(landing[:2] - recording.frames.ball_position[down, :2]) < 40.0
    assert RocketAnimation(empty(), SIZE)._flight(empty().at(0.0))[1] is None


@exhaustive("size", [(640, 360), (1000, 360), (640, 800), (1920, 1080)])
def test_everything_is_within_any_picture(size: tuple[int, int]) -> None:
    layout = RocketPictureLayout(size)
    assert layout.above[1] - 4096 * layout.scale > 40 * layout.unit
    assert layout.beside[1] < size[1] - 10 * layout.unit and layout.panel > 200 * layout.unit
    assert RocketAnimation(empty(cars=6), size).draw().shape == (size[1], size[0], 3)


@pytest.mark.slow
def test_files(tmp_path: Path) -> None:
    film = RocketAnimation(empty(steps=16), SIZE)
    save_animation(film, tmp_path / "one.gif", fps=10)
    # 15 steps of 8 ticks are a second: frames at 0, 0.1, ... 1, then two seconds of the end.
    assert len(imageio.mimread(tmp_path / "one.gif")) in (31, 12)  # equal frames may be joined
    save_animation(film, tmp_path / "one.mp4", fps=10)
    assert (tmp_path / "one.mp4").stat().st_size > 1000
    assert empty(steps=16).overview().shape == (360, 640, 3)
    for path, size, message in (
        ("one.avi", SIZE, r"the suffix must be one of \.gif, \.mp4"),
        ("one.gif", (641, 360), "must be even"),
        ("one.gif", (320, 200), "320 x 200 is too small"),
    ):
        with pytest.raises(ValueError, match=message):
            save_animation(RocketAnimation(empty(), size), tmp_path / path)


def test_text_at_the_edge_is_cut_off() -> None:
    picture = np.zeros((20, 60, 3), np.uint8)
    write(picture, "MMMM", 58, 10, 14, (255, 255, 255))
    write(picture, "MMMM", -400, 10, 14, (255, 255, 255))
    assert picture[:, 56:].any() and not picture[:, :50].any()
    assert width_of("MM", 14) > 1.8 * width_of("M", 14) > 14
