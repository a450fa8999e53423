"""Agents that choose by the value of each choice: how they act, explore and imitate, independent of their data."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import cross_entropy

from rlstack.networks.distributions import masked_logits

from .base import Agent


class Choosing(Agent):
    """An agent that chooses by the value of each choice, and explores with random choices.

    A subclass has a ``network`` and implements :meth:`action_values`.
    """

    network: Any
    ACTIONS: tuple[str, ...] = ("choice",)

    @abstractmethod
    def action_values(self, observation: Any) -> Tensor:
        """Returns the values ``[..., n]`` by which the agent chooses, given an observation ``[...]``."""

    def values_as_logits(self, observation: Any) -> Tensor:
        """Returns the values ``[N, n]`` of a normalised batch ``[N]``, used as logits in imitation."""
        values: Tensor = self.network(observation)
        return values

    def predicted_returns(self, sequences: TensorDictBase) -> Tensor | None:
        observation = self.normalized(sequences.get("observation"))
        flat = observation.flatten(0, 1) if isinstance(observation, Tensor) else observation.reshape(-1)
        action = self.interface.from_env(sequences.get("action")).reshape(-1, 1)
        return self.values_as_logits(flat).gather(-1, action).view(sequences.batch_size)

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Returns the best (legal) choices for an observation ``[...]``."""
        return greedy(self.action_values(observation), mask)

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Returns the best choices, replaced by random ones with probability ``epsilon``."""
        return self.epsilon_greedy(lambda: greedy(self.action_values(observation), mask), observation, mask)

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Cross entropy of the choices, with values taken as logits."""
        return cross_entropy(masked_logits(self.values_as_logits(observation), mask), action)


def greedy(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the best (legal) actions ``[...]`` by their values ``[..., n]``."""
    return (values if mask is None else values.masked_fill(~mask, -torch.inf)).argmax(-1)
