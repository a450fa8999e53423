"""How long the policy takes to act, alone and for many worlds at once."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase

from .subject import Subject
from .timing import percentiles, repeat

SIZES = (1, 16, 64, 256, 1024, 4096)
_MOST_BYTES = 2**26  # of observations: networks make several times as much of them


def measure_inference(subject: Subject) -> dict[str, Any]:
    """Milliseconds of a call of the exploring and of the greedy policy, and a sweep of the former over batch sizes.

    A batch is one of worlds; every agent in it is a decision.
    """
    env = subject.world()
    try:
        root = env.reset()
    finally:
        env.close(raise_if_closed=False)
    root = root if root.ndim else root.unsqueeze(0)
    agent, seconds, worlds = subject.agent(env), subject.seconds, len(root)
    group = agent.interface.group
    deciding = 1 if group is None else root.get(group).shape[1]

    def point(explore: bool, rows: TensorDictBase, seconds: float) -> dict[str, Any]:
        policy, size = agent.policy(explore), len(rows)
        found = percentiles(repeat(lambda: policy(rows), seconds, subject.clock, warm_up=3))
        decisions = size * deciding
        rate = 1e3 * decisions / found["mean_ms"]
        return {"batch": size, "decisions": decisions, **found, "decisions_per_second": rate}

    found = {**point(True, root, seconds / 2), "greedy": point(False, root.clone(False), seconds / 2)}
    sweep: list[dict[str, Any]] = []
    for size in sorted({*SIZES, worlds}):
        rows = root[torch.arange(size, device=root.device) % worlds]
        if size > worlds and rows.bytes() > _MOST_BYTES:
            break
        sweep.append(point(True, rows, seconds / len(SIZES)))
        if 4 * sweep[-1]["mean_ms"] > 1e3 * seconds:
            break
    return {**found, "sweep": sweep}
