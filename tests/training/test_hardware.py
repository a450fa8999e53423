"""What a run uses of the machine, with a simulated GPU, and the means that it logs."""

from __future__ import annotations

import time
from mmap import mmap
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack.data.devices import indexed
from rlstack.training.monitor import COLLECTING, LEARNING, Clock, GpuWatch, Hardware, Monitor, resident_bytes


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


def test_a_gpu_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert indexed("cuda") == torch.device("cuda:3") and indexed("cuda:1") == torch.device("cuda:1")
    assert indexed("cpu") == torch.device("cpu")
