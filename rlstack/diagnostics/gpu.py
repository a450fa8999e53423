"""Measures the training's utilisation of a GPU, and its copies, waits and kernels."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rlstack.data.collector import make_collector
from rlstack.envs.foundation.packages import needs
from rlstack.training.monitor import GpuWatch

from .measuring import MeasuredTraining
from .training import summary, timed_run

_STEPS, _UPDATES = 8, 8  # numbers that are profiled
_PLACES = 5
_KINDS = {
    "copies_to_gpu": re.compile(r"^Memcpy HtoD"),
    "copies_from_gpu": re.compile(r"^Memcpy DtoH"),
    "synchronisations": re.compile(r"^cuda(Stream|Device|Event)Synchronize$"),
}
_ROOT = Path(__file__).resolve().parents[2]


def measure_gpu(measured: MeasuredTraining) -> dict[str, Any]:
    """Measures utilisation and memory of the training loop, and copies, waits and kernels of a step and an update."""
    if measured.device.type != "cuda":
        there = torch.cuda.is_available()
        why = "a GPU is there, use it with device=cuda" if there else "torch sees no GPU here"
        return {"note": f"the device is {measured.device}, there is nothing to measure ({why})", "available": there}
    torch.cuda.reset_peak_memory_stats(measured.device)
    watch = GpuWatch(measured.device, every=0.1)
    with timed_run(measured, around=_watching(watch)) as run:
        measurements = {
            **watch.read(),
            "gpu_peak_memory_mb": torch.cuda.max_memory_allocated(measured.device) / 1e6,
            "frames_per_second": summary(run.iterations)["frames_per_second"],
        }
        if not watch.sees_utilisation:
            measurements["note"] = f"utilisation {needs('gpu')}"
        collector = make_collector(run.env, run.agent.policy(explore=True), _STEPS)
        batches = iter(collector)
        next(batches)
        try:
            measurements["step"] = _inspected(measured, lambda: next(batches), _STEPS)
        finally:
            collector.shutdown(close_env=False)
        if (update := run.update_of(1)) is not None:
            measurements["update"] = _inspected(measured, lambda: [update[1]() for _ in range(_UPDATES)], _UPDATES)
    return measurements


@contextmanager
def _watching(watch: GpuWatch) -> Iterator[None]:
    watch.start()
    try:
        yield
    finally:
        watch.stop()


def _inspected(measured: MeasuredTraining, work: Callable[[], Any], times: int) -> dict[str, Any]:
    """Counts copies, waits and kernels of ``work``, divided by ``times``."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    begin = measured.clock()
    with torch.profiler.profile(activities=activities) as profiler:
        work()
        seconds = measured.clock() - begin
    counts = count_events((event.name, event.device_type.name == "CUDA") for event in profiler.events())
    with waits() as places:
        work()
    return {
        **{name: count / times for name, count in counts.items()},
        "kernels_per_second": counts["kernels"] / seconds,
        "waits_at": {place: count / times for place, count in places.most_common(_PLACES)},
    }


def count_events(events: Iterable[tuple[str, bool]]) -> dict[str, int]:
    """Counts copies, waits and kernels among profiled events, given by name and whether they ran on the GPU."""
    counts = Counter[str]()
    for name, on_gpu in events:
        kind = next((kind for kind, pattern in _KINDS.items() if pattern.match(name)), None)
        if kind is not None:
            counts[kind] += 1
        elif on_gpu and not name.startswith(("Memcpy", "Memset")):
            counts["kernels"] += 1
    return {name: counts[name] for name in (*_KINDS, "kernels")}


@contextmanager
def waits() -> Iterator[Counter[str]]:
    """A context that counts, by line of code, where the program waits for the GPU."""
    places = Counter[str]()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode(before)
            places.update(places_of(caught))


def places_of(caught: Iterable[warnings.WarningMessage]) -> Counter[str]:
    """Counts the warnings about a wait by ``file:line``."""
    places = Counter[str]()
    for entry in caught:
        if "called a synchronizing" in str(entry.message):  # not torch's note that this mode is a prototype
            path = Path(entry.filename).resolve()
            inside = path.is_relative_to(_ROOT)
            name = str(path.relative_to(_ROOT)) if inside else f"{path.parent.name}/{path.name}"
            places[f"{name}:{entry.lineno}"] += 1
    return places
