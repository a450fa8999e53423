"""What ends a run through no fault of its configuration, told in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envs.processes import WorkersFailed
from rlstack.collection.remote import CollectorFailed
from rlstack.config.errors import RunError

from .disk import OF_THE_DISK


@contextmanager
def told_in_one_line(run: Path) -> Iterator[None]:
    """Within it, a disk that does not take what is written, and workers that always fail, end a run.

    Args:
        run: its directory.

    Raises:
        RunError: instead of their own errors; it says how to go on.
    """
    try:
        yield
    except WorkersFailed as error:
        raise RunError(f"env: {error}", error.traceback) from error
    except CollectorFailed as error:
        raise RunError(f"collector: {error}{_how_to_go_on(run)}", error.traceback) from error
    except OSError as error:
        if error.errno not in OF_THE_DISK:
            raise
        what = f"{error.filename or run} cannot be written ({error.strerror})"
        raise RunError(f"{what}; the run has ended{_how_to_go_on(run)}") from error


def _how_to_go_on(run: Path) -> str:
    saved = any((run / "checkpoints").glob("*.pt"))
    return f"; checkpoints so far are intact, go on with resume={run}" if saved else ""
