"""The renderer: the right pixels change, nothing is mirrored, files hold all frames, errors name the fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import matplotlib.colors
import numpy as np
import pytest

from rlstack.envs.marinenav import render
from rlstack.envs.marinenav.recording import MarineNavRecording
from rlstack.envs.marinenav.render import MarineNavAnimation, overview
from rlstack.envs.rendering.canvas import Picture
from rlstack.envs.rendering.films import save_animation
from tests.refusals import refused

BLUE, ORANGE = (tuple(round(255 * c) for c in matplotlib.colors.to_rgb(c)) for c in render.COLOURS[:2])


def recording(**changes: Any) -> MarineNavRecording:
    """Returns two robots and six frames: robot 0 heads north along y = 10, robot 1 heads east along x = 15."""
    frames, robots = 6, 2
    pose = np.zeros((frames, robots, 3))
    pose[:, 0, 0], pose[:, 0, 1] = np.linspace(20, 30, frames), 10.0
    pose[:, 1, 0], pose[:, 1, 1], pose[:, 1, 2] = 15.0, np.linspace(30, 40, frames), np.pi / 2
    fields: dict[str, Any] = {
        "dt": 0.5,
        "pose": pose,
        "active": np.ones((frames, robots), bool),
        "goal": [[45.0, 10.0], [15.0, 50.0]],
        "start": pose[0, :, :2],
        "obstacles": [],
        "cores": [],
        "status": np.zeros((frames, robots), int),
    }
    return MarineNavRecording(**(fields | changes))


def draw_frame(episode: MarineNavRecording, t: int, ego: int | None = None) -> Picture:
    return MarineNavAnimation(episode, ego).draw(t)


def to_pixel(x: float, y: float) -> tuple[int, int]:
    """Returns row and column of a world position, for a recording that stays on the map."""
    left, bottom, width, height = 0.065 * 960, 0.075 * 720, 0.66 * 960, 0.88 * 720
    return round(719 - bottom - (x + 2) / 59 * height), round(left + (y + 2) / 59 * width)


def pixel(frame: np.ndarray, x: float, y: float) -> tuple[int, ...]:
    row, column = to_pixel(x, y)
    return tuple(int(value) for value in frame[row, column])


def near(frame: np.ndarray, x: float, y: float, colour: Any, metres: float = 0.6) -> bool:
    """Returns whether something of this colour is drawn within a square around a position."""
    row, column = to_pixel(x, y)
    half = round(metres / 59 * 634)
    patch = frame[row - half : row + half + 1, column - half : column + half + 1].astype(int)
    return bool((np.abs(patch - colour).max(-1) < 60).any())


def rgb(colour: str) -> np.ndarray:
    return np.round(255 * np.array(matplotlib.colors.to_rgb(colour)))


def test_frame_is_an_rgb_picture() -> None:
    frame = draw_frame(recording(), 0)
    assert frame.shape == (720, 960, 3) and frame.dtype == np.uint8


def test_north_is_up_and_east_is_right() -> None:
    frame = draw_frame(recording(), 0)
    assert pixel(frame, 18.5, 10.0) == BLUE and pixel(frame, 15.0, 28.5) == ORANGE
    # Robot 0 points north: narrow 2.2 m north of its centre, a full-width stern to the south.
    assert pixel(frame, 22.2, 10.9) != BLUE and pixel(frame, 17.9, 10.9) == BLUE
    # Robot 1 has turned a quarter clockwise, so its bow is to the east.
    assert pixel(frame, 15.9, 32.2) != ORANGE and pixel(frame, 15.9, 27.9) == ORANGE
    assert near(frame, 45, 10, BLUE) and near(frame, 15, 50, ORANGE)  # goals in the robot's colour


def test_only_what_moves_changes_between_frames() -> None:
    drawing = MarineNavAnimation(recording())
    first, last = drawing.draw(0), drawing.draw(5)
    assert pixel(last, 28.5, 10.0) == BLUE and pixel(first, 28.5, 10.0) != BLUE
    assert near(last, 24.0, 10.0, BLUE, 0.2)  # the trail
    changed = (first != last).any(-1)
    row, column = to_pixel(45, 40)
    assert not changed[:row, :column].any() and changed.any()
    assert (drawing.draw(0) == first).all()  # nothing of the later frame remains


def test_a_robot_that_is_not_there_is_an_error() -> None:
    refused(IndexError, r"ego must be one of the robots \[0, 1\], got 2", draw_frame, recording(), 0, ego=2)


def test_an_animation_goes_on_with_a_longer_recording_of_the_same_episode() -> None:
    whole = recording()
    fields = ("pose", "active", "status")
    begun = recording(**{name: getattr(whole, name)[:3] for name in fields})
    animation = MarineNavAnimation(begun)
    assert animation.longer(whole) is animation and animation.span == (0.0, 5.0)
    assert (animation.draw(5) == draw_frame(whole, 5)).all()
    other = animation.longer(recording(obstacles=[[40.0, 30.0, 2.0]]))
    assert other is not animation and (other.draw(0) != animation.draw(0)).any()


def test_obstacles_and_currents_are_drawn_where_they_are() -> None:
    plain = draw_frame(recording(), 0)
    frame = draw_frame(recording(obstacles=[[40.0, 30.0, 2.0]], cores=[[30.0, 45.0, 1, 9.42]]), 0)
    assert (np.array(pixel(frame, 41.5, 30.0)) == rgb(render.ROCK)).all()
    assert (np.array(pixel(plain, 41.5, 30.0)) == rgb(render.WATER)).all()
    assert near(frame, 30.5, 45.0, rgb(render.CURRENT), 0.3)


def test_arrows_follow_the_published_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flag 1 pushes a vessel south of the core to the east: counter-clockwise in this picture."""
    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr(render.Axes, "quiver", lambda self, *arrays, **kwargs: drawn.append(arrays))
    MarineNavAnimation(recording(cores=[[27.5, 27.5, 1, 9.42]]))
    right, up, flow_right, _ = (np.ravel(array) for array in drawn[0])
    south, north = up < 20, up > 35
    middle = np.abs(right - 27.5) < 5
    assert (flow_right[south & middle] > 0).all() and (flow_right[north & middle] < 0).all()


