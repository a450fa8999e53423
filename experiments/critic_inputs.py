"""Trains with critics that see what the actor sees, and with critics that also see the true state of the world.

    python -m experiments.critic_inputs
    python -m experiments.critic_inputs --studies marinenav_ppo --seeds 3 4      # adds seeds; results keep the others

Each run has one thread. Scores are means over the episodes of the last quarter of the training. Results:
``critic_inputs.json`` beside this file.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from experiments.results import interval, join, markdown
from experiments.runs import cost, logged, options, train_arms
from rlstack.evaluation.statistics import bootstrap_interval, separation

STUDIES = {
    "marinenav_ppo": [
        *("agent=ppo", "env=marinenav", "total_frames=400_000", "agent.steps_per_batch=16"),
        *("env.num_worlds=256", "env.curriculum=null", "env.num_robots=2", "env.num_obstacles=2"),
        *("env.min_start_goal_dis=10", "env.max_steps=100", "agent.minibatch_size=2048"),
    ],
    "echelon_ppo": [
        *("experiment=echelon/partial", "total_frames=120_000", "env.num_worlds=128", "agent.hidden=[128, 128]"),
        *("env.blue=2", "env.red=2", "env.opponent=heuristic", "env.opponent_mix=null", "env.size=48"),
        *("env.maps=64", "env.fire_probability=0.2", "agent.minibatch_size=1024"),
    ],
}
COMMON = [
    *("checkpoint.every=1e9", "eval.every=1e9", "eval.episodes=1", "eval.max_steps=10"),
    *("threads=1", "logger=csv", "log_every=0.05"),
]
KINDS = {
    "own": (["env.state=false"], "what the actor sees"),
    "state": (["env.state=true", "agent.critic_inputs=[observation, state]"], "the true state, too"),
}
SCORES = ("train/return", "train/success")


def table(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> str:
    """Returns a row for each study, kind and score."""
    rows = []
    for study, kinds in results.items():
        for score in SCORES:
            own = [seed[score] for seed in kinds["own"].values()]
            for kind, seeds in kinds.items():
                values = [seed[score] for seed in seeds.values()]
                row = [study, score, KINDS[kind][1], len(values)]
                mean = interval(statistics.fmean(values), bootstrap_interval(values), ".3f")
                row += [mean, ", ".join(f"{value:.3f}" for value in values)]
                row += ["" if kind == "own" else f"{separation(values, own)[0]:.2f}"]
                rows.append([*row, f"{statistics.fmean(seed['cpu_minutes'] for seed in seeds.values()):.1f}"])
    return markdown("study | score | the critic sees | seeds | mean (95 %) | by seed | p | CPU-min", rows)


def judged(run: Path) -> dict[str, float]:
    """Returns the scores of the last quarter of a run, and what it cost."""
    spent = cost(run)
    rows = [row for row in logged(run, SCORES[0]) if row["frames"] > 0.75 * spent["frames"]]
    return {**{score: statistics.fmean(row[score] for row in rows if score in row) for score in SCORES}, **spent}


def main() -> None:
    """Command line."""
    parser = options(__doc__, __file__, "runs/critic_inputs")
    parser.add_argument("--studies", nargs="+", choices=list(STUDIES), default=list(STUDIES))
    arguments = parser.parse_intermixed_args()
    for study in arguments.studies:
        arms = {f"{study}/{kind}": [*STUDIES[study], *COMMON, *overrides] for kind, (overrides, _) in KINDS.items()}
        runs = zip(KINDS, train_arms(arms, arguments).values(), strict=True)
        scored = {study: {kind: {seed: judged(run) for seed, run in own.items()} for kind, own in runs}}
        results = join(arguments.out / "critic_inputs.json", scored)
    print(table(results))


if __name__ == "__main__":
    main()
