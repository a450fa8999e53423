"""Random worlds have the distribution of the published resets: recorded statistics, generator, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from rlstack import envs
from rlstack.envs.marinenav.episodes import generate_episodes
from rlstack.envs.marinenav.state import WorldState
from tests.envs.marinenav.recorded import load_json
from tests.envs.marinenav.test_episodes import CROWDED

NAMES = ("num_robots", "num_cores", "num_obstacles", "min_start_goal_dis")
SIGMAS = 4.5


def random_state(level: dict[str, Any], worlds: int, seed: int = 0) -> WorldState:
    env = envs.make(
        "marinenav", num_worlds=worlds, dtype=torch.float64, seed=seed, **{name: level[name] for name in NAMES}
    )
    env.reset()
    return env.worlds


def pair_distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``[P, W]`` distances of all pairs of points with coordinates ``[N, W]``."""
    i, j = np.triu_indices(len(x), k=1)
    return np.hypot(x[i] - x[j], y[i] - y[j])


def assert_agrees(ours: float, theirs: float, error: float, what: str) -> None:
    assert abs(ours - theirs) <= SIGMAS * error, f"{what}: {ours:.4f}, recorded {theirs:.4f} +- {error:.4f}"


@pytest.mark.parametrize("index", range(8))
def test_recorded_statistics(fixtures_dir: Path, index: int) -> None:
    """Standard errors are those of the recording, 600 or 300 resets, and of our worlds."""
    level = load_json(fixtures_dir / "marinenav/reset_stats.json")["levels"][index]
    worlds, robots = 1500, level["num_robots"]
    state = random_state(level, worlds)
    assert state.present.all() and (state.cores[3] > 0).all()
    assert state.obstacle_present.all(0).float().mean() > 0.99  # 0.3 % fall short where eight cores leave little room
    share = (1 / level["resets"] + 1 / worlds) ** 0.5  # of a standard deviation per reset
    distance = (state.goal - state.start).norm(dim=0).numpy()
    per_robot = share / robots**0.5
    spread = distance.std()
    assert_agrees(distance.mean(), level["start_goal_dist_mean"], spread * per_robot, "mean distance")
    fourth = ((distance - distance.mean()) ** 4).mean()
    error = (fourth - spread**4) ** 0.5 / (2 * spread) * per_robot
    assert_agrees(spread, level["start_goal_dist_std"], error, "spread of the distance")
    for probability, quantile in zip((0.05, 0.25, 0.5, 0.75, 0.95), level["start_goal_dist_q"]):
        error = (probability * (1 - probability)) ** 0.5 * per_robot
        assert_agrees((distance <= quantile).mean(), probability, error, f"quantile {probability}")
    separation = pair_distances(state.start[0].numpy(), state.start[1].numpy()).min(0)
    assert separation.min() > 10
    assert_agrees(separation.mean(), level["min_start_sep_mean"], separation.std() * share, "separation")
    for axis in range(2):
        start = state.start[axis].numpy()
        # Robots of a world keep apart from each other, so that their mean varies less than that of independent ones.
        assert_agrees(start.mean(), level["start_xy_mean"][axis], start.std() * per_robot, f"start, axis {axis}")
    if level["num_cores"]:
        flag = state.cores[2].numpy()
        error = flag.mean(0).std() * share
        assert_agrees(flag.mean(), level["frac_rotation_flag1"], error, "rotation flags")
        close = (pair_distances(state.cores[0].numpy(), state.cores[1].numpy()) < 3).sum(0)
        assert_agrees(
            close.mean(), level["core_pairs_closer_than_3m"] / level["resets"], close.std() * share, "close cores"
        )


@pytest.mark.slow
def test_the_distribution_is_that_of_the_published_generator() -> None:
    """Two-sample Kolmogorov-Smirnov tests compare it with the sequential generator, which is exact."""
    episodes = generate_episodes(11, [CROWDED], per_level=250)
    state = random_state(CROWDED, 2000)

    def positions(part: str) -> np.ndarray:
        return np.array([episode["env"][part]["positions"] for episode in episodes]).transpose(1, 2, 0)

    start = np.array([episode["robots"]["start"] for episode in episodes]).transpose(1, 2, 0)  # [A, 2, W]
    heading = np.array([episode["robots"]["init_theta"] for episode in episodes])
    cores, discs = positions("cores"), positions("obstacles")
    flag = np.array([episode["env"]["cores"]["clockwise"] for episode in episodes]).T
    ours = {name: value.numpy() for name, value in state.items()}
    nearest = pair_distances(cores[:, 0], cores[:, 1]).min(0)
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {
        "heading": (ours["pose"][2, 0], heading[:, 0]),
        "nearest cores": (pair_distances(*ours["cores"][:2]).min(0), nearest),
        "nearest obstacles": (
            pair_distances(*ours["obstacles"][:2]).min(0),
            pair_distances(discs[:, 0], discs[:, 1]).min(0),
        ),
    }
    for k in (0, 5):  # in the order of acceptance: later ones find less room
        pairs[f"start {k}"] = (ours["start"][0, k], start[k, 0])
        pairs[f"core {k} from the middle"] = (np.hypot(*(ours["cores"][:2, k] - 27.5)), np.hypot(*(cores[k] - 27.5)))
        pairs[f"obstacle {k} from the middle"] = (
            np.hypot(*(ours["obstacles"][:2, k] - 27.5)),
            np.hypot(*(discs[k] - 27.5)),
        )
    for name, (a, b) in pairs.items():
        assert stats.ks_2samp(a, b).pvalue > 1e-4, name
    ratio = flag.sum(0).mean() - ours["cores"][2].sum(0).mean()
    assert abs(ratio) < SIGMAS * 8**0.5 / 2 * (1 / 250 + 1 / 2000) ** 0.5


