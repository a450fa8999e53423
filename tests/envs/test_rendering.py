"""Drawing, the pictures of every world, and recordings of episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest
from PIL import Image, ImageSequence

from rlstack import envs
from rlstack.envs.arena.recording import SIZE, ArenaAnimation, ArenaRecording, ArenaRenderer
from rlstack.envs.echelon.maps import FOLIAGE, LAVA, LOW_WALL, WATER
from rlstack.envs.echelon.recording import EchelonAnimation, EchelonLayout, background
from rlstack.envs.echelon.replay import RecordedMap
from rlstack.envs.marinenav.recording import MarineNavRecording
from rlstack.envs.recording import EpisodeRecording, Frames
from rlstack.envs.rendering.canvas import Canvas, Picture, PictureLayout, captioned, texts_apart, width_of, write
from rlstack.envs.rendering.films import Animation, in_grid, save_animation, save_picture
from rlstack.envs.rocket.recording import COLUMNS, RocketAnimation, RocketPictureLayout, RocketRecording
from tests.conftest import REPO
from tests.envs.arena import pictured as arena
from tests.envs.echelon.episodes import fight
from tests.envs.played import played
from tests.exhaustive import exhaustive
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


@pytest.mark.parametrize(
    ("options", "shades"),
    [({"hold": 0.4}, [*range(0, 201, 20), 202, 204]), ({"speed": 2.0, "hold": 0}, [*range(0, 201, 40)])],
)
def test_a_film_goes_by_the_animation_s_time_and_holds_its_end(
    options: dict[str, float], shades: list[int], tmp_path: Path
) -> None:
    save_animation(Fade(), tmp_path / "fade.gif", fps=5, **options)
    with imageio.get_reader(tmp_path / "fade.gif") as reader:
        assert [int(frame[0, 0, 0]) for frame in reader.iter_data()] == shades


@pytest.mark.parametrize("fps", [15.0, 30.0])
def test_a_gif_takes_the_time_of_the_animation(fps: float, tmp_path: Path) -> None:
    save_animation(Fade(), tmp_path / "fade.gif", fps=fps, hold=0)
    with Image.open(tmp_path / "fade.gif") as film:
        shown = sum(picture.info["duration"] for picture in ImageSequence.Iterator(film))
    assert 2000 <= shown <= 2100  # two seconds, and the last picture


def test_a_film_of_another_kind_leaves_no_file(tmp_path: Path) -> None:
    message = r"cannot write fade.avi: the suffix must be one of .gif, .mp4"
    refused(ValueError, message, save_animation, Fade(), tmp_path / "fade.avi")
    assert not list(tmp_path.iterdir())


# -- Pictures of all worlds are those that somebody has looked at, and show everything where it is -------------------


GOLDEN = REPO / "tests/fixtures/pictures"

# -- what is drawn -------------------------------------------------------------------------------------------------


def battle() -> Picture:
    """The ship is hurt while an enemy explodes and a spawner is struck."""
    before = arena.shown()
    nobody = {"enemies": np.zeros((0, 2)), "enemy_speed": np.zeros(0), "enemy_ready": np.zeros(0)}
    struck = dataclasses.replace(
        before, step=before.step + 1, health=60.0, spawner_health=np.array([60.0, 0, 0, 0, 0]), **nobody
    )
    drawing = ArenaRenderer(arena.rules_of(), SIZE)
    drawing.draw(before)
    drawing.draw(struck)
    return drawing.draw(dataclasses.replace(struck, step=before.step + 4))


def sailing(**changes: Any) -> MarineNavRecording:
    """Robot 0 heads north along y = 10, robot 1 east along x = 15 until it collides; robot 2 is padding."""
    frames, robots = 6, 3
    pose = np.zeros((frames, robots, 3))
    pose[:, 0, 0], pose[:, 0, 1] = np.linspace(20, 30, frames), 10.0
    pose[:, 1, 0], pose[:, 1, 1], pose[:, 1, 2] = 15.0, np.linspace(30, 40, frames), np.pi / 2
    perceived, mask = np.zeros((frames, robots, 5, 5)), np.zeros((frames, robots, 5), bool)
    perceived[:, 0, 0], mask[:, 0, 0] = (6.0, 8.0, 0.0, 0.0, 1.5), True
    perceived[:, 0, 1] = (-10.0, -10.0, 0.0, 0.0, 1.5)  # masked: not drawn
    active, status = np.ones((frames, robots), bool), np.zeros((frames, robots), int)
    active[:, 2], active[5, 1], status[5, 1], status[:, 2] = False, False, 2, -1
    fields: dict[str, Any] = {
        **{"dt": 0.5, "pose": pose, "active": active, "status": status, "title": "two vessels"},
        **{"goal": np.array([[45.0, 10.0], [15.0, 50.0], [0.0, 0.0]]), "start": pose[0, :, :2]},
        **{"obstacles": np.array([[40.0, 30.0, 2.0]]), "cores": np.array([[30.0, 45.0, 1, 9.42]])},
        **{"reached": np.zeros((frames, robots), bool), "perceived": perceived, "perceived_mask": mask},
    }
    return MarineNavRecording(**(fields | changes))


def soccer(steps: int = 12, cars: int = 4, **changes: Any) -> RocketRecording:
    """Puts cars and ball on the ground in the middle; changes apply to all states or to each."""
    columns = {
        name: np.zeros((steps, *(cars if size == "C" else size for size in rest)), kind)
        for name, (kind, rest) in COLUMNS.items()
    }
    columns["clock"][:], columns["rotation"][:] = 8 * np.arange(steps), np.eye(3)
    columns["ball_position"][:, 2], columns["position"][..., 2] = 93.15, 17.0
    for name, value in changes.items():
        columns[name][:] = value
    return RocketRecording(Frames(**columns), title="a game")


def aerial() -> RocketRecording:
    """A car has touched the ball, which flies; one drives with boost, one was demolished, one is absent."""
    way, touches, gone = np.linspace(0, 1, 12), np.zeros((12, 4), bool), np.zeros((12, 4), np.int16)
    touches[2, 0], gone[8:, 2], gone[:, 3] = True, 200, -1
    position = np.tile(np.array([[1500.0, -2500, 800], [-1500, 2000, 17], [800, 1500, 17], [0, 0, 17]]), (12, 1, 1))
    position[:, 1, 1] += 1500 * way
    ball = np.stack((-1500 + 700 * way, -1000 + 900 * way, 400 + 700 * way), 1)
    return soccer(
        position=position,
        touches=touches,
        gone=gone,
        boosting=[False, True, False, False],
        boost=60.0,
        velocity=[0.0, 1500.0, 0.0],
        ball_position=ball,
        ball_velocity=[500.0, 900.0, 600.0],
        pads=np.where(np.arange(34) % 3, 0, 240),
    )


def ground() -> Picture:
    """Two hills, the second higher, and every kind of ground."""
    height, kind = np.zeros((64, 64), np.uint8), np.zeros((64, 64), np.uint8)
    height[10:14, 40:44], height[30:34, 40:44] = 3, 8  # rows are y
    for place, name in enumerate((FOLIAGE, LOW_WALL, WATER, LAVA)):
        kind[50:54, 10 * place : 10 * place + 4] = name
    return background(EchelonLayout((1280, 720)), RecordedMap(height, kind, (32.0, 32.0, 6.0)))


def shooting(name: str) -> Picture:
    """The fight just after the first event of a kind."""
    recording = fight()[1]
    event = next(event for event in recording.record.events if event.type == name)
    return recording.animation().draw(event.tick + 0.5)


PICTURES: dict[str, Callable[[], Picture]] = {
    "arena": lambda: ArenaRenderer(arena.rules_of(), SIZE).draw(arena.shown()),
    "arena_style_2": lambda: ArenaRenderer(arena.rules_of(2), SIZE).draw(arena.shown(style=2)),
    "arena_battle": battle,
    "arena_phase": lambda: arena.recording(3).animation().draw(200.0),
    "arena_won": lambda: ArenaRenderer(arena.rules_of(), SIZE).draw(dataclasses.replace(arena.shown(), phase=5)),
    "arena_overview": lambda: arena.recording(121).overview(),
    "marinenav": lambda: sailing().animation().draw(4.0),
    "marinenav_overview": lambda: sailing().overview(),
    "rocket": lambda: aerial().animation().draw(40.0),
    "rocket_demolition": lambda: RocketAnimation(aerial()).draw(None, 10.0),
    "marinenav_collision": lambda: sailing().animation().draw(5.0),
    "rocket_goal": lambda: RocketAnimation(soccer(goal=[*[0] * 11, 1], ball_position=[0, 5400.0, 93])).draw(None, 60.0),
    "rocket_overview": lambda: aerial().overview(),
    "echelon_ground": ground,
    "echelon_laser": lambda: shooting("laser_hit"),
    "echelon_kill": lambda: shooting("kill"),
    "echelon_end": lambda: EchelonAnimation(fight()[1].replay).draw(None, 20.0),
    "echelon_overview": lambda: fight()[1].overview(),
}


def smaller(picture: Picture) -> Picture:
    """Returns a picture at a quarter of its size, in which letters matter little."""
    height, width = (length // 4 for length in picture.shape[:2])
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BOX))


def differs(picture: Picture, name: str) -> bool:
    """Returns whether a picture is another than the one that was looked at."""
    known = imageio.imread(GOLDEN / f"{name}.png").astype(int)
    return bool(np.abs(smaller(picture) - known).max() > 48)


@exhaustive("name", list(PICTURES), quick=10)
def test_a_picture_is_the_one_that_was_looked_at(name: str) -> None:
    assert not differs(PICTURES[name](), name)


# -- what a picture cannot show ------------------------------------------------------------------------------------


@exhaustive("recording", [arena.recording, aerial, sailing], quick=2)
def test_an_animation_is_the_same_in_any_order(recording: Callable[[], EpisodeRecording]) -> None:
    film = recording().animation()
    first, last = film.span
    times = [first, last]
    forwards = [film.draw(time) for time in times]
    assert all((film.draw(time) == picture).all() for time, picture in zip(times[::-1], forwards[::-1]))
    assert (recording().animation().draw(last) == forwards[1]).all()


def test_an_animation_goes_on_with_a_longer_recording_of_the_same_episode() -> None:
    whole = sailing()
    parts = {name: getattr(whole, name)[:3] for name in ("pose", "active", "status", "reached")}
    animation = sailing(**parts).animation()
    assert animation.longer(whole) is animation and animation.span == (0.0, 5.0)
    assert (animation.draw(5.0) == whole.animation().draw(5.0)).all()
    far = sailing(pose=whole.pose + np.array([0.0, 40.0, 0.0]))
    assert animation.longer(far) is not animation


def test_a_single_frame_knows_what_was_before() -> None:
    episode = arena.recording()
    hurt = [frame if t < 4 else dataclasses.replace(frame, health=140.0) for t, frame in enumerate(episode.frames)]
    alone = ArenaAnimation(ArenaRecording(hurt, episode.rules)).draw(206)
    assert alone[300, 1, 0] > episode.animation().draw(206)[300, 1, 0] + 50  # the edges are red


def test_what_is_between_two_recorded_steps_shows_the_later_one() -> None:
    film = arena.recording(3, stride=4).animation()  # an action was repeated four times
    assert film.span == (200.0, 208.0) and (film.draw(202.0) == film.draw(204.0)).all()


@pytest.mark.slow
def test_a_film_of_another_kind_plays_at_the_same_speed(tmp_path: Path) -> None:
    save_animation(ArenaAnimation(arena.recording(21), (320, 256)), tmp_path / "episode.MP4", fps=20, hold=1.5)
    with imageio.get_reader(tmp_path / "episode.MP4") as reader:
        frames = [*reader.iter_data()]
        # Steps 0 to 18 are seen every 3 steps, the last one 1.5 s longer.
        assert len(frames) == 7 + 30 and reader.get_meta_data()["duration"] == pytest.approx(37 / 20)
    assert frames[0].shape[:2] == (256, 320)


@exhaustive("size", [(640, 360), (1000, 400), (640, 800), (1920, 1080)])
def test_everything_is_within_any_picture(size: tuple[int, int]) -> None:
    pitch, land = RocketPictureLayout(size), EchelonLayout(size)
    assert pitch.above[1] - 4096 * pitch.scale > 40 * pitch.unit
    assert pitch.beside[1] < size[1] - 10 * pitch.unit and pitch.panel > 200 * pitch.unit
    assert land.corner[1] - 64 * land.scale > 50 * land.unit and land.corner[1] < size[1]
    assert land.panel >= 290 * land.unit
    assert RocketAnimation(soccer(cars=6), size).draw().shape == (size[1], size[0], 3)
    assert EchelonAnimation(fight()[1].replay, size).draw(ways=True).shape == (size[1], size[0], 3)


@pytest.mark.parametrize("rotation", [np.zeros((3, 3)), np.outer([1.0, 0.3, -2.0], [0.3, 0.5, 0.7])])
def test_cars_without_an_area_have_a_picture(rotation: Any) -> None:
    """A replay may hold any finite numbers: these boxes are a point, and a line across the axes."""
    with np.errstate(invalid="ignore"):
        RocketAnimation(soccer(rotation=rotation), (640, 360)).draw(0.0)


def test_impossible_pictures_are_refused(tmp_path: Path) -> None:
    refused(ValueError, "100 x 80 is too small, at least 320 x 256", ArenaRenderer, arena.rules_of(), (100, 80))
    refused(ValueError, "320 x 200 is too small", RocketAnimation, soccer(), (320, 200))
    odd = ArenaAnimation(arena.recording(), (401, 320))
    refused(ValueError, "401 x 320 must be even numbers of pixels", save_animation, odd, tmp_path / "episode.mp4")
    assert not list(tmp_path.iterdir())


# -- Recorders of all worlds: an episode from its first to its last state, and another after it ----------------------


WORLDS: dict[str, dict[str, Any]] = {
    "arena": {"max_steps": 3},
    "marinenav": {"max_steps": 2},
    "rocket": {"max_seconds": 0.05, "tick_skip": 2},
    "echelon": {"blue": 1, "red": 2, "maps": 2, "max_steps": 3},
}
"""Options with which an episode takes three steps."""
CLOCKS = {"arena": 1, "marinenav": 1, "rocket": 2, "echelon": 5}


def clocks(world: str, recording: Any) -> list[float]:
    """Returns the times of a recording's states in steps."""
    if world == "marinenav":
        return list(range(len(recording.pose)))
    frames = recording.frames
    times = [frame.step for frame in frames] if world == "arena" else getattr(frames, "clock", None)
    times = frames.tick if times is None else times
    return [float(time) / CLOCKS[world] for time in times]


