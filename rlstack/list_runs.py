"""Lists runs: ``rlstack runs``, the runs below ``runs/`` or another folder with their state, score and age."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, words_as
from rlstack.config import ConfigError, build
from rlstack.config.overrides import Word


@dataclass
class ListingConfig:
    """See ``conf/runs.yaml`` for what each key does."""

    folder: str
    json: bool


@as_module
def list_runs(*words: Word, quiet: bool = False, **keys: Any) -> list[dict[str, Any]]:
    """Lists runs as the command ``rlstack runs`` does: ``rlstack.list_runs("runs")``.

    Args:
        words: arguments as on the command line; also paths, and results of :func:`rlstack.train`.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/runs.yaml``.

    Returns one row for each run.
    """
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> list[dict[str, Any]]:
    """Prints a table, or JSON."""
    config = build(ListingConfig, cfg)
    folder = Path(config.folder)
    if not folder.is_dir():
        raise ConfigError(f"folder: {folder} is not a folder")
    from rlstack.envs.whole_files import leftovers
    from rlstack.evaluation.table import print_rows
    from rlstack.reporting.listing import configurations, listed, shown

    rows = listed(folder)
    if config.json:
        print(json.dumps(rows, indent=1))
    elif rows:
        if several := configurations(rows):
            print_rows(several, sys.stdout)
            print()
        table = shown(rows, folder)
        print_rows(table, sys.stdout)
        for row, cells in zip(rows, table):
            if row["why"]:
                print(f"{cells['run']} {row['state']}: {row['why']}")
    else:
        print(f"no runs in {folder}, neither itself nor below")
    if left := [] if config.json else list(leftovers(folder)):
        size = sum(path.lstat().st_size for path in left) / 1e6
        print(f"hidden files of killed processes: {len(left)}, {size:.1f} MB, such as {left[0]};")
        print("resume= removes those of its run, and you can delete the others")
    return rows


command = HydraCommand("runs", words_as("folder"))
main = command.line(run)

if __name__ == "__main__":
    main()
