"""``DEPENDENCIES.md`` lists the private names of other libraries that the code uses; installed versions have them."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPO = Path(__file__).resolve().parent.parent
OF_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


def listed() -> dict[str, tuple[list[str], str]]:
    """Returns, by name, the files that use the name and the test that fails if its meaning changes."""
    _, _, section = (REPO / "DEPENDENCIES.md").read_text(encoding="utf-8").partition("\n# Private names")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert rows[0] == ["name", "used in", "why", "test"]
    found = {}
    for names, files, _, test in rows[2:]:
        for name in re.findall(r"`(.+?)`", names):
            found[name] = re.findall(r"`(.+?)`", files), test.strip("`")
    return found


def last(name: str) -> str:
    """Returns the private part of a dotted name."""
    return next(part for part in reversed(name.split(".")) if part.startswith("_"))


def test_the_list_has_all_that_the_code_uses() -> None:
    used: dict[str, set[str]] = {}
    own = set(OF_TUPLES)
    for path in [*REPO.glob("rlstack/**/*.py"), *REPO.glob("envs/**/*.py")]:
        text, where = path.read_text(encoding="utf-8"), path.relative_to(REPO).as_posix()
        own.update(re.findall(r"(?:def |class |^ +)(_[a-z]\w*)[(:]", text, re.MULTILINE))
        for line in text.splitlines():
            target, sign, _ = line.partition(" = ")
            own.update(re.findall(r"\b_[a-z]\w*", target) if sign else ())
        for name in re.findall(r"(?<!`)[\w)\]]\.(_[a-z]\w*)", text):
            used.setdefault(name, set()).add(where)
    known = {last(name): files for name, (files, _) in listed().items()}
    assert {name: files for name, files in used.items() if name not in own | known.keys()} == {}
    unused = {name for name, files in known.items() if not all(name in (REPO / file).read_text() for file in files)}
    assert unused == set()


def test_there_are_few_of_the_libraries_that_everything_is_built_on() -> None:
    ours = [name for name in listed() if name.partition(".")[0] in ("torch", "torchrl", "tensordict")]
    assert len({last(name) for name in ours}) < 12


@pytest.mark.parametrize("name", listed())
def test_the_installed_version_has_it(name: str) -> None:
    parts, found = name.split("."), None
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
            break
        except ModuleNotFoundError:
            continue
    if found is None:
        pytest.skip(f"{parts[0]} is not installed")
    assert (REPO / listed()[name][1]).is_file()
    holder: Any = found
    for part in parts[count:]:
        if not hasattr(holder, part) and not isinstance(holder, ModuleType):  # of its instances
            assert any(f"self.{part}" in inspect.getsource(base) for base in inspect.getmro(holder)[:-1])
            return
        holder = getattr(holder, part)
