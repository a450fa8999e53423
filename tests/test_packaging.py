"""Declared and pinned dependencies, and the content of the distributions."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import rlstack
from experiments.benchmarks.speed import parse as speed_options
from tests.conftest import REPO
from tests.small_run import python


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib", reason="of Python 3.11")
    content: dict[str, Any] = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="module")
def pins() -> dict[str, Version]:
    found: dict[str, Version] = {}
    for line in (REPO / "constraints.txt").read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        name, sep, version = line.partition(";")[0].strip().partition("==")
        assert sep, f"not an exact pin: {line}"
        key = canonicalize_name(name)
        assert key not in found, f"pinned twice: {name}"
        found[key] = Version(version)
    return found


@pytest.mark.parametrize("group", ["dependencies", "dev", "rocketsim"])
def test_every_requirement_is_pinned_within_its_range(
    group: str, pyproject: dict[str, Any], pins: dict[str, Version]
) -> None:
    project = pyproject["project"]
    lines = project["dependencies"] if group == "dependencies" else project["optional-dependencies"][group]
    for requirement in map(Requirement, lines):
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} has no pin in constraints.txt"
        assert requirement.specifier.contains(pin, prereleases=True), f"{requirement}: pinned to {pin}"


def test_pins_are_plain_and_leave_rlstack_out(pins: dict[str, Version]) -> None:
    assert "rlstack-torchrl" not in pins
    # A local version such as +cpu would restrict users to one build of torch.
    assert [name for name, version in pins.items() if version.local] == []


def test_the_check_of_a_clone_runs_numerical_tests_with_other_instructions() -> None:
    assert "\nmake test\nmake test-portable\n" in (REPO / ".ci/run").read_text()
    environment = {key: value for key, value in os.environ.items() if key != "MAKEFLAGS"}
    answer = subprocess.run(["make", "-n", "test-portable"], cwd=REPO, env=environment, capture_output=True, text=True)
    shown = answer.stdout
    (command,) = (line.split() for line in shown.splitlines() if "pytest" in line)
    assert command[:2] == ["ATEN_CPU_CAPABILITY=default", "ONEDNN_MAX_CPU_ISA=SSE41"]
    named = [word for word in command if word.startswith("tests/")]
    assert {"tests/losses", "tests/networks", "tests/data"} <= set(named)
    assert all((REPO / word).exists() for word in named)


def test_version_is_the_declared_one(pyproject: dict[str, Any]) -> None:
    version = pyproject["project"]["version"]
    assert rlstack.__version__ == version
    cited = yaml.safe_load((REPO / "CITATION.cff").read_text())
    assert str(cited["version"]) == version and cited["license"] == pyproject["project"]["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert f"## [{version}]" in (REPO / "CHANGELOG.md").read_text()


def test_the_workflows_run_what_there_is() -> None:
    files = {path.stem: yaml.safe_load(path.read_text()) for path in (REPO / ".github/workflows").glob("*.yml")}
    every = [job for content in files.values() for job in content["jobs"].values()]
    lines = [step["run"] for job in every for step in job["steps"] if "run" in step]
    targets = {word for line in lines for word in re.findall(r"make ([a-z-]+)\b", line)}
    assert targets <= set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.MULTILINE))
    (speed,) = (line for line in lines if "experiments.benchmarks.speed" in line)
    flags = re.findall(r"--[a-z-]+", speed)
    assert {"--compare", "--fail-if-slower"} <= set(flags)
    assert speed_options(
        [part for flag in flags for part in (flag, *(["x"] if flag in ("--out", "--compare") else []))]
    )
    worlds = {job["env"] for job in files["ci"]["jobs"]["smoke"]["strategy"]["matrix"]["include"]}
    assert {"marinenav", "arena", "rocket", "echelon"} <= worlds


def _python(*args: str, cwd: Path, pythonpath: Path | str = "") -> subprocess.CompletedProcess[str]:
    done = python(*args, cwd=cwd, PYTHONPATH=str(pythonpath))
    assert done.returncode == 0, f"{args} exited {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


MODULES = "from importlib.util import find_spec; print(find_spec('rlstack.envs').origin, find_spec('envs'), sep='\\n')"


@pytest.mark.slow
def test_an_editable_installation_has_no_module_envs(tmp_path: Path) -> None:
    _python("-c", f"import hatchling.build; hatchling.build.build_editable({str(tmp_path)!r})", cwd=REPO)
    (wheel,) = tmp_path.glob("*.whl")
    (tmp_path / "site").mkdir()
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    found = _python("-c", f"import site; site.addsitedir({str(tmp_path / 'site')!r}); {MODULES}", cwd=tmp_path)
    assert found.stdout.splitlines() == [str(REPO / "rlstack/envs/__init__.py"), "None"]


@pytest.mark.slow
def test_wheel_is_complete_and_runs_from_anywhere(tmp_path: Path, pyproject: dict[str, Any]) -> None:
    # Without options the source archive is built first, and the wheel from it: both must be complete.
    dist = tmp_path / "dist"
    _python("-m", "build", "--no-isolation", "--outdir", str(dist), str(REPO), cwd=tmp_path)
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    if importlib.util.find_spec("twine"):  # checks what the package index would refuse; the workflow installs it
        _python("-m", "twine", "check", "--strict", str(wheel), str(source), cwd=tmp_path)
    version = pyproject["project"]["version"]
    assert wheel.name == f"rlstack_torchrl-{version}-py3-none-any.whl"

    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"rlstack_torchrl-{version}.dist-info"
    wanted = {
        "rlstack/conf/train.yaml",
        "rlstack/py.typed",
        "rlstack/reporting/page/page.html",
        "rlstack/reporting/page/page.js",
        "rlstack/reporting/page/style.css",
        "rlstack/envs/py.typed",
        "rlstack/envs/echelon/page/page.html",
        f"{info}/licenses/LICENSE",
    }
    assert wanted <= names, f"missing from the wheel: {sorted(wanted - names)}"
    assert {name.split("/")[0] for name in names} == {"rlstack", info}
    in_tree = {f"rlstack/{path.relative_to(REPO).as_posix()}" for path in (REPO / "conf").rglob("*.yaml")}
    zoo = (path for path in (REPO / "experiments/zoo").rglob("*") if path.suffix in (".pt", ".json", ".mp4"))
    in_tree |= {f"rlstack/{path.relative_to(REPO / 'experiments').as_posix()}" for path in zoo}
    assert in_tree <= names, f"missing from the wheel: {sorted(in_tree - names)}"
    assert not [name for name in names if re.search(r"__pycache__|\.pyc$", name)]

    target = tmp_path / "target"
    install = ("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target))
    _python(*install, str(wheel), cwd=tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = _python("-c", MODULES, cwd=elsewhere, pythonpath=target)
    assert where.stdout.splitlines() == [str(target / "rlstack/envs/__init__.py"), "None"]
    usage = _python("-m", "rlstack.train", "--help", cwd=elsewhere, pythonpath=target)
    assert "agent" in usage.stdout

    (elsewhere / "mine" / "env").mkdir(parents=True)
    (elsewhere / "mine" / "env" / "small.yaml").write_text("defaults: [marinenav, _self_]\nnum_worlds: 4\n")
    options = ["--config-dir", "mine", "env=small", "debug=true", "run_dir=run", "logger=csv", "device=cpu"]
    run = _python("-m", "rlstack.train", *options, cwd=elsewhere, pythonpath=target)
    assert "run finished: run" in run.stdout and run.stdout.count("[OK]") == 4
    _python("-m", "rlstack.evaluate", "checkpoint=run", "episodes=1", "video=false", cwd=elsewhere, pythonpath=target)
    assert list((elsewhere / "run" / "evaluations").glob("*/trajectories.png"))


# -- Rooms that can be taken off: without one of them the rest imports, trains, evaluates and reports ----------------


COMMON = """
import importlib, pkgutil, sys
import rlstack
for module in pkgutil.walk_packages(rlstack.__path__, "rlstack."):
    left_out = module.name.endswith("__main__") or module.name.startswith(("rlstack.sweeps.plugins", "rlstack.zoo"))
    if not left_out and not module.name.startswith(sys.argv[2]):
        importlib.import_module(module.name)
