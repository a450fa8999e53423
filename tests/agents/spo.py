"""Simple policy optimisation (Xie et al. 2024): a square draws the ratio of probabilities to 1, in place of a clip."""

from dataclasses import dataclass

from tensordict import TensorDict
from torchrl.objectives import LossModule
from torchrl.objectives.value import GAE


class SPOLoss(LossModule):
    """``-E[A r - |A| / (2 epsilon) (r - 1)^2]``, the error of the values, and the negative entropy."""

    @dataclass
    class _AcceptedKeys:  # entries that are read, which agent.keys may rename
        advantage: str = "advantage"
        value_target: str = "value_target"
        value: str = "state_value"

    default_keys = _AcceptedKeys

    def __init__(self, actor_network, critic_network, epsilon=0.2, entropy=0.01):
        super().__init__()
        self.convert_to_functional(actor_network, "actor_network")
        self.convert_to_functional(critic_network, "critic_network")
        self.epsilon, self.entropy = epsilon, entropy

    def make_value_estimator(self, value_type=None, **options):
        self._value_estimator = GAE(value_network=self.critic_network, **{"lmbda": 0.95, **options})

    def forward(self, tensordict):
        with self.actor_network_params.to_module(self.actor_network):
            log_prob = self.actor_network.get_dist(tensordict).log_prob(tensordict["action"])
        with self.critic_network_params.to_module(self.critic_network):
            value = self.critic_network(tensordict.copy())["state_value"]
        ratio, advantage = (log_prob - tensordict["log_prob"]).exp(), tensordict["advantage"].squeeze(-1)
        pull = advantage.abs() / (2 * self.epsilon) * (ratio - 1) ** 2
        return TensorDict(
            loss_policy=(pull - advantage * ratio).mean(),
            loss_value=0.5 * (value - tensordict["value_target"]).pow(2).mean(),
            loss_entropy=self.entropy * (ratio.detach() * log_prob).mean(),
        )
