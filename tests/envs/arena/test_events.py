"""Cases that the recordings lack: several events in one step, edges and limits, with both ways of stepping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlstack.envs.arena.env import Arena
from rlstack.envs.arena.events import begin, draw_everywhere
from rlstack.envs.arena.rules import FAR, NEVER, ArenaRules, make_rules, make_tables
from rlstack.envs.arena.simulation import PLAIN, ArenaOutcome, advance, advance_densely
from rlstack.envs.arena.state import ArenaState
from rlstack.evaluation.evaluator import evaluation_world
from tests.envs.arena.recorded import GivenDraws

WAIT, SHOOT = 0, 5
Step = Callable[..., tuple[ArenaState, ArenaOutcome]]
Point = tuple[float, float]


def draws(worlds: int = 1, fire: float = 1.0, angle: float = 0.0, gap: float = 0.0) -> GivenDraws:
    """Draws the same number for all; by default nobody fires and enemies appear 42 px to the right of spawners."""
    shapes = (8, worlds), (6, 5, worlds), (5, 5, worlds), (2, 5, worlds)
    return GivenDraws(*(torch.full(shape, value) for shape, value in zip(shapes, (fire, angle, gap, 0.5))))


def stepping(dense: bool) -> Step:
    def go(state: ArenaState, action: int = WAIT, given: GivenDraws | None = None, rules: ArenaRules | None = None):
        rules = rules or make_rules(2, None)
        chosen = torch.full((len(state.step),), action)
        given = given or draws(len(state.step))
        tables = make_tables(rules, torch.float32, "cpu")
        if dense:
            return advance_densely(state, chosen, rules, tables, draw_everywhere(state, given, rules))
        return advance(state, chosen, rules, tables, given, PLAIN)

    return go


@pytest.fixture(params=["sparse", "dense"])
def step(request: pytest.FixtureRequest) -> Step:
    return stepping(request.param == "dense")


def world(phase: int = 4, player: Point = (800.0, 300.0), health: float = 150.0, at: int = 1000) -> ArenaState:
    """Makes one world in the middle of a phase, whose spawners rest."""
    rules = make_rules(2, None)
    tables = make_tables(rules, torch.float32, "cpu")
    jitter, slots = torch.full((2, 5, 1), 0.5), rules.enemy_shot_slots
    state = begin(torch.tensor([phase]), torch.tensor([health]), jitter, slots, rules, tables)
    state.position[:, 0] = torch.tensor(player)
    state.step[0] = at
    state.ready[8:] = torch.where(state.ready[8:] < NEVER, at + 50.0, NEVER)
    return state


def leave_spawners(state: ArenaState, *health: float) -> None:
    """Gives the first spawners this health, and removes the others."""
    for slot in range(5):
        if slot < len(health):
            state.target_health[8 + slot] = health[slot]
        else:
            state.targets[:, 8 + slot], state.target_health[8 + slot], state.ready[8 + slot] = FAR, 0.0, NEVER


def add_enemies(state: ArenaState, places: Sequence[Point], speed: float = 0.0) -> None:
    for row, place in enumerate(places):
        state.targets[:, row, 0] = torch.tensor(place)
        state.target_health[row], state.speed[row], state.ready[row] = 10.0, speed, float(state.step[0]) + 50
    state.enemies[0] = len(places)


def add_shots(state: ArenaState, places: Sequence[Point]) -> None:
    """Places shots of the player so that they are there after the next step, oldest first, and do not move."""
    for slot, place in enumerate(places):
        state.shots[:, slot, 0], state.shot_ends[slot] = torch.tensor(place), float(state.step[0]) + 50
    state.fired[0] = len(places)


def add_bullets(state: ArenaState, places: Sequence[Point], born: Sequence[float] | None = None) -> None:
    """Places enemy shots that do not move."""
    for slot, place in enumerate(places):
        state.bullets[:, slot, 0], state.bullet_ends[slot] = torch.tensor(place), float(state.step[0]) + 50
        state.bullet_born[slot] = float(state.step[0]) - 10 if born is None else born[slot]


def live_bullets(state: ArenaState) -> list[int]:
    return torch.nonzero(state.bullet_ends[:, 0] < NEVER)[:, 0].tolist()


def spawner(state: ArenaState, slot: int) -> Point:
    x, y = state.targets[:, 8 + slot, 0].tolist()
    return x, y


# -- several things in one step -----------------------------------------------------------------------------------


def test_win_and_death_in_one_step(step: Step) -> None:
    state = world(health=10.0)
    leave_spawners(state, 10.0)
    add_shots(state, [spawner(state, 0)])
    add_bullets(state, [(805.0, 300.0)] * 9)  # the kill heals by 75 before they hit: 85 - 90
    state, outcome = step(state)
    assert bool(outcome.terminated) and state.phase.tolist() == [5] and state.health.tolist() == [0]
    # Shaping: 10 x (0.5 + 0.5 x 0) - 0.8 x 10 from health 10 to 0, times 0.01.
    assert float(outcome.reward) == pytest.approx(0.01 + 10 + 75 - 9 * 2 + 100 - 100 + 0.01 * (10 * 0.5 - 8))


def test_two_spawners_at_once_heal_twice_and_clear_the_phase(step: Step) -> None:
    state = world(phase=1, health=20.0, at=300)
    state.target_health[8:10] = 10.0
    add_shots(state, [spawner(state, 0), spawner(state, 1)])
    state, outcome = step(state)
    assert state.health.tolist() == [150.0] and state.spawner_kills.tolist() == [2]  # 20 + 75 + 75, at most 150
    assert state.phase.tolist() == [2] and state.phase_start.tolist() == [301] and state.first_kill.tolist() == [301]
    assert (state.target_health[8:, 0] > 0).tolist() == [True, True, True, False, False]
    # Two quick kills within 500 steps of the phase's start; 20 x 1.0 x 0.01 of shaping is at its limit of 0.2.
    assert float(outcome.reward) == pytest.approx(0.01 + 2 * (10 + 75 + 50) + 100 + 0.2)


def test_several_enemies_die_at_once_and_the_rest_move_up(step: Step) -> None:
    state = world()
    places = [(100.0, 100.0), (200.0, 500.0), (400.0, 900.0), (1200.0, 500.0), (1000.0, 900.0)]
    add_enemies(state, places)
    add_shots(state, [places[3], places[0], places[2]])
    state, outcome = step(state)
    assert state.kills.tolist() == [3] and state.enemies.tolist() == [2] and state.damage_dealt.tolist() == [30]
    assert state.targets[:, :2, 0].T.tolist() == [list(places[1]), list(places[4])]
    assert (state.targets[:, 2:8] == FAR).all() and state.target_health[:8, 0].tolist() == [10, 10] + [0] * 6
    assert not (state.shot_ends > state.step).any()
    assert float(outcome.reward) == pytest.approx(0.01 + 3 * 7 + 0.01 * 15)
    assert float(outcome.observation[0, 31]) == pytest.approx(2 / 8)


@pytest.mark.parametrize(("fired", "younger"), [(2, 1), (13, 0)])  # after thirteen, slot 0 holds the newest
def test_shots_that_find_their_target_dead_fly_on(step: Step, fired: int, younger: int) -> None:
    state = world()
    add_enemies(state, [(400.0, 900.0)])
    add_shots(state, [(405.0, 900.0), (400.0, 905.0)])
    state.fired[0] = fired
    state, outcome = step(state)
    assert (state.shot_ends[:, 0] > state.step).nonzero()[:, 0].tolist() == [younger]  # the older one has hit
    assert state.kills.tolist() == [1] and float(outcome.reward) == pytest.approx(0.01 + 7 + 0.05)


def test_a_shot_hits_enemies_before_spawners_and_the_first_before_the_nearest(step: Step) -> None:
    state = world()
    x, y = spawner(state, 0)
    add_enemies(state, [(x + 10, y), (x + 2, y)])
    add_shots(state, [(x, y)])
    state, _ = step(state)
    assert state.targets[:, 0, 0].tolist() == [x + 2, y] and state.enemies.tolist() == [1]
    assert float(state.target_health[8]) == 100


def test_what_the_dead_do_not_feel(step: Step) -> None:
    """While the player lives, enemy shots hit in the order of firing, then enemies in the order of their creation."""
    state = world(health=20.0)
    add_bullets(state, [(800.0, 305.0), (800.0, 295.0), (805.0, 300.0), (1000.0, 300.0)], born=[994, 990, 992, 980])
    add_enemies(state, [(810.0, 300.0)])
    state, outcome = step(state)
    assert live_bullets(state) == [0, 3]
    assert state.health.tolist() == [0] and state.enemies.tolist() == [1] and state.kills.tolist() == [0]
    assert state.damage_taken.tolist() == [20]
    assert float(outcome.reward) == pytest.approx(0.01 - 2 * 2 - 100 - 0.01 * 0.8 * 20)


def test_enemies_that_come_after_the_fatal_one_live_on(step: Step) -> None:
    state = world(health=20.0)
    add_enemies(state, [(810.0, 300.0), (790.0, 300.0), (800.0, 310.0)])
    state, outcome = step(state)
    assert state.health.tolist() == [0] and state.kills.tolist() == [2] and state.enemies.tolist() == [1]
    assert state.targets[:, 0, 0].tolist() == [800, 310]
    # Contact kills count for shaping, but not for the reward of a kill: 10 x 0.5 - 16 -> -0.11.
    assert float(outcome.reward) == pytest.approx(0.01 - 2 * 2 - 100 - 0.11)


# -- edges --------------------------------------------------------------------------------------------------------


def test_at_distance_zero_nothing_moves_and_shots_go_right(step: Step) -> None:
    state = world()
    add_enemies(state, [(800.0, 300.0)], speed=2.0)
    state.ready[0] = 0.0
    state, outcome = step(state, given=draws(fire=0.0))
    # The shot hits at once, then the enemy itself does.
    assert state.health.tolist() == [130] and state.kills.tolist() == [1]
    assert torch.isfinite(outcome.observation).all() and torch.isfinite(outcome.reward).all()
    assert all(torch.isfinite(value).all() for _, value in state.items())


def test_the_aim_at_distance_zero(step: Step) -> None:
    rules = replace(make_rules(2, None), player_radius=0.0)  # the shot does not touch it
    state = world()
    add_enemies(state, [(800.0, 300.0)], speed=2.0)
    state.ready[0] = 0.0
    state, _ = step(state, given=draws(fire=0.0), rules=rules)
    assert state.bullets[:, 0, 0].tolist() == [808, 300] and state.bullet_velocity[:, 0, 0].tolist() == [8, 0]


@pytest.mark.parametrize(("distance", "count"), [(150.0, 1), (150.1, 0)])
def test_danger_is_up_to_150_px(step: Step, distance: float, count: int) -> None:
    state = world()
    add_bullets(state, [(800.0 + distance, 300.0), (800.0, 600.0)])
    _, outcome = step(state)
    assert float(outcome.observation[0, 26]) == pytest.approx(0.2 * count)
    assert float(outcome.observation[0, 24]) == pytest.approx(distance / 2048.999, abs=1e-6)


def test_when_there_is_no_room_an_enemy_appears_close_by_and_within_the_arena(step: Step) -> None:
    state = world(phase=0)
    state.targets[:, 8, 0] = torch.tensor((30.0, 30.0))
    state.ready[8] = 0.0
    add_enemies(state, [(100.0, 100.0)])
    given = draws(angle=0.125, gap=0.5)  # attempts go towards the other enemy
    given.angles[5] = 0.5  # the last one to the left: 30 - 42 is beyond the edge
    state, _ = step(state, given=given)
    assert state.enemies.tolist() == [2] and state.targets[:, 1, 0].tolist() == pytest.approx([12, 30])
    assert state.ready[8].tolist() == [1001 + 120] and float(state.speed[1]) == 2


def test_the_second_attempt_counts_when_the_first_has_no_room(step: Step) -> None:
    state = world(phase=0, player=(800.0, 1000.0))
    state.ready[8] = 0.0
    add_enemies(state, [(900.0, 200.0)])
    given = draws(gap=1.0)
    given.angles[1] = 0.5
    state, _ = step(state, given=given)
    assert state.targets[:, 1, 0].tolist() == pytest.approx([800 - 87, 200], abs=1e-3)


def test_spawners_take_turns_until_the_arena_is_full(step: Step) -> None:
    state = world(player=(50.0, 640.0))
    state.ready[8:] = 0.0
    add_enemies(state, [(300.0 + 150 * k, 640.0) for k in range(6)])
    state, _ = step(state)
    assert state.enemies.tolist() == [8]
    assert (state.ready[8:, 0] > state.step).tolist() == [True, True, False, False, False]
    assert state.targets[0, 6:8, 0].tolist() == pytest.approx([242, 1442])


def test_an_enemy_shot_without_a_slot_is_counted(step: Step) -> None:
    state = world()
    add_enemies(state, [(100.0, 1000.0), (100.0, 1200.0)])
    add_bullets(state, [(1500.0, 1200.0)] * 47)
    state.ready[:2] = 0.0
    state, _ = step(state, given=draws(fire=0.0))
    assert state.overflow.tolist() == [1] and len(live_bullets(state)) == 48
    assert (state.ready[:2, 0] == 1001 + 60).all()


def test_projectiles_vanish_when_they_are_spent_or_outside() -> None:
    """A lifetime is 120 moves, including that of the step that fires the shot."""
    step = stepping(dense=False)
    state = world(phase=0, player=(20.0, 640.0), at=0)  # style 2 faces right at first
    state.ready[8] = NEVER
    add_enemies(state, [(1200.0, 640.0)])  # fires from 1180 px away: 120 moves are 960 px
    state.ready[0] = 0.0
    state, _ = step(state, SHOOT, draws(fire=0.0))
    state.ready[0] = NEVER
    state.targets[:, 0], state.target_health[0] = FAR, 0.0
    for _ in range(118):
        state, _ = step(state)
    assert bool(state.shot_ends[0] > state.step) and live_bullets(state) == [0]
    assert state.shots[0, 0].tolist() == [20 + 119 * 8] and state.bullets[0, 0].tolist() == [1200 - 119 * 8]
    state, _ = step(state)
    assert not bool(state.shot_ends[0] > state.step) and live_bullets(state) == []

    state = world(phase=0, player=(1585.0, 640.0), at=0)
    state.ready[8] = NEVER
    state, _ = step(state, SHOOT)
    assert bool(state.shot_ends[0] > state.step)  # 1593
    state, _ = step(state)
    x = float(state.shots[0, 0])
    assert x == 1601 and float(state.shot_ends[0]) <= 2


def test_sustained_fire_is_a_shot_every_ten_steps_and_never_more_than_twelve_fly() -> None:
    step = stepping(dense=False)
    state = world(phase=0, player=(20.0, 640.0), at=0)
    state.ready[8] = NEVER
    for k in range(1, 141):
        state, _ = step(state, SHOOT)
        assert int(state.fired) == (k + 9) // 10
        flying = [fired for fired in range(1, k + 1, 10) if k - fired + 1 < 120]
        assert int((state.shot_ends > state.step).sum()) == len(flying) <= 12


def test_walls_stop_the_ship_but_not_its_speed(step: Step) -> None:
    rules = make_rules(1, None)
    state = world(player=(1580.0, 640.0))
    state.velocity[0] = 6.0
    for _ in range(3):
        state, _ = step(state, WAIT, rules=rules)
    assert state.position[:, 0].tolist() == [1585, 640]
    assert float(state.velocity[0]) == pytest.approx(6 * 0.97**3)


# -- options of training ------------------------------------------------------------------------------------------


def test_a_reward_in_place_of_the_games_own(step: Step) -> None:
    usual, changed = (
        step(world(), rules=make_rules(2, None, rewards=rewards))[1] for rewards in (None, {"step_reward": 1.01})
    )
    assert float(changed.reward - usual.reward) == pytest.approx(1.0)


def test_evaluations_pay_the_games_own_rewards() -> None:
    options = {"reward_weights": {"quick_kill": 0.0}}
    assert evaluation_world("arena", options).rules == make_rules(1, None)


def test_health_at_a_start_is_drawn_from_its_range_in_training_only() -> None:
    options: dict[str, Any] = {"start_health": [30.0, 90.0]}
    drawn = Arena(num_worlds=2000, **options).reset()["observation"][:, 5] * 150  # uniform, standard error of mean 0.4
    assert 30 <= drawn.min() < 31 and 89 < drawn.max() <= 90 and abs(drawn.mean() - 60) < 2
    assert (Arena(num_worlds=3, start_health=60.0).reset()["observation"][:, 5] * 150 == 60).all()
    assert (evaluation_world("arena", options, 3).reset()["observation"][:, 5] == 1).all()
