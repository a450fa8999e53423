"""The rules' worked numbers: heat, damage from behind and on painted targets, legs, falls, missiles, electronics."""

from __future__ import annotations

import math

import pytest
import torch

from rlstack.envs.echelon import rules
from rlstack.envs.echelon.maps import LAVA, WATER
from rlstack.envs.echelon.sensors import look
from rlstack.envs.echelon.simulation import EVENTS, Tally
from tests.envs.echelon.scenes import BLUE, HEAVY, LIGHT, MEDIUM, RED, SCOUT, Field, flat_maps
from tests.exhaustive import exhaustive

SECOND = 20
EAST, WEST = 0.0, math.pi


def count(tally: Tally, name: str, team: int = BLUE) -> float:
    return float(tally.events[EVENTS.index(name), team].sum())


def duel(slot: int, distance: float, target: int = HEAVY, facing: float = WEST) -> Field:
    """Turns blue's mech of a slot east towards red's; red looks back unless told otherwise."""
    return Field({(BLUE, slot): (20.0, 40.0, EAST), (RED, target): (20.0 + distance, 40.0, facing)})


# -- heat ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_third_alpha_strike_shuts_a_heavy_down() -> None:
    field = duel(HEAVY, 7.0)
    peaks = []
    for _ in range(3):
        field.state.hp[RED, HEAVY] = 200.0
        field.order(BLUE, HEAVY, primary=1, secondary=1, tertiary=1)
        before = field.of("heat", BLUE, HEAVY)
        assert count(field.step(), "shutdowns") == (len(peaks) == 2)
        peaks.append(field.of("heat", BLUE, HEAVY))
        assert peaks[-1] - max(before - 0.5, 0.0) == pytest.approx(22 + 45 + 15)
        field.order(BLUE, HEAVY)
        field.step(4 * SECOND - 1)
    assert peaks == pytest.approx([82, 124, 166], abs=1.0)


def test_who_is_shut_down_does_nothing_until_it_is_cool() -> None:
    field = duel(MEDIUM, 6.0)
    field.state.heat[BLUE, MEDIUM] = 100.0 + 11.0
    field.order(BLUE, MEDIUM, primary=1, tertiary=1, vent=1, forward=1, yaw=1)
    tally = field.step(SECOND - 1)
    assert count(tally, "lasers") == count(tally, "kinetics") == 0
    assert field.of("yaw", BLUE, MEDIUM) == 0 and field.state.position[0, BLUE, MEDIUM] == 20
    assert field.of("heat", BLUE, MEDIUM) == pytest.approx(111 - 11 * 0.95)  # venting has no effect
    field.order(BLUE, MEDIUM, primary=1)
    assert count(field.step(2), "lasers") == 1


