"""Reports failures of memory, disk and environments in one line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import format_exception
from typing import Any

from rlstack.config.errors import RunError
from rlstack.config.overrides import override
from rlstack.envs.processes import EnvironmentFailed, EnvironmentRaised, WorkersFailed, place_of
from rlstack.files.safe_load import out_of_memory
from rlstack.runs.run_directory import OF_THE_DISK

from .summary import league_command
from .workers import CollectorFailed


@contextmanager
def told_in_one_line(run: Path, env: Mapping[str, Any] | None = None) -> Iterator[None]:
    """A context that ends the run with one line if memory or disk is full, or an environment cannot continue.

    Args:
        run: directory of the run.
        env: the ``env`` group, to name the environment.

    Raises:
        RunError: in place of the original error; it says how to continue.
    """
    try:
        with full_memory_told(run), environment_errors(env):
            yield
    except CollectorFailed as error:
        raise RunError(f"collector: {error}{_how_to_go_on(run)}", error.traceback) from error
    except OSError as error:
        if error.errno not in OF_THE_DISK:
            raise
        what = f"{error.filename or run} cannot be written ({error.strerror})"
        raise RunError(f"{what}; the run has ended{_how_to_go_on(run)}") from error


@contextmanager
def full_memory_told(run: Path) -> Iterator[None]:
    """A context that ends the run in this directory with one line, a :class:`RunError`, if the memory is full."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        what = "the memory is full; fewer worlds, shorter rollouts or a smaller agent.buffer_size need less"
        raise RunError(f"{what}{_how_to_go_on(run)}") from error


@contextmanager
def environment_errors(env: Mapping[str, Any] | None) -> Iterator[None]:
    """A context that ends the run if an environment ends the program or cannot be used.

    Args:
        env: the ``env`` group, to name the environment.

    Raises:
        RunError: in place of the environment's own error, or of the program's end.
    """
    try:
        yield
    except EnvironmentRaised as error:
        raise RunError(f"env: {error}", "".join(format_exception(error.__cause__))) from error
    except (EnvironmentFailed, WorkersFailed) as error:
        raise RunError(f"env: {error}", getattr(error, "traceback", "")) from error
    except SystemExit as error:
        named = [env[key] for key in ("id", "name") if env and env.get(key)]
        called = f"sys.exit({'' if error.code is None else repr(error.code)}) in {place_of(error)}"
        told = f"env: {named[0] if named else 'an environment'} called {called}"
        raise RunError(f"{told}; an environment may end its episodes, but not the program") from error


def _how_to_go_on(run: Path) -> str:
    saved = any((run / "checkpoints").glob("*.pt"))
    again = league_command() or f"rlstack train {shlex.quote(override('resume', run))}"
    return f"; checkpoints so far are intact, continue with: {again}" if saved else ""
