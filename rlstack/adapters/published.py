"""Published learners with all their quirks, as ``algorithm: <name>_published``: the usual ones stay free of them.

Nothing below imports this file: :mod:`rlstack.agents` finds the classes by name.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.agents.interface import Interface
from rlstack.agents.optimizer import Info
from rlstack.agents.ppo import PPO
from rlstack.agents.sac import SAC
from rlstack.data.normalizers import RunningMoments


class PublishedPPO(PPO):
    """PPO as the Arena game's own stack has it.

    - Minibatches are of exactly ``minibatch_size``, and a last one has what is left.
    - Metrics, and the distance that ``target_kl`` bounds, are means over all minibatches of an update so far.
    - Running statistics take the variance of each batch over N - 1.
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
        """Parts of exactly ``size``, the last one with what is left."""
        whole, rest = divmod(rows, size)
        return [size] * whole + [rest] * (rest > 0)

    reports_all = True

    def reported(self, info: Info) -> Info:
        """The means over all minibatches of this update so far."""
        self._seen.append(info)
        return {name: torch.stack([seen[name] for seen in self._seen]).mean() for name in info}


class PublishedSAC(SAC):
    """SAC as MarineNav has it: log densities take tanh's correction, whatever the squash."""

    def loss_options(self) -> dict[str, Any]:
        return {**super().loss_options(), "correction": "tanh"}
