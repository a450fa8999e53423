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
from rlstack import command
from rlstack.config import ConfigError, catalogue
catalogue.conf_dir = command.conf_dir = lambda: pathlib.Path(__file__).parent / "conf"
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


def call(app: Path, cwd: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    scratch = cwd.parent / "tmp"
    scratch.mkdir(exist_ok=True)
    result = subprocess.run(
        [sys.executable, str(app / "app.py"), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(scratch), **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert list(cwd.iterdir()) == [] and list(scratch.iterdir()) == [], "Hydra left files behind"
    return result


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "cwd").mkdir()
    return tmp_path / "cwd"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["seed=2"], "ran 0.001 2\n"),
        (["-m", "seed=1,2"], "ran 0.001 1\nran 0.001 2\n"),
        (["--config-dir", "MORE", "agent=mine"], "ran 5.0 1\n"),
        (["--cfg", "job"], "agent:\n  lr: 0.001\n  gamma: 0.9\nseed: 1\n"),
    ],
    ids=["run", "multirun", "config-dir", "cfg"],
)
def test_works_and_leaves_no_files(app: Path, cwd: Path, arguments: list[str], output: str) -> None:
    result = call(app, cwd, *(str(app / "more") if a == "MORE" else a for a in arguments))
    assert (result.returncode, result.stdout, result.stderr) == (0, output, "")


@exhaustive(
    ("arguments", "message"),
    [
        (["agent=sacc"], "agent: no option 'sacc', did you mean 'sac'? available: sac, td3"),
        (["agent.lrr=1"], "agent.lrr: unknown key, did you mean 'lr'? allowed: gamma, lr"),
        (["-m", "nope=1,2"], "nope: unknown key, allowed: agent, seed"),
        (["seed=[1"], "seed=[1: cannot read this override, no viable alternative at input '[1'"),
        (["seed=13"], "agent.lr: not today"),
        (["seed=16"], "agent.entropy: missing from the configuration, which has: gamma, lr"),
        (["--config-dir", "/nope"], "Additional config directory '/nope' not found"),
    ],
    ids=[
        "option",
        "key",
        "sweep-key",
        "syntax",
        "config-error",
        "omegaconf",
        "directory",
    ],
)
def test_a_users_error_is_one_line_and_status_2(app: Path, cwd: Path, arguments: list[str], message: str) -> None:
    result = call(app, cwd, *arguments)
    assert (result.returncode, result.stderr) == (2, f"error: {message}\n")


@pytest.mark.slow
def test_a_job_of_a_sweep_that_fails_does_not_end_the_others(app: Path, cwd: Path) -> None:
    result = call(app, cwd, "-m", "seed=13,2")
    assert result.returncode == 2 and result.stdout == "ran 0.001 13\nran 0.001 2\n"
    which, error = result.stderr.splitlines()
    assert "seed=13" in which and error == "error: agent.lr: not today"


@pytest.mark.slow
def test_a_bug_in_a_job_of_a_sweep_shows_where_it_is(app: Path, cwd: Path) -> None:
    result = call(app, cwd, "-m", "seed=14")
    assert result.returncode == 1
    assert "in run" in result.stderr and "ZeroDivisionError: a bug" in result.stderr


@pytest.mark.slow
def test_ctrl_c_in_a_job_ends_the_sweep(app: Path, cwd: Path) -> None:
    result = call(app, cwd, "-m", "seed=15,2")
    assert (result.returncode, result.stdout, result.stderr) == (130, "ran 0.001 15\n", "interrupted\n")


@pytest.mark.slow
def test_a_launcher_that_is_not_installed_is_told_with_where_it_comes_from(app: Path, cwd: Path) -> None:
    result = call(app, cwd, "-m", "hydra/launcher=joblib", "seed=1,2")
    if result.returncode:
        assert "hydra/launcher=joblib needs the extra 'sweep': pip install " in result.stderr


def test_help_lists_the_groups(app: Path, cwd: Path) -> None:
    result = call(app, cwd, "--help", "--config-dir", str(app / "more"))
    assert (result.returncode, result.stderr) == (0, "")
    assert "agent=<name> (default: sac" in result.stdout
    assert [line.strip() for line in result.stdout.splitlines() if line.strip() in ("mine", "sac", "td3", "nope")] == [
        *("mine", "sac", "td3")
    ]


def test_a_broken_yaml_is_named_with_its_line(app: Path, cwd: Path) -> None:
    result = call(app, cwd, "agent=td3")
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert "td3.yaml:" in result.stderr


@pytest.mark.slow
def test_the_traceback_is_there_when_asked_for(app: Path, cwd: Path) -> None:
    result = call(app, cwd, "seed=13", RLSTACK_FULL_ERROR="1")
    assert result.returncode == 2
    assert result.stderr.startswith("Traceback") and result.stderr.endswith("error: agent.lr: not today\n")


@pytest.mark.slow
def test_a_bug_keeps_its_traceback(app: Path, cwd: Path) -> None:
    result = call(app, cwd, "seed=14")
    assert result.returncode == 1
    assert "Traceback" in result.stderr and "ZeroDivisionError: a bug" in result.stderr


@pytest.mark.slow
def test_interrupt(app: Path, cwd: Path) -> None:
    result = call(app, cwd, "seed=15")
    assert (result.returncode, result.stderr) == (130, "interrupted\n")


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
    assert _parted(given, "train") == (flags, ["seed=1", "runs/x", "lr=2"])
