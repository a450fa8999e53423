"""Functions that are timed in turns, the machine of figures, and figures that have become slower.

A figure is slower than in an earlier result file (``--compare`` of ``speed`` and ``peers``) if its median has fallen by
more than 5 % and its best round is below the earlier worst one, since on a shared machine rounds vary more than most
changes do.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from rlstack.envs.foundation.files import write_json
from rlstack.runs import versions
from rlstack.training.environment import instruction_set, processor

RESULTS = Path(__file__).parent / "results"
TOLERANCE, LIBRARIES = 0.05, ("torch", "torchrl", "tensordict")

Figures = Mapping[str, Mapping[str, float]]
"""By name ``median``, ``least`` and ``most``, of which more is better."""


def in_turns(functions: Mapping[str, Callable[[], object]], rounds: int, calls: int = 1) -> dict[str, list[float]]:
    """Returns the CPU seconds of a call of each function, round by round.

    They take turns, in the opposite order in every other round, so that other load on the machine affects all.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds):
        for name in list(functions) if turn % 2 else list(functions)[::-1]:
            before = time.process_time()
            for _ in range(calls):
                functions[name]()
            times[name].append((time.process_time() - before) / calls)
    return times


def summarised(values: Sequence[float]) -> dict[str, float]:
    """Returns ``median``, ``least`` and ``most`` of some rounds."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def circumstances(module: str, threads: int | None = None) -> dict[str, Any]:
    """Returns what the figures of a command of this package depend on.

    Args:
        module: name of the command.
        threads: of each process that it starts, where these do the work.
    """
    command = " ".join([f"python -m experiments.benchmarks.{module}", *sys.argv[1:]])
    begun = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "command": command}
    where = {"cpu": processor(), "instruction_set": instruction_set(), "cores": os.cpu_count()}
    software = {"python": platform.python_version(), **{name: versions()[name] for name in LIBRARIES}}
    return {**begun, **where, "threads": threads or torch.get_num_threads(), **software}


def write(module: str, figures: Mapping[str, Any], threads: int | None = None) -> dict[str, Any]:
    """Writes the figures of a command with their circumstances to ``results/<module>.json``; returns both."""
    result = {**circumstances(module, threads), **figures}
    write_json(RESULTS / f"{module}.json", result)
    return result


# -- comparison with an earlier result ---------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--compare`` and ``--fail-if-slower``."""
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier result: names what got slower since")
    parser.add_argument("--fail-if-slower", action="store_true", help="exit with status 1 if something did")


def earlier(options: argparse.Namespace) -> dict[str, Any] | None:
    """Reads the result to compare with; call this before measuring, which may replace the file.

    Raises:
        SystemExit: the file does not exist, or is not a result of a benchmark.
    """
    if options.compare is None:
        return None
    try:
        result = json.loads(options.compare.read_text())
        figures(result)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SystemExit(f"--compare {options.compare}: not the result of a benchmark ({error!r})") from None
    return result


def figures(result: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    """Returns speeds of worlds, or ratios to peers, which depend less on the machine."""
    if "work" in result:
        entries = result["work"].items()
        named = {f"{name} beside {peer}": ratio for name, work in entries for peer, ratio in work["ratios"].items()}
    else:
        named = {f"{row['name']}, {row['num_worlds']} worlds": row for row in result["rows"]}
    return {name: {key: entry[key] for key in ("median", "least", "most")} for name, entry in named.items()}


def slower(now: Figures, before: Figures) -> list[str]:
    """Returns a line for each figure that has become slower."""
    lines = []
    for name, new in now.items():
        old = before.get(name)
        if old is not None and new["median"] < (1 - TOLERANCE) * old["median"] and new["most"] < old["least"]:
            change = new["median"] / old["median"] - 1
            lines.append(f"slower: {name}: {old['median']:,.2f} -> {new['median']:,.2f} ({change:.0%})")
    return lines


def verdict(result: Mapping[str, Any], before: Mapping[str, Any] | None, fail: bool) -> int:
    """Prints what has become slower; returns the exit status."""
    if before is None:
        return 0
    now, then = figures(result), figures(before)
    if before.get("cpu") != result.get("cpu"):
        print(f"compared with figures of another CPU: {before.get('cpu')}, now {result.get('cpu')}")
    lines = slower(now, then)
    print("\n".join(lines) or f"nothing got slower among {len(now.keys() & then.keys())} figures")
    return 1 if fail and lines else 0
