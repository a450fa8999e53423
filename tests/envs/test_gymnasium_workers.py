"""Environments in other processes: the same results, and no processes left after closing."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlstack.envs.gymnasium import Gymnasium
from tests.envs.gymnasium_toys import TOYS, rolled

CARTPOLE = "CartPole-v1"


def children() -> int:
    return len(multiprocessing.active_children())


@pytest.mark.slow
@pytest.mark.parametrize("id", [f"{TOYS}:Noisy", f"{TOYS}:MaskedInObservation"])
def test_the_same_results_whatever_the_workers(id: str) -> None:
    results = []
    for workers in (0, 2):
        with Gymnasium(id, num_envs=3, workers=workers, seed=5) as env:
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
    with pytest.raises(RuntimeError, match="set workers: 0"):
        env.render()
    del env
    gc.collect()
    assert children() == 0, "a forgotten world takes its workers along"


def test_an_interrupted_step_leaves_nothing_to_mix_up(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Gymnasium(CARTPOLE, num_envs=2, workers=2)
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
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": "."}
    )
    assert ended.returncode == 0 and ended.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.stdout), 0)


def test_a_worker_that_cannot_begin_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Gymnasium("tests.envs.gymnasium_toys:Fragile", num_envs=1, workers=1)
    monkeypatch.setattr(env, "_recipe", dataclasses.replace(env._recipe, id="NoSuch-v0"))
    with pytest.raises(RuntimeError, match=r"worker 0 of 1 .*unknown environment 'NoSuch-v0'"):
        env.reset()
    assert children() == 0
