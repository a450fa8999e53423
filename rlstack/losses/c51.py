"""The loss of C51 (Bellemare et al. 2017) as in Rainbow (Hessel et al. 2018): double, n-step, prioritised."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .base import Loss, Metrics, required


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

    network_params: TensorDictParams
    target_network_params: TensorDictParams
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
        out: Tensor = self.output(network, tensordict, self.tensor_keys.action_value)
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
        # At the end all mass goes to the reward, whatever was predicted there.
        ended = required(following, self.tensor_keys.terminated)
        probabilities = torch.where(ended, 1 / len(self.atoms), probabilities)
        return project_distribution(probabilities, self.bootstrapped(tensordict, self.atoms), self.atoms)

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
    spacing = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    position = (target_atoms.clamp(atoms[0], atoms[-1]) - atoms[0]) / spacing  # [..., K] in 0..K-1
    index = torch.arange(len(atoms), dtype=position.dtype, device=position.device)
    nearness = (1 - (position.unsqueeze(-1) - index).abs()).clamp_min(0)  # [..., K from, K to]
    # Not a matrix product, which autocast would round.
    return (probabilities.unsqueeze(-1) * nearness).sum(-2)


def _of_action(values: Tensor, action: Tensor) -> Tensor:
    """Picks from ``[..., n, K]`` the values of the actions ``[..., 1]``: ``[..., K]``."""
    index = action.unsqueeze(-1).expand(*action.shape, values.shape[-1])
    return values.gather(-2, index).squeeze(-2)
