"""PPO of rlstack and of Stable-Baselines3: the statistics of the comparison, and a few batches of both."""

from __future__ import annotations

import importlib.util

import pytest

from experiments.benchmarks import equal_ppo


def test_returns_are_those_of_the_part_in_which_an_episode_ends() -> None:
    found = equal_ppo.parts([(1, 10.0), (100, 20.0), (101, 30.0), (2100, 40.0)], frames=2000)
    assert found == [15.0, 30.0, *[None] * (equal_ppo.PARTS - 3), 40.0]


def test_the_end_is_the_last_quarter() -> None:
    curve = [0.0] * (equal_ppo.PARTS - equal_ppo.PARTS // 4) + [8.0] * (equal_ppo.PARTS // 4)
    told = equal_ppo.summary([curve, curve])
    assert told["end"] == [8.0, 8.0, 8.0] and told["area"][0] == pytest.approx(2.0)


@pytest.mark.parametrize("library", list(equal_ppo.LIBRARIES))
def test_episodes_have_the_length_of_their_return(library: str) -> None:
    if library == "stable-baselines3" and importlib.util.find_spec("stable_baselines3") is None:
        pytest.skip("needs the extra sb3")
    settings = equal_ppo.Settings(frames=256, num_envs=2, steps=64, epochs=1, hidden=(8,))
    episodes = equal_ppo.LIBRARIES[library]("CartPole-v1", settings, 0)
    frames = [when for when, _ in episodes]
    assert frames == sorted(frames) and frames[0] > 0 and frames[-1] <= 256
    # Each step has a reward of 1, so the sum is at most the number of frames; only two unfinished episodes are missing.
    assert 256 - 2 * 100 <= sum(value for _, value in episodes) <= 256
