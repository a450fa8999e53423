"""DQN (Mnih et al. 2015), with double targets (van Hasselt et al. 2016), dueling streams (Wang et al. 2016) and,
optionally, Retrace (Munos et al. 2016).

``agent=dqn`` is our recipe, ``agent=dqn_published`` that of MarineNav's DQN, whose recorded updates the tests
reproduce; on the same batch the loss equals that of TorchRL's ``DQNLoss``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor, nn

from rlstack.config import ConfigError
from rlstack.config.options import Fraction
from rlstack.losses.dqn import DQNLoss
from rlstack.losses.retrace import RetraceLoss
from rlstack.networks.distributions import legal
from rlstack.networks.values import DuelingNetwork, StateNetwork

from .base import AgentPolicy, exploring
from .off_policy import ReplayedConfig, ValueBased, ValueBasedConfig


@dataclass
class DQNConfig(ValueBasedConfig):
    """The options of DQN."""

    # networks
    dueling: bool = False  # separate streams for the state's value and the actions' advantages
    recurrent: ReplayedConfig | None = None
    #   a recurrent core: {kind: lstm, size: 128, layers: 1, sequence_length: 32, burn_in: 0}, or kind: gru

    # targets
    double: bool = True  # the target's action is chosen by the online network
    retrace_lambda: Fraction = 1.0  # decay of the traces of correction=retrace
    retrace_epsilon: Fraction = 0.0  # share of random actions of the policy whose value it learns; 0: greedy


class DQN(ValueBased):
    """Deep Q-network."""

    Config = DQNConfig
    config: DQNConfig

    def make_network(self, actions: int) -> nn.Module:
        c, kind = self.config, DuelingNetwork if self.config.dueling else StateNetwork
        own = self.own_network("network", actions)
        return own or kind(self.encoder(), actions, c.hidden, activation=c.activation, layer_norm=c.layer_norm)

    def build(self) -> None:
        super().build()
        if self.uses_retrace and not isinstance(self.loss, RetraceLoss):
            raise ConfigError(f"agent.correction: {type(self.loss).__name__} has no retrace, set it to none")

    def make_loss(self) -> DQNLoss:
        """Returns the loss module; variants of DQN override this."""
        c = self.config
        if self.uses_retrace:
            return RetraceLoss(self.network, c.gamma, c.double, c.retrace_lambda, c.retrace_epsilon)
        return DQNLoss(self.network, c.gamma, c.double)

    def corrected(self, batch: TensorDictBase) -> TensorDictBase:
        """Returns the batch itself: the loss corrects its returns by the probabilities of the actions."""
        return batch

    def extend(self, sequences: TensorDictBase) -> None:
        if self.uses_retrace and "log_prob" not in sequences.keys():  # noqa: SIM118
            raise ConfigError("agent.correction=retrace needs the probability of each action, these data have none")
        super().extend(sequences)

    def policy(self, explore: bool | None = None) -> AgentPolicy:
        """With :attr:`uses_retrace`, an exploring policy also writes the ``log_prob`` of each action."""
        if explore is False or not self.uses_retrace:
            return super().policy(explore)

        def choose(observation: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
            best = self.exploit(observation, mask)
            return self.epsilon_greedy(lambda: best, observation, mask), best

        compiled, (actions,) = self.compiled(choose), self.interface.choices or (0,)

        def act(observation: Any, mask: Tensor | None = None) -> dict[str, Tensor]:
            epsilon: Any = 0.0
            if not exploring(explore):
                action = best = self.exploit(observation, mask)
            elif self.frames < self.config.random_frames:
                epsilon = 1.0
                action = best = self.interface.random_action(self.interface.lead(observation), self.device, mask)
            else:
                epsilon = self.scheduled_value("epsilon")
                action, best = compiled(observation, mask)
            dtype = self.interface.dtype
            allowed = actions if mask is None else legal(mask).sum(-1).to(dtype)
            probability = (1 - epsilon) * (action == best).to(dtype) + epsilon / allowed
            return {"action": self.interface.to_env(action), "log_prob": probability.log()}

        return AgentPolicy(self, act, ("log_prob",), explore)
