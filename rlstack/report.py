"""Writes a page about runs: ``rlstack report runs/<run>``, or any folder that contains runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, words_as
from rlstack.config import ConfigError, Interval, build, catalogue
from rlstack.config.overrides import Word


@dataclass
class ReportConfig:
    """See ``conf/report.yaml`` for what each key does."""

    folder: str | None
    output: str | None
    score: str | None
    films_mb: Annotated[float, Interval(low=0)]


@as_module
def report(*words: Word, quiet: bool = False, **keys: Any) -> Path:
    """Writes a page about runs as the command ``rlstack report`` does: ``rlstack.report("runs/<run>")``.

    Args:
        words: arguments as on the command line; also paths, and results of :func:`rlstack.train`.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/report.yaml``.

    Returns the path of the page.
    """
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> Path:
    """Reads the runs and writes the page."""
    config = build(ReportConfig, cfg)
    if config.folder is None:
        raise ConfigError("folder: missing; rlstack report <run or folder of runs>")
    folder = Path(config.folder)
    output = folder / "report.html" if config.output is None else Path(config.output)
    if output.is_dir() or output.suffix not in (".html", ".htm"):
        raise ConfigError(f"output: {output} is not the name of a page, such as report.html")

    from rlstack.reporting import document

    page = document.report(folder, config.score, config.films_mb, catalogue.folders(sys.argv[1:])[:-1])
    document.save(page, output)
    for name, note in page.notes:
        print(f"note: {name}: {note}")
    print(f"wrote {output} ({output.stat().st_size / 1e3:,.0f} kB): {page.subtitle}")
    return output


command = HydraCommand("report", words_as("folder"))
main = command.line(run)

if __name__ == "__main__":
    main()
