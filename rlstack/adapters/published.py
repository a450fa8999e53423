"""Published learners with all their quirks, as ``algorithm: <name>_published``, so that the usual ones have none.

No lower package imports this module: :mod:`rlstack.agents` finds the classes by name.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.adapters.interleaved import InterleavedReplay
from rlstack.agents.interface import Interface
from rlstack.agents.optimizer import Info
from rlstack.agents.ppo import PPO
from rlstack.agents.rainbow import Rainbow
from rlstack.agents.sac import SAC
from rlstack.config import ConfigError
from rlstack.data.normalizers import RunningMoments


class PublishedPPO(PPO):
    """PPO as in the Arena game's own stack.

    - Minibatches have exactly ``minibatch_size`` entries, the last one what is left.
    - Metrics, and the distance that ``target_kl`` bounds, are means over all minibatches of an update so far.
    - Running statistics divide the variance of each batch by N - 1.
    """

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        for statistics in (self.normalizer, self.reward_scaler):
            for module in () if statistics is None else statistics.modules():
                if isinstance(module, RunningMoments):
                    module.unbiased = True

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        self._seen: list[Info] = []
        return super().update(batch)

    def minibatch_sizes(self, rows: int, size: int) -> list[int]:
        """Returns parts of exactly ``size``, the last one with what is left."""
        whole, rest = divmod(rows, size)
        return [size] * whole + [rest] * (rest > 0)

    reports_all = True

    def reported(self, info: Info) -> Info:
        """Returns the means over all minibatches of this update so far."""
        self._seen.append({name: value.clone() for name, value in info.items()})  # the next step may overwrite it
        return {name: torch.stack([seen[name] for seen in self._seen]).mean() for name in info}


class PublishedSAC(SAC):
    """SAC as in MarineNav: log densities use the correction for tanh with any squash."""

    def loss_options(self) -> dict[str, Any]:
        return {**super().loss_options(), "correction": "tanh"}


class PublishedRainbow(Rainbow):
    """Rainbow as in MarineNav: its replay buffer is one sequence in which the robots alternate."""

    def make_replay(self, steps: int = 1) -> InterleavedReplay:
        c = self.config
        if self.interface.masked:
            raise ConfigError("agent.algorithm: rainbow_published keeps no action masks, as the env has; use rainbow")
        if c.correction != "none":
            raise ConfigError("agent.correction: rainbow_published replays its own n-step returns; set none")
        if c.steps_per_batch != 1:
            raise ConfigError("agent.steps_per_batch: rainbow_published takes steps one by one; set 1")
        if c.replay.storage != "LazyTensorStorage":
            raise ConfigError("agent.replay.storage: rainbow_published keeps no files; set LazyTensorStorage")
        if c.replay_device is not None:
            raise ConfigError("agent.replay_device: rainbow_published replays on the learner's device; set null")
        return InterleavedReplay(c.buffer_size, c.batch_size, self.device, c.n_step, c.gamma, c.priority_exponent)

    def extend(self, sequences: TensorDictBase) -> None:
        self.replay.extend_interleaved(self._own(sequences))

    def load_data(self, recorded: TensorDictBase, seen: bool = False) -> None:
        raise ConfigError("data: rainbow_published learns from steps of all robots in turn, not from data; use rainbow")

    def sample(self) -> TensorDictBase:
        self.replay.beta = self.scheduled["importance_exponent"]
        return self.replay.sample()
