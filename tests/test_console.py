"""``rlstack <command>``: dispatching, lists, help, former commands, and completion in a real bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rlstack
from rlstack import __main__ as console
from rlstack import help
from rlstack.config import groups
from rlstack.envs.registry import ENTRY_POINTS
from tests.agents.recall import Recall

REPOSITORY = Path(__file__).parents[1]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["rlstack", *arguments])
    console.main()


def test_the_script_is_declared() -> None:
    assert '[project.scripts]\nrlstack = "rlstack.__main__:main"\n' in (REPOSITORY / "pyproject.toml").read_text()


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_error(closed: str) -> None:
    line = f"{sys.executable} -m rlstack {closed}"
    ended = subprocess.run(["sh", "-c", line], cwd=REPOSITORY, stderr=subprocess.PIPE)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_command_gets_the_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    module = SimpleNamespace(main=lambda: seen.append(list(sys.argv)))
    monkeypatch.setattr(console.importlib, "import_module", lambda name: seen.append(name) or module)
    call(monkeypatch, "league", "run", "env=rocket")
    assert seen == ["rlstack.league", ["rlstack league", "run", "env=rocket"]]


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
    arguments: list[str], shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
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
    monkeypatch.chdir(tmp_path)
    call(monkeypatch, *arguments)
    text = capsys.readouterr().out
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
        (["report", "nowhere"], ["folder", "nowhere"]),
        (["report", "a", "output=page.pdf"], ["output", "page.pdf", "report.html"]),
        (["runs"], ["rlstack report"]),
        (["compare", "a", "b"], ["rlstack report"]),
        (["zoo"], ["rlstack demo list"]),
        (["rewards"], ["rlstack watch show=rewards"]),
        (["export"], ["rlstack convert"]),
    ],
)
def test_a_mistake_is_one_line_that_names_what_is_meant(
    arguments: list[str], named: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, *arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1
    assert not [part for part in named if part not in error], error


@pytest.mark.parametrize("name", [name for name in rlstack.FORMER if name != "runs"])  # a package
def test_former_functions_name_the_new_ones(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'{name}', is now: {rlstack.FORMER[name]}"):
        getattr(rlstack, name)
    if name == "compare":
        line = [sys.executable, "-m", f"rlstack.{name}"]
        ended = subprocess.run(line, cwd=REPOSITORY, capture_output=True, text=True)
        assert (ended.returncode, ended.stderr) == (2, f"error: rlstack.{name} is now: {rlstack.FORMER[name]}\n")


@pytest.mark.parametrize("name", [*help.COMMANDS, "league_train"])
def test_help_is_the_file_of_the_command(name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    words = ["league", "train", "-h"] if name == "league_train" else [name, "agent=nope", "--help"]
    with pytest.raises(SystemExit, match=r"^0$"):
        call(monkeypatch, *words)
    lines = capsys.readouterr().out.splitlines()
    file = (REPOSITORY / "conf" / f"{name}.yaml").read_text().splitlines()
    assert lines[0].startswith(f"rlstack {name.replace('_', ' ')}") and "defaults:" not in lines and len(lines) < 200
    assert file[0] in lines and file[-1] in lines
    if name == "train":
        assert "agent=<name> (default: acqn; every option of one: rlstack agents <name>):" in lines


def test_every_shipped_option_of_a_group_says_what_it_is_in_one_line() -> None:
    for group in ("agent", "env", "logger", "curriculum"):
        for name, path in help.option_files(group).items():
            line = help.headline(path)
            assert 10 < len(line) <= 130 and not line.endswith((" and", ",")), (group, name, line)


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
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        ["bash", "--norc", "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    first, *answers = done.stdout.splitlines()
    assert done.stderr == "" and first.endswith(" rlstack")
    assert answers == [
        *("<watch>", "<td3><td3_bc>", "<agent=iqn_published>", "<agent.gamma=>", "<agent=special>", "<which=>")
    ]
