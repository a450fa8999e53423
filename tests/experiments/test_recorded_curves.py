"""The summary and the picture of the experiment on learning from a replay buffer, for made-up evaluations."""

from pathlib import Path

from experiments.recorded.curves import draw, summary

ROWS = [
    {"agent": agent, "seed": seed, "updates": 100 * point, "return": float(value + point + seed)}
    for agent, value in (("bc", 0), ("iql", 10))
    for seed in (0, 1)
    for point in (1, 2)
]


def test_the_last_evaluation_of_each_seed_counts() -> None:
    told = summary(ROWS, {"bc": [1.0, 3.0], "iql": [2.0]}, -5.0)["agents"]
    assert told["bc"]["returns"] == {0: 2.0, 1: 3.0} and told["bc"]["mean"] == 2.5
    assert told["iql"]["mean"] == 12.5 and told["bc"]["cpu_minutes"] == 2.0


def test_a_picture_comes_out(tmp_path: Path) -> None:
    draw(ROWS, -5.0, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000
