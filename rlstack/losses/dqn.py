"""Losses on values of choices: DQN (Mnih et al. 2015) with double targets (van Hasselt et al. 2016), C51 (Bellemare et
al. 2017) as in Rainbow (Hessel et al. 2018), and PQN (Gallici et al. 2024, arXiv 2407.04811).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, smooth_l1_loss
from torchrl.objectives.value.functional import td_lambda_return_estimate

from rlstack.networks.distributions import legal

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


class C51Loss(Loss):
    """Cross entropy of ``Z(s, a)`` to the distribution of ``r + gamma Zbar(s', a')``, projected onto the atoms.

    ``a'`` is the best action by the target network, or with ``double`` by the network itself.

    Args:
        network: observation -> logits ``[..., n, K]``; or a ``DistributionalQValueActor``, whose ``action_value`` has
            the atoms first, ``[..., K, n]``.
        atoms: the returns ``[K]`` that the logits belong to, evenly spaced.
        gamma: see :class:`Loss`.
        double: double targets.

    ``forward`` returns ``loss_critic`` and ``value``, the mean predicted return; the error of an entry is its cross
    entropy.
    """

    atoms: Tensor
    RESULTS = ["loss_critic", "value"]

    def __init__(self, network: nn.Module, atoms: Tensor, gamma: float = 0.99, double: bool = True) -> None:
        super().__init__(gamma)
        self.add_network("network", network, target=True)
        self.register_buffer("atoms", atoms)
        self.double_targets = double

    def logits(self, tensordict: TensorDictBase, target: bool = False) -> Tensor:
        """Returns the logits of every action's return, ``[..., n, K]``."""
        network = self.target_network if target else self.network
        out = self.output(network, tensordict, self.tensor_keys.action_value)
        return out.transpose(-2, -1) if isinstance(network, TensorDictModuleBase) else out

    def expected(self, logits: Tensor) -> Tensor:
        """Returns the mean returns of logits ``[..., K]``, in the precision of the atoms."""
        return (logits.softmax(-1, dtype=self.atoms.dtype) * self.atoms).sum(-1)

    @torch.no_grad()
    def target_distribution(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the target probabilities ``[..., K]`` of the prediction."""
        following = required(tensordict, "next")
        logits = self.logits(following, target=True)
        chooser = self.logits(following) if self.double_targets else logits
        best = self.greedy(self.expected(chooser), following)
        probabilities = _of_action(logits, best).softmax(-1, dtype=self.atoms.dtype)
        return target_distribution(self, tensordict, probabilities, self.atoms, self.atoms)

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar, and metrics: each entry's cross entropy ``td_error``, and the mean ``value``."""
        projected = self.target_distribution(tensordict)
        logits = self.logits(tensordict)
        logits = _of_action(logits, self.chosen(tensordict, logits.shape[-2])).to(self.atoms.dtype)
        error = cross_entropy(logits.flatten(0, -2), projected.flatten(0, -2), reduction="none")
        with torch.no_grad():
            value = self.expected(logits)
        return self.mean(error, tensordict), {"td_error": error.detach(), "value": value.mean()}


def project_distribution(probabilities: Tensor, target_atoms: Tensor, atoms: Tensor) -> Tensor:
    """Moves probability mass at arbitrary returns onto the fixed atoms (Bellemare et al. 2017, algorithm 1).

    Args:
        probabilities: ``[..., K]``.
        target_atoms: the returns ``[..., K]`` that they belong to, which are clamped to the range of the atoms.
        atoms: the fixed returns ``[K]``, evenly spaced.

    Returns ``[..., K]``: each return's mass is split between its two neighbouring atoms, more to the nearer one.
    """
    low, high, last = atoms[0], atoms[-1], len(atoms) - 1
    position = (target_atoms.clamp(low, high) - low) * (last / (high - low))  # [..., K] in 0..K-1
    below = position.nan_to_num().floor().clamp(max=last - 1)
    share = position - below  # of the upper neighbour; not a number where the return is none
    index, projected = below.long(), torch.zeros_like(probabilities)
    projected.scatter_add_(-1, index, probabilities * (1 - share))
    return projected.scatter_add_(-1, index + 1, probabilities * share)


def target_distribution(
    loss: Loss, tensordict: TensorDictBase, probabilities: Tensor, values: Tensor, atoms: Tensor
) -> Tensor:
    """Returns the probabilities ``[..., K]`` of the atoms in the distribution of ``r + gamma v``.

    Args:
        probabilities: of the values v, ``[..., K]``; at the end all mass goes to the reward, whatever they are.
        values: v, ``[..., K]`` or ``[K]``.
        atoms: the fixed returns ``[K]``.
    """
    ended = required(required(tensordict, "next"), loss.tensor_keys.terminated)
    probabilities = torch.where(ended, 1 / len(atoms), probabilities)
    return project_distribution(probabilities, loss.bootstrapped(tensordict, values), atoms)


def _of_action(values: Tensor, action: Tensor) -> Tensor:
    """Picks from ``[..., n, K]`` the values of the actions ``[..., 1]``: ``[..., K]``."""
    index = action.unsqueeze(-1).expand(*action.shape, values.shape[-1])
    return values.gather(-2, index).squeeze(-2)


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
        return self.output(self.network, tensordict, self.tensor_keys.action_value)

    @torch.no_grad()
    def returns(self, sequences: TensorDictBase) -> Tensor:
        """Returns the lambda returns ``[B, T, 1]`` of sequences ``[B, T]``.

        Args:
            sequences: with ``next``: observation; reward, done and terminated, ``[B, T, 1]``; and ``action_mask``, if
                there is one.
        """
        keys, following = self.tensor_keys, sequences.get("next")
        reward, terminated = required(following, keys.reward), required(following, keys.terminated)
        reward = reward if reward.is_floating_point() else reward.to(torch.get_default_dtype())
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
        if self.weight(tensordict) is None:
            return mse_loss(value, target) / 2, {"value": value.detach().mean(), "target": target.mean()}
        metrics = {"value": self.mean(value.detach(), tensordict), "target": self.mean(target, tensordict)}
        return self.mean((value - target).square(), tensordict) / 2, metrics
