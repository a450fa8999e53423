"""Frames per second of one process and of several ranks: ``python -m experiments.benchmarks.data_parallel``.

The world is CartPole with a pause of 2 ms in every step of every environment, which imitates a simulator. Start-up and
the last evaluation do not count. Runs of PPO with one and with two processes take turns. The result goes to
``results/data_parallel.json``.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

from experiments.results import markdown, spread
from experiments.runs import logged

from .timing import write

PAUSE, FRAMES, REPEATS = 0.002, 12_288, 3
RATE = "time/frames_per_second"


class SlowCartPole(CartPoleEnv):
    """CartPole with a pause in every step."""

    def step(self, action: Any) -> Any:
        time.sleep(PAUSE)
        return super().step(action)


gymnasium.register("SlowCartPole-v0", SlowCartPole, max_episode_steps=500)


def rate(processes: int, run: Path) -> float:
    """Returns frames per second of a run of PPO with four epochs."""
    start = [] if processes == 1 else ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m"]
    overrides = ["agent=ppo", "agent.epochs=4", f"run_dir={run}", "device=cpu", "compile=false", "logger=csv"]
    overrides += ["env=gymnasium", f"env.id={__spec__.name}:SlowCartPole-v0", "env.num_envs=8", "env.workers=0"]
    overrides += [f"total_frames={FRAMES}", f"eval.every={FRAMES}", "eval.episodes=1", "eval.max_steps=10"]
    command = [sys.executable, "-m", *start, "rlstack.train", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return logged(run, RATE)[-1][RATE]


def table(result: dict[str, Any]) -> str:
    """Returns the figures of a result file."""
    rates = {run["processes"]: run["frames_per_second"] for run in result["runs"]}
    first = statistics.median(next(iter(rates.values())))
    rows = [[count, spread(each), f"{statistics.median(each) / first:.2f}"] for count, each in rates.items()]
    return markdown("processes | frames per second | times", rows)


if __name__ == "__main__":
    rates: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(REPEATS):
            for processes, measured in rates.items():
                measured.append(rate(processes, Path(folder) / f"{processes}_processes_{turn}"))
    runs = [{"processes": processes, "frames_per_second": measured} for processes, measured in rates.items()]
    print(table(write("data_parallel", {"runs": runs}, threads=1)))
