"""Behaviour cloning (Pomerleau 1991), before or instead of reinforcement learning: a function, and a part of a run.

Cloning trains only the actor of an actor-critic agent; its critic learns from reinforcement. Value-based agents treat
their values as logits of a choice, so they clone the order of the actions, not their returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import Composite
from torchrl.envs import EnvBase
from torchrl.objectives.common import LossModule

from rlstack.agents.base import Agent
from rlstack.agents.compatibility import check_bounds
from rlstack.agents.interface import MASK, Interface
from rlstack.agents.legacy import load_policy
from rlstack.agents.off_policy import OffPolicy
from rlstack.agents.optimizer import Info, Optimizer
from rlstack.agents.recurrent import Recurrent, RecurrentPolicy
from rlstack.config import ConfigError
from rlstack.config.errors import prefixed
from rlstack.config.rooms import registered, target
from rlstack.data.collector import make_collector
from rlstack.data.flatten import cut, episode_starts, flatten_agents
from rlstack.envs.foundation.work import counted, working
from rlstack.envs.world import MEMORY
from rlstack.files.safe_load import first_line
from rlstack.runs.seeding import rng_untouched
from rlstack.runs.worlds import build_world

from .config import TrainConfig
from .hooks import Hook, Training
from .recorded import decisions, read_file

Expert: TypeAlias = TensorDictModuleBase | str | Path
"""A policy, the name of one of the world's players, a run directory or checkpoint, or ``kind:path`` of a foreign
agent."""
Source: TypeAlias = EnvBase | TensorDictBase | str | Path

UNORDERED = "imitation: a recurrent agent needs decisions in their order: an expert, or sequences, not a file"
HELD_OUT = 10
"""One stretch of the data in this many is the validation set, on which the agent is never trained."""
_STRETCHES = 100
_CHUNK = 4096  # decisions measured at once: greedy acting may evaluate many actions for each


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
) -> dict[str, float]:
    """Clones an expert's behaviour into an agent.

    Args:
        agent: the learner. Its optimisers, counters and schedules stay unchanged; targets become copies.
        source: an env for the expert to act in, or data: a file (see :mod:`.recorded`), sequences ``[B, T]`` of
            :func:`rlstack.flatten_agents`, or a flat batch ``[N]`` of ``observation``, ``action`` (in the world's
            form) and, if the world has one, ``action_mask``.
        expert: the policy that acts in the env, or any value of ``imitation.expert``.
        frames: number of the expert's decisions to gather.
        epochs: number of passes over the data.
        batch_size: number of decisions in a step of the optimiser.
        lr: learning rate at the beginning; it falls linearly to zero.
        replay: whether the expert's transitions also enter the agent's replay buffer.

    :mod:`rlstack.envs.foundation.work` reports the progress, and can stop it.

    Returns ``imitation/loss`` (mean over the last epoch), ``imitation/held_out`` (loss on a tenth of the data that was
    not trained on), ``imitation/frames``, and of greedy acting on that tenth ``imitation/accuracy`` (share of choices
    that agree) or ``imitation/error`` (root mean square difference of actions in [-1, 1]), of hybrid actions both.

    Raises:
        ConfigError: the expert or the data do not fit, or the agent cannot imitate.

    Example:
        >>> rlstack.imitate(agent, env, rlstack.load("runs/teacher").agent.policy(explore=False), frames=50_000)
    """
    check_learner(agent, replay)
    ordered = isinstance(agent, Recurrent)
    if isinstance(source, EnvBase):
        if expert is None:
            raise ConfigError("imitate: an env needs an expert")
        policy = expert_policy(expert, source, agent.interface)

        def observe(sequences: TensorDictBase) -> None:
            """Adds the expert's experience ``[B, T]``, which continues the previous one, to the replay buffer."""
            if replay and isinstance(agent, OffPolicy):
                if agent.reward_scaler is not None:
                    agent.reward_scaler.update(sequences)
                # An expert may write entries that the agent's own transitions do not have.
                agent.extend(sequences.exclude("raw_action", "log_prob", "memory", ("next", "memory")))

        data = gather(source, policy, agent.interface, frames, agent.config.steps_per_batch, observe, ordered)
        if isinstance(agent, OffPolicy) and replay:  # later transitions are of other worlds: no return may span both
            agent.n_step.clear()
            if agent.reward_scaler is not None:
                agent.reward_scaler.returns = agent.reward_scaler.returns.new_zeros(0)
    elif expert is not None or replay:
        raise ConfigError("imitate: an expert, and a replay, need an env to act in, not data")
    elif isinstance(source, str | Path):
        data = read_file(source, agent.interface).to(agent.device)
    else:
        data = decisions(source, ordered)
    return clone(agent, data, epochs, batch_size, lr)


