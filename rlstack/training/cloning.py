"""Behaviour cloning (Pomerleau 1991): supervised learning of decisions.

Of an actor-critic agent only the actor is cloned; its critic starts to learn with reinforcement. Value-based agents
take their values as the logits of a choice, so the order of the actions is cloned, not their returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives.common import LossModule

from envs.working import counted, working
from rlstack.agents.base import Agent
from rlstack.agents.optimizer import Info, Optimizer

from .lessons import Lessons, lessons_for


def clone(
    agent: Agent,
    data: TensorDictBase,
    epochs: int = 10,
    batch_size: int = 256,
    lr: float = 1e-3,
) -> dict[str, float]:
    """Supervised learning of a flat batch of decisions ``[N]``, by an agent with a memory of sequences ``[B, T]``.

    See :func:`~rlstack.training.imitation.imitate`.
    """
    lessons = lessons_for(agent, data)
    if agent.normalizer is not None:
        agent.normalizer.update(lessons.observations())
    with _as_in_greedy_acting(agent):
        loss = _fit(agent, lessons, epochs, batch_size, lr)
        lessons.refresh()
        held_out = _held_out(agent, lessons)
    copy_to_targets(agent)
    metrics = {"imitation/loss": loss, "imitation/held_out": held_out}
    return {**metrics, "imitation/frames": float(lessons.size(lessons.data)), **_agreement(agent, lessons)}


@torch.no_grad()
def _held_out(agent: Agent, lessons: Lessons) -> float:
    """The mean loss of what was not trained on."""
    parts = counted(lessons.held_out(), "measuring the loss", "parts")
    losses = [(float(_loss(agent, part)[0]), lessons.size(part)) for part in parts]
    return sum(loss * size for loss, size in losses) / sum(size for _, size in losses)


def _fit(
    agent: Agent,
    lessons: Lessons,
    epochs: int,
    batch_size: int,
    lr: float,
) -> float:
    """The epochs; returns the mean loss of the last one."""
    lessons.refresh()
    optimizer = Optimizer([_acting_parameters(agent, lessons.train()[:2])], lr, precision=agent.config.precision)
    size, mean, note = lessons.size(lessons.train()), 0.0, ""
    with working("imitating", "epochs", epochs) as work:
        for epoch in range(epochs):
            if epoch:
                lessons.refresh()
            total: Tensor | float = 0.0
            batches = lessons.batches(batch_size)
            for step, batch in enumerate(batches):
                optimizer.lr = lr * (1 - (epoch + step / len(batches)) / epochs)
                loss, _, _ = optimizer.minimize(lambda batch: _loss(agent, batch), batch)
                total = total + loss * lessons.size(batch)
                work.reach(epoch, f"batch {step + 1:,} of {len(batches):,}{note}")
            mean = float(total) / size
            note = f", loss {mean:.4g} in the last epoch"
            work.reach(epoch + 1, note.removeprefix(", "))
    return mean


def _loss(agent: Agent, batch: TensorDictBase) -> tuple[Tensor, Info]:
    return agent.imitation_loss(*agent.lesson(batch)), {}


def _acting_parameters(agent: Agent, batch: TensorDictBase) -> list[Tensor]:
    """Those on which the actions depend: where the imitation loss has a gradient."""
    parameters = agent.parameters()
    gradients = torch.autograd.grad(_loss(agent, batch)[0], parameters, allow_unused=True)
    return [parameter for parameter, gradient in zip(parameters, gradients) if gradient is not None]


@contextmanager
def _as_in_greedy_acting(agent: Agent) -> Iterator[None]:
    """Without the noise of noisy layers, which greedy acting leaves out as well."""
    modules = [module for network in agent.networks.values() for module in network.modules()]
    modes = [module.training for module in modules]
    for network in agent.networks.values():
        network.eval()
    try:
        yield
    finally:
        for module, mode in zip(modules, modes):
            module.training = mode


@torch.no_grad()
def copy_to_targets(agent: Agent) -> None:
    """Makes every target a copy of its network, those inside of TorchRL's loss modules as well."""
    for name, target in agent.targets.items():
        target.network.load_state_dict(agent.networks[name].state_dict())
    for network in agent.networks.values():
        if isinstance(network, LossModule):
            for name, _ in list(network.named_children()):
                if name.startswith("target_") and name.endswith("_params"):
                    getattr(network, name).data.update_(getattr(network, name.removeprefix("target_")).data)


@torch.no_grad()
def _agreement(agent: Agent, lessons: Lessons) -> dict[str, float]:
    """How well greedy acting agrees with what was held out."""
    interface, policy = agent.interface, agent.policy(explore=False)
    total, count = 0.0, 0
    for part in counted(lessons.held_out(), "measuring how well it acts", "parts"):
        action, wanted = lessons.greedy(policy, part)
        count += len(wanted)
        if interface.choices is None:
            total += float((action - wanted).square().sum()) / action.shape[-1]
        else:
            total += float((action == wanted).reshape(len(wanted), -1).all(-1).sum())
    if interface.choices is None:
        return {"imitation/error": (total / count) ** 0.5}
    return {"imitation/accuracy": total / count}
