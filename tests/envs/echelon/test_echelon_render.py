"""Pictures of matches show everything where it is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest

from rlstack.envs.echelon.drawing import BLUE, RED, EchelonLayout, background
from rlstack.envs.echelon.maps import FOLIAGE, LAVA, LOW_WALL, WATER
from rlstack.envs.echelon.recording import EchelonAnimation, EchelonRecording
from rlstack.envs.echelon.replay import RecordedMap
from rlstack.envs.recording import Frames
from rlstack.envs.rendering.films import in_grid, save_animation, save_picture
from rlstack.evaluation.evaluator import evaluate
from rlstack.evaluation.pictures import save_pictures
from tests.envs.echelon.episodes import fight
from tests.exhaustive import exhaustive

SIZE = (640, 360)
Array = np.ndarray[Any, Any]


def at(picture: Array, x: float, y: float) -> Array:
    """Returns the colour at a place on the map."""
    layout = EchelonLayout((picture.shape[1], picture.shape[0]))
    column, row = layout.corner[0] + x * layout.scale, layout.corner[1] - y * layout.scale
    return picture[int(row), int(column)].astype(int)


def is_like(colour: Array, wanted: Any) -> bool:
    """Returns whether two colours have the same hue, whatever their brightness."""
    one, other = np.asarray(colour, float), np.asarray(wanted, float)
    return bool(one @ other > 0.95 * np.linalg.norm(one) * np.linalg.norm(other))


def changed(**frames: Any) -> EchelonRecording:
    """Returns a recording of the fight with other columns and nothing but mechs."""
    record = fight()[1].record
    new = dataclasses.replace(
        record,
        frames=Frames(**vars(record.frames) | frames),
        **{"events": (), "flights": (), "smoke": tuple(np.zeros((0, 4)) for _ in record.smoke)},
    )
    return EchelonRecording(lambda: new)


def test_the_ground_is_where_it_is() -> None:
    height, kind = np.zeros((64, 64), np.uint8), np.zeros((64, 64), np.uint8)
    height[10:14, 40:44] = 3  # rows are y
    height[30:34, 40:44] = 8
    for place, name in enumerate((FOLIAGE, LOW_WALL, WATER, LAVA)):
        kind[50:54, 10 * place : 10 * place + 4] = name
    picture = background(EchelonLayout((1280, 720)), RecordedMap(height, kind, (32.0, 32.0, 6.0)))
    low, high, floor = (at(picture, *place).sum() for place in ((42.0, 12.0), (42.0, 32.0), (12.0, 42.0)))
    assert floor < low < high
    assert at(picture, 2.5, 52.5).argmax() == 1  # leaves are green,
    assert at(picture, 22.0, 52.0).argmax() == 2 and at(picture, 32.0, 52.0).argmax() == 0  # water blue, lava red
    assert at(picture, 12.5, 52.5).sum() > floor


def test_mechs_are_where_they_are() -> None:
    frames = fight()[1].frames
    position = frames.position.copy()
    position[:, 0], position[:, 5] = (20.0, 50.0, 0.0), (44.0, 50.0, 0.0)  # the heavies
    yaw = np.full_like(frames.yaw, np.pi / 2)
    hp = np.abs(frames.hp) + 1
    film = EchelonAnimation(
        changed(position=position, yaw=yaw, hp=hp, target=np.full_like(frames.target, -1)), (1280, 720)
    )
    picture = film.draw(0.0)
    assert is_like(at(picture, 19.2, 49.0), BLUE) and is_like(at(picture, 43.2, 49.0), RED)
    assert at(picture, 20.0, 51.2).min() > 200  # the nose, ahead is up
    empty = film._empty
    assert (at(picture, 20.0, 40.0) == at(empty, 20.0, 40.0)).all()
    hp[:, 0] = 0
    gone = EchelonAnimation(changed(position=position, yaw=yaw, hp=hp), (1280, 720)).draw(0.0)
    assert at(gone, 20.0, 51.2).max() < 150


@pytest.mark.slow
def test_hit_points_and_heat_are_bars() -> None:
    frames = fight()[1].frames
    hp, heat = frames.hp.copy(), frames.heat.copy()
    panel = (slice(64, 180), slice(12, 306))  # of blue's heavy
    pictures = []
    for health, warmth in ((200.0, 0.0), (60.0, 0.0), (200.0, 130.0)):
        hp[:, 0], heat[:, 0] = health, warmth
        pictures.append(
            EchelonAnimation(changed(hp=hp.copy(), heat=heat.copy()), (1280, 720)).draw(0.0)[panel].astype(int)
        )
    full, hurt, hot = pictures
    green = [int(((part[..., 1] > 200) & (part[..., 0] < 150)).sum()) for part in (full, hurt)]
    orange = [int(((part[..., 0] > 230) & (part[..., 2] < 80)).sum()) for part in (full, hot)]
    assert green[0] > 1500 and green[1] < 100 and orange[1] > orange[0] + 1500


def test_what_happens_is_seen_while_it_lasts() -> None:
    recording = fight()[1]
    film = EchelonAnimation(recording, SIZE)
    for kind in ("laser_hit", "kill"):
        event = next(event for event in recording.record.events if event.type == kind)
        quiet = EchelonAnimation(EchelonRecording(lambda: dataclasses.replace(recording.record, events=())), SIZE)
        quiet._deaths = film._deaths
        assert (film.draw(float(event.tick)) != quiet.draw(float(event.tick))).any()


@exhaustive("size", [(640, 360), (1000, 400), (640, 800), (1920, 1080)])
def test_everything_is_within_any_picture(size: tuple[int, int]) -> None:
    layout = EchelonLayout(size)
    assert layout.corner[1] - 64 * layout.scale > 50 * layout.unit and layout.corner[1] < size[1]
    assert layout.panel >= 290 * layout.unit
    assert EchelonAnimation(fight()[1], size).draw(ways=True).shape == (size[1], size[0], 3)


@pytest.mark.slow
def test_files(tmp_path: Path) -> None:
    recording = fight()[1]
    short = EchelonRecording(lambda: dataclasses.replace(recording.record, frames=recording.frames.part(slice(0, 5))))
    film = EchelonAnimation(short, SIZE)
    save_animation(film, tmp_path / "one.mp4", fps=10)
    assert (tmp_path / "one.mp4").stat().st_size > 1000
    save_picture(tmp_path / "one.png", film.draw())
    assert imageio.imread(tmp_path / "one.png").shape == (360, 640, 3)
    save_picture(tmp_path / "grid.png", in_grid([short.overview()] * 3, short.overview_columns))
    assert imageio.imread(tmp_path / "grid.png").shape == (1080, 1920, 3)
    with pytest.raises(ValueError, match="must be even"):
        save_animation(EchelonAnimation(short, (641, 360)), tmp_path / "one.gif")
    with pytest.raises(ValueError, match="320 x 200 is too small"):
        EchelonAnimation(short, (320, 200))


@pytest.mark.slow
def test_an_evaluation_leaves_pictures(tmp_path: Path) -> None:
    def nobody(tensordict: Any) -> Any:
        shape = (*tensordict["agents", "active"].shape, 10)
        return tensordict.set(("agents", "action"), tensordict["agents", "active"].new_zeros(shape).long())

    options = {"blue": 1, "red": 1, "maps": 2, "max_steps": 4}
    done = evaluate(nobody, "echelon", options, episodes=2, seed=0, record=1)  # type: ignore[arg-type]
    written = save_pictures(done, tmp_path)
    assert [path.name for path in written] == ["trajectories.png", "first.mp4"]
    assert all(path.stat().st_size > 1000 for path in written)
