"""Makes an agent of the zoo from a run: a checkpoint without optimisers and replay buffer, a card, and a film.

    python -m experiments.zoo.build marinenav runs/quality/seed0 --episodes 50 --cvar 0.15
    python -m experiments.zoo.build arena runs/arena/style2/seed0 --policy explore

The card has the command, the commit, the scores with intervals over held-out episodes, and the SHA-256 of the file.
``tests/evaluation/test_zoo.py`` checks every agent's score against its card.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

from rlstack.envs.foundation.files import write_json
from rlstack.envs.rendering.films import save_animation
from rlstack.evaluation.evaluator import evaluate
from rlstack.evaluation.pictures import best_and_worst
from rlstack.runs.checkpoint import write_checkpoint
from rlstack.runs.hub import acting_parts
from rlstack.runs.loading import checkpoint_file, load, read_agent
from rlstack.runs.run_directory import AGENT, CARD, FILM
from rlstack.runs.worlds import world_options
from rlstack.training.environment import ENVIRONMENT, machine

HERE = Path(__file__).parent
MOST_BYTES = 1_000_000


def started(run: Path) -> dict[str, Any]:
    """Returns command, commit, processor and instruction set of the first start of a run."""
    first = json.loads((run / ENVIRONMENT).read_text())[0]
    words = [word for word in first["command"] if not word.startswith("run_dir=")]
    where = {key: first[key] for key in ("commit", "processor", "instruction_set")}
    return {"command": f"python {shlex.join(words)}", **where}


def build(
    name: str, run: Path, which: str, episodes: int, seed: int, policy: str, cvar: float | None, out: Path, speed: float
) -> dict[str, Any]:
    """Makes ``<out>/<name>`` and returns its card.

    Args:
        cvar: the level of risk at which it acts, in place of its own, which makes no difference to its training.

    Raises:
        ValueError: the agent or the film exceeds its limit, or the world has no recordings.
    """
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    state = read_agent(checkpoint_file(run, which))
    config = {**state["config"], **dict.fromkeys(("run_dir", "resume", "init", "notify"))}
    begun = started(run)
    if cvar is not None:
        config["agent"] = {**config["agent"], "cvar": cvar}
        begun["command"] += f" agent.cvar={cvar}"
    write_checkpoint(folder / AGENT, {**acting_parts(state), "config": config}, state["frames"])
    loaded = load(folder / AGENT)
    world = config["env"]["name"]
    acting = loaded.agent.policy(explore=policy == "explore")
    evaluation = evaluate(acting, world, world_options(config["env"]), episodes, seed, record=1)
    if not evaluation.recordings:
        raise ValueError(f"{world}: has no recordings, of which a film could be made")
    shown = next(iter(best_and_worst(evaluation).values()))  # the best one, or the only one
    save_animation(evaluation.recordings[shown].animation(), folder / FILM, speed=speed)
    for file in (folder / AGENT, folder / FILM):
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"{file}: {file.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
    trained = {"name": name, "agent": config["agent"]["name"], "world": world, "frames": loaded.frames, **begun}
    played = {"policy": policy, "episodes": len(evaluation.levels), "per_level": episodes, "seed": seed}
    digest = hashlib.sha256((folder / AGENT).read_bytes()).hexdigest()
    judged = {**played, "score": evaluation.summary(), "judged_on": machine(), "sha256": digest}
    card = {**trained, **judged, "film": FILM, "config": config}
    write_json(folder / CARD, card)
    return card


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("run", type=Path)
    parser.add_argument("--which", choices=("latest", "best"), default="latest", help="checkpoint of the run")
    parser.add_argument("--episodes", type=int, default=300, help="per level of the world's evaluation set, or in all")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--policy", choices=("greedy", "explore"), default="greedy")
    parser.add_argument("--cvar", type=float, help="level of risk at which the agent acts, in place of its own")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--speed", type=float, default=1.0, help="of the film; higher where it takes megabytes")
    card = build(**vars(parser.parse_args()))
    print(json.dumps({key: value for key, value in card.items() if key != "config"}, indent=1))


if __name__ == "__main__":
    main()
