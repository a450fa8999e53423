"""Metrics on file and at services, and the score of a run."""

from __future__ import annotations

import csv
import math
import os
import time
from mmap import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack import envs
from rlstack.config import ConfigError, build
from rlstack.data.replay import indexed
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.config import ObjectiveConfig
from rlstack.training.loggers import CsvSink, LoggerConfig, MetricLogger, read_metrics, score, scores
from rlstack.training.monitor import COLLECTING, LEARNING, Clock, GpuWatch, Hardware, Monitor, resident_bytes
from rlstack.training.preflight import check_objective
from tests.refusals import refused

OPTIONS: dict[str, Any] = {
    **{"tensorboard": False, "wandb": "disabled", "wandb_project": "test", "wandb_entity": None},
    **{"wandb_group": None, "wandb_tags": [], "wandb_timeout": 1},
}


def logger_config(**changes: Any) -> LoggerConfig:
    return build(LoggerConfig, {**OPTIONS, **changes}, "logger")


def table(directory: Path) -> list[list[str]]:
    with (directory / "metrics.csv").open(newline="") as file:
        return list(csv.reader(file))


def test_rows_are_on_file_at_once_and_columns_grow(tmp_path: Path) -> None:
    with MetricLogger(tmp_path, logger_config()) as logger:
        logger.log(10, {"train/return": 1.5})
        assert table(tmp_path) == [["frames", "train/return"], ["10", "1.5"]]
        logger.log(20, {"loss/value": torch.tensor(0.25), "train/return": float("nan")})
        logger.log(30, {"loss/value": torch.tensor([3])})
    logger.close()  # twice is harmless
    assert os.listdir(tmp_path) == ["metrics.csv"]
    assert table(tmp_path) == [
        ["frames", "train/return", "loss/value"],
        ["10", "1.5", ""],
        ["20", "nan", "0.25"],
        ["30", "", "3"],
    ]


def test_numbers_of_the_same_frame_share_a_row_unless_they_differ(tmp_path: Path) -> None:
    with MetricLogger(tmp_path, logger_config()) as logger:
        logger.log(10, {"train/return": 1.5, "time/seconds": 2.0})
    with MetricLogger(tmp_path, logger_config()) as logger:  # resumed before the evaluation
        logger.log(10, {"eval/return": 7.0, "time/seconds": 3.0})
        logger.log(10, {"train/return": 2.5})
    assert table(tmp_path) == [
        ["frames", "train/return", "time/seconds", "eval/return"],
        ["10", "1.5", "3.0", "7.0"],
        ["10", "2.5", "", ""],
    ]


def test_a_resumed_run_continues_from_its_checkpoint(tmp_path: Path) -> None:
    with MetricLogger(tmp_path, logger_config()) as logger:
        for frames in (10, 20, 30):
            logger.log(frames, {"a/x": frames})
    with MetricLogger(tmp_path, logger_config()) as logger:
        logger.truncate_after(20)
        logger.log(25, {"a/y": 1.0})
    assert table(tmp_path) == [["frames", "a/x", "a/y"], ["10", "10", ""], ["20", "20", ""], ["25", "", "1.0"]]


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("frames,a/x\n10,1.0\n20,0.", [["frames", "a/x"], ["10", "1.0"]]),
        ("frames,a/", [["frames"]]),
        ("", [["frames"]]),
    ],
)
def test_a_row_cut_off_by_a_crash_is_dropped(tmp_path: Path, content: str, kept: list[list[str]]) -> None:
    (tmp_path / "metrics.csv").write_text(content)
    CsvSink(tmp_path / "metrics.csv").close()
    assert table(tmp_path) == kept


@pytest.mark.parametrize(("name", "value"), [("a/x", torch.zeros(2)), ("a/x", "high"), ("a/x", None), ("x", 1.0)])
def test_what_is_no_metric_is_named(tmp_path: Path, name: str, value: Any) -> None:
    with MetricLogger(tmp_path, logger_config()) as logger:
        refused(ValueError, f"metric '{name}'", logger.log, 1, {name: value})
        assert table(tmp_path) == [["frames"]]


@pytest.mark.parametrize("truth", [True, np.True_, torch.tensor(True), torch.tensor([True])])
def test_truths_are_ones_in_a_table_that_can_be_continued(truth: Any, tmp_path: Path) -> None:
    with MetricLogger(tmp_path, logger_config()) as logger:
        logger.log(1, {"a/x": truth})
        logger.log(2, {"a/later": 0.5})  # the table is read, as by a resumed run
    assert table(tmp_path) == [["frames", "a/x", "a/later"], ["1", "1", ""], ["2", "", "0.5"]]


