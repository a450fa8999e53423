"""The table of the experiment on recorded episodes, for made-up results."""

from experiments.marinenav.offline import Results, gain, table


def test_the_table_pools_the_episodes_of_the_seeds() -> None:
    rows = [{"success": 0.5, "cpu_minutes": 1.0}, {"success": 0.7, "cpu_minutes": 2.0}]
    # Wilson (1927) for 12 of 20: (12 + 1.92) / (20 + 3.84) = .584, half-width .197.
    lines = table({"iql": rows}, episodes=10).splitlines()
    assert lines[2:] == ["| IQL | 0.600 | 0.387 to 0.781 | 0.500 0.700 | 1.5 |"]


def test_a_gain_is_that_of_the_same_episodes() -> None:
    """One seed solves one more of four episodes, the other none: a gain of 1/8, from one of the four episodes."""
    worse, better = {"solved": [1, 0, 0, 0]}, {"solved": [1, 1, 0, 0]}
    results: Results = {"bc": [worse, worse], "iql": [better, worse]}
    mean, low, high = gain(results, "iql", "bc")
    assert mean == 0.125 and low == 0 and 0.125 < high <= 0.5
