"""A task of MuJoCo Playground (Zakka et al. 2025, arXiv 2502.08844) as a batched world, through TorchRL's wrapper."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils.dlpack import from_dlpack
from torchrl.envs.libs.mujoco_playground import MujocoPlaygroundEnv

from ..torchrl.env import TaskRows

_TERM = "reward/"


class Rows(MujocoPlaygroundEnv):
    """TorchRL's ``MujocoPlaygroundEnv``, whose rows can be reset one by one; its own reset begins all rows anew.

    Args:
        task: name in the registry of MuJoCo Playground.
        num_envs: number of rows, which JAX steps as one batch.
        device: of the tensors; JAX computes on its default device.
        kwargs: further arguments of the wrapper.
    """

    _current_state: Any

    def __init__(self, task: str, num_envs: int, device: torch.device, **kwargs: Any) -> None:
        self._sums: dict[str, Tensor] = {}
        super().__init__(task, batch_size=[num_envs], device=device, **kwargs)

        def merged(new: Any, old: Any, rows: Any) -> Any:
            """Returns a state with rows from ``new``; what is no row of a batch stays (buffers of contacts)."""

            def chosen(fresh: Any, kept: Any) -> Any:
                if kept.shape[:1] != rows.shape:
                    return kept
                return self.jax.numpy.where(rows.reshape(-1, *[1] * (kept.ndim - 1)), fresh, kept)

            return self.jax.tree.map(chosen, new, old)

        self._merged = self.jax.jit(merged)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        old = self._current_state
        shown: TensorDictBase = super()._reset(tensordict, **kwargs)
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if old is None or mask is None or bool(mask.all()):
            self._sums = {name: torch.zeros_like(value) for name, value in self._terms().items()}
            return shown
        mask = mask.reshape(-1)
        self._current_state = self._merged(self._current_state, old, self.jax.numpy.asarray(mask.cpu().numpy()))
        self._sums = {name: total.masked_fill(mask, 0) for name, total in self._sums.items()}
        return shown

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        shown: TensorDictBase = super()._step(tensordict)
        self._sums = {name: self._sums[name] + value for name, value in self._terms().items()}
        return shown

    def _terms(self) -> dict[str, Tensor]:
        """Returns the terms of the rewards of the latest step."""
        metrics = self._current_state.metrics
        terms = {key.removeprefix(_TERM): value for key, value in metrics.items() if key.startswith(_TERM)}
        return {name: from_dlpack(value).to(self.device, torch.float64) for name, value in terms.items()}

    def episode_terms(self) -> dict[str, Tensor]:
        """Returns the sums over the episode so far of each term of the reward, ``[N]``."""
        return self._sums


class Playground(TaskRows):
    """Rows of a task of MuJoCo Playground, which JAX steps as one batch; see :class:`~rlstack.envs.torchrl.TorchRL`.

    A task that tells the terms of its reward has the statistics ``("episode", "reward_<term>")``: sums over the
    episode so far, before the task's own scaling with time. The first step compiles for a minute or more.

    Args:
        task: such as ``CartpoleBalance`` or ``Go1JoystickFlatTerrain``.
        num_envs: number of rows.
        kwargs: further arguments of TorchRL's ``MujocoPlaygroundEnv``, such as ``config_overrides``.
        max_steps: number of steps after which an episode is truncated; None: that of the task's configuration.
        observation_keys: entries of the observation: ``[state]`` where the task also shows ``privileged_state``.
        dtype: see :class:`~rlstack.envs.torchrl.TorchRL`.
        device: device of the outputs.
        seed: determines all random numbers of the task.
        max_instances: see :class:`~rlstack.envs.torchrl.TorchRL`.

    Raises:
        ValueError: there is no such task, or MuJoCo Playground is not installed.
    """

    library = ("mujoco_playground", "playground", "MuJoCo Playground")

    @classmethod
    def tasks(cls) -> Sequence[str]:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of a GPU's memory
        from mujoco_playground import registry

        return list(registry.ALL_ENVS)

    @classmethod
    def own_limit(cls, task: str) -> int:
        from mujoco_playground import registry

        return int(registry.get_default_config(task).episode_length)
