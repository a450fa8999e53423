"""An agent's greedy policy on plain tensors: what an export traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.data import Composite

from envs.world import MEMORY
from rlstack.agents.base import Agent, Policy
from rlstack.agents.interface import MASK
from rlstack.agents.recurrent_policy import RecurrentPolicy
from rlstack.config import ConfigError

NEXT_MEMORY = f"next_{MEMORY}"


class ExportedPolicy(nn.Module):
    """The greedy policy of an agent on plain tensors.

    Args:
        agent: whose networks it shares.

    Attributes:
        names: of the inputs in order; the memory ``[N, M]``, if it has one, comes last.
        outputs: names of the outputs: the action and, if it has one, the memory after it.
    """

    _policy: Policy | RecurrentPolicy

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        policy = agent.policy(explore=False)
        if not isinstance(policy, Policy | RecurrentPolicy):
            raise ConfigError(f"{type(agent).__name__} cannot be exported, only agents with networks of rlstack can")
        self.interface = agent.interface
        self.__dict__["_policy"] = policy  # no part of the module: its networks become constants of the program
        self.memory_size = policy.size if isinstance(policy, RecurrentPolicy) else 0
        spec = agent.interface.observation
        self._keys = list(spec.keys(include_nested=True, leaves_only=True)) if isinstance(spec, Composite) else []
        self.names = [key if isinstance(key, str) else ".".join(key) for key in self._keys] or ["observation"]
        self.names += [MASK] if agent.interface.masked else []
        self.names += [MEMORY] if self.memory_size else []
        self.outputs = ["action", *([NEXT_MEMORY] if self.memory_size else [])]

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The ``outputs`` ``[N, ...]`` for the inputs ``[N, ...]`` in the order of ``names``."""
        if not isinstance(self._policy, RecurrentPolicy):
            return self._policy.action(*self.joined(inputs))
        observation, mask = self.joined(inputs[:-1])
        acted, memory = self._policy.step(observation, inputs[-1], mask)
        return acted["action"], memory

    def act(self, observation: Any, mask: Tensor | None) -> Tensor:
        """Actions ``[N, *shape]`` for an observation as the agent has it, with a memory made up as in :meth:`split`."""
        answer = self(*self.split(observation, mask))
        return answer if isinstance(answer, Tensor) else answer[0]

    def joined(self, inputs: Sequence[Tensor]) -> tuple[Any, Tensor | None]:
        """Observation and action mask of these inputs, without a memory."""
        mask = inputs[-1] if self.interface.masked else None
        if not self._keys:
            return inputs[0], mask
        return TensorDict(dict(zip(self._keys, inputs)), [inputs[0].shape[0]]), mask

    def split(self, observation: Any, mask: Tensor | None) -> tuple[Tensor, ...]:
        """All inputs; a memory is made up, always the same."""
        leaves = [observation.get(key) for key in self._keys] if self._keys else [observation]
        inputs = [*leaves, *([] if mask is None else [mask])]
        if self.memory_size:
            generator, size = torch.Generator().manual_seed(0), (len(leaves[0]), self.memory_size)
            inputs.append(torch.rand(size, generator=generator, dtype=self.interface.dtype) * 2 - 1)
        return tuple(inputs)
