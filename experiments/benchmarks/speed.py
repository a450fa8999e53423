"""Measures the speed of the worlds in steps per CPU-second of one thread, and the cost of collecting.

    python -m experiments.benchmarks.speed [--quick] [--no-compile] [--only arena] [--out FILE] [--compare FILE]

It prints a table and writes a JSON file. A row is a subject (see ``SUBJECTS``) with one number of worlds: after a
warm-up, it is timed several times by the CPU time of the process and its workers, including resets. To measure
something else, add a subject: a name and a function ``num_worlds -> (advance, worlds)``, where ``advance(n)`` makes n
steps.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from rlstack import envs
from rlstack.runs import versions
from rlstack.training.environment import instruction_set, processor

from . import comparing
from .overhead import lines, overhead

Advance = Callable[[int], None]
"""Makes so many steps of all worlds."""

RESULTS = Path(__file__).parent / "results" / "speed.json"


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


@dataclass(frozen=True)
class Row:
    """World steps per CPU-second."""

    name: str
    num_worlds: int
    median: float
    least: float
    most: float
    preparation_s: float
    """Wall time until the first timed step: building, compiling, warming up."""
    best: bool = False


def robots(compiled: bool) -> Callable[[int], Advance]:
    """The environment alone, five robots and four obstacles, noisy perception, constant random actions."""

    def build(num_worlds: int) -> Advance:
        env = envs.make("marinenav", num_worlds=num_worlds, num_robots=5, num_obstacles=4, compiled=compiled)
        root = env.reset()
        # Actions push forward, as a policy would: robots arrive or collide, and worlds end after about fifty steps.
        generator = torch.Generator().manual_seed(0)
        action = 2 * torch.rand(num_worlds, 5, 2, generator=generator) - 0.7

        def advance(steps: int) -> None:
            nonlocal root
            for _ in range(steps):
                _, root = env.step_and_maybe_reset(root.set(("agents", "action"), action))

        return advance

    return build


def game(style: int, compiled: bool) -> Callable[[int], Advance]:
    """The whole game, random actions that change in every step."""

    def build(num_worlds: int) -> Advance:
        env = envs.make("arena", num_worlds=num_worlds, style=style, compiled=compiled)
        root = env.reset()
        generator = torch.Generator().manual_seed(0)
        actions = torch.randint(env.rules.num_actions, (16, num_worlds), generator=generator).unbind(0)

        def advance(steps: int) -> None:
            nonlocal root
            for step in range(steps):
                _, root = env.step_and_maybe_reset(root.set("action", actions[step % len(actions)]))

        return advance

    return build


def teams(world: str, held: int, **options: Any) -> Callable[[int], Advance]:
    """A world of agents, observations included, random actions that are held for so many steps."""

    def build(num_worlds: int) -> Advance:
        env = envs.make(world, num_worlds=num_worlds, **options)
        root = env.reset()
        actions = [env.full_action_spec["agents", "action"].rand() for _ in range(16)]

        def advance(steps: int) -> None:
            nonlocal root
            for step in range(steps):
                chosen = actions[step // held % len(actions)]
                _, root = env.step_and_maybe_reset(root.set(("agents", "action"), chosen))

        return advance

    return build


MECHS: dict[str, Any] = {"maps": 128}
CARS: dict[str, Any] = {"kick_offs": 0.7, "random_states": 0.3}
SUBJECTS = [
    Subject("echelon, eager", teams("echelon", 1, **MECHS), (64, 256, 1024), cost=10),
    Subject("echelon, compiled", teams("echelon", 1, compiled=True, **MECHS), (256, 1024), compiles=True, cost=10),
    Subject("marinenav, eager", robots(compiled=False), (64, 256, 1024, 2048, 4096, 8192)),
    Subject("marinenav, compiled", robots(compiled=True), (1024, 2048, 4096, 8192), compiles=True),
    *(
        Subject(f"arena, style {style}, {how}", game(style, how == "compiled"), sizes, how == "compiled", 1000)
        for how, sizes in (("eager", (256, 1024, 4096, 16384)), ("compiled", (8192, 32768)))
        for style in (1, 2)
    ),
    Subject("rocket, torch", teams("rocket", 4, **CARS), (64, 256, 1024, 4096), cost=30),
    Subject("rocket, torch, compiled", teams("rocket", 4, compiled=True, **CARS), (1024, 4096), compiles=True, cost=30),
    Subject("rocket, rocketsim", teams("rocket", 4, backend="rocketsim", **CARS), (64, 256, 1024), cost=30),
]


def cpu_seconds() -> float:
    """Of this process and of the workers that it has started (Linux: a process's clock follows from its number)."""
    workers = [child.pid for child in multiprocessing.active_children() if child.pid]
    return time.process_time() + sum(time.clock_gettime(~pid << 3 | 2) for pid in workers)


def measure(subject: Subject, num_worlds: int, repeats: int, world_steps: int) -> Row:
    """Times ``repeats`` runs of about ``world_steps`` steps, counted over all worlds."""
    start = time.perf_counter()
    advance = subject.build(num_worlds)
    advance(subject.warm_up)
    preparation = time.perf_counter() - start
    steps = max(world_steps // num_worlds // subject.cost, 20)
    rates = []
    for _ in range(repeats):
        before = cpu_seconds()
        advance(steps)
        rates.append(steps * num_worlds / (cpu_seconds() - before))
    return Row(subject.name, num_worlds, statistics.median(rates), min(rates), max(rates), preparation)


def mark_best(rows: Sequence[Row]) -> list[Row]:
    """The same rows, the fastest of each name marked."""
    best = {row.name: row for row in sorted(rows, key=lambda row: row.median)}
    return [Row(**{**asdict(row), "best": row is best[row.name]}) for row in rows]


def run(subjects: Sequence[Subject], repeats: int, world_steps: int) -> Iterator[Row]:
    """All rows, one after the other."""
    for subject in subjects:
        for num_worlds in subject.sizes:
            yield measure(subject, num_worlds, repeats, world_steps)


def table(rows: Sequence[Row]) -> Table:
    """Rows for reading, in thousands of world steps per CPU-second."""
    shown = Table("subject", title="world steps per CPU-second, one thread, in thousands", title_justify="left")
    for heading in ("worlds", "median", "min", "max", "ready after"):
        shown.add_column(heading, justify="right")
    shown.add_column("")
    for row in rows:
        figures = (f"{figure / 1e3:.0f}" for figure in (row.median, row.least, row.most))
        style = "bold" if row.best else None
        cells = (row.name, str(row.num_worlds), *figures, f"{row.preparation_s:.1f} s", "best" if row.best else "")
        shown.add_row(*cells, style=style)
    return shown


def markdown(result: dict[str, Any]) -> str:
    """The rows of a result file for a page: the fastest number of worlds of each subject, and 1024 worlds."""
    lines = ["| worlds | at once | env steps per CPU-second | measured on |", "|---|---|---|---|"]
    for row in result["rows"]:
        if row["best"] or row["num_worlds"] == 1024:
            figures = [f"{float(f'{row[name]:.3g}'):,.0f}" for name in ("median", "least", "most")]
            spread = "{} ({} to {})".format(*figures)
            lines.append(f"| {row['name']} | {row['num_worlds']:,} | {spread} | {row['date'][:10]} |")
    ratios = result["collection"]["ratio_to_simulation"]
    for name, label in (("env", "the environment loop"), ("collector", "TorchRL's `Collector`")):
        spread = "{median:.2f} ({min:.2f} to {max:.2f})".format(**ratios[name])
        worlds = result["collection"]["num_worlds"]
        lines.append(f"| time of {label} over that of the bare simulation | {worlds:,} | {spread} times | |")
    return "\n".join(lines) + "\n"


def circumstances(module: str = "speed", threads: int | None = None) -> dict[str, Any]:
    """What the figures of a command of this package depend on.

    Args:
        module: name of the command.
        threads: of each process that it starts, where these do the work.
    """
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join([f"python -m experiments.benchmarks.{module}", *sys.argv[1:]]),
        "cpu": processor(),
        "instruction_set": instruction_set(),
        "cores": os.cpu_count(),
        "threads": threads or torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: versions()[name] for name in ("torch", "torchrl", "tensordict")},
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Command-line options."""
    parser = argparse.ArgumentParser(description="Steps per CPU-second of the batched worlds, one thread.")
    parser.add_argument("--quick", action="store_true", help="two sizes per subject, shorter runs")
    parser.add_argument("--no-compile", action="store_true", help="leave out what needs torch.compile")
    parser.add_argument("--only", default="", help="subjects whose name contains this; others keep their last figures")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file (default: %(default)s)")
    comparing.add_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    before = comparing.earlier(options)
    torch.set_num_threads(1)
    subjects = [subject for subject in SUBJECTS if options.only in subject.name]
    subjects = [subject for subject in subjects if not (options.no_compile and subject.compiles)]
    if options.quick:
        subjects = [Subject(**{**vars(subject), "sizes": subject.sizes[-3:-1]}) for subject in subjects]
    console = Console()
    rows: list[Row] = []
    with console.status("measuring") as status:
        for row in run(subjects, repeats=3 if options.quick else 7, world_steps=100_000 if options.quick else 300_000):
            rows.append(row)
            status.update(f"{row.name}, {row.num_worlds} worlds: {row.median / 1e3:.0f}k; measuring on")
        result = {**circumstances(), "unit": "world steps per CPU-second"}
        earlier = json.loads(options.out.read_text()) if options.only and options.out.is_file() else {"rows": []}
        if not options.only:
            status.update("collection overhead")
            earlier["collection"] = overhead(num_worlds=4096, rounds=3 if options.quick else 15)
            console.print("\n".join(lines(earlier["collection"])), highlight=False)
    rows = mark_best(rows)
    console.print(table(rows))
    measured = {row.name for row in rows}
    outcome = comparing.verdict({**result, "rows": [asdict(row) for row in rows]}, before, options.fail_if_slower)
    if options.quick and options.out == RESULTS:
        return outcome  # the committed figures come from a full measurement
    options.out.parent.mkdir(parents=True, exist_ok=True)
    kept = [row for row in earlier["rows"] if row["name"] not in measured]
    result |= {key: earlier[key] for key in ("collection",) if key in earlier}
    result["rows"] = [*kept, *({**asdict(row), "date": result["date"]} for row in rows)]
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"written to {options.out}")
    return outcome


if __name__ == "__main__":
    raise SystemExit(main())
