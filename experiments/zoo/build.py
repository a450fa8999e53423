"""Makes an agent of the zoo from a run: a checkpoint without optimisers and replay buffer, a card, and a film.

    python -m experiments.zoo.build marinenav runs/quality/seed0 --episodes 50
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


def strip(run: Path, which: str, file: Path) -> dict[str, Any]:
    """Writes the acting parts of a run's latest or best checkpoint; returns its configuration.

    Raises:
        ValueError: the file exceeds the zoo's limit.
    """
    state = read_agent(checkpoint_file(run, which))
    config = {**state["config"], "run_dir": None, "resume": None, "init": None, "notify": None}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(file, {**acting_parts(state), "config": config}, state["frames"])
    _check_size(file)
    return config


def _check_size(file: Path) -> None:
    if file.stat().st_size > MOST_BYTES:
        raise ValueError(f"{file}: {file.stat().st_size:,} bytes, more than {MOST_BYTES:,}")


def started(run: Path) -> dict[str, Any]:
    """Returns command, commit, processor and instruction set of the first start of a run."""
    first = json.loads((run / ENVIRONMENT).read_text())[0]
    words = [word for word in first["command"] if not word.startswith("run_dir=")]
    told = {key: first[key] for key in ("commit", "processor", "instruction_set")}
    return {"command": f"python {shlex.join(words)}", **told}


def build(
    name: str, run: Path, which: str, episodes: int, seed: int, policy: str, out: Path, speed: float
) -> dict[str, Any]:
    """Makes ``<out>/<name>`` and returns its card.

    Raises:
        ValueError: the agent or the film exceeds its limit, or the world has no recordings.
    """
    folder = out / name
    config = strip(run, which, folder / AGENT)
    loaded = load(folder / AGENT)
    world = config["env"]["name"]
    acting = loaded.agent.policy(explore=policy == "explore")
    found = evaluate(acting, world, world_options(config["env"]), episodes, seed, record=1)
    if not found.recordings:
        raise ValueError(f"{world}: has no recordings, of which a film could be made")
    shown = next(iter(best_and_worst(found).values()))  # the best one, or the only one
    save_animation(found.recordings[shown].animation(), folder / FILM, speed=speed)
    _check_size(folder / FILM)
    card = {
        "name": name,
        "agent": config["agent"]["name"],
        "world": world,
        "frames": loaded.frames,
        **started(run),
        "policy": policy,
        "episodes": len(found.levels),
        "per_level": episodes,
        "seed": seed,
        "score": found.summary(),
        "judged_on": machine(),
        "sha256": hashlib.sha256((folder / AGENT).read_bytes()).hexdigest(),
        "film": FILM,
        "config": config,
    }
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n")
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
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--speed", type=float, default=1.0, help="of the film; higher where it takes megabytes")
    card = build(**vars(parser.parse_args()))
    print(json.dumps({key: value for key, value in card.items() if key != "config"}, indent=1))


if __name__ == "__main__":
    main()
