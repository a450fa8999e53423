"""The frozen benchmark of MarineNav: its episodes, and its comparison of players."""

from __future__ import annotations

import json

import pytest

from experiments.marinenav import benchmark
from rlstack.envs.marinenav.episodes import PUBLISHED_LEVELS, evaluation_set


def test_the_frozen_episodes_are_those_that_were_frozen() -> None:
    episodes = benchmark.frozen()
    robots = [config["env"]["num_robots"] for config in episodes.configs]
    assert robots == [int(level["num_robots"]) for level in PUBLISHED_LEVELS for _ in range(300)]
    assert episodes.levels[0] == "0" and episodes.levels[-1] == "5" and len(episodes.levels) == 1800


def test_another_file_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(benchmark, "FROZEN", tmp_path / "episodes.json.gz")
    monkeypatch.setattr(benchmark, "PER_LEVEL", 1)
    benchmark.freeze(benchmark.FROZEN)
    with pytest.raises(ValueError, match="not the file that was frozen"):
        benchmark.frozen()


def test_the_public_episodes_are_those_of_twelve_seeds() -> None:
    episodes = benchmark.public()
    assert len(episodes.configs) == 720 and episodes.levels.count("3") == 120
    assert episodes.configs[10] == evaluation_set(10, 254)[0][0], "the second seed's first episode of level 0"


def test_players_are_compared_where_both_arrive() -> None:
    first = {"success": [1, 1, 0, 1], "time": [20, 40, 9, 50], "energy": [10, 10, 1, 10]}
    other = {"success": [1, 1, 1, 0], "time": [10, 20, 9, 50], "energy": [15, 15, 1, 1]}
    found = benchmark.both_solve(first, other)
    assert found["episodes"] == 2
    assert found["time"]["ratio"] == pytest.approx(0.5) and found["energy"]["ratio"] == pytest.approx(1.5)
    assert found["time"]["interval"] == pytest.approx([0.5, 0.5]), "half in every episode"
    assert benchmark.both_solve(first, other | {"success": [0, 0, 1, 0]}) is None


@pytest.mark.slow
def test_players_are_measured_and_kept(tmp_path, monkeypatch) -> None:
    two = benchmark.public()
    few = benchmark.EpisodeSet(two.configs[::360], two.levels[::360])
    monkeypatch.setattr(benchmark, "public", lambda: few)
    benchmark.run(["orca"], "public", tmp_path)
    text = benchmark.run(["apf"], "public", tmp_path)
    rows = text.splitlines()
    assert rows[2].startswith("| orca |") and rows[3].startswith("| apf |")
    assert list(json.loads((tmp_path / "benchmark_public.json").read_text())["players"]) == ["orca", "apf"]
