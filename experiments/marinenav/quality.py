"""Trains seeds of ``agent=acqn env=marinenav``, evaluates them beside the published agent, and draws the curve.

    python -m experiments.marinenav.quality --seeds 0 1 2 --parallel 2

Every seed is one ``rlstack train`` with the shipped configuration (further overrides can be appended), then one
``rlstack evaluate`` on 300 fixed, unseen episodes a level. Results beside this file:
``curve.csv`` and ``curve.png`` (evaluations during training), ``final.json`` (the table of the README) and
``config.yaml`` (the configuration of the first seed).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import draw_seeds, markdown, write_csv
from experiments.runs import final_evaluation, logged, options, settings_file, train_arms, trained_on
from rlstack.envs.foundation.files import write_json
from rlstack.evaluation.figures import saved_figure
from rlstack.evaluation.statistics import bootstrap_interval

PUBLISHED_SUCCESS, PUBLISHED_TIME = 0.769, 19.3
"""AC-IQN as released, 720 noisy episodes in the original environment: rate, and seconds on success."""
LEVELS = 6


def write_curve(curves: dict[int, list[dict[str, float]]], folder: Path) -> None:
    """Writes ``curve.csv`` and ``curve.png``."""
    columns = ["seed", "time/seconds", "time/cpu_seconds", "frames", "eval/success", "eval/time", "eval/collision"]
    columns += [f"eval/success_level{level}" for level in range(LEVELS)]
    rows = [{"seed": seed, **row} for seed, own in curves.items() for row in own]
    write_csv(folder / "curve.csv", columns, rows)
    clocks = {"time/seconds": "wall-clock minutes", "time/cpu_seconds": "CPU minutes (all cores)"}
    with saved_figure(folder / "curve.png", "", 2, 2, (5.5, 4.2)) as axes:
        for axis, (column, label) in zip(axes, clocks.items()):
            draw_seeds(axis, rows, "eval/success", column)
            axis.axhline(PUBLISHED_SUCCESS, color="grey", linestyle="--", label="published AC-IQN")
            axis.axhline(0.95, color="grey", linestyle=":", label="target")
            axis.set(xlabel=label, ylabel="success, levels 0-5, greedy, noise on", ylim=(0, 1))


def summarise(finals: dict[int, dict[str, Any]], curves: dict[int, list[dict[str, float]]]) -> dict[str, Any]:
    """The rows of the README: per seed and pooled."""
    seeds = {}
    for seed, final in finals.items():
        rows = curves[seed]
        passed = next((row for row in rows if row["eval/success"] >= PUBLISHED_SUCCESS), None)
        seeds[seed] = dict(final["summary"])
        for name, clock in (("minutes", "time/seconds"), ("cpu_minutes", "time/cpu_seconds")):
            seeds[seed][name] = rows[-1][clock] / 60
            seeds[seed][f"{name}_to_published"] = None if passed is None else passed[clock] / 60
    means = [entry["eval/success"] for entry in seeds.values()]
    # Every seed plays the same episodes, over which the interval is.
    success = np.array([[episode["success"] for episode in final["episodes"]] for final in finals.values()])
    levels = [entry[f"eval/success_level{level}"] for entry in seeds.values() for level in range(LEVELS)]
    time = sum(entry["eval/time"] for entry in seeds.values()) / len(seeds)
    command = "python -m experiments.marinenav.quality " + " ".join(sys.argv[1:])
    pooled = {"success_mean": sum(means) / len(means), "lowest_level": min(levels), "time_ratio": time / PUBLISHED_TIME}
    bounds = list(bootstrap_interval(success.mean(0)))
    pooled |= {"success_min_max": [min(means), max(means)], "success_interval": bounds}
    return {"command": command, **pooled, "seeds": seeds}


def table(summary: dict[str, Any]) -> str:
    """Returns a row for each seed, and one for their mean beside the published agent's figures."""
    rows = []
    for seed, row in summary["seeds"].items():
        levels = " ".join(f"{row[f'eval/success_level{level}']:.2f}" for level in range(LEVELS))
        passed = row["minutes_to_published"], row["cpu_minutes_to_published"]
        clocks = [(row["minutes"], row["cpu_minutes"]), passed]
        spent = ["never" if clock[0] is None else "{:.1f} min ({:.1f} CPU-min)".format(*clock) for clock in clocks]
        rows.append([seed, f"{row['eval/success']:.3f}", levels, f"{row['eval/time']:.1f} s", *spent])
    ends = *summary["success_interval"], *summary["success_min_max"]
    mean = "{:.3f}, {:.3f} to {:.3f} over episodes, {:.3f} to {:.3f} over seeds".format(summary["success_mean"], *ends)
    ratio = f"{summary['time_ratio']:.2f} times the published time"
    rows.append(["mean", mean, f"lowest level {summary['lowest_level']:.3f}", ratio, "", ""])
    return markdown("seed | success | by level 0-5 | time on success | training | passes 0.77 after", rows)


def main() -> None:
    """Command line."""
    parser = options(__doc__, __file__, "runs/quality")
    parser.add_argument("--episodes", type=int, default=300, help="per level, in the final evaluation")
    arguments = parser.parse_intermixed_args()
    runs = dict(zip(arguments.seeds, train_arms({".": []}, arguments)["."].values(), strict=True))
    finals = {seed: final_evaluation(run, arguments.episodes, arguments.evaluation_seed) for seed, run in runs.items()}
    curves = {seed: logged(run, "eval/success") for seed, run in runs.items()}
    write_curve(curves, arguments.out)
    shutil.copyfile(settings_file(runs[arguments.seeds[0]]), arguments.out / "config.yaml")
    summary = summarise(finals, curves)
    summary["machine"] = "; ".join(dict.fromkeys(map(trained_on, runs.values())))
    write_json(arguments.out / "final.json", summary)
    print(table(json.loads(json.dumps(summary))))


if __name__ == "__main__":
    main()
