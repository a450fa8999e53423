"""``rlstack <command>``: dispatching, lists, help, completion, and mistakes that are told before torch is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

import rlstack
from rlstack import help
from rlstack.config import groups
from rlstack.envs.registry import ENTRY_POINTS
from tests.agents.recall import Recall
from tests.conftest import REPO, Command
from tests.exhaustive import exhaustive
from tests.small_run import composed, python


@exhaustive("closed", [">&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_error(closed: str) -> None:
    line = f"{sys.executable} -m rlstack {closed}"
    ended = subprocess.run(["sh", "-c", line], cwd=REPO, stderr=subprocess.PIPE)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], [f"\n  {name} " for name in (*help.COMMANDS, *help.LISTS)]),
        (["--help"], ["\n  train "]),
        (["agents", "--help"], ["rlstack agents: lists the agents"]),
        (["agents", "--config-dir", "mine"], ["  small ", "Mine.", "  ppo ", "PPO (Schulman et al. 2017)."]),
        (["agents", "small", "--config-dir=mine"], ["small.yaml", "lr: 1.0", "agent/ppo.yaml", "discount"]),
        (["agents", "ppo"], ["gamma: ", "clip: ", "of the probability ratio"]),
        (["agents", "mine:Brave"], ["courage: float = 0.5  # how brave it is", "clip: "]),
        (["envs"], ["harbour", "  rocket ", "Rocket: car soccer"]),
        (["envs", "env=rocket"], ["\nblue: 1"]),
        (["envs", "late", "--config-dir=mine"], ["delay: 9", "\n  env.truncated=false\n"]),
        (["envs", "tests.agents.recall:Recall"], ["Shows -1 or 1, see World.", "\n  env.dtype=float32"]),
    ],
)
def test_lists_show_what_there_is(
    arguments: list[str], shown: list[str], rlstack_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("agent", "env"):
        (tmp_path / "mine" / group).mkdir(parents=True)
    (tmp_path / "mine/agent/small.yaml").write_text("# Mine.\ndefaults: [ppo, _self_]\nname: small\nlr: 1.0\n")
    (tmp_path / "mine/env/late.yaml").write_text("# Later.\nname: tests.agents.recall:Recall\ndelay: 9\n")
    code = ["from dataclasses import dataclass", "from rlstack.agents.ppo import PPO", "@dataclass"]
    code += ["class BraveConfig(PPO.Config):", "    courage: float = 0.5  # how brave it is"]
    (tmp_path / "mine.py").write_text("\n".join([*code, "class Brave(PPO):", "    Config = BraveConfig"]))
    entry = SimpleNamespace(name="harbour", value="harbour.env:Harbour")
    monkeypatch.setattr(groups.metadata, "entry_points", lambda group: [entry] if group == ENTRY_POINTS else [])
    monkeypatch.setattr(Recall, "__doc__", "Shows ``-1`` or ``1``, see :class:`World`.")
    monkeypatch.syspath_prepend(tmp_path)
    text = rlstack_command(*arguments).out
    assert not [part for part in shown if part not in text] and "env.seed" not in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["trian"], ["trian", "'train'", "evaluate"]),
        (["agents", "ppoo"], ["agent", "'ppo'", "a2c"]),
        (["envs", "marinav"], ["env", "'marinenav'"]),
        (["envs", "tests.agents.recall:Recal"], ["env", "tests.agents.recall", "'Recal'"]),
        (["agents", "ppo", "sac"], ["ppo sac", "one name"]),
        (["train", "ppo"], ["ppo", "key=value", "'agent=ppo'"]),
        (["convert", "env.num_robts=3", "checkpoint=zoo:marinenav"], ["env"]),
        (["evaluate", "checkpont=x"], ["checkpont", "'checkpoint'"]),
        (["league", "rnak"], ["command", "'rank'"]),
        (["watch", "which=lattest"], ["which", "'latest'"]),
        *(([former], [now]) for former, now in rlstack.FORMER.items()),
    ],
)
def test_a_mistake_is_one_line_that_names_what_is_meant(
    arguments: list[str], named: list[str], rlstack_command: Command
) -> None:
    error = rlstack_command(*arguments).refused()
    assert not [part for part in named if part not in error], error


@pytest.mark.parametrize("name", [name for name in rlstack.FORMER if name != "runs"])  # a package
def test_former_functions_name_the_new_ones(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'{name}', is now: {rlstack.FORMER[name]}"):
        getattr(rlstack, name)
    if name == "compare":
        ended = python("-m", f"rlstack.{name}")
        assert (ended.returncode, ended.stderr) == (2, f"error: rlstack.{name} is now: {rlstack.FORMER[name]}\n")


@pytest.mark.parametrize("name", [*help.COMMANDS, "league_train"])
def test_help_is_the_file_of_the_command(name: str, rlstack_command: Command) -> None:
    words = ["league", "train", "-h"] if name == "league_train" else [name, "agent=nope", "--help"]
    ended = rlstack_command(*words)
    lines = ended.out.splitlines()
    file = (REPO / "conf" / f"{name}.yaml").read_text().splitlines()
    assert lines[0].startswith(f"rlstack {name.replace('_', ' ')}") and "defaults:" not in lines and len(lines) < 200
    assert ended.status == 0 and file[0] in lines and file[-1] in lines
    if name == "train":
        assert "agent=<name> (default: acqn; every option of one: rlstack agents <name>):" in lines


def test_every_shipped_option_of_a_group_says_what_it_is_in_one_line() -> None:
    for group in ("agent", "env", "logger", "curriculum"):
        for name, path in help.option_files(group).items():
            line = help.headline(path)
            ended = group != "agent" or line.endswith(".")
            assert 10 < len(line) <= 130 and ended and not line.endswith((" and", ",")), (group, name, line)


@pytest.mark.slow
def test_completion_works_in_bash(tmp_path: Path) -> None:
    script = tmp_path / "rlstack"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m rlstack "$@"\n')
    script.chmod(0o755)
    (tmp_path / "my_conf" / "agent").mkdir(parents=True)
    (tmp_path / "my_conf" / "agent" / "special.yaml").write_text("name: special\n")
    program = r"""
        eval "$(rlstack completion)"
        complete -p rlstack
        try() { COMP_LINE=$1 COMP_POINT=${#1} COMP_CWORD=$2; hydra_bash_completion
                printf '<%s>' "${COMPREPLY[@]}"; echo; }
        try 'rlstack wat' 1
        try 'rlstack agents td3' 2
        try 'rlstack train agent=iqn_p' 2
        try 'rlstack train agent=iqn agent.ga' 3
        try 'rlstack train --config-dir my_conf agent=spe' 4
        try 'rlstack evaluate whi' 2
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(REPO)}
    done = subprocess.run(
        ["bash", "--norc", "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    first, *answers = done.stdout.splitlines()
    assert done.stderr == "" and first.endswith(" rlstack")
    assert answers == [
        *("<watch>", "<td3><td3_bc>", "<agent=iqn_published>", "<agent.gamma=>", "<agent=special>", "<which=>")
    ]


# -- mistakes that can be found without torch are reported before its import, which takes seconds ----------------------


SCRIPT = """
import io, json, sys
from contextlib import redirect_stderr
from rlstack.__main__ import main
told = {}
for words in json.loads(sys.argv[1]):
    sys.argv, errors = ["rlstack", *words], io.StringIO()
    try:
        with redirect_stderr(errors):
            main()
        status = 0
    except SystemExit as end:
        status = end.code
    imported = [name for name in ("torch", "torchrl", "tensordict") if name in sys.modules]
    told[" ".join(words[1:])] = [status, errors.getvalue(), imported]
print(json.dumps(told))
"""
MISTAKES = {
    "agent.algorithm=[1]": "agent.algorithm name [1]",
    "env=ALE/Pong-v5": "env 'ALE/Pong-v5' arena env=gymnasium",
    "agent=null": "agent 'null'",
    "curriculum=[1]": "curriculum '[1]' arena",
    "agent=ppo debug=true collector.steps_per_batch=abc": "collector.steps_per_batch whole",
    "agent=dqn resume=complete": "agent.name resuming total_frames",
    "experiment=reference/cartpole_dqn resume=complete": "agent.name resuming",
    "env.name={a: 1}": "env.name name {'a':",
    "env.num_worlds=none": "env.num_worlds whole",
    "env.perception_noise=flase": "env.perception_noise true false 'flase'",
    "env.dtype={}": "env.dtype text {}",
    "env.action_repeat=1000000000": "env.action_repeat 1000000000 10000]",
    "total_frames=1e300": "total_frames outside",
    "threads=100000": "threads 100000",
    "device=meta": "device 'meta' cuda:<k>",
    "run_dir=''": "run_dir ''",
    "resume=[1]": "resume text [1]",
    "init=complte": "init complte 'complete'",
    "resume=nowhere": "nowhere run",
    "experiment=styl1": "experiment 'styl1' 'arena/style1'",
    "-m env=mine:Pole,cartpole": "env 'mine:Pole' env=mine:Pole",
    "--total-frames=1e5": "--total-frames key=value",
    "--cofnig-dir=mine": "--cofnig-dir '--config-dir'",
    "gama=0.9": "gama 'agent.gamma'",
    "agent ppo": "agent: 'agent=<name>'",
    "resume=complete": "resume complete 1,000 total_frames",
    "resume=complete total_frames=2000 until=1000": "resume 1,000 until",
}
OF_AGENTS = {
    "agent.hidden=[abc]": "agent.hidden[0] whole 'abc'",
    "agent.epsilon={}": "agent.epsilon.kind missing 'linear'",
    "agent.noise_scale={kind: linear, start: 99, end: 0}": "agent.noise_scale 99.0 10]",
    "seed=1 --config-dir mine agent=odd agent.lrr=1": "agent.lrr",
}
"""What is typed, and the words that the error must have; an agent's options are checked after torch is imported."""


def told(mistakes: Iterable[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, list[str]]]:
    """Returns for each mistake the exit status, the output, and the modules imported by then."""
    folder = tmp_path_factory.mktemp("told")
    (folder / "mine" / "agent").mkdir(parents=True)
    (folder / "mine" / "agent" / "odd.yaml").write_text("defaults: [acqn, _self_]\nname: odd\n")
    (folder / "complete" / "checkpoints").mkdir(parents=True)
    (folder / "complete" / "config.yaml").write_text(json.dumps({**composed(), "total_frames": 1000}))
    (folder / "complete" / "evaluations").mkdir()
    (folder / "complete" / "evaluations" / "000000001000.json").write_text("{}")
    with zipfile.ZipFile(folder / "complete" / "checkpoints" / "checkpoint_000000001000.pt", "w") as archive:
        archive.writestr("data.pkl", b"")
    commands = [["train", *([mistake] if "{" in mistake else mistake.split(" "))] for mistake in mistakes]
    result = python("-c", SCRIPT, json.dumps(commands), cwd=folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


ALL = MISTAKES | OF_AGENTS
QUICK = ["env.num_worlds=none", "resume=complete"]


@exhaustive("mistakes", [QUICK, [mistake for mistake in ALL if mistake not in QUICK]], ids=["some", "others"])
def test_mistakes_are_told_in_one_line_without_torch(
    mistakes: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The slow cases check by command what tests of configurations check without it."""
    found = told(mistakes, tmp_path_factory)
    assert list(found) == mistakes
    for mistake, (status, errors, imported) in found.items():
        assert errors.startswith("error: ") and errors.count("\n") == 1, errors
        assert not [part for part in ALL[mistake].split() if part not in errors], errors
        assert status == 2 and (mistake in OF_AGENTS or not imported), mistake


def test_the_options_read_from_a_file_are_those_of_its_class() -> None:
    """Hydra gets them without importing the file."""
    from rlstack.agents import agent_class
    from rlstack.config.options import declared, defaults_of

    files = groups.option_files("agent")
    for name in files:
        algorithm = next(content["algorithm"] for _, content in groups.inherited(name, files) if "algorithm" in content)
        config = agent_class(algorithm).Config
        assert declared(config.__name__) == defaults_of(config)


def test_the_script_is_declared() -> None:
    assert '[project.scripts]\nrlstack = "rlstack.__main__:main"\n' in (REPO / "pyproject.toml").read_text()
