"""Measures the cost of collecting beyond simulating: the same steps in three ways, alternately, in one process.

``simulation``: the pure functions alone, without TensorDict, resets or storage; ``env``: the environment's own loop,
resets included; ``collector``: ``rlstack.make_collector``, which also stacks batches. All with one fixed action.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

import rlstack
from rlstack import envs
from rlstack.envs.marinenav.simulation import advance, conclude

STEPS_PER_BATCH = 8


class FixedAction(TensorDictModuleBase):
    """A policy that costs nothing."""

    in_keys = [("agents", "observation", "self")]
    out_keys = [("agents", "action")]

    def __init__(self, action: torch.Tensor) -> None:
        super().__init__()
        self.action = action

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set(("agents", "action"), self.action)


def overhead(num_worlds: int, rounds: int) -> dict[str, Any]:
    """Returns CPU milliseconds per batched step of each way and their ratios to the simulation, medians over rounds."""
    generator = torch.Generator().manual_seed(0)
    action = 2 * torch.rand(num_worlds, 5, 2, generator=generator) - 0.7
    ways = {
        "simulation": simulation_loop(num_worlds, action),
        "env": env_loop(num_worlds, action),
        "collector": collector_loop(num_worlds, action),
    }
    for go in ways.values():
        go()
    timings: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, go in ways.items():
            before = time.process_time()
            go()
            timings[name].append((time.process_time() - before) / STEPS_PER_BATCH * 1e3)
    ratios = {
        name: [one / bare for one, bare in zip(timings[name], timings["simulation"], strict=True)]
        for name in ("env", "collector")
    }
    return {
        "num_worlds": num_worlds,
        "rounds": rounds,
        "ms_per_step": {name: statistics.median(values) for name, values in timings.items()},
        "ratio_to_simulation": {
            name: {"median": statistics.median(values), "min": min(values), "max": max(values)}
            for name, values in ratios.items()
        },
    }


def simulation_loop(num_worlds: int, action: torch.Tensor) -> Callable[[], None]:
    env: Any = envs.make("marinenav", num_worlds=num_worlds)
    env.reset()
    state, rules, options = env.worlds, env._default_rules, env.options
    last = action.permute(2, 1, 0).contiguous()

    def go() -> None:
        for _ in range(STEPS_PER_BATCH):
            moved, progress = advance(state, last, rules, True)
            conclude(moved, progress, rules, options, env._draw_noise(moved))

    return go


def env_loop(num_worlds: int, action: torch.Tensor) -> Callable[[], None]:
    env = envs.make("marinenav", num_worlds=num_worlds)
    root = env.reset()

    def go() -> None:
        nonlocal root
        for _ in range(STEPS_PER_BATCH):
            _, root = env.step_and_maybe_reset(root.set(("agents", "action"), action))

    return go


def collector_loop(num_worlds: int, action: torch.Tensor) -> Callable[[], None]:
    env = envs.make("marinenav", num_worlds=num_worlds)
    batches = iter(rlstack.make_collector(env, FixedAction(action), STEPS_PER_BATCH))

    def go() -> None:
        next(batches)

    return go


def lines(result: dict[str, Any]) -> list[str]:
    """Formats a result for the terminal."""
    milliseconds, ratios = result["ms_per_step"], result["ratio_to_simulation"]
    shown = [f"collection at {result['num_worlds']} worlds, eager, CPU ms per batched step (ratio to the simulation):"]
    shown.append(f"  simulation alone  {milliseconds['simulation']:6.2f}")
    for name, label in (("env", "environment loop"), ("collector", "Collector")):
        ratio = ratios[name]
        spread = f"{ratio['median']:.2f}, {ratio['min']:.2f} to {ratio['max']:.2f}"
        shown.append(f"  {label:<17} {milliseconds[name]:6.2f}  ({spread})")
    return shown
