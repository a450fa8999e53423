"""Commands, links and code of every README: what they name is there."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlstack.agents import agent_class
from rlstack.config import build
from rlstack.help import COMMANDS, module_of
from rlstack.training.config import TrainConfig, with_length
from rlstack.training.run import debugged
from tests.agents import munchausen
from tests.conftest import Ended

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted(
    path
    for path in ROOT.rglob("README.md")
    if not {".venv", "runs", "fixtures", "node_modules"} & set(path.relative_to(ROOT).parts)
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_ORIGIN = re.compile(
    r"^(?:RLSTACK_\w+=\S+ )?"
    r"(?:(?:torchrun [^m]*|python )-m (?P<module>(?:rlstack|experiments|envs)\.[\w.]+)|rlstack (?P<command>\w+))"
)


def spans(page: Path) -> Iterator[str]:
    """Lines of blocks that are no code, and what stands between single back-quotes."""
    text = page.read_text(encoding="utf-8")
    for language, block in _FENCE.findall(text):
        if not language:
            yield from block.splitlines()
    yield from _SPAN.findall(_FENCE.sub("", text))


def commands() -> list[tuple[str, list[str]]]:
    """Name of the module and arguments, placeholders filled in."""
    found: dict[tuple[str, ...], tuple[str, list[str]]] = {}
    for page in PAGES:
        for line in spans(page):
            line = (
                re.sub(r"<[^>]*>", "x", re.sub(r" \[\w+=[^]]*\]", "", line)).replace(" ...", "").replace("=...", "=1")
            )
            match = _ORIGIN.match(line)
            if match is not None and "x" not in (match["command"], str(match["module"]).rpartition(".")[2]):
                module = match["module"] or module_of(match["command"])
                arguments = shlex.split(line[match.end() :], comments=True)
                found[(module, *arguments)] = module, arguments
    return list(found.values())


COMMAND_LINES = commands()


def test_there_are_commands() -> None:
    names = {name for name, _ in COMMAND_LINES}
    assert len(COMMAND_LINES) > 50 and {"rlstack.train", "rlstack.evaluate", "rlstack.league", "rlstack.watch"} <= names


@pytest.mark.parametrize(("module", "arguments"), COMMAND_LINES, ids=[" ".join([m, *a]) for m, a in COMMAND_LINES])
def test_a_command_exists_and_knows_its_options(
    module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = {module_of(command): command for command in COMMANDS}.get(module, module.removeprefix("rlstack."))
    if not module.startswith("rlstack.") or name not in COMMANDS:
        known = importlib.util.find_spec(module) is not None or name in ("agents", "envs", "completion")
        assert known, f"there is no {module}"
        return
    if "--help" in arguments or "-C" in arguments or not arguments:
        return
    plain = [_first_choice(entry) for entry in arguments if entry != "-m" and not entry.startswith("hydra")]
    if any(entry.startswith("--config-dir") for entry in plain):
        return
    monkeypatch.setitem(sys.modules, "munchausen", munchausen)  # the file that rlstack/agents/README.md shows
    monkeypatch.setenv("RLSTACK_WEBHOOK", "https://localhost/hook")  # which rlstack/training/README.md exports
    monkeypatch.setattr(sys, "argv", [name, *plain, "--cfg", "job", "--resolve"])
    importlib.import_module(module).main()
    content = yaml.safe_load(capsys.readouterr().out)
    if name == "train":
        _check_types(content)


def _first_choice(entry: str) -> str:
    """One run of a sweep: of ``a=1,2`` the first, of a range a number in it."""
    key, sign, value = entry.partition("=")
    if "interval(" in value:
        return f"{key}=0.001"
    return f"{key}{sign}{value.split(',')[0]}" if value[:1] not in "[{" else entry


def _check_types(content: dict[str, Any]) -> None:
    plain = with_length(debugged(content))
    build(TrainConfig, plain)
    build(agent_class(plain["agent"]["algorithm"]).Config, plain["agent"], "agent")


@pytest.mark.parametrize("page", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert not [target for target in targets if not target.startswith("http") and not _leads(page, target)]


def _leads(page: Path, target: str) -> bool:
    """Whether a file is there, and has the heading that is asked for."""
    name, _, anchor = target.partition("#")
    file = page.parent / name if name else page
    if not anchor or not file.exists():
        return file.exists()
    headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
    return anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_files_that_are_named_are_there() -> None:
    """Paths between back-quotes that begin with a folder of the project."""
    lost = [
        f"{page.relative_to(ROOT)}: {span}"
        for page in PAGES
        for span in _SPAN.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
        if re.fullmatch(r"(?:rlstack|envs|conf|experiments|tests)/[\w./]+", span) and not (ROOT / span).exists()
    ]
    assert not lost


def test_make_knows_its_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {match for page in PAGES for line in spans(page) for match in re.findall(r"^make ([a-z-]+)", line)}
    assert {"train", "test", "bench", "report"} <= named
    assert not [target for target in named if not re.search(rf"^{target}:", makefile, re.M)]


def test_every_package_has_a_page() -> None:
    packages = [path.parent for path in (ROOT / "rlstack").glob("*/__init__.py")]
    assert packages and not [package.name for package in packages if not (package / "README.md").exists()]


def test_the_first_page_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_the_first_page_s_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ten lines of the first page, with fewer frames."""
    monkeypatch.chdir(tmp_path)
    (program,) = [block for language, block in _FENCE.findall(README.read_text(encoding="utf-8")) if language]
    shorter = program.replace("250_000", "1000, threads=1, device='cpu', logger='csv', quiet=True")
    assert shorter != program and len(program.strip().splitlines()) <= 11
    space: dict[str, Any] = {}
    exec(shorter, space)
    assert all(parameter.grad is not None for parameter in space["loss"].parameters() if parameter.requires_grad)


def test_the_code_runs(rlstack_command: Callable[..., Ended]) -> None:
    """The program of the page of plain TorchRL, a little shorter, on a run that was just made."""
    page = ROOT / "experiments" / "plain_torchrl" / "README.md"
    small = ["env.num_worlds=4", "env.max_steps=20", "logger=csv", "threads=1", "device=cpu"]
    small += ["total_frames=100", "eval.episodes=1", "eval.max_steps=20"]
    trained = rlstack_command("train", "agent=acqn", "env=marinenav", "run_dir=run", *small)
    assert trained.status == 0, trained.err
    program = next(
        block for language, block in _FENCE.findall(page.read_text(encoding="utf-8")) if "make_collector" in block
    )
    program = program.replace("64 * 800", "64 * 16").replace("rollout(60", "rollout(4").replace("runs/<run>", "run")
    exec(program, {})
