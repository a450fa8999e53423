"""Maps of other sizes than the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlstack import envs
from rlstack.envs.echelon.maps import cell, look_up, make_maps
from rlstack.envs.echelon.recording import EchelonAnimation, EchelonRecorder, load_replay
from rlstack.envs.echelon.rules import SPAWN_SQUARE
from rlstack.envs.echelon.sensors import clear_between
from tests.refusals import refused

SMALL = (640, 360)
CORNERS = SPAWN_SQUARE / 2 + 1.5 * 3.5  # a team's middle, and half of its widest row


def build(size: int, **options: Any) -> Any:
    return envs.make("echelon", num_worlds=2, blue=5, red=5, opponent="policy", maps=2, size=size, seed=2, **options)


@pytest.mark.parametrize("size", [48, 100])
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
    root = env.reset()
    recorder = EchelonRecorder(env, [1])
    recorder.add()
    env.step(env.rand_action(root))
    recorder.add()
    [recorded] = recorder.recordings()
    recorded.save_replay(tmp_path / "one.json")
    read = load_replay(tmp_path / "one.json")
    assert read.options["size"] == read.record.ground.side == 100
    assert (EchelonAnimation(read, SMALL).draw(5.0) == EchelonAnimation(recorded, SMALL).draw(5.0)).all()
    text = (tmp_path / "one.json").read_text()
    faults = {
        64: r"world.heights has the shape \[100, 100\], expected \[64, 64\]",
        1000: "world.size 1000: a map's side",
    }
    for size, fault in faults.items():
        (tmp_path / "two.json").write_text(text.replace('"size":[100,', f'"size":[{size},', 1))
        refused(ValueError, fault, load_replay, tmp_path / "two.json")
