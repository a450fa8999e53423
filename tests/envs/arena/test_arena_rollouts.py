"""The world against recordings of the original game."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import REPO, SHARED
from tests.envs.arena.recorded import Differences, Moment, Recording, Replay, compare, load_all

SETS = [
    pytest.param(sorted((REPO / "tests/fixtures/arena").glob("*.npz")), id="fixtures"),
    pytest.param(
        sorted((SHARED / "golden/arena").glob("*.npz")), id="golden", marks=(pytest.mark.shared, pytest.mark.slow)
    ),
]
NEAR = {  # teacher-forced
    **dict.fromkeys(("position", "enemy position", "spawner position", "shots", "bullets"), 1e-3),  # px
    **{"observation": 1e-5, "reward": 1e-5, "returns": 1e-5, "rotation": 1e-9, "enemy speed": 1e-6, "period": 0.0},
    **dict.fromkeys(("velocity", "shots velocity", "bullets velocity"), 1e-5),
}
FREE = NEAR | {"observation": 1e-4, "shots": 0.02, "bullets": 0.02, "bullets velocity": 1e-4, "returns": 1e-3}
DOUBLE = NEAR | dict.fromkeys(("position", "enemy position", "spawner position", "shots", "bullets"), 2e-4)


def check(differences: Differences, most: dict[str, float]) -> None:
    assert differences.largest.keys() == most.keys()
    beyond = {name: value for name, value in differences.largest.items() if not value <= most[name]}
    assert not beyond, f"beyond {most}"


@pytest.mark.slow
@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("paths", SETS)
def test_every_step_from_the_snapshot_before_it(paths: list[Path], dense: bool) -> None:
    differences = Differences({}, [])
    for recordings in load_all(paths).values():
        replay = Replay([Moment(record, t) for record in recordings for t in range(record.steps)], dense=dense)
        compare(replay, replay.step(), differences)
    assert differences.wrong == []
    check(differences, NEAR)


@pytest.mark.slow
@pytest.mark.parametrize("paths", SETS[:1])
def test_in_double_precision(paths: list[Path]) -> None:
    """The remaining differences are the rounding of the recordings, which are in single precision."""
    differences = Differences({}, [])
    for recordings in load_all(paths).values():
        moments = [Moment(record, t) for record in recordings for t in range(record.steps)]
        replay = Replay(moments, dtype=torch.float64)
        compare(replay, replay.step(), differences)
    assert differences.wrong == []
    check(differences, DOUBLE)


@pytest.mark.parametrize("paths", SETS)
def test_from_beginning_to_end(paths: list[Path]) -> None:
    """The worlds run freely, without correction, and every count, time and health must stay exact."""
    differences = Differences({}, [])
    for recordings in load_all(paths).values():
        run_freely(Replay([Moment(record, 0) for record in recordings]), recordings, differences)
    astray = {name for name, _, _ in differences.wrong}
    assert len(astray) <= 0.01 * len(paths), f"of {len(paths)} rollouts went astray: {differences.wrong[:10]}"
    check(differences, FREE)


def run_freely(replay: Replay, recordings: list[Recording], differences: Differences) -> None:
    """Compares every world as long as its recording lasts."""
    for t in range(max(record.steps for record in recordings)):
        running = [world for world, record in enumerate(recordings) if t < record.steps]
        compare(replay, replay.step(), differences, running)
