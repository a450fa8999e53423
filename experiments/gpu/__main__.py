"""Checks and measures rlstack on a GPU in at most nine minutes.

    python -m experiments.gpu [device=cuda] [quick=false] [output=<folder>] [only=<part of names>] [minutes=9]

Checks come first: worlds and updates compared with the CPU's, resuming, waits for the GPU, CUDA graphs and compiled
code; speeds follow. If a row fails, the others still run; rows that no longer fit into the time are skipped.
``gpu.json``, the table ``gpu.md`` and ``log.txt``, which has the details of failures, go to ``runs/gpu_<time>``, or to
``output``. The exit status is 1 if a check failed. ``only=marinenav`` runs the rows whose names contain it. With
``device=cpu quick=true`` the same code runs on a CPU in a minute.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

_NEEDED = ("torch", "torchrl", "tensordict", "gymnasium", "hydra", "omegaconf", "numpy", "rich", "yaml")


def missing(needed: Sequence[str] = _NEEDED) -> list[str]:
    """Returns the required packages that are not installed."""
    return [name for name in needed if importlib.util.find_spec(name) is None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status.

    Args:
        arguments: ``key=value``, by default those of the command line.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if {"--help", "-h"} & set(given):
        print(__doc__)
        return 0
    if absent := missing():
        print(f"error: not installed, and nothing runs without: {', '.join(absent)}", file=sys.stderr)
        return 2
    from rlstack.config import ConfigError

    from .command import run
    from .rows import all_rows
    from .runner import NoDevice

    try:
        return run(given, all_rows())
    except (ConfigError, NoDevice) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
