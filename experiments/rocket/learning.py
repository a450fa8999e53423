"""Does PPO beat Rocket's player of rules in 1v1? Trains seeds, plays 1000 games with each, draws the curve.

    python -m experiments.rocket.learning --seeds 0 1 --parallel 2

Every seed is one ``python -m rlstack.train experiment=rocket/rules`` of one thread (further overrides can be
appended): two million decisions of the rules are imitated, then PPO learns against them. Its last checkpoint plays
games of kick-offs against the rules and against random play, both sides in turns, with actions sampled from the policy:
two players without chance would repeat the same few games, as there are five kick-offs. Results beside this file:
``rules.json``, ``rules.csv`` (the training), ``rules.yaml`` (the resolved configuration), ``rules.mp4`` and
``rules.npz`` (the best game of the first seed, as film and replay), ``curve.png`` and ``table.md``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from experiments.runs import train

HERE = Path(__file__).parent
OPPONENTS = ("rule", "random")
SHOWN = ("frames", "time/seconds", "time/cpu_seconds", "train/episodes", "train/success", "train/return", "train/time")


def judge(run: Path, games: int, seed: int) -> dict[str, Any]:
    """Games of a run's last checkpoint, as it explores, and what the training cost."""
    results = {name: _games(run, name, games, seed) for name in OPPONENTS}
    with open(run / "metrics.csv", newline="") as file:
        last = [row for row in csv.DictReader(file) if row["time/seconds"]][-1]
    return {
        "frames": float(last["frames"]),
        "minutes": float(last["time/seconds"]) / 60,
        "cpu_minutes": float(last["time/cpu_seconds"]) / 60,
        "opponents": {
            name: {**found["opponents"][0], "rating": found["fitted_elo"]} for name, found in results.items()
        },
    }


def _games(run: Path, opponent: str, games: int, seed: int) -> dict[str, Any]:
    """A report of ``rlstack.evaluate``, unless it is there already; films are made of games against the rules."""
    output = run / "evaluations" / f"games_{opponent}"
    if not (output / "results.json").is_file():
        command = [sys.executable, "-m", "rlstack.evaluate", f"checkpoint={run}", f"opponents=[{opponent}]"]
        command += ["policy=explore", f"episodes={games}", f"seed={seed}", f"output={output}"]
        subprocess.run([*command, f"video={opponent == OPPONENTS[0]}"], check=True)
    return json.loads((output / "results.json").read_text())


def read_log(runs: dict[int, Path]) -> list[dict[str, str]]:
    """What was logged of the games during training, a row each."""
    rows = []
    for seed, run in runs.items():
        with open(run / "metrics.csv", newline="") as metrics:
            logged = [row for row in csv.DictReader(metrics) if row["train/success"]]
        rows += [{"seed": str(seed), **{name: row[name] for name in SHOWN}} for row in logged]
    return rows


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """Games won during training, which begin anywhere on the pitch; drawn ones count as not won."""
    figure, axis = plt.subplots(figsize=(7, 4), constrained_layout=True)
    for seed in sorted({row["seed"] for row in rows}):
        own = [row for row in rows if row["seed"] == seed]
        minutes = [float(row["time/cpu_seconds"]) / 60 for row in own]
        axis.plot(minutes, [float(row["train/success"]) for row in own], label=f"seed {seed}")
    axis.axhline(0.5, color="0.6", lw=0.8, ls="--")
    axis.set(xlabel="CPU minutes, one thread", ylabel="share of all games won against the rules", ylim=(0, 1))
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def table(results: dict[str, Any]) -> str:
    """Markdown, a row for each seed and opponent."""
    lines = [
        "| seed | frames | CPU-min | against | won | drawn | lost | of decided, 95 % | Elo by these games |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for seed, found in results["seeds"].items():
        for name, row in found["opponents"].items():
            rates = [row[f"decided_win_rate{end}"] for end in ("", "_low", "_high")]
            decided = "{:.1%} ({:.1%} to {:.1%})".format(*rates)
            cells = [str(seed), f"{found['frames']:,.0f}", f"{found['cpu_minutes']:.1f}", name]
            cells += [str(row[count]) for count in ("wins", "draws", "losses")]
            cells += [decided, f"{row['rating']:.0f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--parallel", type=int, default=1, help="runs at once")
    parser.add_argument("--games", type=int, default=1000, help="against each opponent")
    parser.add_argument("--evaluation-seed", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("runs/rocket/rules"), help="of the run directories")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("overrides", nargs="*", help="further overrides of rlstack.train")
    arguments = parser.parse_args()
    overrides = ["experiment=rocket/rules", "threads=1", *arguments.overrides]
    with ThreadPoolExecutor(arguments.parallel) as pool:
        paths = list(pool.map(lambda seed: train(seed, arguments.folder, overrides), arguments.seeds))
        found = list(pool.map(lambda run: judge(run, arguments.games, arguments.evaluation_seed), paths))
    results = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, one thread, {arguments.parallel} runs at once",
        "games": arguments.games,
        "seeds": dict(zip(arguments.seeds, found, strict=True)),
    }
    (arguments.out / "rules.json").write_text(json.dumps(results, indent=2) + "\n")
    rows = read_log(dict(zip(arguments.seeds, paths, strict=True)))
    with open(arguments.out / "rules.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["seed", *SHOWN])
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, arguments.out / "curve.png")
    shutil.copyfile(paths[0] / "config.yaml", arguments.out / "rules.yaml")
    for ending in ("mp4", "npz"):
        shutil.copyfile(
            paths[0] / "evaluations" / f"games_{OPPONENTS[0]}" / f"best_1.{ending}", arguments.out / f"rules.{ending}"
        )
    (arguments.out / "table.md").write_text(table(results))
    print(table(results))


if __name__ == "__main__":
    main()
