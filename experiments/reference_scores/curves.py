"""Learning curves of the studies: one csv, one picture."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter, MaxNLocator

COLUMNS = ("study", "seed", "frames", "return")


def write(folder: Path, studies: list[str], seeds: list[int], out: Path) -> None:
    """Evaluations during training of these seeds of these studies into ``curves.csv``; the rows of others stay."""
    path = out / "curves.csv"
    rows = [row for study in studies for row in _rows(folder, study, seeds)]
    new = {(row["study"], row["seed"]) for row in rows}
    if path.is_file():
        with open(path, newline="") as file:
            rows = [row for row in csv.DictReader(file) if (row["study"], row["seed"]) not in new] + rows
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def _rows(folder: Path, study: str, seeds: list[int]) -> Iterator[dict[str, str]]:
    for seed in seeds:
        metrics = folder / study / f"seed{seed}" / "metrics.csv"
        if not metrics.is_file():
            continue
        with open(metrics, newline="") as file:
            for row in csv.DictReader(file):
                if row.get("eval/return"):
                    yield {"study": study, "seed": str(seed), "frames": row["frames"], "return": row["eval/return"]}


def draw(path: Path, results: dict[str, dict[str, Any]], picture: Path) -> None:
    """One panel a study: each seed, their mean, and the bar."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    width = 4
    height = -(-len(results) // width)
    figure, axes = plt.subplots(
        height, width, figsize=(4 * width, 2.8 * height), constrained_layout=True, squeeze=False
    )
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (study, result) in zip(axes.flat, results.items()):
        axis.set_axis_on()
        curves: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if row["study"] == study:
                curves.setdefault(row["seed"], []).append((float(row["frames"]), float(row["return"])))
        for curve in curves.values():
            axis.plot(*zip(*curve), color="tab:blue", alpha=0.3, linewidth=1)
        if not curves:
            continue
        shortest = min(len(curve) for curve in curves.values())
        mean = np.mean([[value for _, value in curve[:shortest]] for curve in curves.values()], axis=0)
        axis.plot([frames for frames, _ in next(iter(curves.values()))[:shortest]], mean, color="tab:blue")
        axis.axhline(result["bar"], color="grey", linestyle=":")
        axis.set_title(fill(f"{result['environment']}, {result['algorithm']}", 40), fontsize=10)
        axis.xaxis.set_major_locator(MaxNLocator(4))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.grid(alpha=0.3)
    figure.supxlabel("frames")
    figure.supylabel("return of greedy episodes (dotted: to be reached)")
    figure.savefig(picture, dpi=110)
    plt.close(figure)
