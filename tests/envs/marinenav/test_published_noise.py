"""The published noise streams compared with a recorded noisy episode."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from rlstack.envs.marinenav.noise import PublishedNoise, perception_seeds


def test_perception_seeds_follow_the_published_reset(fixtures_dir: Path) -> None:
    recorded = np.load(fixtures_dir / "marinenav/noisy_perception.npz")
    config = json.loads(str(recorded["config"]))
    assert perception_seeds(config, stale_num_robots=4) == recorded["perception_seed"].tolist()
    assert len(perception_seeds(config)) == 4 and perception_seeds(config) != recorded["perception_seed"].tolist()


def test_noise_streams_replay_a_recorded_noisy_episode(fixtures_dir: Path) -> None:
    """Each perception of a recorded episode is reproduced from the true states and the streams alone."""
    recorded = np.load(fixtures_dir / "marinenav/noisy_perception.npz")
    noise = PublishedNoise([[0], recorded["perception_seed"].tolist()])  # world 0: unused, must not interfere
    radius = np.append(recorded["obstacles"][:, 2], [2.795084971874737] * 4)
    reported = 0
    for t, (pose, velocity) in enumerate(zip(recorded["pose"], recorded["velocity"], strict=True)):
        active = ~recorded["deactivated_before"][t]
        candidates = active[:, None] & np.append(np.ones(len(recorded["obstacles"]), bool), active)
        candidates[:, -4:] &= ~np.eye(4, dtype=bool)
        draws = noise.draw(np.stack((np.zeros_like(candidates), candidates)))
        assert (draws[0] == 0).all() and (draws[1][~candidates] == 0).all()
        position = np.concatenate((recorded["obstacles"][:, :2], pose[:, :2]))
        motion = np.concatenate((np.zeros_like(recorded["obstacles"][:, :2]), velocity[:, :2]))
        for robot in active.nonzero()[0]:
            objects = perceive(pose[robot], position, motion, radius, draws[1, robot], candidates[robot])
            assert len(objects) == recorded["n_objects"][t, robot]
            np.testing.assert_allclose(objects, recorded["obs_objects"][t, robot, : len(objects)], atol=1e-12)
            reported += len(objects)
    assert reported > 300


def perceive(
    ego: np.ndarray, position: np.ndarray, motion: np.ndarray, radius: np.ndarray, z: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """Returns the published perception of one robot: at most five rows px, py, vx, vy, r in its body frame."""
    cos, sin = np.cos(ego[2]), np.sin(ego[2])
    to_body = np.array([[cos, -sin], [sin, cos]])
    p = (position + 0.05 * z[:, :2] - ego[:2]) @ to_body
    v = (motion + 0.05 * z[:, 2:4]) @ to_body
    r = 0.8 * radius + 0.2 * radius * z[:, 4] / np.pi
    distance = np.linalg.norm(p, axis=-1)
    seen = np.flatnonzero(mask & (distance <= 20 + r))
    nearest = seen[np.argsort((distance - r)[seen], kind="stable")][:5]
    return np.column_stack((p, v, r))[nearest]


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
