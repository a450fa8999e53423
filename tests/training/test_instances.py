"""Every environment that a run builds is closed once, and no more live at once than may."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rlstack
from rlstack.config import ConfigError
from rlstack.config.errors import RunError
from rlstack.envs.foreign import completed
from rlstack.envs.foundation.processes import EnvironmentFailed
from tests.exhaustive import exhaustive

LICENSED = "tests.envs.gymnasium_toys:Licensed"


def train(folder: Path, *words: str, agent: str = "ppo") -> Any:
    toy = ["env=gymnasium", f"env.id={LICENSED}", f"+env.kwargs.book={folder}/book", "logger=csv", "device=cpu"]
    short = [
        "total_frames=200",
        *("agent.steps_per_batch=20", "agent.epochs=1", "agent.hidden=[8]"),
        "eval.every=100",
        "eval.episodes=3",
        f"run_dir={folder}/run",
    ]
    return rlstack.train(f"agent={agent}", *toy, *short, *words, quiet=True)


def all_closed_once(folder: Path) -> bool:
    book = folder / "book"
    lines = book.read_text().split() if book.exists() else []
    begun, ended = (Counter(line[1:] for line in lines if line[0] == sign) for sign in "+-")
    return begun == ended and not multiprocessing.active_children()


@pytest.mark.parametrize("words", [["env.num_envs=3"], ["env.num_envs=3", "env.workers=2"]])
def test_a_run_closes_what_it_built(words: list[str], tmp_path: Path) -> None:
    train(tmp_path, *words)
    assert all_closed_once(tmp_path)


@exhaustive("workers", [0, 1])
def test_so_does_one_that_fails(workers: int, tmp_path: Path) -> None:
    with pytest.raises((ArithmeticError, RunError), match="the mast broke"):
        train(tmp_path, "env.num_envs=2", f"env.workers={workers}", "+env.kwargs.breaks=true", "total_frames=2000")
    assert all_closed_once(tmp_path)


def test_a_simulator_of_which_one_can_live(tmp_path: Path) -> None:
    one = ["env.num_envs=1", "env.max_instances=1", "+env.kwargs.most=1"]
    run = train(tmp_path, *one)
    assert len(list((tmp_path / "run" / "evaluations").iterdir())) == 2
    kept = {"checkpoint": str(run.path), "allow": [LICENSED], "quiet": True}
    assert rlstack.evaluate(episodes=4, output=str(tmp_path / "judged"), **kept).episodes["return"].tolist() == 4 * [5]
    rlstack.watch("show=numbers", "episodes=1", **kept)
    assert all_closed_once(tmp_path)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["num_envs=1"],
            "1 of 1 licences are in use .*; evaluations play in environments of their own, .*max_instances",
        ),
        (["num_envs=2"], "1 of 1 licences are in use .*; 1 of 2 environments were made: .*env.num_envs.*max_instances"),
        (["num_envs=2", "max_instances=1"], "num_envs: max_instances=1 allows no more than 1"),
        (["num_envs=1", "max_instances=0"], "max_instances: 0 is not a positive number"),
    ],
)
def test_the_error_names_the_option(words: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, RunError), match=f"^env: .*{told}"):
        train(tmp_path, *(f"env.{word}" for word in words), "+env.kwargs.most=1")
    assert not (tmp_path / "run").exists() and all_closed_once(tmp_path)


def test_others_that_need_environments_of_their_own_are_refused(tmp_path: Path) -> None:
    one = ["env.num_envs=1", "env.max_instances=1"]
    with pytest.raises(ConfigError, match=r"^env\.max_instances: each worker of a collector"):
        train(tmp_path, *one, "collector=multiprocess", "collector.workers=1")
    with pytest.raises(ConfigError, match=r"^imitation\.expert: acts in environments of its own"):
        train(tmp_path, *one, "imitation.expert=random")
    assert all_closed_once(tmp_path)


def test_copies_are_made_together_or_not_at_all() -> None:
    closed: list[int] = []

    class Copy:
        def __init__(self) -> None:
            if len(made) == 3:
                raise OSError("no port is free")
            self.number = len(made)

        def close(self) -> None:
            closed.append(self.number)
            raise KeyError("in close")

    made: list[Any] = []
    with pytest.raises((EnvironmentFailed, KeyError)):
        completed(made, Copy, 5)
    assert sorted(closed) == [0, 1, 2]