def test_a_tensor_is_read_once_for_all_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    item = torch.Tensor.item

    def counting(tensor: torch.Tensor) -> float:
        nonlocal reads
        reads += 1
        return item(tensor)

    monkeypatch.setattr(torch.Tensor, "item", counting)
    with MetricLogger(tmp_path, logger_config(tensorboard=True)) as logger:
        logger.log(1, {"a/x": torch.tensor(1.0), "a/y": torch.tensor(2.0)})
    assert reads == 2


def test_tensorboard_points_and_their_truncation(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    chosen = {"seed": 3, "agent": {"lr": 0.5, "hidden": [8, 8]}, "logger": {"wandb": "disabled"}}
    with MetricLogger(tmp_path, logger_config(tensorboard=True), chosen) as logger:
        for frames in (10, 20, 30):
            logger.log(frames, {"a/x": float(frames)})
        logger.truncate_after(20)
        logger.log(25, {"a/x": 25.0, "eval/return": 2.0})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(point.step, point.value) for point in events.Scalars("a/x")] == [(10, 10), (20, 20), (25, 25)]
    assert hyperparameters(events) == ({"seed": 3, "agent.lr": 0.5, "agent.hidden": "[8, 8]"}, "eval/return")
    assert [path.name for path in (tmp_path / "tensorboard").iterdir() if path.is_dir()] == [], "a run beside the run"


