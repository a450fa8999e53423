"""IQN: implicit quantile networks (Dabney et al. 2018), with acting at a risk level.

``agent=iqn`` is our recipe, ``agent=iqn_published`` that of MarineNav's IQN, whose recorded updates the tests repeat.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import cross_entropy

from rlstack.config.agents import IQNConfig
from rlstack.losses.quantile import quantile_huber_loss
from rlstack.networks.distributions import masked_logits
from rlstack.networks.draws import own, whole
from rlstack.networks.quantile import QuantileNetwork

from .interface import Interface, require_choices
from .off_policy import OffPolicy, greedy, next_mask
from .optimizer import Info
from .risk import check_level, levels


class IQN(OffPolicy):
    """Implicit quantile network."""

    Config = IQNConfig

    def __init__(self, config: IQNConfig, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        c, (actions,) = config, interface.choices or (0,)
        check_level(c.cvar, interface)
        network = QuantileNetwork(self.encoder(), actions, c.hidden, c.activation)
        self.network = self.add_network("network", network, c.target_tau)
        self.target = self.targets["network"].network
        self.optimizer = self.add_optimizer("lr", self.network, max_grad_norm=c.max_grad_norm)

    @classmethod
    def check(cls, interface: Interface) -> None:
        require_choices("iqn", interface)

    # -- acting --------------------------------------------------------------------------------------------------

    def act_values(self, observation: Any) -> Tensor:
        """Conditional value at risk of every action, ``[..., N]``."""
        n, lead = self.config.act_quantiles, self.interface.lead(observation)
        dtype = self.interface.dtype
        if self.config.act_levels == "random":
            tau = own(torch.rand(whole((*lead, n)), dtype=dtype, device=self.device))
        else:
            tau = ((torch.arange(n, dtype=dtype, device=self.device) + 0.5) / n).expand(*lead, n)
        tau = levels(self.config.cvar, tau, self.interface, observation)
        return self.network(self.normalized(observation), tau).mean(-2)

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        return greedy(self.act_values(observation), mask)

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        return self.epsilon_greedy(lambda: self.exploit(observation, mask), observation, mask)

    # -- learning ------------------------------------------------------------------------------------------------

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        loss, norm, info = self.optimizer.minimize(self.loss, batch)
        return {
            "loss/critic": loss,
            "grad/critic": norm,
            "value/predicted": info["value"],
            "value/target": info["target"],
        }

    def loss(
        self, batch: TensorDictBase, tau: Tensor | None = None, tau_target: Tensor | None = None
    ) -> tuple[Tensor, Info]:
        """Quantile Huber loss of Z_tau(s, a) to r + gamma Zbar_tau'(s', a'); levels are drawn, the target's first."""
        reward = batch.get(("next", "reward"))
        tau_target = self._draw(reward) if tau_target is None else tau_target
        target = self.bootstrapped(batch, self._next_quantiles(batch, tau_target))
        tau = self._draw(reward) if tau is None else tau
        quantiles = self.network(batch.get("observation"), tau)
        value = _of_action(quantiles, batch.get("action"))
        loss = quantile_huber_loss(value, target, tau, self.config.kappa).mean()
        return loss, {"value": value.detach().mean(), "target": target.mean()}

    @torch.no_grad()
    def _next_quantiles(self, batch: TensorDictBase, tau: Tensor) -> Tensor:
        """``Zbar_tau'(s', a') [N, n]`` for the best mean action, or the best action of each quantile by itself."""
        observation, mask = batch.get(("next", "observation")), next_mask(batch)
        quantiles = self.target(observation, tau)
        if self.config.target_action == "per_quantile":
            return (quantiles if mask is None else quantiles.masked_fill(~mask.unsqueeze(-2), -torch.inf)).amax(-1)
        chooser = self.network(observation, tau) if self.config.double else quantiles
        return _of_action(quantiles, greedy(chooser.mean(-2), mask))

    def _draw(self, like: Tensor) -> Tensor:
        shape = whole((len(like), self.config.num_quantiles))
        return own(torch.rand(shape, dtype=like.dtype, device=like.device))

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Cross entropy of the choice, mean quantiles taken as logits."""
        tau = torch.rand(len(action), self.config.num_quantiles, dtype=self.interface.dtype, device=self.device)
        values = self.network(observation, tau).mean(-2)
        return cross_entropy(masked_logits(values, mask), action)


def _of_action(quantiles: Tensor, action: Tensor) -> Tensor:
    """Of ``[N, n, A]`` those of the actions ``[N]``, ``[N, n]``."""
    index = action[:, None, None].expand(-1, quantiles.shape[1], 1)
    return quantiles.gather(-1, index).squeeze(-1)
