"""Shows a diagnosis as text and as a picture, and compares it with an earlier one."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import EngFormatter, NullFormatter

from rlstack.config import ConfigError
from rlstack.envs.foundation.files import check_regular
from rlstack.evaluation.figures import aligned, saved_figure
from rlstack.training.loggers import flat

from .training import PARTS

_BAR, _WIDTH = 30, 110
Results = Mapping[str, Any]


def heading(subject: Results) -> str:
    """Returns agent, world, device and clock in one line."""
    threads = f"{subject['threads']} threads" if subject["threads"] > 1 else "1 thread"
    time = "CPU time" if subject["clock"] == "cpu" else "wall-clock time"
    where = f"{subject['num_worlds']:,} worlds, {subject['device']}, {threads}, {time}"
    return f"{subject['agent']} in {subject['env']}, {where}"


def section(test: str, results: Results) -> Iterator[str]:
    """Yields the results of a test as lines in ASCII."""
    yield ""
    match test:
        case "env":
            yield "env: the worlds alone, with random actions"
            named = {"steps_per_second": "steps/s", "decisions_per_second": "decisions/s"}
            named |= {"ticks_per_second": "ticks/s", "real_time_factor": "real-time factor"}
            yield _pairs(results, {**named, "ms_per_step": "ms per step of all"})
            titles = {"num_worlds": "worlds", "ms_per_step": "ms per step", "steps_per_second": "steps/s"}
            yield from _sweep(results["sweep"], titles, results["num_worlds"])
            if results.get("sweep_ended"):
                yield f"  ({results['sweep_ended']})"
            yield from _threads(results)
        case "inference":
            yield "inference: the policy alone"
            titles = {"mean_ms": "mean ms", "p95_ms": "p95 ms", "p99_ms": "p99 ms"}
            titles["decisions_per_second"] = "decisions/s"
            policies = {"exploring": results, "greedy": results["greedy"]}
            rows = [[name, *(number(one[key]) for key in titles)] for name, one in policies.items()]
            yield from aligned([[f"{results['batch']:,} worlds", *titles.values()], *rows], indent=2)
            yield from _sweep(results["sweep"], {"batch": "worlds", **titles}, results["batch"])
        case "learn":
            yield f"learn: an update from {results['batch']:,} samples"
            named = {"updates_per_second": "updates/s", "samples_per_second": "samples/s"}
            yield _pairs(results, {**named, "ms_per_update": "ms per update"})
            whole, parts = results["ms_per_update"], results["parts_ms"].items()
            yield from _bars((name, f"{number(took)} ms", took / whole, "") for name, took in parts)
            if products := results.get("matrix_products"):
                rate = f"{number(products['mflop'])} MFLOP at {number(products['gflops'])} GFLOP/s"
                yield f"  matrix products: {rate}, which take {products['share']:.0%} of an update's time"
            titles = {"batch": "samples", "ms_per_update": "ms per update", "samples_per_second": "samples/s"}
            yield from _sweep(results["sweep"], titles, results["batch"])
            yield from _threads(results)
        case "collect":
            count, took = results["iterations"], results["seconds_per_iteration"]
            which = "" if results["warmed_up"] else ", the first one"
            iterations = f"{count} iteration{'s' if count > 1 else ''}{which}"
            yield f"collect: the training loop, {iterations}; evaluations not counted"
            titles = {"frames_per_second": "frames/s", "frames_per_iteration": "frames per iteration"}
            yield _pairs(results, {**titles, "seconds_per_iteration": "s per iteration"})
            unit, scale = ("ms", 1e3) if took < 1 else ("s", 1.0)
            parts = results["parts_seconds"].items()
            yield from _bars(
                (name, f"{number(scale * value)} {unit}", value / took, PARTS[name]) for name, value in parts
            )
            if not results["observing_apart"]:
                yield "  (observations are made within simulate)"
        case _:
            yield "gpu"
            if "note" in results:
                yield f"  {results['note']}"
            if "frames_per_second" not in results:
                return
            named = {"gpu_percent": "busy %", "gpu_percent_low": "least", "gpu_percent_high": "most"}
            yield _pairs(results, {**named, "gpu_memory_mb": "memory MB", "gpu_peak_memory_mb": "peak of this run MB"})
            counted = ("kernels", "copies_to_gpu", "copies_from_gpu", "synchronisations", "kernels_per_second")
            both = [what for what in ("step", "update") if what in results]
            rows = [[f"in a {what}", *(number(results[what][name]) for name in counted)] for what in both]
            yield from aligned([["", *(name.replace("_", " ") for name in counted)], *rows], indent=2)
            for what in both:
                for place, count in results[what]["waits_at"].items():
                    yield f"  waits in a {what}: {number(count)} at {place}"


def verdict_lines(findings: Sequence[Results]) -> Iterator[str]:
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


def _pairs(results: Results, titles: Mapping[str, str]) -> str:
    return "  " + "   ".join(f"{title} {number(results[key])}" for key, title in titles.items() if key in results)


def _sweep(points: Sequence[Results], titles: Mapping[str, str], now: float) -> Iterator[str]:
    """Yields the rows of a sweep, with the current setting marked; none for a single point."""
    if len(points) > 1:
        size = next(iter(titles))
        rows = [[*(number(point[key]) for key in titles), "<- now" if point[size] == now else ""] for point in points]
        yield from aligned([[*titles.values(), ""], *rows], indent=2)


def _threads(results: Results) -> Iterator[str]:
    if points := results.get("threads"):
        one = points[0]["per_second"]
        yield "  speed by threads: " + ", ".join(f"{p['threads']}: {p['per_second'] / one:.2f}" for p in points)


def _bars(rows: Iterable[tuple[str, str, float, str]]) -> Iterator[str]:
    cells = [(name, text, f"{share:.1%}", "#" * round(_BAR * share), said) for name, text, share, said in rows]
    a, b, c, *_ = [max(map(len, column)) for column in zip(*cells)]
    for name, text, share, bar, said in cells:
        yield f"  {name:<{a}}  {text:>{b}}  {share:>{c}}  {bar:<{_BAR}} {said}".rstrip()


# -- picture -----------------------------------------------------------------------------------------------------


def save_picture(path: Path, diagnosis: Results) -> bool:
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


SCHEMA = "rlstack.diagnosis/1"
NOISE = 1.1
"""Ratios closer to 1 than this do not count as changes."""
_PARTS = {"learn": "parts_ms", "collect": "parts_seconds"}


def read(path: str | Path) -> dict[str, Any]:
    """Reads an earlier diagnosis.

    Raises:
        ConfigError: the file does not exist, or is of another kind or version.
    """
    try:
        content = json.loads(check_regular(path).read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"its schema is {content['schema']!r}, not {SCHEMA!r}")
        list(lines(content, content, path))  # every part is there
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise ConfigError(f"compare: {path} is not a whole diagnosis ({reason})") from None
    return dict(content)


def measures(diagnosis: Mapping[str, Any]) -> dict[str, tuple[float, bool]]:
    """Returns the comparable numbers by name, each with whether more is better."""
    numbers: dict[str, tuple[float, bool]] = {}
    for test, values in diagnosis["tests"].items():
        for name, value in values.items():
            if name.endswith(("per_second", "real_time_factor", "gpu_percent")):
                numbers[f"{test}.{name}"] = value, True
            elif name.startswith("ms_per_") or (name.endswith("_ms") and not isinstance(value, Mapping)):
                numbers[f"{test}.{name}"] = value, False
        # Parts are compared per frame, since longer iterations do not make a run slower.
        frames = values.get("frames_per_iteration")
        unit, scale = (" ms", 1.0) if frames is None else (" s per million frames", 1e6 / frames)
        parts = values.get(_PARTS.get(test, ""), {})
        numbers |= {f"{test}.{name}{unit}": (scale * took, False) for name, took in parts.items()}
        if "gpu_peak_memory_mb" in values:
            numbers[f"{test}.gpu_peak_memory_mb"] = values["gpu_peak_memory_mb"], False
    return numbers


def changes(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns ``name``, ``before``, ``now`` and ``ratio`` (above 1: better now) of each number that both have."""
    earlier, rows = measures(before), []
    for name, (value, better) in measures(now).items():
        old, _ = earlier.get(name, (0.0, better))
        if old > 0 and value > 0:
            rows.append({"name": name, "before": old, "now": value, "ratio": value / old if better else old / value})
    return rows


def lines(now: Mapping[str, Any], before: Mapping[str, Any], path: str | Path) -> Iterator[str]:
    """Yields the comparison as lines of text."""
    yield f"compared with {path}"
    for difference in differences(now, before):
        yield f"  not the same: {difference}"
    rows = changes(now, before)
    if not rows:
        yield "  nothing was measured in both"
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        ratio = row["ratio"]
        change = f"{ratio:.2f} times better" if ratio > 1 else f"{1 / ratio:.2f} times worse"
        change = f"about the same ({ratio:.2f})" if 1 / NOISE < ratio < NOISE else change
        yield f"  {row['name']:<{width}}  {number(row['before']):>12} -> {number(row['now']):>12}  {change}"


def differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Yields the conditions that differ: machine, device, options."""
    for part in ("machine", "subject", "config"):
        ours, theirs = (dict(flat(side.get(part, {}))) for side in (now, before))
        for key in {**theirs, **ours}:
            old, new = theirs.get(key, "None"), ours.get(key, "None")
            if key not in ("cpu_share", "seconds") and old != new:
                yield f"{key} {old} -> {new}"
