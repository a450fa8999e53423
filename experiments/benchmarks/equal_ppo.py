"""Compares learning curves of PPO here and in Stable-Baselines3 at equal hyperparameters (extra sb3).

    python -m experiments.benchmarks.equal_ppo CartPole-v1 --seeds 0 1 2 3 4
    python -m experiments.benchmarks.equal_ppo LunarLander-v3 HalfCheetah-v5        # extras box2d, mujoco

Both use :data:`SETTINGS` and otherwise each library's defaults. The curves are the returns of episodes that end in each
of twenty equal parts of the run, in one process with one thread. Results beside this file: ``results/equal_ppo.json``,
written after each run, and ``results/equal_ppo.png``. Curves that it has with the same settings are not measured again.

    python -m experiments.benchmarks.equal_ppo LunarLander-v3 --same-data

trains both instead on the transitions that Stable-Baselines3 gathers, from equal parameters before each batch and with
minibatches in equal order, and prints how far apart they are after it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs import EnvBase

import rlstack
from experiments.results import draw_range, interval, markdown, picture
from rlstack import envs
from rlstack.envs.foundation.files import write_json
from rlstack.evaluation.statistics import bootstrap_interval, separation

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
    from stable_baselines3.common.callbacks import BaseCallback

    class Record(BaseCallback):
        found: Episodes = []

        def _on_step(self) -> bool:
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            self.found.extend((self.num_timesteps, float(value)) for value in ended)
            return True

    record = Record()
    record.found = []
    _stable_baselines3(task, settings, seed).learn(settings.frames, callback=record)
    return record.found


def _stable_baselines3(task: str, settings: Settings, seed: int, **options: Any) -> Any:
    """Returns PPO of Stable-Baselines3; ``options`` are those of the environment."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    width = list(settings.hidden)
    return PPO(
        "MlpPolicy",
        make_vec_env(task, settings.num_envs, seed=seed, env_kwargs=options),
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


LIBRARIES: dict[str, Callable[[str, Settings, int], Episodes]] = {
    "rlstack": ours,
    "stable-baselines3": stable_baselines3,
}


class Difference(NamedTuple):
    """The largest absolute differences between the libraries.

    Attributes:
        frames: frames so far.
        estimates: of advantages, returns and values in the last batch.
        parameters: of the parameters after the updates on it.
    """

    frames: int
    estimates: float
    parameters: float


def same_data(task: str, settings: Settings, seed: int, max_steps: int | None = None) -> Iterator[Difference]:
    """Trains both libraries on what Stable-Baselines3 gathers, with minibatches in equal order.

    Before each batch our parameters are set to theirs, since rounding errors grow: a ratio that is clipped on one side
    only changes the updates after it. The optimisers' moments are each library's own.

    Args:
        max_steps: number of steps after which an episode is truncated; None is the environment's own limit.

    Yields the differences after each batch.
    """
    from stable_baselines3.common.callbacks import BaseCallback

    class Gathering(BaseCallback):
        steps: list[dict[str, Any]] = []

        def _on_step(self) -> bool:
            infos, done = self.locals["infos"], self.locals["dones"].copy()
            cut = np.array([info.get("TimeLimit.truncated", False) for info in infos])
            seen = [info.get("terminal_observation", new) for info, new in zip(infos, self.locals["new_obs"])]
            step = {"observation": self.model._last_obs, "action": self.locals["actions"], "done": done}
            step |= {"log_prob": self.locals["log_probs"].numpy(), "next_observation": np.stack(seen)}
            step |= {"reward": self.locals["rewards"], "terminated": done & ~cut}
            self.steps.append({name: value.copy() for name, value in step.items()})
            return True

    theirs = _stable_baselines3(task, settings, seed, max_episode_steps=max_steps)
    mine = agent_of(envs.make("gymnasium", id=task, num_envs=settings.num_envs), settings)
    pairs = zip(_parameters(mine.actor, mine.critic), _parameters_of_stable_baselines3(theirs.policy), strict=True)
    twins = list(pairs)
    gathering = Gathering()
    theirs._setup_learn(settings.frames, gathering)
    orders = np.random.default_rng(seed)
    lead = (settings.num_envs, settings.steps)
    while theirs.num_timesteps < settings.frames:
        with torch.no_grad():
            for own, other in twins:
                own.copy_(other)
        gathering.steps = gathered = []
        theirs.collect_rollouts(theirs.env, gathering, theirs.rollout_buffer, settings.steps)
        told = {name: torch.as_tensor(np.stack([step[name] for step in gathered], 1)) for name in gathered[0]}
        following = {name: told[name].unsqueeze(-1) for name in ("reward", "done", "terminated")}
        following["observation"] = told["next_observation"]
        entries = {name: told[name] for name in ("observation", "action", "log_prob")}
        if mine.numbers:
            entries["raw_action"] = told["action"]
        data = rlstack.flatten_agents(TensorDict({**entries, "next": TensorDict(following, lead)}, lead), None)
        mine.set_frames(theirs.num_timesteps)
        batch, buffer = mine.rollout(data), theirs.rollout_buffer
        same = (("advantage", buffer.advantages), ("return", buffer.returns), ("value", buffer.values))
        estimates = [(batch[name].view(lead) - torch.as_tensor(other).T).abs().max() for name, other in same]
        order = [orders.permutation(len(batch)) for _ in range(settings.epochs)]
        for_them, for_us = iter(order), iter(order)
        with (
            patch.object(np.random, "permutation", lambda _, them=for_them: next(them)),
            patch.object(torch, "randperm", lambda _, us=for_us, **__: torch.as_tensor(next(us))),
        ):
            theirs.train()
            mine.update(batch)
        apart = [(own - other).detach().abs().max() for own, other in twins]
        yield Difference(theirs.num_timesteps, float(max(estimates)), float(max(apart)))


def _parameters(*networks: nn.Module) -> list[Tensor]:
    """Returns weights and biases in the order of the layers, then the log standard deviations."""
    layers = [layer for network in networks for layer in network.modules() if isinstance(layer, nn.Linear)]
    others = [network.log_std for network in networks if hasattr(network, "log_std")]
    return [parameter for layer in layers for parameter in (layer.weight, layer.bias)] + others


def _parameters_of_stable_baselines3(policy: Any) -> list[Tensor]:
    """Returns the same of a policy of Stable-Baselines3."""
    networks = policy.mlp_extractor
    layers = _parameters(networks.policy_net, policy.action_net, networks.value_net, policy.value_net)
    return layers + ([policy.log_std] if hasattr(policy, "log_std") else [])


def parts(episodes: Episodes, frames: int) -> list[float | None]:
    """Returns the mean return in each of :data:`PARTS` equal parts of a run; None if no episode ended in it."""
    values: list[list[float]] = [[] for _ in range(PARTS)]
    for when, value in episodes:
        values[min(PARTS - 1, (when - 1) * PARTS // frames)].append(value)
    return [float(np.mean(part)) if part else None for part in values]


def means(curves: Sequence[Sequence[float | None]]) -> dict[str, list[float]]:
    """Returns the mean of each seed over the whole run (``area``) and over its last quarter (``end``)."""
    parts_of = {"area": 0, "end": PARTS - PARTS // 4}
    return {
        name: [float(np.mean([value for value in curve[first:] if value is not None])) for curve in curves]
        for name, first in parts_of.items()
    }


def table(result: dict[str, Any]) -> str:
    """Returns a row for each task and library of a result file.

    Cells have means over the seeds with 95 % intervals; p-values are those of permutation tests between the libraries.
    """
    rows = []
    for task, found in result["tasks"].items():
        by_library = {name: means(list(curves.values())) for name, curves in found["curves"].items() if curves}
        first = next(iter(by_library.values()))
        for library, own in by_library.items():
            cells = [task, f"{found['settings']['frames']:,}", library, str(len(own["area"]))]
            for name, values in own.items():
                cells.append(interval(float(np.mean(values)), bootstrap_interval(values), ".1f"))
                cells.append("" if own is first else f"{separation(values, first[name])[0]:.2f}")
            rows.append(cells)
    return markdown("task | frames | library | seeds | mean return of the run | p | of its last quarter | p", rows)


def draw(result: dict[str, Any], file: Path) -> None:
    """Draws a panel for each task with mean and range over the seeds."""
    tasks = result["tasks"]
    with picture(file, (5.5 * len(tasks), 3.6), (1, len(tasks))) as axes:
        for axis, (task, found) in zip(axes.flat, tasks.items()):
            frames = (np.arange(PARTS) + 0.5) * found["settings"]["frames"] / PARTS
            for library, curves in found["curves"].items():
                if curves:
                    draw_range(axis, frames.tolist(), list(curves.values()), library)
            axis.set(title=f"PPO, {task}", xlabel="frames", ylabel="return of training episodes")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--libraries", nargs="+", choices=list(LIBRARIES), default=list(LIBRARIES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--same-data", action="store_true", help="train both on the same transitions; saves nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.same_data:
        for task in arguments.tasks:
            for difference in same_data(task, SETTINGS[task], arguments.seeds[0]):
                print(task, difference, flush=True)
        return
    file = arguments.out / "equal_ppo.json"
    tasks = json.loads(file.read_text())["tasks"] if file.is_file() else {}
    for task in arguments.tasks:
        settings = SETTINGS[task]
        made = json.loads(json.dumps(settings._asdict()))  # as the file has them: lists, not tuples
        if tasks.get(task, {}).get("settings") != made:
            tasks[task] = {"settings": made, "measured": [], "curves": {library: {} for library in LIBRARIES}}
        curves, measured = tasks[task]["curves"], circumstances("equal_ppo")
        for seed in arguments.seeds:
            for library in arguments.libraries:
                if str(seed) in curves[library]:
                    continue
                if measured not in tasks[task]["measured"]:
                    tasks[task]["measured"].append(measured)
                curves[library][str(seed)] = parts(LIBRARIES[library](task, settings, seed), settings.frames)
                print(f"{task}, {library}, seed {seed}: {curves[library][str(seed)][-1]:.1f} at the end", flush=True)
                write_json(file, {"tasks": tasks})
    result = json.loads(file.read_text())
    draw(result, arguments.out / "equal_ppo.png")
    print(table(result))


if __name__ == "__main__":
    main()
