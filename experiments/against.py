"""Trains seeds against the players of a world, plays games with each, and writes curve, table and film.

    python -m experiments.against rocket/rules --seeds 0
    python -m experiments.against echelon/bots --parallel 2

Every seed is one ``rlstack train experiment=<name>`` with one thread (further overrides can be appended). Its last
checkpoint plays games against each opponent, half of them on either side, with actions sampled from the policy, since
two deterministic players would repeat the same few games.

``rocket/rules`` imitates two million decisions of the rule-based player, then PPO learns against it, 1v1;
``rocket/two`` does the same 2v2; ``rocket/self_play`` continues from the agent of ``rules`` (``zoo:rocket``), and
``rocket/scratch`` learns from self-play alone.
``echelon/bots`` trains a team of five against both bots; its games are on unseen maps, at full fire. Results in the
world's folder: ``<name>.json``, ``<name>.csv`` and ``<name>.png`` (the training), ``<name>.yaml`` (the configuration),
and the best game of the first seed as film and replay.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.results import draw_seeds, interval, join, join_csv, markdown, read_csv, saved
from experiments.runs import cost, evaluate, options, settings_file, train, trained_on
from rlstack.evaluation.figures import saved_figure

SHOWN = (
    *("frames", "time/seconds", "time/cpu_seconds"),
    *("train/episodes", "train/success", "train/return", "train/length"),
)
Log = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Experiment:
    """A training and its opponents.

    Attributes:
        opponents: opponents of the last checkpoint; films show games against the first.
        games: number of games against each, half of them on either side.
        seeds: default seeds.
        films: suffixes of the files of the best game.
        ylabel: title of the curve's y axis.
        curve: metric that the curve shows.
    """

    opponents: tuple[str, ...]
    games: int
    seeds: tuple[int, ...]
    films: tuple[str, ...]
    ylabel: str
    curve: str = "train/success"


_FILMS, _WON = ("mp4", "npz"), "share of all games won against"
EXPERIMENTS = {
    "rocket/rules": Experiment(("rule",), 1000, (0, 1, 2), _FILMS, f"{_WON} the rules"),
    "rocket/self_play": Experiment(("zoo:rocket", "rule"), 1000, (0,), _FILMS, "share of games won against the pool"),
    "rocket/two": Experiment(("rule",), 1000, (0,), _FILMS, f"{_WON} two rules"),
    "rocket/scratch": Experiment(
        ("rule", "zoo:rocket"), 1000, (0,), _FILMS, "touches of the ball by a car in a game", "train/touches_blue"
    ),
    "echelon/bots": Experiment(
        ("heuristic", "veteran"), 512, (0, 1, 2), ("mp4", "html"), "share of games won against heuristic and veteran"
    ),
}
"""Experiments by the value of ``experiment=`` for ``rlstack train``."""


def judge(path: Path, experiment: Experiment, games: int, seed: int) -> dict[str, Any]:
    """Plays games with a run's last checkpoint, exploring, and reads the cost of its training."""
    opponents = {}
    for name in experiment.opponents:
        report = _games(path, name, games, seed, name == experiment.opponents[0])
        opponents[name] = {**report["opponents"][0], "rating": report["fitted_elo"]}
    return {**cost(path), "opponents": opponents}


def _folder(path: Path, opponent: str) -> Path:
    return path / "evaluations" / f"games_{opponent}"


def _games(path: Path, opponent: str, games: int, seed: int, video: bool) -> dict[str, Any]:
    """Returns a report of ``rlstack.evaluate``, making it unless it exists."""
    output = _folder(path, opponent)
    there = saved(output / "results.json")
    if (there.get("total_games"), there.get("seed")) != (games, seed):
        evaluate(path, output, games, seed, f"opponents=[{opponent}]", "policy=explore", f"video={video}")
    return saved(output / "results.json")


def read_log(
    runs: Mapping[str, Path], columns: Sequence[str] = SHOWN, outcomes: Sequence[str] = ("train/success",)
) -> list[dict[str, str]]:
    """Returns columns of the logs of some runs, one row for each line that has one of the outcomes."""
    rows = []
    for seed, path in runs.items():
        logged = [row for row in read_csv(path / "metrics.csv") if any(row[name] for name in outcomes)]
        rows += [{"seed": seed, **{name: row.get(name, "") for name in columns}} for row in logged]
    return rows


def draw(rows: Log, path: Path, ylabel: str, curve: str = "train/success") -> None:
    """Draws a metric of the training: the share of games won, where draws count as not won, or another."""
    with saved_figure(path, "") as (axis,):
        draw_seeds(axis, rows, curve, "time/cpu_seconds")
        if curve == "train/success":
            axis.axhline(0.5, color="0.6", lw=0.8, ls="--")
            axis.set(ylim=(0, 1))
        axis.set(xlabel="CPU minutes, one thread", ylabel=ylabel)


def won(row: Mapping[str, Any]) -> str:
    """Returns the share of games won, with its interval."""
    return interval(row["win_rate"], (row["win_rate_low"], row["win_rate_high"]), ".1%")


def table(results: Mapping[str, Any]) -> str:
    """Returns a row for each seed and opponent."""
    rows = []
    for seed, entry in sorted(results["seeds"].items()):
        trained = [seed, f"{entry['frames']:,.0f}", f"{entry['cpu_minutes']:.1f}"]
        for name, row in entry["opponents"].items():
            rows.append([*trained, name, row["wins"], row["draws"], row["losses"], won(row), f"{row['rating']:.0f}"])
    heads = "seed | frames | CPU-min | against | won | drawn | lost"
    return markdown(f"{heads} | won of all (95 %) | Elo by these", rows)


def main() -> None:
    """Command line."""
    parser = options(__doc__, __file__, "runs", None)
    parser.add_argument("experiment", choices=list(EXPERIMENTS))
    parser.add_argument("--games", type=int, help="against each opponent")
    arguments = parser.parse_intermixed_args()
    name, experiment, out = arguments.experiment, EXPERIMENTS[arguments.experiment], arguments.out
    seeds, games = arguments.seeds or experiment.seeds, arguments.games or experiment.games
    jobs = [(seed, arguments.folder / name, [f"experiment={name}", *arguments.overrides]) for seed in seeds]
    runs = dict(zip(map(str, seeds), train(jobs, arguments.parallel), strict=True))
    with ThreadPoolExecutor(arguments.parallel) as pool:
        judged = pool.map(lambda path: judge(path, experiment, games, arguments.evaluation_seed), runs.values())
    measured = {seed: {"machine": trained_on(runs[seed]), **one} for seed, one in zip(runs, judged, strict=True)}
    results = join(out / f"{name}.json", {"games": games, "seeds": measured})
    columns = tuple(dict.fromkeys((*SHOWN, experiment.curve)))
    rows = join_csv(out / f"{name}.csv", ["seed"], columns, read_log(runs, columns))
    draw(rows, out / f"{name}.png", experiment.ylabel, experiment.curve)
    if (first := min(results["seeds"])) in runs:
        shutil.copyfile(settings_file(runs[first]), out / f"{name}.yaml")
        for ending in experiment.films:
            best = _folder(runs[first], experiment.opponents[0]) / f"best_1.{ending}"
            shutil.copyfile(best, out / f"{name}.{ending}")
    print(table(results))


if __name__ == "__main__":
    main()
