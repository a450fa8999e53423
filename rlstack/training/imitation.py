"""Behaviour cloning (Pomerleau 1991): an agent learns to act as a policy, or as recorded episodes, do.

Before reinforcement learning or instead of it. Of an actor-critic agent only the actor is cloned; its critic starts to
learn with reinforcement. Value-based agents take their values as the logits of a choice, so the order of the actions
is cloned, not their returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.objectives.common import LossModule

from rlstack.agents.base import Agent
from rlstack.agents.off_policy import OffPolicy
from rlstack.agents.optimizer import Info, Optimizer
from rlstack.agents.recurrent.base import Recurrent
from rlstack.config import ConfigError

from .config import TrainConfig
from .demonstrations import decisions, gather, in_order, read_demonstrations
from .experts import Expert, expert_policy
from .lessons import UNORDERED, Lessons, lessons_for
from .seeding import restore_rng, rng_state
from .worlds import build_world

Source: TypeAlias = EnvBase | TensorDictBase | str | Path


def imitate(
    agent: Agent,
    source: Source,
    expert: Expert | None = None,
    *,
    frames: int = 200_000,
    epochs: int = 10,
    batch_size: int = 256,
    lr: float = 1e-3,
    replay: bool = False,
    stopped: Callable[[], bool] | None = None,
) -> dict[str, float]:
    """Makes an agent act as an expert does.

    Args:
        agent: the learner. Its optimisers, counters and schedules stay as they are; targets become copies.
        source: an env for the expert to act in; or data: a file that ``read_demonstrations`` takes, sequences
            ``[B, T]`` of :func:`rlstack.flatten_agents`, or a flat batch ``[N]`` of ``observation``, ``action`` (as
            the world takes it) and, where the world has one, ``action_mask``.
        expert: whom to imitate in the env: a policy, or what ``imitation.expert`` takes.
        frames: decisions of the expert to gather.
        epochs: passes over the data.
        batch_size: of one step.
        lr: learning rate at the beginning; it falls linearly to zero.
        replay: the expert's experience also goes into the agent's replay memory.
        stopped: is asked now and then whether to give up, which raises ``KeyboardInterrupt``.

    Returns ``imitation/loss`` (mean over the last epoch), ``imitation/held_out`` (loss on a tenth of the data that was
    not trained on), ``imitation/frames``, and of greedy acting on that tenth ``imitation/accuracy`` (share of choices
    that agree) or ``imitation/error`` (root mean square difference of actions in [-1, 1]).

    Raises:
        ConfigError: the expert or the data do not fit, or the agent cannot imitate.

    Example:
        >>> rlstack.imitate(agent, env, rlstack.load("runs/teacher").agent.policy(explore=False), frames=50_000)
    """
    check_learner(agent, replay)
    if isinstance(source, EnvBase):
        if expert is None:
            raise ConfigError("imitate: in an env there must be an expert")
        policy = expert_policy(expert, source, agent.interface)
        memory = _Memory(agent) if replay else None

        def observe(sequences: TensorDictBase) -> None:
            _give_up_if(stopped)
            if memory is not None:
                memory.add(sequences)

        ordered = isinstance(agent, Recurrent)
        data = gather(source, policy, agent.interface, frames, agent.config.steps_per_batch, observe, ordered)
        if memory is not None:
            memory.close()
    elif expert is not None or replay:
        raise ConfigError("imitate: an expert, and a replay, need an env to act in, not data")
    elif isinstance(source, str | Path):
        data = read_demonstrations(source, agent.interface, agent.device)
    else:
        data = in_order(source) if isinstance(agent, Recurrent) else decisions(source)
    return clone(agent, data, epochs, batch_size, lr, stopped)


def check_learner(agent: Agent, replay: bool = False) -> None:
    """Raises a one-line :class:`ConfigError` if the agent cannot imitate, or lacks the replay memory asked for."""
    if type(agent).imitation_loss is Agent.imitation_loss:
        raise ConfigError(f"imitation: {type(agent).__name__} cannot imitate, it has no imitation_loss")
    if replay and not isinstance(agent, OffPolicy):
        raise ConfigError(f"imitation.replay: {type(agent).__name__} has no replay memory; set it to false")


class _Memory:
    """Takes the expert's experience into an off-policy agent's memory."""

    def __init__(self, agent: Agent) -> None:
        assert isinstance(agent, OffPolicy)
        self._agent = agent

    def add(self, sequences: TensorDictBase) -> None:
        """One batch ``[B, T]``, which goes on where the last one ended."""
        if self._agent.reward_scaler is not None:
            self._agent.reward_scaler.update(sequences)
        # An expert may leave beside its action what the agent's own transitions do not have.
        self._agent.remember(sequences.exclude("raw_action", "log_prob", "memory", ("next", "memory")))

    def close(self) -> None:
        """What follows comes from other worlds: no return runs on into it."""
        self._agent.n_step.clear()
        scaler = self._agent.reward_scaler
        if scaler is not None:
            scaler.returns = scaler.returns.new_zeros(0)


# -- learning ----------------------------------------------------------------------------------------------------


def clone(
    agent: Agent,
    data: TensorDictBase,
    epochs: int = 10,
    batch_size: int = 256,
    lr: float = 1e-3,
    stopped: Callable[[], bool] | None = None,
) -> dict[str, float]:
    """Supervised learning of a flat batch of decisions ``[N]``, by an agent with a memory of sequences ``[B, T]``.

    See :func:`imitate`.
    """
    lessons = lessons_for(agent, data)
    if agent.normalizer is not None:
        agent.normalizer.update(lessons.observations())
    with _as_in_greedy_acting(agent):
        loss = _fit(agent, lessons, epochs, batch_size, lr, stopped)
        lessons.refresh()
        held_out = _held_out(agent, lessons)
    copy_to_targets(agent)
    metrics = {"imitation/loss": loss, "imitation/held_out": held_out}
    return {**metrics, "imitation/frames": float(lessons.size(lessons.data)), **_agreement(agent, lessons)}


@torch.no_grad()
def _held_out(agent: Agent, lessons: Lessons) -> float:
    """The mean loss of what was not trained on."""
    losses = [(float(_loss(agent, part)[0]), lessons.size(part)) for part in lessons.held_out()]
    return sum(loss * size for loss, size in losses) / sum(size for _, size in losses)


def _fit(
    agent: Agent,
    lessons: Lessons,
    epochs: int,
    batch_size: int,
    lr: float,
    stopped: Callable[[], bool] | None,
) -> float:
    """The epochs; returns the mean loss of the last one."""
    lessons.refresh()
    optimizer = Optimizer([_acting_parameters(agent, lessons.train()[:2])], lr, precision=agent.config.precision)
    total: Tensor | float = 0.0
    for epoch in range(epochs):
        total = 0.0
        if epoch:
            lessons.refresh()
        batches = lessons.batches(batch_size)
        for step, batch in enumerate(batches):
            _give_up_if(stopped)
            optimizer.lr = lr * (1 - (epoch + step / len(batches)) / epochs)
            loss, _, _ = optimizer.minimize(lambda batch: _loss(agent, batch), batch)
            total = total + loss * lessons.size(batch)
    return float(total) / lessons.size(lessons.train())


def _give_up_if(stopped: Callable[[], bool] | None) -> None:
    if stopped is not None and stopped():
        raise KeyboardInterrupt


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
    for part in lessons.held_out():
        action, wanted = lessons.greedy(policy, part)
        count += len(wanted)
        if interface.choices is None:
            total += float((action - wanted).square().sum()) / action.shape[-1]
        else:
            total += float((action == wanted).reshape(len(wanted), -1).all(-1).sum())
    if interface.choices is None:
        return {"imitation/error": (total / count) ** 0.5}
    return {"imitation/accuracy": total / count}


# -- as a part of a run ------------------------------------------------------------------------------------------


class Imitation:
    """What a run imitates, found and tried before anything is done; draws no random numbers until it learns.

    The expert acts in worlds of its own, so those of the run, and their curriculum, start fresh.

    Args:
        config: of the run.
        agent: the learner.

    Raises:
        ConfigError: the expert or the recorded episodes do not fit, or are not there.
    """

    def __init__(self, config: TrainConfig, agent: Agent) -> None:
        c = self._config = config.imitation
        self._agent = agent
        check_learner(agent, c.replay)
        self._env: EnvBase | None = None
        self._expert: TensorDictModuleBase | None = None
        random = rng_state()
        try:
            if c.expert is not None:
                self._env = build_world(config.env, agent.device, config.seed)
                self._expert = expert_policy(c.expert, self._env, agent.interface, c.expert_options)
            else:
                assert c.episodes is not None, "only built where there is something to imitate"
                if isinstance(agent, Recurrent):
                    raise ConfigError(UNORDERED)
                self._data = read_demonstrations(c.episodes, agent.interface, agent.device)
        except ConfigError as error:
            known = str(error).startswith("imitation")
            raise ConfigError(str(error) if known else f"imitation.episodes: {error}") from None
        finally:
            restore_rng(random)

    def __str__(self) -> str:
        c = self._config
        return f"{c.frames:,} decisions of {c.expert}" if c.expert else f"{len(self._data):,} decisions in {c.episodes}"

    def learn(self, stopped: Callable[[], bool]) -> dict[str, float]:
        """See :func:`imitate`; the worlds are closed afterwards."""
        c = self._config
        options: dict[str, Any] = {"epochs": c.epochs, "batch_size": c.batch_size, "lr": c.lr, "stopped": stopped}
        if self._env is None:
            return imitate(self._agent, self._data, **options)
        try:
            return imitate(self._agent, self._env, self._expert, frames=c.frames, replay=c.replay, **options)
        finally:
            if not self._env.is_closed:
                self._env.close()


def outcome(metrics: dict[str, float]) -> str:
    """A line for the user."""
    kind = "accuracy" if "imitation/accuracy" in metrics else "error"
    return f"held-out loss {metrics['imitation/held_out']:.4g}, {kind} {metrics[f'imitation/{kind}']:.3f}"
