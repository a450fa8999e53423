"""Shows a diagnosis as text and as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import EngFormatter, NullFormatter

from rlstack.evaluation.figures import saved_figure
from rlstack.evaluation.table import aligned

from .training import PARTS

_BAR, _WIDTH = 30, 110
Found = Mapping[str, Any]


def heading(subject: Found) -> str:
    """Returns agent, world, device and clock in one line."""
    threads = f"{subject['threads']} threads" if subject["threads"] > 1 else "1 thread"
    time = "CPU time" if subject["clock"] == "cpu" else "wall-clock time"
    where = f"{subject['num_worlds']:,} worlds, {subject['device']}, {threads}, {time}"
    return f"{subject['agent']} in {subject['env']}, {where}"


def section(test: str, found: Found) -> Iterator[str]:
    """Yields the results of a test as lines in ASCII."""
    yield ""
    yield from _TESTS[test](found)


def verdict_lines(findings: Sequence[Found]) -> Iterator[str]:
    """Yields the verdict as lines."""
    yield from ("", "verdict")
    for entry in findings:
        gain = "" if entry["gain"] is None else f" (an iteration {entry['gain']:.2f} times as fast)"
        text = entry["text"] + (f" -> {entry['option']}{gain}" if entry["option"] else "")
        yield from textwrap.wrap(text, _WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
    if not findings:
        yield "  - nothing stands out"


def number(value: float) -> str:
    """Formats a number with three digits, or with all digits before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _env(found: Found) -> Iterator[str]:
    yield "env: the worlds alone, with random actions"
    named = {"steps_per_second": "steps/s", "decisions_per_second": "decisions/s", "ticks_per_second": "ticks/s"}
    yield _pairs(found, {**named, "real_time_factor": "real-time factor", "ms_per_step": "ms per step of all"})
    titles = {"num_worlds": "worlds", "ms_per_step": "ms per step", "steps_per_second": "steps/s"}
    yield from _sweep(found["sweep"], titles, found["num_worlds"])
    if found.get("sweep_ended"):
        yield f"  ({found['sweep_ended']})"
    yield from _threads(found)


def _inference(found: Found) -> Iterator[str]:
    yield "inference: the policy alone"
    titles = {"mean_ms": "mean ms", "p95_ms": "p95 ms", "p99_ms": "p99 ms", "decisions_per_second": "decisions/s"}
    policies = {"exploring": found, "greedy": found["greedy"]}
    rows = [[name, *(number(one[key]) for key in titles)] for name, one in policies.items()]
    yield from aligned([[f"{found['batch']:,} worlds", *titles.values()], *rows], indent=2)
    yield from _sweep(found["sweep"], {"batch": "worlds", **titles}, found["batch"])


def _learn(found: Found) -> Iterator[str]:
    yield f"learn: an update from {found['batch']:,} samples"
    named = {"updates_per_second": "updates/s", "samples_per_second": "samples/s", "ms_per_update": "ms per update"}
    yield _pairs(found, named)
    whole = found["ms_per_update"]
    yield from _bars((name, f"{number(took)} ms", took / whole, "") for name, took in found["parts_ms"].items())
    if products := found.get("matrix_products"):
        mflop, gflops, share = number(products["mflop"]), number(products["gflops"]), products["share"]
        yield f"  matrix products: {mflop} MFLOP at {gflops} GFLOP/s, which take {share:.0%} of an update's time"
    titles = {"batch": "samples", "ms_per_update": "ms per update", "samples_per_second": "samples/s"}
    yield from _sweep(found["sweep"], titles, found["batch"])
    yield from _threads(found)


def _collect(found: Found) -> Iterator[str]:
    count, took = found["iterations"], found["seconds_per_iteration"]
    warm = "" if found["warmed_up"] else ", the first one"
    yield f"collect: the training loop, {count} iteration{'s' if count > 1 else ''}{warm}; evaluations not counted"
    titles = {"frames_per_second": "frames/s", "frames_per_iteration": "frames per iteration"}
    yield _pairs(found, {**titles, "seconds_per_iteration": "s per iteration"})
    unit, scale = ("ms", 1e3) if took < 1 else ("s", 1.0)
    parts = found["parts_seconds"].items()
    yield from _bars((name, f"{number(scale * value)} {unit}", value / took, PARTS[name]) for name, value in parts)
    if not found["observing_apart"]:
        yield "  (observations are made within simulate)"


