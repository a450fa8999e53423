"""Checks that the algorithms reach their reference scores: trains every study on several seeds and evaluates them.

    python -m experiments.reference_scores.scores --parallel 2  # all
    python -m experiments.reference_scores.scores --studies cartpole_ppo pendulum_sac  # some
    python -m experiments.reference_scores.scores --studies cartpole_qrdqn --seeds 3 4  # joins the results

``studies.csv`` says what each study must reach; its file in ``conf/experiment/reference`` holds every other number, and
several share ``mujoco_ppo`` and ``mujoco_sac``. Interrupted runs continue from their last checkpoint. The last
checkpoint of each seed (not the best one) plays 100 episodes greedily in environments of another seed. Results beside
this file: ``results/<study>.json``, ``results/curves.csv`` and ``curves.png``; ``python -m experiments.tables`` writes
the table of the README.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.ticker import EngFormatter, MaxNLocator

from experiments.results import interval, join_csv, markdown, read_csv, saved
from experiments.runs import cost, evaluations, final_evaluation, options, train_arms, trained_on
from rlstack.envs.foundation.files import write_json
from rlstack.evaluation.figures import saved_figure
from rlstack.evaluation.statistics import bootstrap_interval, iqm

HERE = Path(__file__).parent
EPISODES, EVALUATION_SEED = 100, 1000
OURS = "experiments.reference_scores.deep_sea:DeepSea-v0"
"""The environment of these studies that is code of this folder, which a run's files may name."""


class Study(NamedTuple):
    """What a study must reach.

    Attributes:
        environment, algorithm: for the table.
        bar: lowest mean return over the final episodes; where ``of`` is "none above", the highest.
        of: in every seed, or in the mean over the seeds.
        recipe: file in ``conf/experiment/reference`` of a study that shares its recipe with other environments; the
            environment is then its ``env.id``. None: the study's name.
    """

    environment: str
    algorithm: str
    bar: float
    of: Literal["every seed", "mean", "none above"]
    recipe: str | None = None

    def passed(self, scores: Sequence[float]) -> bool:
        """Whether the seeds' mean returns are as they should be."""
        if self.of == "none above":
            return max(scores) <= self.bar
        return bool((min(scores) if self.of == "every seed" else np.mean(scores)) >= self.bar)


STUDIES = {
    row.pop("study"): Study(**{**row, "bar": float(row["bar"]), "recipe": row["recipe"] or None})  # type: ignore[arg-type]
    for row in read_csv(HERE / "studies.csv")
}


def recipe(study: str) -> list[str]:
    """Returns the overrides of a study's runs."""
    shared = STUDIES[study].recipe
    own = [f"experiment=reference/{shared or study}"]
    return own if shared is None else [*own, f"env.id={STUDIES[study].environment}"]


def judge(study: str, runs: Mapping[str, Path], earlier: dict[str, Any]) -> dict[str, Any]:
    """Evaluates the seeds of a study, and says whether they reach the bar.

    Args:
        study: a key of :data:`STUDIES`.
        runs: its runs by seed.
        earlier: an earlier result of this function, whose other seeds stay; or nothing.

    Raises:
        SystemExit: these trained for other frames (by more than 1 %).
    """
    scores, seconds = dict(earlier.get("scores", {})), dict(earlier.get("cpu_seconds", {}))
    machines = {*filter(None, earlier.get("machine", "").split("; ")), *map(trained_on, runs.values())}
    for seed, run in runs.items():
        frames, seconds[seed] = int(cost(run)["frames"]), 60 * cost(run)["cpu_minutes"]
        scores[seed] = final_evaluation(run, EPISODES, EVALUATION_SEED, allow=[OURS])["summary"]["eval/return"]
    if scores.keys() - runs.keys() and abs(earlier["frames"] / frames - 1) > 0.01:
        raise SystemExit(f"{study}: the result file holds seeds after {earlier['frames']:,} frames; move it away")
    scores, seconds = dict(sorted(scores.items())), dict(sorted(seconds.items()))
    values, wanted = list(scores.values()), STUDIES[study]
    means = {"mean": float(np.mean(values)), "iqm": iqm(values), "interval": list(bootstrap_interval(values))}
    judged = {"frames": frames, "scores": scores, **means, "lowest": min(values), "passed": wanted.passed(values)}
    return {**wanted._asdict(), **judged, "cpu_seconds": seconds, "machine": "; ".join(sorted(machines))}


