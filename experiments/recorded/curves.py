"""Trains behaviour cloning, TD3+BC, IQL and CQL on the replay buffer of a half-trained SAC on Pendulum.

    python -m experiments.recorded.curves

SAC stops after 5,000 frames; the transitions in its replay buffer are the data of every run. The agents have the
options of their yaml files except smaller networks and larger learning rates. Results beside this file:
``curves.csv`` (greedy return of each evaluation) and ``curves.json`` (returns of the last one with their intervals).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.results import markdown, write_csv
from experiments.runs import cost, evaluations, logged, options, train, train_arms
from rlstack.envs.foundation.files import write_json
from rlstack.evaluation.statistics import bootstrap_interval
from rlstack.training.environment import machine

AGENTS = {"bc": "behaviour cloning", "td3_bc": "TD3+BC", "iql": "IQL", "cql": "CQL"}
TEACHER_FRAMES, UPDATES, POINTS = 5_000, 4_000, 10
"""Frames of SAC, updates of each agent, and evaluations of a run."""
BATCH, EPISODES = 128, 10
_ONE, _TWO = ["agent.lr=1e-3"], [f"agent.optimizers.{name}.lr=1e-3" for name in ("critic", "actor")]
RATES = {"bc": _ONE, "td3_bc": _TWO, "iql": _ONE, "cql": _TWO}
COMMON = [
    *("env=gymnasium", "env.id=Pendulum-v1", "env.num_envs=1", "logger=csv", "device=cpu"),
    *(f"agent.batch_size={BATCH}", "agent.hidden=[64,64]", f"eval.episodes={EPISODES}", "checkpoint.every=1.0e9"),
]

TEACHER = [
    *("agent=sac", f"total_frames={TEACHER_FRAMES}", *COMMON),
    *(f"agent.{name}=1e-3" for name in ("lr_actor", "lr_critic", "lr_alpha")),
]
"""Overrides of the run of SAC, with its replay buffer."""

Rows = list[dict[str, Any]]
"""``agent``, ``seed``, ``updates`` and ``return``, a row for each evaluation."""


def summary(rows: Rows, minutes: dict[str, list[float]], taught: float) -> dict[str, Any]:
    """Of each agent: returns at the end by seed, their mean and its interval, CPU-minutes of a run."""
    agents = {}
    for agent in dict.fromkeys(row["agent"] for row in rows):
        last = {row["seed"]: row["return"] for row in rows if row["agent"] == agent}
        ends = list(last.values())
        agents[agent] = {"returns": last, "mean": float(np.mean(ends)), "interval": list(bootstrap_interval(ends))}
        agents[agent]["cpu_minutes"] = float(np.mean(minutes[agent]))
    return {"machine": f"{machine()}, one thread", "teacher": taught, "agents": agents}


def table(result: dict[str, Any]) -> str:
    """Returns a row for each agent, with 95 % intervals over the seeds, and one for the teacher."""
    rows = []
    for agent, row in result["agents"].items():
        returns = " ".join(f"{value:.0f}" for value in row["returns"].values())
        bounds = "{:.0f} to {:.0f}".format(*row["interval"])
        rows.append([AGENTS[agent], f"{row['mean']:.0f}", bounds, returns, f"{row['cpu_minutes']:.1f}"])
    rows.append(["SAC, whose replay buffer it was", f"{result['teacher']:.0f}", "", "", ""])
    return markdown("agent | greedy return | 95 % | by seed | CPU-min", rows)


def main() -> None:
    """Command line."""
    arguments = options(__doc__, __file__, "runs/recorded").parse_intermixed_args()
    arguments.folder = arguments.folder.resolve()
    (data,) = train([(0, arguments.folder / "teacher", TEACHER)])
    taught = logged(data, "eval/return")[-1]["eval/return"]
    lengths = [f"total_frames={BATCH * UPDATES}", f"eval.every={BATCH * UPDATES // POINTS}"]
    given = [f"data={data}", *lengths, *COMMON, "checkpoint.replay=false"]
    trained = train_arms({agent: [f"agent={agent}", *given, *RATES[agent]] for agent in AGENTS}, arguments)
    minutes = {agent: [cost(run)["cpu_minutes"] for run in runs.values()] for agent, runs in trained.items()}
    rows = [{**row, "updates": row["frames"] // BATCH} for row in evaluations(trained, "agent")]
    write_csv(arguments.out / "curves.csv", ("agent", "seed", "updates", "return"), rows)
    write_json(arguments.out / "curves.json", summary(rows, minutes, taught))


if __name__ == "__main__":
    main()
