"""Compares learning curves of PPO here and in Stable-Baselines3 at equal hyperparameters (extra sb3).

    python -m experiments.benchmarks.equal_ppo CartPole-v1 --seeds 0 1 2 3 4
    python -m experiments.benchmarks.equal_ppo LunarLander-v3 HalfCheetah-v5        # extras box2d, mujoco

Both use :data:`SETTINGS` and otherwise each library's defaults. The curves are the returns of episodes that end in each
of twenty equal parts of the run, in one process with one thread. ``results/equal_ppo.json`` beside this file is written
after each run. Curves that it has are not measured again.

    python -m experiments.benchmarks.equal_ppo LunarLander-v3 --same-data

trains both instead on the transitions that Stable-Baselines3 gathers, from equal parameters before each batch and with
minibatches in equal order, and prints how far apart they are after it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs import EnvBase

import rlstack
from experiments.results import interval, join, markdown, saved
from rlstack import envs
from rlstack.evaluation.statistics import bootstrap_interval, separation

from .timing import RESULTS, circumstances

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
    episodes: Episodes = []
    frames = 0
    for batch in rlstack.make_collector(env, agent.policy(explore=True), settings.steps):
        ended = batch["next", "done"].squeeze(-1)
        returns = batch["next", "episode", "return"].squeeze(-1)
        for row, step in ended.T.nonzero().flip(-1).tolist():  # ordered by time
            episodes.append((frames + (step + 1) * settings.num_envs, float(returns[row, step])))
        frames += batch.numel()
        agent.learn(rlstack.flatten_agents(batch, None), frames)
        if frames >= settings.frames:
            break
    return episodes


def stable_baselines3(task: str, settings: Settings, seed: int) -> Episodes:
    """Trains with Stable-Baselines3 and returns the episodes."""
    episodes: Episodes = []

    def record(variables: dict[str, Any], _: Any) -> bool:
        ended = [info["episode"]["r"] for info in variables["infos"] if "episode" in info]
        episodes.extend((variables["self"].num_timesteps, float(value)) for value in ended)
        return True

    _stable_baselines3(task, settings, seed).learn(settings.frames, callback=record)
    return episodes


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
    from stable_baselines3.common.callbacks import ConvertCallback

    gathered: list[dict[str, Any]] = []

    def gather(variables: dict[str, Any], _: Any) -> bool:
        infos, done = variables["infos"], variables["dones"].copy()
        cut = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        seen = [info.get("terminal_observation", new) for info, new in zip(infos, variables["new_obs"])]
        step = {"observation": variables["self"]._last_obs, "action": variables["actions"], "done": done}
        step |= {"log_prob": variables["log_probs"].numpy(), "next_observation": np.stack(seen)}
        step |= {"reward": variables["rewards"], "terminated": done & ~cut}
        gathered.append({name: value.copy() for name, value in step.items()})
        return True

    theirs = _stable_baselines3(task, settings, seed, max_episode_steps=max_steps)
    mine = agent_of(envs.make("gymnasium", id=task, num_envs=settings.num_envs), settings)
    networks = theirs.policy.mlp_extractor
    layers = (networks.policy_net, theirs.policy.action_net, networks.value_net, theirs.policy.value_net)
    others = _parameters(*layers) + [
        parameter for name, parameter in theirs.policy.named_parameters() if name == "log_std"
    ]
    twins = list(zip(_parameters(mine.actor, mine.critic), others, strict=True))
    _, gathering = theirs._setup_learn(settings.frames, ConvertCallback(gather))
    orders = np.random.default_rng(seed)
    lead = (settings.num_envs, settings.steps)
    while theirs.num_timesteps < settings.frames:
        with torch.no_grad():
            for own, other in twins:
                own.copy_(other)
        gathered.clear()
        theirs.collect_rollouts(theirs.env, gathering, theirs.rollout_buffer, settings.steps)
        steps = {name: torch.as_tensor(np.stack([step[name] for step in gathered], 1)) for name in gathered[0]}
        following = {name: steps[name].unsqueeze(-1) for name in ("reward", "done", "terminated")}
        following["observation"] = steps["next_observation"]
        entries = {name: steps[name] for name in ("observation", "action", "log_prob")}
        if mine.numbers:
            entries["raw_action"] = steps["action"]
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
    for task, entry in result["tasks"].items():
        by_library = {name: means(list(curves.values())) for name, curves in entry["curves"].items() if curves}
        first = next(iter(by_library.values()))
        for library, own in by_library.items():
            cells = [task, f"{entry['settings']['frames']:,}", library, str(len(own["area"]))]
            for name, values in own.items():
                cells.append(interval(float(np.mean(values)), bootstrap_interval(values), ".1f"))
                cells.append("" if own is first else f"{separation(values, first[name])[0]:.2f}")
            rows.append(cells)
    return markdown("task | frames | library | seeds | mean return of the run | p | of its last quarter | p", rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
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
    for task, seed, library in product(arguments.tasks, map(str, arguments.seeds), LIBRARIES):
        settings = SETTINGS[task]
        plain = settings._asdict() | {"hidden": list(settings.hidden)}
        kept = saved(file).get("tasks", {}).get(task, {"settings": plain, "measured": [], "curves": {}})
        if kept["settings"] != plain:
            raise SystemExit(f"{file} has curves of {task} with other settings; move it away, or name another --out")
        if seed in kept["curves"].get(library, {}):
            continue
        curve = parts(LIBRARIES[library](task, settings, int(seed)), settings.frames)
        print(f"{task}, {library}, seed {seed}: {curve[-1]:.1f} at the end", flush=True)
        about = circumstances("equal_ppo")
        measured = kept["measured"] + ([] if about in kept["measured"] else [about])
        entry = {"settings": plain, "measured": measured, "curves": {library: {seed: curve}}}
        join(file, {"tasks": {task: entry}})
    print(table(saved(file)))


if __name__ == "__main__":
    main()