def hyperparameters(events: Any) -> tuple[dict[str, Any], str]:
    """Reads what the HPARAMS tab shows: the values, and the first metric of a run beside them."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    def read(tag: str) -> Any:
        return HParamsPluginData.FromString(events.SummaryMetadata(f"_hparams_/{tag}").plugin_data.content)

    values = read("session_start_info").session_start_info.hparams
    found = {name: getattr(value, value.WhichOneof("kind")) for name, value in values.items()}
    return found, read("experiment").experiment.metric_infos[0].name.tag


@pytest.mark.slow
def test_wandb_offline_keeps_its_run_id_over_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    identifiers = []
    for frames in (10, 20):
        with MetricLogger(tmp_path, logger_config(wandb="offline"), {"lr": 0.1}) as logger:
            logger.log(frames, {"a/x": 1.0})
        identifiers.append((tmp_path / "wandb_run_id").read_text().strip())
    assert identifiers[0] == identifiers[1]
    assert list(tmp_path.glob(f"wandb/offline-run-*-{identifiers[0]}/run-{identifiers[0]}.wandb"))
    assert [row[0] for row in table(tmp_path)] == ["frames", "10", "20"]


@pytest.mark.slow
def test_wandb_falls_back_to_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    init, modes = wandb.init, []

    def unreachable(mode: str, **options: Any) -> Any:
        modes.append(mode)
        if mode == "online":
            raise wandb.errors.CommError("no such host\nconsider waiting longer")
        return init(mode=mode, **options)

    monkeypatch.setattr(wandb, "init", unreachable)
    with (
        pytest.warns(UserWarning, match=r"recording offline instead: no such host$"),
        MetricLogger(tmp_path, logger_config(wandb="online")) as logger,
    ):
        logger.log(1, {"a/x": 1.0})
    assert modes == ["online", "offline"]
    assert list(tmp_path.glob("wandb/offline-run-*"))


def test_a_link_of_wandb_to_its_log_needs_no_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")

    def begun(**options: Any) -> Any:
        logs = Path(options["dir"]) / "wandb/offline-run/logs"
        logs.mkdir(parents=True)
        (logs / "debug-core.log").symlink_to(tmp_path / "cache/core-debug.log")
        return SimpleNamespace(id="x", define_metric=lambda *_, **__: None, finish=lambda **_: None)

    monkeypatch.setattr(wandb, "init", begun)
    (run := tmp_path / "run").mkdir()
    (run / "config.yaml").touch()
    MetricLogger(run, logger_config(wandb="offline")).close()
    RunDirectory.open(run)


@pytest.mark.parametrize("failing", [False, True])
def test_wandb_is_told_frames_as_the_axis_and_how_the_run_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    wandb = pytest.importorskip("wandb")
    calls: list[tuple[str, Any]] = []

    class Run:
        id = "abc"

        def define_metric(self, name: str, **options: Any) -> None:
            calls.append((name, options.get("step_metric")))

        def log(self, data: dict[str, float]) -> None:
            calls.append(("log", data))

        def finish(self, exit_code: int) -> None:
            calls.append(("finish", exit_code))

    (tmp_path / "wandb_run_id").write_text("stored\n")
    given: dict[str, Any] = {}
    monkeypatch.setattr(wandb, "init", lambda **options: given.update(options) or Run())
    try:
        with MetricLogger(tmp_path, logger_config(wandb="online", wandb_name="my-run"), {"seed": 1}) as logger:
            logger.log(5, {"a/x": torch.tensor(2.0)})
            if failing:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert (given["id"], given["resume"], given["name"], given["config"]) == ("stored", "allow", "my-run", {"seed": 1})
    assert given["settings"].init_timeout == 1
    assert calls[1:] == [("*", "frames"), ("log", {"frames": 5, "a/x": 2.0}), ("finish", int(failing))]


# -- MLflow and Trackio, read back with their own clients ----------------------------------------------------------


def two_sittings(tmp_path: Path, **options: Any) -> Path:
    """Returns a run that is resumed at 10 frames and then fails."""
    run = tmp_path / "run"
    with MetricLogger(run, logger_config(**options), {"agent": {"lr": 0.5}, "seed": 3}) as logger:
        logger.log(10, {"eval/return": 1.5, "loss/value": float("nan")})
    with pytest.raises(KeyboardInterrupt), MetricLogger(run, logger_config(**options), {"seed": 4}) as logger:
        logger.truncate_after(10)
        logger.log(20, {"eval/return": 2.5})
        raise KeyboardInterrupt
    return run


@pytest.mark.slow
def test_mlflow_shows_a_resumed_run_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    run = two_sittings(tmp_path, mlflow=True, mlflow_experiment="mine")
    client = mlflow.MlflowClient(f"sqlite:///{run}/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    points = client.get_metric_history(found.info.run_id, "eval/return")
    assert [(point.step, point.value) for point in points] == [(10, 1.5), (20, 2.5)]
    assert found.data.params == {"agent.lr": "0.5", "seed": "3"}
    assert (found.info.run_name, found.info.status) == ("run", "FAILED")
    assert os.listdir(tmp_path) == ["run"], "nothing beside the run"


@pytest.mark.slow
def test_mlflow_that_knows_the_run_no_more_begins_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    (tmp_path / "mlflow_run_id").write_text("f" * 32 + "\n")
    with MetricLogger(tmp_path, logger_config(mlflow=True, mlflow_uri=f"sqlite:///{tmp_path}/own.db")) as logger:
        logger.log(10, {"a/x": 1.0})
    identifier = (tmp_path / "mlflow_run_id").read_text().strip()
    assert identifier != "f" * 32
    found = mlflow.MlflowClient(f"sqlite:///{tmp_path}/own.db").get_run(identifier)
    assert found.data.metrics == {"a/x": 1.0} and found.info.status == "FINISHED"


@pytest.mark.slow
def test_trackio_shows_a_resumed_run_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("trackio")
    from trackio import sqlite_storage
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path / "trackio")
    (run, other) = (two_sittings(tmp_path / place, trackio=True, trackio_project="mine") for place in ("a", "b"))
    names = [(path / "trackio_run").read_text().strip() for path in (run, other)]
    assert sorted(SQLiteStorage.get_runs("mine")) == sorted(names) and len(set(names)) == 2
    points = SQLiteStorage.get_logs("mine", names[0])
    assert [(point["step"], point["eval/return"]) for point in points] == [(10, 1.5), (20, 2.5)]
    config = SQLiteStorage.get_run_config("mine", names[0])
    assert config is not None and config["seed"] == 4
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["mlflow", "trackio"])
def test_a_logger_that_is_not_installed_is_told_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlstack.training.config.find_spec", lambda _: None)
    logger_config().check_installed()
    message = rf"^logger\.{name} needs the extra '{name}': pip install "
    refused(ConfigError, message, logger_config(**{name: True}).check_installed)
    refused(ConfigError, r"^logger\.wandb: did you mean 'online'", logger_config, wandb="onlin")


def test_without_services_everything_stays_in_the_folder_of_the_run() -> None:
    everything = logger_config(wandb="online", mlflow=True, trackio=True, tensorboard=True)
    assert everything.names() == ["csv", "tensorboard", "mlflow", "trackio", "wandb (online)"]
    assert everything.without_services().names() == ["csv", "tensorboard"]


# -- the score of a run, computed from its metrics ---------------------------------------------------------------------


METRICS = "frames,eval/return,eval/success,train/return\n10,3,,1\n20,,,9\n30,7,,\n40,5,{success},\n"


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("eval/sucess", "'eval/sucess', did you mean 'eval/success'?"),
        ("success", "'success', .*evaluations have .*eval/success_low"),
        ("eval/stars", "'eval/stars', .*evaluations have"),
        ("train/lenght", "'train/lenght', did you mean 'train/length'?"),
        ("eval/return", None),
        ("eval/success_level2", None),
        ("loss/critic", None),
    ],
)
def test_a_mistyped_objective_is_refused_before_the_first_frame(metric: str, told: str | None) -> None:
    config: Any = SimpleNamespace(objective=ObjectiveConfig(metric), env={})
    env: Any = envs.make("marinenav", num_worlds=1)
    if told is None:
        check_objective(config, env)
    else:
        refused(ConfigError, f"^objective.metric: no metric {told}", check_objective, config, env)


@pytest.mark.parametrize(
    ("success", "objective", "expected"),
    [
        ("", ObjectiveConfig(), 5.0),
        ("0.25", ObjectiveConfig(), 0.25),
        ("0.25", ObjectiveConfig("eval/return"), 5.0),
        ("", ObjectiveConfig("eval/return", "max"), 7.0),
        ("", ObjectiveConfig("eval/return", "min"), 3.0),
        ("", ObjectiveConfig(value="mean"), 5.0),
        ("", ObjectiveConfig("train/return"), 9.0),
    ],
)
def test_the_score_of_a_run(success: str, objective: ObjectiveConfig, expected: float, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(METRICS.format(success=success))
    assert score(tmp_path, objective) == expected


@pytest.mark.parametrize(("value", "expected"), [("last", math.nan), ("max", 30.0), ("min", 20.0), ("mean", 25.0)])
def test_a_number_that_the_last_evaluation_leaves_out_is_not_that_of_one_before(
    value: Any, expected: float, tmp_path: Path
) -> None:
    rows = "frames,eval/success,eval/time,train/return\n10,0.5,20,\n20,0.5,30,\n30,0,,\n35,,,1\n"
    (tmp_path / "metrics.csv").write_text(rows)
    assert score(tmp_path, ObjectiveConfig("eval/time", value)) == pytest.approx(expected, nan_ok=True)


def test_a_row_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(METRICS.format(success="0.5") + "50,12")
    assert [row["frames"] for row in read_metrics(tmp_path / "metrics.csv")] == [10, 20, 30, 40]


def test_a_metric_that_was_not_logged_is_told_with_those_that_were(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(METRICS.format(success=""))
    told = refused(ConfigError, "did you mean 'eval/return'", score, tmp_path, ObjectiveConfig("eval/retrun"))
    assert "eval/success" not in told, "a column without a value"


# -- What a run uses of the machine, with a simulated GPU, and the means that it logs --------------------------------


def test_memory_of_the_process() -> None:
    before = resident_bytes()
    with mmap(-1, 60_000_000) as fresh:  # the allocator may hand out pages that the process has had before
        fresh.write(b"x" * 60_000_000)
        assert 40e6 < resident_bytes() - before < 200e6


def test_frames_per_second_are_those_since_the_last_reading() -> None:
    hardware = Hardware("cpu")
    hardware.on_start(SimpleNamespace(frames=1000, clock=SimpleNamespace(learning=lambda: 100.0)))  # type: ignore[arg-type]
    first, second = hardware.read(1600, 102.0), hardware.read(1700, 103.0)
    assert set(first) == {"system/frames_per_second", "system/memory_mb", "system/cpu_percent"}
    assert (first["system/frames_per_second"], second["system/frames_per_second"]) == (300.0, 100.0)


def test_cpu_percent_counts_the_time_of_threads_since_the_last_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, cpu = iter([10.0, 14.0]), iter([1.0, 7.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(wall))
    monkeypatch.setattr(time, "process_time", lambda: next(cpu))
    assert Hardware("cpu").read(100, 1.0)["system/cpu_percent"] == 150.0


class Event:
    """A CUDA event that the GPU passes when ``now`` has reached it."""

    recorded, now = 0.0, 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.recorded += 1000.0
        self.at = Event.recorded

    def query(self) -> bool:
        return Event.now >= self.at

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


def test_a_gpu_is_timed_by_its_own_events_without_waiting_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = Clock(gpu=True)
    for use in (COLLECTING, LEARNING, COLLECTING):
        with clock.spending(use):
            pass
    assert clock.read()[COLLECTING] == 0.0
    Event.now = 4000.0
    assert (clock.read()[COLLECTING], clock.read()[LEARNING]) == (1.0, 1.0)
    Event.now = 6000.0
    assert (clock.read()[COLLECTING], clock.read()[LEARNING]) == (2.0, 1.0)


def test_runs_that_take_turns_share_the_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    clock = Clock()
    clock.total["time/cpu_seconds"] = 10.0  # of an earlier process
    clock.start(frames=0)
    clock.runs, now[0] = 4, 13.0
    assert clock.read()["time/cpu_seconds"] == 10.0 + (13.0 - 5.0) / 4


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An NVML whose GPU is as busy as the list says, repeating its last number."""
    busy = [10, 20, 60]
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: busy.pop(0) if len(busy) > 1 else busy[0])
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda device: 3_000_000)
    return busy


