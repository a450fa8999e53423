"""Trains one configuration after another; ``torchrun`` starts it in several processes.

Arguments: a folder, and names of :data:`RUNS` or ``name+more overrides``; each leaves a run ``<folder>/<name>``, and of
several processes each its networks and its replay buffer's size in ``<folder>/<name>/rank<k>.pt``.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from rlstack.command import user_errors
from rlstack.training.hooks import Hook
from rlstack.training.run import train
from tests.small_run import composed

_COMMON = [
    "log_every=64",
    "eval.episodes=2",
    "eval.every=1000",
    "logger=csv",
    "threads=1",
    "device=cpu",
    "agent.hidden=[16,16]",
]
_CARTPOLE = ["env=gymnasium", "env.id=CartPole-v1", "env.num_envs=6", "env.workers=0", "total_frames=288", *_COMMON]
_PENDULUM = ["env=gymnasium", "env.id=Pendulum-v1", "env.num_envs=6", "env.workers=0", "total_frames=288", *_COMMON]
_REPLAY = ["agent.buffer_size=200", "agent.learning_starts=60", "agent.batch_size=33", "agent.frames_per_update=12"]
_SCALED = ["agent.normalize_observations=true", "agent.normalize_rewards=true"]
_MEMORY = "agent.recurrent={kind: gru, size: 8, layers: 1, sequence_length: 8}"
RUNS = {
    "ppo": ["agent=ppo", *_CARTPOLE, *_SCALED, "agent.minibatch_size=20", "agent.epochs=2", "agent.target_kl=0.5"],
    "a2c": ["agent=a2c", *_PENDULUM, "agent.accumulate=2"],
    "pqn": ["agent=pqn", *_CARTPOLE, *_SCALED, "agent.minibatch_size=20"],
    "dqn": ["agent=dqn", *_CARTPOLE, *_REPLAY, "agent.n_step=3"],
    "rainbow": ["agent=rainbow", *_CARTPOLE, *_REPLAY],
    "qrdqn": ["agent=qrdqn", *_CARTPOLE, *_REPLAY],
    "iqn": ["agent=iqn", *_CARTPOLE, *_REPLAY],
    "sac": ["agent=sac", *_PENDULUM, *_REPLAY, *_SCALED],
    "td3": ["agent=td3", *_PENDULUM, *_REPLAY],
    "tqc": ["agent=tqc", *_PENDULUM, *_REPLAY],
    "acqn": ["agent=acqn", *_PENDULUM, *_REPLAY],
    "ppo_memory": ["agent=ppo", *_CARTPOLE, _MEMORY, "agent.steps_per_batch=16", "agent.minibatch_size=24"],
    "torchrl_ppo": ["agent=torchrl_ppo", *_CARTPOLE, *_SCALED, "agent.minibatch_size=20", "agent.epochs=2"],
    "torchrl_sac": ["agent=torchrl_sac", *_PENDULUM, *_REPLAY, *_SCALED],
    "crossq": ["agent=crossq", *_PENDULUM, *_REPLAY],
    "self_play": [
        *("agent=ppo", "env=rocket", "env.num_worlds=6", "env.max_seconds=2", "total_frames=960", *_COMMON),
        *("agent.steps_per_batch=8", "agent.epochs=1", "eval.max_steps=30"),
        "env.opponents={players: [random, rule], snapshot_every: 200, sampler: pfsp, refresh: 4}",
    ],
    "stages": [
        *("agent=ppo", "env=marinenav", "curriculum=marinenav", "env.num_worlds=4", "total_frames=1000", *_COMMON),
        "curriculum.advance.any=[{stage_frames: {min: 300}}]",
    ],
}


def plain_config(name: str, folder: Path, *more: str) -> dict[str, Any]:
    """Returns the composed configuration of a run in ``<folder>/<name>``."""
    return {**composed(*RUNS[name], *more), "run_dir": str(folder / name)}


class _Leave(Hook):
    def on_end(self, training: Any) -> None:
        agent = training.agent
        state = {
            "networks": agent.state_dict()["networks"],
            "updates": agent.updates,
            "worlds": training.env.batch_size.numel(),
            "random": torch.rand(4),
        }
        if agent.replay is not None:
            state |= {"capacity": agent.replay.storage.max_size, "seen": agent.replay[:8]["observation"]}
        torch.save(state, Path(training.raw_config["run_dir"]) / f"rank{os.environ['RANK']}.pt")


if __name__ == "__main__":
    target, *names = sys.argv[1:]
    hooks = [_Leave()] if "RANK" in os.environ else []
    with user_errors():
        for entry in names:
            chosen, *overrides = entry.split("+")
            train(plain_config(chosen, Path(target), *overrides), hooks)
