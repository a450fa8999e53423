"""PPO with a clipped objective (Schulman et al. 2017) and generalised advantages (Schulman et al. 2016).

On the same batch the loss equals that of TorchRL's ``ClipPPOLoss``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.config.options import AdaptiveLearningRate, Count, Positive, Scheduled, Whole
from rlstack.config.schedules import ScheduleConfig
from rlstack.config.typed import Interval
from rlstack.envs.foundation.tensors import looks_are_free
from rlstack.losses.ppo import PPOLoss

from .on_policy import OnPolicy, OnPolicyConfig, minibatches
from .optimizer import CannotCompile, Compiler


@dataclass
class PPOConfig(OnPolicyConfig):
    """The options of PPO."""

    # data
    steps_per_batch: Count = 128  # env steps per world between two updates
    normalize_over: Literal["minibatch", "rollout"] = "minibatch"
    #   advantages are normalised over each minibatch, or the whole rollout

    # optimisation
    lr: AdaptiveLearningRate = 3.0e-4  # or {kind: adaptive, kl: 0.01, start: 1e-3, low: 1e-5, high: 1e-2, factor: 1.5}:
    #   divided by the factor while an update moves the policy by a KL divergence above 2 kl, multiplied below kl / 2
    epochs: Annotated[int, Interval(low=1, high=10_000, why="passes over the same data")] = 10  # passes over the data
    minibatch_size: Annotated[int, Interval(low=2, high=2**53)] = 256  # about: the data are split into equal parts
    clip: Annotated[Scheduled, Interval(low=0, high=100, open_low=True, why="probability ratios begin at 1")] = 0.2
    #   of the probability ratio
    clip_value: Positive | None = None  # value predictions are clipped to this distance from the old; null: no limit
    target_kl: Positive | None = None  # an update stops after an epoch in which the policy moved this far
    value_first: Whole = 0  # initial frames in which only the value function learns: about 1e6 after imitation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_first and self.shared_layers:
            raise ValueError("value_first needs a value function of its own, shared_layers=0")
        if self.value_first and isinstance(self.lr, ScheduleConfig) and self.lr.kind == "adaptive":
            raise ValueError("value_first: an adaptive lr follows the policy, which does not move at first; give 0")


class PPO(OnPolicy):
    """Proximal policy optimisation."""

    Config = PPOConfig
    WEIGHS = True
    LEAST_DECISIONS = 2  # a single advantage cannot be normalised

    def make_loss(self, **options: Any) -> PPOLoss:
        return PPOLoss(
            self.actor, self.critic, clip=self.scheduled["clip"], clip_value=self.config.clip_value, **options
        )

    def compile(self, compiler: Compiler) -> None:
        if self.config.value_first:
            raise CannotCompile("agent.value_first trains some parameters for longer than others")
        super().compile(compiler)

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """Makes epochs of updates on minibatches in random order.

        It stops after an epoch once the policy has moved by more than ``target_kl``, estimated as
        ``E[ratio - 1 - log ratio]`` (Schulman 2020) on the epoch's last minibatch, from which the metrics come, too. On
        a GPU, nothing waits for this estimate: further epochs are computed, but change nothing.
        """
        if self.together is not None and (learned := self.together(batch)) is not None:
            return learned
        c = self.config
        self.loss.policy_learns = self.frames >= c.value_first
        metrics: dict[str, Any] = {}
        before = metrics  # at the end of the last epoch
        self.optimizer.begin_update()
        waits = looks_are_free(self.device) or c.precision == "float16"  # whose steps wait themselves
        for minibatch, is_last in minibatches(self.epochs(batch)):
            reports = is_last or self.reports_all
            objective = self.objective if reports or self.optimizer.adapts else self.plain_objective
            loss, norm, info = self.optimizer.minimize(objective, self.for_step(minibatch))
            self.updates += 1
            if reports:
                metrics = self.metrics(loss, norm, info)
            if not is_last or c.target_kl is None:
                continue
            if (paused := self.optimizer.paused) is not None:
                metrics = {name: torch.where(paused, before[name], value) for name, value in metrics.items()}
            moved = metrics["policy/kl"] > c.target_kl
            if not waits:
                self.optimizer.pause(moved)
            elif moved:
                break
            before = metrics
        self.optimizer.pause(None)
        return metrics

    def epochs(
        self, batch: TensorDictBase, generator: torch.Generator | None = None
    ) -> Iterator[tuple[TensorDictBase, list[int]]]:
        if self.config.normalize_advantage and not self.normalizes_steps:
            batch = self.with_normalized_advantages(batch)
        return super().epochs(batch, generator)

    together: Callable[[TensorDictBase], dict[str, Any] | None] | None = None
    """Where several agents learn as one batch (:mod:`rlstack.agents.together`), makes this agent's update; returns None
    if it is to be made alone."""

    reports_all = False
    """Whether :meth:`metrics` is asked for those of all minibatches, not only of the last one of an epoch."""
