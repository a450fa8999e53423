"""Commands, links and code of all READMEs: everything that they name exists."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from tensordict import TensorDict

import rlstack
from rlstack.agents import agent_class
from rlstack.config import build
from rlstack.help import COMMANDS
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.config import TrainConfig, with_length
from rlstack.training.hooks import Hook
from rlstack.training.run import debugged
from rlstack.training.stages import CurriculumConfig
from tests.agents import munchausen
from tests.conftest import REPO, Command

README = REPO / "README.md"
PAGES = sorted(
    path
    for path in REPO.rglob("*.md")
    if not {".venv", ".github", "runs", "fixtures", "node_modules"} & set(path.relative_to(REPO).parts)
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_ORIGIN = re.compile(
    r"^(?:RLSTACK_\w+=\S+ )?"
    r"(?:(?:torchrun [^m]*|python )-m (?P<module>(?:rlstack|experiments|envs)\.[\w.]+)|rlstack (?P<command>\w+))"
)


def spans(page: Path) -> Iterator[str]:
    """Yields the lines of blocks without code, and the texts between single back-quotes."""
    text = page.read_text(encoding="utf-8")
    for language, block in _FENCE.findall(text):
        if not language:
            yield from block.splitlines()
    yield from _SPAN.findall(_FENCE.sub("", text))


def commands() -> list[tuple[str, list[str]]]:
    """Returns module names and arguments, with placeholders filled in; lines that choose the same are one."""
    found: dict[tuple[str, ...], list[str]] = {}
    for page in PAGES:
        for line in spans(page):
            line = (
                re.sub(r"<[^>]*>", "x", re.sub(r" \[\w+=[^]]*\]", "", line))
                .replace(" ...,", "")
                .replace(" ...", "")
                .replace("=...", "=1")
            )
            match = _ORIGIN.match(line)
            if match is not None and "x" not in (match["command"], str(match["module"]).rpartition(".")[2]):
                module = match["module"] or f"rlstack.{match['command']}"
                arguments = shlex.split(line[match.end() :], comments=True)
                forms = {entry: _form(module, entry) for entry in arguments}
                together = found.setdefault((module, *(entry for entry in arguments if forms[entry] == entry)), [])
                known = {_form(module, entry) for entry in together}
                together += [entry for entry in arguments if forms[entry] not in known]
    return [(module, arguments) for (module, *_), arguments in found.items()]


def _form(module: str, entry: str) -> str:
    """Returns what is checked of an argument: the key alone where any plain value would do."""
    key, _, value = entry.partition("=")
    plain = module != "rlstack.train" and re.fullmatch(r"[\w./:-]+", value) and key not in ("agent", "env")
    return key if plain else entry


COMMAND_LINES = commands()


def test_there_are_commands() -> None:
    names = {name for name, _ in COMMAND_LINES}
    assert len(COMMAND_LINES) > 50 and {"rlstack.train", "rlstack.evaluate", "rlstack.league", "rlstack.watch"} <= names


@pytest.mark.parametrize(("module", "arguments"), COMMAND_LINES, ids=[" ".join([m, *a]) for m, a in COMMAND_LINES])
def test_a_command_exists_and_knows_its_options(
    module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = module.removeprefix("rlstack.")
    if not module.startswith("rlstack.") or name not in COMMANDS:
        known = importlib.util.find_spec(module) is not None or name in ("agents", "envs", "completion")
        assert known, f"there is no {module}"
        assert not (lost := [flag for flag in arguments if flag.startswith("--") and not _knows(module, flag)]), lost
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


def _knows(module: str, flag: str) -> bool:
    """Returns whether the module, or a file next to it or above it, names a flag."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:  # a word of the command rlstack
        return flag == "--config-dir"
    folders = Path(spec.origin).parents[:2]
    return any(f'"{flag}"' in path.read_text(encoding="utf-8") for folder in folders for path in folder.glob("*.py"))


def _first_choice(entry: str) -> str:
    """Returns one run of a sweep: the first of ``a=1,2``, or a number in a range."""
    key, sign, value = entry.partition("=")
    if "interval(" in value:
        return f"{key}=0.001"
    return f"{key}{sign}{value.split(',')[0]}" if value[:1] not in "[{" else entry


def _check_types(content: dict[str, Any]) -> None:
    plain = with_length(debugged(content))
    build(TrainConfig, plain)
    build(agent_class(plain["agent"]["algorithm"]).Config, plain["agent"], "agent")


