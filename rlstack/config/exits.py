"""How a command ends: a user's error, a run that cannot go on, and Ctrl-C are one line on stderr and an exit status."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from .errors import ConfigError, RunError

USER_ERROR_STATUS = 2
RUN_ERROR_STATUS = 1
INTERRUPTED_STATUS = 130  # 128 + SIGINT, as shells count


def _own(error: BaseException) -> str | None:
    return str(error) if isinstance(error, ConfigError) else None


@contextmanager
def exit_in_one_line(explain: Callable[[BaseException], str | None] = _own) -> Iterator[None]:
    """Ends the process on a user's error, with one line and no traceback; lets real bugs pass.

    With ``RLSTACK_FULL_ERROR=1`` the traceback of a user's error is shown too.

    Args:
        explain: the line for an error, None for one that is a bug.
    """
    try:
        yield
    except KeyboardInterrupt:
        _exit("interrupted", INTERRUPTED_STATUS)
    except RunError as error:
        if error.details:
            print(error.details, file=sys.stderr)
        _show_traceback()
        _exit(f"error: {error}", RUN_ERROR_STATUS)
    except Exception as error:
        line = explain(error)
        if line is None:
            raise
        _show_traceback()
        _exit(f"error: {line}", USER_ERROR_STATUS)


def _show_traceback() -> None:
    if os.environ.get("RLSTACK_FULL_ERROR") == "1":
        traceback.print_exc()


def _exit(line: str, status: int) -> NoReturn:
    sys.stdout.flush()
    if _speaks():
        print(line, file=sys.stderr, flush=True)
    raise SystemExit(status)


def _speaks() -> bool:
    """Of several processes of one run (torchrun) one tells what is wrong: the first rank, if it knows.

    Before they have met, all find the same.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return os.environ.get("RANK", "0") == "0"
    if distributed.get_rank() > 0:
        time.sleep(1)  # its files are thrown away, those of the first rank are where it says
    try:
        return distributed.distributed_c10d._get_default_store().add("rlstack/failed", 1) == 1
    except RuntimeError:  # nobody is left to ask
        return True
