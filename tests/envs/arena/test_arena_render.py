"""The renderer draws everything where the state says, files hold the episode, errors name the fault."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest
import torch

from rlstack.envs.arena import render
from rlstack.envs.arena.env import Arena
from rlstack.envs.arena.recording import ArenaAnimation, ArenaRecorder, ArenaRecording, snapshot
from rlstack.envs.arena.render import (
    BULLET,
    ENEMY,
    FLAME,
    GREEN,
    SHIP,
    SHOT,
    SIZE,
    SPAWNER,
    WHITE,
    ArenaRenderer,
)
from rlstack.envs.arena.rules import ArenaRules
from rlstack.envs.arena.state import ArenaState
from rlstack.envs.rendering.canvas import Picture
from rlstack.envs.rendering.films import save_animation
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
from tests.refusals import refused

SMALL = (320, 256)
PLACES = [(SHIP_AT, WHITE), (ENEMY_AT, ENEMY), (SPAWNER_AT, SPAWNER), (SHOT_AT, WHITE), (BULLET_AT, BULLET)]


def draw_world(state: ArenaState, world: int, rules: ArenaRules, size: tuple[int, int] = SIZE) -> Picture:
    return ArenaRenderer(rules, size).draw(snapshot(state, world, rules))


def draw_frame(episode: ArenaRecording, step: float | None, size: tuple[int, int] = SIZE) -> Picture:
    return ArenaAnimation(episode, size).draw(step)


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
        ({"phase": 5}, render.WIN),
        ({"phase": 5, "health": 0.0}, render.WIN),
        ({"health": 0.0}, render.LOSS),
        ({"step": 3000}, render.LATE),
        ({}, None),
    ],
)
def test_the_banner_tells_how_the_game_ended(changes: dict[str, float], colour: tuple[int, int, int] | None) -> None:
    picture = ArenaRenderer(rules_of(), SIZE).draw(replace(shown(), **changes))
    band = picture[200:330, 150:650].astype(int)
    for banner in (render.WIN, render.LOSS, render.LATE):
        pixels = (np.abs(band - banner).max(-1) < 10).sum()
        assert pixels > 2000 if banner == colour else pixels < 100


def test_a_new_phase_is_announced() -> None:
    late = shown()
    fresh = replace(late, phase_start=late.step - 5)
    pictures = [ArenaRenderer(rules_of(), SIZE).draw(now) for now in (late, fresh)]
    changed = (pictures[0] != pictures[1]).any(-1)
    assert changed[210:260].any() and not changed[270:].any()


def test_thrust_shows_as_a_flame_in_style_1_only() -> None:
    def flames(style: int, number: int) -> int:
        env, drawing = Arena(num_worlds=1, style=style), ArenaRenderer(rules_of(style), SIZE)
        root = env.reset()
        recorder = ArenaRecorder(env, [0])
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
    plain = [ArenaRenderer(rules_of(), SIZE).draw(now) for now in after]
    drawing = ArenaRenderer(rules_of(), SIZE)
    drawing.draw(before)
    seen = [drawing.draw(now) for now in after]
    row, column = ENEMY_AT[1] // 2, ENEMY_AT[0] // 2
    around = np.s_[row - 30 : row + 30, column - 30 : column + 30]
    light = [int(picture[around].astype(int).sum() - bare[around].sum()) for picture, bare in zip(seen, plain)]
    assert light[0] > 50_000 and light[1] > 5_000 and light[2] == 0


def test_a_hit_on_the_player_turns_the_edges_red() -> None:
    before = shown()
    drawing = ArenaRenderer(rules_of(), SIZE)
    drawing.draw(before)
    hit = drawing.draw(replace(before, step=before.step + 1, health=140.0))
    assert hit[300, 1, 0] > 150 and draw_world(two_worlds(), 1, rules_of())[300, 1, 0] < 100


def test_frames_of_an_episode() -> None:
    episode = recording()
    assert (draw_frame(episode, None) == draw_frame(episode, 206)).all()
    first, last = draw_frame(episode, 200), draw_frame(episode, 206)
    assert has(last, (518, 640), WHITE, 1) and not has(first, (518, 640), WHITE, 1)


def test_an_animation_is_the_same_in_any_order() -> None:
    animation = ArenaAnimation(recording())
    forwards = [animation.draw(step) for step in range(200, 207)]
    assert (animation.draw(203) == forwards[3]).all() and (animation.draw(206) == forwards[6]).all()


def test_a_single_frame_knows_what_was_before() -> None:
    episode = recording()
    hurt = [frame if t < 4 else replace(frame, health=140.0) for t, frame in enumerate(episode.frames)]
    drawing = ArenaRenderer(episode.rules, SIZE)
    in_a_row = [drawing.draw(frame, title="hit") for frame in hurt]
    alone = draw_frame(ArenaRecording(hurt, episode.rules, "hit"), 206)
    assert (alone == in_a_row[6]).all() and alone[300, 1, 0] > draw_frame(episode, 206)[300, 1, 0] + 50


@pytest.mark.slow
@pytest.mark.parametrize("name", ["episode.gif", "episode.MP4"])
def test_an_animation_plays_at_60_steps_a_second_and_holds_the_end(tmp_path: Path, name: str) -> None:
    save_animation(ArenaAnimation(recording(21), SMALL), tmp_path / name, fps=20, hold=1.5)
    with imageio.get_reader(tmp_path / name) as reader:
        frames = [*reader.iter_data()]
        duration = reader.get_meta_data()["duration"]
    # Steps 0 to 18 are seen every 3 steps, the last one 1.5 s longer; GIF makes one of pictures that are the same.
    gif = name.endswith("gif")
    assert len(frames) == (8 if gif else 7 + 30)
    assert duration == pytest.approx(1500 if gif else 37 / 20)  # ms, of the last frame; s, of all
    assert frames[0].shape[:2] == SMALL[::-1]
    ship, start = (frames[-1][128, x // 5, :3].max() for x in (560, 500))
    assert ship > 150 and start < 100 and frames[0][128, 500 // 5, :3].max() > 150


def test_what_is_between_two_recorded_steps_shows_the_later_one() -> None:
    episode = recording(3, stride=4)  # an action was repeated four times
    assert ArenaAnimation(episode).span == (200.0, 208.0)
    assert (draw_frame(episode, 202) == draw_frame(episode, 204)).all()


def test_impossible_pictures_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot write episode.avi: the suffix must be one of .gif, .mp4"):
        save_animation(recording().animation(), tmp_path / "episode.avi")
    with pytest.raises(ValueError, match="401 x 320 must be even numbers of pixels"):
        save_animation(ArenaAnimation(recording(), (401, 320)), tmp_path / "episode.mp4")
    refused(ValueError, "100 x 80 is too small, at least 320 x 256", draw_world, two_worlds(), 1, rules_of(), (100, 80))
    assert not list(tmp_path.iterdir())


def test_an_overview_shows_the_end_and_the_way() -> None:
    episode = recording(121)
    lost = ArenaRecording([*episode.frames[:-1], replace(episode.frames[-1], health=0.0)], episode.rules)
    left, right = episode.overview(), lost.overview()
    assert not (np.abs(right[100:160].astype(int) - render.LOSS).max(-1) < 10).any()  # nothing covers the way
    assert (left[305:, :200] != right[305:, :200]).any()  # the outcome
    for picture in (left, right):
        way = picture[160, 135:200].astype(int)  # from x = 540 to 800, y = 640
        assert (way[:, 2] > 90).mean() > 0.8 and (picture[180, 135:200, 2] < 90).all()


def test_nights_follow_the_phases() -> None:
    assert len(render.NIGHTS) == len(rules_of().phases)
