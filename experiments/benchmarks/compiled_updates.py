"""What compiling an agent's update gains, and after how many updates it has paid for itself.

    python -m experiments.benchmarks.compiled_updates [--only dqn] [--rounds 5] [--out FILE]

Both ways learn from the same data in one process, in turns; times are CPU times of this process (one thread), those of
compiling include the compiler's own processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import envs
import rlstack
from rlstack.agents.compilation import Compiler
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.training.acceleration import keep_compiled_code
from rlstack.training.environment import machine


@dataclass(frozen=True)
class Case:
    """An agent in a world.

    Attributes:
        agent: of ``conf/agent``.
        world: by name.
        options: of the world.
        overrides: of the agent.
        updates: gradient steps in a round.
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
    """Makes some updates of an agent on data of its own; returns how many."""
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
    agent.remember(sequences)

    def update() -> int:
        for _ in range(case.updates):
            agent.update(agent.prepared(agent.sample()))
        return case.updates

    return update


def cost(update: Callable[[], int]) -> float:
    """CPU seconds of one update."""
    begin = time.process_time()
    count = update()
    return (time.process_time() - begin) / count


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Milliseconds of an update either way, the ratio with its spread, seconds of compiling, updates to break even."""
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


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, help="one case")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the numbers there, too, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_compiled_code()
    print(machine())
    found: dict[str, Any] = {"machine": machine()}
    for name in [options.only] if options.only else CASES:
        found[name] = one = measure(CASES[name], options.rounds)
        pays = "never" if one["pays_after"] is None else f"after {one['pays_after']:,.0f} updates"
        print(
            f"{name}: {one['eager_ms']:.2f} ms eager, {one['compiled_ms']:.2f} ms compiled, "
            f"{one['ratio']:.2f} times ({one['ratio_low']:.2f} to {one['ratio_high']:.2f}); "
            f"compiling took {one['compiling_s']:.0f} CPU s, which pays {pays}",
            flush=True,
        )
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
