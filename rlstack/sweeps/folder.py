"""The folder of a sweep: of its runs, and of what its jobs leave for the command that started them."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rlstack.config import ConfigError

KEY = "hydra.sweep.dir"
_MULTIRUN = ("-m", "--multirun", "hydra.mode=MULTIRUN")
_ONLY_TELLS = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "--shell-completion", "-sc")
_POPULATION = "hydra/sweeper=pbt"
_LONGEST = 60
_OF_SWEEPERS = {"multirun.yaml", "optimization_results.yaml"}


@contextmanager
def sweep_folder(
    arguments: Sequence[str], named_by: Mapping[str, str | None] | None = None
) -> Iterator[tuple[list[str], Path | None]]:
    """Gives a sweep a folder, as an override that every launcher carries to its jobs.

    ``runs/<agent>_<env>_sweep_<time>``, which is removed again if no run came to be in it; a hidden one in that of a
    population; a folder that is thrown away for commands that make no runs. A folder that the user gave stays as it is.

    Args:
        arguments: of the command line.
        named_by: the groups ``agent`` and ``env`` with what they are by default, for a command that makes runs.

    Yields the arguments for Hydra, and the folder; None where there is no sweep or it looks after its own.
    """
    given = [entry.partition("=")[2].strip("'\"") for entry in arguments if entry.lstrip("+").startswith(f"{KEY}=")]
    if not set(_MULTIRUN) & set(arguments) or set(_ONLY_TELLS) & {entry.partition("=")[0] for entry in arguments}:
        yield list(arguments), None
    elif given:
        yield list(arguments), Path(given[-1])
    elif _POPULATION in arguments:
        yield [*arguments, f"{KEY}=${{hydra.sweeper.folder}}/.jobs"], None
    elif named_by is None:
        with tempfile.TemporaryDirectory(prefix="rlstack-sweep-") as scratch:
            yield [*arguments, f"{KEY}='{scratch}'"], Path(scratch)
    else:
        folder = _made(f"{_name(arguments, named_by)}_sweep_{time.strftime('%Y%m%d-%H%M%S')}")
        try:
            yield [*arguments, f"{KEY}='{folder}'"], folder
        finally:
            _remove_without_runs(folder)


def _name(arguments: Sequence[str], defaults: Mapping[str, str | None]) -> str:
    """Agents and worlds as they were typed, or the experiment."""
    given = {key.lstrip("+"): value for key, sign, value in (entry.partition("=") for entry in arguments) if sign}
    world = given.get("env.id") or given.get("env", defaults["env"])
    words = [given["experiment"]] if "experiment" in given else [given.get("agent", defaults["agent"]), world]
    return re.sub(r"[^\w.-]+", "-", "_".join(map(str, words))).strip("-")[:_LONGEST]


def _made(name: str) -> Path:
    """A new folder of this name, or of the name with the first free number."""
    folder, number = Path("runs") / name, 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
            folder = folder.with_name(f"{name}-{number}")
        except OSError as error:
            raise ConfigError(f"{KEY}: {folder} cannot be made ({error.strerror})") from None


def _remove_without_runs(folder: Path) -> None:
    if {path.name for path in folder.iterdir()} <= _OF_SWEEPERS:
        shutil.rmtree(folder)
        with suppress(OSError):
            folder.parent.rmdir()
