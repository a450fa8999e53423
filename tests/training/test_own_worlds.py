"""A user's own world: its constructor lists its options, and nothing in the working folder hides our modules."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchrl.envs import EnvBase

from rlstack.command import HydraCommand
from rlstack.config import ConfigError, groups
from rlstack.envs.cartpole.env import CartPole
from rlstack.envs.foundation.packages import imported
from rlstack.runs.worlds import build_world, with_defaults
from rlstack.train import _completed
from rlstack.training.run import debugged
from tests.conftest import Command
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import composed, python

NAME = f"{__name__}:Harbour"


class Wind:
    """A type that no YAML value has."""


class Harbour(CartPole):
    """A world with options of every kind."""

    def __init__(
        self,
        num_worlds: int = 12,
        length: int = 30,
        tides: list[float] | None = None,
        wind: Wind | None = None,
        shape: Any = Wind,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        seed: int | None = 0,
    ) -> None:
        super().__init__(num_worlds=num_worlds, max_steps=length, dtype=dtype, device=device, seed=seed)
        self.told = tides, wind


def test_all_options_come_from_the_constructor() -> None:
    whole = with_defaults({"name": NAME, "length": 5})
    assert whole == {"name": NAME, "num_worlds": 12, "length": 5, "tides": None, "wind": None, "dtype": "float64"}
    env: Any = build_world({**whole, "tides": [1], "wind": "north"}, num_worlds=2)
    assert isinstance(env, Harbour) and env.told == ([1.0], "north") and env.float_dtype == torch.float64
    assert with_defaults({"name": "cartpole", "num_worlds": 3}) == {"name": "cartpole", "num_worlds": 3}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"lenth": 3}, "env.lenth: unknown key, did you mean 'length'. allowed: action_repeat, .*length, num_worlds"),
        ({"length": "x"}, r"env.length: expected a whole number such as 64 or 1e6, got 'x' \(str\)"),
        ({"tides": [1, "high"]}, r"env.tides\[1\]: expected a number"),
        ({"dtype": "int8"}, "env.dtype: 'int8' is unknown, allowed: float32, float64"),
    ],
)
def test_mistakes_are_one_line(option: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, with_defaults, {"name": NAME, **option})


def test_a_world_of_another_layout_is_shown_its_door() -> None:
    message = r"shows no observation, but th, thdot, params; env=torchrl env.id=torchrl.envs:P"
    refused(ConfigError, message, build_world, {"name": "torchrl.envs:PendulumEnv"})


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (["env=mine:World", "env.size=3"], ["env=own", "++env.name=mine:World", "++env.size=3"]),
        (["env=harbour", "env.size={a: 1}"], ["env=own", "++env.name=harbour", "++env.size=null", "++env.size={a: 1}"]),
        (["env=marinenav", "seed=1"], ["env=marinenav", "seed=1"]),
        (["env=nosuch", "kwargs.a=3"], ["env=nosuch", "kwargs.a=3"]),
    ],
)
def test_command_lines_of_own_worlds(given: list[str], taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups.metadata, "entry_points", lambda group: [SimpleNamespace(name="harbour", value="a:B")])
    assert HydraCommand("train")._for_hydra(["--config-dir", "x", *given]) == ["--config-dir", "x", *taken]


def test_a_debugged_run_of_an_own_world_is_small() -> None:
    """No YAML file states its size."""

    plain = composed("env=own", f"env.name={NAME}", "agent=ppo", "debug=true")
    assert debugged(_completed(plain))["env"]["num_worlds"] == 8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([f"env={NAME}", "env.lenth=3"], "env.lenth: unknown key, did you mean 'length'?"),
        ([f"env={NAME}", "env.length=3", "agent.lrr=1"], "agent.lrr: unknown key"),
        ([f"env={NAME}", "total_frames=null"], "total_frames: missing"),
        *(
            (
                [f"env={name}"],
                f"env.name: {name} cannot be imported: No module named {missing!r}; run the command in "
                f"the folder of {folder}, or put that folder on PYTHONPATH",
            )
            for name, missing, folder in (("lost:World", "lost", "lost.py"), ("no.module:World", "no", "no"))
        ),
    ],
)
def test_the_command_takes_a_name_alone(given: list[str], message: str, rlstack_command: Command) -> None:
    assert rlstack_command("train", "agent=ppo", "total_frames=100", *given).refused().startswith(f"error: {message}")


SCRIPTS = [
    ("SyntaxError: invalid syntax (broken.py, line 2)", "\ndef f(:\n"),
    (
        "ModuleNotFoundError: No module named 'no_such_package' (broken.py, line 2)",
        "\nimport no_such_package\n",
    ),
    ("RuntimeError: a b (broken.py, line 3)", "\n\nraise RuntimeError('a\\nb')\n"),
    ("SystemExit: 3 (broken.py, line 1)", "raise SystemExit(3)\n"),
]


@pytest.mark.parametrize(
    ("given", "told", "why", "script"),
    [
        ("env=broken:World", "env.name: broken:World", *SCRIPTS[0]),
        ("agent=broken:Agent", "agent.algorithm: broken:Agent", *SCRIPTS[1]),
        ("env=gymnasium env.id=broken:World", "env: id: broken:World", *SCRIPTS[2]),
        ("env=broken:World", "env.name: broken:World", *SCRIPTS[3]),
    ],
)
def test_a_users_module_with_a_mistake_is_one_line_with_its_place(
    given: str, told: str, why: str, script: str, rlstack_command: Command, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(script)
    ended = rlstack_command("train", "total_frames=100_000", *given.split())
    assert (ended.status, ended.err) == (2, f"error: {told} cannot be imported: {why}\n")


# -- the working folder ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "after"), [(["/bin", "lib"], ["/bin", "lib", "HERE"]), (["/bin", "HERE"], ["/bin", "HERE"])]
)
def test_the_working_folder_comes_last(
    path: list[str], after: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = {"HERE": os.getcwd()}
    monkeypatch.setattr(sys, "path", [here.get(entry, entry) for entry in path])
    refused(ValueError, "no_such_module", imported, "no_such_module")
    assert sys.path == [here.get(entry, entry) for entry in after]


@exhaustive(
    ("words", "told"),
    [(["train", "sed=1"], "sed: unknown key"), (["evaluate", "checkpoint=none"], "none does not exist")],
)
def test_nothing_in_the_working_folder_is_imported_before_the_user_names_it(
    words: list[str], told: str, tmp_path: Path
) -> None:
    """It may be the folder of a stranger's run, with plugins for Hydra, and for torch, which the second one imports."""
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "trap.py").write_text("open('sprung', 'w')\n")
    (tmp_path / "trap-1.dist-info").mkdir()
    (tmp_path / "trap-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: trap\nVersion: 1\n")
    (tmp_path / "trap-1.dist-info" / "entry_points.txt").write_text("[torch.backends]\ntrap = trap:x\n")
    (tmp_path / "trap.py").write_text("open('sprung', 'w')\n")
    shown = python("-m", "rlstack", *words, cwd=tmp_path)
    assert told in shown.stderr and not (tmp_path / "sprung").exists()


@pytest.mark.slow
def test_a_package_of_the_users_may_be_called_envs(tmp_path: Path) -> None:
    """Wherever it stands on the path; the repository's own folder ``envs`` is importable as ``rlstack.envs`` alone."""
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "__init__.py").write_text("")
    (tmp_path / "envs" / "harbour.py").write_text("from rlstack.envs.cartpole.env import CartPole as Harbour\n")
    (tmp_path / "conf").mkdir()
    shown = python("-m", "rlstack", "envs", "envs.harbour:Harbour", cwd=tmp_path, PYTHONPATH="")
    assert shown.returncode == 0 and "env.num_worlds" in shown.stdout, shown.stderr


def factory(num_worlds: int = 3) -> EnvBase:
    """Functions have options as well."""
    return CartPole(num_worlds=num_worlds)


def test_functions_have_options_too() -> None:
    assert with_defaults({"name": f"{__name__}:factory"}) == {"name": f"{__name__}:factory", "num_worlds": 3}
