"""The world against recordings of the original game."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlstack import envs
from rlstack.envs.arena.simulation import ArenaOutcome
from rlstack.envs.arena.state import ArenaState
from tests.conftest import REPO, SHARED
from tests.envs.arena.recorded import Differences, Moment, Replay, compare, load_all
from tests.exhaustive import exhaustive

FIXTURES = sorted((REPO / "tests/fixtures/arena").glob("*.npz"))
MANY = [path for path in FIXTURES if path.stem not in ("stage1_s2_0", "stage4_s2_1", "win_s1_0")]
"""Both styles with and without a stage, a win, and time-outs."""
SETS = [
    pytest.param(FIXTURES, id="fixtures"),
    pytest.param(
        sorted((SHARED / "golden/arena").glob("*.npz")), id="golden", marks=(pytest.mark.shared, pytest.mark.slow)
    ),
]
NEAR = {  # teacher-forced
    **dict.fromkeys(("position", "targets", "shots", "bullets"), 1e-3),  # px
    **{"observation": 1e-5, "reward": 1e-5, "returns": 1e-5, "rotation": 1e-9, "speed": 1e-6, "period": 0.0},
    **dict.fromkeys(("velocity", "shot_velocity", "bullet_velocity"), 1e-5),
}
FREE = NEAR | {"observation": 1e-4, "shots": 0.02, "bullets": 0.02, "bullet_velocity": 1e-4, "returns": 1e-3}
DOUBLE = NEAR | dict.fromkeys(("position", "targets", "shots", "bullets"), 2e-4)


def check(differences: Differences, most: dict[str, float]) -> None:
    assert differences.largest.keys() == most.keys()
    beyond = {name: value for name, value in differences.largest.items() if not value <= most[name]}
    assert not beyond, f"beyond {most}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paths", "dtype", "dense", "most"),
    [
        *[
            pytest.param(*each.values, torch.float32, dense, NEAR, marks=each.marks)
            for each in SETS
            for dense in (False, True)
        ],
        # The remaining differences are the rounding of the recordings, which are in single precision.
        pytest.param(*SETS[0].values, torch.float64, False, DOUBLE),
    ],
)
def test_every_step_from_the_snapshot_before_it(
    paths: list[Path], dtype: torch.dtype, dense: bool, most: dict[str, float]
) -> None:
    differences = Differences({}, [])
    for recordings in load_all(paths).values():
        replay = Replay([Moment(record, t) for record in recordings for t in range(record.steps)], dtype, dense)
        outcome = replay.step()
        compare(replay.moments, replay.state, outcome, differences)
    assert differences.wrong == []
    check(differences, most)


@exhaustive("paths", [pytest.param(MANY, id="many"), *SETS])
def test_from_beginning_to_end(paths: list[Path]) -> None:
    """The worlds run freely, without correction, and every count, time and health must stay exact."""
    differences = Differences({}, [])
    for recordings in load_all(paths).values():
        run_freely(Replay([Moment(record, 0) for record in recordings]), differences)
    astray = {name for name, _, _ in differences.wrong}
    assert len(astray) <= 0.01 * len(paths), f"of {len(paths)} rollouts went astray: {differences.wrong[:10]}"
    check(differences, FREE)


def run_freely(replay: Replay, differences: Differences) -> None:
    """Compares every world after each step, as long as its recording lasts."""
    moments: list[Moment] = []
    states: list[dict[str, Tensor]] = []
    outcomes: list[ArenaOutcome] = []
    for t in range(max(moment.recording.steps for moment in replay.moments)):
        outcome = replay.step()
        there = [world for world, moment in enumerate(replay.moments) if t < moment.recording.steps]
        moments += [Moment(replay.moments[world].recording, t + 1) for world in there]
        running = partial(torch.index_select, dim=-1, index=torch.tensor(there))
        states.append(dict(replay.state.with_bullet_slots(48).map(running).items()))
        outcomes.append(ArenaOutcome(*(value[there] for value in outcome)))
    state = ArenaState.from_items({name: torch.cat([each[name] for each in states], -1) for name in states[0]})
    compare(moments, state, ArenaOutcome(*map(torch.cat, zip(*outcomes))), differences)


# -- Random actions fare as in the original game: lengths of episodes, spawns and shots, with our own random numbers


EPISODES = 3000
STATISTICS = ("return", "length", "success", "phase", "spawners", "enemies", "health")
ORIGINAL: dict[str, Any] = json.loads((REPO / "tests/fixtures/arena/random_policy.json").read_text())


def play(style: int, stage: int | None) -> dict[str, Tensor]:
    """Returns the statistics of the first episode of every world."""
    env: Any = envs.make("arena", num_worlds=EPISODES, style=style, stage=stage, seed=11)
    generator = torch.Generator().manual_seed(7)
    root = env.reset()
    running = torch.ones(EPISODES, dtype=torch.bool)
    final = {name: torch.zeros(EPISODES, dtype=torch.float64) for name in (*STATISTICS, "timeout")}
    while running.any():
        action = torch.randint(env.rules.num_actions, (EPISODES,), generator=generator)
        step, root = env.step_and_maybe_reset(root.set("action", action))
        following = step["next"]
        ends = following["done"][:, 0] & running
        for name in STATISTICS:
            final[name][ends] = following["episode", name][ends, 0].double()
        final["timeout"][ends] = following["truncated"][ends, 0].double()
        running &= ~ends
    assert env.worlds.overflow.sum() == 0
    return final


@pytest.mark.slow
@pytest.mark.parametrize("stage", [None, 0, 3])
@pytest.mark.parametrize("style", [1, 2])
def test_within_three_standard_errors(style: int, stage: int | None) -> None:
    original = ORIGINAL[f"style {style}, stage {'none' if stage is None else stage}"]
    for name, ours in play(style, stage).items():
        error = math.sqrt(original["std"][name] ** 2 / original["n"] + float(ours.var()) / EPISODES)
        off = abs(float(ours.mean()) - original["mean"][name])
        # Where nothing ever happened in a few hundred episodes, it may happen once in a hundred.
        assert off <= max(3 * error, 3 / original["n"]), f"{name}: {float(ours.mean())}, {original['mean'][name]}"
