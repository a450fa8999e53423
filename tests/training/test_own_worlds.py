"""A user's own world: its constructor lists its options, and nothing in the working folder hides our modules."""

from __future__ import annotations

import os
import re
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


LOST = "cannot be imported: No module named {!r}; run the command in the folder of {}, or put that folder on PYTHONPATH"


@exhaustive(
    ("given", "message"),
    [
        ([f"env={NAME}", "env.lenth=3"], "env.lenth: unknown key, did you mean 'length'?"),
        ([f"env={NAME}", "env.length=3", "agent.lrr=1"], "agent.lrr: unknown key"),
        (["env=lost:World"], f"env.name: lost:World {LOST.format('lost', 'lost.py')}"),
        (["env=no.module:World"], f"env.name: no.module:World {LOST.format('no', 'no')}"),
        ([f"env={NAME}", "total_frames=null"], "total_frames: missing"),
    ],
    quick=3,
)
def test_the_command_takes_a_name_alone(given: list[str], message: str, rlstack_command: Command) -> None:
    assert rlstack_command("train", "agent=ppo", "total_frames=100", *given).refused().startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("options", "why", "script"),
    [
        ({"name": "broken:World"}, "SyntaxError: invalid syntax (broken.py, line 2)", "\ndef f(:\n"),
        ({"name": "broken:World"}, "ModuleNotFoundError: No module named 'gone' (broken.py, line 1)", "import gone\n"),
        (
            {"name": "gymnasium", "id": "broken:World"},
            "RuntimeError: a b (broken.py, line 1)",
            "raise RuntimeError('a\\nb')",
        ),
        ({"name": "broken:World"}, "SystemExit: 3 (broken.py, line 1)", "raise SystemExit(3)\n"),
    ],
)
def test_a_users_module_with_a_mistake_is_one_line_with_its_place(
    options: dict[str, Any], why: str, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    named = "env: id" if "id" in options else "env.name"
    refused(ConfigError, f"^{re.escape(f'{named}: broken:World cannot be imported: {why}')}$", build_world, options)


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