def check_learner(agent: Agent, replay: bool = False) -> None:
    """Raises a :class:`ConfigError` if the agent cannot imitate, or lacks the replay buffer that ``replay`` needs."""
    if type(agent).imitation_loss is Agent.imitation_loss:
        raise ConfigError(f"imitation: {type(agent).__name__} cannot imitate, it has no imitation_loss")
    if replay and not isinstance(agent, OffPolicy):
        raise ConfigError(f"imitation.replay: {type(agent).__name__} has no replay buffer; set it to false")


def expert_policy(
    expert: Expert, env: EnvBase, interface: Interface, options: Mapping[str, Any] | None = None
) -> TensorDictModuleBase:
    """Returns an expert as a policy, tried on a sample of the env's observations; draws no random numbers.

    Args:
        env: the world that the expert acts in.
        interface: the env's interface.
        options: options of an agent from elsewhere; see :func:`rlstack.agents.legacy.load_policy`.

    Raises:
        ConfigError: there is no such expert, or it cannot act in this env.
    """
    if getattr(expert, "reads_state", False):  # that of the world, which does not exist before a reset
        return expert
    if isinstance(expert, str) and not options:
        for name in registered("PLAYERS").values():
            if (player := target(name)(env, expert)) is not None:
                return player
    who = str(expert) if isinstance(expert, str | Path) else type(expert).__name__
    with prefixed("imitation.expert"), rng_untouched():
        policy = load_policy(who, env, **(options or {})) if isinstance(expert, str | Path) else expert
        _try_out(policy, env, interface, who)
    return policy


def _try_out(policy: TensorDictModuleBase, env: EnvBase, interface: Interface, who: str) -> None:
    key = interface.key("action")
    spec = env.full_action_spec[key]
    sample = env.fake_tensordict().exclude("next", key).update(env.observation_spec.rand())
    try:
        with torch.no_grad():
            action = policy(sample).get(key, None)
    except Exception as error:  # a policy from elsewhere may raise anything
        raise ConfigError(f"{who} does not fit the env: {first_line(error)}") from error
    parts: list[tuple[Any, Any, Any]] = [(action, spec, interface.action)]
    if isinstance(spec, Composite) and isinstance(action, TensorDictBase):
        parts = [(action.get(name, None), leaf, interface.action[name]) for name, leaf in spec.items()]
    for part, leaf, single in parts:
        if not isinstance(part, Tensor):
            raise ConfigError(f"{who} gives no action of the env's kind")
        if part.shape != leaf.shape or part.is_floating_point() != leaf.dtype.is_floating_point:
            offered = f"{part.dtype} of shape {list(part.shape)}"
            raise ConfigError(f"{who}: actions are {offered}, the env takes {leaf.dtype} of shape {list(leaf.shape)}")
        check_bounds(part, single, who)
    forget = getattr(policy, "reset", None)
    if callable(forget):  # recurrent policies
        forget()


def clone(agent: Agent, data: TensorDictBase, epochs: int, batch_size: int, lr: float) -> dict[str, float]:
    """Fits a flat batch of decisions ``[N]``, or sequences ``[B, T]`` with a recurrent agent, by supervised learning.

    See :func:`imitate`.
    """
    recorded = RecordedSequences(agent, data) if isinstance(agent, Recurrent) else RecordedDecisions(agent, data)
    if agent.normalizer is not None:
        agent.normalizer.update(recorded.observations())
    modules = [module for network in agent.networks.values() for module in network.modules()]
    modes = [module.training for module in modules]
    for network in agent.networks.values():
        network.eval()  # without the noise of noisy layers, as in greedy acting
    try:
        loss = _fit(agent, recorded, epochs, batch_size, lr)
        # Every target becomes a copy of its network, also in TorchRL's loss modules; AC-IQN acts by one.
        with torch.no_grad():
            for copy in agent.targets.values():
                copy.network.load_state_dict(copy.source.state_dict())
            for network in agent.networks.values():
                parts = dict(network.named_children()) if isinstance(network, LossModule) else {}
                for name in parts:
                    if name.startswith("target_") and name.endswith("_params"):
                        getattr(network, name).data.update_(getattr(network, name.removeprefix("target_")).data)
        recorded.refresh()
        judged = _judged(agent, recorded)
    finally:
        for module, mode in zip(modules, modes):
            module.training = mode
    return {"imitation/loss": loss, **judged, "imitation/frames": float(recorded.size(recorded.data))}


