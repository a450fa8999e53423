"""The bank of maps: paths lead to the zone, both sides are alike, seeds decide."""

from __future__ import annotations

import pytest
import torch

from rlstack.envs.echelon.maps import DIRECTIONS, STYLES, Maps, flow_field, make_maps

MAP = 64


def layer(values: torch.Tensor) -> torch.Tensor:
    return values.view(-1, MAP, MAP).long()


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_flow_leads_from_both_starts_to_the_zone(symmetric: bool) -> None:
    maps = make_maps(24, 3, symmetric)
    flow, walk, worlds = layer(maps.flow), layer(maps.walk), torch.arange(24)
    ways = torch.tensor([(0, 0), *DIRECTIONS])
    for team in range(2):
        north = (maps.corner == 1) ^ (team == 1)
        x = torch.full((24,), 8 + 47 * team)
        y = torch.where(north, 55, 8)
        for _ in range(150):
            way = ways[flow[worlds, y, x]]
            x, y = x + way[:, 0], y + way[:, 1]
            # Free for the widest mech on its whole way.
            assert (walk[worlds, y, x] <= 1).all()
        assert ((x + 0.5 - maps.zone[0]) ** 2 + (y + 0.5 - maps.zone[1]) ** 2).sqrt().max() < 2


def test_symmetric_maps_look_the_same_from_both_sides() -> None:
    maps = make_maps(16, 1, True)
    for name in ("height", "sight", "walk", "kind"):
        values = layer(getattr(maps, name))
        assert torch.equal(values, values.flip(1, 2)), name
    flow = layer(maps.flow)
    ways = torch.tensor([(0, 0), *DIRECTIONS])
    assert torch.equal(ways[flow], -ways[flow.flip(1, 2)])
    assert (maps.zone[:2] == 32).all() and maps.zone[2].min() >= 4 and maps.zone[2].max() <= 9


@pytest.mark.slow
def test_other_maps_have_zones_away_from_the_starts() -> None:
    maps = make_maps(200, 2, False)
    x, y, radius = maps.zone
    assert (torch.minimum(x, y) >= radius + 1.9).all() and (torch.maximum(x, y) <= MAP - radius - 1.9).all()
    assert x.std() > 8 and y.std() > 8
    near = maps.corner == 0
    starts = torch.where(near, torch.maximum(x, y), torch.maximum(x, MAP - y))
    assert (starts > 16).all()


def test_starts_and_zone_are_clear() -> None:
    maps = make_maps(16, 4, True)
    walk, cells = layer(maps.walk), torch.arange(MAP) + 0.5
    inside = ((cells - 32) ** 2 + (cells[:, None] - 32) ** 2).sqrt() < maps.zone[2, :, None, None]
    assert not walk[inside].any()
    first = maps.corner == 0
    assert not walk[first][:, :16, :16].any() and not walk[~first][:, 48:, :16].any()
    assert walk.max() == 8 and (walk > 1).double().mean() > 0.01


def test_a_seed_makes_the_same_maps() -> None:
    def same(one: Maps, two: Maps) -> bool:
        return all(torch.equal(a, b) for a, b in zip(one, two))

    make_maps.cache_clear()
    first = make_maps(8, 1, True)
    make_maps.cache_clear()
    assert same(first, make_maps(8, 1, True)) and not same(first, make_maps(8, 2, True))
    with pytest.raises(ValueError, match="maps: 0 is not possible, a bank has 1 to 4096"):
        make_maps(0, 0, True)


def test_every_style_makes_ground_of_its_own() -> None:
    grounds = [style(4, 64, torch.Generator().manual_seed(0)) for style in STYLES]
    kinds = [sorted(ground.kind.unique().tolist()) for ground in grounds]
    assert kinds == [[0], [0], [0, 1], [0, 2], [0, 3], [0, 4], [0]]
    tops = [float(ground.height.max()) for ground in grounds]
    assert tops[0] == 8 and 3 <= tops[1] <= 6 and tops[2] == tops[3] == tops[4] == 0 and tops[5] == 3


def test_the_flow_goes_round_walls_and_cuts_no_corners() -> None:
    free = torch.ones(1, 9, 9, dtype=torch.bool)
    free[0, 4, :8] = False
    goal = torch.zeros_like(free)
    goal[0, 0, 0] = True
    flow, beats = flow_field(free, goal)
    assert beats[0, 5, 0] > beats[0, 3, 0] + 16  # all the way round
    assert DIRECTIONS[flow[0, 5, 7] - 1] == (1, 0)  # not diagonally past the wall's end
    assert flow[0, 0, 0] == 0
