"""Measures options of agents on MarineNav, levels 0-5, by env steps and CPU time to a success of .95.

    python -m experiments.marinenav.options symmetry --seeds 0 1 2
    python -m experiments.marinenav.options critics --agents sac

``symmetry`` compares ``agent.symmetry=augment`` with the same agent without it, both with ``env.colregs_penalty=0``,
since the rules of the road are not symmetric; ``critics`` compares ``agent.actor_every``, ``agent.critic_norm`` and
``agent.weight_norm`` with the recipe. Each run is that of ``experiments.marinenav.algorithms`` with 20 evaluations of
120 episodes, in which a robot that has not arrived after 200 steps fails. Results go into ``options.json`` beside this
file. Complete runs are not repeated.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

from experiments.results import join, markdown
from experiments.runs import logged, options, train_arms

from .algorithms import ENV_STEPS, GOAL, recipe

_BATCH = ("agent.critic_norm=batch", "agent.layer_norm=false")
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "symmetry": {"none": ("env.colregs_penalty=0",), "augment": ("env.colregs_penalty=0", "agent.symmetry=augment")},
    "critics": {
        "recipe": (),
        "actor_every": ("agent.actor_every=2",),
        "weight_norm": ("agent.weight_norm=true",),
        "critic_norm": _BATCH,
        "critic_norm and weight_norm": (*_BATCH, "agent.weight_norm=true"),
    },
}
"""Arms of each comparison with their overrides; TD3's recipe has ``actor_every=2`` already."""
AGENTS = {"symmetry": ("sac", "ppo"), "critics": ("sac", "td3")}
EVALUATED = (f"eval.every={ENV_STEPS // 20}", "eval.max_steps=200")


def judged(path: Path) -> dict[str, float | None]:
    """Returns env steps and CPU-seconds until an evaluation first reaches the goal (or None), and the last success."""
    rows = logged(path, "eval/success")
    reached = next((row for row in rows if row["eval/success"] >= GOAL), {})
    first = {"frames": reached.get("frames"), "cpu_seconds": reached.get("time/cpu_seconds")}
    last = {"last": rows[-1]["frames"], "success": rows[-1]["eval/success"]}
    return {**first, **last, "all_cpu_seconds": logged(path, "time/cpu_seconds")[-1]["time/cpu_seconds"]}


def table(results: dict[str, Any]) -> str:
    """Returns a row for each arm; a dash where a seed did not reach the goal."""
    forms = ("{frames:,.0f} ({cpu_seconds:.0f})", "{success:.3f}", "{all_cpu_seconds:.0f}")
    rows = []
    for name, seeds in results.items():
        cells = [["-" if row["frames"] is None else forms[0].format(**row) for row in seeds.values()]]
        cells += [[form.format(**row) for row in seeds.values()] for form in forms[1:]]
        rows.append([*name.split(" ", 1), *map("; ".join, cells)])
    reached = f"env steps to {GOAL:.2f}, by seed (CPU-s)"
    return markdown(f"agent | option | {reached} | success at the end | CPU-s", rows)


def main() -> None:
    """Command line."""
    parser = options(__doc__, __file__, "runs/options")
    parser.add_argument("option", choices=list(OPTIONS))
    parser.add_argument("--agents", nargs="+", help="default: those of the option")
    arguments = parser.parse_intermixed_args()
    option = arguments.option
    arms = {
        f"{agent} {option}: {arm}": [*recipe(agent), *EVALUATED, *changes]
        for agent, (arm, changes) in product(arguments.agents or AGENTS[option], OPTIONS[option].items())
    }
    trained = train_arms(arms, arguments).items()
    results = {name: {seed: judged(run) for seed, run in runs.items()} for name, runs in trained}
    print(table(join(arguments.out / "options.json", results)))


if __name__ == "__main__":
    main()
