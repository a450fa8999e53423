"""AC-IQN: an actor taught by an implicit quantile critic (arXiv 2412.09466), off-policy.

``agent=acqn`` is our recipe, ``agent=acqn_published`` the published one; the yaml files hold every number. The update
rule was checked against recordings of the reference learner (losses, gradient norms, parameters: ``tests/losses``).
"""

from __future__ import annotations

import math
import warnings
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.objectives import SoftUpdate

from rlstack.agents.schedules import ScheduleConfig, make_schedule
from rlstack.collection.flatten import n_step_returns, transitions
from rlstack.collection.replay import Replay
from rlstack.config import ConfigError, Interval
from rlstack.losses.acqn import ACIQNLoss
from rlstack.networks.actors import DeterministicActor
from rlstack.networks.encoders import build_encoder
from rlstack.networks.quantile import LateQuantileCritic, QuantileCritic

from .base import Agent, Interface, Policy

Positive = Annotated[float, Interval(low=0, open_low=True)]
NonNegative = Annotated[float, Interval(low=0)]
Fraction = Annotated[float, Interval(low=0, high=1)]
Count = Annotated[int, Interval(low=1)]
Schedule = float | ScheduleConfig


_SCHEDULED = {
    "lr_actor": Interval(low=0),
    "lr_critic": Interval(low=0),
    "epsilon": Interval(low=0, high=1),
    "noise_scale": Interval(low=0),
}


@dataclass
class ACQNConfig:
    """See ``conf/agent/acqn.yaml`` for what each number does."""

    name: str
    algorithm: str
    # networks
    inputs: Literal["raw", "features"]
    self_features: Count
    object_features: list[Count]
    hidden: list[Count]
    critic: Literal["gated", "late"]
    layer_norm: bool
    squash: Literal["arctan", "tanh"]
    output_scale: Positive
    # targets and losses
    gamma: Fraction
    n_step: Count
    num_quantiles: Count
    kappa: Positive
    shared_levels: bool
    target_noise: NonNegative
    raw_penalty: NonNegative
    target_tau: Annotated[float, Interval(low=0, high=1, open_low=True)]
    target_every: Annotated[int, Interval(low=1)] | None
    # optimisation
    batch_size: Count
    buffer_size: Count
    learning_starts: Annotated[int, Interval(low=0)]
    frames_per_update: Positive
    lr_actor: Schedule
    lr_critic: Schedule
    max_grad_norm_actor: Positive
    max_grad_norm_critic: Positive
    # exploration
    epsilon: Schedule
    noise_low: NonNegative
    noise_high: NonNegative
    noise_scale: Schedule
    # acting
    greedy_actor: Literal["online", "target"]
    candidates: Count
    candidate_spread: NonNegative
    cvar: Annotated[float, Interval(low=0, high=1, open_low=True)]

    def __post_init__(self) -> None:
        if self.batch_size > self.buffer_size:
            raise ValueError(f"batch_size {self.batch_size} is larger than buffer_size {self.buffer_size}")
        if self.noise_low > self.noise_high:
            raise ValueError(f"noise_low {self.noise_low} is above noise_high {self.noise_high}")
        if self.critic == "gated" and (len(self.hidden) != 2 or self.hidden[0] != self.hidden[1]):
            raise ValueError("critic=gated has two hidden layers of one width, give hidden as [n, n]")


