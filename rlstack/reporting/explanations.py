"""Shows what ``rlstack explain`` found about runs: the files ``explanation.json`` in their folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rlstack.envs.foundation.files import check_regular

from .blocks import Block, DataTable, Paragraphs, Section
from .runs import StoredRun

EXPLANATION = "explanation.json"
_COLUMNS = ("title", "measured", "usual", "change")


def section(runs: Sequence[StoredRun]) -> Section:
    """Returns the section, without blocks if no run has been explained."""
    rows, clean = [], []
    for run in runs:
        found = _findings(run)
        if found is not None:
            rows += [[run.name, *(str(finding.get(name, "")) for name in _COLUMNS)] for finding in found]
            clean += [] if found else [run.name]
    blocks: list[Block] = []
    if rows:
        head = ["run", "finding", "measured", "usual", "change"]
        blocks.append(DataTable.of_runs(head, rows, len(runs) > 1, text=5))
    if clean:
        blocks.append(Paragraphs([f"{name}: nothing that usually keeps an agent from learning" for name in clean]))
    return Section("Why it does or does not learn", blocks)


def _findings(run: StoredRun) -> list[dict[str, Any]] | None:
    """Returns the findings about a run; None without a file of them, or with a damaged one, which adds a note."""
    path = run.path / EXPLANATION
    if not path.is_file():
        return None
    try:
        found = json.loads(check_regular(path).read_text(encoding="utf-8"))["findings"]
    except (OSError, ValueError, KeyError, TypeError):
        run.notes.append(f"{EXPLANATION} cannot be read")
        return None
    return [finding for finding in found if isinstance(finding, dict)] if isinstance(found, list) else None
