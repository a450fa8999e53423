"""The folder of a sweep: its runs, and the files by which its jobs report to the command that started them.

Jobs may run in other processes and on other machines, which share only the folder with the command.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType

from rlstack.config import ConfigError
from rlstack.config.groups import folder_flags
from rlstack.envs.foundation.files import write_json
from rlstack.runs.run_directory import make_first_free, make_folder, removed_if_empty
from rlstack.training.hooks import Hook
from rlstack.training.notices import concealed

if TYPE_CHECKING:
    from rlstack.training.loop import Training

KEY = "hydra.sweep.dir"
JOBS = ".jobs"
"""Name of the folder for the jobs' reports, within the folder of a population or a search."""
_ONLY_TELLS = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "--shell-completion", "-sc")
_WITH_FOLDERS = {"hydra/sweeper=pbt", "hydra/sweeper=search"}
_LONGEST = 60
_DRAWN = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")  # a number as searches draw it, which is shown with three digits
_OF_SWEEPERS = {"multirun.yaml", "optimization_results.yaml"}


@contextmanager
def sweep_folder(
    arguments: Sequence[str], named_by: Mapping[str, str | None] | None = None
) -> Iterator[tuple[list[str], Path | None]]:
    """A context that gives a sweep its folder, as an override that every launcher passes to its jobs.

    The folder is ``runs/<agent>_<env>_sweep_<time>``, removed if no run begins in it; a hidden one within that of a
    population or a search; or a temporary one for commands that make no runs. A folder that the user gave is kept.

    Args:
        arguments: arguments of the command line.
        named_by: the groups ``agent`` and ``env`` with their defaults, for a command that makes runs.

    Yields the arguments for Hydra and the folder; None if nothing runs, or if the sweep manages its own folder.

    Raises:
        ConfigError: all runs of the sweep would have one folder.
    """
    given = [entry.partition("=")[2].strip("'\"") for entry in arguments if entry.lstrip("+").startswith(f"{KEY}=")]
    if set(_ONLY_TELLS) & {entry.partition("=")[0] for entry in arguments}:
        yield list(arguments), None
    elif named_by is not None and any(re.fullmatch(r"run_dir=(?!null$)[^,$(]+", entry) for entry in arguments):
        raise ConfigError(f"run_dir: all runs of -m would have this folder; in {KEY}=<folder> each has its own")
    elif given and "${" in given[-1]:  # Hydra fills it in
        yield list(arguments), Path(given[-1])
    elif given:
        with removed_if_empty(make_folder(Path(given[-1]), KEY)) as folder:
            yield list(arguments), folder
    elif _WITH_FOLDERS.intersection(arguments):
        yield [*arguments, f"{KEY}=${{hydra.sweeper.folder}}/{JOBS}"], None
    elif named_by is None:
        with tempfile.TemporaryDirectory(prefix="rlstack-sweep-") as scratch:
            yield [*arguments, f"{KEY}='{scratch}'"], Path(scratch)
    else:
        name = f"{_name(arguments, named_by)}_sweep_{time.strftime('%Y%m%d-%H%M%S')}"
        folder = make_first_free(Path("runs") / name, KEY)
        try:
            yield [*arguments, f"{KEY}='{folder}'"], folder
        finally:
            if {path.name for path in folder.iterdir()} <= _OF_SWEEPERS:
                shutil.rmtree(folder)
                with suppress(OSError):
                    folder.parent.rmdir()


def _name(arguments: Sequence[str], defaults: Mapping[str, str | None]) -> str:
    """Returns the agents and worlds as they were typed, or the experiment."""
    given = {key.lstrip("+"): value for key, sign, value in (entry.partition("=") for entry in arguments) if sign}
    own = {"agent": given.get("agent.algorithm"), "env": given.get("env.name")}
    agent, world = (own[key] if given.get(key) == "own" else given.get(key, defaults[key]) for key in own)
    words = [given["experiment"]] if "experiment" in given else [agent, given.get("env.id") or world]
    return re.sub(r"[^\w.-]+", "-", "_".join(map(str, words))).strip("-")[:_LONGEST]


# -- the place of a run in its sweep -----------------------------------------------------------------------------

_ANNOUNCED = "RLSTACK_SWEEP"
_COUNTABLE = (ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP, ValueType.RANGE_SWEEP)


@contextmanager
def telling(runs: int, keys: Sequence[str], first: int = 0) -> Iterator[None]:
    """A context in which the environment tells the jobs of a sweep how many there are.

    Args:
        runs: the number of all jobs.
        keys: options that differ between them.
        first: number of the first job that begins in the context.
    """
    os.environ[_ANNOUNCED] = json.dumps({"runs": runs, "keys": list(keys), "first": first, "began": time.time()})
    try:
        yield
    finally:
        del os.environ[_ANNOUNCED]