@pytest.mark.parametrize("world", list(WORLDS))
def test_one_episode_after_another(world: str) -> None:
    wrapped = {"frame_stack": 2} if world in ("arena", "rocket") else {}  # wrapped worlds are recorded, too
    env = envs.make(world, num_worlds=3, **WORLDS[world], **wrapped)
    recorder = env.recorder([2, 0])
    refused(ValueError, r"call add\(\) after the reset", recorder.recordings)
    root, lengths = env.reset(), []
    recorder.add()
    for _ in range(8):
        stepped = env.step(env.rand_action(root))
        recorder.add()
        if over := bool(stepped["next", "done"].all()):
            lengths.append(clocks(world, recorder.finish(0)))
        root = env.maybe_reset(env.step_mdp(stepped))
        if over:
            recorder.begin()
    assert lengths == [[0, 1, 2, 3]] * 2
    assert clocks(world, recorder.recordings()[0]) == [0, 1, 2]
    assert clocks(world, recorder.recordings()[1]) == [0, 1, 2, 3]  # the first, since it was not finished
    recording = recorder.finish(0)
    assert recording.title == "world 2" and recording.overview().ndim == 3 and recording.legend()


@pytest.mark.parametrize("world", list(WORLDS))
def test_a_restart_ends_a_recording(world: str) -> None:
    env = envs.make(world, num_worlds=1, **WORLDS[world])
    recorder = env.recorder([0], ["one"])
    for _ in range(2):
        played(env, recorder, 1)
    assert clocks(world, recorder.recordings()[0]) == [0, 1]


def test_worlds_and_titles_must_fit_the_env() -> None:
    env = envs.make("arena", num_worlds=2)
    refused(ValueError, r"worlds: \[2\] are not among the 2 worlds", env.recorder, [1, 2])
    refused(ValueError, "1 titles for 2 worlds", env.recorder, [0, 1], ["one"])


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for picture_name, draw in PICTURES.items():
        save_picture(GOLDEN / f"{picture_name}.png", smaller(draw()))


def test_something_elsewhere_is_another_picture() -> None:
    now = arena.shown()
    moved = dataclasses.replace(now, position=now.position + np.array([30.0, 0.0], np.float32))
    assert differs(ArenaRenderer(arena.rules_of(), SIZE).draw(moved), "arena")
