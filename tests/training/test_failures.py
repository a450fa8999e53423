"""Full or read-only disks, services out of reach, Ctrl-C: one line, nothing is lost and nothing left behind."""

from __future__ import annotations

import csv
import errno
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

import rlstack
from rlstack.command import HydraCommand, user_errors
from rlstack.config import ConfigError
from rlstack.config.errors import RunError
from rlstack.envs.foundation.processes import EnvironmentFailed, EnvironmentRaised, WorkersFailed, place_of
from rlstack.training.hooks import Hook
from rlstack.training.loggers import MetricLogger
from rlstack.training.loop import Training
from rlstack.training.monitor import Hardware
from rlstack.training.run import train
from rlstack.training.summary import environment_errors, one_line_errors
from tests.exhaustive import exhaustive
from tests.faults import room_for
from tests.refusals import refused
from tests.small_run import composed, logged
from tests.training.test_loggers import logger_config

TINY = [
    *("agent=ppo", "env=gymnasium", "env.id=CartPole-v1", "env.num_envs=4", "collector.steps_per_batch=8"),
    *("agent.minibatch_size=16", "agent.epochs=1", "agent.hidden=[8]", "device=cpu", "threads=1", "eval.episodes=1"),
    *("eval.every=100000", "checkpoint.every=64", "log_every=64", "total_frames=640", "logger=csv"),
]


def plain(folder: Path, *overrides: str) -> dict[str, Any]:
    return composed(*TINY, f"run_dir={folder}", *overrides)


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if ".partial" in path.name]


class AtFrame(Hook):
    """Fails before the run learns from the batch that begins after so many frames."""

    def __init__(self, frames: int, happens: Callable[[], Any]) -> None:
        self._frames, self._happens = frames, happens

    def on_collected(self, training: Training, batch: Any, sequences: Any) -> None:
        if training.previous == self._frames:
            self._happens()


# -- the disk ------------------------------------------------------------------------------------------------------


