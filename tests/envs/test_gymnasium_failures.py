"""Environments that fail, hang or die in their workers."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import re
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlstack.envs.foundation.processes import EnvironmentFailed, EnvironmentRaised, WorkersFailed
from rlstack.envs.foundation.tensors import ACTION_MASK
from rlstack.envs.gymnasium import Gymnasium
from rlstack.envs.spaces import MASKS
from tests.envs.gymnasium_toys import TOYS, rolled
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import python

FRAGILE, ANSWERING = f"{TOYS}:Fragile", f"{TOYS}:Answering"
REASONS = {
    "raises": r"tests.*: step \d of an episode raised ArithmeticError: the mast broke \(gymnasium_toys.py, line \d+\)",
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


@exhaustive("how", ["raises", "dies"])
def test_one_that_fails_again_and_again_ends_it(how: str) -> None:
    env = fragile(how, 2, num_envs=1, workers=1)
    times = "it has failed 4 times in a row within its first 100 answers"
    message = rf"^worker 0 of 1 \(environments 0 to 0\): {REASONS[how]}; {times}$"
    with pytest.warns(RuntimeWarning, match="it is replaced"), pytest.raises(WorkersFailed, match=message) as caught:
        rolled(env, 20)
    assert ("in _break" in caught.value.traceback) == (how == "raises")
    assert not pids() and env.worker_failures == 3
    refused(RuntimeError, "the workers of this world have ended", env.reset)
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
        ({}, r"step 1 of an episode does not fit \(not enough values to unpack \(expected 5, got 4\)\)"),
        ({"parts": 6}, r"step 1 of an episode does not fit \(too many values to unpack .*\)"),
    ],
)
def test_older_interfaces_are_told_in_one_line(kwargs: dict[str, Any], fault: str, max_steps: int | None) -> None:
    """This also holds if a wrapper of Gymnasium calls them first."""
    with pytest.raises(EnvironmentFailed, match=rf"^{TOYS}:Old: {fault}; Gymnasium's reset.*shimmy"):
        rolled(Gymnasium(f"{TOYS}:Old", 1, kwargs=kwargs, max_steps=max_steps), 1)


BOX = spaces.Box(-1.0, 1.0, (4,))
IMAGE = spaces.Box(0, 255, (2, 2), np.uint8)
FITS = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("space", "fits", "seen", "told"),
    [
        (BOX, FITS, [7.0], "it is float64 of shape [1], but the space says float32 of shape [4]"),
        (BOX, FITS, "left", "it is 'left', but the space says float32 of shape [4]"),
        (BOX, FITS, [0, 0, 1.5, 0], "it has 1.5 at [2], but the space allows -1.0 to 1.0"),
        (spaces.MultiDiscrete([3, 4]), [2, 3], [3, 1], "it has 3 at [0], but the space allows 0 to 2"),
        (spaces.Discrete(3), 2, -1, "it has -1, but the space allows 0 to 2"),
        (spaces.Discrete(3), 2, 1.0, "it is float64 of shape [], but the space says int64 of shape []"),
        (IMAGE, IMAGE.low, IMAGE.low - 1, None),
        (IMAGE, IMAGE.low, IMAGE.low.astype(int) - 1, "it has -1 at [0, 0], but the space allows 0 to 255"),
        (
            spaces.Dict(a=spaces.Tuple([BOX])),
            {"a": (FITS,)},
            {"a": (FITS[:1],)},
            "entry 'a.0' is float32 of shape [1], but the space says float32 of shape [4]",
        ),
        (spaces.Dict(a=BOX), {"a": FITS}, {"b": FITS}, "it has the entries ['b'], but the space says Dict of ['a']"),
        (spaces.Dict(a=BOX), {"a": FITS}, FITS, "it is a ndarray, but the space says Dict of ['a']"),
    ],
)
def test_an_observation_that_does_not_fit_its_space_ends_it(space: Any, fits: Any, seen: Any, told: str | None) -> None:
    for call, first in (("reset", seen), ("step 1 of an episode", fits)):
        env = Gymnasium(ANSWERING, 1, kwargs={"space": space, "first": first, "fits": fits, "observation": seen})
        if told is None:
            rolled(env, 1)
            continue
        message = f"{ANSWERING}: {call}: the observation does not fit its space: {told}"
        refused(EnvironmentFailed, rf"^{re.escape(message)}$", rolled, env, 1)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"observation": np.zeros(5)}, "the observation does not fit its space: it is float64 of shape [5], but"),
        ({"reward": [0.5]}, "the reward is [0.5], it must be a number"),
        ({"terminated": "no"}, "terminated is 'no', it must be True or False"),
        ({"truncated": [1, 0]}, "truncated is [1, 0], it must be True or False"),
        ({"info": [1]}, "info is [1], it must be a dict"),
        ({"info": {"action_mask": [1, 1]}}, "its info has an action mask, but that of the reset had none"),
    ],
)
def test_an_answer_that_fits_nowhere_is_told_with_its_step(answer: dict[str, Any], told: str) -> None:
    """Also in a later step, which is not checked as the first one is."""
    with pytest.raises(EnvironmentFailed, match=rf"^{ANSWERING}: step 3 of an episode: {re.escape(told)}[^\n]*$"):
        rolled(Gymnasium(ANSWERING, 2, kwargs={"at": 3, **answer}), 4)


def test_answers_that_fit() -> None:
    """A bound that is missed by a rounding error, a reward and a flag in arrays, a list for an array."""
    answer = {"observation": [1.000001, 0, 0, 0], "reward": np.ones(()), "terminated": np.array([True])}
    following = rolled(Gymnasium(ANSWERING, 1, kwargs=answer), 1)["next"]
    assert following["reward"].item() == 1 and following["terminated"].all()


@pytest.mark.parametrize("workers", [0, 1])
def test_every_step_is_checked_where_type_checks_are_asked_for(workers: int) -> None:
    def world() -> Gymnasium:
        return Gymnasium(ANSWERING, 1, workers=workers, kwargs={"at": 3, "observation": [7.0]})

    with world() as env:
        assert rolled(env, 3)["next", "observation"][0, 2].tolist() == [7.0] * 4
    with world() as env, pytest.raises((EnvironmentFailed, WorkersFailed), match=r"step 3 .*: it is float64 of shape"):
        env.run_type_checks = True
        rolled(env, 3)


@pytest.mark.parametrize("error", [ValueError("not enough values to unpack"), MemoryError(), OSError(28, "disk full")])
@pytest.mark.parametrize("call", ["reset", "step 2 of an episode"])
def test_errors_of_the_environments_own_code_show_its_line(error: Exception, call: str) -> None:
    kwargs = {"raises": error, "at": 0 if call == "reset" else 2}
    text = re.escape(f"{type(error).__name__}: {error}" if str(error) else "MemoryError")
    message = rf"^{ANSWERING}: {call} raised {text} \(gymnasium_toys.py, line \d+\)$"
    refused(EnvironmentRaised, message, rolled, Gymnasium(ANSWERING, 1, kwargs=kwargs), 2)


# -- Environments in other processes: the same results, and no processes left after closing --------------------------


CARTPOLE = "CartPole-v1"


def children() -> int:
    return len(multiprocessing.active_children())


@pytest.mark.slow
@pytest.mark.parametrize(("toy", "kwargs"), [("Noisy", {}), ("Masked", {"form": "observation"})])
def test_the_same_results_whatever_the_workers(toy: str, kwargs: dict[str, Any]) -> None:
    results = []
    for workers in (0, 2):
        with Gymnasium(f"{TOYS}:{toy}", 3, workers=workers, seed=5, kwargs=kwargs) as env:
            torch.manual_seed(0)
            results.append(rolled(env, 20))
            assert children() == workers
    assert children() == 0
    assert (results[0] == results[1]).all() and results[0]["next", "done"].any()


@pytest.mark.slow
def test_more_workers_than_environments() -> None:
    env = Gymnasium(CARTPOLE, num_envs=1, workers=4, kwargs={"render_mode": "rgb_array"})
    assert children() == 0, "nothing starts before the first reset"
    env.reset()
    assert children() == 1
    refused(RuntimeError, "set workers: 0", env.render)
    del env
    gc.collect()
    assert children() == 0, "a forgotten world takes its workers along"


def test_workers_do_not_import_torch() -> None:
    """It would take each of them five seconds and 300 MB."""
    modules = "rlstack.envs.gymnasium.simulators, tests.envs.gymnasium_toys"
    ended = python("-c", f"import sys, {modules}; print({{'torch', 'tensordict'}} & set(sys.modules))")
    assert (ended.stdout, ended.stderr) == ("set()\n", "") and MASKS[0] == ACTION_MASK


def test_an_interrupted_step_leaves_nothing_to_mix_up(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Gymnasium(CARTPOLE, num_envs=1, workers=1)
    root = env.rand_action(env.reset())

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(env._simulators._workers, "_receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        env.step(root)
    assert children() == 0


@pytest.mark.slow
def test_a_program_may_end_without_closing(tmp_path: Path) -> None:
    script = tmp_path / "forgets.py"
    script.write_text(
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    from rlstack.envs.gymnasium import Gymnasium\n"
        f"    env = Gymnasium({CARTPOLE!r}, num_envs=2, workers=1)\n"
        "    env.reset()\n"
        "    print(multiprocessing.active_children()[0].pid)\n"
    )
    ended = python(str(script))
    assert ended.returncode == 0 and ended.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.stdout), 0)


def test_a_worker_that_cannot_begin_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Gymnasium("tests.envs.gymnasium_toys:Fragile", num_envs=1, workers=1)
    monkeypatch.setattr(env, "_recipe", dataclasses.replace(env._recipe, id="NoSuch-v0"))
    refused(RuntimeError, r"worker 0 of 1 .*unknown environment 'NoSuch-v0'", env.reset)
    assert children() == 0
