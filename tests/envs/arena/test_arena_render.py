"""Renderer: everybody is where the state says, files hold the episode, errors name the fault."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest
import torch

from envs.arena import hud, scene
from envs.arena.env import Arena
from envs.arena.recording import Recorder, Recording
from envs.arena.render import SIZE, draw_frame, draw_world, frame_indices, save_animation, save_png, save_trajectories
from envs.arena.scene import BULLET, ENEMY, FLAME, GREEN, SHIP, SHOT, SPAWNER, WHITE, Scene
from envs.drawing.font import mask
from tests.envs.arena.pictured import (
    BULLET_AT,
    ENEMY_AT,
    SHIP_AT,
    SHOT_AT,
    SPAWNER_AT,
    has,
    recording,
    rules_of,
    shown,
    two_worlds,
)

SMALL = (320, 256)
PLACES = [(SHIP_AT, WHITE), (ENEMY_AT, ENEMY), (SPAWNER_AT, SPAWNER), (SHOT_AT, WHITE), (BULLET_AT, BULLET)]


@pytest.mark.parametrize("size", [SIZE, (640, 512), (960, 540), (512, 640)])
def test_a_world_is_drawn_in_any_size_with_everybody_in_place(size: tuple[int, int]) -> None:
    picture, empty = (draw_world(two_worlds(), world, rules_of(), size) for world in (1, 0))
    assert picture.shape == (size[1], size[0], 3) and picture.dtype == np.uint8
    for at, colour in PLACES:
        assert has(picture, at, colour), at
        assert not has(empty, at, colour), at
    assert has(empty, (800, 640), SHIP, 8) and not has(picture, (800, 640), SHIP, 8)


def test_the_same_state_gives_the_same_picture() -> None:
    assert (draw_world(two_worlds(), 1, rules_of()) == draw_world(two_worlds(), 1, rules_of())).all()


@pytest.mark.parametrize("style", [1, 2])
def test_the_ship_points_where_it_shoots_and_y_points_down(style: int) -> None:
    state = two_worlds(style)
    for turn, ahead in ((0, (1, 0)), (1, (0, 1)), (2, (-1, 0)), (3, (0, -1))):
        state.rotation[1] = turn * math.pi / 2
        picture = draw_world(state, 1, rules_of(style))
        nose, stern = ([at + sign * 18 * part for at, part in zip(SHIP_AT, ahead)] for sign in (1, -1))
        assert has(picture, (nose[0], nose[1]), SHIP, 1) and not has(picture, (stern[0], stern[1]), SHIP, 1)


def test_trails_lie_behind_projectiles() -> None:
    picture = draw_world(two_worlds(), 1, rules_of())
    light = picture.astype(int).sum(-1)
    (shot_x, shot_y), (bullet_x, bullet_y) = ((at[0] // 2, at[1] // 2) for at in (SHOT_AT, BULLET_AT))
    assert light[shot_y, shot_x - 6] > 2 * light[shot_y, shot_x + 6]  # it flies to the right
    assert light[bullet_y + 6, bullet_x] > 2 * light[bullet_y - 6, bullet_x]  # it flies up
    assert has(picture, (SHOT_AT[0] - 8, SHOT_AT[1]), SHOT)


def test_what_is_dead_spent_or_outside_is_not_drawn() -> None:
    state = two_worlds()
    state.target_health.zero_()
    state.shot_ends[:] = state.step
    state.bullet_ends[:] = 1e9
    picture = draw_world(state, 1, rules_of())
    for at, colour in PLACES[1:]:
        assert not has(picture, at, colour), at
    state.shot_ends[0] += 50
    state.shots[0, 0] = 1601
    assert (draw_world(state, 1, rules_of()) == picture).all()


def test_health_of_a_spawner_is_a_ring_clockwise_from_the_top() -> None:
    state, (x, y), radius = two_worlds(), SPAWNER_AT, 35
    full = draw_world(state, 1, rules_of())
    state.target_health[8, 1] = 60
    picture = draw_world(state, 1, rules_of())
    right, left = (x + radius, y), (x - radius, y)
    assert has(full, left, GREEN, 1) and has(full, right, GREEN, 1)
    assert has(picture, right, GREEN, 1) and not has(picture, left, GREEN, 1)


def test_every_phase_has_its_own_night_and_spawner_pips() -> None:
    corner = []
    for phase in range(5):
        env = Arena(num_worlds=1, start_phases=[phase])
        env.reset()
        picture = draw_world(env.worlds, 0, env.rules)
        corner.append(tuple(picture[200, 700].tolist()))
        pips = (np.abs(picture[:50].astype(int) - SPAWNER).max(-1) < 10).sum()
        assert pips == env.rules.phases[phase].anchors.__len__() * 12 * 8
    assert len(set(corner)) == 5


def test_the_health_bar_shrinks() -> None:
    state, lit = two_worlds(), []
    for health in (150, 100, 90, 10):
        state.health[1] = health
        bar = draw_world(state, 1, rules_of())[12:26, 12:200].astype(int)
        lit.append((bar.max(-1) > 200).sum() // (10 * 14))  # cells are 10 by 14 pixels
    assert lit == [15, 10, 9, 1]


@pytest.mark.parametrize(
    ("changes", "colour"),
    [
        ({"phase": 5}, hud.WIN),
        ({"phase": 5, "health": 0.0}, hud.WIN),
        ({"health": 0.0}, hud.LOSS),
        ({"step": 3000}, hud.LATE),
        ({}, None),
    ],
)
def test_the_banner_tells_how_the_game_ended(changes: dict[str, float], colour: tuple[int, int, int] | None) -> None:
    picture = Scene(rules_of(), SIZE).draw(replace(shown(), **changes))
    band = picture[200:330, 150:650].astype(int)
    for banner in (hud.WIN, hud.LOSS, hud.LATE):
        pixels = (np.abs(band - banner).max(-1) < 10).sum()
        assert pixels > 2000 if banner == colour else pixels < 100


def test_a_new_phase_is_announced() -> None:
    late = shown()
    fresh = replace(late, phase_start=late.step - 5)
    pictures = [Scene(rules_of(), SIZE).draw(now) for now in (late, fresh)]
    changed = (pictures[0] != pictures[1]).any(-1)
    assert changed[210:260].any() and not changed[270:].any()


def test_thrust_shows_as_a_flame_in_style_1_only() -> None:
    def flames(style: int, number: int) -> int:
        env, drawing = Arena(num_worlds=1, style=style), Scene(rules_of(style), SIZE)
        root = env.reset()
        recorder = Recorder(env, [0])
        for _ in range(3):
            root = env.step_mdp(env.step(root.set("action", torch.tensor([number]))))
            recorder.add()
        picture = [drawing.draw(frame) for frame in recorder.recordings()[0].frames][-1]
        around = picture[300:340, 370:430].astype(int)
        return int((np.abs(around - FLAME).max(-1) < 60).sum())

    assert flames(1, 1) > flames(1, 0) + 10
    assert flames(2, 1) == flames(2, 4) == 0


def test_an_explosion_is_seen_and_fades() -> None:
    state = two_worlds()
    before = shown(state.map(torch.clone))
    state.target_health[0, 1] = 0
    after = [replace(shown(state.map(torch.clone)), step=before.step + age) for age in (1, 10, 40)]
    plain = [Scene(rules_of(), SIZE).draw(now) for now in after]
    drawing = Scene(rules_of(), SIZE)
    drawing.draw(before)
    seen = [drawing.draw(now) for now in after]
    row, column = ENEMY_AT[1] // 2, ENEMY_AT[0] // 2
    around = np.s_[row - 30 : row + 30, column - 30 : column + 30]
    light = [int(picture[around].astype(int).sum() - bare[around].sum()) for picture, bare in zip(seen, plain)]
    assert light[0] > 50_000 and light[1] > 5_000 and light[2] == 0


def test_a_hit_on_the_player_turns_the_edges_red() -> None:
    before = shown()
    drawing = Scene(rules_of(), SIZE)
    drawing.draw(before)
    hit = drawing.draw(replace(before, step=before.step + 1, health=140.0))
    assert hit[300, 1, 0] > 150 and draw_world(two_worlds(), 1, rules_of())[300, 1, 0] < 100


def test_frames_of_an_episode() -> None:
    episode = recording()
    assert (draw_frame(episode, -1) == draw_frame(episode, 6)).all()
    with pytest.raises(IndexError):
        draw_frame(episode, 7)
    first, last = draw_frame(episode, 0), draw_frame(episode, 6)
    assert has(last, (518, 640), WHITE, 1) and not has(first, (518, 640), WHITE, 1)


def test_a_single_frame_knows_what_was_before() -> None:
    episode = recording()
    hurt = [frame if t < 4 else replace(frame, health=140.0) for t, frame in enumerate(episode.frames)]
    drawing = Scene(episode.rules, SIZE)
    in_a_row = [drawing.draw(frame, title="hit") for frame in hurt]
    alone = draw_frame(Recording(hurt, episode.rules, "hit"), 6)
    assert (alone == in_a_row[6]).all() and alone[300, 1, 0] > draw_frame(episode, 6)[300, 1, 0] + 50


def test_png_shows_the_frame(tmp_path: Path) -> None:
    save_png(recording(), tmp_path / "frame.png", t=2, size=SMALL)
    assert (imageio.imread(tmp_path / "frame.png") == draw_frame(recording(), 2, SMALL)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["episode.gif", "episode.MP4"])
def test_an_animation_plays_at_60_steps_a_second_and_holds_the_end(tmp_path: Path, name: str) -> None:
    save_animation(recording(21), tmp_path / name, fps=20, size=SMALL)
    with imageio.get_reader(tmp_path / name) as reader:
        frames = [*reader.iter_data()]
        duration = reader.get_meta_data()["duration"]
    # Steps 0 to 20 are seen every 3 steps, the last one 1.5 s longer; GIF makes one of pictures that are the same.
    gif = name.endswith("gif")
    assert len(frames) == (8 if gif else 8 + 30)
    assert duration == pytest.approx(50 + 1500 if gif else 38 / 20)  # ms, of the last frame; s, of all
    assert frames[0].shape[:2] == SMALL[::-1]
    ship, start = (frames[-1][128, x // 5, :3].max() for x in (560, 500))
    assert ship > 150 and start < 100 and frames[0][128, 500 // 5, :3].max() > 150


def test_frames_are_shown_at_even_times_whatever_is_between_them() -> None:
    assert frame_indices(recording(7), 2.0) == [0, 2, 4, 6]
    assert frame_indices(recording(8), 2.0) == [0, 2, 4, 6, 7]
    assert frame_indices(recording(3, stride=4), 2.0) == [0, 1, 1, 2, 2]  # an action was repeated four times
    assert frame_indices(recording(1), 2.0) == [0]


def test_impossible_pictures_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot write episode.avi: the suffix must be one of .gif, .mp4"):
        save_animation(recording(), tmp_path / "episode.avi")
    with pytest.raises(ValueError, match="401 x 320 must be even numbers of pixels"):
        save_animation(recording(), tmp_path / "episode.mp4", size=(401, 320))
    with pytest.raises(ValueError, match="100 x 80 is too small, at least 320 x 256"):
        draw_world(two_worlds(), 1, rules_of(), (100, 80))
    with pytest.raises(ValueError, match="world: 2 is not among the 2 worlds"):
        draw_world(two_worlds(), 2, rules_of())
    with pytest.raises(ValueError, match="at least one recording"):
        save_trajectories([], tmp_path / "none.png")
    with pytest.raises(ValueError, match="needs at least one"):
        Recording([], rules_of())
    assert not list(tmp_path.iterdir())


def test_the_grid_shows_ends_and_ways(tmp_path: Path) -> None:
    episode = recording(121)
    lost = Recording([*episode.frames[:-1], replace(episode.frames[-1], health=0.0)], episode.rules)
    save_trajectories([episode, lost, episode], tmp_path / "grid.png", columns=2)
    grid = imageio.imread(tmp_path / "grid.png")
    assert grid.shape == (640, 800, 3) and not grid[320:, 400:].any()
    left, right = grid[:320, :400], grid[:320, 400:]
    assert (np.abs(right[100:160].astype(int) - hud.LOSS).max(-1) < 10).sum() > 300
    assert not (np.abs(left[100:160].astype(int) - hud.LOSS).max(-1) < 10).any()
    way = left[160, 135:200].astype(int)  # from x = 540 to 800, y = 640
    assert (way[:, 2] > 90).mean() > 0.8 and (left[180, 135:200, 2] < 90).all()


def test_letters() -> None:
    assert mask("PHASE 1", 3).shape == (21, 3 * (7 * 6 - 1))
    assert (mask("l", 1) == mask("L", 1)).all() and mask("L", 1)[:, 0].all() and mask("L", 1)[-1].all()
    assert mask("é", 1)[0].all()  # a box stands for letters that are not there
    assert not mask("", 2).any()


def test_nights_follow_the_phases() -> None:
    assert len(scene.NIGHTS) == len(rules_of().phases)
