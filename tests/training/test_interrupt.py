"""Ctrl-C during long work: it ends between two steps, and finished work stays."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from rlstack import envs
from rlstack.agents import Interface
from rlstack.command import HydraCommand
from rlstack.config import build
from rlstack.config.groups import compose_config
from rlstack.envs.foundation.work import Work, following, step, working
from rlstack.envs.rendering.films import save_film
from rlstack.evaluate import Candidate, EvaluateConfig, judge
from rlstack.evaluation.evaluator import evaluate
from rlstack.league import run_league
from rlstack.play.league import League
from rlstack.training.distributed import Ranks
from rlstack.training.imitation import gather
from rlstack.training.interrupt import Interrupts, stopping_between_steps
from tests.play.test_league import config


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def interruptible() -> Iterator[list[str]]:
    """Returns the work done; afterwards the handler is as before."""
    told: list[str] = []
    before = signal.getsignal(signal.SIGINT)

    def show(work: Work) -> None:
        told.append(f"{work.what} {work.done} of {work.total} {work.unit}{' over' if work.over else ''}")

    with stopping_between_steps(show):
        yield told
    assert signal.getsignal(signal.SIGINT) is before


class Interrupting(TensorDictModuleBase):
    """Acts at random; presses Ctrl-C while it acts for the third time."""

    in_keys = ()
    out_keys = ("action",)

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.calls, self._env = 0, [env]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.calls += 1
        if self.calls == 3:
            ctrl_c()
        return tensordict.set("action", self._env[0].action_spec.rand())


@pytest.mark.parametrize(("most", "note"), [(None, "step 1"), (2, "step 1 of at most 2")])
def test_an_evaluation_shows_its_limit_if_there_is_one(most: int | None, note: str) -> None:
    notes: list[str] = []
    with following(lambda work: notes.append(work.note)):
        evaluate(envs.make("cartpole", num_worlds=2).rand_action, "cartpole", {}, episodes=2, seed=0, max_steps=most)  # type: ignore[arg-type]
    assert notes[1] == note


def test_an_evaluation_ends_after_the_step_and_leaves_no_folder(tmp_path: Path, interruptible: list[str]) -> None:
    policy = Interrupting(envs.make("cartpole", num_worlds=5))
    settings = {**compose_config("evaluate", ["episodes=5", f"output={tmp_path / 'new'}"]), "checkpoint": "x"}
    settings.pop("hydra", None)
    with pytest.raises(KeyboardInterrupt):
        judge(build(EvaluateConfig, settings), Candidate(policy, {"name": "cartpole"}, "random", tmp_path), "cpu")  # type: ignore[arg-type]
    assert policy.calls == 3 and list(tmp_path.iterdir()) == []
    assert interruptible[0] == "evaluating 0 of 5 episodes" and interruptible[-1].endswith("over")


def test_gathering_ends_within_a_batch(interruptible: list[str]) -> None:
    env = envs.make("cartpole", num_worlds=2)
    policy = Interrupting(env)
    with pytest.raises(KeyboardInterrupt):
        gather(env, policy, Interface.of(env), frames=10_000, steps_per_batch=5_000)
    assert policy.calls == 3 and not policy._forward_pre_hooks


def test_rounds_of_a_league_that_have_ended_are_kept(tmp_path: Path) -> None:
    def show(work: Work) -> None:
        if work.done >= 13:  # of 18, a round has 12
            ctrl_c()

    with pytest.raises(KeyboardInterrupt), stopping_between_steps(show):
        run_league(config(tmp_path / "parts"))
    assert len(League.open(tmp_path / "parts").games) == 12
    for name in ("parts", "whole"):
        run_league(config(tmp_path / name))
    assert League.open(tmp_path / "parts").games == League.open(tmp_path / "whole").games


def test_a_film_that_is_interrupted_leaves_the_one_before(tmp_path: Path, interruptible: list[str]) -> None:
    (tmp_path / "film.mp4").write_text("old")

    def pictures() -> Iterator[Any]:
        for number in range(100):
            if number == 4:
                ctrl_c()
            assert number < 5
            yield np.zeros((16, 16, 3), np.uint8)

    with pytest.raises(KeyboardInterrupt):
        save_film(tmp_path / "film.mp4", 10.0, (16, 16), pictures(), 100)
    assert interruptible[-2] == "writing film.mp4 5 of 100 pictures"
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"] and (tmp_path / "film.mp4").read_text() == "old"


def test_twice_or_without_work_it_interrupts_at_once(interruptible: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
        pytest.fail("where nothing can be waited for")
    with pytest.raises(KeyboardInterrupt), working("measuring", "tests", 1):
        ctrl_c()
        assert interruptible == ["measuring 0 of 1 tests"]
        ctrl_c()
        pytest.fail("the second time")


def test_a_command_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def task(cfg: Any) -> None:
        with working("measuring", "tests", 1):
            ctrl_c()
            step()

    monkeypatch.setattr(sys, "argv", ["report"])
    with pytest.raises(SystemExit) as ended:
        HydraCommand("report").line(task)()
    assert ended.value.code == 130 and capsys.readouterr().err == "interrupted\n"


def test_work_within_work_of_the_same_unit_adds_to_it() -> None:
    seen: list[tuple[str, int]] = []

    def play(games: int) -> None:
        with working("inner", "games", games) as work:
            work.reach(games)

    rounds: list[Callable[[], None]] = [lambda: play(2), lambda: play(3)]
    with following(lambda work: seen.append((work.what, work.done))), working("outer", "games", 5):
        for each in rounds:
            each()
    assert seen == [("outer", 0), ("outer", 2), ("outer", 5), ("outer", 5)]


def test_before_the_first_batch_a_run_is_left_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    interrupts = Interrupts(Ranks())
    before = signal.getsignal(signal.SIGINT)
    interrupts.on_start(None)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
    interrupts.close()
    assert signal.getsignal(signal.SIGINT) is before and capsys.readouterr().out == ""