assert all(module.__file__.startswith(sys.argv[1]) for name, module in sys.modules.items() if name == "rlstack")
small = ["agent.hidden=[8]", "env.num_worlds=4", "eval.episodes=2", "logger=csv", "device=cpu", "threads=1"]
rlstack.train("agent=ppo", "env=cartpole", "total_frames=400", "agent.steps_per_batch=50", "run_dir=run", *small)
rlstack.evaluate(checkpoint="run", episodes=2, video=False)
"""
REPORT = """
rlstack.report("run")
"""
MISSING = {
    "adapters": ('rlstack.load_policy("sb3:model.zip", rlstack.envs.make("cartpole", num_worlds=1))', "sb3"),
    "play": ('rlstack.league("rank", folder="league")', "rlstack.play"),
    "sweeps": ('importlib.import_module("rlstack.sweeps.search")', "rlstack.sweeps"),
    "diagnostics": ('rlstack.explain("speed", "agent=ppo", "env=cartpole")', "rlstack.diagnostics"),
    "reporting": ('rlstack.report("run")', "rlstack.reporting"),
    "envs/arena": ('rlstack.envs.make("arena")', "unknown world 'arena'"),
    "envs/marinenav": ('rlstack.envs.make("marinenav")', "unknown world 'marinenav'"),
    "envs/rocket": ('rlstack.envs.make("rocket")', "unknown world 'rocket'"),
    "envs/echelon": ('rlstack.envs.make("echelon")', "unknown world 'echelon'"),
    "envs/gymnasium": ('rlstack.envs.make("gymnasium")', "unknown world 'gymnasium'"),
    "envs/pettingzoo": ('rlstack.envs.make("pettingzoo")', "unknown world 'pettingzoo'"),
    "envs/torchrl": ('rlstack.envs.make("torchrl")', "unknown world 'torchrl'"),
    "agents/tqc.py": ('rlstack.train("agent=tqc", "env=cartpole")', "rlstack.agents.tqc"),
    "agents/torchrl.py": ('rlstack.train("agent=torchrl_ppo", "env=cartpole")', "rlstack.agents.torchrl"),
    "agents/pqn.py": ('rlstack.train("agent=pqn", "env=cartpole")', "rlstack.agents.pqn"),
}
"""What is removed: an expression that needs it, and what its error names."""
BUILT_ON = {"envs/torchrl": ("envs/mjlab", "envs/playground")}
"""Rooms that are removed with another one, which they extend."""


@pytest.mark.slow
@pytest.mark.parametrize("room", MISSING)
def test_the_rest_works_without(room: str, tmp_path: Path) -> None:
    copy = tmp_path / "rlstack"
    shutil.copytree(REPO / "rlstack", copy, ignore=shutil.ignore_patterns("__pycache__", "zoo"))
    removed = copy / room
    for part in (removed, *(copy / other for other in BUILT_ON.get(room, ()))):
        part.unlink() if part.is_file() else shutil.rmtree(part)
    needing, named = MISSING[room]
    report = "" if room == "reporting" else REPORT
    check = f"try:\n    {needing}\nexcept Exception as error:\n    print('missing:', error)\n"
    program = f"{COMMON}{report}{check}"
    adapter = f"rlstack.adapters.{removed.name}"  # that of the world
    done = _python("-c", program, str(tmp_path), adapter, cwd=tmp_path)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("missing:")]
    assert named in line
    assert room == "reporting" or (tmp_path / "run" / "report.html").is_file()
