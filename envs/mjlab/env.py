"""A task of mjlab (Zakka et al. 2026, arXiv 2601.22074) as a batched world, through TorchRL's wrapper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchrl.envs import MJLabEnv

from ..torchrl.env import TaskRows


class Rows(MJLabEnv):
    """TorchRL's ``MJLabEnv`` with the terms of its reward.

    Args:
        task: name in mjlab's registry.
        num_envs: number of rows, which MuJoCo Warp steps as one batch.
        device: where mjlab simulates.
        kwargs: further arguments of the wrapper.
    """

    def __init__(self, task: str, num_envs: int, device: torch.device, **kwargs: Any) -> None:
        super().__init__(task, num_envs=num_envs, device=device, **kwargs)

    def episode_terms(self) -> dict[str, Tensor]:
        """Returns the sums over the episode so far of each term of the reward, ``[N]``."""
        return dict(self.reward_manager._episode_sums)


class MJLab(TaskRows):
    """Rows of a task of mjlab, which MuJoCo Warp steps as one batch; see :class:`~rlstack.envs.torchrl.TorchRL`.

    The terms of the reward are the statistics ``("episode", "reward_<term>")``: weighted sums over the episode so far.
    The first step compiles for a minute or more. mjlab recommends an NVIDIA GPU; small tasks also run on a CPU.

    Args:
        task: such as ``Mjlab-Cartpole-Balance`` or ``Mjlab-Velocity-Flat-Unitree-Go1``.
        num_envs: number of rows.
        kwargs: further arguments of TorchRL's ``MJLabEnv``, such as ``play``.
        max_steps: number of steps after which an episode is truncated, in addition to the task's own limit.
        observation_keys: entries of the observation, such as ``[actor]``.
        dtype: see :class:`~rlstack.envs.torchrl.TorchRL`.
        device: device of the simulation and the outputs.
        seed: determines all random numbers of the task.
        max_instances: see :class:`~rlstack.envs.torchrl.TorchRL`.

    Raises:
        ValueError: there is no such task, or mjlab is not installed.
    """

    library = ("mjlab", "mjlab", "mjlab")

    @classmethod
    def tasks(cls) -> Sequence[str]:
        return list(MJLabEnv.available_envs)
