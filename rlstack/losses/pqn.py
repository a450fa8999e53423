"""The loss of PQN (Gallici et al. 2024, arXiv 2407.04811): Q-learning from fresh sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torchrl.objectives.value.functional import td_lambda_return_estimate

from rlstack.networks.distributions import legal

from .base import Loss, Metrics, required


class PQNLoss(Loss):
    """Half the squared error of ``Q(s, a)`` to a lambda return of greedy values, without a target network.

    The return is ``G_t = r_t + gamma ((1 - lambda) max_a Q(s_t+1, a) + lambda G_t+1)`` (Peng & Williams 1996), and
    ``r_t + gamma max_a Q(s_t+1, a)`` where the sequence ends, or a time limit ends its episode. It comes with the data:
    compute it by :meth:`returns` before the first step on them.

    Args:
        network: observation -> values ``[..., n]``, or a ``QValueActor``; with layer normalisation, which replaces a
            target network (arXiv 2407.04811, theorem 2).
        gamma: see :class:`Loss`.
        td_lambda: lambda; 0 gives one-step targets.

    ``forward`` returns ``loss_critic``, and the means ``value`` and ``target``.
    """

    @dataclass
    class _AcceptedKeys(Loss._AcceptedKeys):
        """``value_target [...]`` or ``[..., 1]`` is the return; ``done [..., 1]`` marks the end of an episode."""

        done: NestedKey = "done"
        value_target: NestedKey = "value_target"

    default_keys = _AcceptedKeys
    network_params: TensorDictParams

    def __init__(self, network: nn.Module, gamma: float = 0.99, td_lambda: float = 0.65) -> None:
        super().__init__(gamma)
        self.add_network("network", network)
        self.td_lambda = td_lambda

    def _required_keys(self) -> list[NestedKey]:
        """The required entries."""
        keys = self.tensor_keys
        return [*self.observed, keys.action, keys.value_target]

    def values(self, tensordict: TensorDictBase) -> Tensor:
        """Returns ``Q(s, .) [..., n]``."""
        values: Tensor = self.output(self.network, tensordict, self.tensor_keys.action_value)
        return values

    @torch.no_grad()
    def returns(self, sequences: TensorDictBase) -> Tensor:
        """Returns the lambda returns ``[B, T, 1]`` of sequences ``[B, T]``.

        Args:
            sequences: with ``next``: observation; reward, done and terminated, ``[B, T, 1]``; and ``action_mask``, if
                there is one.
        """
        keys, following = self.tensor_keys, sequences.get("next")
        reward, terminated = required(following, keys.reward), required(following, keys.terminated)
        values, mask = self.values(following), following.get(keys.action_mask, None)
        if mask is not None:
            values = values.masked_fill(~legal(mask), -torch.inf)
        # Predictions after an end do not count, even infinite ones.
        best = values.amax(-1, keepdim=True).to(reward.dtype).masked_fill(terminated, 0)
        returns: Tensor = td_lambda_return_estimate(
            self.gamma, self.td_lambda, best, reward, required(following, keys.done), terminated
        )
        return returns

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar, and its metrics."""
        values = self.values(tensordict)
        value = values.gather(-1, self.chosen(tensordict, values.shape[-1]))
        target = required(tensordict, self.tensor_keys.value_target).reshape(value.shape)
        return mse_loss(value, target) / 2, {"value": value.detach().mean(), "target": target.mean()}
