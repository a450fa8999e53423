"""Requirements: those that are listed, with their licences, and the extras that commands and pages name."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rlstack import envs
from rlstack.command import _PLUGINS
from rlstack.envs.foundation.packages import install
from tests.conftest import REPO
from tests.test_readmes import PAGES, spans

PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
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
    groups = {"dependencies": PROJECT["dependencies"], **EXTRAS}
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


# -- Each line of a README that names an extra runs with that extra alone; all other lines need none -----------------


ANEW = re.compile(r"(?:pettingzoo|rocketsim|RocketSim|gymnasium\.envs\.(?:box2d|classic_control|mujoco))\b")
"""Modules that store whether a package could be imported."""


def lines_with_worlds() -> Iterator[tuple[str, str]]:
    """Yields world and extra (``none`` without one) for the lines of READMEs with worlds of other libraries."""
    for page in PAGES:
        for line in spans(page):
            command, _, comment = line.partition("#")
            if not re.match(r"(rlstack |python -m rlstack\.)", line) or "<" in command:
                continue
            given = dict(entry.split("=", 1) for entry in shlex.split(command) if "=" in entry)
            extra = re.search(r"\bextra (\w+)", comment)
            if "env.id" in given or given.get("env.backend") == "rocketsim":
                drawn = "watch " if "rlstack watch" in line else ""
                world = f"{drawn}{given['env']} {given.get('env.id', '')}".strip()
                yield world, extra[1] if extra else "none"


WORLDS = sorted(set(lines_with_worlds()))


@cache
def installed() -> set[str]:
    return {canonicalize_name(entry.metadata["Name"]) for entry in metadata.distributions()}


@cache
def brought_by(*requirements: str) -> set[str]:
    """Returns the names of installed distributions that requirements install, directly or indirectly."""
    found: set[str] = set()
    given = installed()
    waiting = [(Requirement(line), "") for line in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        name = name if name in given else canonicalize_name(f"{name}-nightly")
        if name not in given:
            continue
        more = [Requirement(line) for line in metadata.requires(name) or []]
        for part in ("", *requirement.extras):
            if f"{name}[{part}]" not in found:
                found.add(f"{name}[{part}]")
                waiting += [(entry, part) for entry in more]
    return {name.partition("[")[0] for name in found}


modules = cache(metadata.packages_distributions)


class Hidden:
    """A finder of modules that hides those of some distributions."""

    def __init__(self, distributions: set[str]) -> None:
        self.modules = {
            name for name, given in modules().items() if {canonicalize_name(entry) for entry in given} <= distributions
        }
        self.asked: set[str] = set()
        self._finders = list(sys.meta_path)

    def find_distributions(self, context: metadata.DistributionFinder.Context) -> Iterator[metadata.Distribution]:
        return iter(PathFinder.find_distributions(context))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        top = name.partition(".")[0]
        if top in self.modules:
            self.asked.add(top)
            return None
        found = (finder.find_spec(name, path, target) for finder in self._finders)
        return next((spec for spec in found if spec is not None), None)


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Hides all packages that neither the core nor an extra installs."""

    def begin(extra: str) -> Hidden:
        tests = brought_by(*PROJECT["dependencies"], *EXTRAS["dev"]) | {"rlstack"}
        hidden = Hidden(installed() - tests - brought_by(*EXTRAS.get(extra, [])))
        for name in list(sys.modules):
            if name.partition(".")[0] in hidden.modules or ANEW.match(name):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(sys, "meta_path", [hidden])
        return hidden

    return begin


@pytest.mark.parametrize(("world", "extra"), WORLDS, ids=[f"{world} ({extra})" for world, extra in WORLDS])
def test_a_world_of_a_line_needs_only_its_extra(world: str, extra: str, hide: Any) -> None:
    assert extra in (*EXTRAS, "none")
    drawn, (name, *id) = world.startswith("watch "), world.removeprefix("watch ").split()
    options: dict[str, Any] = {"id": id[0], "num_envs": 1} if id else {"backend": "rocketsim", "num_worlds": 1}
    options |= {"kwargs": {"render_mode": "rgb_array"}} if drawn else {}
    hidden = hide(extra)
    try:
        env = envs.make(name, **options)
        env.reset()
        if drawn:
            env.render()
    except Exception as error:
        if hidden.asked or extra == "none":
            raise
        pytest.skip(f"not installed: {error}")
    env.close()