@torch.no_grad()
def _judged(agent: Agent, recorded: RecordedDecisions) -> dict[str, float]:
    """Returns the loss on the held-out data, and how well greedy acting agrees with them."""
    policy, interface = agent.policy(explore=False), agent.interface
    loss, size, squares, agreed, count, numbers, width = 0.0, 0, 0.0, 0.0, 0, 0, 0
    for part in counted(recorded.held_out(), "measuring", "parts"):
        size += recorded.size(part)
        loss += float(_loss(agent, part)[0]) * recorded.size(part)
        action, wanted = recorded.greedy(policy, part)
        action, wanted = (part.reshape(len(wanted), -1) for part in (action, wanted))
        count, width = count + len(wanted), wanted.shape[-1]
        numbers = interface.hybrid.numbers if interface.hybrid else 0 if interface.choices else width
        squares += float((action - wanted)[:, :numbers].square().sum())
        agreed += float((action == wanted)[:, numbers:].all(-1).sum())
    judged = {"imitation/held_out": loss / size}
    if numbers < width:
        judged["imitation/accuracy"] = agreed / count
    if numbers:
        judged["imitation/error"] = (squares / numbers / count) ** 0.5
    return judged


def _fit(agent: Agent, recorded: RecordedDecisions, epochs: int, batch_size: int, lr: float) -> float:
    """Trains for ``epochs`` passes; returns the mean loss of the last one."""
    recorded.refresh()
    parameters = agent.parameters()
    gradients = torch.autograd.grad(_loss(agent, recorded.train()[:2])[0], parameters, allow_unused=True)
    acting = [parameter for parameter, gradient in zip(parameters, gradients) if gradient is not None]
    optimizer = Optimizer([acting], lr, precision=agent.config.precision)
    size, mean, note = recorded.size(recorded.train()), 0.0, ""
    with working("imitating", "epochs", epochs) as work:
        for epoch in range(epochs):
            if epoch:
                recorded.refresh()
            total: Tensor | float = 0.0
            batches = recorded.batches(batch_size)
            for step, batch in enumerate(batches):
                optimizer.lr = lr * (1 - (epoch + step / len(batches)) / epochs)
                loss, _, _ = optimizer.minimize(lambda batch: _loss(agent, batch), batch)
                total = total + loss * recorded.size(batch)
                work.reach(epoch, f"batch {step + 1:,} of {len(batches):,}{note}")
            mean = float(total) / size
            note = f", loss {mean:.4g} in the last epoch"
            work.reach(epoch + 1, note.removeprefix(", "))
    return mean


def _loss(agent: Agent, batch: TensorDictBase) -> tuple[Tensor, Info]:
    return agent.imitation_loss(*agent.imitation_batch(batch)), {}


def gather(
    env: EnvBase,
    expert: TensorDictModuleBase,
    interface: Interface,
    frames: int,
    steps_per_batch: int = 16,
    observe: Callable[[TensorDictBase], None] = lambda sequences: None,
    ordered: bool = False,
) -> TensorDict:
    """Lets a policy act until active agents have made ``frames`` decisions; returns these, ``[frames]``.

    Args:
        observe: called with every collected batch of sequences ``[B, T]``.
        ordered: see :func:`decisions`.
    """
    collector = make_collector(env, expert, steps_per_batch)
    gathered, count, steps = [], 0, 0
    with working("gathering", "decisions", frames) as work:

        def step(*_: Any) -> None:  # a batch may take long
            nonlocal steps
            steps += 1
            work.reach(min(count, frames), f"step {steps:,}")

        hook = expert.register_forward_pre_hook(step)
        try:
            for batch in collector:
                sequences = flatten_agents(batch, interface.group)
                observe(sequences)
                gathered.append(decisions(sequences, ordered))
                count += int(sequences.get("active").sum())
                if count >= frames:
                    break
        finally:
            hook.remove()
            collector.shutdown(close_env=False)
    return torch.cat(gathered, 1) if ordered else torch.cat(gathered)[:frames]


