"""``environment.json``: versions, machine, commit and command of a run and how it ended, one entry for every start."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlstack.config.errors import RunError
from rlstack.envs.foundation.files import check_regular, write_json
from rlstack.runs import versions

ENVIRONMENT = "environment.json"


def record_environment(run: Path) -> None:
    """Adds an entry for this process to ``environment.json``; a damaged file is replaced."""
    write_json(run / ENVIRONMENT, [*_entries(run), environment()])


@contextmanager
def end_recorded(run: Path) -> Iterator[None]:
    """A context that adds to this process's entry of ``environment.json`` when, how and why its work ended.

    The entry's ``ended`` holds ``time``, ``how`` (``stopped`` without an error, ``interrupted`` or ``failed``) and
    ``why``, the first line of the error. A process that is killed leaves no ``ended``.
    """
    how, why = "stopped", ""
    try:
        yield
    except BaseException as error:
        how = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        lines = str(error).strip().splitlines()
        why = " ".join([*([] if isinstance(error, RunError) else [type(error).__name__]), *lines[:1]])
        raise
    finally:
        with suppress(OSError):  # the error that ends the run reports a full disk
            *before, last = _entries(run) or [{}]
            write_json(run / ENVIRONMENT, [*before, {**last, "ended": {"time": utc_now(), "how": how, "why": why}}])


def _entries(run: Path) -> list[Any]:
    try:
        entries = json.loads(check_regular(run / ENVIRONMENT).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return []
    return entries if isinstance(entries, list) else []


def utc_now() -> str:
    """Returns the time in UTC as ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def environment() -> dict[str, Any]:
    """Returns versions, machine, commit and command of this process, and the GPU if torch is imported and sees one."""
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None
    return {
        "started": utc_now(),
        "command": sys.orig_argv[1:],
        "versions": versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "instruction_set": None if torch is None else instruction_set(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "commit": commit(Path(__file__).parents[2]) or commit(Path.cwd()),
    }


def unlike(run: Path) -> list[str]:
    """Returns a line for each fact of this process by which numbers may round otherwise than in a run's last start."""
    entries = [entry for entry in _entries(run) if isinstance(entry, dict)] or [{}]
    there, here = _facts(entries[-1]), _facts(environment())
    return [
        f"{name}: {there[name]!r:.60} in the run, {here.get(name)!r:.60} here, which may round differently"
        for name in there
        if there[name] != here.get(name)
    ]


def _facts(entry: dict[str, Any]) -> dict[str, Any]:
    known = ("system", "processor", "instruction_set", "gpu", "commit")
    versions = entry.get("versions")
    return {name: entry[name] for name in known if name in entry} | (versions if isinstance(versions, dict) else {})


def commit(folder: Path) -> str | None:
    """Returns the commit of a folder's files, with ``+changes`` if the files differ from it.

    Returns None if the folder is not the top of a git repository, or git is not installed.
    """
    if not (folder / ".git").exists():
        return None
    try:
        head, status = (
            subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
            ).stdout.strip()
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+changes" if status else "")


def processor() -> str:
    """Returns the processor's name as the kernel reports it, if it does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def instruction_set() -> str:
    """Returns the vector instructions that torch uses here, and bfloat16 units if there are: ``AVX512, bfloat16``."""
    import torch

    from rlstack.agents.optimizer import has_bfloat16

    units = ", bfloat16" if has_bfloat16(torch.device("cpu")) else ""
    return f"{torch.backends.cpu.get_cpu_capability()}{units}"


def machine() -> str:
    """Describes the machine in a line, to print beside measurements: cores, processor, instruction set."""
    return f"{os.cpu_count()} cores, {processor()}, {instruction_set()}"
