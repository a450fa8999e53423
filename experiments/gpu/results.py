"""The result file of a card, and the rows of the README that are made from such files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.results import markdown
from rlstack.envs.foundation.files import write_json

from .runner import Outcome


def write(path: Path, about: Mapping[str, Any], outcomes: Sequence[Outcome]) -> None:
    """Writes results; rows of an earlier run with the same sizes, commit and machine stay unless they ran again.

    Args:
        about: the command, its sizes and the machine.
    """
    rows = {outcome.name: asdict(outcome) for outcome in outcomes}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if all(before[name] == about[name] for name in ("quick", "machine")):
            rows |= {row["name"]: row for row in before["rows"] if row["name"] not in rows}
    write_json(path, {**about, "rows": list(rows.values())})


def table(folder: Path) -> str:
    """Returns for every card with a result file in a folder what was measured: checks in a line, speeds in a table."""
    cards = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return "\n".join(_of_card(content) for content in cards if content["machine"]["gpu"] and not content["quick"])


def _of_card(content: Mapping[str, Any]) -> str:
    machine, rows = content["machine"], content["rows"]
    about = [machine["gpu"], f"torch {machine['torch']}", f"torchrl {machine['torchrl']}"]
    about += [f"commit {machine['commit'][:10]}"] if machine["commit"] else []
    checks = [row for row in rows if row["group"] == "correctness" and row["status"] in ("passed", "failed")]
    failed = [row["name"] for row in checks if row["status"] == "failed"]
    about += [f"{len(checks) - len(failed)} of {len(checks)} checks passed"] if checks else []
    told = f"; failed: {', '.join(failed)}" if failed else ""
    speeds = [_cells(row) for row in rows if row["group"] == "speed" and row["status"] == "passed"]
    heads = "row | median (least to most) | kernels a step | kernels an update | card busy"
    return f"{', '.join(about)}{told}.\n\n{markdown(heads, speeds)}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    found = row["figures"]
    digits = 0 if found["median"] >= 100 else 2
    median, least, most = (f"{found[name]:,.{digits}f}" for name in ("median", "least", "most"))
    spread = f" ({least} to {most})" if found["repetitions"] > 1 else ""
    kernels = [f"{found[name]:,.0f}" if name in found else "" for name in ("kernels_per_step", "kernels_per_update")]
    busy = f"{found['busy']:.0%}" if "busy" in found else ""
    return [row["name"], f"{median} {found['unit']}{spread}", *kernels, busy]


def name_of(card: str) -> str:
    """Returns the name of a card's result file, such as ``h100.json`` for ``NVIDIA H100 80GB HBM3``."""
    words = re.sub(r"nvidia|geforce|\d+gb|hbm\w+", "", card.lower()).split()
    return f"{'_'.join(words)}.json"
