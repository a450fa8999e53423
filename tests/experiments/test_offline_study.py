"""The table of the experiment on recorded episodes, for made-up results."""

import pytest

from experiments.marinenav.offline import Results, gain, pooled, table


def test_the_interval_of_one_seed_is_that_of_its_episodes() -> None:
    # Wilson (1927) for 12 of 20: (12 + 1.92) / (20 + 3.84) = .584, half-width .197.
    row = {"success": 0.6, "cpu_minutes": 1.5, "solved": [1] * 12 + [0] * 8}
    lines = table({"agents": {"iql": [row]}}).splitlines()
    assert lines[2:] == ["| IQL | 0.600 | 0.387 to 0.781 | 0.600 | 1.5 |"]


def test_seeds_that_play_the_same_episodes_are_not_independent() -> None:
    """Two equal seeds know as much as one: a bootstrap over 20 episodes, nearly the normal interval .6 +- .215."""
    row = {"success": 0.6, "cpu_minutes": 1.5, "solved": [1] * 12 + [0] * 8}
    _, low, high = pooled([row, row])
    assert (low, high) == (pytest.approx(0.385, abs=0.04), pytest.approx(0.815, abs=0.04))


def test_a_gain_is_that_of_the_same_episodes() -> None:
    """One seed solves one more of four episodes, the other none: a gain of 1/8, from one of the four episodes."""
    worse, better = {"solved": [1, 0, 0, 0]}, {"solved": [1, 1, 0, 0]}
    results: Results = {"bc": [worse, worse], "iql": [better, worse]}
    mean, low, high = gain(results, "iql", "bc")
    assert mean == 0.125 and low == 0 and 0.125 < high <= 0.5
