"""Bots go to the zone, aim, hold their fire, free themselves, and are as strong as specified."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack import envs
from rlstack.envs.echelon import rules
from rlstack.envs.echelon.actions import chosen_for
from rlstack.envs.echelon.players import BOTS, HEURISTIC, RANDOM, VETERAN, bot_orders, watch
from rlstack.envs.echelon.rewards import hold
from tests.envs.echelon.scenes import BLUE, HEAVY, LIGHT, MEDIUM, RED, SCOUT, Field, hilly, lively


def orders_in(field: Field, kind: int = HEURISTIC, team: int = BLUE) -> Tensor:
    """Returns the orders of a team's bots, ``[10, n]``."""
    return bot_orders(field.state, field.tables, team, torch.tensor([kind]))[..., 0]


def test_it_turns_to_the_nearest_enemy_and_walks_to_the_zone() -> None:
    field = Field({(BLUE, MEDIUM): (12.0, 32.0, 0.0), (RED, HEAVY): (12.0, 50.0, 0.0), (RED, SCOUT): (12.0, 10.0, 0.0)})
    orders = orders_in(field)[:, MEDIUM]
    assert orders[rules.TARGET] == HEAVY and orders[rules.YAW] == 1  # to the left
    assert orders[rules.FORWARD] == pytest.approx(1) and orders[rules.STRAFE] == pytest.approx(0, abs=1e-6)
    field.state.hp[RED, HEAVY] = 0.0
    orders = orders_in(field)[:, MEDIUM]
    assert orders[rules.TARGET] == SCOUT and orders[rules.YAW] == -1


@pytest.mark.parametrize(
    ("slot", "distance", "fires"),
    [(MEDIUM, 7.0, (1, 0, 1)), (MEDIUM, 11.0, (0, 0, 1)), (MEDIUM, 13.0, (0, 0, 0)), (LIGHT, 4.0, (1, 1, 1))]
    + [(LIGHT, 7.0, (0, 1, 1)), (HEAVY, 7.0, (1, 1, 1)), (HEAVY, 18.0, (0, 0, 1)), (SCOUT, 9.0, (1, 1, 0))],
)
def test_it_fires_what_reaches(slot: int, distance: float, fires: tuple[int, ...]) -> None:
    field = Field({(BLUE, slot): (20.0, 40.0, 0.0), (RED, HEAVY): (20.0 + distance, 40.0, 3.0)})
    field.step()
    orders = orders_in(field)[:, slot]
    assert tuple(orders[[rules.PRIMARY, rules.SECONDARY, rules.TERTIARY]].tolist()) == fires
    field.state.fire_prob.zero_()
    held = orders_in(field)[:, slot]
    assert not held[rules.PRIMARY] and not held[rules.TERTIARY]
    assert held[rules.SECONDARY] == (slot == SCOUT)  # its jammer
    field.state.fire_prob.fill_(1.0)
    field.state.heat[BLUE, slot] = 0.8 * rules.PACK[slot].heat_cap
    vents = orders_in(field)[:, slot]
    assert vents[rules.VENT] == 1 and not vents[rules.PRIMARY] and not vents[rules.TERTIARY]


def test_it_fires_as_often_as_told() -> None:
    tables = hilly()
    state = lively(tables, 400)
    kinds = torch.zeros(400, dtype=torch.long)
    often = bot_orders(state, tables, 0, kinds)[rules.PRIMARY].sum()
    seldom = bot_orders(state.replace(fire_prob=state.fire_prob * 0 + 0.3), tables, 0, kinds)[rules.PRIMARY].sum()
    assert seldom / often == pytest.approx(0.3, abs=0.06)


def test_a_veteran_waits_for_its_heavy() -> None:
    places = {(BLUE, HEAVY): (10.0, 32.0, 0.0), (BLUE, LIGHT): (14.0, 33.0, 0.0), (RED, HEAVY): (50.0, 32.0, 0.0)}
    field = Field(places)
    steps = orders_in(field, VETERAN)[rules.FORWARD]
    assert steps[HEAVY] == pytest.approx(1) and steps[LIGHT] == pytest.approx(0.15, abs=0.01)
    field.state.hp[BLUE, HEAVY] = 0.0
    assert orders_in(field, VETERAN)[rules.FORWARD, LIGHT] > 0.9


def test_who_is_stuck_backs_off_and_goes_round() -> None:
    field = Field({(BLUE, MEDIUM): (12.0, 32.0, 0.0), (RED, HEAVY): (50.0, 32.0, 0.0)})
    moved = torch.zeros_like(field.state.hp)
    seen = []
    for _ in range(22):
        field.state = watch(field.state, moved, hold(field.state, field.tables).inside, field.tables)
        steps = orders_in(field)[[rules.FORWARD, rules.STRAFE], MEDIUM].tolist()
        seen.append("back" if steps[0] == -1 else "aside" if abs(steps[1]) == 1 else "on")
    assert seen[:18] == ["on"] * 10 + ["back"] * 4 + ["aside"] * 4


def test_random_orders_are_anything() -> None:
    tables = hilly()
    state = lively(tables, 400)
    orders = bot_orders(state, tables, 1, torch.full((400,), RANDOM))
    axes = orders[: rules.PRIMARY]
    assert axes.min() < -0.99 and axes.max() > 0.99 and axes.mean().abs() < 0.02
    assert orders[rules.PRIMARY : rules.TARGET].mean() == pytest.approx(0.5, abs=0.02)
    assert sorted(orders[rules.TARGET].unique().tolist()) == [-1, 0, 1, 2, 3, 4]


# -- strength ------------------------------------------------------------------------------------------------------


def matches(ours: str, theirs: str, count: int, **options: Any) -> dict[str, float]:
    """Returns means over one match of every world, in which a bot also plays blue."""
    env: Any = envs.make("echelon", num_worlds=count, maps=128, opponent=theirs, actions="hybrid", **options)
    root, kinds = env.reset(), torch.full((count,), BOTS.index(ours))
    first: dict[str, Tensor] = {}
    over = torch.zeros(count, dtype=torch.bool)
    while not over.all():
        orders = bot_orders(env.worlds.state, env.tables, 0, kinds)
        root["agents", "action"] = TensorDict(chosen_for("hybrid", orders[None]), [])
        root, following = env.step_and_maybe_reset(root)
        now = {name: value[:, 0] for name, value in root["next", "episode"].items()}
        first = {name: torch.where(over, first.get(name, value), value) for name, value in now.items()}
        over |= root["next", "done"][:, 0]
        root = following
    return {name: float(value.mean()) for name, value in first.items()}


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 5, 10])
def test_the_heuristic_beats_random_orders(size: int) -> None:
    result = matches("heuristic", "random", 128 if size == 5 else 32, blue=size, red=size)
    assert result["success"] > (0.95 if size == 5 else 0.9)
    assert size != 5 or result["hp_margin"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_heuristic_is_as_strong_as_itself(symmetric: bool) -> None:
    result = matches("heuristic", "heuristic", 768, symmetric_maps=symmetric)
    assert result["success"] == pytest.approx(0.5, abs=0.05) and result["success"] + result["lost"] > 0.95
    assert 60 < result["length"] < 130 and abs(result["hp_margin"]) < 25


@pytest.mark.slow
def test_veterans_beat_the_heuristic_and_rushing_loses() -> None:
    assert matches("veteran", "heuristic", 128)["success"] > 0.75
    assert matches("rush", "heuristic", 128)["success"] < 0.4
