"""PQN, the parallelised Q-network (Gallici et al. 2024): Q-learning without a replay buffer or target network.

It is made for many worlds at once: their fresh data are diverse enough to learn from directly, and layer normalisation
keeps the values from diverging. The loss's returns equal those of TorchRL's ``TDLambdaEstimator``. The authors' code
uses rectified Adam (Liu et al. 2020); this one uses Adam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rlstack.config.options import Count, Fraction, LearningRate, Positive, Probability, layers, linear
from rlstack.config.typed import Interval
from rlstack.losses.dqn import PQNLoss
from rlstack.networks.values import StateNetwork

from .base import AgentConfig, Choosing, critic_metrics
from .interface import Interface
from .on_policy import FromRollouts, RNDConfig, minibatches


@dataclass
class PQNConfig(AgentConfig):
    """The options of PQN: values of choices from fresh data of many worlds, without replay buffer or target network."""

    # networks
    hidden: list[Count] = layers(128, 128)
    layer_norm: bool = True  # in every hidden layer: keeps the values bounded, instead of a target network

    # data
    steps_per_batch: Count = 32  # env steps per world between two updates
    td_lambda: Fraction = 0.65  # of the returns: 0 looks one step ahead, 1 to the end of the sequence

    # optimisation
    epochs: Annotated[int, Interval(low=1, high=10_000, why="passes over the same data")] = 4  # passes over the data
    minibatch_size: Count = 128  # about: the data are split into equal parts
    lr: LearningRate = linear(5.0e-4, 0.0)
    max_grad_norm: Positive | None = 10.0  # null: gradients are not clipped

    # exploration
    epsilon: Probability = linear(1.0, 0.05, duration=0.2)  # probability of a uniform random action
    rnd: RNDConfig | None = None  # an exploration bonus for novel observations: {coefficient: 1.0}; null: none


class PQN(Choosing, FromRollouts):
    """Parallelised Q-network."""

    Config = PQNConfig
    config: PQNConfig

    def __init__(self, config: PQNConfig, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        c, (actions,) = config, interface.choices or (0,)
        own = self.own_network("network", actions)
        network = own or StateNetwork(self.encoder(), actions, c.hidden, c.activation, c.layer_norm)
        self.network = self.add_network("network", network)
        self.loss = PQNLoss(self.network, c.gamma, c.td_lambda)
        self.optimizer = self.add_optimizer("lr", self.network, max_grad_norm=c.max_grad_norm)

    # -- learning ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def rollout(self, sequences: TensorDictBase) -> TensorDictBase:
        """Returns active decisions as a batch ``[N]``: scaled ``observation``, ``action``, ``value_target [N, 1]``."""
        following = sequences.get("next").copy().set("reward", self.scaled_reward(sequences))
        following.set("observation", self.normalized(following.get("observation")))
        with self.optimizer.autocast():
            returns = self.loss.returns(sequences.empty().set("next", following))
        action = self.interface.from_env(sequences.get("action"))
        entries = {
            "observation": self.normalized(sequences.get("observation")),
            "action": action,
            "value_target": returns,
            **self.image(sequences, action),
        }
        return self._decisions(TensorDict(entries, sequences.batch_size), sequences)

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """Makes epochs of updates on minibatches in random order; the returns are computed once, before the first."""
        metrics: dict[str, Tensor | float] = {}
        for minibatch, _ in minibatches(self.epochs(batch)):
            metrics = critic_metrics(*self.optimizer.minimize(self.objective, self.for_step(minibatch)))
            self.updates += 1
        return metrics
