"""Behaviour cloning (Pomerleau 1991) as a TorchRL loss, for continuous actions and for choices. TorchRL's ``BCLoss``
compares choices with sampled ones, not with their distribution."""

from __future__ import annotations

from dataclasses import dataclass

from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModule
from tensordict.utils import NestedKey
from torch.nn.functional import mse_loss
from torchrl.objectives.common import LossModule

from rlstack.envs.foundation.tensors import by_name


class CloningLoss(LossModule):
    """``-E[log pi(a | s)]`` of recorded actions; the mean squared difference if the actor has no distribution.

    Args:
        actor_network: from ``observation`` to ``action``; one with ``get_dist`` is assumed to be stochastic.
    """

    @dataclass
    class _AcceptedKeys:
        action: NestedKey = "action"

    default_keys = _AcceptedKeys
    actor_network: TensorDictModule
    actor_network_params: TensorDictParams
    target_actor_network_params: TensorDictParams

    def __init__(self, actor_network: TensorDictModule) -> None:
        super().__init__()
        self.out_keys = ["loss_actor"]
        self.stochastic = hasattr(actor_network, "get_dist")
        self.convert_to_functional(actor_network, "actor_network")

    @property
    def in_keys(self) -> list[NestedKey]:
        """The required entries."""
        return [*self.actor_network.in_keys, self.tensor_keys.action]

    @by_name(batched=True)
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Returns ``loss_actor``, a scalar, for a batch ``[N]`` with ``observation`` and ``action``."""
        taken = tensordict.get(self.tensor_keys.action)
        with self.actor_network_params.to_module(self.actor_network, preserve_module_state=False):
            if self.stochastic:
                loss = -self.actor_network.get_dist(tensordict).log_prob(taken).mean()
            else:
                loss = mse_loss(self.actor_network(tensordict.copy()).get(self.tensor_keys.action), taken)
        return TensorDict({"loss_actor": loss}, [])