def test_venting_cools_three_times_as_fast_and_holds_fire() -> None:
    field = duel(MEDIUM, 6.0)
    field.state.heat[BLUE, MEDIUM] = 90.0
    field.order(BLUE, MEDIUM, primary=1, vent=1)
    assert count(field.step(SECOND // 2), "lasers") == 0
    assert field.of("heat", BLUE, MEDIUM) == pytest.approx(90 - 33 / 2)
    field.sub = field.sub._replace(vent_blocks_fire=False)
    assert count(field.step(13), "lasers") == 2  # at once and after 0.6 s


def test_beams_heat_who_they_hit() -> None:
    field = duel(LIGHT, 4.0)
    field.order(BLUE, LIGHT, primary=1, secondary=1)
    tally = field.step()
    assert count(tally, "lasers") == count(tally, "flamers") == 1
    assert field.of("heat", RED, HEAVY) == pytest.approx(6 + 15)
    assert field.of("hp", RED, HEAVY) == pytest.approx(200 - 14 - 4)


# -- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facing", "painted", "damage"),
    [(WEST, 0, 14.0), (EAST, 0, 21.0), (math.pi / 3, 0, 14.0), (math.pi / 5, 0, 21.0), (WEST, 50, 15.4)],
)
def test_damage_is_half_as_much_again_from_behind_and_a_tenth_if_painted(
    facing: float, painted: float, damage: float
) -> None:
    field = duel(MEDIUM, 6.0, facing=facing)
    field.order(BLUE, MEDIUM, primary=1)
    field.state.clocks[RED, rules.PAINTED, HEAVY] = painted
    field.state.painter[RED, HEAVY] = SCOUT
    field.step()
    assert 200 - field.of("hp", RED, HEAVY) == pytest.approx(damage)


def test_a_painter_marks_for_five_seconds() -> None:
    field = duel(SCOUT, 9.0)
    field.order(BLUE, SCOUT, primary=1)
    assert count(field.step(), "paints") == 1
    assert field.clock(rules.PAINTED, RED, HEAVY) == 5 * SECOND and field.of("painter", RED, HEAVY) == SCOUT
    field.order(BLUE, SCOUT)
    field.step(5)
    assert field.clock(rules.PAINTED, RED, HEAVY) == 5 * SECOND - 5


def test_a_hit_in_the_legs_counts_fully_there_and_half_for_the_body() -> None:
    field = duel(MEDIUM, 6.0)
    field.luck[:] = 0.05
    field.order(BLUE, MEDIUM, primary=1)
    field.step()
    assert field.of("legs", RED, HEAVY) == 100 - 14 and field.of("hp", RED, HEAVY) == 200 - 7
    field.state.legs[RED, HEAVY] = 10.0
    assert count(field.step(12), "legged", RED) == 1
    field.orders.clear()
    field.order(RED, HEAVY, forward=1)
    field.step()
    assert field.state.velocity[0, RED, HEAVY] == pytest.approx(-2.5 * 0.4 * 0.98)


def test_credit_for_damage_and_kill_goes_to_who_did_the_most() -> None:
    places = {(BLUE, slot): (20.0, 40.0 + 3 * slot, EAST) for slot in (HEAVY, MEDIUM, LIGHT)}
    field = Field({**places, (RED, SCOUT): (24.0, 43.0, WEST)})
    field.state.hp[RED, SCOUT] = 20.0
    field.state.clocks[RED, rules.PAINTED, SCOUT] = 50.0
    field.state.painter[RED, SCOUT] = LIGHT
    field.state.clocks[BLUE, rules.KINETIC, LIGHT] = 50.0
    field.order(BLUE, HEAVY, primary=1)
    field.order(BLUE, MEDIUM, primary=1)
    tally = field.step()
    assert tally.credited[BLUE, :, SCOUT, 0].tolist() == pytest.approx([10, 10, 0, 0, 0])
    assert count(tally, "kills") == 1 and count(tally, "assists") == 1 and count(tally, "deaths", RED) == 1
    assert tally.events[EVENTS.index("assists"), BLUE, LIGHT] == 1


# -- balance -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("facing", "shots"), [(WEST, 3), (EAST, 2)])
def test_gauss_hits_that_knock_a_heavy_down(facing: float, shots: int) -> None:
    field = duel(HEAVY, 12.0, facing=facing)
    field.state.hp[RED, HEAVY] = 10_000.0
    field.order(BLUE, HEAVY, tertiary=1)
    falls, fired = 0.0, 0.0
    while not falls:
        tally = field.step()
        fired, falls = fired + count(tally, "kinetics"), falls + count(tally, "falls", RED)
    assert fired == shots
    field.orders.clear()
    field.order(RED, HEAVY, forward=1, yaw=1)
    yaw = field.of("yaw", RED, HEAVY)
    for step in range(3 * SECOND):
        assert field.clock(rules.FALLEN, RED, HEAVY) == 3 * SECOND - step
        assert field.of("stability", RED, HEAVY) == 0
        field.step()
    assert field.clock(rules.FALLEN, RED, HEAVY) == 0
    assert field.of("stability", RED, HEAVY) == pytest.approx(50.5)  # and a sub-step's gain
    assert field.of("yaw", RED, HEAVY) == pytest.approx(yaw + 0.03)


@exhaustive(("changes", "rate"), [({}, 10.0), ({"legs": 0.0}, 5.0), ({"suppressed": 24.0}, 2.5)])
def test_balance_comes_back(changes: dict[str, float], rate: float) -> None:
    field = duel(MEDIUM, 30.0)
    field.state.stability[RED, HEAVY] = 10.0
    for name, value in changes.items():
        target = field.state.clocks[:, rules.SUPPRESSED] if name == "suppressed" else field.state.legs
        target[RED, HEAVY] = value
    field.step(SECOND)  # suppression lasts for 1.2 s
    assert field.of("stability", RED, HEAVY) == pytest.approx(10 + rate)


# -- shots ---------------------------------------------------------------------------------------------------------


def test_an_autocannon_hits_five_times_a_second_and_suppresses() -> None:
    field = duel(MEDIUM, 8.0)
    field.order(BLUE, MEDIUM, tertiary=1)
    assert count(field.step(SECOND), "kinetics") == 5
    field.order(BLUE, MEDIUM)
    field.step(10)
    # The same button paints, faster than the shells fly.
    assert 200 - field.of("hp", RED, HEAVY) == pytest.approx(5 * 8 * 1.1)
    assert 0 < field.clock(rules.SUPPRESSED, RED, HEAVY) < 24


def test_gauss_slugs_drop_but_hit_the_centre() -> None:
    field = duel(HEAVY, 19.0)
    field.order(BLUE, HEAVY, tertiary=1)
    field.step()
    field.order(BLUE, HEAVY)
    field.step(10)
    assert 200 - field.of("hp", RED, HEAVY) == pytest.approx(50) and field.of("legs", RED, HEAVY) == 100


def test_kinetics_need_no_target_but_beams_do() -> None:
    field = duel(MEDIUM, 30.0)
    field.order(BLUE, MEDIUM, primary=1, tertiary=1)
    tally = field.step()
    assert count(tally, "kinetics") == 1 and count(tally, "lasers") == count(tally, "paints") == 0
    assert field.of("heat", BLUE, MEDIUM) == 6


@exhaustive(("distance", "painted", "fires"), [(11, False, 1), (13, False, 0), (44, True, 1)])
def test_missiles_reach_far_only_for_painted_targets(distance: int, painted: bool, fires: int) -> None:
    field = Field({(BLUE, HEAVY): (10.0, 40.0, EAST), (RED, MEDIUM): (10.0 + distance, 40.0, WEST)})
    field.state.clocks[RED, rules.PAINTED, MEDIUM] = 100.0 * painted
    field.state.painter[RED, MEDIUM] = SCOUT
    field.order(BLUE, HEAVY, secondary=1)
    assert count(field.step(), "missiles") == fires
    field.order(BLUE, HEAVY)
    field.step(2 * distance)  # at 12 voxels a second
    damage = 150 - field.of("hp", RED, MEDIUM)
    assert damage == pytest.approx(40 * (1.1 if painted else 1.0) * fires)


def test_missiles_turn_after_their_target() -> None:
    field = duel(HEAVY, 11.0, target=SCOUT)
    field.order(BLUE, HEAVY, secondary=1)
    field.order(RED, SCOUT, strafe=1)
    field.step()
    field.order(BLUE, HEAVY)
    field.step(SECOND // 2)
    field.order(RED, SCOUT)
    field.step(SECOND)
    assert field.of("hp", RED, SCOUT) == pytest.approx(60 - 40)


def test_splash_hurts_the_own_team_too_and_spares_who_was_hit() -> None:
    places = {(BLUE, HEAVY): (20.0, 40.0, EAST), (RED, MEDIUM): (30.0, 40.0, WEST), (BLUE, SCOUT): (30.0, 41.9, WEST)}
    field = Field(places)
    field.order(BLUE, HEAVY, secondary=1, target=MEDIUM)
    tally = field.step()
    field.order(BLUE, HEAVY)
    tally = Tally.summed([tally, field.step(SECOND)])
    assert field.of("hp", RED, MEDIUM) == 150 - 40
    hurt = 60 - field.of("hp", BLUE, SCOUT)
    assert 0 < hurt < 20 and count(tally, "friendly") == pytest.approx(hurt)


@pytest.mark.parametrize(("draw", "hit"), [(0.59, False), (0.61, True)])
def test_a_heavy_intercepts_six_of_ten_missiles(draw: float, hit: bool) -> None:
    field = duel(HEAVY, 11.0)
    field.luck[2 * 5 :] = draw
    field.order(BLUE, HEAVY, secondary=1)
    tally = field.step()
    field.order(BLUE, HEAVY)
    tally = Tally.summed([tally, field.step(SECOND)])
    assert count(tally, "intercepts", RED) == (not hit)
    assert field.of("hp", RED, HEAVY) == 200 - 40 * hit


def test_walls_stop_beams_and_shots() -> None:
    wall = {(26, y): 8 for y in range(30, 50)}
    for order in ({"primary": 1.0}, {"secondary": 1.0}, {"tertiary": 1.0}):
        field = Field({(BLUE, HEAVY): (22.0, 40.0, EAST), (RED, HEAVY): (29.0, 40.0, WEST)}, flat_maps(height=wall))
        field.order(BLUE, HEAVY, **order)
        tally = field.step(14)  # the slowest shot flies for 12
        assert field.of("hp", RED, HEAVY) == 200
        assert count(tally, "kinetics") == ("tertiary" in order) and not count(tally, "lasers")


def test_the_chosen_target_goes_first_then_the_nearest() -> None:
    places = {(BLUE, MEDIUM): (20.0, 40.0, EAST), (RED, HEAVY): (25.0, 40.0, WEST), (RED, LIGHT): (27.0, 42.0, WEST)}
    for target, hurt in ((-1, HEAVY), (LIGHT, LIGHT), (SCOUT, HEAVY)):
        field = Field(places)
        field.order(BLUE, MEDIUM, primary=1, target=target)
        field.step()
        assert [slot for slot in (HEAVY, LIGHT) if field.of("hp", RED, slot) < rules.PACK[slot].hp] == [hurt]


# -- smoke and electronics -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_smoke_hides_for_ten_seconds() -> None:
    field = Field({(BLUE, MEDIUM): (20.0, 40.0, EAST), (RED, HEAVY): (50.0, 40.0, WEST)})
    field.order(BLUE, MEDIUM, special=1)
    field.step()
    field.order(BLUE, MEDIUM)
    field.step(30)
    assert field.state.clouds[0, 0, BLUE, MEDIUM, 0] == pytest.approx(40, abs=1)
    assert not look(field.state, field.tables, False).sight[BLUE, MEDIUM, HEAVY]
    field.step(10 * SECOND)
    assert field.state.sight[BLUE, MEDIUM, HEAVY] == 1
    assert count(field.step(), "missiles") == 0


@pytest.mark.parametrize(
    ("own", "enemy", "distance", "quality"),
    [
        (0, 0, 10, 1.0),
        (0, 1, 10, 1 - 0.85 * 0.8),
        (0, 1, 0.5, 0.25),
        (2, 0, 10, 1.5),
        (2, 1, 30, 1.18),
        (0, 1, 60, 1.0),
    ],
)
def test_sensor_quality(own: int, enemy: int, distance: float, quality: float) -> None:
    """Checks 1 - 0.85 jam + 0.65 eccm, between 0.25 and 1.5, where both fade to nothing at 50 voxels."""
    places = {(BLUE, SCOUT): (2.0, 12.0, EAST), (BLUE, LIGHT): (2.0, 2.0, EAST)}
    field = Field({**places, (RED, SCOUT): (2.0 + distance, 2.0, WEST)})
    field.order(BLUE, SCOUT, secondary=own)
    field.order(RED, SCOUT, secondary=enemy)
    field.step()
    state = look(field.state, field.tables, False)
    assert state.quality[BLUE, LIGHT, 0] == pytest.approx(quality, abs=0.01)
    assert field.of("heat", BLUE, SCOUT) == pytest.approx({0: 0, 2: 0.1}[own])


# -- ground --------------------------------------------------------------------------------------------------------


def test_lava_burns_and_water_cools_and_slows() -> None:
    ground = {(10, 10): LAVA, (30, 30): WATER}
    field = Field(
        {(BLUE, LIGHT): (10.5, 10.5, 0.0), (BLUE, MEDIUM): (30.5, 30.5, 0.0), (RED, HEAVY): (60.0, 60.0, 0.0)},
        flat_maps(kind=ground),
    )
    field.state.heat[BLUE, MEDIUM] = 80.0
    field.step(SECOND)
    assert field.of("hp", BLUE, LIGHT) == pytest.approx(80 - 5)
    assert field.of("heat", BLUE, LIGHT) == pytest.approx(40 - 12, abs=1)
    assert field.of("heat", BLUE, MEDIUM) == pytest.approx(80 - 30 - 11)
    field.order(BLUE, MEDIUM, forward=1)
    field.step()
    assert torch.allclose(field.state.velocity[0, BLUE, MEDIUM], torch.tensor(5.5 * 0.6 * 0.98).double())


# -- Turning, walking, jumping, walls and pushing --------------------------------------------------------------------


def test_top_speed_and_turning_of_the_classes() -> None:
    classes = {HEAVY: (2.5, 0.6), MEDIUM: (5.5, 1.0), LIGHT: (6.8, 1.5), SCOUT: (7.0, 1.8)}
    field = Field({(BLUE, slot): (20.0, 20.0 + 8 * slot, 0.0) for slot in classes})
    for slot in classes:
        field.order(BLUE, slot, forward=1)
    field.step(SECOND // 2)
    for slot, (speed, _) in classes.items():
        assert field.state.position[0, BLUE, slot, 0] == pytest.approx(20 + 0.98 * speed / 2)
        field.order(BLUE, slot, yaw=1)
    field.step(SECOND // 2)
    for slot, (_, turn) in classes.items():
        assert field.of("yaw", BLUE, slot) == pytest.approx(turn / 2)


def test_strafing_goes_left_and_no_diagonal_is_faster() -> None:
    field = Field({(BLUE, MEDIUM): (20.0, 20.0, 0.0)})
    field.order(BLUE, MEDIUM, strafe=1)
    field.step()
    assert field.state.velocity[:2, BLUE, MEDIUM, 0].tolist() == pytest.approx([0, 5.5 * 0.98])
    field.order(BLUE, MEDIUM, forward=1, strafe=1)
    field.step()
    assert float(field.state.velocity[:2, BLUE, MEDIUM, 0].norm()) == pytest.approx(5.5 * 0.98)


@pytest.mark.slow
def test_scouts_jump_and_heavies_do_not() -> None:
    field = Field({(BLUE, SCOUT): (20.0, 20.0, 0.0), (BLUE, HEAVY): (40.0, 40.0, 0.0)})
    for slot in (SCOUT, HEAVY):
        field.order(BLUE, slot, jet=1)
    field.step(28)
    assert 5 < field.state.position[2, BLUE, SCOUT, 0] < 8 and field.state.position[2, BLUE, HEAVY, 0] == 0
    field.orders.clear()
    field.step(4 * SECOND)
    assert field.state.position[2, BLUE, SCOUT, 0] == 0
    field.order(BLUE, SCOUT, jet=1)
    field.step(20 * SECOND)
    assert field.state.position[2, BLUE, SCOUT, 0] == rules.CEILING


@pytest.mark.parametrize(("height", "reached"), [(1, 27.0), (2, 25.0)])
def test_a_step_is_climbed_and_a_wall_is_not(height: int, reached: float) -> None:
    wall = {(x, y): height for x in range(25, 35) for y in range(15, 25)}
    field = Field({(BLUE, MEDIUM): (20.0, 20.0, 0.0)}, flat_maps(height=wall))
    field.order(BLUE, MEDIUM, forward=1)
    field.step(28)
    x, _, z = field.state.position[:, BLUE, MEDIUM, 0].tolist()
    assert (x > reached) == (height == 1) and z == (height == 1)
    if height > 1:
        assert 24.7 < x < 25 and field.state.velocity[0, BLUE, MEDIUM, 0] == 0


def test_along_a_wall_one_slides() -> None:
    wall = {(25, y): 6 for y in range(0, 64)}
    field = Field({(BLUE, MEDIUM): (24.9, 20.0, math.pi / 4)}, flat_maps(height=wall))
    field.order(BLUE, MEDIUM, forward=1)
    field.step(SECOND)
    x, y, _ = field.state.position[:, BLUE, MEDIUM, 0].tolist()
    assert x < 25 and y == pytest.approx(20 + 5.5 * 0.98 * math.sqrt(0.5))


def test_nobody_leaves_the_map() -> None:
    field = Field({(BLUE, SCOUT): (2.0, 2.0, 1.25 * math.pi)})
    field.order(BLUE, SCOUT, forward=1)
    field.step(SECOND // 2)
    assert field.state.position[:2, BLUE, SCOUT, 0].tolist() == pytest.approx([0.6, 0.6])


def test_mechs_push_each_other_apart_and_the_dead_do_not() -> None:
    field = Field({(BLUE, HEAVY): (20.0, 20.0, 0.0), (RED, HEAVY): (22.0, 20.0, 0.0)})
    field.step()
    assert field.state.position[0, :, HEAVY, 0].tolist() == pytest.approx([19.25, 22.75])
    field = Field({(BLUE, HEAVY): (20.0, 20.0, 0.0), (RED, HEAVY): (22.0, 20.0, 0.0)})
    field.state.hp[RED] = 0.0
    field.step()
    assert field.state.position[0, :, HEAVY, 0].tolist() == [20, 22]
