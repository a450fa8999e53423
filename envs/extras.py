"""How to install optional packages: the extras of ``pyproject.toml``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_DISTRIBUTION = "rlstack-torchrl"
_ROOT = Path(__file__).resolve().parents[1]


def needs(extra: str) -> str:
    """Returns ``needs the extra 'sweep': pip install ...``, the end of a message about a missing package."""
    return f"needs the extra {extra!r}: {install(extra)}"


def install(extra: str) -> str:
    """Returns the command that installs an extra: for a clone of the repository from there, otherwise from an index."""
    if not _is_clone(_ROOT):
        return f"pip install '{_DISTRIBUTION}[{extra}]'"
    here = Path.cwd() == _ROOT
    constraints = "constraints.txt" if here else shlex.quote(str(_ROOT / "constraints.txt"))
    place = shlex.quote(f"{'.' if here else _ROOT}[{extra}]")
    return f"pip install -e {place} -c {constraints}"


def _is_clone(folder: Path) -> bool:
    """Returns True if a folder is the top of this project's source tree rather than that of installed packages."""
    project = folder / "pyproject.toml"
    return project.is_file() and re.search(rf'^name = "{_DISTRIBUTION}"', project.read_text("utf-8"), re.M) is not None
