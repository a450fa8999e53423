"""The command line as a user runs it: in a separate process, in an empty working directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlstack.command import _parted
from rlstack.config.errors import exit_in_one_line
from tests.exhaustive import exhaustive

REPOSITORY = Path(__file__).parents[2]

APP = """
import pathlib, sys
from rlstack import command, help
from rlstack.config import ConfigError, groups
groups.conf_dir = command.conf_dir = help.conf_dir = lambda: pathlib.Path(__file__).parent / "conf"
def run(cfg):
    print("ran", cfg.agent.lr, cfg.seed)
    if cfg.seed == 13:
        raise ConfigError("agent.lr: not\\ntoday")
    if cfg.seed == 14:
        raise ZeroDivisionError("a bug")
    if cfg.seed == 15:
        raise KeyboardInterrupt
    if cfg.seed == 16:
        cfg.agent.entropy
main = command.HydraCommand("train").line(run)
if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("app")
    (root / "conf" / "agent").mkdir(parents=True)
    (root / "app.py").write_text(APP)
    quiet = (REPOSITORY / "conf" / "hydra_quiet.yaml").read_text()
    (root / "conf" / "hydra_quiet.yaml").write_text(quiet)
    (root / "conf" / "train.yaml").write_text("defaults: [hydra_quiet, {agent: sac}, _self_]\nseed: 1\n")
    (root / "conf" / "agent" / "sac.yaml").write_text("lr: 1e-3\ngamma: 0.9\n")
    (root / "conf" / "agent" / "td3.yaml").write_text("lr: [1\n")
    (root / "more" / "agent").mkdir(parents=True)
    (root / "more" / "agent" / "mine.yaml").write_text("lr: 5.0\n")
    return root


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "cwd").mkdir()
    return tmp_path / "cwd"


BUG = "ZeroDivisionError: a bug"


@exhaustive(
    ("arguments", "status", "output", "errors"),
    [
        (["seed=2"], 0, "ran 0.001 2\n", ""),
        (["-m", "seed=1,2"], 0, "ran 0.001 1\nran 0.001 2\n", ""),
        (["--config-dir", "MORE", "agent=mine"], 0, "ran 5.0 1\n", ""),
        (["--cfg", "job"], 0, "agent:\n  lr: 0.001\n  gamma: 0.9\nseed: 1\n", ""),
        (["--help", "--config-dir", "MORE"], 0, "mine, sac, td3", ""),
        (["agent=sacc"], 2, "", "agent: no option 'sacc', did you mean 'sac'? available: sac, td3"),
        (["-m", "nope=1,2"], 2, "", "nope: unknown key, allowed: agent, seed"),
        (["seed=[1"], 2, "", "seed=[1: cannot read this override, no viable alternative at input '[1'"),
        (["seed=13"], 2, "ran", "agent.lr: not today"),
        (["seed=16"], 2, "ran", "agent.entropy: missing from the configuration, which has: gamma, lr"),
        (["--config-dir", "/nope"], 2, "", "Additional config directory '/nope' not found"),
        (["agent=td3"], 2, "", "td3.yaml:"),
        (["-m", "seed=13,2"], 2, "ran 0.001 13\nran 0.001 2\n", "agent.lr: not today"),
        (["-m", "seed=14"], 1, "ran", BUG),
        (["-m", "seed=15,2"], 130, "ran 0.001 15\n", "interrupted"),
        (["seed=14"], 1, "ran", BUG),
        (["seed=15"], 130, "ran", "interrupted"),
    ],
)
def test_what_a_command_line_ends_with(
    app: Path, cwd: Path, arguments: list[str], status: int, output: str, errors: str
) -> None:
    """A user's mistake is one line and status 2; a bug keeps its traceback; nothing is left in the folder."""
    words = [str(app / "more") if word == "MORE" else word for word in arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "RLSTACK_FULL_ERROR": "1" if "seed=13" in words else ""}
    line = [sys.executable, str(app / "app.py"), *words]
    done = subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == status and output in done.stdout and list(cwd.iterdir()) == []
    last = done.stderr.splitlines()[-1] if done.stderr else ""
    assert errors in last and last.startswith("error: ") == (status == 2)
    assert ("Traceback" in done.stderr) == (errors == BUG or "seed=13" in words)  # asked for by RLSTACK_FULL_ERROR
    if "-m" not in words and "Traceback" not in done.stderr:
        assert done.stderr.count("\n") == (status > 0)


@exhaustive(
    ("arguments", "unbuffered", "status"),
    [(["seed=2"], "1", 141), (["seed=2"], "", 0), (["--help"], "", 0), (["seed=13"], "", 2)],
    quick=0,
)
def test_it_is_no_fault_that_the_reader_of_the_output_has_left(
    app: Path, cwd: Path, arguments: list[str], unbuffered: str, status: int
) -> None:
    """The reader closes early, like ``head``; errors, which go to stderr, are still printed."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, str(app / "app.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, cwd=cwd, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (status, "error: agent.lr: not today\n" if status == 2 else "")


def test_another_broken_pipe_is_a_bug() -> None:
    with pytest.raises(BrokenPipeError), exit_in_one_line():
        raise BrokenPipeError("that of a worker")


def test_flags_may_stand_anywhere_and_keep_their_values() -> None:
    given = ["seed=1", "--config-dir", "mine", "-m", "runs/x", "--config-dir=more", "--cfg", "job", "--info", "lr=2"]
    flags = ["--config-dir", "mine", "-m", "--config-dir=more", "--cfg", "job", "--info"]
    assert _parted(given) == (flags, ["seed=1", "runs/x", "lr=2"])
