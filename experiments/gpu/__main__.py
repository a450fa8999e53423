"""Checks and measures rlstack on a GPU in at most five minutes.

    python -m experiments.gpu [device=cuda] [quick=false] [order=checks] [only=<names>] [skip=<names>] [minutes=5]
                              [output=<file>]

Checks run side by side, one on each core: worlds and updates compared with the CPU's, resuming, waits for the GPU, CUDA
graphs and compiled code. Speeds follow (with ``order=speed`` those of eager kernels come first), one after the other;
what they will compile is compiled beside the checks. If a row fails, hangs or crashes, the others still run. A row
that no longer fits into the time is left out, and the command that runs it alone is told. ``only=sac,speed`` runs the
rows whose group (``correctness``, ``speed``) or name contains one of these parts, ``skip`` leaves such rows out.

After every row the results are written to ``experiments/gpu/<card>.json``, from which ``python -m experiments.tables``
makes the README's table, or to ``output``; those of ``quick=true`` and of a CPU to ``runs/gpu.json``. Rows of an
earlier run stay in the file if machine and commit are the same. ``gpu.log`` beside it has the details of failures. The
exit status is 1 if a check failed. With ``device=cpu quick=true`` the same code runs on a CPU in a minute or two.
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