def test_clearances_hold_in_every_world() -> None:
    state = random_state(CROWDED, 1500, seed=1)
    assert state.present.all() and (state.cores[3] > 0).all()
    complete = state.obstacle_present.all(0)
    assert complete.float().mean() > 0.99
    state = state.map(lambda value: value[..., complete])
    start, goal, cores, discs = (value[:2].numpy() for value in (state.start, state.goal, state.cores, state.obstacles))
    sites = np.concatenate((start, goal), 1)

    def apart(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.hypot(*(a[:, :, None] - b[:, None])).min())

    assert min(pair_distances(*start).min(), pair_distances(*goal).min()) > 10
    assert np.hypot(*(goal - start)).min() >= 30
    assert apart(sites, cores) >= 10.5 and apart(sites, discs) >= 11
    assert apart(cores, discs) > 1.5 and pair_distances(*discs).min() > 2
    assert start.min() >= 2 and goal.max() <= 53 and cores.min() >= 0.5 and cores.max() <= 54.5
    assert discs.min() >= 5 and discs.max() <= 50 and (state.obstacles[2] == 1).all()
    i, j = np.triu_indices(8, k=1)
    gap, flag = pair_distances(*cores), state.cores[2].numpy()
    same = flag[i] == flag[j]
    assert gap[same].min() >= 3 and (gap[~same] < 1).any()
    assert ((gap[~same] >= 1.625) | (gap[~same] < 1)).all()
    assert torch.allclose(state.cores[3], torch.tensor(9.42477796076938, dtype=torch.float64))
    for still in (state.velocity, state.velocity_r, state.thrust, state.returns, state.steps):
        assert (still == 0).all()
    assert (state.pose[:2] == state.start).all() and (state.pose[2] >= 0).all() and (state.pose[2] < 2 * np.pi).all()


@pytest.mark.slow
def test_at_most_500_attempts_are_made() -> None:
    """A single robot needs one success; the share of worlds with one gives the number of attempts."""
    generator = torch.Generator().manual_seed(0)
    legs = 51 * torch.rand(2, 2, 8_000_000, generator=generator)
    squared = (legs[0, 0] - legs[1, 0]) ** 2 + (legs[0, 1] - legs[1, 1]) ** 2
    distance = 62.5
    probability = float((squared >= distance**2).float().mean())
    assert 5e-4 < probability < 2e-3
    worlds = 3000
    level = {"num_robots": 1, "num_cores": 0, "num_obstacles": 0, "min_start_goal_dis": distance}
    found = random_state(level, worlds).present.float().mean()
    expected = 1 - (1 - probability) ** 500
    error = (expected * (1 - expected) / worlds + (500 * (1 - expected)) ** 2 * probability / 8e6) ** 0.5
    assert_agrees(float(found), expected, error, "worlds with a robot")


@pytest.mark.slow
def test_too_many_robots_are_as_few_as_in_the_published_generator() -> None:
    level = {"num_robots": 16, "num_cores": 0, "num_obstacles": 14, "min_start_goal_dis": 35.0}
    episodes = generate_episodes(2, [level], per_level=60)
    robots = np.array([episode["env"]["num_robots"] for episode in episodes])
    discs = np.array([len(episode["env"]["obstacles"]["r"]) for episode in episodes])
    state = random_state(level, 600)
    counts = state.present.sum(0).double().numpy()
    assert 1 <= counts.min() < counts.max() <= 16 and counts.mean() < 14
    assert_agrees(counts.mean(), robots.mean(), (robots.var() / 60 + counts.var() / 600) ** 0.5, "robots")
    filled = state.obstacle_present.sum(0).double().numpy()
    assert filled.min() < 14
    assert_agrees(filled.mean(), discs.mean(), (discs.var() / 60 + filled.var() / 600) ** 0.5, "obstacles")
    assert torch.equal(state.present, state.active)
    assert torch.equal(state.present.long().cummin(0).values.bool(), state.present)  # filled from the front


def test_a_world_without_any_robot_does_no_harm() -> None:
    env = envs.make("marinenav", num_worlds=4, num_robots=2, num_obstacles=1, min_start_goal_dis=70.0)
    td = env.reset()
    assert not td["agents", "active"].any()
    step, td = env.step_and_maybe_reset(td.update(env.action_spec.rand()))
    assert step["next", "done"].all() and (step["next", "agents", "info"] == -1).all()
    assert not step["next", "episode", "success"].any()
    for key, value in step["next"].flatten_keys(".").items():
        assert not value.dtype.is_floating_point or value.isfinite().all(), key
