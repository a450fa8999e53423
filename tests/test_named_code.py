"""Code that files name: each command that opens the file refuses it; only the command line can allow it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

import rlstack
from rlstack import league as league_command
from rlstack.config import ConfigError, to_plain
from rlstack.config.named_code import allowing, check_named, code_in, granting
from rlstack.play.league import League
from rlstack.play.pool import Pool
from rlstack.runs.checkpoint import write_checkpoint
from rlstack.runs.loading import initialise, unfinished
from rlstack.runs.run_directory import RunDirectory
from rlstack.sweeps.jobs import job
from tests.agents.small_agents import small
from tests.play.duel import NAME, Duel

TRAP = """
from pathlib import Path
import sys
import rlstack.envs.world
Path(__file__).with_name("imported").touch()

class Own(envs.world.World):
    pass

class Other:
    pass

def run(*arguments, **options):
    Path(__file__).with_name("called").touch()
"""
LEGACY: dict[str, Any] = {
    **{"name": "legacy", "algorithm": "legacy", "kind": "callable", "path": "trap:run", "steps_per_batch": 1},
    **dict.fromkeys(("vecnormalize", "normalization", "deterministic", "agent_type", "protocol", "batched", "arrays")),
    "which": None,
}
DUEL: dict[str, Any] = {"name": NAME, "num_worlds": 4}
IMITATION = {"expert": None, "expert_options": {}, "episodes": None, "frames": 8, "epochs": 1, "batch_size": 4}


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a module in the working folder that writes a file when it is imported, and another when it is called."""
    (tmp_path / "trap.py").write_text(TRAP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trap", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def learner() -> Any:
    return small(Duel(2), name="ppo")


@pytest.fixture
def command(trap: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command line that must fail with one line, which it returns."""

    def call(name: str, *words: str) -> str:
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", [name, *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            import_module(f"rlstack.{name}").main()
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert end.value.code == 2 and len(lines) == 1, lines
        return lines[0]

    return call


def untouched(folder: Path) -> bool:
    return not {"imported", "called"} & {path.name for path in folder.iterdir()} and "trap" not in sys.modules


def routes(learner: Any) -> dict[str, dict[str, Any]]:
    """Returns configurations that name a function, each under another key."""
    agent = to_plain(learner.config)
    whole = {"agent": agent, "env": DUEL, "total_frames": 100, "imitation": IMITATION}
    return {
        "legacy": {**whole, "agent": LEGACY},
        "algorithm": {**whole, "agent": {**agent, "algorithm": "trap:run"}},
        "network": {**whole, "agent": {**agent, "network": "trap:run"}},
        "role": {**whole, "agent": {**agent, "network": {"actor": "trap:run"}}},
        "opponents": {**whole, "env": {**DUEL, "opponents": {"players": ["random", "callable:trap:run"]}}},
        "judges": {**whole, "env": {**DUEL, "opponents": {"evaluation": [{"player": "callable:trap:run"}]}}},
        "expert": {**whole, "imitation": {**IMITATION, "expert": "callable:trap:run"}},
        "world": {**whole, "env": {"name": "trap:run"}},
        "gymnasium": {**whole, "env": {"name": "gymnasium", "id": "trap:Own-v0"}},
        "environment": {**whole, "env": {"name": "gymnasium", "id": "trap:run"}},
        "parallel": {**whole, "env": {"name": "pettingzoo", "id": "trap"}},
        "joined": {**whole, "env": {"name": "${a}p:run"}, "a": "tra"},
    }


ROUTES = [
    *("legacy", "algorithm", "network", "role", "opponents", "judges", "expert", "world"),
    *("gymnasium", "environment", "parallel", "joined"),
]


def hostile_run(folder: Path, learner: Any, route: str) -> Path:
    """Makes a run directory with a hostile configuration and a hostile checkpoint."""
    config = routes(learner)[route]
    run = RunDirectory(folder / "run")
    state = {"frames": 7, "agent": learner.state_dict(), "config": config}
    write_checkpoint(run.path / "checkpoints" / "checkpoint_000000000007.pt", state, 7)
    (run.path / "config.yaml").write_text(json.dumps(config))
    return run.path


@pytest.mark.parametrize("route", ROUTES)
def test_no_reader_of_a_run_takes_code_from_it(route: str, trap: Path, learner: Any) -> None:
    """Tests the readers that all commands use; the commands themselves are below."""
    run = hostile_run(trap, learner, route)
    readers: list[Callable[[], Any]] = [
        lambda: rlstack.load(run),
        lambda: rlstack.load_policy(f"rlstack:{run}", Duel(2)),
        lambda: initialise(learner, run),
        lambda: RunDirectory.open(run).read_config(),
        lambda: unfinished(RunDirectory.open(run), 100, 100),
        lambda: Pool([str(run)]).player("run", Duel(2)),
    ]
    for reader in readers:
        with pytest.raises(ConfigError, match=r"which is run only if you allow it: .?allow=\[trap|an interpolation"):
            reader()
    assert untouched(trap)


COMMANDS = {
    "evaluate": ["checkpoint=run"],
    "watch": ["checkpoint=run", "show=numbers", "episodes=1"],
    "export": ["checkpoint=run"],
    "rewards": ["checkpoint=run"],
    "train resume": ["resume=run"],
    "train init": ["init=run", "agent=ppo", "env=cartpole", "env.num_worlds=2", "device=cpu", "run_dir=new"],
    "train expert": ["imitation.expert=run", "agent=ppo", "env=cartpole", "device=cpu", "run_dir=new"],
    "league play": ["command=play", "players=[run,random]"],
    "league run": ["command=run", "players=[run,random]"],
    "league add": ["command=add", "folder=league", "players=[run]"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_runs_code_that_a_run_names(name: str, trap: Path, learner: Any, command: Any) -> None:
    hostile_run(trap, learner, "legacy")
    if name == "league add":
        league(trap, "random")
    line = command(name.partition(" ")[0], *COMMANDS[name])
    assert "names code, 'trap:run', which is run only if you allow it: 'allow=[trap:run]'" in line
    assert untouched(trap)


def league(folder: Path, source: Any, **entry: Any) -> Path:
    from rlstack.play.ratings import rating_system

    made = League.create(folder / "league", DUEL, rating_system("elo"))
    made.join("somebody", "random")
    made.join("rival", "low")
    made.save()
    path = folder / "league" / "league.json"
    content = json.loads(path.read_text())
    content["entries"][0] |= {"source": source, **entry}
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"source": "callable:trap:run"}, ["command=run", "games=1"]),
        ({"source": {"player": "callable:trap:run"}}, ["command=run", "games=1"]),
        ({"source": "random", "file": "callable:trap:run"}, ["command=run", "games=1"]),
        ({"source": "callable:trap:run", "kind": "candidate", "id": "a"}, ["command=evaluate", "pool.players=[rival]"]),
        ({"source": "callable:trap:run", "kind": "commander", "id": "a"}, ["train", "agent=ppo", "device=cpu"]),
    ],
)
def test_no_command_runs_code_that_a_league_names(
    entry: dict[str, Any], words: list[str], trap: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    league(trap, **entry)
    if "file" in entry:  # which is relative to the folder
        monkeypatch.chdir("league")
    folder = "folder=." if "file" in entry else "folder=league"
    line = command("league", *words, folder)
    assert "'allow=[trap:run]'" in line and "league.json names code" in line and untouched(trap)


def test_the_world_of_a_league_is_no_function(trap: Path) -> None:
    path = league(trap, "random")
    path.write_text(json.dumps({**json.loads(path.read_text()), "env": {"name": "trap:run"}}))
    with pytest.raises(ConfigError, match=r"league\.json names code, 'trap:run'"):
        League.open(path.parent)
    assert untouched(trap)


def test_a_report_of_hostile_files_shows_them(trap: Path, learner: Any) -> None:
    from rlstack.reporting.document import report

    hostile_run(trap, learner, "opponents")
    league(trap, "callable:trap:run")
    report(trap, None, 0.0)
    assert untouched(trap)


def test_a_league_names_a_world_of_ours_to_be_composed(trap: Path) -> None:
    path = league(trap, "random")
    (trap / "evil.yaml").write_text("name: trap:run\n")
    for name in ("rocket", str(trap / "evil"), "../../evil", ["rocket"], 1):
        path.write_text(json.dumps({"env": {"name": name}}))
        found = league_command.train_arguments(["train", f"folder={path.parent}"])
        assert found == (["env=rocket"] if name == "rocket" else []) + [f"folder={path.parent}"]


def test_the_pool_of_a_checkpoint_is_read_with_the_same_care(trap: Path) -> None:
    """Opponents that joined a run are in the state of its world, not in its configuration."""
    run = RunDirectory(trap / "run")
    state = {"frames": 7, "env": {"pool": {"entries": [{"name": "a", "source": "callable:trap:run"}]}}}
    write_checkpoint(run.path / "checkpoints" / "checkpoint_000000000007.pt", state, 7)
    with pytest.raises(ConfigError, match="names code, 'trap:run'"):
        unfinished(run, 100, 100)


def test_what_the_user_wrote_is_allowed(trap: Path, learner: Any, command: Any) -> None:
    run = hostile_run(trap, learner, "world")
    line = command("evaluate", f"checkpoint={run}", "allow=[trap:run]")
    assert "neither a class of EnvBase nor a function annotated to return one" in line  # the next check
    assert (trap / "imported").exists()
    with pytest.raises(ConfigError, match="neither a class of EnvBase"):
        rlstack.load(run, allow=["trap:run"])
    with pytest.raises(ConfigError, match="names code"):
        rlstack.load(run, allow=["trap:other"])
    with granting({"env": {"opponents": ["callable:trap:run"]}}):
        check_named(["callable:trap:run", {"kind": "callable", "path": "trap:run"}], "file")


def test_later_generations_of_a_population_are_allowed_what_the_first_was(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    assert job(tmp_path, [], ["until=9"], ["my.mod:fn"])[-1] == "allow=[my.mod:fn]"


OF_PYTHON = ["http.server:test", "subprocess:call", "builtins:exec", "os.path:join", "os:system"]
OF_LIBRARIES = ["torchrl.envs.libs.gym:make_gym_env", "torchrl.envs:GymEnv", "gymnasium.wrappers:RecordVideo"]


@pytest.mark.parametrize(
    "name", [*OF_PYTHON, *OF_LIBRARIES, "rlstack.envs.registry:make", "trap:Other", "trap:missing"]
)
def test_what_is_no_class_of_ours_is_code(name: str, trap: Path) -> None:
    assert code_in({"a": [name]}) == [name] and code_in([f"callable:{name}"]) == [name] and untouched(trap)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "trap:Own",
            "rlstack.envs.arena.env:Arena",
            "rlstack.agents.ppo:PPO",
            NAME,
            "tests.agents.small_agents:Detour",
        ),
        *("CartPole-v1", "sisl/pursuit_v5", "sb3:model.zip", "rlstack:runs/a", "2025-01-01T10:00:00Z"),
        *("cuda:0", "https://example.org/hook", "/data/runs:old/a", "no_such_module:World"),
    ],
)
def test_worlds_agents_and_words_are_free(name: str, trap: Path) -> None:
    assert code_in({"id": name, "list": [name]}) == [] and untouched(trap)


def test_classes_are_found_through_the_imports_of_their_modules(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "harbours_of_mine" / "inner"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .bays import Bay as Shore\n")
    (package / "bays.py").write_text(
        "from torchrl import envs as they\nfrom torchrl.envs import GymEnv\nimport subprocess\n"
        "class Bay(they.EnvBase): pass\nclass Theirs(GymEnv): pass\nclass Round(Round): pass\n"
        "class Pipe(subprocess.Popen): pass\nclass Lost(Bay): pass\nLost = subprocess.Popen\n"
        "from torchrl.objectives.common import LossModule\nclass Depth(LossModule): pass\n"
    )
    name = "harbours_of_mine.inner"
    assert code_in([f"{name}:Shore", f"{name}.bays:Bay", f"{name}.bays:Depth"]) == []
    refused = [f"{name}.bays:{other}" for other in ("Theirs", "Round", "Pipe", "Lost", "Bay.x", "subprocess")]
    assert sorted(code_in(refused)) == sorted(refused) and "harbours_of_mine" not in sys.modules


def test_clusters_are_code_and_names_may_hold_anything() -> None:
    assert code_in({"collector": {"address": "ray://example.org:10001"}}) == ["ray://example.org:10001"]
    assert code_in({"collector": {"address": "auto"}}) == []
    assert allowing(["a.b:c", "it's, x:y"]) == r"allow=[a.b:c,'it\'s, x:y']"
