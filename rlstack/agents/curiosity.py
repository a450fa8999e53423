"""Exploration by random network distillation (Burda et al. 2018): novel observations earn a bonus reward.

Two things are simpler than published: the bonus is added to the reward, so that one value function learns their sum
(theirs has two, and the bonus's continues past the ends of episodes), and the predictor makes one pass over new data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rlstack.config.options import Count, Fraction, LearningRate, NonNegative
from rlstack.data.normalizers import ObservationNormalizer, RewardScaler
from rlstack.envs.foundation.tensors import shuffled
from rlstack.losses.rnd import RNDLoss
from rlstack.networks.encoders import build_encoder
from rlstack.networks.values import StateNetwork

from .interface import Interface


@dataclass(frozen=True)
class RNDConfig:
    """Exploration by random network distillation (Burda et al. 2018).

    Attributes:
        coefficient: weight of the bonus, which is added to the reward; its discounted sum is scaled to a standard
            deviation of 1.
        gamma: discount of that sum.
        features: number of features of an observation that are predicted.
        hidden: widths of the hidden layers of both networks.
        lr: learning rate of the predictor.
    """

    coefficient: NonNegative = 1.0
    gamma: Fraction = 0.99
    features: Count = 32
    hidden: list[Count] = field(default_factory=lambda: [64, 64])
    lr: LearningRate = 3.0e-4

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ValueError("hidden [] has no layers, give one width at least")


BATCH = 256
"""The number of observations in one step of the predictor."""


class Curiosity(nn.Module):
    """The bonus and everything that it depends on: both networks, and the scales of observations and bonuses.

    Args:
        config: options of the bonus.
        interface: the env as the agent sees it.
        widths: width of the encoding of the agent itself, or of an image; widths of the layers applied to each object.
    """

    def __init__(self, config: RNDConfig, interface: Interface, widths: tuple[int, list[int]]) -> None:
        super().__init__()
        self.config, self.everyone = config, interface.group is None

        def network() -> StateNetwork:
            encoder = build_encoder(interface.observation, None, *widths)
            return StateNetwork(encoder, config.features, config.hidden).to(interface.dtype)

        self.loss = RNDLoss(network(), network())
        self.predictor, self.target = self.loss.predictor, self.loss.target_features
        self.statistics = ObservationNormalizer(interface.observation)
        self.scaler, self.mean_bonus = RewardScaler(config.gamma), torch.zeros(())

    @torch.no_grad()
    def bonus(self, sequences: TensorDictBase, active: Any) -> Tensor:
        """Returns the bonus ``[B, T, 1]`` for the observations that the decisions of new data ``[B, T]`` led to.

        Args:
            active: the next observations of the active agents, ``[N]``, with which the statistics are updated.
        """
        self.statistics.update(active)
        following = sequences.get("next")
        seen = TensorDict({"observation": self.statistics(following.get("observation"))}, sequences.batch_size)
        novelty = self.loss.distance(seen).unsqueeze(-1).to(following.get("reward").dtype)
        never = torch.zeros_like(following.get("done"))
        flow = TensorDict({"reward": novelty, "done": never}, sequences.batch_size)
        told = TensorDict({"next": flow, "active": sequences.get("active")}, sequences.batch_size)
        self.scaler.update(told, everyone=self.everyone)
        bonus, there = self.config.coefficient * self.scaler(novelty), sequences.get("active").unsqueeze(-1)
        self.mean_bonus = (bonus * there).sum() / there.sum().clamp(min=1)
        return bonus

    def learn(self, active: Any, rows: int, minimize: Any) -> dict[str, Tensor | float]:
        """Trains the predictor in one pass over new observations ``[N]``.

        Args:
            rows: number of them to learn from, drawn at random; equal in all processes that learn together.
            minimize: makes one step on a loss and a batch, see ``Optimizer.minimize``.
        """
        if not rows:
            return {}
        metrics: dict[str, Tensor | float] = {"reward/bonus": self.mean_bonus}
        batch = TensorDict({"observation": self.statistics(active)}, [len(active)])
        for part in batch[shuffled(len(batch), active.device)[:rows]].split(BATCH):
            metrics["loss/predictor"] = minimize(self.loss.predictor_loss, part)[0]
        return metrics
