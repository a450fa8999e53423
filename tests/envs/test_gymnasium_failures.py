"""Workers that fail, die or hang are replaced and counted; the run ends only if replacement is useless."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from rlstack.envs.gymnasium import Gymnasium
from rlstack.envs.processes import EnvironmentFailed, WorkersFailed
from tests.envs.gymnasium_toys import TOYS, rolled

FRAGILE = f"{TOYS}:Fragile"
REASONS = {
    "raises": r"ArithmeticError: the mast broke \(gymnasium_toys.py:\d+\)",
    "dies": r"the process has died \(exit code -9\)",
    "hangs": "the process does not answer",
}


def fragile(how: str, at: int, once: Path | None = None, **options: Any) -> Gymnasium:
    kwargs = {"how": how, "at": at, "once": None if once is None else str(once)}
    options = {"num_envs": 4, "workers": 2, "worker_timeout": 4.0 if how == "hangs" else 60.0, **options}
    return Gymnasium(FRAGILE, kwargs=kwargs, **options)


def pids() -> list[int]:
    workers = sorted(multiprocessing.active_children(), key=lambda child: child.name)
    return [child.pid for child in workers if child.pid]


@pytest.mark.slow
@pytest.mark.parametrize("how", list(REASONS))
def test_a_lost_worker_costs_its_own_episodes_only(how: str, tmp_path: Path) -> None:
    """Which of the two fails first is random."""
    with fragile(how, 3, tmp_path / "broken") as env:
        began = time.monotonic()
        with pytest.warns(RuntimeWarning, match=rf"worker [01] of 2 .*: {REASONS[how]}; it is replaced"):
            data = rolled(env, 6)
        assert time.monotonic() - began < 60 and env.worker_failures == 1 and len(pids()) == 2
    truncated = data["next", "truncated"][..., 0]
    lost = truncated.any(1)
    assert lost.tolist() in ([True, True, False, False], [False, False, True, True])
    assert not data["next", "terminated"].any() and torch.equal(truncated, data["next", "done"][..., 0])
    for row in range(4):
        if lost[row]:
            assert truncated[row].nonzero().tolist() == [[2]]
            assert data["next", "reward"][row, :, 0].tolist() == [1, 1, 0, 1, 1, 1]
            assert data["observation"][row, :, 0].tolist() == [0, 1, 2, 0, 1, 2]
            assert data["next", "episode", "length"][row, :, 0].tolist() == [1, 2, 3, 1, 2, 3]
        else:
            assert data["observation"][row, :, 0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_stopped_process_is_found_out() -> None:
    with fragile("raises", -1, worker_timeout=4.0) as env:
        root = env.rand_action(env.reset())
        stopped = pids()[1]
        os.kill(stopped, signal.SIGSTOP)
        with pytest.warns(RuntimeWarning, match=r"worker 1 of 2 \(environments 2 to 3\): the process does not answer"):
            root, following = env.step_and_maybe_reset(root)
        assert root["next", "truncated"][:, 0].tolist() == [False, False, True, True]
        assert following["observation"][:, 0].tolist() == [1, 1, 0, 0] and stopped not in pids()
        os.kill(pids()[0], signal.SIGKILL)
        with warnings.catch_warnings():  # once is enough
            warnings.simplefilter("error")
            root, following = env.step_and_maybe_reset(env.rand_action(following))
        assert root["next", "truncated"][:, 0].tolist() == [True, True, False, False] and env.worker_failures == 2


def test_a_worker_lost_in_a_reset_cuts_the_episodes_of_its_others(tmp_path: Path) -> None:
    with fragile("raises", 0, tmp_path / "broken", num_envs=3, workers=1) as env:
        env.step_and_maybe_reset(env.rand_action(env.reset()))
        with pytest.warns(RuntimeWarning, match="is replaced"):
            env._restart_rows([0])
        following = env._batch.root_after_reset()
        assert env.worker_failures == 1 and not following["done"].any()
        root, following = env.step_and_maybe_reset(env.rand_action(following))
        assert root["next", "truncated"][:, 0].tolist() == [False, True, True]
        assert root["next", "reward"][:, 0].tolist() == [1, 0, 0]
        assert following["observation"][:, 0].tolist() == [1, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raises", "dies"])
def test_one_that_fails_again_and_again_ends_it(how: str) -> None:
    env = fragile(how, 2, num_envs=2)
    times = "it has failed 4 times in a row within its first 100 steps"
    message = rf"^worker 0 of 2 \(environments 0 to 0\): {REASONS[how]}; {times}$"
    with pytest.warns(RuntimeWarning, match="it is replaced"), pytest.raises(WorkersFailed, match=message) as caught:
        rolled(env, 20)
    assert ("in _break" in caught.value.traceback) == (how == "raises")
    assert not pids() and env.worker_failures >= 6
    with pytest.raises(RuntimeError, match="the workers of this world have ended"):
        env.reset()
    env.close()


def test_one_that_ends_its_process_is_not_replaced() -> None:
    message = r"^worker 0 of 1 \(environments 0 to 0\): SystemExit: 0 \(gymnasium_toys.py:\d+\)$"
    with fragile("exits", 2, num_envs=1, workers=1) as env, pytest.raises(WorkersFailed, match=message) as caught:
        rolled(env, 3)
    assert "in _break" in caught.value.traceback and env.worker_failures == 0


@pytest.mark.parametrize("max_steps", [None, 5])
@pytest.mark.parametrize(
    ("kwargs", "fault"),
    [
        ({"reset": "plain"}, r"reset does not fit \(it returns one ndarray\)"),
        ({"reset": "seedless"}, r"reset does not fit \(.*unexpected keyword argument 'seed'\)"),
        ({}, r"step does not fit \(not enough values to unpack \(expected 5, got 4\)\)"),
        ({"parts": 6}, r"step does not fit \(too many values to unpack .*\)"),
    ],
)
def test_older_interfaces_are_told_in_one_line(kwargs: dict[str, Any], fault: str, max_steps: int | None) -> None:
    """This also holds if a wrapper of Gymnasium calls them first."""
    with pytest.raises(EnvironmentFailed, match=rf"^{TOYS}:Old: {fault}; Gymnasium's reset.*shimmy"):
        rolled(Gymnasium(f"{TOYS}:Old", 1, kwargs=kwargs, max_steps=max_steps), 1)


def test_a_timeout_is_a_positive_number() -> None:
    with pytest.raises(ValueError, match=r"worker_timeout: 0 is not a positive number of seconds"):
        Gymnasium("CartPole-v1", worker_timeout=0)