def test_no_room_at_the_start_leaves_nothing(tmp_path: Path) -> None:
    with room_for(1000), pytest.raises(ConfigError, match=r"self-check checkpoint failed: .*run_dir must be a writ"):
        train(plain(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_configuration_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "write_text", Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
    message = r"run/config.yaml cannot be written \(Read-only file system\); the run has ended$"
    refused(RunError, message, train, plain(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_the_run_and_earlier_checkpoints_stay(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with ExitStack() as stack, pytest.raises(RunError) as caught:
        train(plain(folder), [AtFrame(160, lambda: stack.enter_context(room_for(6000)))])
    message = str(caught.value)
    assert "checkpoint_000000000192.pt cannot be written (File too large); the run has ended" in message
    assert message.endswith(f"; checkpoints so far are intact, continue with: rlstack train resume={folder}")
    assert leftovers(folder) == [] and rlstack.load(folder).frames == 128
    (folder / "checkpoints" / ".checkpoint_000000000192.0123456789abcdef.partial.pt").touch()  # of a killed process
    train({**plain(folder), "resume": str(folder), "total_frames": 256})
    assert leftovers(folder) == [] and rlstack.load(folder).frames == 256
    frames = [int(row["frames"]) for row in logged(folder)]
    assert frames == sorted(frames) and {64, 128, 192, 256} <= set(frames)


def test_metrics_that_cannot_be_written_name_their_file(tmp_path: Path) -> None:
    logger = MetricLogger(tmp_path, logger_config())
    with room_for(100), pytest.raises(OSError, match=r"File too large: '.*metrics.csv'") as caught, logger:
        for frames in range(100):
            logger.log(frames, {"a/x": 0.5})
    with pytest.raises(RunError, match=r"metrics.csv cannot be written"), one_line_errors(tmp_path):
        raise caught.value
    with MetricLogger(tmp_path, logger_config()) as logger:  # the row that was cut off goes
        logger.log(100, {"a/x": 0.5, "a/y": 1.0})
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[-1] == ["100", "0.5", "1.0"] and rows[-2] == [str(len(rows) - 3), "0.5", ""]


def test_other_errors_of_the_system_keep_their_traceback(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), one_line_errors(tmp_path):
        raise FileNotFoundError(errno.ENOENT, "No such file", "data.npz")


# -- what a run can do without -------------------------------------------------------------------------------------


class Broken:
    """A TensorBoard writer, or a W&B run, that works for so many calls."""

    id = "abc"

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> None:
            self.left -= 1
            if self.left < 0:
                raise ConnectionError("gone\nfor good")

        return call


@pytest.mark.parametrize(
    ("service", "calls"),
    [*(("tensorboard", n) for n in (0, 2, 4)), *(pytest.param("wandb", n, marks=pytest.mark.slow) for n in (0, 3))],
)
def test_a_service_that_fails_is_left_out(
    service: str, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails at the start, in the middle, or when it is closed."""

    def begin(*_: Any, **__: Any) -> Broken:
        if not calls:
            raise PermissionError("not here")
        return Broken(calls)

    module = pytest.importorskip({"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}[service])
    monkeypatch.setattr(module, {"tensorboard": "SummaryWriter", "wandb": "init"}[service], begin)
    message = "(TensorBoard|W&B) fails, the run continues without it: (not here|gone)"
    with (
        pytest.warns(RuntimeWarning, match=message) as told,
        MetricLogger(tmp_path, logger_config(**{service: "offline" if service == "wandb" else True})) as logger,
    ):
        for frames in range(4):
            logger.log(frames, {"a/x": 0.5})
    assert len(told) == 1 and len((tmp_path / "metrics.csv").read_text().splitlines()) == 5


# -- Ctrl-C, workers, and the line itself --------------------------------------------------------------------------


def test_ctrl_c_before_the_first_frame_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "begin", Mock(side_effect=KeyboardInterrupt))
    refused(KeyboardInterrupt, r"^nothing was written$", train, plain(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (32, "there is no checkpoint yet; begin again with: rlstack train resume="),
        (96, "the newest checkpoint is of 64 frames; continue with: rlstack train resume="),
    ],
)
def test_a_run_that_ctrl_c_ends_at_once_says_how_to_continue(tmp_path: Path, frame: int, told: str) -> None:
    interrupt = AtFrame(frame, Mock(side_effect=KeyboardInterrupt))
    refused(KeyboardInterrupt, f"^{told}", train, plain(tmp_path / "run"), [interrupt])


def test_workers_are_counted_and_given_up_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Hardware("cpu").read(0, 1.0, 3)["system/worker_restarts"] == 3
    assert "system/worker_restarts" not in Hardware("cpu").read(0, 1.0)
    with pytest.raises(SystemExit) as ended, user_errors(), one_line_errors(tmp_path):
        raise WorkersFailed("worker 0 of 1: it broke", "Traceback\n  in step")
    assert ended.value.code == 1
    assert capsys.readouterr().err == "Traceback\n  in step\nerror: env: worker 0 of 1: it broke\n"


FAILURES = {
    "exits": r":Fragile called sys.exit\(0\) in gymnasium_toys.py:\d+; an environment may end its episodes",
    "raises": r":Fragile: step \d+ of an episode raised ArithmeticError: .* \(gymnasium_toys.py, line \d+\)$",
}


@exhaustive(
    ("how", "at", "frames"), [("exits", 40, 128), ("raises", 3, None), ("raises", 40, 128), ("exits", 3, None)], quick=2
)
def test_an_environment_that_fails_ends_the_run_in_one_line(
    tmp_path: Path, how: str, at: int, frames: int | None
) -> None:
    """The failure happens in training, after a checkpoint, and in the self-check."""
    ends = ["env.id=tests.envs.gymnasium_toys:Fragile", f"+env.kwargs={{how: {how}, at: {at}}}"]
    refused(RunError, rf"^env: tests.*{FAILURES[how]}", train, plain(tmp_path / "run", *ends))
    if frames is None:
        assert not (tmp_path / "run").exists()
    else:
        assert rlstack.load(tmp_path / "run", allow=["tests.envs.gymnasium_toys:Fragile"]).frames == frames


def test_commands_take_the_end_of_the_program_for_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def task(cfg: Any) -> None:
        sys.exit(0)

    GlobalHydra.instance().clear()
    monkeypatch.setattr(sys, "argv", ["rlstack", "++env.name=my.worlds:Harbour"])
    with pytest.raises(SystemExit) as ended:
        HydraCommand("watch").line(task)()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("error: env: my.worlds:Harbour called sys.exit(0) in test_failures.py:")
    with pytest.raises(RunError, match=r"^env: my:Old: step does not fit"), environment_errors(None):
        raise EnvironmentFailed("my:Old: step does not fit")


def test_the_place_of_an_exit_is_the_call_also_if_a_library_replaced_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = sys.exit

    def replacement(code: object = 0) -> None:
        original(code)

    monkeypatch.setattr(sys, "exit", replacement)
    with pytest.raises(SystemExit) as ended:
        sys.exit(0)
    here = ended.traceback[0].lineno + 1
    assert place_of(ended.value) == f"test_failures.py:{here}"


@exhaustive(
    "place",
    ["preflight.write_checkpoint", "loop.Training.begin", "preflight.check_buildable", "loop.build_worlds"],
    quick=2,
)
def test_memory_that_is_full_before_the_first_batch_is_told_too(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"rlstack.training.{place}", Mock(side_effect=MemoryError))
    refused(RunError, r"^the memory is full; fewer worlds", train, plain(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_memory_that_is_full_ends_a_run_in_one_line(tmp_path: Path) -> None:
    full = RuntimeError("[enforce fail at alloc_cpu.cpp] . DefaultCPUAllocator: can't allocate memory: you tried ...")
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory."), full):
        with (
            pytest.raises(RunError, match=r"^the memory is full; fewer worlds, shorter rollouts or a smaller agent\.b"),
            one_line_errors(tmp_path),
        ):
            raise error
    with pytest.raises(RuntimeError, match="a bug"), one_line_errors(tmp_path):
        raise RuntimeError("a bug")
    own_code = EnvironmentRaised("my:Env: step 3 of an episode raised MemoryError")
    with pytest.raises(RunError, match=r"^env: my:Env: step 3 of") as own, one_line_errors(tmp_path):
        raise own_code from MemoryError()
    assert own.value.details.endswith("MemoryError\n")
    with pytest.raises(RunError, match=r"^env: it is over$"), one_line_errors(tmp_path):
        raise RunError("env: it is over")
