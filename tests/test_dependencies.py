"""``DEPENDENCIES.md`` lists the requirements of ``pyproject.toml``, with the licences that the packages state."""

from __future__ import annotations

import importlib
import re
from importlib import metadata
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPO = Path(__file__).resolve().parent.parent
Tables = dict[str, dict[str, str]]


def listed() -> Tables:
    """Returns the licences in the file, by group and package."""
    tables: Tables = {}
    licences, _, _ = (REPO / "DEPENDENCIES.md").read_text(encoding="utf-8").partition("\n# Private names")
    for section in licences.split("\n## ")[1:]:
        group, _, body = section.partition("\n")
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line[:1] == "|"]
        assert rows[0] == ["package", "licence", "for"] and all(len(row) == 3 and all(row) for row in rows)
        tables[group] = {row[0]: row[1] for row in rows[2:]}
    return tables


def test_the_list_is_that_of_pyproject() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"dependencies": project["dependencies"], **project["optional-dependencies"]}
    wanted = {group: [Requirement(line).name for line in lines] for group, lines in groups.items()}
    assert {group: list(rows) for group, rows in listed().items()} == wanted


def words(licence: str) -> set[str]:
    """Returns the families of licences that a text names."""
    families = {"apache": "apache", "mit": "mit", "bsd": "bsd", "mpl": "mpl", "mozilla": "mpl", "gpl": "gpl"}
    return {family for word, family in families.items() if re.search(rf"(?<![a-z]){word}", licence.lower())}


@pytest.mark.parametrize("package", sorted({name for rows in listed().values() for name in rows}))
def test_installed_packages_say_the_same(package: str) -> None:
    try:
        about = metadata.metadata(canonicalize_name(package))
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    classifiers = [entry for entry in about.get_all("Classifier") or [] if entry.startswith("License ::")]
    said = words(" ".join([about.get("License-Expression") or "", (about.get("License") or "")[:60], *classifiers]))
    ours = words(next(rows[package] for rows in listed().values() if package in rows))
    if said and package != "tensordict":  # its metadata says BSD, its licence file MIT
        assert ours <= said


def test_torchrls_compiled_extension_loads_with_the_newest_set() -> None:
    newest = (REPO / "constraints-latest.txt").read_text(encoding="utf-8")
    if f"\ntorch=={metadata.version('torch').partition('+')[0]}\n" not in newest:
        pytest.skip("another version of torch is installed")
    importlib.import_module("torchrl._torchrl")
