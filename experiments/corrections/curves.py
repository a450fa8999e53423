"""Measures off-policy corrections on batched CartPole: V-trace for delayed data, Retrace for strong exploration.

    python -m experiments.corrections.curves vtrace     # an acting policy that is some updates old
    python -m experiments.corrections.curves retrace    # DQN and IQN that explore with every second action

V-trace's lag is exact, in one process: the acting policy has the weights of a fixed number of updates ago, like a
worker that does not wait, so a seed repeats a run. Each study writes ``<study>.csv`` (greedy return of each
evaluation) and ``<study>.json`` (areas under the curves with their intervals) beside this file.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from experiments.results import by_place, interval, markdown, write_csv
from experiments.runs import options
from rlstack import envs
from rlstack.agents import make_agent
from rlstack.agents.base import copy_on
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.envs.foundation.files import write_json
from rlstack.evaluation.evaluator import evaluate
from rlstack.evaluation.statistics import bootstrap_interval
from rlstack.training.environment import machine

EPISODES, POINTS = 10, 12
"""Numbers of greedy episodes in an evaluation, and of evaluations in a run."""
_LATE: dict[str, Any] = {"steps_per_batch": 16, "lr": 1.0e-3, "gamma": 0.98}
_PPO: dict[str, Any] = {**_LATE, "epochs": 4, "minibatch_size": 128}
_A2C: dict[str, Any] = {**_LATE, "gae_lambda": 0.95, "lr": 2.0e-3}
_DQN: dict[str, Any] = {"hidden": [64, 64], "epsilon": 0.5, "learning_starts": 500, "target_every": 200}
ARMS: dict[str, dict[str, tuple[str, int, dict[str, Any]]]] = {
    "vtrace": {
        "A2C, no lag": ("a2c", 0, _A2C),
        "A2C, lag 8": ("a2c", 8, _A2C),
        "A2C, lag 8, V-trace": ("a2c", 8, {**_A2C, "advantage": "vtrace"}),
        "PPO, no lag": ("ppo", 0, _PPO),
        "PPO, lag 8": ("ppo", 8, _PPO),
        "PPO, lag 8, V-trace": ("ppo", 8, {**_PPO, "advantage": "vtrace"}),
    },
    "retrace": {
        "DQN, one step": ("dqn", 0, _DQN),
        "DQN, 5 steps": ("dqn", 0, {**_DQN, "n_step": 5}),
        "DQN, 5 steps, Retrace": ("dqn", 0, {**_DQN, "n_step": 5, "correction": "retrace"}),
        "IQN, 5 steps": ("iqn", 0, {**_DQN, "n_step": 5}),
        "IQN, 5 steps, Retrace": ("iqn", 0, {**_DQN, "n_step": 5, "correction": "retrace"}),
    },
}
"""The arms of each study: agent, lag in updates of the learner, options."""
FRAMES = {"vtrace": 24_000, "retrace": 16_000}
WORLDS = {"vtrace": 16, "retrace": 4}


def train(study: str, arm: str, seed: int, frames: int) -> Iterator[tuple[int, float]]:
    """Trains one arm; yields frames and mean greedy return at :data:`POINTS` of the run."""
    name, lag, given = ARMS[study][arm]
    torch.manual_seed(seed)
    env = envs.make("cartpole", num_worlds=WORLDS[study], seed=seed)
    agent = make_agent(name, env, frames, "cpu", **given)
    own, acting = agent.policy(explore=True), copy_on(agent.policy(explore=True), torch.device("cpu"))
    waiting: deque[TensorDict] = deque()
    made, due = 0, frames // POINTS
    batches = iter(make_collector(env, acting, agent.config.steps_per_batch))
    while made < frames:
        waiting.append(TensorDict.from_module(own).data.clone())
        if len(waiting) > lag + 1:
            waiting.popleft()
        TensorDict.from_module(acting).data.update_(waiting[0])
        batch = next(batches)
        made += batch.numel()
        agent.learn(flatten_agents(batch, None), made)
        if made >= due:
            due += frames // POINTS
            scores = evaluate(agent.policy(explore=False), "cartpole", {}, EPISODES, 1000 + seed).summary()
            yield made, scores["eval/return"]


def summary(rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Of each arm: mean return over the whole run (the area under its curve) and at its end, by seed."""
    arms: dict[str, Any] = {}
    for arm in dict.fromkeys(row["arm"] for row in rows):
        _, curves = by_place([row for row in rows if row["arm"] == arm], "frames", "return")
        areas, ends = ([float(np.mean(curve[first:])) for curve in curves] for first in (0, -(POINTS // 4)))
        arms[arm] = {"area": float(np.mean(areas)), "interval": list(bootstrap_interval(areas)), "areas": areas}
        arms[arm] |= {"last quarter": float(np.mean(ends)), "its interval": list(bootstrap_interval(ends))}
    return {"machine": f"{machine()}, one thread", "cpu_seconds": seconds, "arms": arms}


def table(result: dict[str, Any]) -> str:
    """Returns a row for each arm, with 95 % intervals over the seeds."""
    rows = []
    for arm, row in result["arms"].items():
        end = interval(row["last quarter"], row["its interval"], ".0f")
        rows.append([arm, len(row["areas"]), interval(row["area"], row["interval"], ".0f"), end])
    return markdown("arm | seeds | area | last quarter", rows)


def main() -> None:
    """Command line."""
    parser = options(__doc__, __file__)
    parser.add_argument("study", choices=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    study, begun, rows = arguments.study, time.process_time(), []
    for seed in arguments.seeds:
        for arm in ARMS[study]:
            for frames, value in train(study, arm, seed, FRAMES[study]):
                rows.append({"arm": arm, "seed": seed, "frames": frames, "return": value})
            print(f"seed {seed}: {arm}: {rows[-1]['return']:.0f} at {rows[-1]['frames']:,} frames", flush=True)
    result = summary(rows, time.process_time() - begun)
    write_json(arguments.out / f"{study}.json", result)
    write_csv(arguments.out / f"{study}.csv", ("arm", "seed", "frames", "return"), rows)
    print(table(result))


if __name__ == "__main__":
    main()
