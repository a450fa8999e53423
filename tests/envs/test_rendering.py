"""Pictures and films of all worlds: text, files, animations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest

from rlstack.envs.rendering.canvas import Canvas, Picture, PictureLayout, captioned, texts_apart, width_of, write
from rlstack.envs.rendering.films import Animation, in_grid, save_animation, save_picture
from tests.refusals import refused

WHITE = (255, 255, 255)


class Fade(Animation):
    """An animation that brightens by 10 per unit of time, and by 1 per unit of the pause."""

    per_second, size = 10.0, (32, 16)

    @property
    def span(self) -> tuple[float, float]:
        return 0.0, 20.0

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        return np.full((16, 32, 3), int(10 * time + pause), np.uint8)


def dark(height: int = 40, width: int = 80) -> Picture:
    return np.zeros((height, width, 3), np.uint8)


def lit(picture: Picture) -> tuple[int, int, int, int]:
    """Returns the first and last row and the first and last column that are not black."""
    rows, columns = (np.flatnonzero(picture.any((2, axis))) for axis in (1, 0))
    return int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])


def test_text_is_aligned_and_its_capitals_are_in_the_middle() -> None:
    for align in (0.0, 0.5, 1.0):
        picture = dark()
        write(picture, "HH", 40, 20, 20, WHITE, align)
        top, bottom, left, right = lit(picture)
        assert abs((top + bottom) / 2 - 20) <= 1.5
        assert abs(left + align * (right - left) - 40) <= 3 and right - left <= width_of("HH", 20)


def test_text_outside_of_a_picture_is_left_out() -> None:
    picture = dark()
    write(picture, "MMMM", -400, 20, 14, WHITE)
    write(picture, "MMMM", 10, 400, 14, WHITE)
    assert not picture.any()
    write(picture, "MMMM", 60, 20, 14, WHITE)
    assert picture[:, 60:].any() and not picture[:, :55].any()


def test_shapes_are_where_the_world_has_them() -> None:
    picture = dark()
    Canvas(picture, scale=2.0, corner=(40.0, 20.0)).disc(np.array([10.0, -5.0]), 2.0, WHITE)
    assert lit(picture) == (6, 13, 56, 63)


def test_a_picture_in_which_nothing_could_be_read_is_refused() -> None:
    refused(ValueError, "600 x 400 is too small, at least 640 x 360", PictureLayout, (600, 400))
    assert PictureLayout((1280, 720)).points(20) == 20 and PictureLayout((640, 360)).points(20) == 10


def test_a_file_holds_the_picture(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    save_picture(tmp_path / "one.png", picture)
    assert (imageio.imread(tmp_path / "one.png") == picture).all()


def test_a_grid_has_rows_of_so_many_and_a_black_rest() -> None:
    tiles = [np.full((2, 3, 3), 50 * (number + 1), np.uint8) for number in range(3)]
    assert in_grid(tiles, 2)[::2, ::3, 0].tolist() == [[50, 100], [150, 0]]
    refused(ValueError, "at least one picture", in_grid, [], 2)


def test_a_way_brightens_and_leaves_leaps_out() -> None:
    picture = np.zeros((20, 100, 3), np.uint8)
    points = np.array([[0.0, 10.0], [20.0, 10.0], [40.0, 10.0], [80.0, 10.0], [99.0, 10.0]])
    Canvas(picture, 1.0, (0.0, 0.0)).way(points, 4.0, (200, 0, 0), leap=30.0)
    along = picture[10, :, 0].astype(int)
    assert 0 < along[10] < along[30] < along[90] and not along[45:75].any()


def test_a_burst_grows_and_fades() -> None:
    def drawn(share: float) -> Any:
        picture = np.zeros((100, 100, 3), np.uint8)
        Canvas(picture, 1.0, (50.0, 50.0)).burst(np.zeros(2), 40.0, share, (200, 0, 0), 8, 4.0)
        return picture[..., 0]

    young, old = drawn(0.3), drawn(0.9)
    assert young[50, 90] == 0 < old[50, 90] < young.max()


def test_texts_may_be_taken_from_pictures() -> None:
    picture = np.zeros((40, 100, 3), np.uint8)
    with texts_apart() as texts:
        write(picture, "speed", 10, 20, 12, (255, 0, 0), align=0.5)
        write(picture, "gone", 10, 20, 12, (255, 0, 0), opacity=0.1)
    assert [(text.text, text.x, text.align) for text in texts] == [("speed", 10, 0.5)] and not picture.any()
    write(picture, "speed", 10, 20, 12, (255, 0, 0))
    assert picture.any()


def test_a_title_and_a_legend_stand_above_a_picture() -> None:
    legend = [("●", "ball", (255, 0, 0)), ("■", "a wall that stands", (0, 255, 0))]
    for light, width in ((0, 400), (255, 200)):
        picture = np.full((50, width, 3), light, np.uint8)
        shown = captioned(picture, "a long title " * 20, legend)
        strip = shown[:-50].astype(int)
        assert (shown[-50:] == picture).all() and (strip[0, 0] < 128).all() == (light == 0)
        red, green = (strip[..., k] - np.delete(strip, k, -1).max(-1) for k in (0, 1))
        assert (red > 100).any() and (green > 100).any()  # the signs in their colours
    assert len(captioned(picture, "t", legend)) > len(captioned(picture, "t", legend[:1]))  # a line more


def test_a_film_goes_by_the_animation_s_time_and_holds_its_end(tmp_path: Path) -> None:
    save_animation(Fade(), tmp_path / "fade.gif", fps=5, hold=0.4)
    with imageio.get_reader(tmp_path / "fade.gif") as reader:
        shades = [int(frame[0, 0, 0]) for frame in reader.iter_data()]
    assert shades == [*range(0, 201, 20), 202, 204]


def test_twice_the_speed_is_half_the_film(tmp_path: Path) -> None:
    save_animation(Fade(), tmp_path / "fade.gif", fps=5, speed=2.0, hold=0)
    with imageio.get_reader(tmp_path / "fade.gif") as reader:
        assert [int(frame[0, 0, 0]) for frame in reader.iter_data()] == [*range(0, 201, 40)]


def test_a_film_of_another_kind_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot write fade.avi: the suffix must be one of .gif, .mp4"):
        save_animation(Fade(), tmp_path / "fade.avi")
    assert not list(tmp_path.iterdir())