@pytest.mark.parametrize("page", PAGES, ids=[path.relative_to(REPO).as_posix() for path in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert not [target for target in targets if not target.startswith("http") and not _leads(page, target)]


def _leads(page: Path, target: str) -> bool:
    """Returns whether a file exists and has the heading of the link."""
    name, _, anchor = target.partition("#")
    file = page.parent / name if name else page
    if not anchor or not file.exists():
        return file.exists()
    headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
    return anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_files_that_are_named_are_there() -> None:
    """These are the paths between back-quotes that begin with a folder of the project."""
    lost = [
        f"{page.relative_to(REPO)}: {span}"
        for page in PAGES
        for span in _SPAN.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
        if re.fullmatch(r"(?:rlstack|envs|conf|experiments|tests|\.ci)/[\w./]+", span) and not (REPO / span).exists()
    ]
    assert not lost


def test_the_table_of_a_folder_names_its_files() -> None:
    for page in sorted((REPO / "rlstack").rglob("README.md")):
        rows = re.findall(r"^\| ((?:`\w+\.py`(?:, )?)+) \|", page.read_text(encoding="utf-8"), re.M)
        named = [file for row in rows for file in re.findall(r"\w+\.py", row)]
        assert [file for file in named if not (page.parent / file).is_file()] == [], page


def test_make_knows_its_targets() -> None:
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    named = {match for page in PAGES for line in spans(page) for match in re.findall(r"^make ([a-z-]+)", line)}
    assert {"train", "test", "bench", "report"} <= named
    assert not [target for target in named if not re.search(rf"^{target}:", makefile, re.M)]


def test_every_package_has_a_page() -> None:
    packages = [path.parent for path in (REPO / "rlstack").glob("*/__init__.py") if path.parent.name != "zoo"]
    assert packages and not [package.name for package in packages if not (package / "README.md").exists()]


def test_the_reference_has_every_exported_name() -> None:
    page = (REPO / "docs" / "api" / "rlstack.md").read_text(encoding="utf-8")
    assert not [name for name in rlstack.__all__ if not re.search(rf"::: rlstack\.{name}\.{name}\n|`{name}`", page)]


@pytest.mark.parametrize("name", ["munchausen", "own_network", "spo"])
def test_the_page_of_the_agents_shows_the_files_that_are_tested(name: str) -> None:
    source = (REPO / f"tests/agents/{name}.py").read_text(encoding="utf-8")
    assert source in (REPO / "rlstack/agents/README.md").read_text(encoding="utf-8")


def test_the_first_page_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.fixture(scope="module")
def first_page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the names defined by the ten lines of the first page, run with fewer frames and episodes."""
    (program,) = programs(README)
    shorter = program.replace("300_000", "1000, threads=1, device='cpu', logger='csv', quiet=True")
    shorter = shorter.replace("episodes=100", "episodes=2")
    assert "episodes=2)" in shorter and "1000, t" in shorter and len(program.strip().splitlines()) <= 11
    space: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("first_page"))
        exec(shorter, space)
        space["run"] = replace(space["run"], path=space["run"].path.resolve())
    return space


def test_the_first_page_s_code_runs(first_page: dict[str, Any]) -> None:
    trained = [parameter for parameter in first_page["loss"].parameters() if parameter.requires_grad]
    assert trained and all(parameter.grad is not None for parameter in trained)


def programs(page: Path) -> list[str]:
    """Returns the Python blocks of a page."""
    return [block for language, block in _FENCE.findall(page.read_text(encoding="utf-8")) if language == "python"]


def test_every_program_is_run_by_a_test() -> None:
    """The others are run by tests/agents/test_own_*.py and tests/envs/test_own_world.py."""
    elsewhere = {"rlstack/agents/README.md": 3, "envs/README.md": 1}
    here = {"README.md": 1, "rlstack/README.md": 2, "rlstack/training/README.md": 2, "rlstack/data/README.md": 1}
    here |= {"rlstack/losses/README.md": 1, "rlstack/adapters/README.md": 1, "experiments/plain_torchrl/README.md": 1}
    here["envs/README.md"] = 1
    counts = {page.relative_to(REPO).as_posix(): len(programs(page)) for page in PAGES}
    names = {*elsewhere, *here}
    assert {name: count for name, count in counts.items() if count} == {
        name: elsewhere.get(name, 0) + here.get(name, 0) for name in names
    }


def test_training_from_python(first_page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of ``rlstack.train`` in the pages is composed and checked, but returns the first page's run."""
    composed: list[dict[str, Any]] = []
    ended: list[bool] = []

    def composed_only(plain: dict[str, Any], hooks: Sequence[Hook] = ()) -> RunDirectory:
        _check_types(plain)
        composed.append(plain)
        training: Any = SimpleNamespace(finish=lambda: ended.append(True), ranks=SimpleNamespace(any=bool), frames=1)
        training.agent = None
        for hook in hooks:
            hook.on_evaluation(training, SimpleNamespace(summary=lambda: {"eval/return": 480.0}), True)  # type: ignore[arg-type]
        return RunDirectory(first_page["run"].path)

    monkeypatch.setattr("rlstack.training.run.train", composed_only)
    package, training = REPO / "rlstack" / "README.md", REPO / "rlstack" / "training" / "README.md"
    space: dict[str, Any] = {}
    exec(programs(package)[0].replace("episodes=100", "episodes=2"), space)
    exec(programs(package)[1], space)
    assert composed[0]["total_frames"] == 200_000 and composed[0]["agent"]["lr"] == 1e-3
    assert len(composed) == 2 and ended == [True]  # 480 is not below 475
    exec(programs(training)[1], {})
    assert len(composed) == 3 and ended == [True, True]


def test_the_loop_is_quoted() -> None:
    quoted = programs(REPO / "rlstack" / "training" / "README.md")[0]
    source = (REPO / "rlstack" / "training" / "loop.py").read_text(encoding="utf-8")
    lines = [line.partition("  #")[0].strip() for line in quoted.splitlines()]
    assert len(lines) > 5 and not [line for line in lines if line not in source]


def test_a_curriculum_of_a_page_is_one() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (REPO / "rlstack/training/README.md").read_text(encoding="utf-8"), re.S)
    assert len(build(CurriculumConfig, yaml.safe_load(text), "curriculum").stages) == 3


def test_the_replay_buffer_of_a_page_works() -> None:
    space: dict[str, Any] = {}
    exec(programs(REPO / "rlstack" / "data" / "README.md")[0], space)
    assert len(space["replay"]) == 500 and {"index", "priority_weight"} <= set(space["sample"].keys())


def test_the_loss_of_a_page_learns() -> None:
    """The lines of the loop are a comment on the page, since the page has no data."""
    (program,) = programs(REPO / "rlstack" / "losses" / "README.md")
    data = TensorDict(observation=torch.randn(8, 4), action=torch.randint(2, (8,)), batch_size=[8])
    after = TensorDict(observation=torch.randn(8, 4), reward=torch.ones(8, 1), batch_size=[8])
    data["next"] = after.set("terminated", torch.zeros(8, 1, dtype=torch.bool))
    before, after_it = program.split("#   loss(batch)")
    space: dict[str, Any] = {}
    exec(before, space)
    start = [parameter.detach().clone() for parameter in space["loss"].parameters()]
    exec(f"loss(batch){after_it}", {**space, "batch": data})
    assert not all(torch.equal(*pair) for pair in zip(start, space["loss"].parameters()))


def test_evaluations_of_a_page_are_read(fixtures_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = programs(REPO / "rlstack" / "adapters" / "README.md")
    file = fixtures_dir / "marinenav" / "evaluations_example.npz"
    exec(program.replace("training_.../seed_9/evaluations.npz", file.as_posix()), {})
    assert "success" in capsys.readouterr().out


def test_worlds_for_other_libraries() -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("stable_baselines3")
    space: dict[str, Any] = {}
    exec(programs(REPO / "envs" / "README.md")[0].replace("64", "2"), space)
    assert space["worlds"].num_envs == 2 and len(space["game"].possible_agents) > 1


def test_the_code_runs(rlstack_command: Command) -> None:
    """Runs the program on the page of plain TorchRL, slightly shortened, with a new run."""
    page = REPO / "experiments" / "plain_torchrl" / "README.md"
    small = ["env.num_worlds=4", "env.max_steps=20", "logger=csv", "threads=1", "device=cpu"]
    small += ["total_frames=100", "agent.learning_starts=50", "eval.episodes=1", "eval.max_steps=20"]
    trained = rlstack_command("train", "agent=acqn", "env=marinenav", "run_dir=run", *small)
    assert trained.status == 0, trained.err
    (program,) = programs(page)
    program = program.replace("64 * 800", "64 * 16").replace("rollout(60", "rollout(4").replace("runs/<run>", "run")
    exec(program, {})