def table(out: Path) -> str:
    """Returns a row for each study with a result file in the folder ``out``, in the order of :data:`STUDIES`."""
    limits = {"every seed": "each ≥", "mean": "mean ≥", "none above": "each ≤"}
    rows = []
    for result in filter(None, (saved(out / f"{name}.json") for name in STUDIES)):
        one = len(result["scores"]) == 1
        middle = "" if one else interval(result["iqm"], result["interval"], ".1f")
        lowest = "" if one else f"{result['lowest']:.1f}"
        wanted = f"{limits[result['of']]} {result['bar']:g}{'' if result['passed'] else ': MISSED'}"
        seconds = f"{np.mean(list(result['cpu_seconds'].values())):.0f}"
        row = [result["environment"], result["algorithm"], f"{result['frames']:,}", len(result["scores"])]
        rows.append([*row, f"{result['mean']:.1f}", middle, lowest, wanted, seconds])
    heads = "env | algorithm | frames | seeds | mean | IQM, 95 % | lowest seed | wanted | CPU-s a seed"
    return markdown(heads, rows)


def write_curves(trained: Mapping[str, Mapping[str, Path]], out: Path) -> None:
    """Writes evaluations during training of runs by study and seed to ``curves.csv``; rows of others stay."""
    join_csv(out / "curves.csv", ["study", "seed"], ["frames", "return"], evaluations(trained, "study"))


def draw(out: Path, file: Path) -> None:
    """Draws a panel for each study with results: each seed, their mean, and the bar."""
    rows = read_csv(out / "curves.csv")
    results = {name: result for name in STUDIES if (result := saved(out / f"{name}.json"))}
    with saved_figure(file, "", len(results), 4, (4, 2.8)) as axes:
        for axis, (study, result) in zip(axes, results.items()):
            curves: dict[str, list[tuple[float, float]]] = {}
            for row in rows:
                if row["study"] == study:
                    curves.setdefault(row["seed"], []).append((float(row["frames"]), float(row["return"])))
            for curve in curves.values():
                axis.plot(*zip(*curve), color="tab:blue", alpha=0.3, linewidth=1)
            if curves:
                common = list(zip(*curves.values()))  # as far as the shortest goes
                axis.plot(*np.mean(common, axis=1).T, color="tab:blue")
            axis.axhline(result["bar"], color="grey", linestyle=":")
            axis.set_title(fill(f"{result['environment']}, {result['algorithm']}", 40), fontsize=10)
            axis.xaxis.set_major_locator(MaxNLocator(4))
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes[0].figure.supxlabel("frames")
        axes[0].figure.supylabel("return of greedy episodes (dotted: to be reached)")


def main() -> None:
    """Command line."""
    parser = options(__doc__, __file__, "runs/reference", (0, 1, 2, 3, 4))
    parser.add_argument("--studies", nargs="+", choices=list(STUDIES), default=list(STUDIES), metavar="STUDY")
    arguments = parser.parse_intermixed_args()
    out = arguments.out / "results"
    trained = train_arms({study: recipe(study) for study in arguments.studies}, arguments)
    for study, runs in trained.items():
        write_json(out / f"{study}.json", judge(study, runs, saved(out / f"{study}.json")))
    write_curves(trained, out)
    draw(out, arguments.out / "curves.png")
    print(table(out))


if __name__ == "__main__":
    main()
