"""Trains as ``shared_runs`` does, in one of several processes; each writes its networks and its replay buffer's size.

``torchrun -m tests.training.every_rank <folder> <names>`` writes ``<folder>/<name>/rank<k>.pt``.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from rlstack.command import user_errors
from rlstack.training.hooks import Hook
from rlstack.training.run import train
from tests.training.shared_runs import plain_config


class _Leave(Hook):
    def on_end(self, training: Any) -> None:
        agent = training.agent
        state = {
            "networks": agent.state_dict()["networks"],
            "updates": agent.updates,
            "worlds": training.env.batch_size.numel(),
            "random": torch.rand(4),
        }
        if hasattr(agent, "replay"):
            state |= {"capacity": agent.replay.storage.max_size, "seen": agent.replay[:8]["observation"]}
        torch.save(state, Path(training.raw_config["run_dir"]) / f"rank{os.environ['RANK']}.pt")


if __name__ == "__main__":
    target, *names = sys.argv[1:]
    with user_errors():
        for entry in names:
            chosen, *overrides = entry.split("+")
            train(plain_config(chosen, Path(target), *overrides), [_Leave()])
