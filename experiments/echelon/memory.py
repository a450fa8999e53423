"""Is a memory worth anything where enemies are seen only as far as sensors reach? PPO with and without an LSTM.

    python -m experiments.echelon.memory --parallel 2

Every kind and seed is one ``python -m rlstack.train experiment=echelon/partial`` of one thread; the last checkpoint
is judged in ``--episodes`` episodes of blue against both bots in turns, at full fire, on maps it has not trained on.
Results beside this file: ``memory.json``, ``memory.csv`` (games won during training) and ``memory.png``.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.against import read_log
from experiments.runs import add_options, cost, final_evaluation, train

HERE = Path(__file__).parent
KINDS = {"mlp": [], "lstm": ["agent.recurrent={kind: lstm, size: 128, sequence_length: 32}"]}
LABELS = {"mlp": "no recurrent core", "lstm": "LSTM of 128"}


def judge(run: Path, episodes: int, seed: int) -> dict[str, float]:
    """Final score, sampled, and what the training cost."""
    summary = final_evaluation(run, episodes, seed, "explore")["summary"]
    spent = cost(run)
    return {
        "success": summary["eval/success"],
        "hp_margin": summary["eval/hp_margin"],
        "length": summary["eval/length"],
        "frames": spent["frames"],
        "cpu_minutes": spent["cpu_minutes"],
    }


def draw(curves: dict[str, list[dict[str, str]]], path: Path) -> None:
    """Mean over the seeds, and their range; by frames and by CPU time."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, constrained_layout=True)
    for axis, (column, scale) in zip(axes, (("frames", 1e6), ("time/cpu_seconds", 60))):
        for kind, rows in curves.items():
            seeds = sorted({row["seed"] for row in rows})
            own = [[row for row in rows if row["seed"] == seed] for seed in seeds]
            places = [[float(row[column]) / scale for row in mine] for mine in own]
            grid = np.linspace(max(map(min, places)), min(map(max, places)), 100)
            won = [np.interp(grid, x, [float(row["train/success"]) for row in mine]) for x, mine in zip(places, own)]
            axis.plot(grid, np.mean(won, 0), label=f"{LABELS[kind]}, {len(seeds)} seeds")
            axis.fill_between(grid, np.min(won, 0), np.max(won, 0), alpha=0.2)
        axis.grid(alpha=0.3)
    axes[0].set(xlabel="million frames", ylabel="share of games won while training", ylim=(0, 1))
    axes[1].set(xlabel="CPU minutes, one thread")
    axes[0].legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def table(found: dict[str, dict[int, dict[str, float]]]) -> str:
    """Markdown, a row for each kind."""
    lines = [
        "| policy | seeds | frames | CPU-min | games won, mean | by seed | hp margin | decisions |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, seeds in found.items():
        rows = list(seeds.values())
        mean = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
        each = ", ".join(f"{row['success']:.1%}" for row in rows)
        cells = [LABELS[kind], str(len(rows)), f"{mean['frames']:,.0f}", f"{mean['cpu_minutes']:.1f}"]
        cells += [f"{mean['success']:.1%}", each, f"{mean['hp_margin']:.0f}", f"{mean['length']:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, Path("runs/echelon/partial"), HERE)
    parser.add_argument("--episodes", type=int, default=256, help="in each final evaluation")
    arguments = parser.parse_args()

    def one(case: tuple[str, int]) -> tuple[Path, dict[str, Any]]:
        kind, seed = case
        overrides = ["experiment=echelon/partial", "threads=1", *KINDS[kind], *arguments.overrides]
        run = train(seed, arguments.folder / kind, overrides)
        return run, judge(run, arguments.episodes, arguments.evaluation_seed)

    cases = list(product(KINDS, arguments.seeds))
    with ThreadPoolExecutor(arguments.parallel) as pool:
        done = dict(zip(cases, pool.map(one, cases), strict=True))
    found = {kind: {seed: done[kind, seed][1] for seed in arguments.seeds} for kind in KINDS}
    curves = {kind: read_log({seed: done[kind, seed][0] for seed in arguments.seeds}) for kind in KINDS}
    (arguments.out / "memory.json").write_text(json.dumps(found, indent=2) + "\n")
    with open(arguments.out / "memory.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["kind", *curves["mlp"][0]])
        writer.writeheader()
        writer.writerows({"kind": kind, **row} for kind, rows in curves.items() for row in rows)
    draw(curves, arguments.out / "memory.png")
    print(table(found))


if __name__ == "__main__":
    main()
