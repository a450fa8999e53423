"""Agents that choose by the value of each choice: how they act, explore and imitate, whatever data they learn from."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from rlstack.networks.distributions import masked_logits

from .base import Agent
from .interface import Interface, require_choices


class Choosing(Agent):
    """An agent that chooses by the value of each choice, and explores by random ones.

    A subclass has a ``network`` and writes :meth:`action_values`.
    """

    network: Any

    @classmethod
    def check(cls, interface: Interface) -> None:
        require_choices(cls.__name__.lower(), interface)

    @abstractmethod
    def action_values(self, observation: Any) -> Tensor:
        """The values ``[..., n]`` by which it chooses in an observation ``[...]``."""

    def values_as_logits(self, observation: Any) -> Tensor:
        """Values for imitation, of a normalised batch ``[N]``, ``[N, n]``."""
        values: Tensor = self.network(observation)
        return values

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """The best (legal) choices in an observation ``[...]``."""
        return greedy(self.action_values(observation), mask)

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """The same, with probability ``epsilon`` random ones."""
        return self.epsilon_greedy(lambda: greedy(self.action_values(observation), mask), observation, mask)

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Cross entropy of the choice, values taken as logits."""
        return cross_entropy(masked_logits(self.values_as_logits(observation), mask), action)


def greedy(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """The best (legal) action of ``[..., n]`` values, ``[...]``."""
    return (values if mask is None else values.masked_fill(~mask, -torch.inf)).argmax(-1)
