"""Rainbow (Hessel et al. 2018): double, dueling, noisy, n-step and prioritised, on categorical distributions (C51).

``agent=rainbow`` is our recipe, ``agent=rainbow_published`` that of MarineNav's Rainbow with its quirks (one replay
buffer in which robots alternate, noise drawn once, returns clamped to [-1, 1]), whose recorded updates the tests
reproduce.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.modules import NoisyLinear

from rlstack.config.options import Finite, Noise, Positive, Probability, ReplayConfig, Steps, linear
from rlstack.config.typed import Interval
from rlstack.losses.dqn import C51Loss
from rlstack.networks.values import DuelingNetwork

from .off_policy import ValueBased, ValueBasedConfig


@dataclass
class RainbowConfig(ValueBasedConfig):
    """The options of Rainbow."""

    # networks
    noise_std: Noise = 0.5  # initial std of the noisy layers, over the square root of their width
    resample_noise: bool = True  # new noise for every update, as in the paper; false: the online network keeps its own

    # targets
    num_atoms: Annotated[int, Interval(low=2, high=100_000)] = 51  # evenly spaced returns ...
    value_min: Finite = -10.0  # ... from here to value_max (returns outside are clamped)
    value_max: Finite = 100.0
    n_step: Steps = 3

    # replay and cadence
    replay: ReplayConfig = field(default_factory=lambda: ReplayConfig(sampler="prioritized"))
    priority_exponent: Annotated[float, Interval(low=0, high=10)] = 0.5

    # optimisation
    adam_eps: Positive = 1.0e-8

    # exploration
    epsilon: Probability = linear(1.0, 0.0, duration=0.05)  # probability of a random action, in addition to the noise

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_min >= self.value_max:
            raise ValueError("value_min must be below value_max")
        if self.replay.sampler == "uniform":
            raise ValueError("rainbow draws by priority; priority_exponent=0 draws uniformly")


class Rainbow(ValueBased):
    """Rainbow DQN."""

    Config = RainbowConfig

    config: RainbowConfig

    def make_network(self, actions: int) -> nn.Module:
        c = self.config
        noisy = partial(NoisyLinear, std_init=c.noise_std, use_exploration_type=False)
        own = self.own_network("network", actions, c.num_atoms)
        options = c.num_atoms, c.activation, noisy, c.layer_norm
        return own or DuelingNetwork(self.encoder(), actions, c.hidden, *options)

    def make_loss(self) -> C51Loss:
        c = self.config
        atoms = torch.linspace(c.value_min, c.value_max, c.num_atoms, dtype=self.interface.dtype, device=self.device)
        return C51Loss(self.network, atoms, c.gamma)

    # -- acting --------------------------------------------------------------------------------------------------

    def action_values(self, observation: Any) -> Tensor:
        """Returns expected returns ``[..., n]`` under the present noise."""
        return self.loss.expected(self.network(self.normalized(observation)))

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        with self.without_noise():
            return super().exploit(observation, mask)

    def values_as_logits(self, observation: Any) -> Tensor:
        """Returns expected returns without noise, those by which the greedy policy acts."""
        with self.without_noise():
            return self.loss.expected(self.network(observation))

    @contextmanager
    def without_noise(self) -> Iterator[None]:
        """A context in which the network uses mean weights only."""
        self.network.eval()
        try:
            yield
        finally:
            self.network.train()

    # -- learning ------------------------------------------------------------------------------------------------

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        self.resample()
        return super().update(batch)

    def resample(self) -> None:
        """Draws new noise, always for the target, and for the network if ``resample_noise`` is set."""
        networks = (self.network, self.loss.target_network)
        for network in networks if self.config.resample_noise else networks[1:]:
            for layer in network.modules():
                if isinstance(layer, NoisyLinear):
                    layer.reset_noise()
