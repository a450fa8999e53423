"""``rlstack <command>``: dispatching, lists, help, and completion in a real bash."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlstack import __main__ as console
from rlstack import help
from rlstack.help import candidates
from tests.agents.recall import Recall

REPOSITORY = Path(__file__).parents[1]
THERE = [name for name in help.COMMANDS if find_spec(f"rlstack.{name}")]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["rlstack", *arguments])
    console.main()


def test_the_script_is_declared() -> None:
    assert '[project.scripts]\nrlstack = "rlstack.__main__:main"\n' in (REPOSITORY / "pyproject.toml").read_text()
    assert callable(console.main)


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


@pytest.mark.parametrize("arguments", [[], ["--help"], ["help"]])
def test_the_overview(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    call(monkeypatch, *arguments)
    shown = capsys.readouterr().out
    for name in (*help.COMMANDS, *help.LISTS):
        assert f"\n  {name} " in shown
    call(monkeypatch, "agents", "--help")
    assert capsys.readouterr().out.startswith("rlstack agents: lists the agents")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "trian: no such command, did you mean 'train'? available: train, evaluate, watch"),
        (["agents", "ppoo"], "agent: no option 'ppoo', did you mean 'ppo'? available: a2c"),
        (["envs", "marinav"], "env: no option 'marinav', did you mean 'marinenav'?"),
        (
            ["envs", "tests.agents.recall:Recal"],
            "env: tests.agents.recall:Recal: tests.agents.recall has no 'Recal'; it has ",
        ),
        (["agents", "ppo", "sac"], "ppo sac: one name at most, such as: rlstack agents ppo"),
        (["train", "ppo"], "ppo: expected key=value, did you mean 'agent=ppo'? see --help"),
        (["train", "agent.lrr=1"], "agent.lrr: unknown key, did you mean 'lr_actor' or 'lr_critic'?"),
        (
            ["export", "env.num_robots=3"],
            "env: none is chosen yet; choose one with env=<name>: arena, cartpole, echelon",
        ),
        (["evaluate", "checkpont=x"], "checkpont: unknown key, did you mean 'checkpoint'?"),
        (["league", "rnak"], "command: no option 'rnak', did you mean 'rank'?"),
        (["watch", "which=lattest"], "which: did you mean 'latest'?"),
    ],
)
def test_mistakes_are_one_line_with_the_nearest_name(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, *arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith(f"error: {message}") and error.count("\n") == 1


def test_agents_and_envs_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "mine.yaml").write_text("# My own.\ndefaults: [ppo, _self_]\nlr: 1.0\n")
    call(monkeypatch, "agents", "--config-dir", str(tmp_path))
    shown = capsys.readouterr().out
    assert "  mine               My own.\n" in shown and "  ppo                PPO (Schulman et al. 2017)." in shown
    call(monkeypatch, "agents", f"--config-dir={tmp_path}", "mine")
    shown = capsys.readouterr().out
    assert "agent.lr=1.0" in shown and "discount per decision" in shown and "optimisation:" in shown
    entry = SimpleNamespace(name="harbour", value="harbour.env:Harbour")
    monkeypatch.setattr(help.metadata, "entry_points", lambda group: [entry] if group == "rlstack.envs" else [])
    call(monkeypatch, "envs")
    shown = capsys.readouterr().out
    assert "harbour" in shown and "  rocket               Rocket: car soccer" in shown
    call(monkeypatch, "envs", "env=rocket")
    shown = capsys.readouterr().out
    assert "other defaults (conf/recipe) with: agent=ppo" in shown and "env.blue=1" in shown


def test_markup_of_a_docstring_is_not_shown(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(Recall, "__doc__", "Shows ``-1`` or ``1``, see :class:`~rlstack.envs.world.World`.")
    call(monkeypatch, "envs", "tests.agents.recall:Recall")
    assert capsys.readouterr().out.splitlines()[1] == "Shows -1 or 1, see rlstack.envs.world.World."


def test_the_options_of_a_world_of_the_user_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    call(monkeypatch, "envs", "tests.agents.recall:Recall")
    shown = capsys.readouterr().out
    assert shown.startswith("env=tests.agents.recall:Recall\n")
    assert "\n  env.num_worlds=" in shown and "\n  env.dtype=float32\n" in shown and "env.seed" not in shown


def test_the_options_of_an_algorithm_of_the_user_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "env").mkdir()
    (tmp_path / "agent" / "mine.yaml").write_text("# Braver.\nname: mine\nalgorithm: mine:Brave\ncourage: 0.7\n")
    (tmp_path / "env" / "late.yaml").write_text("# Later.\nname: tests.agents.recall:Recall\ndelay: 9\n")
    code = ["from dataclasses import dataclass", "from rlstack.agents.ppo import PPO, PPOConfig"]
    code += ["@dataclass", "class BraveConfig(PPOConfig):", "    courage: float = 0.5  # how brave it is"]
    code += ["class Brave(PPO):", "    'Is brave.'", "    Config = BraveConfig"]
    (tmp_path / "mine.py").write_text("\n".join(code))
    monkeypatch.syspath_prepend(tmp_path)
    for arguments, head, default in (
        (["agents", "mine:Brave"], "agent=mine:Brave\nIs brave.\n", "agent.courage=0.5 "),
        (["agents", "mine", f"--config-dir={tmp_path}"], "agent=mine\nBraver.\n", "agent.courage=0.7 "),
    ):
        call(monkeypatch, *arguments)
        shown = capsys.readouterr().out
        assert shown.startswith(head) and "\n  agent.lr=" in shown
        (line,) = (line for line in shown.splitlines() if "courage" in line)
        assert default in line and line.endswith("how brave it is")
    call(monkeypatch, "envs", "late", f"--config-dir={tmp_path}")
    shown = capsys.readouterr().out
    assert "\n  env.delay=9\n" in shown and "\n  env.truncated=false\n" in shown


def test_worlds_of_installed_packages_are_those_of_the_registry() -> None:
    from rlstack.envs.registry import ENTRY_POINTS

    assert help.INSTALLED == ENTRY_POINTS


@pytest.mark.parametrize("name", [*THERE, "league_train"])
def test_help_is_short_and_says_what_matters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    shown = help.command_help(name)
    lines = shown.splitlines()
    assert (
        lines[0].startswith(f"rlstack {name.replace('_', ' ')}") and len(lines) < 200
    )  # train lists every agent and world
    assert "examples:\n  rlstack " in shown and "\noptions:\n" in shown
    assert max(len(line) for line in lines if not line.startswith("  rlstack ")) <= 90


def test_a_sentence_of_a_file_is_wrapped_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "101")
    assert "(Agarwal et\nal. 2021), and whether" in help.command_help("compare")


def test_help_of_a_command_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        call(monkeypatch, "train", "env=arena", "--help")
    shown = capsys.readouterr().out
    assert "  marinenav            MarineNav for training" in shown and "agent=<name>" in shown
    assert "hydra=<name>" not in shown
    with pytest.raises(SystemExit, match=r"^0$"):
        call(monkeypatch, "league", "train", "-h")
    assert capsys.readouterr().out.startswith("rlstack league train\n")


# -- completion --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rlstack tr", ["train "]),
        ("rlstack league ra", ["rank ", "ratings.options=", "ratings.system="]),
        ("rlstack agents td", ["td3 ", "td3_bc "]),
        ("rlstack train agent=pp", ["agent=ppo ", "agent=ppo_published "]),
        ("rlstack train agent=ppo agent.cl", ["agent.clip=", "agent.clip_value="]),
        ("rlstack train agent.cl", []),  # acqn, the default, has none
        ("rlstack train agent=ppo agent.activation=t", ["agent.activation=tanh "]),
        ("rlstack train debug=", ["debug=false ", "debug=true "]),
        ("rlstack diagnose experiment=rocket/r", ["experiment=rocket/rules "]),
        ("rlstack evaluate which=", ["which=best ", "which=latest "]),
        ("rlstack evaluate checkpoint=ru", []),  # files, by bash
        ("rlstack nope ", []),
        ("rlstack train agent=nope agent.l", []),
    ],
)
def test_candidates(line: str, expected: list[str]) -> None:
    assert candidates(line) == expected


def test_words_of_commands_are_the_commands_own() -> None:
    from rlstack import league

    assert set(help._WORDS["league"]) == {*league.COMMANDS, "train"}
    assert help._WORDS["convert"] == ["arena", "marinenav", "sb3"]


@pytest.mark.slow
def test_it_works_in_bash(tmp_path: Path) -> None:
    """It works with = among the characters that break words, the default, and without."""
    script = tmp_path / "rlstack"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m rlstack "$@"\n')
    script.chmod(0o755)
    (tmp_path / "my_conf" / "agent").mkdir(parents=True)
    (tmp_path / "my_conf" / "agent" / "special.yaml").write_text("name: special\n")
    program = r"""
        eval "$(rlstack completion)"
        complete -p rlstack
        try() { COMP_LINE=$1 COMP_POINT=${#1}; _rlstack rlstack "$2" ""; printf '<%s>' "${COMPREPLY[@]}"; echo; }
        try 'rlstack train agent=iqn' iqn
        try 'rlstack train agent=iqn' agent=iqn
        try 'rlstack train --config-dir my_conf agent=spe' spe
        try 'rlstack wat' wat
        COMP_LINE='rlstack train agent=iqn agent.ga and what follows' COMP_POINT=32; _rlstack rlstack agent.ga ""
        printf '<%s>' "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        ["bash", "--norc", "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o default -o nospace -F _rlstack rlstack",
        "<iqn ><iqn_published >",
        "<agent=iqn ><agent=iqn_published >",
        "<special >",
        "<watch >",
        "<agent.gamma=>",
    ]