def test_a_thread_watches_the_gpu(nvml: list[int]) -> None:
    watch = GpuWatch(torch.device("cuda:0"), every=0.005)
    assert watch.sees_utilisation
    watch.start()
    deadline = time.monotonic() + 30
    while len(watch._busy) < 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    watch.stop()
    watch.stop()
    found = watch.read()
    assert (found["gpu_percent_low"], found["gpu_percent_high"], found["gpu_memory_mb"]) == (20.0, 60.0, 3.0)
    assert 20 < found["gpu_percent"] < 60
    assert watch.read()["gpu_percent"] == 60.0, "asked for now, where the thread has not"


def test_without_nvml_there_is_the_memory_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 1 / 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5_000_000)
    hardware = Hardware("cuda:0")
    assert hardware.read(1, 1.0)["system/gpu_memory_mb"] == 5.0
    assert GpuWatch(torch.device("cpu")).read() == {}


# -- Statistics of a run between two log lines -----------------------------------------------------------------------


def batch(done: list[list[bool]], returns: list[list[float]], success: list[list[bool]]) -> TensorDict:
    """Returns a batch ``[W, T]``; only statistics at the end of an episode count."""
    episode = {"return": torch.tensor(returns)[..., None], "success": torch.tensor(success)}
    size = torch.tensor(done).shape
    following = TensorDict({"done": torch.tensor(done)[..., None], "episode": TensorDict(episode, size)}, size)
    return TensorDict({"next": following}, size)


