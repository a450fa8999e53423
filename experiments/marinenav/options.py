"""Measures options of agents on MarineNav, levels 0-5, by env steps and CPU time to a success of .95.

    python -m experiments.marinenav.options --seeds 0 1 2
    python -m experiments.marinenav.options critics --agents sac

``symmetry`` compares ``agent.symmetry=augment`` with the same agent without it, both with ``env.colregs_penalty=0``,
since the rules of the road are not symmetric; ``critics`` compares ``agent.actor_every``, ``agent.critic_norm`` and
``agent.weight_norm`` with the recipe. Each run is that of ``experiments.marinenav.algorithms`` with 20 evaluations of
120 episodes, in which a robot that has not arrived after 200 steps fails. Results go into ``options.json`` beside this
file. Complete runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

from experiments.results import markdown
from experiments.runs import check, logged, train

from .algorithms import ENV_STEPS, job

HERE = Path(__file__).parent
GOAL = 0.95
_BATCH = ("agent.critic_norm=batch", "agent.layer_norm=false")
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "symmetry": {
        "none": ("env.colregs_penalty=0",),
        "augment": ("env.colregs_penalty=0", "agent.symmetry=augment"),
    },
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
    reached = next((row["frames"] for row in rows if row["eval/success"] >= GOAL), None)
    clock = logged(path, "time/cpu_seconds")
    spent = [row["time/cpu_seconds"] for row in clock if reached is not None and row["frames"] <= reached]
    return {
        "frames": reached,
        "cpu_seconds": spent[-1] if spent else None,
        "last": rows[-1]["frames"],
        "success": rows[-1]["eval/success"],
        "all_cpu_seconds": clock[-1]["time/cpu_seconds"],
    }


def _folder(name: str) -> str:
    return name.replace(": ", "_").replace(" ", "_")


def table(results: dict[str, Any]) -> str:
    """Returns a row for each arm; a dash where a seed did not reach the goal."""

    def listed(row: dict[str, Any], form: str) -> str:
        return "; ".join(
            "-" if None in one.values() and "{frames" in form else form.format(**one) for one in row.values()
        )

    forms = ("{frames:,.0f} ({cpu_seconds:.0f})", "{success:.3f}", "{all_cpu_seconds:.0f}")
    rows = [[*name.split(" ", 1), *(listed(row, form) for form in forms)] for name, row in results.items()]
    reached = f"env steps to {GOAL:.2f}, by seed (CPU-s)"
    return markdown(f"agent | option | {reached} | success at the end | CPU-s", rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("option", nargs="?", choices=list(OPTIONS), default="symmetry")
    parser.add_argument("--agents", nargs="+", help="default: those of the option")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("runs/options"), help="of the run directories")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument(
        "--evaluate-only", action="store_true", help="train nothing; take runs that are there, however far"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    arms = OPTIONS[arguments.option]
    file = arguments.out / "options.json"
    jobs = []
    for seed, agent in product(arguments.seeds, arguments.agents or AGENTS[arguments.option]):
        for arm, changes in arms.items():
            name = f"{agent} {arguments.option}: {arm}"
            jobs.append((name, job(agent, seed, arguments.folder / _folder(name), [*EVALUATED, *changes])))
    if not arguments.evaluate_only:
        check([each for _, each in jobs])
    for name, each in jobs:
        seed, folder, _ = each
        if not arguments.evaluate_only:
            train([each])
        elif not (folder / f"seed{seed}").is_dir():
            continue
        results = json.loads(file.read_text()) if file.is_file() else {}
        results.setdefault(name, {})[str(seed)] = judged(folder / f"seed{seed}")
        file.write_text(json.dumps(results, indent=2) + "\n")
    print(table(json.loads(file.read_text())))


if __name__ == "__main__":
    main()
