"""Compares learning curves of PPO here and in Stable-Baselines3 at equal hyperparameters (extra sb3).

    python -m experiments.benchmarks.equal_ppo CartPole-v1 --seeds 0 1 2 3 4
    python -m experiments.benchmarks.equal_ppo LunarLander-v3 HalfCheetah-v5        # extras box2d, mujoco

Both use :data:`SETTINGS` and otherwise each library's defaults. The curves are the returns of episodes that end in each
of twenty equal parts of the run, in one process with one thread. Results beside this file: ``results/equal_ppo.json``,
written after each run, and ``results/equal_ppo.png``. Curves that it has with the same settings are not measured again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torchrl.envs import EnvBase

import envs
import rlstack
from envs.whole_files import write_json
from rlstack.evaluation.statistics import bootstrap_interval

from .speed import circumstances

RESULTS = Path(__file__).parent / "results"
PARTS = 20


class Settings(NamedTuple):
    """The settings of both libraries.

    Attributes:
        frames: length of a run.
        num_envs, steps: a batch has ``num_envs * steps`` frames.
        minibatch, epochs, gamma, gae_lambda, entropy, clip, lr: hyperparameters of PPO.
        hidden: units of each tanh layer in the separate networks of actor and critic.
    """

    frames: int
    num_envs: int
    steps: int
    minibatch: int = 64
    epochs: int = 10
    gamma: float = 0.99
    gae_lambda: float = 0.95
    entropy: float = 0.0
    clip: float = 0.2
    lr: float = 3e-4
    hidden: tuple[int, ...] = (64, 64)


SETTINGS = {
    "CartPole-v1": Settings(100_000, 8, 128),
    "LunarLander-v3": Settings(1_000_000, 16, 1024, epochs=4, gamma=0.999, gae_lambda=0.98, entropy=0.01),
    "HalfCheetah-v5": Settings(1_000_000, 1, 2048),
}

Episodes = list[tuple[int, float]]
"""Frames at the end of each episode, and its return."""


def agent_of(env: EnvBase, settings: Settings) -> Any:
    """Returns our agent."""
    return rlstack.make_agent(
        "ppo",
        env,
        settings.frames,
        steps_per_batch=settings.steps,
        minibatch_size=settings.minibatch,
        entropy_coefficient=settings.entropy,
        hidden=list(settings.hidden),
        **{name: getattr(settings, name) for name in ("epochs", "gamma", "gae_lambda", "clip", "lr")},
    )


def ours(task: str, settings: Settings, seed: int) -> Episodes:
    """Trains with rlstack and returns the episodes."""
    torch.manual_seed(seed)
    env = envs.make("gymnasium", id=task, num_envs=settings.num_envs, seed=seed)
    agent = agent_of(env, settings)
    found: Episodes = []
    frames = 0
    for batch in rlstack.make_collector(env, agent.policy(explore=True), settings.steps):
        ended = batch["next", "done"].squeeze(-1)
        returns = batch["next", "episode", "return"].squeeze(-1)
        for row, step in ended.T.nonzero().flip(-1).tolist():  # ordered by time
            found.append((frames + (step + 1) * settings.num_envs, float(returns[row, step])))
        frames += batch.numel()
        agent.learn(rlstack.flatten_agents(batch, None), frames)
        if frames >= settings.frames:
            return found
    return found


def stable_baselines3(task: str, settings: Settings, seed: int) -> Episodes:
    """Trains with Stable-Baselines3 and returns the episodes."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Record(BaseCallback):
        found: Episodes = []

        def _on_step(self) -> bool:
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            self.found.extend((self.num_timesteps, float(value)) for value in ended)
            return True

    record = Record()
    record.found = []
    width = list(settings.hidden)
    model = PPO(
        "MlpPolicy",
        make_vec_env(task, settings.num_envs, seed=seed),
        settings.lr,
        settings.steps,
        settings.minibatch,
        settings.epochs,
        settings.gamma,
        settings.gae_lambda,
        settings.clip,
        ent_coef=settings.entropy,
        policy_kwargs={"net_arch": {"pi": width, "vf": width}},
        seed=seed,
        device="cpu",
    )
    model.learn(settings.frames, callback=record)
    return record.found


