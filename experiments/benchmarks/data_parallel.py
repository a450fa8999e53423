"""Frames per second of one process and of several ranks: ``python -m experiments.benchmarks.data_parallel``.

The world is CartPole with a pause of 2 ms in every step of every environment, which imitates a simulator. Start-up and
the last evaluation do not count. The result goes to ``results/data_parallel.json``.
"""

from __future__ import annotations

import argparse
import json
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

from .speed import circumstances

RESULT = Path(__file__).parent / "results" / "data_parallel.json"
PAUSE = 0.002
RATE = "time/frames_per_second"


class SlowCartPole(CartPoleEnv):
    """CartPole with a pause in every step."""

    def step(self, action: Any) -> Any:
        time.sleep(PAUSE)
        return super().step(action)


gymnasium.register("SlowCartPole-v0", SlowCartPole, max_episode_steps=500)


def rate(processes: int, frames: int, folder: Path) -> float:
    """Returns frames per second of a run of PPO with four epochs."""
    run = folder / f"{processes}_processes"
    start = [] if processes == 1 else ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m"]
    world = ["env=gymnasium", f"env.id={__spec__.name}:SlowCartPole-v0", "env.num_envs=8", "env.workers=0"]
    options = [f"total_frames={frames}", f"eval.every={frames}", "eval.episodes=1", "eval.max_steps=10", "logger=csv"]
    overrides = [
        "agent=ppo",
        "agent.epochs=4",
        *world,
        *options,
        f"run_dir={run}",
        "device=cpu",
        "compile=false",
    ]
    command = [sys.executable, "-m", *start, "rlstack.train", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return logged(run, RATE)[-1][RATE]


def table(result: dict[str, Any]) -> str:
    """Returns the figures of a result file."""
    rates = {run["processes"]: run["frames_per_second"] for run in result["runs"]}
    first = statistics.median(next(iter(rates.values())))
    rows = [[count, spread(each), f"{statistics.median(each) / first:.2f}"] for count, each in rates.items()]
    return markdown("processes | frames per second | times", rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--frames", type=int, default=12_288)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, in turns; their median counts")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [
            {count: rate(count, arguments.frames, Path(folder) / str(turn)) for count in arguments.processes}
            for turn in range(arguments.repeats)
        ]
    rates = {count: [rates[count] for rates in found] for count in arguments.processes}
    runs = [{"processes": count, "frames_per_second": each} for count, each in rates.items()]
    result = {**circumstances("data_parallel", threads=1), "runs": runs}
    print(table(result))
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
