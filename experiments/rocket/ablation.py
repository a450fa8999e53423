"""Measures each group of Rocket's rewards: PPO against the rules, with all groups and without one at a time.

    python -m experiments.rocket.ablation --frames 20_000_000 --parallel 2

The rules are imitated once; every variant of ``experiment=rocket/rules`` then starts from the same networks, with one
thread each. The score is the share of games won against the rules in the last quarter of the training, with random
beginnings and draws counted as not won; evaluations are left out. The result is ``ablation.json`` beside this file;
``python -m experiments.tables`` writes its table into ``experiments/worlds.md``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.results import interval, markdown
from experiments.runs import logged, options, train_arms
from rlstack.config import conf_dir
from rlstack.envs.foundation.files import write_json
from rlstack.envs.rocket.rewards import MODES, TERMS
from rlstack.evaluation.statistics import wilson_interval

EVERYTHING = "all groups"
KEPT = ("goal", "conceded", "spacing")
"""Terms that every variant keeps: those of the game itself, and the distance of mates, of which there are none here."""
UNEVALUATED = ("eval.every=1e9", "eval.episodes=1", "eval.max_steps=1")
"""Overrides that leave nothing of the evaluations but one step at the end."""


def variants() -> dict[str, dict[str, float]]:
    """Weights of terms by variant: the experiment's own, then with those of one group at zero."""
    config = OmegaConf.to_container(OmegaConf.load(conf_dir() / "experiment" / "rocket" / "rules.yaml"))
    own: dict[str, float] = config["env"]["reward_weights"]  # type: ignore[call-overload,index]
    weights = {EVERYTHING: own}
    for group in MODES["hybrid"]:
        without = {name: 0.0 for name, (of, _) in TERMS.items() if of == group and name not in KEPT}
        # A group whose terms are all off, or kept, tells nothing.
        if any(own.get(name, TERMS[name][1]) for name in without):
            weights[f"without {group}"] = own | without
    return weights


def imitate(folder: Path, overrides: list[str]) -> Path:
    """The run that all variants begin with."""
    run = folder / "imitation"
    if not any((run / "checkpoints").glob("checkpoint_*.pt")):
        shutil.rmtree(run, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "rlstack.train", "experiment=rocket/rules", "imitation.only=true"]
        subprocess.run([*command, *UNEVALUATED, f"run_dir={run}", *overrides], check=True)
    return run


def won(run: Path) -> tuple[float, float, float]:
    """Share of games won in the last quarter of a run, with its 95 % interval."""
    rows = logged(run, "train/success")
    late = [row for row in rows if row["frames"] >= 0.75 * rows[-1]["frames"]]
    games = sum(row["train/episodes"] for row in late)
    wins = sum(row["train/episodes"] * row["train/success"] for row in late)
    return (wins / games, *wilson_interval(round(wins), round(games)))


def table(result: Mapping[str, Any]) -> str:
    """Returns a row for each variant."""
    games = result["won"]
    rows = [
        [name, interval(share, bounds, ".1%"), "" if name == EVERYTHING else f"{share - games[EVERYTHING][0]:+.1%}"]
        for name, (share, *bounds) in games.items()
    ]
    return markdown("rewards | games won, 95 % | difference", rows)


def main() -> None:
    """Command line."""
    parser = options(__doc__, __file__, "runs/rocket/ablation", (0,))
    parser.add_argument("--frames", type=int, default=20_000_000, help="of every variant")
    arguments = parser.parse_intermixed_args()
    (seed,) = arguments.seeds
    start = imitate(arguments.folder, arguments.overrides)
    shared = ["experiment=rocket/rules", "imitation.expert=null", f"init={start}"]
    shared += [f"total_frames={arguments.frames}", *UNEVALUATED]

    def weighted(weights: Mapping[str, float]) -> str:
        return f"++env.reward_weights={{{', '.join(f'{term}: {weight}' for term, weight in weights.items())}}}"

    arms = {name: [*shared, weighted(weights)] for name, weights in variants().items()}
    games = {name: won(run) for name, runs in train_arms(arms, arguments).items() for run in runs.values()}
    result = {"frames": arguments.frames, "seed": seed, "won": games}
    write_json(arguments.out / "ablation.json", result)
    print(table(result))


if __name__ == "__main__":
    main()
