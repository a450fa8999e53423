"""Counts the operations of a step of each world, and of an update of each agent.

Each is one kernel on a GPU, or a few, unless it is compiled. They are counted on a CPU that computes as a GPU does,
everything under masks; views of tensors are left out, and an operation on a list of tensors counts once. An update
includes its share of what an agent does with a batch: storing and sampling experience, advantages, target networks.

    python -m experiments.benchmarks.operations [echelon sac ...]    # names of worlds and agents; all by default

Result in ``results/operations.json``; what stands there as ``earlier`` is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.gpu.correctness import SMALL, as_on_a_gpu, configured, gathered, learner, prepared
from experiments.gpu.rows import WORLDS, agents
from experiments.results import join, markdown
from rlstack import envs
from rlstack.training.environment import machine

from .timing import RESULTS

_STEPS = 8


class Operations(TorchDispatchMode):
    """A context that counts operations, except those that only make another view of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += not (func.is_view or "empty" in func._schema.name or "view" in func._schema.name)
        return func(*args, **(kwargs or {}))


def of_step(name: str, num_worlds: int = 4) -> float:
    """Returns the mean number of operations of a step of a world, with ends and restarts."""
    with as_on_a_gpu():
        env = envs.make(name, num_worlds=num_worlds, seed=0, **WORLDS[name])
        root = env.rand_action(env.reset())
        _, root = env.step_and_maybe_reset(root)  # makes what is made once
        env.make_ready(_STEPS)
        total = 0
        for _ in range(_STEPS):
            root = env.rand_action(root)
            with Operations() as counted:
                _, root = env.step_and_maybe_reset(root)
            total += counted.number
    return total / _STEPS


def of_update(overrides: list[str]) -> float:
    """Returns the number of operations of an update of an agent, the mean over the last of three batches."""
    plain = configured(*overrides, small=SMALL)
    plain["env"] |= {"dtype": "float32", "num_worlds": 8}
    batches = gathered(plain)
    with as_on_a_gpu():
        agent, number, updates = learner(plain), 0, 0
        for _, sequences, frames in prepared(agent, batches):
            before = agent.updates
            with Operations() as counted:
                agent.learn(sequences, frames)
            if agent.updates > before:
                number, updates = counted.number, agent.updates - before
    return number / updates


def table(result: Mapping[str, Any]) -> str:
    """Returns the rows of the README."""
    earlier, rows = result["earlier"], []
    for kind, what in (("steps", "a step of"), ("updates", "an update of")):
        for name, number in sorted(result[kind].items()):
            before = earlier[kind].get(name)
            rows.append([f"{what} `{name}`", "" if before is None else f"{before:,.0f}", f"{number:,.0f}"])
    return markdown(f"| operations, commit {earlier['commit'][:8]} | operations now", rows)


def main(names: list[str]) -> None:
    """Counts for the named worlds and agents, and writes the result file."""
    learners = agents()
    known = [*WORLDS, *learners]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"{', '.join(unknown)}: neither a world nor an agent; known: {', '.join(known)}")
    torch.set_num_threads(1)
    for name in names or known:
        kind, number = ("steps", of_step(name)) if name in WORLDS else ("updates", of_update(learners[name]))
        print(f"{name}: {number:,.0f} operations {'a step' if kind == 'steps' else 'an update'}", flush=True)
        join(RESULTS / "operations.json", {kind: {name: round(number, 1)}, "machine": machine()})


if __name__ == "__main__":
    main(sys.argv[1:])
