"""A diagnosis as text: a heading, a table for each test, the verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .iteration import MEANING

_BAR = 30
_WIDTH = 110

Found = Mapping[str, Any]


def heading(subject: Found) -> str:
    """What is measured."""
    threads = f"{subject['threads']} threads" if subject["threads"] > 1 else "1 thread"
    time = "CPU time" if subject["clock"] == "cpu" else "wall-clock time"
    where = f"{subject['num_worlds']:,} worlds, {subject['device']}, {threads}, {time}"
    return f"{subject['agent']} in {subject['env']}, {where}"


def section(test: str, found: Found) -> Iterator[str]:
    """What a test found, line by line, ASCII."""
    yield ""
    yield from _TESTS[test](found)


def verdict_lines(findings: Sequence[Found]) -> Iterator[str]:
    """The verdict, line by line."""
    yield ""
    yield "verdict"
    for entry in findings:
        yield from _proposal(entry)
    if not findings:
        yield "  - nothing stands out"


def number(value: float) -> str:
    """Three figures, or all of them before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _env(found: Found) -> Iterator[str]:
    yield "env: the worlds alone, with random actions"
    named = {
        "steps_per_second": "steps/s",
        "decisions_per_second": "decisions/s",
        "ticks_per_second": "ticks/s",
        "real_time_factor": "real-time factor",
        "ms_per_step": "ms per step of all",
    }
    yield _pairs((title, found[key]) for key, title in named.items() if key in found)
    titles = {"num_worlds": "worlds", "ms_per_step": "ms per step", "steps_per_second": "steps/s"}
    yield from _sweep(found["sweep"], titles, found["num_worlds"])
    if found.get("sweep_ended"):
        yield f"  ({found['sweep_ended']})"
    yield from _threads(found)


def _inference(found: Found) -> Iterator[str]:
    yield "inference: the policy alone"
    titles = {"mean_ms": "mean ms", "p95_ms": "p95 ms", "p99_ms": "p99 ms", "decisions_per_second": "decisions/s"}
    rows = [["exploring", *(number(found[key]) for key in titles)]]
    rows.append(["greedy", *(number(found["greedy"][key]) for key in titles)])
    yield from _aligned([[f"{found['batch']:,} worlds", *titles.values()], *rows])
    yield from _sweep(found["sweep"], {"batch": "worlds", **titles}, found["batch"])


def _learn(found: Found) -> Iterator[str]:
    yield f"learn: an update from {found['batch']:,} samples"
    named = {"updates_per_second": "updates/s", "samples_per_second": "samples/s", "ms_per_update": "ms per update"}
    yield _pairs((title, found[key]) for key, title in named.items())
    whole = found["ms_per_update"]
    yield from _bars((name, f"{number(took)} ms", took / whole, "") for name, took in found["parts_ms"].items())
    beside = ", ".join(f"{name} {number(took)} ms" for name, took in found["beside_ms"].items())
    if beside:
        yield f"  once per batch of data, besides: {beside}"
    titles = {"batch": "samples", "ms_per_update": "ms per update", "samples_per_second": "samples/s"}
    yield from _sweep(found["sweep"], titles, found["batch"])
    yield from _threads(found)


def _collect(found: Found) -> Iterator[str]:
    count, frames, took = found["iterations"], found["frames_per_iteration"], found["seconds_per_iteration"]
    warm = "" if found["warmed_up"] else ", the first one"
    yield f"collect: the training loop, {count} iteration{'s' if count > 1 else ''}{warm}; evaluations not counted"
    yield _pairs(
        (("frames/s", found["frames_per_second"]), ("frames per iteration", frames), ("s per iteration", took))
    )
    parts = found["parts_seconds"]
    unit, scale = ("ms", 1e3) if took < 1 else ("s", 1.0)
    yield from _bars(
        (name, f"{number(scale * value)} {unit}", value / took, MEANING[name]) for name, value in parts.items()
    )
    if not found["observing_apart"]:
        yield "  (observations are made within simulate)"


def _gpu(found: Found) -> Iterator[str]:
    yield "gpu"
    if "note" in found:
        yield f"  {found['note']}"
    if "frames_per_second" not in found:
        return
    named = {
        "gpu_percent": "busy %",
        "gpu_percent_low": "least",
        "gpu_percent_high": "most",
        "gpu_memory_mb": "memory MB",
        "gpu_peak_memory_mb": "peak of this run MB",
    }
    yield _pairs((title, found[key]) for key, title in named.items() if key in found)
    counted = ("kernels", "copies_to_gpu", "copies_from_gpu", "synchronisations", "kernels_per_second")
    rows = [[f"in a {what}", *(number(found[what][name]) for name in counted)] for what in ("step", "update")]
    yield from _aligned([["", *(name.replace("_", " ") for name in counted)], *rows])
    for what in ("step", "update"):
        for place, count in found[what]["waits_at"].items():
            yield f"  waits in a {what}: {number(count)} at {place}"


_TESTS: dict[str, Callable[[Found], Iterator[str]]] = {
    "env": _env,
    "inference": _inference,
    "learn": _learn,
    "collect": _collect,
    "gpu": _gpu,
}


def _proposal(entry: Found) -> Iterator[str]:
    gain = "" if entry["gain"] is None else f" (an iteration {entry['gain']:.2f} times as quick)"
    text = entry["text"] + (f" -> {entry['option']}{gain}" if entry["option"] else "")
    yield from textwrap.wrap(text, _WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)


def _pairs(pairs: Any) -> str:
    return "  " + "   ".join(f"{title} {number(value)}" for title, value in pairs)


def _sweep(points: Sequence[Found], titles: Mapping[str, str], now: float) -> Iterator[str]:
    """Rows of a sweep, the present setting marked; nothing where there is one point only."""
    if len(points) < 2:
        return
    size, *_ = titles
    rows = [[*(number(point[key]) for key in titles), "<- now" if point[size] == now else ""] for point in points]
    yield from _aligned([[*titles.values(), ""], *rows])


def _threads(found: Found) -> Iterator[str]:
    points = found.get("threads", [])
    if points:
        one = points[0]["per_second"]
        yield "  speed by threads: " + ", ".join(f"{p['threads']}: {p['per_second'] / one:.2f}" for p in points)


def _bars(rows: Any) -> Iterator[str]:
    cells = [
        [name, text, f"{share:.1%}", f"{'#' * round(_BAR * share):<{_BAR}}", said] for name, text, share, said in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells)]
    for name, text, share, bar, said in cells:
        yield f"  {name:<{widths[0]}}  {text:>{widths[1]}}  {share:>{widths[2]}}  {bar} {said}".rstrip()


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        yield ("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths))).rstrip()
