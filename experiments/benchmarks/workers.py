"""Compares collecting in this process and with two workers: ``python -m experiments.benchmarks.workers``.

The worlds are one whose steps wait for 2 ms (like a remote simulator), and MarineNav. An untrained AC-IQN policy acts,
and nothing learns. The result, in frames per second, goes to ``results/workers.json``.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import torch
from gymnasium.envs.classic_control import PendulumEnv

from experiments.results import markdown, spread
from rlstack.config import build, to_plain
from rlstack.config.groups import compose_config
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.config import TrainConfig
from rlstack.training.loop import Training
from rlstack.training.workers import start_collector

from .timing import write

WAIT = 0.002
"""Seconds that a step of :class:`Slow` takes."""
_SLOW = "env.id=experiments.benchmarks.workers:Slow-v0"
WORLDS = {
    "eight environments of 2 ms a step": ["env=gymnasium", _SLOW, "env.num_envs=8", "env.workers=0"],
    "MarineNav, 256 worlds": ["env=marinenav", "env.num_worlds=256"],
}
COLLECTORS = {"default": "one process", "multiprocess": "`multiprocess`", "multiasync": "`multiasync`"}
ROUNDS, SECONDS = 5, 4.0


class Slow(PendulumEnv):
    """A pendulum that waits in every step."""

    def step(self, action: Any) -> Any:
        time.sleep(WAIT)
        return super().step(action)


if "Slow-v0" not in gymnasium.registry:  # __main__ is imported once more by its name
    gymnasium.register("Slow-v0", Slow, max_episode_steps=200)


def rates(collector: str, *overrides: str) -> list[float]:
    """Returns steps of worlds per second of wall clock, in some rounds of a run that does not learn."""
    options = ["agent=acqn", f"collector={collector}", "collector.steps_per_batch=16", "device=cpu"]
    options += ["total_frames=1_000_000", "eval.every=1_000_000", "checkpoint.every=1_000_000"]
    plain, rounds = to_plain(compose_config("train", [*options, *overrides])), []
    with tempfile.TemporaryDirectory() as folder:
        run = Training(build(TrainConfig, plain), RunDirectory.create(Path(folder) / "run", "test", 9), plain)
        made = start_collector(run.config, run.env, run.agent, [], {}, None)
        with closing(run.env):
            batches = iter(made)
            next(batches)
            for _ in range(ROUNDS):
                begun, steps = time.perf_counter(), 0
                while (passed := time.perf_counter() - begun) < SECONDS:
                    steps += next(batches).numel()
                rounds.append(steps / passed)
            made.shutdown(close_env=False)
    return rounds


def table(result: dict[str, Any]) -> str:
    """Returns the figures of a result file: medians, and the spread of the rounds."""
    rows = [[world, *map(spread, row.values())] for world, row in result["worlds"].items()]
    return markdown(f"world | {' | '.join(COLLECTORS.values())}", rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    worlds = {world: {name: rates(name, *overrides) for name in COLLECTORS} for world, overrides in WORLDS.items()}
    print(table(write("workers", {"worlds": worlds})))