def test_exporting_needs_only_its_extra(hide: Any) -> None:
    lines = [line for page in PAGES for line in spans(page) if re.search(r"rlstack.convert .*format=onnx", line)]
    assert lines and all(line.endswith("# extra export") for line in lines)
    hidden = hide("export")
    for name in ("onnx", "onnxscript", "onnxruntime"):
        assert name not in hidden.modules and name in [Requirement(entry).name for entry in EXTRAS["export"]]


@pytest.mark.parametrize(("option", "extra"), _PLUGINS.items())
def test_what_a_sweep_asks_for_is_in_the_extra_that_it_names(option: str, extra: str) -> None:
    plugin = option.rpartition("/")[2].partition("_")[0]
    assert any(plugin in Requirement(entry).name for entry in EXTRAS[extra])


def test_a_missing_package_is_told_with_its_extra(hide: Any) -> None:
    hide("none")
    env = envs.make("gymnasium", id="CartPole-v1", num_envs=1, kwargs={"render_mode": "rgb_array"})
    with pytest.raises(ValueError, match="extra 'classic': pip install "):
        env.render()
    with pytest.raises(ValueError, match=r"^id: sisl/pursuit_v5 needs the extra 'pettingzoo': pip install "):
        envs.make("pettingzoo", id="sisl/pursuit_v5")


def test_hints_name_extras_of_this_project() -> None:
    texts = [path.read_text(encoding="utf-8") for top in ("rlstack", "envs") for path in REPO.glob(f"{top}/**/*.py")]
    named = [name for text in texts for name in re.findall(r"\bneeds\(['\"](\w+)['\"]\)", text)]
    assert len(named) > 3 and set(named) <= EXTRAS.keys()


def test_pages_install_extras_of_this_project_from_a_clone() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (*REPO.glob("*.md"), *REPO.glob("[rec]*/**/*.md"))]
    hints = [hint for text in texts for hint in re.findall(r"pip install -e '\.\[([\w,]+)\]' -c constraints.txt", text)]
    assert len(hints) > 2 and {extra for hint in hints for extra in hint.split(",")} <= EXTRAS.keys()


def test_in_the_folder_of_a_clone_the_hint_is_the_command_of_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    assert f"`{install('sweep')}`" in (REPO / "README.md").read_text(encoding="utf-8")


def test_in_another_folder_the_hint_names_the_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a clone").mkdir()
    (tmp_path / "a clone" / "pyproject.toml").write_text(f'[project]\nname = "{PROJECT["name"]}"\n')
    monkeypatch.setattr("rlstack.envs.foundation.packages._ROOT", tmp_path / "a clone")
    *command, place, _, constraints = shlex.split(install("ray"))
    assert command == ["pip", "install", "-e"]
    assert (place, constraints) == (f"{tmp_path}/a clone[ray]", f"{tmp_path}/a clone/constraints.txt")


@pytest.mark.parametrize("project", [None, '[project]\nname = "another"\n'])
def test_outside_a_clone_the_hint_names_this_distribution(
    project: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The name ``rlstack`` on PyPI is another project, whose code a wrong hint would install."""
    if project is not None:
        (tmp_path / "pyproject.toml").write_text(project)
    monkeypatch.setattr("rlstack.envs.foundation.packages._ROOT", tmp_path)
    assert install("ray") == f"pip install '{PROJECT['name']}[ray]'"


# -- ``DEPENDENCIES.md`` lists the private names of other libraries that the code uses; installed versions have them


OF_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


def named_privately() -> dict[str, tuple[list[str], str]]:
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
    known = {last(name): files for name, (files, _) in named_privately().items()}
    assert {name: files for name, files in used.items() if name not in own | known.keys()} == {}
    unused = {name for name, files in known.items() if not all(name in (REPO / file).read_text() for file in files)}
    assert unused == set()


def test_there_are_few_of_the_libraries_that_everything_is_built_on() -> None:
    ours = [name for name in named_privately() if name.partition(".")[0] in ("torch", "torchrl", "tensordict")]
    assert len({last(name) for name in ours}) < 12


@pytest.mark.parametrize("name", named_privately())
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
    assert (REPO / named_privately()[name][1]).is_file()
    holder: Any = found
    for part in parts[count:]:
        if not hasattr(holder, part) and not isinstance(holder, ModuleType):  # of its instances
            assert any(f"self.{part}" in inspect.getsource(base) for base in inspect.getmro(holder)[:-1])
            return
        holder = getattr(holder, part)