class ACQN(Agent):
    """Actor-critic implicit quantile network."""

    Config = ACQNConfig
    config: ACQNConfig

    def __init__(self, config: ACQNConfig, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        c = config
        size = interface.action.shape[-1]
        features = interface.features if c.inputs == "features" else None

        def encoder() -> nn.Module:
            return build_encoder(interface.observation, features, c.self_features, c.object_features)

        actor = DeterministicActor(encoder(), size, c.hidden, c.squash)
        with torch.no_grad():
            actor.output.weight.mul_(c.output_scale)
        critic: nn.Module
        if c.critic == "gated":
            critic = QuantileCritic(encoder(), size, c.hidden[0])
        else:
            critic = LateQuantileCritic(encoder(), size, c.hidden, c.layer_norm)
        self.loss = ACIQNLoss(
            actor, critic, c.gamma, c.num_quantiles, c.kappa, c.shared_levels, c.target_noise, c.raw_penalty
        ).to(device=device, dtype=interface.dtype)
        with warnings.catch_warnings():  # tau=1, a hard copy, is unusual but meant
            warnings.simplefilter("ignore")
            self.target_updater = SoftUpdate(self.loss, tau=c.target_tau)
        self._actor_params = list(self.loss.actor_network_params.values(True, True))
        self._critic_params = list(self.loss.critic_network_params.values(True, True))
        self.optimizers = {
            "actor": torch.optim.Adam(self._actor_params, foreach=True),
            "critic": torch.optim.Adam(self._critic_params, foreach=True),
        }
        self._offsets = _candidate_offsets(c.candidates, size, c.candidate_spread).to(device, interface.dtype)
        self.replay = Replay(c.buffer_size, c.batch_size, device)
        self.schedules = {
            name: make_schedule(getattr(c, name), total_frames, f"agent.{name}", bounds)
            for name, bounds in _SCHEDULED.items()
        }
        self._frames_due, self._next_target_update = 0.0, c.target_every or 0
        self._last_frames = 0
        self.set_frames(0)

    @classmethod
    def check(cls, interface: Interface) -> None:
        if not interface.continuous:
            raise ConfigError(
                f"agent=acqn needs continuous actions, the env has {type(interface.action).__name__} actions; "
                "set env.continuous_actions=true or choose a discrete agent"
            )
        space = interface.action.space
        if not ((space.low == -1).all() and (space.high == 1).all()):
            raise ConfigError("agent=acqn acts in [-1, 1], the env's actions have other bounds; rescale them there")

    # -- acting --------------------------------------------------------------------------------------------------

    def policy(self, explore: bool) -> Policy:
        return Policy(self.interface, self._explore if explore else self._exploit)

    def _exploit(self, observation: Any) -> Tensor:
        """The actor's action, or of candidates around it the one with the highest conditional value at risk.

        CVaR at level c is the mean of the return over its worst fraction c, here the mean quantile at levels up to c.
        """
        target = self.config.greedy_actor == "target"
        action = self.loss.act(observation, target)
        if self.config.candidates == 1:
            return action
        size = action.shape[-1]
        flat = observation.flatten(0, -2) if isinstance(observation, Tensor) else observation.reshape(-1)
        proposals = (action.reshape(-1, size) + self._offsets).clamp(-1, 1)  # [K, B, D]
        n = self.config.num_quantiles
        tau = (torch.arange(n, dtype=action.dtype, device=action.device) + 0.5) / n * self.config.cvar
        best = self.loss.quantiles(flat, proposals, tau[None], target).mean(-1).argmax(0)
        chosen = proposals.gather(0, best[None, :, None].expand(1, -1, size))
        return chosen.view_as(action)

    def _explore(self, observation: Any) -> Tensor:
        """Gaussian noise whose size differs from world to world, and now and then a uniform random action."""
        action = self.loss.act(observation)
        if self._noise_scale > 0 and self.config.noise_high > 0:
            worlds = len(action) if action.dim() > 1 else 1
            noise = torch.randn_like(action) * self._noise_sizes(worlds, action)
            action = (action + noise).clamp(-1, 1)
        random = torch.rand_like(action) * 2 - 1
        return torch.where(torch.rand_like(action[..., :1]) < self._epsilon, random, action)

    def _noise_sizes(self, worlds: int, like: Tensor) -> Tensor:
        """Standard deviations from noise_low to noise_high over the worlds, log-spaced, ``[W, 1...]``.

        A single world gets the one in the middle.
        """
        low, high = max(self.config.noise_low, 1e-6), max(self.config.noise_high, 1e-6)
        ends = (math.log10(low), math.log10(high)) if worlds > 1 else 2 * (math.log10(low * high) / 2,)
        sizes = torch.logspace(*ends, worlds, dtype=like.dtype, device=like.device)
        return self._noise_scale * sizes.view(-1, *[1] * (like.dim() - 1))

    # -- learning ------------------------------------------------------------------------------------------------

    def set_frames(self, frames: int) -> None:
        self._epsilon = self.schedules["epsilon"](frames)
        self._noise_scale = self.schedules["noise_scale"](frames)
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = self.schedules[f"lr_{name}"](frames)

    def learn(self, sequences: TensorDictBase, frames: int) -> dict[str, Tensor | float]:
        c = self.config
        self.replay.extend(transitions(n_step_returns(sequences, c.n_step, c.gamma)))
        self.set_frames(frames)
        self._frames_due += frames - self._last_frames
        self._last_frames = frames
        if frames < c.learning_starts or len(self.replay) < c.batch_size:
            self._frames_due = 0.0
            return {}
        metrics: dict[str, Tensor | float] = {}
        while self._frames_due >= c.frames_per_update:
            self._frames_due -= c.frames_per_update
            metrics = self.update(self.replay.sample())
            self._update_targets(int(frames - self._frames_due))
        return metrics

    def update_once(self, sequences: TensorDictBase) -> dict[str, Tensor | float]:
        return self.update(transitions(n_step_returns(sequences, self.config.n_step, self.config.gamma)))

    def parameters(self) -> list[Tensor]:
        return self._actor_params + self._critic_params

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """One critic step, then one actor step against the new critic."""
        c = self.config
        critic_loss, critic_info = self.loss.critic_loss(batch)
        critic_norm = self._step("critic", critic_loss, self._critic_params, c.max_grad_norm_critic)
        actor_loss, actor_info = self.loss.actor_loss(batch)
        actor_norm = self._step("actor", actor_loss, self._actor_params, c.max_grad_norm_actor)
        self.updates += 1
        return {
            "loss/critic": critic_loss.detach(),
            "loss/actor": actor_loss.detach(),
            "grad/critic": critic_norm,
            "grad/actor": actor_norm,
            "value/predicted": critic_info["value"],
            "value/target": critic_info["target"],
            "policy/saturation": actor_info["saturation"],
        }

    def _step(self, name: str, loss: Tensor, parameters: list[Tensor], max_norm: float) -> Tensor:
        self.optimizers[name].zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)
        self.optimizers[name].step()
        return norm

    def _update_targets(self, frames: int) -> None:
        """After the update that was due at ``frames``."""
        every = self.config.target_every
        if every is None:
            self.target_updater.step()
        elif frames >= self._next_target_update:
            self.target_updater.step()
            self._next_target_update = (frames // every + 1) * every

    # -- checkpoint ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "loss": dict(self.loss.state_dict()),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "updates": self.updates,
            "frames_due": self._frames_due,
            "next_target_update": self._next_target_update,
            "frames": self._last_frames,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss.load_state_dict(state["loss"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(deepcopy(state["optimizers"][name]))  # which would share the moments
        self.updates, self._frames_due = state["updates"], state["frames_due"]
        self._next_target_update, self._last_frames = state["next_target_update"], state["frames"]
        self.set_frames(self._last_frames)

    def replay_state(self) -> dict[str, Any]:
        return self.replay.state_dict()

    def load_replay_state(self, state: dict[str, Any]) -> None:
        self.replay.load_state_dict(state)


def _candidate_offsets(count: int, size: int, spread: float) -> Tensor:
    """``[K, 1, D]``: zero, and quasi-random normal draws that are always the same, so that greedy is deterministic."""
    uniform = torch.quasirandom.SobolEngine(size, scramble=True, seed=0).draw(count)
    offsets = spread * math.sqrt(2) * torch.erfinv((2 * uniform - 1).clamp(-0.999, 0.999))
    offsets[0] = 0
    return offsets[:, None]
