"""The loss of DQN (Mnih et al. 2015), with double targets (van Hasselt et al. 2016)."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase, TensorDictParams
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from .base import Loss, Metrics, required


class DQNLoss(Loss):
    """Huber loss of ``Q(s, a)`` to ``r + gamma Qbar(s', a')``.

    ``a'`` is the best action according to the target network, or with ``double`` the network itself.

    Args:
        network: observation -> values ``[..., n]``, or a ``QValueActor``.
        gamma: see :class:`Loss`.
        double: use double targets.

    ``forward`` returns ``loss_critic``, and the means ``value`` and ``target``.
    """

    network_params: TensorDictParams
    target_network_params: TensorDictParams

    def __init__(self, network: nn.Module, gamma: float = 0.99, double: bool = True) -> None:
        super().__init__(gamma)
        self.add_network("network", network, target=True)
        self.double_targets = double

    def values(self, tensordict: TensorDictBase, target: bool = False) -> Tensor:
        """Returns the values ``[..., n]`` of all actions in a state."""
        network = self.target_network if target else self.network
        return self.output(network, tensordict, self.tensor_keys.action_value)

    @torch.no_grad()
    def target_value(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the target of ``Q(s, a)``, ``[..., 1]``."""
        following = required(tensordict, "next")
        values = self.values(following, target=True)
        chooser = self.values(following) if self.double_targets else values
        return self.bootstrapped(tensordict, values.gather(-1, self.greedy(chooser, following)))

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar, and its metrics, with ``td_error [...]`` for data sampled by priority."""
        target = self.target_value(tensordict)
        values = self.values(tensordict)
        value = values.gather(-1, self.chosen(tensordict, values.shape[-1]))
        losses, metrics = self.regression(smooth_l1_loss, [value], target, tensordict)
        return losses[0], metrics
