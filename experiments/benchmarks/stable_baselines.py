"""Training speed beside stable-baselines3, at its own default settings, in turns, in one process, on one thread.

    python -m experiments.benchmarks.stable_baselines [--rounds 5]       # needs the extra sb3

Counted: environment steps per CPU-second of collecting and learning together, after a warm-up round of each.
Settings are stable-baselines3's defaults: PPO CartPole-v1 (8 envs, 2048 steps, batch 64, 10 epochs, 2x64 tanh), DQN
CartPole-v1 (1 env, batch 32, one update every 4 steps, 2x64 relu; epsilon at its final .05 in both), SAC Pendulum-v1 (1
env, batch 256, one update a step, 2x256 relu). Result in ``results/stable_baselines.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import envs
import rlstack

RESULT = Path(__file__).parent / "results" / "stable_baselines.json"
STEPS = {"ppo": 16_384, "dqn": 8_000, "sac": 1_000}
ENVS = {"ppo": ("CartPole-v1", 8), "dqn": ("CartPole-v1", 1), "sac": ("Pendulum-v1", 1)}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"steps_per_batch": 2048, "minibatch_size": 64, "epochs": 10, "hidden": [64, 64], "lr": 3e-4},
    "dqn": {
        **{"hidden": [64, 64], "batch_size": 32, "buffer_size": 1_000_000, "learning_starts": 100, "lr": 1e-4},
        **{"steps_per_batch": 4, "frames_per_update": 4, "target_every": 10_000, "double": False, "epsilon": 0.05},
    },
    "sac": {
        **{"hidden": [256, 256], "batch_size": 256, "buffer_size": 1_000_000, "random_frames": 100},
        **{"learning_starts": 100, "frames_per_update": 1},
    },
}


def ours(name: str) -> Callable[[int], None]:
    """Trains for so many more steps."""
    env_id, num_envs = ENVS[name]
    env = envs.make("gymnasium", id=env_id, num_envs=num_envs, seed=0)
    agent = rlstack.make_agent(name, env, 1_000_000, **SETTINGS[name])
    collector = rlstack.make_collector(env, agent.policy(explore=True), agent.config.steps_per_batch)
    batches: Iterator[Any] = iter(collector)
    frames = 0

    def train(steps: int) -> None:
        nonlocal frames
        goal = frames + steps
        while frames < goal:
            batch = next(batches)
            frames += batch.numel()
            agent.learn(rlstack.flatten_agents(batch, None), frames)

    return train


def theirs(name: str) -> Callable[[int], None]:
    """Trains for so many more steps."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env

    env_id, num_envs = ENVS[name]
    algorithm = {"ppo": sb3.PPO, "dqn": sb3.DQN, "sac": sb3.SAC}[name]
    options = {"exploration_initial_eps": 0.05} if name == "dqn" else {}
    model = algorithm("MlpPolicy", make_vec_env(env_id, num_envs, seed=0), seed=0, device="cpu", **options)

    def train(steps: int) -> None:
        model.learn(steps, reset_num_timesteps=False)

    return train


def compare(name: str, rounds: int) -> dict[str, Any]:
    """Steps per CPU-second of both, and the ratio of each round."""
    ways = {"rlstack": ours(name), "stable_baselines3": theirs(name)}
    for train in ways.values():
        train(STEPS[name] // 4)
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds):
        for way in list(ways) if turn % 2 else list(ways)[::-1]:
            before = time.process_time()
            ways[way](STEPS[name])
            speeds[way].append(STEPS[name] / (time.process_time() - before))
    ratios = [a / b for a, b in zip(speeds["rlstack"], speeds["stable_baselines3"], strict=True)]
    summary = {way: _spread(values) for way, values in speeds.items()}
    return {"env": ENVS[name][0], **summary, "ratio": _spread(ratios)}


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=list(STEPS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # What is not measured now keeps its last figures.
    results = json.loads(arguments.out.read_text())["results"] if arguments.out.is_file() else {}
    for name in arguments.algorithms:
        results[name] = compare(name, arguments.rounds)
        line = {way: round(results[name][way]["median"]) for way in ("rlstack", "stable_baselines3")}
        print(name, results[name]["env"], line, f"ratio {results[name]['ratio']['median']:.2f}", flush=True)
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "torch": torch.__version__}
    arguments.out.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
