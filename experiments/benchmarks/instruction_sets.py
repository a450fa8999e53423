"""Measures the gain of compiled updates and bfloat16, which depends on the CPU's instruction set.

    python -m experiments.benchmarks.instruction_sets [--only dqn]
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python -m experiments.benchmarks.instruction_sets

Eager and compiled updates learn alternately from the same data in one process with one thread. Times are CPU times;
those of compiling include the compiler's processes. Then short trainings in Arena alternate between float32 and
bfloat16, one process each. The result goes to ``results/instruction_sets.json``, with figures for every instruction
set; the second command limits a CPU to AVX2.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from experiments.gpu.correctness import configured, gathered, learner, prepared
from experiments.results import join, markdown, spread
from experiments.runs import cost, train
from rlstack.agents.optimizer import Compiler
from rlstack.training.acceleration import keep_compiled_code
from rlstack.training.environment import instruction_set

from .timing import RESULTS, circumstances, in_turns, summarised

ARENA, ROUNDS, TRAININGS = "arena", 5, 3
PRECISIONS = ("float32", "bfloat16")


_LEARNS = "agent.learning_starts=0 agent.random_frames=0 agent.steps_per_batch=128"
_SAC = (
    f"agent=sac env=gymnasium env.id=Pendulum-v1 env.num_envs=4 {_LEARNS} agent.batch_size=256 agent.hidden=[256,256]"
)
_DQN = f"agent=dqn env=gymnasium env.id=CartPole-v1 env.num_envs=8 {_LEARNS} agent.batch_size=64"
_PPO = "agent=ppo env=marinenav env.num_worlds=64 agent.steps_per_batch=16"
CASES = {
    "dqn": ("DQN, CartPole, batch 64", _DQN, 100),
    "sac": ("SAC, Pendulum, 256x256, batch 256", _SAC, 100),
    "sac_bfloat16": ("the same in bfloat16", f"{_SAC} agent.precision=bfloat16", 20),
    "ppo": ("PPO, MarineNav, 64 worlds", _PPO, 1),
}
"""Title, overrides of ``rlstack train``, and updates in a round, for PPO those with one batch."""


def updating(overrides: str, updates: int, compiles: bool) -> Callable[[], int]:
    """Returns a function that makes updates of an agent on its own data and returns their number."""
    plain = configured(*overrides.split())
    agent: Any = learner(plain)
    ((_, sequences, _),) = prepared(agent, gathered(plain, plain["agent"]["steps_per_batch"]))
    if compiles:
        agent.compile(Compiler())
    rollout = agent.rollout(sequences) if hasattr(agent, "rollout") else None
    if rollout is None:
        agent.extend(sequences)

    def update() -> int:
        before = agent.updates
        for _ in range(updates):
            agent.update(agent.prepared(agent.sample()) if rollout is None else rollout)
        return updates if rollout is None else agent.updates - before

    return update


def measure(overrides: str, updates: int) -> dict[str, Any]:
    """Measures an update both ways in ms, the ratio with its spread, seconds of compiling, updates to break even."""
    ways = {"compiled": updating(overrides, updates, True), "eager": updating(overrides, updates, False)}
    updates = ways["eager"]()
    before = os.times()
    ways["compiled"](), ways["compiled"]()
    compiling = sum(os.times()[:4]) - sum(before[:4])
    times = {way: [each / updates for each in seconds] for way, seconds in in_turns(ways, ROUNDS).items()}
    ratio = summarised([eager / compiled for eager, compiled in zip(times["eager"], times["compiled"])])
    plain, compiled = statistics.median(times["eager"]), statistics.median(times["compiled"])
    ratios = {"ratio": ratio["median"], "ratio_low": ratio["least"], "ratio_high": ratio["most"]}
    pays = compiling / (plain - compiled) if plain > compiled else None
    times_ms = {"eager_ms": 1000 * plain, "compiled_ms": 1000 * compiled}
    return {**times_ms, **ratios, "compiling_s": compiling, "pays_after": pays}


def trainings() -> dict[str, list[float]]:
    """Returns the CPU seconds of a run of 262,144 frames in Arena in both precisions."""
    seconds: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(TRAININGS):
            for precision in PRECISIONS:
                options = ["experiment=arena/style1", "total_frames=262144", "device=cpu", "compile=false"]
                options += [f"agent.precision={precision}", "eval.every=262144", "eval.episodes=1", "eval.max_steps=10"]
                (run,) = train([(turn, Path(folder) / precision, options)])
                seconds[precision].append(60 * cost(run)["cpu_minutes"])
    return seconds


def table(result: dict[str, Any]) -> str:
    """Returns the figures of a result file: updates, a row for each set of instructions, then trainings."""
    rows = []
    for name, (title, _, _) in CASES.items():
        for instructions, measured in result.items():
            if one := measured["updates"].get(name):
                ratio = f"{one['ratio']:.2f} ({one['ratio_low']:.2f} to {one['ratio_high']:.2f})"
                pays = "never" if one["pays_after"] is None else f"{one['pays_after']:,.0f} updates"
                times = [f"{one['eager_ms']:.2f}", f"{one['compiled_ms']:.2f}", ratio, f"{one['compiling_s']:.0f}"]
                rows.append([title, instructions, *times, pays])
    heads = "updates | instructions | eager, ms | compiled, ms | ratio | compiling, CPU s | pays after"
    trained = {name: measured["trainings"] for name, measured in result.items() if "trainings" in measured}
    runs = [[name, *(spread(seconds[each], ".1f") for each in PRECISIONS)] for name, seconds in trained.items()]
    return markdown(heads, rows) + "\n" + markdown("262,144 frames of Arena | float32, CPU s | bfloat16, CPU s", runs)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*CASES, ARENA], help="one row; the others keep their last figures")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    keep_compiled_code()
    names = [name for name in CASES if only in (None, name)]
    measured: dict[str, Any] = {"updates": {name: measure(*CASES[name][1:]) for name in names}}
    if only in (None, ARENA):
        measured["trainings"] = trainings()
    instructions = "held to AVX2" if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2" else instruction_set()
    figures = {instructions: {**measured, **circumstances("instruction_sets")}}
    print(table(join(RESULTS / "instruction_sets.json", figures)))


if __name__ == "__main__":
    main()
