"""Maps: their ground, ways and sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlstack import envs
from rlstack.envs.echelon.maps import DIRECTIONS, STYLES, Maps, cell, flow_field, look_up, make_maps, styles
from rlstack.envs.echelon.recording import EchelonAnimation, EchelonRecorder, load_replay
from rlstack.envs.echelon.rules import SPAWN_SQUARE
from rlstack.envs.echelon.sensors import clear_between
from tests.envs.played import played
from tests.exhaustive import exhaustive
from tests.refusals import refused

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
    refused(ValueError, "maps: 0 is not possible, a bank has 1 to 4096", make_maps, 0, 0, True)


def test_every_style_makes_ground_of_its_own() -> None:
    grounds = styles(4, 64, torch.Generator().manual_seed(0))
    assert len(grounds) == STYLES
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


# -- Maps of other sizes than the default ----------------------------------------------------------------------------


SMALL = (640, 360)
CORNERS = SPAWN_SQUARE / 2 + 1.5 * 3.5  # a team's middle, and half of its widest row


def build(size: int, **options: Any) -> Any:
    return envs.make("echelon", num_worlds=2, blue=5, red=5, opponent="policy", maps=2, size=size, seed=2, **options)


@exhaustive("size", [100, 48])
def test_a_match_takes_place_on_the_whole_map(size: int) -> None:
    env = build(size, actions="box", max_steps=12)
    state = env.worlds.state if env.reset() is not None else None
    for axis in range(2):  # of the two teams one starts low, the other high
        middle = state.position[axis].mean(1)  # [2, W]
        assert (middle.amin(0) < CORNERS).all() and (middle.amax(0) > size - CORNERS).all()
    assert (state.zone[:2] == size / 2).all()
    assert env.full_observation_spec["agents", "observation"].shape == (2, 10, 346)
    # All run to the east, and stop at its edge.
    go = torch.zeros(2, 10, 14)
    root = env.reset()
    for _ in range(12):
        yaw = env.worlds.state.yaw.flatten(0, 1).T
        go[..., 0], go[..., 1] = yaw.cos(), -yaw.sin()
        stepped = env.step(root.set(("agents", "action"), go))
        assert torch.isfinite(stepped["next", "agents", "observation"]).all()
        root = env.step_mdp(stepped)
    x = env.worlds.state.position[0]
    assert x.max() <= size and x.max() > size - SPAWN_SQUARE


@pytest.mark.parametrize("size", [48, 100])
def test_every_place_is_looked_up_in_its_own_cell(size: int) -> None:
    env = build(size, symmetric_maps=False)
    maps = env.tables.maps
    grid = maps.height.view(2, size, size)
    places = torch.rand(2, 300, generator=torch.Generator().manual_seed(0)) * size
    for number in range(2):
        base = torch.tensor(float(number * size * size))
        found = look_up(maps.height, cell(places, base, env.tables.side))
        assert torch.equal(found, grid[number, places[1].long(), places[0].long()])
    ground = torch.stack(maps.height.view(2, -1).unbind() + maps.kind.view(2, -1).unbind()).view(4, size, size)
    assert ground[:, size * 3 // 4 :].any() and ground[..., size * 3 // 4 :].any()  # there is something everywhere


def test_a_wall_of_one_voxel_hides_however_far_it_is() -> None:
    """On the default map 24 samples of a line are at most 3.8 voxels apart; on larger maps there are more samples."""
    tables = build(128).tables
    assert len(tables.samples) == 48
    tall = tables.maps.sight.view(2, 128, 128)[0]
    tall.zero_()
    tall[:, 60:64] = 8
    low, high = (torch.tensor([x, 64.0, 1.0]).view(3, 1, 1, 1) for x in (1.0, 127.0))
    assert not clear_between(low, high, torch.zeros(1), tables).any()
    make_maps.cache_clear()  # they are shared


def test_replays_and_films_show_maps_of_any_size(tmp_path: Path) -> None:
    env = build(100)
    recorder = EchelonRecorder(env, [1])
    played(env, recorder, 1)
    [recorded] = recorder.recordings()
    recorded.save_replay(tmp_path / "one.json")
    read = load_replay(tmp_path / "one.json")
    assert read.options["size"] == read.record.ground.side == 100
    assert (EchelonAnimation(read.replay, SMALL).draw(5.0) == EchelonAnimation(recorded.replay, SMALL).draw(5.0)).all()
    text = (tmp_path / "one.json").read_text()
    faults = {
        64: r"world.heights has the shape \[100, 100\], expected \[64, 64\]",
        1000: "world.size 1000: a map's side",
    }
    for size, fault in faults.items():
        (tmp_path / "two.json").write_text(text.replace('"size":[100,', f'"size":[{size},', 1))
        refused(ValueError, fault, load_replay, tmp_path / "two.json")
