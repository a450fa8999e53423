"""Measures the speed of the worlds in steps per CPU-second of one thread, and the cost of collecting.

    python -m experiments.benchmarks.speed [--quick] [--no-compile] [--only arena] [--out FILE] [--compare FILE]

It prints a table and writes a JSON file. A row is a subject (see ``SUBJECTS``) with one number of worlds: after a
warm-up, it is timed several times by the CPU time of the process and its workers, including resets. To measure
something else, add a subject: a name and a function ``num_worlds -> advance``, where ``advance(n)`` makes n steps.

The cost of collecting compares the same steps of MarineNav in three ways, with one fixed action: ``simulation``, the
pure functions alone, without TensorDict, resets or storage; ``env``, the environment's own loop; ``collector``,
``rlstack.make_collector``, which also stacks batches.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModule

import rlstack
from experiments.results import markdown, saved
from rlstack import envs
from rlstack.envs.foundation.files import write_json
from rlstack.envs.marinenav.simulation import advance as simulate
from rlstack.envs.marinenav.simulation import conclude

from . import timing

Advance = Callable[[int], None]
"""Makes so many steps of all worlds."""


@dataclass(frozen=True)
class Subject:
    """Something to measure.

    Attributes:
        name: name of its rows; the best number of worlds is marked per name.
        build: ``num_worlds -> advance``; building counts as preparation.
        sizes: numbers of worlds.
        compiles: whether it needs ``torch.compile``.
        warm_up: steps before the clock starts, until worlds are in all parts of their episodes.
        cost: cost of a step, by which the number of timed steps is divided.
    """

    name: str
    build: Callable[[int], Advance]
    sizes: Sequence[int]
    compiles: bool = False
    warm_up: int = 60
    cost: int = 1


def stepping(world: str, held: int, shift: float | None = None, **options: Any) -> Callable[[int], Advance]:
    """Builds a world under random actions, observations included.

    Args:
        held: steps for which an action is held.
        shift: None, or what is added to one random action that is held for ever: robots that push forward, as a policy
            would, arrive or collide, and worlds end after about fifty steps.
        options: options of the world.
    """

    def build(num_worlds: int) -> Advance:
        env = envs.make(world, num_worlds=num_worlds, **options)
        root, spec = env.reset(), env.full_action_spec[env.action_key]
        actions = [spec.rand() for _ in range(16)] if shift is None else [spec.rand() + shift]

        def advance(steps: int) -> None:
            nonlocal root
            for step in range(steps):
                action = actions[step // held % len(actions)]
                _, root = env.step_and_maybe_reset(root.set(env.action_key, action))

        return advance

    return build


def _subjects(name: str, world: str, sizes: Sequence[int], compiled: Sequence[int], **options: Any) -> list[Subject]:
    """Returns a world in its eager and its compiled form."""
    timed = {key: options.pop(key) for key in ("warm_up", "cost") if key in options}
    return [
        Subject(f"{name}, eager", stepping(world, **options), sizes, **timed),
        Subject(f"{name}, compiled", stepping(world, compiled=True, **options), compiled, compiles=True, **timed),
    ]


CARS: dict[str, Any] = {"held": 4, "kick_offs": 0.7, "random_states": 0.3}
ROBOTS: dict[str, Any] = {"held": 1, "shift": 0.3, "num_robots": 5, "num_obstacles": 4}
SUBJECTS = [
    *_subjects("echelon", "echelon", (64, 256, 1024), (256, 1024), held=1, maps=128, cost=10),
    *_subjects("marinenav", "marinenav", (64, 256, 1024, 2048, 4096, 8192), (1024, 2048, 4096, 8192), **ROBOTS),
    *_subjects("arena, style 1", "arena", (256, 1024, 4096, 16384), (8192, 32768), held=1, style=1, warm_up=1000),
    *_subjects("arena, style 2", "arena", (256, 1024, 4096, 16384), (8192, 32768), held=1, style=2, warm_up=1000),
    *_subjects("rocket, torch", "rocket", (64, 256, 1024, 4096), (1024, 4096), cost=30, **CARS),
    Subject("rocket, rocketsim", stepping("rocket", backend="rocketsim", **CARS), (64, 256, 1024), cost=30),
]


def cpu_seconds() -> float:
    """Of this process and of the workers that it has started (Linux: a process's clock follows from its number)."""
    workers = [child.pid for child in multiprocessing.active_children() if child.pid]
    return time.process_time() + sum(time.clock_gettime(~pid << 3 | 2) for pid in workers)


def measure(subject: Subject, num_worlds: int, repeats: int, world_steps: int) -> dict[str, Any]:
    """Returns the row of ``repeats`` timed runs of about ``world_steps`` steps, counted over all worlds.

    ``preparation_s`` is the wall time until the first timed step: building, compiling, warming up.
    """
    start = time.perf_counter()
    advance = subject.build(num_worlds)
    advance(subject.warm_up)
    row = {"name": subject.name, "num_worlds": num_worlds, "preparation_s": time.perf_counter() - start}
    steps, rates = max(world_steps // num_worlds // subject.cost, 20), []
    for _ in range(repeats):
        before = cpu_seconds()
        advance(steps)
        rates.append(steps * num_worlds / (cpu_seconds() - before))
    return row | timing.summarised(rates)


def overhead(num_worlds: int, rounds: int, steps: int = 8) -> dict[str, Any]:
    """Returns CPU milliseconds per batched step of each way of collecting, and their ratios to the simulation."""
    env: Any = envs.make("marinenav", num_worlds=num_worlds)
    action = env.full_action_spec[env.action_key].rand() + 0.3
    env.reset()
    state, rules, options, last = env.worlds, env._default_rules, env.options, action.permute(2, 1, 0).contiguous()
    policy = TensorDictModule(lambda seen: action, [("agents", "observation", "self")], [env.action_key])
    batches = iter(rlstack.make_collector(envs.make("marinenav", num_worlds=num_worlds), policy, steps))

    def simulation() -> None:
        for _ in range(steps):
            moved, progress = simulate(state, last, rules, True)
            conclude(moved, progress, rules, options, env._draw_noise(moved))

    loop = partial(stepping("marinenav", 1, 0.3)(num_worlds), steps)
    ways = {"simulation": simulation, "env": loop, "collector": lambda: next(batches)}
    timing.in_turns(ways, 1)  # warms up
    times = timing.in_turns(ways, rounds)
    ratios = {}
    for name in ("env", "collector"):
        ratio = sorted(one / bare for one, bare in zip(times[name], times["simulation"]))
        ratios[name] = {"median": statistics.median(ratio), "min": ratio[0], "max": ratio[-1]}
    milliseconds = {name: 1e3 * statistics.median(seconds) / steps for name, seconds in times.items()}
    about = {"num_worlds": num_worlds, "rounds": rounds, "ms_per_step": milliseconds}
    return about | {"ratio_to_simulation": ratios}


def table(result: dict[str, Any]) -> str:
    """Returns the rows of a result file: the fastest number of worlds of each subject, and 1024 worlds."""
    rows = []
    for row in result["rows"]:
        if row["best"] or row["num_worlds"] == 1024:
            rates = [f"{float(f'{row[name]:.3g}'):,.0f}" for name in ("median", "least", "most")]
            rows.append([row["name"], f"{row['num_worlds']:,}", "{} ({} to {})".format(*rates), row["date"][:10]])
    collection = result.get("collection", {"ratio_to_simulation": {}})
    labels = {"env": "the environment loop", "collector": "TorchRL's `Collector`"}
    for name, ratio in collection["ratio_to_simulation"].items():
        times = "{median:.2f} ({min:.2f} to {max:.2f}) times".format(**ratio)
        what = f"time of {labels[name]} over that of the bare simulation"
        rows.append([what, f"{collection['num_worlds']:,}", times, ""])
    return markdown("worlds | at once | env steps per CPU-second | measured on", rows)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Command-line options."""
    parser = argparse.ArgumentParser(description="Steps per CPU-second of the batched worlds, one thread.")
    parser.add_argument("--quick", action="store_true", help="two sizes per subject, shorter runs")
    parser.add_argument("--no-compile", action="store_true", help="leave out what needs torch.compile")
    parser.add_argument("--only", default="", help="subjects whose name contains this; others keep their last figures")
    default = timing.RESULTS / "speed.json"
    parser.add_argument("--out", type=Path, default=default, help="JSON file (default: %(default)s; --quick: none)")
    timing.add_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    before = timing.earlier(options)
    torch.set_num_threads(1)
    subjects = [subject for subject in SUBJECTS if options.only in subject.name]
    subjects = [subject for subject in subjects if not (options.no_compile and subject.compiles)]
    if options.quick:
        subjects = [replace(subject, sizes=subject.sizes[-3:-1]) for subject in subjects]
    repeats, world_steps = (3, 100_000) if options.quick else (7, 300_000)
    result = {**timing.circumstances("speed"), "unit": "world steps per CPU-second"}
    rows: list[dict[str, Any]] = []
    for subject in subjects:
        own = [measure(subject, num_worlds, repeats, world_steps) for num_worlds in subject.sizes]
        best = max((row["median"] for row in own), default=0.0)
        rows += [{**row, "best": row["median"] == best, "date": result["date"]} for row in own]
        for row in own:
            print(f"{row['name']}, {row['num_worlds']} worlds: {row['median'] / 1e3:,.0f}k steps a second", flush=True)
    outcome = timing.verdict({**result, "rows": rows}, before, options.fail_if_slower)
    if options.quick and options.out == timing.RESULTS / "speed.json":
        return outcome  # the committed figures come from a full measurement
    earlier = saved(options.out) if options.only else {"collection": overhead(4096, 3 if options.quick else 15)}
    measured = {row["name"] for row in rows}
    kept = [row for row in earlier.get("rows", []) if row["name"] not in measured]
    result |= {"collection": earlier["collection"]} if "collection" in earlier else {}
    write_json(options.out, {**result, "rows": [*kept, *rows]})
    print(table({**result, "rows": [*kept, *rows]}))
    return outcome


if __name__ == "__main__":
    raise SystemExit(main())
