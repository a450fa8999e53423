"""The sweeps and the parts of an iteration, drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.whole_files import replacing


def save_picture(path: Path, diagnosis: Mapping[str, Any]) -> bool:
    """Draws a panel for everything that there is to draw; False, and no file, if there is nothing."""
    from matplotlib.figure import Figure  # slow to import, and not always wanted

    tests, panels = diagnosis["tests"], list[Callable[[Any], None]]()
    if len(sweep := tests.get("env", {}).get("sweep", [])) > 1:
        now = tests["env"]["num_worlds"]
        panels.append(lambda axes: _curve(axes, sweep, "num_worlds", "steps_per_second", now, "worlds", "steps/s"))
    if acting := tests.get("inference", {}).get("sweep", []):
        panels.append(lambda axes: _acting(axes, acting, tests["inference"]["batch"]))
    if learning := tests.get("learn", {}).get("sweep", []):
        now_learned = tests["learn"]["batch"]
        title = ("samples in an update", "samples/s")
        panels.append(lambda axes: _curve(axes, learning, "batch", "samples_per_second", now_learned, *title))
    if parts := tests.get("collect", {}).get("parts_seconds", {}):
        panels.append(lambda axes: _parts(axes, parts))
    if not panels:
        return False
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5 * columns, 3.4 * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, draw in zip(places, panels):
        draw(axes)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    subject = diagnosis["subject"]
    figure.suptitle(f"{subject['agent']} in {subject['env']}, {subject['device']}", fontsize=10)
    with replacing(path) as (partial,):
        figure.savefig(partial, dpi=120)
    return True


def _curve(
    axes: Any, points: Sequence[Mapping[str, Any]], size: str, rate: str, now: float, along: str, up: str
) -> None:
    axes.plot([point[size] for point in points], [point[rate] for point in points], marker="o")
    axes.axvline(now, color="gray", linestyle="--", linewidth=0.8, label="now")
    axes.set(xscale="log", yscale="log", xlabel=along, ylabel=up)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _acting(axes: Any, points: Sequence[Mapping[str, Any]], now: float) -> None:
    sizes = [point["batch"] for point in points]
    for name in ("mean_ms", "p95_ms", "p99_ms"):
        axes.plot(sizes, [point[name] for point in points], marker="o", label=name.removesuffix("_ms"))
    axes.axvline(now, color="gray", linestyle="--", linewidth=0.8, label="now")
    axes.set(xscale="log", yscale="log", xlabel="worlds that the policy acts for", ylabel="ms")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _parts(axes: Any, parts: Mapping[str, float]) -> None:
    whole = sum(parts.values())
    names = list(parts)[::-1]
    bars = axes.barh(names, [100 * parts[name] / whole for name in names])
    axes.bar_label(bars, [f"{100 * parts[name] / whole:.1f} %" for name in names], fontsize=8, padding=2)
    axes.set(xlabel="% of an iteration", xlim=(0, 110))
