"""What files name beyond data: each command that opens a stranger's file refuses it, unless the user allows it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

import rlstack
from rlstack import league as league_command
from rlstack.config import ConfigError, allowed, to_plain
from rlstack.config.allowed import allowing, check_named, granting, names_in, sign, sign_copy
from rlstack.envs import registry
from rlstack.play.league import League
from rlstack.play.pool import Pool
from rlstack.play.ratings import rating_system
from rlstack.runs.loading import initialise, unfinished
from rlstack.runs.run_directory import RunDirectory
from tests.agents.small_agents import small
from tests.conftest import Command
from tests.play.duel import NAME, Duel
from tests.refusals import refused

TRAP = """
from pathlib import Path
import rlstack.envs.world
Path(__file__).with_name("imported").touch()

class Own(rlstack.envs.world.World):
    pass

def run(*arguments, **options):
    Path(__file__).with_name("called").touch()
"""
SCRIPT = "torchscript:trap.pt"
LEGACY: dict[str, Any] = {
    **{"name": "legacy", "algorithm": "legacy", "kind": "torchscript", "path": "trap.pt", "steps_per_batch": 1},
    **dict.fromkeys(("vecnormalize", "normalization", "deterministic", "agent_type", "protocol", "batched", "arrays")),
    "which": None,
}
DUEL: dict[str, Any] = {"name": "duel", "num_worlds": 4}
IMITATION = {"expert": None, "expert_options": {}, "episodes": None, "frames": 8, "epochs": 1, "batch_size": 4}


class Script(nn.Module):
    def forward(self, observation: Tensor) -> Tensor:
        return observation + torch.from_file("written", shared=True, size=1).fill_(1.0)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "trap.pt"
    torch.jit.script(Script()).save(str(path))  # type: ignore[no-untyped-call]
    return path


@pytest.fixture
def trap(tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes, in the working folder, a module and a program that write files when they are imported, called or run."""
    (tmp_path / "trap.py").write_text(TRAP)
    shutil.copy(script, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trap", raising=False)
    monkeypatch.setitem(registry._REGISTERED, "duel", NAME)
    return tmp_path


@pytest.fixture(scope="module")
def learner() -> Any:
    return small(Duel(2), name="ppo")


@pytest.fixture
def command(trap: Path, rlstack_command: Command) -> Callable[..., str]:
    """Runs a command line that must fail with one line, which it returns."""
    return lambda *words: rlstack_command(*words).refused()


def untouched(folder: Path) -> bool:
    made = {"imported", "called", "written", "elsewhere"}
    return made.isdisjoint(path.name for path in folder.iterdir()) and "trap" not in sys.modules


def test_the_trap_works(trap: Path) -> None:
    for source in (SCRIPT, "callable:trap:run"):
        with pytest.raises(ConfigError):  # their actions do not fit
            rlstack.load_policy(source, Duel(2))
    assert {"imported", "called", "written"} <= {path.name for path in trap.iterdir()}


# -- runs of strangers ---------------------------------------------------------------------------------------------


ROUTES: dict[str, tuple[dict[str, Any], str]] = {
    "agent": ({"agent": LEGACY}, SCRIPT),
    "players": ({"env": {"opponents": {"players": ["random", SCRIPT]}}}, SCRIPT),
    "judges": ({"env": {"opponents": {"evaluation": [{"player": SCRIPT}]}}}, SCRIPT),
    "expert": ({"imitation": {"expert": SCRIPT}}, SCRIPT),
    "algorithm": ({"agent": {"algorithm": "trap:Own"}}, "trap:Own"),
    "network": ({"agent": {"network": {"actor": "trap:run"}}}, "trap:run"),
    "world": ({"env": {"name": "trap:Own"}}, "trap:Own"),
    "gymnasium": ({"env": {"name": "gymnasium", "id": "trap:Own-v0"}}, "trap:Own-v0"),
    "pettingzoo": ({"env": {"name": "pettingzoo", "id": "trap:run"}}, "trap:run"),
    "snapshots": ({"env": {"opponents": {"pool": "elsewhere"}}}, "elsewhere"),
    "replay": ({"agent": {"replay": {"directory": "elsewhere"}}}, "elsewhere"),
    "server": ({"logger": {"mlflow": True, "mlflow_uri": "http://example.org"}}, "http://example.org"),
    "database": ({"logger": {"mlflow": True, "mlflow_uri": "elsewhere"}}, "elsewhere"),
    "service": ({"logger": {"wandb": "online", "wandb_entity": "strangers"}}, "online"),
    "cluster": ({"collector": {"address": "ray://example.org:1"}}, "ray://example.org:1"),
    "webhook": ({"notify": "https://example.org/hook"}, "https://example.org/hook"),
}
"""Parts of a configuration that name more than data, each under another key, and the name."""


def configuration(learner: Any, part: dict[str, Any]) -> dict[str, Any]:
    whole = {"agent": to_plain(learner.config), "env": DUEL, "total_frames": 100, "imitation": IMITATION}
    return to_plain(OmegaConf.merge(whole, part))


def strangers(write: Callable[[], Any]) -> None:
    """Lets files be written and signed by another user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allowed, "_key", lambda: b"a stranger's")
        write()


def strangers_run(folder: Path, config: dict[str, Any], learner: Any) -> Path:
    run = RunDirectory(folder / "run")

    def write() -> None:
        run.checkpoints.save({"frames": 7, "agent": learner.state_dict(), "config": config}, 7)
        run.write_config(config)

    strangers(write)
    return run.path


@pytest.mark.parametrize("route", ROUTES)
def test_no_reader_of_a_run_takes_more_than_data(route: str, trap: Path, learner: Any) -> None:
    """Tests the readers that all commands use; the commands themselves are below."""
    part, name = ROUTES[route]
    run = strangers_run(trap, configuration(learner, part), learner)
    readers: list[Callable[[], Any]] = [
        lambda: rlstack.load(run),
        lambda: rlstack.load_policy(f"rlstack:{run}", Duel(2)),
        lambda: initialise(learner, run),
        lambda: RunDirectory.open(run).read_config(),
        lambda: unfinished(RunDirectory.open(run), 100, 100),
        lambda: Pool([str(run)]).player("run", Duel(2)),
    ]
    for reader in readers:
        refused(ConfigError, f"names '{name}', which is used only if you allow it: .?allow=.{name}]", reader)
    assert untouched(trap)


COMMANDS = {
    "evaluate": ["checkpoint=run"],
    "watch": ["checkpoint=run", "show=numbers", "episodes=1"],
    "convert": ["checkpoint=run"],
    "watch rewards": ["checkpoint=run", "show=rewards"],
    "verify": ["run"],
    "train resume": ["resume=run"],
    "train init": ["init=run", "agent=ppo", "env=cartpole", "env.num_worlds=2", "device=cpu", "run_dir=new"],
    "train expert": ["imitation.expert=run", "agent=ppo", "env=cartpole", "device=cpu", "run_dir=new"],
    "league play": ["command=play", "players=[run,random]"],
    "league run": ["command=run", "players=[run,random]"],
    "league add": ["command=add", "folder=league", "players=[run]"],
}


@pytest.mark.parametrize(
    ("name", "route"),
    [
        *((name, "agent") for name in COMMANDS),
        *((name, route) for name in ("evaluate", "watch", "train resume", "verify") for route in ("players", "world")),
        ("train resume", "server"),
    ],
)
def test_no_command_takes_more_than_data_from_a_run(
    name: str, route: str, trap: Path, learner: Any, command: Any
) -> None:
    part, named = ROUTES[route]
    strangers_run(trap, configuration(learner, part), learner)
    if name == "league add":
        league(trap, "random")
    line = command(name.partition(" ")[0], *COMMANDS[name])
    assert f" names {named!r}, which is used only if you allow it: " in line and untouched(trap)


@pytest.mark.parametrize(
    ("opened", "link"),
    [
        *(("run", f"run/{link}") for link in ("evaluations", "evaluations/7", "checkpoints/old", "metrics.csv")),
        *(("lone/best.pt", f"lone/{link}") for link in ("evaluations", "exports/best_policy.onnx", "rewards")),
    ],
)
def test_results_never_go_through_links_to_elsewhere(opened: str, link: str, trap: Path, learner: Any) -> None:
    run = strangers_run(trap, configuration(learner, {}), learner)
    (run / "newest.pt").symlink_to("checkpoints/checkpoint_000000000007.pt")
    shutil.copytree(run / "checkpoints", trap / "lone").joinpath("checkpoint_000000000007.pt").rename("lone/best.pt")
    Path(link).parent.mkdir(exist_ok=True)
    assert rlstack.load(opened).frames == 7
    Path(link).symlink_to(trap / "elsewhere")
    for reader in (rlstack.load, RunDirectory.open) if opened == "run" else (rlstack.load,):
        refused(ConfigError, f" names '{trap / 'elsewhere'}', which is used only if you", reader, opened)
    assert rlstack.load(opened, allow=[str(trap / "elsewhere")]).frames == 7


def test_the_pool_of_a_checkpoint_is_read_with_the_same_care(trap: Path) -> None:
    """Opponents that joined a run are in the state of its world, not in its configuration."""
    run = RunDirectory(trap / "run")
    state = {"frames": 7, "config": {}, "env": {"pool": {"entries": [{"name": "a", "source": SCRIPT}]}}}
    strangers(lambda: run.checkpoints.save(state, 7))
    refused(ConfigError, f"names '{SCRIPT}'", unfinished, run, 100, 100)


def test_what_the_user_wrote_is_allowed(trap: Path, learner: Any, command: Any) -> None:
    run = strangers_run(trap, configuration(learner, {"env": {"name": "trap:run"}}), learner)
    line = command("evaluate", f"checkpoint={run}", "allow=[trap:run]")
    assert "neither an EnvBase class nor a function annotated to return one" in line  # the next check
    assert (trap / "imported").exists()
    refused(ConfigError, "neither an EnvBase class", rlstack.load, run, allow=["trap:run"])
    refused(ConfigError, "names 'trap:run'", rlstack.load, run, allow=["trap:other"])
    with granting({"agent": LEGACY}):
        check_named([SCRIPT, LEGACY], "file")


# -- leagues of strangers --------------------------------------------------------------------------------------------


def league(folder: Path, source: Any, **entry: Any) -> Path:
    made = League.create(folder / "league", DUEL, rating_system("elo"))
    made.join("somebody", "random")
    made.join("rival", "low")
    made.save()
    path = folder / "league" / "league.json"
    content = json.loads(path.read_text())
    content["entries"][0] |= {"source": source, **entry}
    path.write_text(json.dumps(content))
    path.with_name("manifest.json").unlink()
    return path


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"source": SCRIPT}, ["command=run", "games=1"]),
        ({"source": {"player": SCRIPT}}, ["command=list"]),
        ({"source": "random", "file": SCRIPT}, ["command=run", "games=1"]),
        ({"source": SCRIPT, "kind": "candidate", "id": "a"}, ["command=evaluate", "pool.players=[rival]"]),
        ({"source": SCRIPT, "kind": "commander", "id": "a"}, ["train", "agent=ppo", "device=cpu"]),
    ],
)
def test_no_command_takes_more_than_data_from_a_league(
    entry: dict[str, Any], words: list[str], trap: Path, command: Any
) -> None:
    league(trap, **entry)
    line = command("league", *words, "folder=league")
    assert f"'allow=[{SCRIPT}]'" in line and "league.json names" in line and untouched(trap)


def test_the_world_of_a_league_is_no_function(trap: Path) -> None:
    path = league(trap, "random")
    path.write_text(json.dumps({**json.loads(path.read_text()), "env": {"name": "trap:run"}}))
    refused(ConfigError, r"league\.json names 'trap:run'", League.open, path.parent)
    assert untouched(trap)


def test_a_report_of_hostile_files_shows_them(trap: Path, learner: Any) -> None:
    from rlstack.reporting.document import report

    strangers_run(trap, configuration(learner, ROUTES["players"][0]), learner)
    league(trap, SCRIPT)
    report(trap, None, 0.0)
    assert untouched(trap)


def test_a_league_names_a_world_of_ours_to_be_composed(trap: Path) -> None:
    path = league(trap, "random")
    (trap / "evil.yaml").write_text("name: trap:run\n")
    for name in ("rocket", str(trap / "evil"), "../../evil", ["rocket"], 1):
        path.write_text(json.dumps({"env": {"name": name}}))
        found = league_command.train_arguments(["train", f"folder={path.parent}"])
        assert found == (["env=rocket"] if name == "rocket" else []) + [f"folder={path.parent}"]


# -- the rule, and the signature -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"env": {"name": "rocket", "id": "ALE/Pong-v5"}, "run_dir": "runs/a", "lr": 1e-3}, []),
        ({"device": "cuda:0", "collector": {"device": "cuda:1", "address": "auto"}}, []),
        ({"pool": "auto"}, ["auto"]),
        ({"env": {"name": "cuda:0"}}, ["cuda:0"]),  # a module of that name would be imported
        ([["zoo:x", "rlstack:trap.run"]], ["rlstack:trap.run", "zoo:x"]),
        ({"algorithm": "legacy", "kind": "sb3", "path": "a.zip"}, ["sb3:a.zip"]),
        ({"converted_from": {"kind": "sb3", "path": "a.zip"}}, []),
        ("a:b", ["a:b"]),
    ],
)
def test_what_is_more_than_data(content: Any, names: list[str]) -> None:
    assert names_in(content) == names


def test_containers_may_hold_themselves() -> None:
    endless: list[Any] = ["a:b"]
    endless.append(endless)
    assert names_in({"x": endless}) == ["a:b"]


def test_interpolations_are_refused_and_names_may_hold_anything() -> None:
    with granting("${a}p:run"), pytest.raises(ConfigError, match="is an interpolation"):
        check_named({"env": {"name": "${a}p:run"}, "a": "tra"}, "file")
    assert allowing(["a.b:c", "it's, x:y"]) == r"allow=[a.b:c,'it\'s, x:y']"


def test_what_this_user_wrote_is_allowed_where_it_was_written(tmp_path: Path) -> None:
    here, copy, config = tmp_path / "here", tmp_path / "copy", {"agent": {"network": "mine:Net"}, "resume": None}
    for folder in (here, here / "checkpoints"):
        sign(folder, config)
    sign(here, {"pool": "/snapshots"})
    check_named([config, {"pool": "/snapshots"}], here / "config.yaml")
    shutil.copytree(here, copy)
    refused(ConfigError, r"copy/a\.pt names 'mine:Net'", check_named, config, copy / "a.pt")
    sign_copy(here, copy)
    check_named(config, copy / "checkpoints" / "a.pt")

    signed = json.loads((here / allowed.SIGNED).read_text())
    forged = (
        {**signed, "names": ["mine:Net", "trap:run"]},
        {**signed, "signature": 1},
        {**signed, "signature": "ü"},
        [],
    )
    for content in forged:
        (here / allowed.SIGNED).write_text(json.dumps(content))
        refused(ConfigError, "names 'mine:Net'", check_named, config, here / "a.pt")
    strangers(lambda: sign(here, {"network": "trap:run"}))
    refused(ConfigError, "names 'trap:run'", check_named, "trap:run", here / "a.pt")


def test_only_the_user_reads_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    new_key, file = allowed._key.__wrapped__, tmp_path / "rlstack" / "key"
    key = new_key()
    assert len(key) == 32 and file.read_bytes() == key == new_key()
    assert file.stat().st_mode & 0o777 == 0o600 and list(file.parent.iterdir()) == [file]
    file.chmod(0o644)
    assert new_key() not in (key, new_key())  # others may have read it
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    assert len(new_key()) == 32


def test_the_zoo_is_data() -> None:
    from rlstack.runs.loading import read_agent
    from rlstack.runs.run_directory import published_file, zoo_names

    for name in zoo_names():
        read_agent(published_file(name))