LIBRARIES: dict[str, Callable[[str, Settings, int], Episodes]] = {
    "rlstack": ours,
    "stable-baselines3": stable_baselines3,
}


def parts(episodes: Episodes, frames: int) -> list[float | None]:
    """Returns the mean return in each of :data:`PARTS` equal parts of a run; None if no episode ended in it."""
    values: list[list[float]] = [[] for _ in range(PARTS)]
    for when, value in episodes:
        values[min(PARTS - 1, (when - 1) * PARTS // frames)].append(value)
    return [float(np.mean(part)) if part else None for part in values]


def summary(curves: Sequence[Sequence[float | None]]) -> dict[str, list[float]]:
    """Returns means over the seeds of the whole run (``area``) and its last quarter (``end``) with 95 % intervals."""
    kept = [[value for value in curve if value is not None] for curve in curves]
    ends = [[value for value in curve[-(PARTS // 4) :] if value is not None] for curve in curves]
    found = {}
    for name, rows in (("area", kept), ("end", ends)):
        means = [float(np.mean(row)) for row in rows]
        found[name] = [float(np.mean(means)), *(float(bound) for bound in bootstrap_interval(means))]
    return found


def markdown(result: dict[str, Any]) -> str:
    """Returns a table with a row for each task and library of a result file."""
    lines = [
        "| task | frames | library | seeds | mean return of the run | of its last quarter |",
        "|---|---|---|---|---|---|",
    ]
    for task, found in result["tasks"].items():
        for library, curves in found["curves"].items():
            told = summary(list(curves.values()))
            cells = [task, f"{found['settings']['frames']:,}", library, str(len(curves))]
            cells += ["{:.1f} ({:.1f} to {:.1f})".format(*told[name]) for name in ("area", "end")]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(result: dict[str, Any], picture: Path) -> None:
    """Draws a panel for each task with mean and range over the seeds."""
    tasks = result["tasks"]
    figure, axes = plt.subplots(1, len(tasks), figsize=(5.5 * len(tasks), 3.6), constrained_layout=True, squeeze=False)
    for axis, (task, found) in zip(axes[0], tasks.items()):
        frames = (np.arange(PARTS) + 0.5) * found["settings"]["frames"] / PARTS
        for library, curves in found["curves"].items():
            values = np.array(list(curves.values()), dtype=float)
            (line,) = axis.plot(frames, values.mean(0), label=library)
            axis.fill_between(frames, values.min(0), values.max(0), color=line.get_color(), alpha=0.15)
        axis.set(title=f"PPO, {task}", xlabel="frames", ylabel="return of training episodes")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = arguments.out / "equal_ppo.json"
    tasks = json.loads(file.read_text())["tasks"] if file.is_file() else {}
    for task in arguments.tasks:
        settings = SETTINGS[task]
        made = json.loads(json.dumps(settings._asdict()))  # as the file has them: lists, not tuples
        earlier = tasks.get(task, {})
        known = earlier["curves"] if earlier.get("settings") == made else {}
        curves = {library: dict(known.get(library, {})) for library in LIBRARIES}
        tasks[task] = {"settings": made, "measured": circumstances("equal_ppo"), "curves": curves}
        for seed in arguments.seeds:
            for library, train in LIBRARIES.items():
                if str(seed) in curves[library]:
                    continue
                curves[library][str(seed)] = parts(train(task, settings, seed), settings.frames)
                print(f"{task}, {library}, seed {seed}: {curves[library][str(seed)][-1]:.1f} at the end", flush=True)
                write_json(file, {"tasks": tasks})
    result = json.loads(file.read_text())
    draw(result, arguments.out / "equal_ppo.png")
    print(markdown(result))


if __name__ == "__main__":
    main()
