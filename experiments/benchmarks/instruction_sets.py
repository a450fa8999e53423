"""Measures the gain of compiled updates and bfloat16, which depends on the CPU's instruction set.

    python -m experiments.benchmarks.instruction_sets [--only dqn] [--rounds 5]
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python -m experiments.benchmarks.instruction_sets

Eager and compiled updates learn alternately from the same data in one process with one thread. Times are CPU times;
those of compiling include the compiler's processes. Then short trainings in Arena alternate between float32 and
bfloat16, one process each. The result goes to ``results/instruction_sets.json``, with figures for every instruction
set; the second command limits a CPU to AVX2.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import rlstack
from experiments.runs import cost as cost_of_run
from experiments.runs import train
from rlstack import envs
from rlstack.agents.optimizer import Compiler
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.training.acceleration import keep_compiled_code
from rlstack.training.environment import instruction_set

from .speed import circumstances

RESULT = Path(__file__).parent / "results" / "instruction_sets.json"
ARENA = "arena"
TITLES = {
    "dqn": "DQN, CartPole, batch 64",
    "sac": "SAC, Pendulum, 256x256, batch 256",
    "sac_bfloat16": "the same in bfloat16",
    "ppo": "PPO, MarineNav, 64 worlds",
}
_PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Case:
    """An agent in a world.

    Attributes:
        agent: name in ``conf/agent``.
        world: name of the world.
        options: options of the world.
        overrides: overrides of the agent.
        updates: number of updates in a round.
    """

    agent: str
    world: str
    options: dict[str, Any]
    overrides: dict[str, Any] = field(default_factory=dict)
    updates: int = 100


_LEARNS = {"learning_starts": 0, "random_frames": 0}
_SAC = {**_LEARNS, "batch_size": 256, "hidden": [256, 256]}
CASES = {
    "dqn": Case("dqn", "gymnasium", {"id": "CartPole-v1", "num_envs": 8}, {**_LEARNS, "batch_size": 64}),
    "sac": Case("sac", "gymnasium", {"id": "Pendulum-v1", "num_envs": 4}, _SAC),
    "sac_bfloat16": Case(
        "sac", "gymnasium", {"id": "Pendulum-v1", "num_envs": 4}, {**_SAC, "precision": "bfloat16"}, updates=20
    ),
    "ppo": Case("ppo", "marinenav", {"num_worlds": 64}),
}


def updating(case: Case, compiles: bool) -> Callable[[], int]:
    """Returns a function that makes updates of an agent on its own data and returns their number."""
    torch.manual_seed(0)
    env = envs.make(case.world, **case.options)
    agent: Any = rlstack.make_agent(case.agent, env, 1_000_000, **case.overrides)
    batch = next(iter(make_collector(env, agent.policy(explore=True), 128 if case.world == "gymnasium" else 16)))
    sequences = flatten_agents(batch, agent.interface.group)
    if compiles:
        agent.compile(Compiler())
    if hasattr(agent, "rollout"):
        rollout = agent.rollout(sequences)

        def learn() -> int:
            before = agent.updates
            agent.update(rollout)
            return agent.updates - before

        return learn
    agent.extend(sequences)

    def update() -> int:
        for _ in range(case.updates):
            agent.update(agent.prepared(agent.sample()))
        return case.updates

    return update


def cost(update: Callable[[], int]) -> float:
    """Returns the CPU seconds of one update."""
    begin = time.process_time()
    count = update()
    return (time.process_time() - begin) / count


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Measures an update both ways in ms, the ratio with its spread, seconds of compiling, updates to break even."""
    eager, quick = updating(case, compiles=False), updating(case, compiles=True)
    eager()
    before = os.times()
    quick(), quick()
    after = os.times()
    compiling = sum(after[:4]) - sum(before[:4])
    pairs = [(cost(eager), cost(quick)) for _ in range(rounds)]
    ratios = sorted(one / other for one, other in pairs)
    plain, compiled = (statistics.median(column) for column in zip(*pairs))
    return {
        "eager_ms": 1000 * plain,
        "compiled_ms": 1000 * compiled,
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[0],
        "ratio_high": ratios[-1],
        "compiling_s": compiling,
        "pays_after": compiling / (plain - compiled) if plain > compiled else None,
    }


def trainings(rounds: int) -> dict[str, list[float]]:
    """Returns the CPU seconds of a run of 262,144 frames in Arena in both precisions."""
    found: dict[str, list[float]] = {precision: [] for precision in _PRECISIONS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            for precision, seconds in found.items():
                options = ["experiment=arena/style1", "total_frames=262144", "device=cpu", "compile=false"]
                options += [f"agent.precision={precision}", "eval.every=262144", "eval.episodes=1", "eval.max_steps=10"]
                (run,) = train([(turn, Path(folder) / precision, options)])
                seconds.append(60 * cost_of_run(run)["cpu_minutes"])
    return found


def column() -> str:
    """Returns the name of this machine's column."""
    return "held to AVX2" if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2" else instruction_set()


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def markdown(result: dict[str, Any]) -> str:
    """The figures of a result file for a page: updates, a row for each set of instructions, then trainings."""
    lines = ["| updates | instructions | eager, ms | compiled, ms | ratio | compiling, CPU s | pays after |"]
    lines.append("|" + "---|" * 7)
    for case, title in TITLES.items():
        for name, measured in result.items():
            if one := measured["updates"].get(case):
                ratio = f"{one['ratio']:.2f} ({one['ratio_low']:.2f} to {one['ratio_high']:.2f})"
                pays = "never" if one["pays_after"] is None else f"{one['pays_after']:,.0f} updates"
                times = f"{one['eager_ms']:.2f} | {one['compiled_ms']:.2f}"
                lines.append(f"| {title} | {name} | {times} | {ratio} | {one['compiling_s']:.0f} | {pays} |")
    lines += ["", "| 262,144 frames of Arena | float32, CPU s | bfloat16, CPU s |", "|---|---|---|"]
    for name, measured in result.items():
        if runs := measured.get("trainings"):
            lines.append(f"| {name} | {' | '.join(_spread(runs[precision]) for precision in _PRECISIONS)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*CASES, ARENA], help="one row; the others keep their last figures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_compiled_code()
    result = json.loads(options.out.read_text()) if options.out.is_file() else {}
    mine = result.setdefault(column(), {"updates": {}})
    for name in CASES if options.only is None else [options.only]:
        if name in CASES:
            mine["updates"][name] = one = measure(CASES[name], options.rounds)
            print(f"{name}: {one}", flush=True)
    if options.only in (None, ARENA):
        mine["trainings"] = trainings(min(options.rounds, 3))
    mine.update(circumstances("instruction_sets"))
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(markdown(result))


if __name__ == "__main__":
    main()
