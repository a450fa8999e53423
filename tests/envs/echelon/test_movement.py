"""Turning, walking, jumping, walls and pushing."""

from __future__ import annotations

import math

import pytest

from rlstack.envs.echelon import rules
from tests.envs.echelon.scenes import BLUE, HEAVY, LIGHT, MEDIUM, RED, SCOUT, Field, flat_maps

SECOND = 20


@pytest.mark.parametrize("slot", [HEAVY, MEDIUM, LIGHT, SCOUT])
def test_top_speed_and_turning_of_the_classes(slot: int) -> None:
    speed, turn = {HEAVY: (2.5, 0.6), MEDIUM: (5.5, 1.0), LIGHT: (6.8, 1.5), SCOUT: (7.0, 1.8)}[slot]
    field = Field({(BLUE, slot): (20.0, 20.0, 0.0)})
    field.order(BLUE, slot, forward=1)
    field.step(SECOND)
    assert field.state.position[0, BLUE, slot, 0] == pytest.approx(20 + 0.98 * speed)
    field.order(BLUE, slot, yaw=1)
    field.step(SECOND)
    assert field.of("yaw", BLUE, slot) == pytest.approx(turn)


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


@pytest.mark.parametrize(("height", "reached"), [(1, 30.0), (2, 25.0)])
def test_a_step_is_climbed_and_a_wall_is_not(height: int, reached: float) -> None:
    wall = {(x, y): height for x in range(25, 35) for y in range(15, 25)}
    field = Field({(BLUE, MEDIUM): (20.0, 20.0, 0.0)}, flat_maps(height=wall))
    field.order(BLUE, MEDIUM, forward=1)
    field.step(38)
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
    field.step(2 * SECOND)
    assert field.state.position[:2, BLUE, SCOUT, 0].tolist() == pytest.approx([0.6, 0.6])


def test_mechs_push_each_other_apart_and_the_dead_do_not() -> None:
    field = Field({(BLUE, HEAVY): (20.0, 20.0, 0.0), (RED, HEAVY): (22.0, 20.0, 0.0)})
    field.step()
    assert field.state.position[0, :, HEAVY, 0].tolist() == pytest.approx([19.25, 22.75])
    field = Field({(BLUE, HEAVY): (20.0, 20.0, 0.0), (RED, HEAVY): (22.0, 20.0, 0.0)})
    field.state.hp[RED] = 0.0
    field.step()
    assert field.state.position[0, :, HEAVY, 0].tolist() == [20, 22]