def test_perceived_objects_appear_at_their_world_position() -> None:
    perceived, mask = np.zeros((6, 2, 5, 5)), np.zeros((6, 2, 5), bool)
    # Robot 1 stands at (15, 30) and heads east: 6 m ahead and 8 m to starboard is (7, 36).
    perceived[0, 1, 0], mask[0, 1, 0] = (6.0, 8.0, 0.0, 0.0, 1.5), True
    perceived[0, 1, 1] = (-10.0, -10.0, 0.0, 0.0, 1.5)  # masked: must not be drawn
    seen = recording(perceived=perceived, perceived_mask=mask)
    frame, plain = draw_frame(seen, 0, ego=1), draw_frame(recording(), 0)
    assert near(frame, 8.5, 36.0, ORANGE) and near(frame, 5.5, 36.0, ORANGE)
    assert not near(plain, 8.5, 36.0, ORANGE)
    assert not near(frame, 26.5, 20.0, ORANGE)
    assert not near(draw_frame(seen, 0, ego=0), 8.5, 36.0, ORANGE)
    assert (draw_frame(seen, 0) != plain).any()  # without an ego robot: those of all robots, faintly


def test_collision_is_marked_and_padding_is_not_drawn() -> None:
    status = np.zeros((6, 2), int)
    status[4:, 1] = (2, 4)
    crash = recording(status=status)
    red = rgb(render.FAILURE)
    assert near(draw_frame(crash, 5), 15, 40, red, 0.4) and not near(draw_frame(crash, 3), 15, 36, red, 0.4)
    active = np.ones((6, 2), bool)
    active[:, 1] = False
    frame = draw_frame(recording(active=active), 0)
    assert not near(frame, 15, 30, ORANGE, 3.0) and not near(frame, 15, 50, ORANGE)


def test_view_grows_when_a_robot_leaves_the_map_but_not_without_end() -> None:
    assert render.view(recording())[0].tolist() == [-2.0, -2.0]
    far = recording().pose.copy()
    far[-1, 0, 0] = 1000.0
    lower, upper = render.view(recording(pose=far))
    assert upper[1] == 75.0 and (upper - lower).tolist() == [77.0, 77.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["episode.gif", "episode.MP4"])
def test_animation_holds_every_frame(tmp_path: Path, name: str) -> None:
    save_animation(recording().animation(), tmp_path / name, fps=20, hold=0)
    with imageio.get_reader(tmp_path / name) as reader:
        frames = [*reader.iter_data()]
        duration = reader.get_meta_data()["duration"]
    assert len(frames) == 6
    assert duration == pytest.approx(50 if name.endswith("gif") else 0.3)  # ms per frame; s in all
    assert frames[0].shape[:2] == (720, 960)
    assert near(frames[-1][..., :3], 28.5, 10.0, BLUE) and not near(frames[0][..., :3], 28.5, 10.0, BLUE)


def test_unknown_suffix_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot write episode.avi: the suffix must be one of .gif, .mp4"):
        save_animation(recording().animation(), tmp_path / "episode.avi")
    assert not list(tmp_path.iterdir())


def test_an_overview_colours_its_title_by_the_outcome() -> None:
    arrived, failed = np.full((6, 2), 5), np.full((6, 2), 5)
    failed[:, 1] = (0, 0, 0, 0, 0, 2)
    for status, colour, other in ((arrived, render.SUCCESS, render.FAILURE), (failed, render.FAILURE, render.SUCCESS)):
        title = overview(recording(status=status, title="episode"))[:30].astype(int)
        assert (np.abs(title - rgb(colour)).max(-1) < 20).any()
        assert not (np.abs(title - rgb(other)).max(-1) < 20).any()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("pose", np.zeros((6, 3)), r"pose must have shape \[T\+1, A, 3\], got \(6, 3\)"),
        ("status", np.zeros((5, 2)), r"status must have shape \[6, 2\], got \[5, 2\]"),
        ("goal", np.zeros((3, 2)), r"goal must have shape \[2, 2\], got \[3, 2\]"),
        ("obstacles", np.zeros((1, 2)), r"obstacles must have shape \[1, 3\], got \[1, 2\]"),
    ],
)
def test_wrong_shapes_are_named(field: str, value: np.ndarray, message: str) -> None:
    refused(ValueError, message, recording, **{field: value})