@contextmanager
def announced(overrides: Sequence[str]) -> Iterator[None]:
    """:func:`telling` for Hydra's own sweeper, which decides all jobs beforehand, except with ``glob``.

    Args:
        overrides: the command line without flags.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    varied = [entry for entry in parsed if entry.is_sweep_override()]
    if _WITH_FOLDERS.intersection(overrides) or not all(entry.value_type in _COUNTABLE for entry in varied):
        yield
        return
    runs = math.prod(len(list(entry.sweep_string_iterator())) for entry in varied)
    with telling(runs, [entry.key_or_group for entry in varied]):
        yield


class SweepPlace(Hook):
    """Tells which run of a sweep this is and, if one follows another, when all will have ended."""

    def on_start(self, training: Training) -> None:
        if (sweep := json.loads(os.environ.get(_ANNOUNCED, "null"))) is None:
            return
        from rlstack.training.progress import duration  # rich takes a while to import

        job = HydraConfig.get()
        given = dict(entry.lstrip("+~").partition("=")[::2] for entry in job.overrides.task)
        number, keys = int(job.job.num), sweep["keys"]
        lasts = [key.rpartition(".")[2] for key in keys]
        names = [last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts)]
        place = f"run {number + 1} of {sweep['runs']}"
        for key, name in zip(keys, names):
            value = given.get(key)
            if value is not None and len(value) > 8 and _DRAWN.fullmatch(value):
                value = f"{float(value):.3g}"
            place += "" if value is None else f", {name}={value}"
        training.progress.latest("sweep", place)
        begun, frames = number - sweep["first"], training.frames

        def row() -> str:
            part = (training.frames - frames) / max(training.last_frame - frames, 1)
            if not begun + part:
                return place
            left = (time.time() - sweep["began"]) * (sweep["runs"] - number - part) / (begun + part)
            return f"{place}, {duration(left)} left of all"

        if str(job.launcher.get("_target_")).endswith(".BasicLauncher"):
            training.progress.rows["sweep"] = row


# -- the results of its jobs -------------------------------------------------------------------------------------


def note_result(**entries: Any) -> None:
    """Writes a file about this job of a sweep, such as its ``score``, ``run`` or ``error``."""
    job = HydraConfig.get()
    path = Path(job.sweep.dir) / f"job_{int(job.job.num):06d}.json"
    write_json(path, {"overrides": [entry.lstrip("+~") for entry in concealed(job.overrides.task)], **entries})


def take_results(folder: Path) -> list[dict[str, Any]]:
    """Reads the files of the jobs of a folder in order, and removes them."""
    paths = sorted(folder.glob("job_*.json"))
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    for path in paths:
        path.unlink()
    return results


def show_results(results: list[dict[str, Any]], folder: Path) -> None:
    """Prints the configurations of a sweep by their mean score, the one with the highest, and the runs in order.

    Then it prints how to compare the runs, if they are in the sweep's folder. It prints nothing for a single failed
    job, whose error the command prints.
    """
    if len(results) < 2 and not any("score" in result for result in results):
        return
    from rlstack.evaluation.figures import print_rows
    from rlstack.evaluation.statistics import by_mean, leader

    options = [dict(entry.partition("=")[::2] for entry in result["overrides"]) for result in results]
    keys = dict.fromkeys(key for given in options for key in given)
    varied = [key for key in keys if len({given.get(key) for given in options}) > 1]
    scores: dict[str, list[float]] = {}  # of runs that differ only in their seed
    configurations: dict[str, Mapping[str, Any]] = {}
    for given, result in zip(options, results):
        if (score := result.get("score")) is not None and math.isfinite(score):
            values = {key: given.get(key) for key in varied if key != "seed"}
            name = " ".join(f"{key}={value}" for key, value in values.items())
            scores.setdefault(name, []).append(score)
            configurations[name] = values
    worlds = sorted({result["world"] for result in results if "world" in result})
    if len(results) > len(scores) > 0:
        lines = by_mean(scores)
        print("\nthe configurations of this sweep")
        order = lines if len(worlds) == 1 else scores
        print_rows([{**configurations[name], **lines[name]} for name in order], sys.stdout)
    if len(worlds) > 1:
        print(f"the scores of different worlds ({', '.join(worlds)}) do not compare")
    elif len(scores) > 1:
        print("{1}: {0}, {2}".format(*leader(scores)))
    rows: list[Mapping[str, Any]] = []
    for given, result in zip(options, results):
        path = Path(result.get("run", ""))
        run = str(path.relative_to(folder) if folder in path.parents else path)
        run = run if "run" in result else f"failed: {result.get('error', 'no reason known')}"
        rows.append({**{key: given.get(key) for key in varied}, "score": result.get("score"), "run": run})
    print("\nthe runs of this sweep")
    print_rows(rows, sys.stdout)
    if any(folder in Path(result.get("run", "")).parents for result in results):
        print(f"compare them: rlstack report {shlex.quote(str(folder))}{folder_flags(sys.argv[1:])}")