def _gpu(found: Found) -> Iterator[str]:
    yield "gpu"
    if "note" in found:
        yield f"  {found['note']}"
    if "frames_per_second" not in found:
        return
    named = {"gpu_percent": "busy %", "gpu_percent_low": "least", "gpu_percent_high": "most"}
    yield _pairs(found, {**named, "gpu_memory_mb": "memory MB", "gpu_peak_memory_mb": "peak of this run MB"})
    counted = ("kernels", "copies_to_gpu", "copies_from_gpu", "synchronisations", "kernels_per_second")
    both = [what for what in ("step", "update") if what in found]
    rows = [[f"in a {what}", *(number(found[what][name]) for name in counted)] for what in both]
    yield from aligned([["", *(name.replace("_", " ") for name in counted)], *rows], indent=2)
    for what in both:
        for place, count in found[what]["waits_at"].items():
            yield f"  waits in a {what}: {number(count)} at {place}"


_TESTS = {"env": _env, "inference": _inference, "learn": _learn, "collect": _collect, "gpu": _gpu}


def _pairs(found: Found, titles: Mapping[str, str]) -> str:
    return "  " + "   ".join(f"{title} {number(found[key])}" for key, title in titles.items() if key in found)


def _sweep(points: Sequence[Found], titles: Mapping[str, str], now: float) -> Iterator[str]:
    """Yields the rows of a sweep, with the current setting marked; none for a single point."""
    if len(points) > 1:
        size = next(iter(titles))
        rows = [[*(number(point[key]) for key in titles), "<- now" if point[size] == now else ""] for point in points]
        yield from aligned([[*titles.values(), ""], *rows], indent=2)


def _threads(found: Found) -> Iterator[str]:
    if points := found.get("threads"):
        one = points[0]["per_second"]
        yield "  speed by threads: " + ", ".join(f"{p['threads']}: {p['per_second'] / one:.2f}" for p in points)


def _bars(rows: Iterable[tuple[str, str, float, str]]) -> Iterator[str]:
    cells = [(name, text, f"{share:.1%}", "#" * round(_BAR * share), said) for name, text, share, said in rows]
    a, b, c, *_ = [max(map(len, column)) for column in zip(*cells)]
    for name, text, share, bar, said in cells:
        yield f"  {name:<{a}}  {text:>{b}}  {share:>{c}}  {bar:<{_BAR}} {said}".rstrip()


# -- picture -----------------------------------------------------------------------------------------------------


def save_picture(path: Path, diagnosis: Found) -> bool:
    """Draws a panel for every sweep and for the parts of an iteration; without any returns False and writes no file."""
    tests, subject = diagnosis["tests"], diagnosis["subject"]
    milliseconds = ("mean_ms", "p95_ms", "p99_ms")
    sweeps = [
        ("env", "num_worlds", ("steps_per_second",), "worlds", "steps/s", 2),
        ("inference", "batch", milliseconds, "worlds that the policy acts for", "ms per call", 1),
        ("learn", "batch", ("samples_per_second",), "samples in an update", "samples/s", 1),
    ]
    shown = [sweep for sweep in sweeps if len(tests.get(sweep[0], {}).get("sweep", [])) >= sweep[-1]]
    parts = tests.get("collect", {}).get("parts_seconds", {})
    if not (count := len(shown) + bool(parts)):
        return False
    title = f"{subject['agent']} in {subject['env']}, {subject['device']}"
    with saved_figure(path, title, count, 2, (5, 3.4)) as panels:
        for axes, (test, size, rates, along, up, _) in zip(panels, shown):
            points = tests[test]["sweep"]
            for rate in rates:
                label = rate.removesuffix("_ms") if len(rates) > 1 else None
                axes.plot([point[size] for point in points], [point[rate] for point in points], marker="o", label=label)
            axes.axvline(tests[test][size], color="gray", linestyle="--", linewidth=0.8, label="now")
            axes.set(xscale="log", yscale="log", xlabel=along, ylabel=up, title=test)
            for axis in (axes.xaxis, axes.yaxis):  # formulas, which powers of ten would be, are shown as text
                axis.set_major_formatter(EngFormatter(sep=""))
                axis.set_minor_formatter(NullFormatter())
        if parts:
            names, whole = list(parts)[::-1], sum(parts.values())
            bars = panels[-1].barh(names, [100 * parts[name] / whole for name in names])
            panels[-1].bar_label(bars, [f"{100 * parts[name] / whole:.1f} %" for name in names], fontsize=8, padding=2)
            panels[-1].set(xlabel="% of an iteration", xlim=(0, 110), title="collect")
    return True
