"""What an agent is shown to imitate: decisions one by one, or in their order for agents with a memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from envs.world import MEMORY
from rlstack.agents.base import Agent
from rlstack.agents.interface import MASK
from rlstack.agents.recurrent.base import Recurrent
from rlstack.agents.recurrent.policy import RecurrentPolicy
from rlstack.config import ConfigError
from rlstack.data import cut, episode_starts

HELD_OUT = 10
"""One in so many stretches of the data is not trained on but measured."""
UNORDERED = "imitation: an agent with a memory needs decisions in their order: an expert, or sequences, not a file"
_STRETCHES = 100
_CHUNK = 4096  # decisions measured at once: greedy acting may look at many actions each


class Lessons:
    """Decisions in a flat batch ``[N]``, a tenth of them held out.

    Args:
        agent: who learns.
        data: ``observation``, ``action`` (as the world takes it) and, where the world has one, ``action_mask``.

    Raises:
        ConfigError: there are too few.
    """

    _units = "decisions"

    def __init__(self, agent: Agent, data: TensorDictBase) -> None:
        if len(data) < HELD_OUT:
            raise ConfigError(f"imitation: {len(data)} {self._units} are too few, {HELD_OUT} are needed at least")
        self.agent, data = agent, data.to(agent.device).copy()
        self.data = data.set("action", agent.interface.from_env(data.get("action")))
        self._held = torch.arange(len(data), device=agent.device) // max(len(data) // _STRETCHES, 1) % HELD_OUT
        self._held = self._held == HELD_OUT - 1

    def refresh(self) -> None:
        """What has to be done before each pass over the data."""

    def size(self, batch: TensorDictBase) -> int:
        """Decisions in a batch."""
        return len(batch)

    def train(self) -> TensorDictBase:
        """What is trained on."""
        return self.data[~self._held]

    def observations(self) -> Any:
        """Those that are trained on, ``[N]``."""
        return self.train().get("observation")

    def batches(self, batch_size: int) -> list[TensorDictBase]:
        """What is trained on in random order, in batches of about so many decisions."""
        train = self.train()
        rows = max(round(batch_size * len(train) / self.size(train)), 1)
        order = torch.randperm(len(train), device=self.agent.device)
        return [train[index] for index in order.split(rows)]

    def held_out(self) -> Sequence[TensorDictBase]:
        """What is measured."""
        rest = self.data[self._held]
        return rest.split(max(_CHUNK * len(rest) // max(self.size(rest), 1), 1))

    def greedy(self, policy: Any, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        """How a greedy policy acts, and what is to be imitated, as the agent has actions."""
        interface = self.agent.interface
        seen: Any = TensorDict({}, batch.batch_size, device=self.agent.device)
        for name in ("observation", MASK) if interface.masked else ("observation",):
            seen.set(interface.key(name), batch.get(name))
        return interface.from_env(policy(seen).get(interface.key("action"))), batch.get("action")


class SequenceLessons(Lessons):
    """Decisions in sequences ``[B, T]``, which are cut for an agent with a memory.

    The state in which each part begins is the one that the learner itself would have had, worked out anew before each
    pass.

    Args:
        data: besides ``active [B, T]`` and ``("next", "done") [B, T, 1]``.
    """

    _units = "sequences"
    agent: Recurrent

    def __init__(self, agent: Recurrent, data: TensorDictBase) -> None:
        self._rows = len(data)
        entries = data.exclude("next").set("starts", episode_starts(data))
        parts = cut(entries, agent.config.recurrent.sequence_length)
        parts.batch_size = parts.batch_size[:1]
        super().__init__(agent, parts)
        self._used = self.data.get("active").any(1)
        self._held &= self._used

    @torch.no_grad()
    def refresh(self) -> None:
        agent, begun = self.agent, []
        core = agent.memories[agent.ACTING]
        memory = torch.zeros(self._rows, core.core.memory_size, dtype=agent.interface.dtype, device=agent.device)
        for part in self.data.unflatten(0, (self._rows, len(self.data) // self._rows)).unbind(1):
            begun.append(memory)
            observation = agent.normalized(part.get("observation"))
            _, memory = core.follow(observation, memory, part.get("starts"), part.get("active"))
        self.data.set(MEMORY, torch.stack(begun, 1).flatten(0, 1))

    def size(self, batch: TensorDictBase) -> int:
        return int(batch.get("active").sum())

    def train(self) -> TensorDictBase:
        return self.data[~self._held & self._used]

    def observations(self) -> Any:
        train = self.train()
        return train.get("observation")[train.get("active")]

    def greedy(self, policy: RecurrentPolicy, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        observation, wanted, mask = self.agent.lesson(batch)
        return self.agent.interface.from_env(policy.inner.entries(observation, mask)["action"]), wanted


def lessons_for(agent: Agent, data: TensorDictBase) -> Lessons:
    """Those of the agent's kind.

    Raises:
        ConfigError: too few decisions, or an agent with a memory is to imitate decisions without their order.
    """
    if not isinstance(agent, Recurrent):
        return Lessons(agent, data)
    if data.ndim != 2 or ("next", "done") not in data.keys(include_nested=True):
        raise ConfigError(UNORDERED)
    return SequenceLessons(agent, data)
