"""Exploration by random network distillation (Burda et al. 2018): what is new is worth a reward of its own.

Two things are simpler than published: the bonus joins the reward, so that one value function sees the sum of both
(theirs has two, and the bonus's goes on behind the ends of episodes), and the predictor learns from all new data once.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rlstack.config.agents import RNDConfig
from rlstack.data.normalizers import ObservationNormalizer, RewardScaler
from rlstack.losses import RNDLoss
from rlstack.networks.encoders import build_encoder
from rlstack.networks.values import StateNetwork

from .interface import Interface

BATCH = 256
"""Observations in a step of the predictor, about."""


class Curiosity(nn.Module):
    """The bonus, and everything that it depends on: both networks, and the scales of observations and bonuses.

    Args:
        config: its options.
        interface: what the agent acts on.
        widths: of the encoding of oneself, or of an image, and of the layers that every object goes through.
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
        self.scaler = RewardScaler(config.gamma)

    @torch.no_grad()
    def bonus(self, sequences: TensorDictBase, active: Any) -> Tensor:
        """The bonus ``[B, T, 1]`` of what the decisions of new data ``[B, T]`` have led to.

        Args:
            active: the observations of those who decided, ``[N]``, which the statistics take in.
        """
        self.statistics.update(active)
        following = sequences.get("next")
        seen = TensorDict({"observation": self.statistics(following.get("observation"))}, sequences.batch_size)
        novelty = self.loss.distance(seen).unsqueeze(-1).to(following.get("reward").dtype)
        never = torch.zeros_like(following.get("done"))
        flow = TensorDict({"reward": novelty, "done": never}, sequences.batch_size)
        told = TensorDict({"next": flow, "active": sequences.get("active")}, sequences.batch_size)
        self.scaler.update(told, everyone=self.everyone)
        return self.config.coefficient * self.scaler(novelty)

    def learn(self, active: Any, minimize: Any) -> dict[str, Tensor | float]:
        """One pass of the predictor over new observations ``[N]``.

        Args:
            minimize: makes a step on a loss and a batch, see ``Optimizer.minimize``.
        """
        batch = TensorDict({"observation": self.statistics(active)}, [len(active)])
        metrics: dict[str, Tensor | float] = {}
        for part in batch[torch.randperm(len(batch), device=active.device)].split(BATCH):
            metrics = {"loss/predictor": minimize(self.loss.predictor_loss, part)[0]}
        return metrics
