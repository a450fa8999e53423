"""Rewrites the tables of the pages in this folder from the result files beside the studies.

    python -m experiments.tables            # rewrite
    python -m experiments.tables --check    # exit status 1 if a table is not that of its result file

A table stands between ``<!-- table: <name> -->`` and ``<!-- end -->``; :data:`TABLES` has the function of each.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import against, critic_inputs, tournament
from experiments.arena import learning as arena
from experiments.benchmarks import (
    data_parallel,
    equal_ppo,
    instruction_sets,
    operations,
    peers,
    recurrent,
    soak,
    speed,
    workers,
)
from experiments.corrections import curves as corrections
from experiments.echelon import memory
from experiments.explain import study as explain
from experiments.gpu import results as gpu
from experiments.marinenav import algorithms, benchmark, offline, options, quality
from experiments.recorded import curves as recorded
from experiments.reference_scores import scores
from experiments.rocket import ablation

HERE = Path(__file__).parent
PAGES = sorted(HERE.glob("*.md"))
MARKED = re.compile(r"<!-- table: ([\w/]+) -->\n(.*?)<!-- end -->", re.DOTALL)


def _read(path: str) -> Any:
    """Reads a result file; ``path`` is relative to this folder, without the suffix."""
    return json.loads((HERE / f"{path}.json").read_text())


def _without_earlier_recipes(result: dict[str, Any]) -> dict[str, Any]:
    shown = {name: row for name, row in result["players"].items() if not name.startswith(("earlier", "time"))}
    return {**result, "players": shown}


TABLES: dict[str, Callable[[], str]] = {
    "quality": lambda: quality.table(_read("marinenav/final")),
    "reference_scores": lambda: scores.table(scores.measured(HERE / "reference_scores" / "results")),
    "arena": lambda: arena.table(HERE / "arena"),
    "rocket": lambda: against.table(_read("rocket/rules")),
    "rocket_two": lambda: against.table(_read("rocket/two")),
    "rocket_ablation": lambda: ablation.table(_read("rocket/ablation")["won"]),
    "rocket_self_play": lambda: against.table(_read("rocket/self_play")),
    "rocket_league": lambda: tournament.table(_read("rocket/league")),
    "echelon": lambda: against.table(_read("echelon/bots")),
    "echelon_generations": lambda: tournament.table(_read("echelon/generations")),
    "echelon_memory": lambda: memory.table(_read("echelon/memory")),
    "algorithms": lambda: algorithms.table(_read("marinenav/algorithms")),
    "options": lambda: options.table(_read("marinenav/options")),
    "benchmark_frozen": lambda: benchmark.table(_read("marinenav/benchmark_frozen")),
    "benchmark_public": lambda: benchmark.table(_without_earlier_recipes(_read("marinenav/benchmark_public"))),
    "vtrace": lambda: corrections.table(_read("corrections/vtrace")),
    "retrace": lambda: corrections.table(_read("corrections/retrace")),
    "offline": lambda: offline.table(_read("marinenav/offline")["agents"], 50 * quality.LEVELS),
    "recorded": lambda: recorded.table(_read("recorded/curves")),
    "speed": lambda: speed.markdown(_read("benchmarks/results/speed")),
    "peers": lambda: peers.markdown(_read("benchmarks/results/peers")),
    "equal_ppo": lambda: equal_ppo.table(_read("benchmarks/results/equal_ppo")),
    "instruction_sets": lambda: instruction_sets.markdown(_read("benchmarks/results/instruction_sets")),
    "data_parallel": lambda: data_parallel.table(_read("benchmarks/results/data_parallel")),
    "workers": lambda: workers.table(_read("benchmarks/results/workers")),
    "soak": lambda: soak.table(_read("benchmarks/results/soak")),
    "gpu": lambda: gpu.markdown(HERE / "gpu"),
    "critic_inputs": lambda: critic_inputs.table(_read("critic_inputs")),
    "explain": lambda: explain.table(_read("explain/study")),
    "operations": lambda: operations.table(_read("benchmarks/results/operations")),
    "recurrent": lambda: recurrent.table(_read("benchmarks/results/recurrent"), inputs=64),
}


def rewritten(page: str) -> str:
    """Returns a page with its marked tables rewritten.

    Raises:
        KeyError: :data:`TABLES` lacks the name of a table.
    """
    return MARKED.sub(lambda found: f"<!-- table: {found[1]} -->\n{TABLES[found[1]]()}<!-- end -->", page)


def main(arguments: list[str] | None = None) -> int:
    """Command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parsed = parser.parse_args(arguments)
    stale = []
    for path in PAGES:
        before = path.read_text()
        after = rewritten(before)
        if not parsed.check:
            path.write_text(after)
        pairs = zip(MARKED.findall(before), MARKED.findall(after), strict=True)
        stale += [old[0] for old, new in pairs if old != new]
    if parsed.check and stale:
        print(f"not the tables of their result files: {', '.join(stale)}; python -m experiments.tables rewrites them")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
