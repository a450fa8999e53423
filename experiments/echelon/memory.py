"""Trains PPO under partial sight without a recurrent state, with an LSTM, and with attention.

    python -m experiments.echelon.memory --parallel 2
    python -m experiments.echelon.memory --kinds mlp lstm --seeds 3 4      # adds seeds; results keep the others

Enemies are seen only within reach of the sensors. Every kind and seed is one ``rlstack train
experiment=echelon/partial`` with one thread; the last checkpoint plays ``--episodes`` episodes as blue against both
bots in turns, at full fire, on unseen maps. Results beside this file: ``memory.json``, ``memory.csv`` (games won during
training) and ``memory.png``.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.against import SHOWN, read_log
from experiments.results import draw_range, interval, join, join_csv, markdown
from experiments.runs import cost, final_evaluation, options, train_arms
from rlstack.evaluation.figures import saved_figure
from rlstack.evaluation.statistics import bootstrap_interval, separation

HERE = Path(__file__).parent
ATTENTION = "experiments.echelon.contacts:Net"
_LONG = 6_600_000


class Kind(NamedTuple):
    """A policy: its name in tables, and its overrides."""

    label: str
    overrides: tuple[str, ...]


_LSTM = "agent.recurrent={kind: lstm, size: 128, sequence_length: 32}"
KINDS = {
    "mlp": Kind("no recurrent core", ()),
    "lstm": Kind("LSTM of 128", (_LSTM,)),
    "lstm_bfloat16": Kind("LSTM of 128, in bfloat16", (_LSTM, "agent.precision=bfloat16")),
    "attention": Kind("attention among contacts", (f"agent.network={ATTENTION}",)),
    "mlp_long": Kind(
        "no recurrent core, the CPU time of the LSTM",
        (f"total_frames={_LONG}", f"eval.every={_LONG}", f"checkpoint.every={_LONG}"),
    ),
}


def judge(run: Path, episodes: int, seed: int) -> dict[str, float]:
    """Returns the final score with sampled actions, and the cost of the training."""
    summary = final_evaluation(run, episodes, seed, "explore", [ATTENTION])["summary"]
    spent = cost(run)
    scores = {name: summary[f"eval/{name}"] for name in ("success", "hp_margin", "length")}
    return {**scores, "frames": spent["frames"], "cpu_minutes": spent["cpu_minutes"]}


def draw(curves: Mapping[str, list[Mapping[str, Any]]], path: Path) -> None:
    """Draws mean and range over the seeds by frames and by CPU time."""
    with saved_figure(path, "", 2, 2, (5.5, 4), sharey=True) as axes:
        for axis, (column, scale) in zip(axes, (("frames", 1e6), ("time/cpu_seconds", 60))):
            for kind, rows in curves.items():
                seeds = sorted({row["seed"] for row in rows})
                own = [[row for row in rows if row["seed"] == seed] for seed in seeds]
                places = [[float(row[column]) / scale for row in mine] for mine in own]
                grid = np.linspace(max(map(min, places)), min(map(max, places)), 100)
                shares = [[float(row["train/success"]) for row in mine] for mine in own]
                won = [np.interp(grid, *points) for points in zip(places, shares)]
                draw_range(axis, grid.tolist(), won, f"{KINDS[kind].label}, {len(seeds)} seeds")
        axes[0].set(xlabel="million frames", ylabel="share of games won while training", ylim=(0, 1))
        axes[1].set(xlabel="CPU minutes, one thread")


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Returns a row for each kind."""
    cells = []
    won = {kind: [row["success"] for row in seeds.values()] for kind, seeds in results.items()}
    for kind, seeds in results.items():
        rows = list(seeds.values())
        mean = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
        compared = kind != "lstm" and "lstm" in won
        cells.append(
            [
                *(KINDS[kind].label, len(rows), f"{mean['frames']:,.0f}", f"{mean['cpu_minutes']:.1f}"),
                interval(mean["success"], bootstrap_interval(won[kind]), ".1%"),
                ", ".join(f"{row['success']:.1%}" for row in rows),
                f"{separation(won[kind], won['lstm'])[0]:.2f}" if compared else "",
                *(f"{mean['hp_margin']:.0f}", f"{mean['length']:.0f}"),
            ]
        )
    heads = "policy | seeds | frames | CPU-min | games won (95 %) | by seed | p beside LSTM | hp margin | decisions"
    return markdown(heads, cells)


def main() -> None:
    """Command line."""
    parser = options(__doc__, HERE, "runs/echelon/partial")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--episodes", type=int, default=256, help="in each final evaluation")
    arguments = parser.parse_intermixed_args()
    overrides = {kind: ["experiment=echelon/partial", *KINDS[kind].overrides] for kind in arguments.kinds}
    trained = train_arms(overrides, arguments)
    judged = {
        kind: {seed: judge(run, arguments.episodes, arguments.evaluation_seed) for seed, run in runs.items()}
        for kind, runs in trained.items()
    }
    results = join(arguments.out / "memory.json", judged)
    logs = [{"kind": kind, **row} for kind, runs in trained.items() for row in read_log(runs)]
    rows = join_csv(arguments.out / "memory.csv", ["kind", "seed"], SHOWN, logs)
    draw({kind: [row for row in rows if row["kind"] == kind] for kind in results}, arguments.out / "memory.png")
    print(table(results))


if __name__ == "__main__":
    main()
