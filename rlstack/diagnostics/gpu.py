"""How busy the training keeps a GPU, and how often it waits for it or copies to it."""

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
from rlstack.training.hardware import GpuWatch

from .iteration import summary, watched
from .learning import Lesson
from .subject import Subject

_STEPS, _UPDATES = 8, 8  # that are profiled
_PLACES = 5
_KINDS = {
    "copies_to_gpu": re.compile(r"^Memcpy HtoD"),
    "copies_from_gpu": re.compile(r"^Memcpy DtoH"),
    "synchronisations": re.compile(r"^cuda(Stream|Device|Event)Synchronize$"),
}
_OURS = Path(__file__).resolve().parents[2]


def measure_gpu(subject: Subject) -> dict[str, Any]:
    """Utilisation and memory while the training loop runs; copies, waits and kernels of a step and of an update."""
    if subject.device.type != "cuda":
        there = torch.cuda.is_available()
        why = "a GPU is there, use it with device=cuda" if there else "torch sees no GPU here"
        return {"note": f"the device is {subject.device}, there is nothing to measure ({why})", "available": there}
    torch.cuda.reset_peak_memory_stats(subject.device)
    watch = GpuWatch(subject.device, every=0.1)
    with watched(subject, None) as training:
        watch.start()
        try:
            training.execute_for_a_while()
        finally:
            watch.stop()
    found = {
        **watch.read(),
        "gpu_peak_memory_mb": torch.cuda.max_memory_allocated(subject.device) / 1e6,
        "frames_per_second": summary(training.iterations)["frames_per_second"],
    }
    if not watch.sees_utilisation:
        found["note"] = "utilisation needs NVML: pip install 'rlstack[gpu]'"
    return {**found, "step": _of_a_step(subject), "update": _of_an_update(subject)}


def _of_a_step(subject: Subject) -> dict[str, Any]:
    env = subject.world()
    agent = subject.agent(env)
    collector = make_collector(env, agent.policy(explore=True), _STEPS)
    batches = iter(collector)
    next(batches)
    try:
        return _inspected(subject, lambda: (next(batches), _STEPS)[1])
    finally:
        collector.shutdown(close_env=False)
        env.close(raise_if_closed=False)


def _of_an_update(subject: Subject) -> dict[str, Any]:
    lesson = Lesson(subject)
    lesson.prepare()
    return _inspected(subject, lambda: lesson.learn_for(0.0, _UPDATES))


def _inspected(subject: Subject, work: Callable[[], int]) -> dict[str, Any]:
    """Counts of what ``work`` asks of the GPU, for each of the things that it says it did."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    begin = subject.clock()
    with torch.profiler.profile(activities=activities) as profiler:
        times = work()
        seconds = subject.clock() - begin
    events = ((event.name, event.device_type.name == "CUDA") for event in profiler.events())
    counts = count_events(events)
    with waits() as places:
        again = work()
    return {
        **{name: count / times for name, count in counts.items()},
        "kernels_per_second": counts["kernels"] / seconds,
        "waits_at": {place: count / again for place, count in places.most_common(_PLACES)},
    }


def count_events(events: Iterable[tuple[str, bool]]) -> dict[str, int]:
    """Copies, waits and kernels among events of a profile.

    Args:
        events: name of each, and whether it happened on the GPU.
    """
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
    """Counts, by the line of code, where a program waits for the GPU."""
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
    """``file:line`` of the warnings that tell of a wait."""
    told = (entry for entry in caught if "synchroniz" in str(entry.message))
    return Counter(f"{_short(entry.filename)}:{entry.lineno}" for entry in told)


def _short(file: str) -> str:
    path = Path(file).resolve()
    return str(path.relative_to(_OURS)) if path.is_relative_to(_OURS) else f"{path.parent.name}/{path.name}"
