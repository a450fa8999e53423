"""Does ``agent=ppo env=arena`` win the game? Trains seeds of a style, plays 500 episodes with each, draws the curve.

    python -m experiments.arena.learning 1 --parallel 2
    python -m experiments.arena.learning 2 --parallel 2

Every seed is one ``rlstack train`` of one thread with ``conf/experiment/arena/style<n>.yaml`` (further
overrides can be appended). Its last checkpoint plays the whole game, no curriculum, in worlds of another seed, twice:
with actions sampled from the policy and with its most probable ones (greedy). Results beside this file:
``style<n>.json``, ``style<n>.csv`` (games won during training), ``style<n>.yaml`` (the configuration),
``style<n>.mp4`` (a win) and ``curves.png``; ``python -m experiments.tables`` writes the table of the README.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from experiments.against import read_log
from experiments.results import draw_seeds, join, join_csv, markdown, read_csv, saved
from experiments.runs import cost, final_evaluation, options, settings_file, train_arms, trained_on
from rlstack.envs.arena.recording import ArenaAnimation
from rlstack.envs.rendering.films import save_animation
from rlstack.evaluation.evaluator import evaluate
from rlstack.evaluation.figures import saved_figure
from rlstack.runs.loading import load
from rlstack.runs.worlds import world_options

STYLES = {1: "turn and thrust", 2: "four directions"}
POLICIES = {"sampled": "explore", "greedy": "greedy"}
CLOCK = "time/cpu_seconds"
SHOWN = ("frames", "time/seconds", CLOCK, "train/success", "train/return", "eval/success", "eval/phase")


def film(run: Path, seed: int, path: Path) -> None:
    """Makes a film of the first win among recorded sampled episodes, if there is one."""
    loaded = load(run)
    world, policy = world_options(loaded.config["env"]), loaded.agent.policy(explore=True)
    evaluation = evaluate(policy, "arena", world, episodes=16, seed=seed, record=16)
    wins = [index for index in evaluation.recordings if evaluation.episodes["success"][index]]
    if wins:
        save_animation(ArenaAnimation(evaluation.recordings[wins[0]], (480, 384)), path)


def draw(out: Path) -> None:
    """Draws ``curves.png``: the games won by every seed, one panel per measured style."""
    with saved_figure(out / "curves.png", "", len(STYLES), len(STYLES), (5.5, 4), sharey=True) as axes:
        for (style, title), axis in zip(STYLES.items(), axes, strict=True):
            rows = read_csv(out / f"style{style}.csv")
            draw_seeds(axis, rows, "train/success", CLOCK, "seed {}, sampled, training")
            draw_seeds(axis, rows, "eval/success", CLOCK, "greedy, evaluation", marker="o", ls="--", ms=4, lw=1)
            axis.set(title=f"style {style}: {title}", xlabel="CPU minutes, one thread", ylim=(0, 1))
        axes[0].set_ylabel("share of games won")


def table(out: Path) -> str:
    """Returns a row for each seed of every result file ``style*.json`` in the folder ``out``."""
    rows = []
    for path in sorted(out.glob("style*.json")):
        style = path.stem.removeprefix("style").replace("_", ", ")
        for seed, row in sorted(saved(path)["seeds"].items()):
            won, sampled = [f"{row[how]['eval/success']:.1%}" for how in POLICIES], row["sampled"]
            played = [f"{sampled['eval/return']:,.0f}", f"{sampled['eval/length']:,.0f}"]
            rows.append([style, seed, f"{row['frames']:,.0f}", f"{row['cpu_minutes']:.1f}", *won, *played])
    heads = "style | seed | frames | CPU-min | won, sampled | won, greedy | return, sampled | steps, sampled"
    return markdown(heads, rows)


def main() -> None:
    """Command line."""
    parser = options(__doc__, __file__, "runs/arena")
    parser.add_argument("style", type=int, choices=list(STYLES))
    parser.add_argument("--episodes", type=int, default=500, help="in each final evaluation")
    arguments = parser.parse_intermixed_args()
    name, episodes, out = f"style{arguments.style}", arguments.episodes, arguments.out
    runs = train_arms({name: [f"experiment=arena/{name}"]}, arguments)[name]
    measured: dict[str, Any] = {}
    for seed, run in runs.items():
        scores = {how: final_evaluation(run, episodes, arguments.evaluation_seed, POLICIES[how]) for how in POLICIES}
        measured[seed] = {"machine": trained_on(run), **cost(run), **{how: scores[how]["summary"] for how in scores}}
    results = join(out / f"{name}.json", {"episodes": episodes, "seeds": measured})
    join_csv(out / f"{name}.csv", ["seed"], SHOWN, read_log(runs, SHOWN, ("train/success", "eval/success")))
    draw(out)
    if (first := min(results["seeds"])) in runs:
        shutil.copyfile(settings_file(runs[first]), out / f"{name}.yaml")
        film(runs[first], arguments.evaluation_seed, out / f"{name}.mp4")
    print(table(out))


if __name__ == "__main__":
    main()
