"""Trains a clone and IQL on the episodes of a half-trained agent, and continues IQL in the world.

    python -m experiments.marinenav.offline

SAC is stopped early and its exploring decisions are recorded (``rlstack.evaluate transitions=...``). ``agent=bc`` and
``agent=iql`` learn from these alone with every seed; IQL then continues in the world (``init=``). Each is evaluated on
unseen episodes; the options were chosen on those of ``--evaluation-seed 2000``. Results beside this file:
``offline.json`` and ``offline.png``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import markdown
from experiments.runs import cost, evaluate, final_evaluation, options, train, train_arms
from rlstack.envs.foundation.files import write_json
from rlstack.evaluation.figures import saved_figure
from rlstack.evaluation.statistics import bootstrap_interval, wilson_interval
from rlstack.training.environment import machine

TEACHER_FRAMES, LENGTH = 500_000, 4_300_000
"""Frames at which the recorded agent stops, and the length of its schedules."""
RECORDED_SEED = 5
BATCH, UPDATES = 256, 3000
COMMON = [
    *("env=marinenav", "logger=csv", "eval.every=1e9", "eval.episodes=1", "eval.max_steps=50"),
    *("checkpoint.every=1e9", "checkpoint.replay=false"),
]
OFFLINE = [f"total_frames={BATCH * UPDATES}"]
CLONE = [
    *("agent=bc", "agent.hidden=[128,128]", "agent.networks.actor_network.layer_norm=true"),
    "agent.lr={kind: cosine, start: 1e-3, end: 1e-5}",
]
"""Gives the clone the network and learning rate of IQL's actor in ``conf/recipe/marinenav_iql.yaml``."""
ONLINE = [
    *("env.num_worlds=64", "agent.lr={kind: cosine, start: 5e-4, end: 1e-5}", "agent.steps_per_batch=8"),
    *("agent.learning_starts=20000", "agent.frames_per_update=150", "agent.buffer_size=400000"),
    "agent.options.temperature=3.0",
]
NAMES = {"teacher": "SAC, stopped early", "bc": "clone", "iql": "IQL", "tuned": "IQL, then online"}

Results = dict[str, list[dict[str, Any]]]
"""A row for each seed, by the keys of :data:`NAMES`."""


TEACHER = ["agent=sac", f"total_frames={LENGTH}", f"until={TEACHER_FRAMES}", *COMMON]
"""Overrides of the run of the agent whose episodes are recorded."""


def recorded(run: Path, folder: Path, episodes: int) -> Path:
    """Records the decisions of its episodes."""
    path = folder / "episodes.npz"
    if not path.is_file():
        words = [f"transitions={path}", "policy=explore", "plots=false", "video=false"]
        evaluate(run, folder / "recorded", episodes, RECORDED_SEED, *words)
    return path


def judged(run: Path, episodes: int, seed: int) -> dict[str, Any]:
    """Returns success and return of a run, the episodes that it ``solved``, and the cost of its training."""
    evaluation = final_evaluation(run, episodes, seed)
    scores = {name: evaluation["summary"][f"eval/{name}"] for name in ("success", "return")}
    return {**scores, **cost(run), "solved": [int(episode["success"]) for episode in evaluation["episodes"]]}


def pooled(rows: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Returns the success over all seeds with a 95 % interval: Wilson's for one seed, otherwise a bootstrap.

    All seeds play the same episodes, over which the bootstrap draws.
    """
    solved = np.mean([row["solved"] for row in rows], axis=0)
    bounds = wilson_interval(int(solved.sum()), len(solved)) if len(rows) == 1 else bootstrap_interval(solved)
    return float(solved.mean()), *bounds


def gain(results: Results, better: str, worse: str) -> tuple[float, float, float]:
    """Returns the gain in success with a 95 % bootstrap interval over the episodes, which are equal for both.

    Only seeds that both have count.
    """
    seeds = min(len(results[better]), len(results[worse]))
    means = [np.mean([row["solved"] for row in results[name][:seeds]], axis=0) for name in (better, worse)]
    difference = means[0] - means[1]
    return float(difference.mean()), *bootstrap_interval(difference)


def table(result: dict[str, Any]) -> str:
    """Returns a row for each agent, and below the gain of each over the one before it."""
    cells, results = [], result["agents"]
    for name, rows in results.items():
        rate, low, high = pooled(rows)
        seeds = " ".join(f"{row['success']:.3f}" for row in rows)
        minutes = sum(row["cpu_minutes"] for row in rows) / len(rows)
        cells.append([NAMES[name], f"{rate:.3f}", f"{low:.3f} to {high:.3f}", seeds, f"{minutes:.1f}"])
    gains = [
        f"\n{NAMES[better]} less {NAMES[worse]}: {mean:.3f} ({low:.3f} to {high:.3f})\n"
        for better, worse in zip(list(results)[2:], list(results)[1:])
        for mean, low, high in [gain(results, better, worse)]
    ]
    return markdown("agent | success | 95 % | by seed | CPU-min", cells) + "".join(gains)


def draw(results: Results, file: Path) -> None:
    """Draws the success of each agent, and a point for every seed."""
    with saved_figure(file, "", size=(6, 3.6)) as (axis,):
        for place, rows in enumerate(results.values()):
            rate, low, high = pooled(rows)
            axis.bar(place, rate, color=f"C{place}", alpha=0.5, yerr=[[rate - low], [high - rate]], capsize=4)
            axis.plot([place] * len(rows), [row["success"] for row in rows], "k.", label=None if place else "a seed")
        axis.set_xticks(range(len(results)), [NAMES[name] for name in results])
        axis.set(ylabel="success, levels 0-5, greedy", ylim=(0, 1))


def main() -> None:
    """Command line."""
    parser = options(__doc__, __file__, "runs/offline")
    parser.add_argument("--episodes", type=int, default=50, help="per level, in the final evaluation")
    parser.add_argument("--recorded", type=int, default=400, help="episodes per level that are recorded")
    parser.add_argument("--online", type=int, default=300_000, help="frames of fine-tuning; 0: none")
    arguments = parser.parse_intermixed_args()
    folder = arguments.folder = arguments.folder.resolve()
    (teacher,) = train([(0, folder / "teacher", TEACHER)])
    given = [f"data={recorded(teacher, folder, arguments.recorded)}", *COMMON, *OFFLINE]
    trained = train_arms({"bc": [*CLONE, *given], "iql": ["agent=iql", *given]}, arguments)
    runs = {"teacher": [teacher], **{name: list(own.values()) for name, own in trained.items()}}
    if arguments.online:
        given = ["agent=iql", f"total_frames={arguments.online}", *COMMON, *ONLINE, *arguments.overrides]
        starts = zip(arguments.seeds, runs["iql"], strict=True)
        runs["tuned"] = train([(seed, folder / "tuned", [f"init={run}", *given]) for seed, run in starts])
    held = arguments.episodes, arguments.evaluation_seed
    agents = {name: [judged(run, *held) for run in own] for name, own in runs.items()}
    result = {"machine": f"{machine()}, one thread", "agents": agents}
    write_json(arguments.out / "offline.json", result)
    draw(agents, arguments.out / "offline.png")
    print(table(result))


if __name__ == "__main__":
    main()
