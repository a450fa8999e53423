"""Properties of every world: bounds, symmetry, independence of the batch, repeatable random numbers."""

from __future__ import annotations

import pytest
import torch

from rlstack.envs.echelon import rules
from rlstack.envs.echelon.players import bot_orders
from rlstack.envs.echelon.sensors import centres, clear_between
from rlstack.envs.echelon.state import State, draws
from rlstack.envs.echelon.tables import Tables
from tests.envs.echelon.scenes import hilly, lively, luck, random_orders, run, turned
from tests.exhaustive import exhaustive


def assert_same(one: State, two: State, atol: float = 1e-6) -> None:
    for (name, ours), (_, theirs) in zip(one.items(), two.items()):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def worlds_of(state: State, which: torch.Tensor | slice) -> State:
    return state.map(lambda value: value[..., which])


def test_a_line_of_sight_is_the_same_from_both_ends() -> None:
    tables = hilly()
    state = lively(tables, 64)
    places = centres(state, tables)
    one, two = places[:, 0, :, None], places[:, 1, None]
    view = clear_between(one, two, state.base, tables)
    assert torch.equal(view, clear_between(two, one, state.base, tables))
    assert 0.3 < view.double().mean() < 0.97
    assert torch.equal(state.sight[0] > 0, view) and torch.equal(state.sight[1].transpose(0, 1), state.sight[0])


@exhaustive("packs", [1, 2])
def test_a_world_turned_round_plays_the_same_with_changed_teams(packs: int) -> None:
    tables = hilly(packs)
    worlds, steps = 24, 4
    state, orders, chance = lively(tables, worlds), random_orders(steps, tables, worlds), luck(steps, tables, worlds)
    legs = 2 * packs * 5
    other = torch.cat(
        (
            chance[:, :legs].unflatten(1, (2, -1)).flip(1).flatten(1, 2),
            chance[:, legs:].unflatten(1, (2, -1)).flip(1).flatten(1, 2),
        ),
        1,
    )
    ours = run(state, orders, chance, tables)
    theirs = turned(run(turned(state), orders.flip(1), other, tables))
    theirs = theirs.replace(yaw=theirs.yaw - 2 * torch.pi)
    assert_same(ours, theirs, 1e-9)
    assert (ours.hp < state.hp).double().mean() > 0.2


def test_bots_play_both_sides_alike() -> None:
    tables = hilly()
    state = lively(tables, 32)
    kinds = torch.arange(32) % 3
    ours, theirs = bot_orders(state, tables, 0, kinds), bot_orders(turned(state), tables, 1, kinds)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_worlds_do_not_notice_each_other() -> None:
    tables = hilly()
    state, orders, chance = lively(tables, 8), random_orders(8, tables, 8), luck(8, tables, 8)
    together = run(state, orders, chance, tables)
    for world in (0, 5):
        part = slice(world, world + 1)
        alone = run(worlds_of(state, part), orders[..., part], chance[..., part], tables)
        assert_same(alone, worlds_of(together, part), 1e-9)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    mixed = run(worlds_of(state, order), orders[..., order], chance[..., order], tables)
    assert_same(mixed, worlds_of(together, order), 1e-9)


@exhaustive("packs", [1, 2])
def test_looking_only_at_shots_in_the_air_leads_to_the_same_worlds(packs: int) -> None:
    tables = hilly(packs)
    state, orders, chance = lively(tables, 16), random_orders(5, tables, 16), luck(5, tables, 16)
    flying, padded, everywhere = (run(state, orders, chance, tables, which) for which in ("flying", "padded", "all"))
    assert (flying.shots[6] > 0).any()
    assert_same(flying, padded, 1e-9)
    assert_same(flying, everywhere, 1e-9)


def within_bounds(state: State, tables: Tables) -> None:
    for name, value in state.items():
        assert torch.isfinite(value.double()).all(), name
    assert (state.hp <= tables.hp).all() and (state.heat >= 0).all()
    assert (state.stability >= 0).all() and (state.stability <= rules.STABILITY).all()
    assert (state.clocks >= 0).all() and (state.clocks == state.clocks.round()).all()
    assert (state.position[:2] >= 0).all() and (state.position[:2] <= rules.MAP).all()
    assert (state.position[2] >= state.ground).all() and (state.position[2] <= rules.CEILING).all()


@pytest.mark.slow
def test_ten_thousand_random_decisions_stay_within_bounds() -> None:
    tables = hilly()
    worlds, steps = 125, 80
    state = lively(tables, worlds)
    orders, chance = random_orders(8, tables, worlds), luck(8, tables, worlds)
    for step in range(0, steps, 8):
        before = state
        state = run(state, orders.roll(step, 0), chance.roll(step, 0), tables)
        within_bounds(state, tables)
        dead = ~before.alive
        assert not state.alive[dead].any()
        for name in ("position", "yaw", "hp"):
            assert torch.equal(getattr(before, name)[..., dead], getattr(state, name)[..., dead]), name
        assert not state.velocity[:, dead].any()
    assert 0.3 < (~state.alive).double().mean() < 0.99


def test_random_numbers_depend_on_world_and_time_alone() -> None:
    key, time = torch.randint(2**62, (512,), generator=torch.Generator().manual_seed(0)), torch.arange(512) % 7
    numbers = draws(key, time, 50, 1)
    assert torch.equal(numbers[:20, 100:101], draws(key[100:101], time[100:101], 20, 1))
    assert numbers.min() >= 0 and numbers.max() < 1
    assert numbers.mean() == pytest.approx(0.5, abs=0.01) and numbers.var() == pytest.approx(1 / 12, abs=0.002)
    assert (
        torch.corrcoef(torch.stack((numbers[0], numbers[1], draws(key, time + 1, 1, 1)[0]))).triu(1).abs().max() < 0.15
    )
    assert not torch.equal(numbers, draws(key, time, 50, 2))
