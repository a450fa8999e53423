"""Trains every algorithm on MarineNav, levels 0-5, for the same number of env steps, beside the published agents.

    python -m experiments.marinenav.algorithms --parallel 2
    python -m experiments.marinenav.algorithms --agents ppo sac --seeds 0 1

Each run is ``rlstack train agent=<name> env=marinenav`` with the numbers of
``conf/recipe/marinenav_<name>.yaml`` (FlashSAC: ``experiment=marinenav/flashsac``) and one thread, counted in env steps
(of one world); its last checkpoint then plays 100 unseen episodes a level. Results beside this file:
``algorithms.json`` and ``algorithms.png``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import interval, markdown, saved
from experiments.runs import complete, cost, final_evaluation, logged, options, train_arms
from rlstack.config import load_group
from rlstack.envs.foundation.files import write_json
from rlstack.evaluation.figures import saved_figure

from .quality import LEVELS

AGENTS = ("acqn", "ppo", "sac", "td3", "ddpg", "iqn", "dqn", "rainbow", "a2c", "pqn", "qrdqn", "tqc", "xqc", "flashsac")
ENV_STEPS = 1_000_000
GOAL = 0.95
"""Success whose first evaluation is told."""
PUBLISHED = {"acqn": 0.769, "sac": 0.725, "iqn": 0.719, "ddpg": 0.481, "dqn": 0.396}
"""Success of the released agents (arXiv 2412.09466), levels 0-5, after 6 million env steps."""
DECISIONS_PER_STEP = 4.3
"""Average number of robots that decide in a step, which converts the recipes' decisions into env steps."""
PER_UPDATE = dict.fromkeys(("acqn", "iqn", "dqn", "rainbow", "qrdqn", "tqc", "xqc"), 600) | {"flashsac": 2200}
"""Decisions per update of agents that make more or fewer updates than the others' one for every 1200."""
CHANGES = {
    "acqn": ("env.timestep_penalty=-0.2", "env.collision_penalty=-30"),
    "iqn": ("agent.kappa=10",),
    "qrdqn": ("agent.kappa=10",),
    "tqc": ("agent.kappa=10",),
    "dqn": (
        *("agent.normalize_rewards=true", "agent.layer_norm=true", "agent.n_step=10", "agent.gamma=0.998"),
        "agent.epsilon={kind: linear, start: 0.5, end: 0.0, duration: 0.5}",
    ),
}
"""AC-IQN learns from the rewards of the others instead of its recipe's. The quantile agents set the Huber threshold to
the size of the rewards, which reach 30: beyond it all errors have the same gradient. DQN's threshold is 1, so its
rewards are scaled; its other options, chosen on seed 0, matter for so short a run."""


def recipe(agent: str) -> list[str]:
    """Returns the overrides of an agent's runs.

    Checkpoints leave out the replay buffer, hundreds of MB: a run that is interrupted goes on with an empty one.
    """
    overrides = [
        *(["experiment=marinenav/flashsac"] if agent == "flashsac" else [f"agent={agent}", "env=marinenav"]),
        *("collector.count=env_steps", f"total_frames={ENV_STEPS}"),
        *(f"log_every={ENV_STEPS // 50}", f"eval.every={ENV_STEPS // 10}", f"checkpoint.every={ENV_STEPS}"),
        *("checkpoint.replay=false", "logger=csv"),
    ]
    if "frames_per_update" in load_group("agent", agent):
        per_update = round(PER_UPDATE.get(agent, 1200) / DECISIONS_PER_STEP)
        overrides += [f"agent.frames_per_update={per_update}", "agent.learning_starts=5000", *CHANGES.get(agent, ())]
    return overrides


def summarise(agent: str, runs: dict[str, Path], episodes: int, evaluation_seed: int) -> dict[str, Any]:
    """Success over the seeds, by level, time on success and cost."""
    seeds = {}
    for seed, path in runs.items():
        scores = final_evaluation(path, episodes, evaluation_seed)["summary"]
        reached = next((row["frames"] for row in logged(path, "eval/success") if row["eval/success"] >= GOAL), None)
        seeds[seed] = {**scores, "cpu_minutes": cost(path)["cpu_minutes"], "reached": reached}

    def mean(name: str) -> float | None:
        values = [row[name] for row in seeds.values() if row.get(name) is not None]
        return float(np.mean(values)) if values else None

    means = {"success": mean("eval/success"), "levels": [mean(f"eval/success_level{level}") for level in range(LEVELS)]}
    means |= {"time": mean("eval/time"), "cpu_minutes": mean("cpu_minutes")}
    return {**means, "published": PUBLISHED.get(agent), "seeds": seeds}


def table(results: dict[str, dict[str, Any]]) -> str:
    """Returns a row for each agent, best first."""
    rows = []
    for agent, row in sorted(results.items(), key=lambda item: -item[1]["success"]):
        each = [seed["eval/success"] for seed in row["seeds"].values()]
        success = interval(row["success"], (min(each), max(each)), ".3f")
        cells = [agent, success if len(each) > 1 else f"{row['success']:.3f}"]
        cells.append(" ".join(f"{value:.2f}" for value in row["levels"]))
        cells += ["" if row["time"] is None else f"{row['time']:.1f} s", f"{row['cpu_minutes']:.1f}"]
        reached = [seed["reached"] for seed in row["seeds"].values() if "reached" in seed]  # older results lack it
        cells.append("; ".join("-" if at is None else f"{at:,.0f}" for at in reached))
        rows.append([*cells, "" if row["published"] is None else f"{row['published']:.3f}"])
    about = "agent | success | by level 0-5 | time on success | CPU-min"
    return markdown(f"{about} | env steps to {GOAL}, by seed | published, 6M env steps", rows)


def draw(folder: Path, results: dict[str, dict[str, Any]], file: Path) -> None:
    """Draws success during training: the mean over the seeds of each agent, and faintly the single runs."""
    with saved_figure(file, "mean over the seeds (their number), and single runs", size=(8, 5)) as (axis,):
        for index, agent in enumerate(sorted(results, key=lambda name: -results[name]["success"])):
            runs = [folder / agent / f"seed{seed}" for seed in results[agent]["seeds"]]
            curves = [logged(run, "eval/success") for run in runs if complete(run)]  # some runs have been removed since
            if not curves:
                continue
            style = {"color": f"C{index % 10}", "linestyle": "-" if index < 10 else "--"}
            steps = [row["frames"] / 1e6 for row in curves[0]]
            success = np.asarray([[row["eval/success"] for row in rows] for rows in curves])
            axis.plot(steps, success.T, alpha=0.25, linewidth=0.8, **style)
            axis.plot(steps, success.mean(0), label=f"{agent} ({len(curves)})", **style)
        axis.set(xlabel="million env steps", ylabel="success, levels 0-5, greedy, noise on", ylim=(0, 1))


def main() -> None:
    """Command line."""
    parser = options(__doc__, __file__, "runs/algorithms", (0,))
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=AGENTS)
    parser.add_argument("--episodes", type=int, default=100, help="per level, in the final evaluation")
    arguments = parser.parse_intermixed_args()
    runs = train_arms({agent: recipe(agent) for agent in arguments.agents}, arguments)
    results = saved(arguments.out / "algorithms.json")
    for agent, own in runs.items():
        results[agent] = summarise(agent, own, arguments.episodes, arguments.evaluation_seed)
    write_json(arguments.out / "algorithms.json", results)
    draw(arguments.folder, results, arguments.out / "algorithms.png")
    print(table(results))


if __name__ == "__main__":
    main()