# -- the split into training and held-out data --------------------------------------------------------------------


def _is_held_out(count: int, device: torch.device) -> Tensor:
    """Returns which of ``count`` rows are held out, ``[count]``: every tenth of some hundred stretches."""
    stretch = torch.arange(count, device=device) // max(count // _STRETCHES, 1)
    return stretch % HELD_OUT == HELD_OUT - 1


class RecordedDecisions:
    """Decisions in a flat batch ``[N]``, a tenth of them held out.

    Args:
        agent: the learner.
        data: ``observation``, ``action`` (in the world's form) and, if the world has one, ``action_mask``.

    Raises:
        ConfigError: there are too few decisions.
    """

    _units = "decisions"

    def __init__(self, agent: Agent, data: TensorDictBase) -> None:
        self.agent, data = agent, data.to(agent.device).copy()
        self.data = data.set("action", agent.interface.from_env(data.get("action")))
        active = data.get("active", None)
        used = torch.ones(len(data), dtype=torch.bool, device=agent.device) if active is None else active.any(1)
        if (count := int(used.sum())) < HELD_OUT:
            raise ConfigError(f"imitation: {count} {self._units} are too few, at least {HELD_OUT} are needed")
        self._held = used.clone()
        self._held[used] = _is_held_out(count, agent.device)
        self._trained = used & ~self._held

    def refresh(self) -> None:
        """Prepares a pass over the data."""

    def size(self, batch: TensorDictBase) -> int:
        """Returns the number of decisions in a batch."""
        active = batch.get("active", None)
        return len(batch) if active is None else int(active.sum())

    def train(self) -> TensorDictBase:
        """Returns the part that is trained on."""
        return self.data[self._trained]

    def observations(self) -> Any:
        """Returns the observations that are trained on, ``[N]``."""
        train = self.train()
        active = train.get("active", None)
        return train.get("observation") if active is None else train.get("observation")[active]

    def batches(self, batch_size: int) -> list[TensorDictBase]:
        """Returns the part that is trained on, shuffled, in batches of about ``batch_size`` decisions."""
        train = self.train()
        rows = max(round(batch_size * len(train) / self.size(train)), 1)
        order = torch.randperm(len(train), device=self.agent.device)
        return [train[index] for index in order.split(rows)]

    def held_out(self) -> Sequence[TensorDictBase]:
        """Returns the part that is held out, in pieces."""
        rest = self.data[self._held]
        return rest.split(max(_CHUNK * len(rest) // max(self.size(rest), 1), 1))

    def greedy(self, policy: Any, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Returns the actions of a greedy policy and the actions to imitate, both in the agent's form."""
        interface = self.agent.interface
        seen: Any = TensorDict({}, batch.batch_size, device=self.agent.device)
        for name in ("observation", MASK) if interface.masked else ("observation",):
            seen.set(interface.key(name), batch.get(name))
        return interface.from_env(policy(seen).get(interface.key("action"))), batch.get("action")


class RecordedSequences(RecordedDecisions):
    """Decisions in sequences ``[B, T]``, cut into parts for a recurrent agent.

    Each pass first computes the recurrent state in which every part begins: the one that the learner would have had.

    Args:
        data: additionally ``active [B, T]`` and ``("next", "done") [B, T, 1]``.
    """

    _units = "sequences with decisions"
    agent: Recurrent

    def __init__(self, agent: Recurrent, data: TensorDictBase) -> None:
        if data.ndim != 2 or ("next", "done") not in data.keys(include_nested=True):
            raise ConfigError(UNORDERED)
        self._rows = len(data)
        entries = data.exclude("next").set("starts", episode_starts(data))
        parts = cut(entries, agent.config.recurrent.sequence_length)
        parts.batch_size = parts.batch_size[:1]
        super().__init__(agent, parts)

    @torch.no_grad()
    def refresh(self) -> None:
        agent, begun = self.agent, []
        core = agent.memories[agent.ACTING]
        memory = torch.zeros(self._rows, core.core.memory_size, dtype=agent.interface.dtype, device=agent.device)
        for part in self.data.unflatten(0, (self._rows, len(self.data) // self._rows)).unbind(1):
            begun.append(memory)
            observation = agent.normalized(part.get("observation"))
            _, memory = core.follow(observation, memory, part.get("starts"), part.get("active"))
        self.data.set(MEMORY, torch.stack(begun, 1).flatten(0, 1))

    def greedy(self, policy: RecurrentPolicy, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        observation, wanted, mask = self.agent.imitation_batch(batch)
        return self.agent.interface.from_env(policy.inner.entries(observation, mask)["action"]), wanted


# -- as a part of a run ------------------------------------------------------------------------------------------


class Imitation(Hook):
    """Behaviour cloning at the beginning of a run, followed by a checkpoint and an evaluation.

    A run that is interrupted before the checkpoint begins it again.

    The expert acts in separate worlds, so the run's worlds and their curriculum start afresh.

    Args:
        config: configuration of the run.

    Attributes:
        done: whether the agent has imitated, in this process or before.
    """

    name = "imitated"

    def __init__(self, config: TrainConfig) -> None:
        self._config, self.done = config, False
        self._env: EnvBase | None = None

    def on_prepare(self, training: Training) -> None:
        c = self._config.imitation
        if self.done and training.best_rank and c.only:
            raise ConfigError("resume: the run is complete; imitation.only=false continues with reinforcement learning")
        if c.wanted and not (training.frames or self.done):
            self.find(training.agent)

    def find(self, agent: Agent) -> None:
        """Finds and tries the expert or the recorded episodes; draws no random numbers.

        Raises:
            ConfigError: the expert or the recorded episodes do not exist or do not fit.
        """
        c, env = self._config.imitation, self._config.env
        check_learner(agent, c.replay)
        if c.expert is not None:
            if (most := env.get("max_instances")) is not None and 2 * (env.get("num_envs") or most) > most:
                fault = "acts in environments of its own, more than env.max_instances allows beside those of the run"
                raise ConfigError(f"imitation.expert: {fault}; imitation.episodes takes recorded ones")
            with rng_untouched():
                self._env = build_world(env, agent.device, self._config.seed)
                self._expert = expert_policy(c.expert, self._env, agent.interface, c.expert_options)
        elif isinstance(agent, Recurrent):
            raise ConfigError(UNORDERED)
        else:
            with prefixed("imitation.episodes"):
                self._data = read_file(str(c.episodes), agent.interface).to(agent.device)

    def on_start(self, training: Training) -> None:
        c = self._config.imitation
        if not c.wanted or training.frames:
            return
        if not self.done:
            training.logger.truncate_after(-1)  # drops the rows of an interrupted attempt
            options: dict[str, Any] = {"epochs": c.epochs, "batch_size": c.batch_size, "lr": c.lr}
            if self._env is None:
                source: Any = self._data
                training.event(f"imitating {len(source):,} decisions in {c.episodes}")
            else:
                source, options = self._env, {**options, "expert": self._expert, "frames": c.frames, "replay": c.replay}
                training.event(f"imitating {c.frames:,} decisions of {c.expert}")
            try:
                with training.following_work(), closing(self):
                    metrics = imitate(training.agent, source, **options)  # the same on all ranks
            except KeyboardInterrupt:
                training.event(f"the imitation will start over; continue with: {training.resume_command()}")
                raise
            self.done = True
            training.ranks.attach(training.agent, self._config.seed)
            training.log(metrics)
            held_out = metrics["imitation/held_out"]
            kinds = [kind for kind in ("accuracy", "error") if f"imitation/{kind}" in metrics]
            agreement = ", ".join(f"{kind} {metrics[f'imitation/{kind}']:.3f}" for kind in kinds)
            training.event(f"imitation: held-out loss {held_out:.4g}, {agreement}")
            training.save()  # the evaluation that follows may take long
        (judged,) = training.ranks.of_first(bool(training.best_rank))
        if judged:
            return
        try:
            is_best = training.evaluate_and_log()
        except KeyboardInterrupt:
            training.event(f"the imitation is saved; continue with: {training.resume_command()}")
            raise
        training.event(f"checkpoint {training.save(is_best).name}")
        if c.only:
            training.finish()

    def close(self) -> None:
        """Closes the expert's worlds."""
        if self._env is not None and not self._env.is_closed:
            self._env.close()

    def state_dict(self) -> bool:
        return self.done

    def load_state_dict(self, state: bool) -> None:
        self.done = state
