"""Finds what has become slower since an earlier measurement: ``--compare <result file>`` of ``speed`` and ``peers``.

A figure is slower if its median has fallen by more than 5 % and its best round is below the earlier worst one, since on
a shared machine rounds vary more than most changes do.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOLERANCE = 0.05

Figures = Mapping[str, Mapping[str, float]]
"""By name ``median``, ``least`` and ``most``, of which more is better."""


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
        found = {f"{name} beside {peer}": ratio for name, work in entries for peer, ratio in work["ratios"].items()}
    else:
        found = {f"{row['name']}, {row['num_worlds']} worlds": row for row in result["rows"]}
    return {name: {key: entry[key] for key in ("median", "least", "most")} for name, entry in found.items()}


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
    common = now.keys() & then.keys()
    if before.get("cpu") != result.get("cpu"):
        print(f"compared with figures of another CPU: {before.get('cpu')}, now {result.get('cpu')}")
    lines = slower(now, then)
    print("\n".join(lines) if lines else f"nothing got slower among {len(common)} figures")
    return 1 if fail and lines else 0
