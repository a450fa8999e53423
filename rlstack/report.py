"""Lists runs, writes or serves a page, or compares runs: ``rlstack report [<run or folder> [<run or folder>]]``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, words_as
from rlstack.config import ConfigError, Interval, build
from rlstack.config.groups import own_folders
from rlstack.config.overrides import Word, given_keys


@dataclass
class ReportConfig:
    """See ``conf/report.yaml`` for what each key does."""

    folder: str | None
    other: str | None
    json: bool
    page: bool
    output: str | None
    score: str | None
    films_mb: Annotated[float, Interval(low=0)]
    serve: bool
    port: Annotated[int, Interval(low=0, high=65535)]


@as_module
def report(*words: Word, quiet: bool = False, **keys: Any) -> Any:
    """Lists, reports or compares runs as the command ``rlstack report`` does.

    Args:
        words: arguments as on the command line; also paths, and results of :func:`rlstack.train`.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/report.yaml``.

    Returns one row for each run if there is no page; the path of the page; for two arguments, the
    :class:`rlstack.reporting.improvement.Improvement` of the second over the first; or None once a server has ended.

    Example:
        >>> rows = rlstack.report("runs/<sweep>", page=False)
        >>> page = rlstack.report("runs/<run>")
        >>> improvement = rlstack.report("runs/<a>", "runs/<b>")
    """
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> Any:
    """Reads the runs; prints a table, writes a page, or prints how much better the second ones are."""
    config = build(ReportConfig, cfg)
    if not config.serve and given_keys() & {"port"}:
        raise ConfigError("port: is for serve=true")
    folder = Path(config.folder or "runs")
    from rlstack.reporting.runs import check_folder

    if config.serve:
        from rlstack.reporting import document

        asked = {"other": config.other, "output": config.output, "json": config.json, "page=false": not config.page}
        for key in (key for key, value in asked.items() if value):
            raise ConfigError(f"{key}: has no effect with serve=true")
        check_folder("folder", folder)
        document.plotly()  # reports that it is missing
        own = own_folders(sys.argv[1:])
        make = partial(document.report, folder, config.score, config.films_mb, own, document.FILES)
        return document.serve(document.LivePage(folder, make), config.port)
    if config.other is not None:
        return _compare(config)
    check_folder("folder", folder)
    if config.folder is None or config.json or not config.page:
        return _list(folder, config.json)
    output = folder / "report.html" if config.output is None else Path(config.output)
    if output.is_dir() or output.suffix not in (".html", ".htm"):
        raise ConfigError(f"output: {output} is not the name of a page, such as report.html")

    from rlstack.reporting import document

    page = document.report(folder, config.score, config.films_mb, own_folders(sys.argv[1:]))
    document.save(page, output)
    for name, note in page.notes:
        print(f"note: {name}: {note}")
    print(f"wrote {output} ({output.stat().st_size / 1e3:,.0f} kB): {page.subtitle}")
    return output


def _list(folder: Path, as_json: bool) -> list[dict[str, Any]]:
    from rlstack.envs.foundation.files import leftovers
    from rlstack.evaluation.figures import print_rows
    from rlstack.reporting.listing import configurations, listed, shown

    rows = listed(folder)
    if as_json:
        print(json.dumps(rows, indent=1))
        return rows
    if several := configurations(rows):
        print_rows(several, sys.stdout)
        print()
    if rows:
        table = shown(rows, folder)
        print_rows(table, sys.stdout)
        for row, cells in zip(rows, table):
            if row["why"]:
                print(f"{cells['run']} {row['state']}: {row['why']}")
    else:
        print(f"no runs in {folder}, neither itself nor below")
    if left := list(leftovers(folder)):
        size = sum(path.lstat().st_size for path in left) / 1e6
        print(f"hidden files of killed processes: {len(left)}, {size:.1f} MB, such as {left[0]};")
        print("resume= removes those of its run, and you can delete the others")
    return rows


def _compare(config: ReportConfig) -> Any:
    from rlstack.reporting import improvement

    sides = _runs("folder", config.folder or ""), _runs("other", config.other or "")
    result = improvement.compare(*sides, config.score)
    print(json.dumps(asdict(result), indent=1) if config.json else "\n".join(improvement.in_words(result)))
    return result


def _runs(key: str, words: str) -> list[Path]:
    parts = [words] if words and Path(words).exists() else [part.strip() for part in words.split(",")]
    if not all(parts):
        raise ConfigError(f"{key}: {words!r} names an empty path; give one run, or several with commas between them")
    return [Path(part) for part in parts]


command = HydraCommand("report", words_as("folder", "other"))
main = command.line(run)

if __name__ == "__main__":
    main()
