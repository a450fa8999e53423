"""A loss of a user's own: the actor is drawn towards actions in proportion to their rewards (a bandit's REINFORCE)."""

from __future__ import annotations

from dataclasses import dataclass

from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import ProbabilisticTensorDictModule
from tensordict.utils import NestedKey
from torchrl.objectives.common import LossModule


class RewardWeightedLoss(LossModule):
    """``-E[(r - mean r) log pi(a | s)]``."""

    @dataclass
    class _AcceptedKeys:
        action: NestedKey = "action"
        reward: NestedKey = "reward"

    default_keys = _AcceptedKeys
    actor_network: ProbabilisticTensorDictModule
    actor_network_params: TensorDictParams
    target_actor_network_params: TensorDictParams

    def __init__(self, actor_network: ProbabilisticTensorDictModule, scale: float = 1.0) -> None:
        super().__init__()
        self.convert_to_functional(actor_network, "actor_network")
        self.scale = scale

    def _forward_value_estimator_keys(self, **kwargs: NestedKey) -> None:
        """Returns nothing, because the loss does not bootstrap."""

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        reward = tensordict.get(("next", self.tensor_keys.reward)).squeeze(-1)
        with self.actor_network_params.to_module(self.actor_network, preserve_module_state=False):
            log_prob = self.actor_network.get_dist(tensordict).log_prob(tensordict.get(self.tensor_keys.action))
        loss = -((reward - reward.mean()) * log_prob).mean()
        return TensorDict({"loss_actor": self.scale * loss, "entropy": -log_prob.detach().mean()}, [])