def test_means_are_those_of_finished_episodes() -> None:
    monitor, nan = Monitor(), float("nan")
    monitor.observe(batch([[True, False], [False, True]], [[3.0, nan], [nan, 5.0]], [[True, True], [False, False]]), {})
    monitor.observe(batch([[False, True]], [[9.0, 1.0]], [[False, True]]), {"loss/critic": torch.tensor(0.25)})
    assert isinstance(monitor._sums, Tensor), "read off the device at a flush only"
    resumed = Monitor()
    resumed.load_state_dict(monitor.state_dict())
    for each in (monitor, resumed):
        found = each.flush()
        assert (found["train/episodes"], found["train/return"], found["loss/critic"]) == (3, 3, 0.25)
        assert found["train/success"] == pytest.approx(2 / 3)
        assert found["train/success_low"] < 2 / 3 < found["train/success_high"]
        assert each.flush() == {"loss/critic": 0.25}


def test_a_log_line_is_of_the_episodes_of_all_processes() -> None:
    one, other = Monitor(), Monitor()
    one.observe(batch([[True], [True]], [[1.0], [2.0]], [[True], [True]]), {"loss/total": 1.0})
    other.observe(batch([[True]], [[6.0]], [[False]]), {"loss/total": 4.0})
    found = one.flush(lambda state: [state, other.state_dict()])
    assert (found["train/episodes"], found["train/return"], found["loss/total"]) == (3.0, 3.0, 2.5)
    assert found["train/success"] == pytest.approx(2 / 3) and "train/episodes" not in one.metrics()


def test_a_gpu_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert indexed("cuda") == torch.device("cuda:3") and indexed("cuda:1") == torch.device("cuda:1")
    assert indexed("cpu") == torch.device("cpu")


def test_an_evaluation_that_was_left_out_keeps_its_place(tmp_path: Path) -> None:
    """One was due every 10 frames: that at 20 and those at 40 and 50 were left out; a batch ended at frame 33."""
    rows = "frames,eval/return,train/return\n10,1,\n20,,7\n33,2,\n60,3,\n61,4,\n"
    (tmp_path / "metrics.csv").write_text(rows)
    placed = scores(tmp_path, ObjectiveConfig(), every=10)
    assert placed == pytest.approx([1, math.nan, 2, math.nan, math.nan, 3, 4], nan_ok=True)
    assert scores(tmp_path, ObjectiveConfig()) == [1, 2, 3, 4]
    assert scores(tmp_path, ObjectiveConfig("train/return"), every=10) == [7]
