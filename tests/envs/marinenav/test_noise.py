"""The noise of perception, ours and the published one."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from rlstack.envs.marinenav.episodes import Config, make_episode
from rlstack.envs.marinenav.noise import PublishedNoise, perception_seeds, von_mises_quantiles
from tests.envs.marinenav.recorded import act, build, robot
from tests.exhaustive import exhaustive

HULL = 2.795084971874737


@pytest.mark.parametrize("kappa", [0.3, 1.0, 40.0])
def test_radius_quantiles(kappa: float) -> None:
    quantiles = von_mises_quantiles(kappa).numpy()
    level = (np.arange(len(quantiles)) + 0.5) / len(quantiles)
    assert np.abs(stats.vonmises(kappa).cdf(quantiles) - level).max() < 1e-6
    assert (np.diff(quantiles) > 0).all() and np.allclose(quantiles, -quantiles[::-1], atol=1e-9)


def test_a_concentration_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"r_kappa: 0\.0 is not positive"):
        von_mises_quantiles(0.0)


def sightings(worlds: int, steps: int, kappa: float = 1.0, std: float = 0.05) -> dict[str, np.ndarray]:
    """Returns the noise of a resting robot's view of a disc 8 m ahead and a vessel 10 m to starboard, [steps, W, 2]."""
    senses = robot((0, 0))["perception"] | {"r_kappa": kappa, "pos_std": std, "vel_std": 2 * std}
    vessels: list[Config] = [robot((20.0, 20.0), perception=senses), robot((20.0, 30.0), perception=senses)]
    env = build(worlds, 2, perception_noise=True, seed=3)
    td = env.reset_to([make_episode(vessels, obstacles=[[27.0, 20.0, 1.0]])] * worlds)
    seen = []
    for _ in range(steps):
        td = act(env, td, torch.zeros(worlds, 2, 2, dtype=torch.float64))
        seen.append(td["agents", "observation", "objects"][:, 0, :2].clone())
        assert td["agents", "observation", "mask"][:, 0].sum(-1).eq(2).all()
    x = torch.stack(seen).numpy()  # nearest first: the disc at 7 - 1, then the vessel at 10 - 2.8
    assert np.abs(x[..., 0, 0] - 7).max() < 1 and np.abs(x[..., 1, 1] - 10).max() < 1
    return {
        "position": np.stack((x[..., 0, :2] - (7, 0), x[..., 1, :2] - (0, 10)), 2) / std,
        "velocity": x[..., 2:4] / (2 * std),
        "angle": (x[..., 4] / (1.0, HULL) - 0.8) / 0.2 * math.pi,
    }


@exhaustive("kappa", [8.0, 1.0])
def test_noise_has_its_distribution(kappa: float) -> None:
    noise = sightings(600, 6, kappa, std=0.05 if kappa == 1 else 0.02)
    for name in ("position", "velocity"):
        for k in range(2):
            for axis in range(2):
                sample = noise[name][..., k, axis].ravel()
                assert stats.kstest(sample, "norm").pvalue > 1e-4, (name, k, axis)
    for k in range(2):
        assert stats.kstest(noise["angle"][..., k].ravel(), stats.vonmises(kappa).cdf).pvalue > 1e-4
    assert np.abs(noise["angle"]).max() <= math.pi


def test_no_two_draws_are_related() -> None:
    """Correlations of 3600 pairs between quantities, objects, worlds and steps stay within their error."""
    noise = sightings(600, 6)
    steps, worlds = noise["angle"].shape[:2]
    columns = np.concatenate(
        [noise["position"].reshape(steps, worlds, 4), noise["velocity"].reshape(steps, worlds, 4), noise["angle"]], -1
    )
    flat = columns.reshape(-1, columns.shape[-1])
    correlation = np.corrcoef(flat.T) - np.eye(flat.shape[1])
    assert np.abs(correlation).max() < 5 / len(flat) ** 0.5
    for shifted in (np.roll(columns, 1, axis=0), np.roll(columns, 1, axis=1)):
        product = (columns * shifted).mean((0, 1)) / columns.var((0, 1))
        assert np.abs(product).max() < 5 / len(flat) ** 0.5


def test_two_robots_see_the_same_thing_differently() -> None:
    env = build(200, 2, perception_noise=True)
    vessels = [robot((20.0, 20.0)), robot((20.0, 30.0))]
    td = env.reset_to([make_episode(vessels)] * 200)
    one, two = td["agents", "observation", "objects"][:, :, 0].unbind(1)
    assert not torch.isclose(one[:, :2], -two[:, :2]).any()
    both = np.corrcoef((one[:, 1] - 10).numpy(), (two[:, 1] + 10).numpy())[0, 1]
    assert abs(both) < 5 / 200**0.5


# -- The published noise streams, with which test_recorded_rollouts.py replays episodes -----------------------------


def test_perception_seeds_follow_the_published_reset(fixtures_dir: Path) -> None:
    recorded = np.load(fixtures_dir / "marinenav/noisy_perception.npz")
    config = json.loads(str(recorded["config"]))
    assert perception_seeds(config, stale_num_robots=4) == recorded["perception_seed"].tolist()
    assert len(perception_seeds(config)) == 4 and perception_seeds(config) != recorded["perception_seed"].tolist()


def test_each_robot_owns_its_stream_and_draws_only_for_candidates() -> None:
    both = PublishedNoise([[5, 5]]).draw(np.ones((1, 2, 3), bool))
    assert (both[0, 0] == both[0, 1]).all()  # equal seeds: equal streams, not one shared stream
    noise = PublishedNoise([[5, 5]])
    assert (noise.draw(np.array([[[False] * 3, [True] * 3]]))[0, 1] == both[0, 0]).all()
    assert (noise.draw(np.ones((1, 2, 3), bool))[0, 0] == both[0, 0]).all()  # had drawn nothing so far


def test_kappa_concentrates_the_radius_noise_per_robot() -> None:
    draws = PublishedNoise([[1, 2]], kappa=[[1.0, 400.0]]).draw(np.ones((1, 2, 500), bool))
    assert draws[0, 0, :, 4].std() > 1.0 and draws[0, 1, :, 4].std() < 0.06
    assert abs(draws[..., :4].std() - 1) < 0.05
