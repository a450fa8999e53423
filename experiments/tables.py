"""Rewrites the tables of the pages in this folder from the result files beside the studies.

    python -m experiments.tables            # rewrite
    python -m experiments.tables --check    # exit status 1 if a table is not that of its result file

A table stands between ``<!-- table: <name> -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import re
from importlib import import_module
from pathlib import Path

from experiments.results import saved

HERE = Path(__file__).parent
PAGES = sorted(HERE.glob("*.md"))
MARKED = re.compile(r"<!-- table: ([\w/]+) -->\n(.*?)<!-- end -->", re.DOTALL)
BENCHMARKS = ("speed", "peers", "equal_ppo", "instruction_sets", "workers", "soak", "operations", "recurrent")
TABLES = {
    "quality": ("marinenav.quality", "marinenav/final"),
    "reference_scores": ("reference_scores.scores", "reference_scores/results"),
    "arena": ("arena.learning", "arena"),
    "rocket": ("against", "rocket/rules"),
    "rocket_two": ("against", "rocket/two"),
    "rocket_ablation": ("rocket.ablation", "rocket/ablation"),
    "rocket_self_play": ("against", "rocket/self_play"),
    "rocket_scratch": ("against", "rocket/scratch"),
    "rocket_league": ("tournament", "rocket/league"),
    "echelon": ("against", "echelon/bots"),
    "echelon_generations": ("tournament", "echelon/generations"),
    "algorithms": ("marinenav.algorithms", "marinenav/algorithms"),
    "options": ("marinenav.options", "marinenav/options"),
    "benchmark_frozen": ("marinenav.benchmark", "marinenav/benchmark_frozen"),
    "benchmark_public": ("marinenav.benchmark", "marinenav/benchmark_public"),
    "vtrace": ("corrections.curves", "corrections/vtrace"),
    "retrace": ("corrections.curves", "corrections/retrace"),
    "offline": ("marinenav.offline", "marinenav/offline"),
    "gpu": ("gpu.results", "gpu"),
    "critic_inputs": ("critic_inputs", "critic_inputs"),
    "explain": ("explain.study", "explain/study"),
    **{name: (f"benchmarks.{name}", f"benchmarks/results/{name}") for name in BENCHMARKS},
}
"""By table, the module whose function ``table`` makes it, and the result file or folder that it is made from."""


def table(name: str) -> str:
    """Returns a table of the pages.

    Raises:
        KeyError: :data:`TABLES` lacks its name.
    """
    module, path = TABLES[name]
    file = HERE / path
    make = import_module(f"experiments.{module}").table
    return make(file if file.is_dir() else saved(HERE / f"{path}.json"))


def rewritten(page: str) -> str:
    """Returns a page with its marked tables rewritten."""
    return MARKED.sub(lambda match: f"<!-- table: {match[1]} -->\n{table(match[1])}<!-- end -->", page)


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
