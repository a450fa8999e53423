"""A page about runs: ``python -m rlstack.report runs/<run>``, or any folder with runs in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from omegaconf import DictConfig

from rlstack.command import hydra_command, quoted
from rlstack.config import ConfigError, Interval, build


@dataclass
class ReportConfig:
    """See ``conf/report.yaml`` for what each key does."""

    folder: str | None
    output: str | None
    score: str | None
    films_mb: Annotated[float, Interval(low=0)]


def positional(arguments: list[str]) -> list[str]:
    """The word ``runs/<run>`` as ``folder=runs/<run>``; a folder's name may have ``=`` in it."""
    for index, entry in enumerate(arguments):
        key, joined, _ = entry.lstrip("+~").partition("=")
        # Of another word with = in it Hydra tells that there is no such key.
        if key not in ReportConfig.__dataclass_fields__ and (not joined or Path(entry).is_dir()):
            return [*arguments[:index], f"folder={quoted(entry)}", *arguments[index + 1 :]]
    return arguments


def run(cfg: DictConfig) -> None:
    """Reads the runs and writes the page."""
    config = build(ReportConfig, cfg)
    if config.folder is None:
        raise ConfigError("folder: missing; python -m rlstack.report <run or folder of runs>")
    folder = Path(config.folder)
    output = folder / "report.html" if config.output is None else Path(config.output)
    if output.is_dir() or output.suffix not in (".html", ".htm"):
        raise ConfigError(f"output: {output} is not the name of a page, such as report.html")

    from rlstack.reporting.document import report, save

    page = report(folder, config.score, config.films_mb)
    save(page, output)
    for name, note in page.notes:
        print(f"note: {name}: {note}")
    print(f"wrote {output} ({output.stat().st_size / 1e3:,.0f} kB): {page.subtitle}")


main = hydra_command("report", positional)(run)

if __name__ == "__main__":
    main()
