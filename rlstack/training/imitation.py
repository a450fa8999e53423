"""Imitation before reinforcement learning, or instead of it: whom or what an agent clones, and as a part of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from rlstack.agents.base import Agent
from rlstack.agents.off_policy import OffPolicy
from rlstack.agents.recurrent.base import Recurrent
from rlstack.config import ConfigError
from rlstack.runs.seeding import rng_untouched
from rlstack.runs.worlds import build_world

from .cloning import clone
from .config import TrainConfig
from .demonstrations import decisions, gather, in_order, read_demonstrations
from .experts import Expert, expert_policy
from .hooks import Hook
from .lessons import UNORDERED

if TYPE_CHECKING:
    from .loop import Training

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

    How far it is can be followed, and be ended, with :mod:`envs.working`.

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
        observe = None if memory is None else memory.add
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
    return clone(agent, data, epochs, batch_size, lr)


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


# -- as a part of a run ------------------------------------------------------------------------------------------


class Imitation(Hook):
    """Behaviour cloning at the beginning of a run, and a checkpoint that says it is done; interrupted, it is done anew.

    The expert acts in worlds of its own, so those of the run, and their curriculum, start fresh.

    Args:
        config: of the run.

    Attributes:
        done: the agent has imitated, in this process or before.
    """

    name = "imitated"

    def __init__(self, config: TrainConfig) -> None:
        self._config, self.done = config, False
        self._env: EnvBase | None = None
        self._expert: TensorDictModuleBase | None = None

    def on_prepare(self, training: Training) -> None:
        if self._config.imitation.wanted and not (training.frames or self.done):
            self.find(training.agent)

    def on_start(self, training: Training) -> None:
        c = self._config.imitation
        if not c.wanted or training.frames or self.done:
            return
        training.logger.truncate_after(-1)  # rows of an attempt that was interrupted
        training.event(f"imitating {self}")
        try:
            with training.following_work():
                metrics = self.learn(training.agent)  # by all ranks alike
        except KeyboardInterrupt:
            training.event(f"interrupted; resume={training.run.path} begins anew")
            raise
        self.done = True
        training.ranks.attach(training.agent, self._config.seed)
        training.log(metrics)
        training.event(f"imitation: {outcome(metrics)}")
        is_best = training.evaluate_and_log()
        training.event(f"checkpoint {training.save(is_best).name}")
        if c.only:
            training.finish()

    def find(self, agent: Agent) -> None:
        """Finds and tries what an agent is to imitate; draws no random numbers.

        Raises:
            ConfigError: the expert or the recorded episodes do not fit, or are not there.
        """
        check_learner(agent, self._config.imitation.replay)
        try:
            with rng_untouched():
                self._find(agent)
        except ConfigError as error:
            known = str(error).startswith("imitation")
            raise ConfigError(str(error) if known else f"imitation.episodes: {error}") from None

    def _find(self, agent: Agent) -> None:
        c = self._config.imitation
        if c.expert is not None:
            self._env = build_world(self._config.env, agent.device, self._config.seed)
            self._expert = expert_policy(c.expert, self._env, agent.interface, c.expert_options)
            return
        assert c.episodes is not None, "only sought where there is something to imitate"
        if isinstance(agent, Recurrent):
            raise ConfigError(UNORDERED)
        self._data = read_demonstrations(c.episodes, agent.interface, agent.device)

    def __str__(self) -> str:
        c = self._config.imitation
        return f"{c.frames:,} decisions of {c.expert}" if c.expert else f"{len(self._data):,} decisions in {c.episodes}"

    def learn(self, agent: Agent) -> dict[str, float]:
        """See :func:`imitate`; the worlds are closed afterwards."""
        c = self._config.imitation
        options: dict[str, Any] = {"epochs": c.epochs, "batch_size": c.batch_size, "lr": c.lr}
        if self._env is None:
            return imitate(agent, self._data, **options)
        try:
            return imitate(agent, self._env, self._expert, frames=c.frames, replay=c.replay, **options)
        finally:
            if not self._env.is_closed:
                self._env.close()

    def state_dict(self) -> bool:
        return self.done

    def load_state_dict(self, state: bool) -> None:
        self.done = state


def outcome(metrics: dict[str, float]) -> str:
    """A line for the user."""
    kind = "accuracy" if "imitation/accuracy" in metrics else "error"
    return f"held-out loss {metrics['imitation/held_out']:.4g}, {kind} {metrics[f'imitation/{kind}']:.3f}"
