"""Action distributions of stochastic policies, written out: torch.distributions costs more than a small network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_LOG_2PI = math.log(2 * math.pi)
NEVER = -1e9
"""The logit of an illegal choice."""


def full_precision(x: Tensor) -> Tensor:
    """Returns a tensor in single precision if it is in a lower one; otherwise as it is."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def masked_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Returns logits ``[..., n]``, never in low precision, with -1e9 where ``mask [..., n]`` (bool) is False.

    A mask of None makes everything legal. It is not minus infinity, so that products with log probabilities stay
    finite.
    """
    logits = full_precision(logits)
    return logits if mask is None else logits.masked_fill(~mask, NEVER)


def legal(mask: Tensor) -> Tensor:
    """Returns a mask ``[..., n]`` with empty rows filled: agents whose episode is over often have an empty mask."""
    return mask | ~mask.any(-1, keepdim=True)


class Choices:
    """One or several independent categorical choices.

    Args:
        logits: ``[..., sum(counts)]``.
        counts: number of options of each choice.
        mask: legal options, bool of the same shape as the logits; None for all.
    """

    def __init__(self, logits: Tensor, counts: Sequence[int], mask: Tensor | None = None) -> None:
        logits = masked_logits(logits, mask)
        parts = (logits,) if len(counts) == 1 else logits.split(list(counts), -1)
        self.log_probs = [part.log_softmax(-1) for part in parts]

    def sample(self) -> Tensor:
        """Draws ``[...]``, or ``[..., K]`` for K choices (Gumbel-max: one pass, no host synchronisation)."""
        return self._chosen([part - torch.empty_like(part).exponential_().log() for part in self.log_probs])

    def mode(self) -> Tensor:
        """Returns the most probable options, in the shape of :meth:`sample`."""
        return self._chosen(self.log_probs)

    @staticmethod
    def _chosen(scores: list[Tensor]) -> Tensor:
        best = [part.argmax(-1) for part in scores]
        return best[0] if len(best) == 1 else torch.stack(best, -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Returns the log probability ``[...]`` of actions."""
        if len(self.log_probs) == 1:
            return self.log_probs[0].gather(-1, action.unsqueeze(-1)).squeeze(-1)
        picked = [part.gather(-1, action[..., k, None]) for k, part in enumerate(self.log_probs)]
        return torch.cat(picked, -1).sum(-1)

    def entropy(self) -> Tensor:
        """Returns the entropy ``[...]``."""
        return -torch.stack([(part.exp() * part).sum(-1) for part in self.log_probs]).sum(0)


@dataclass(eq=False)
class Gaussian:
    """Independent normal numbers.

    Args:
        mean: ``[..., D]``.
        log_std: ``[D]`` or as the mean.
    """

    mean: Tensor
    log_std: Tensor

    def sample(self) -> Tensor:
        """Draws actions ``[..., D]``."""
        return self.mean + self.log_std.exp() * torch.randn_like(self.mean)

    def mode(self) -> Tensor:
        """Returns the most probable actions ``[..., D]``."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """Returns the log probability ``[...]`` of actions."""
        scaled = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * scaled.square() - self.log_std - 0.5 * _LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """Returns the entropy ``[...]``."""
        return (self.log_std + 0.5 * (1 + _LOG_2PI)).expand_as(self.mean).sum(-1)


class Hybrid:
    """Normal numbers and choices, all independent; actions are ``[..., D + K]``, with the choices last, as numbers.

    Args:
        numbers: distribution of the numbers ``[..., D]``.
        choices: distribution of the K choices.
    """

    def __init__(self, numbers: Gaussian, choices: Choices) -> None:
        self.numbers, self.choices, self._count = numbers, choices, len(choices.log_probs)

    def sample(self) -> Tensor:
        """Draws actions ``[..., D + K]``."""
        return self._joined(self.numbers.sample(), self.choices.sample())

    def mode(self) -> Tensor:
        """Returns the most probable actions ``[..., D + K]``."""
        return self._joined(self.numbers.mode(), self.choices.mode())

    def log_prob(self, action: Tensor) -> Tensor:
        """Returns the log probability ``[...]`` of actions."""
        numbers, chosen = action.split((self.numbers.mean.shape[-1], self._count), -1)
        chosen = chosen.long() if self._count > 1 else chosen.long().squeeze(-1)
        return self.numbers.log_prob(numbers) + self.choices.log_prob(chosen)

    def entropy(self) -> Tensor:
        """Returns the entropy ``[...]``."""
        return self.numbers.entropy() + self.choices.entropy()

    def _joined(self, numbers: Tensor, chosen: Tensor) -> Tensor:
        chosen = chosen if self._count > 1 else chosen.unsqueeze(-1)
        return torch.cat((numbers, chosen.to(numbers.dtype)), -1)


Distribution = Choices | Gaussian | Hybrid
