"""Gathers what the checks of ``rlstack explain`` look at: a run's files, its agent, and a few fresh episodes."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack.agents import Agent
from rlstack.agents.interface import MASK, Interface
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.envs.foundation.work import counted
from rlstack.runs.checkpoint import CheckpointError, read_checkpoint
from rlstack.runs.loading import LoadedRun, load
from rlstack.runs.seeding import own_randomness, rng_untouched
from rlstack.runs.worlds import build_world, size_key
from rlstack.training.loggers import METRICS_FILE, read_metrics

from .signs import Activity, act, dormant_units, effective_rank, undisturbed

WORLDS, CHUNK, MOST_STEPS, EPISODES = 16, 10, 2000, 48
"""Worlds of a fresh rollout, steps between two looks at the clock, most steps of a world, and episodes wanted."""
SECONDS = 8.0
"""The time after which a fresh rollout ends, and trying out the levels of actions."""
_MOST_BYTES = 5e8  # of a fresh rollout
_LOOKED_AT = 2048  # decisions that the networks are called on
_LEVELS = (-1.0, -0.5, 0.0, 0.5, 1.0)
_DIMENSIONS, _BEFORE, _HELD = 6, 4, 2
_REPLAY_BYTES = 4e9


@dataclass(frozen=True)
class Episode:
    """A whole episode of one agent: its steps, return, how it ended, and whether any reward was not zero."""

    length: int
    total: float
    terminated: bool
    rewarded: bool


@dataclass
class Rollout:
    """Fresh decisions ``[B, T]`` of one policy, which begin with an episode in every row."""

    sequences: TensorDictBase

    @cached_property
    def episodes(self) -> list[Episode]:
        """The episodes that ended."""
        following = self.sequences.get("next")
        reward, done = following.get("reward")[..., 0].double(), following.get("done")[..., 0]
        terminated, active = following.get("terminated")[..., 0], self.sequences.get("active")
        found = []
        for row in range(len(reward)):
            ends = (done[row] & active[row]).nonzero()[:, 0].tolist()
            for before, end in pairwise([-1, *ends]):
                part = reward[row, before + 1 : end + 1][active[row, before + 1 : end + 1]]
                ended = bool(terminated[row, end])
                found.append(Episode(len(part), float(part.sum()), ended, bool((part != 0).any())))
        return found

    @property
    def returns(self) -> Tensor:
        """The returns of the episodes, ``[N]``; those so far, ``[B]``, where none has ended."""
        if self.episodes:
            return torch.tensor([episode.total for episode in self.episodes], dtype=torch.float64)
        return self.sequences.get(("next", "reward"))[..., 0].double().sum(1)

    @property
    def decisions(self) -> int:
        """Number of decisions."""
        return int(self.sequences.get("active").sum())


@dataclass
class Evidence:
    """What is known about a run.

    Attributes:
        config: the run's configuration.
        rows: rows of ``metrics.csv``.
        agent: the agent of the newest checkpoint.
        frames: frames it was trained for.
        explored, greedy, random: fresh decisions in the training's worlds: of the exploring policy, of the greedy one,
            and at random.
        values: values ``[B, T]`` that the agent predicts for ``explored``, or None.
        returns: the discounted returns ``[B, T]`` that followed, and ``known``, which of them are: to the end of an
            episode that terminated.
        layers: share of dormant and of saturated units of each hidden layer that was active.
        rank: effective rank of the last hidden features, and their number.
        no_effect: for each dimension of the action, the levels in [-1, 1] from which on the world reacts alike.
        greedy_normalizes: whether the greedy policy depends on the normaliser; None without one.
        replay: ``size``, ``capacity``, shares of ``terminated`` and ``rewarded`` entries; None without a buffer.
        seconds: time that gathering took.
    """

    config: dict[str, Any]
    rows: list[dict[str, float]]
    agent: Agent
    frames: int
    explored: Rollout
    greedy: Rollout
    random: Rollout
    values: Tensor | None = None
    returns: Tensor | None = None
    known: Tensor | None = None
    layers: list[tuple[float, float]] = field(default_factory=list)
    rank: tuple[int, int] | None = None
    no_effect: dict[int, tuple[float, float]] = field(default_factory=dict)
    greedy_normalizes: bool | None = None
    replay: dict[str, float] | None = None
    seconds: float = 0.0

    def option(self, name: str, default: Any = None) -> Any:
        """Returns an option of the agent; ``default`` if it has none."""
        return self.config["agent"].get(name, default)

    def curve(self, metric: str) -> list[float]:
        """Returns the logged values of a metric, oldest first."""
        return [row[metric] for row in self.rows if metric in row]

    def late(self, metric: str) -> float | None:
        """Returns the mean of a metric over the last quarter of its values; None if it was never logged."""
        values = self.curve(metric)
        last = values[-max(len(values) // 4, 1) :]
        return sum(last) / len(last) if last else None

    def early(self, metric: str) -> float | None:
        """Returns the mean of a metric over the first tenth of its values; None if it was never logged."""
        values = self.curve(metric)
        first = values[: max(len(values) // 10, 1)]
        return sum(first) / len(first) if first else None

    @cached_property
    def learned(self) -> bool:
        """Whether the agent is clearly better than random actions: by three standard errors of the difference."""
        better = self.greedy.returns if self.greedy.returns.mean() > self.explored.returns.mean() else None
        ours, theirs = self.explored.returns if better is None else better, self.random.returns
        error = sum(float(part.var(unbiased=False)) / max(len(part), 1) for part in (ours, theirs)) ** 0.5
        return float(ours.mean() - theirs.mean()) > 3 * error + 1e-9

    @cached_property
    def ends(self) -> list[Episode]:
        """The episodes of the exploring policy and of random actions that ended."""
        return [*self.explored.episodes, *self.random.episodes]

    @cached_property
    def return_std(self) -> float | None:
        """Standard deviation of the discounted returns as the agent learns them; None if no return is known."""
        known = [discounted(self.agent, part.sequences) for part in (self.explored, self.random)]
        returns = torch.cat([returns[counted] for returns, counted in known])
        return float(returns.std()) if len(returns) > 1 else None

    @cached_property
    def inputs(self) -> Tensor | None:
        """What the networks see of the explored states, ``[N, size]``; None for structured observations and images."""
        part = self.explored.sequences
        observation = part.get("observation")
        if not isinstance(observation, Tensor) or observation.dim() != 3:
            return None
        with undisturbed(self.agent):
            return self.agent.normalized(observation)[part.get("active")].double()


def gather(path: str | Path, allow: Collection[str] = (), seconds: float = SECONDS) -> Evidence:
    """Gathers the evidence about a run, finished or not, or about a checkpoint.

    Args:
        path: folder of a run, or a checkpoint.
        allow: see :func:`rlstack.load`.
        seconds: the longest time of each of the three fresh rollouts.

    Raises:
        ConfigError: there is no such run, or it has no checkpoint yet.
    """
    began = time.perf_counter()
    run = load(path, allow=allow)
    rows = _rows(run)
    rollouts = {}
    interface = run.agent.interface
    with rng_untouched(), closing(_worlds(run)) as env:
        for name in counted(("explored", "greedy", "random"), "playing", "policies"):
            policy = UniformPolicy(run.agent) if name == "random" else run.agent.policy(name == "explored")
            with own_randomness(0):
                env.set_seed(1)
                rollouts[name] = play(env, policy, interface.group, seconds)
        without = no_effect(env, interface, seconds) if interface.continuous else {}
    evidence = Evidence(run.config, rows, run.agent, run.frames, **rollouts, no_effect=without)
    _look_at_networks(evidence)
    evidence.greedy_normalizes = greedy_normalizes(run.agent, evidence.explored.sequences)
    evidence.replay = _replay(run)
    evidence.seconds = time.perf_counter() - began
    return evidence


def _rows(run: LoadedRun) -> list[dict[str, float]]:
    file = None if run.run_dir is None else run.run_dir / METRICS_FILE
    return read_metrics(file) if file is not None and file.is_file() else []


def _worlds(run: LoadedRun) -> EnvBase:
    """Returns a few worlds of the run's kind, in this process."""
    config, fixed = run.config["env"], {}
    if (size := size_key(config)) is not None:
        most = min(WORLDS, config[size], config.get("max_instances") or WORLDS)
        fixed = {size: most}
    here = {key: value for key, value in (("workers", 0), ("compiled", False)) if key in config}
    return build_world({**config, **fixed, **here}, run.agent.device, 1)


class UniformPolicy(TensorDictModuleBase):
    """Draws uniform, legal actions for every decision in an env's tensordict."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self._interface, self._device = agent.interface, agent.device
        mask = [self._interface.key(MASK)] if self._interface.masked else []
        self.in_keys = self._interface.observation_keys() + mask
        self.out_keys = [self._interface.key("action")]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        interface = self._interface
        lead = interface.lead(interface.observed(tensordict))
        mask = tensordict.get(interface.key(MASK)) if interface.masked else None
        action = interface.random_action(lead, self._device, mask)
        return tensordict.set(interface.key("action"), interface.to_env(action))


def play(env: EnvBase, policy: Any, group: str | None, seconds: float) -> Rollout:
    """Lets a policy act from fresh episodes until enough have ended, or the time is over."""
    began, parts, ended = time.perf_counter(), [], 0
    collector = make_collector(env, policy, CHUNK)
    batches = iter(collector)
    while ended < EPISODES and len(parts) * CHUNK < MOST_STEPS:
        parts.append(flatten_agents(next(batches), group))
        ended += int(parts[-1].get(("next", "done")).sum())
        if time.perf_counter() - began > seconds or len(parts) * parts[-1].bytes() > _MOST_BYTES:
            break
    collector.shutdown(close_env=False)
    return Rollout(torch.cat(parts, 1))


# -- networks --------------------------------------------------------------------------------------------------------


def _look_at_networks(evidence: Evidence) -> None:
    """Adds what the agent predicts for the explored decisions, and how active its hidden units are."""
    agent, sequences = evidence.agent, evidence.explored.sequences
    rows = max(_LOOKED_AT // sequences.shape[1], 1)
    part, policy = sequences[:rows], agent.policy(explore=False)
    with undisturbed(agent), Activity(agent) as activity:
        try:
            evidence.values = agent.predicted_returns(part)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
            evidence.values = None  # an algorithm of a user's own that keeps its networks in another way
        act(agent, policy, part)
    evidence.returns, evidence.known = discounted(agent, part)
    for mean, saturates in activity.layers:
        saturated = float((mean > 0.97).float().mean()) if saturates else 0.0
        evidence.layers.append((float(dormant_units(mean).float().mean()), saturated))
    if activity.last is not None and activity.last.shape[-1] > 1:
        features = activity.last[: 4 * activity.last.shape[-1]]
        evidence.rank = effective_rank(features), features.shape[-1]


def discounted(agent: Agent, sequences: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Returns the discounted returns ``[B, T]`` that followed each decision, and which of them are known.

    A return is known if its episode ended by itself, or if it was followed for so long that what is left counts for
    less than a hundredth.
    """
    following, gamma = sequences.get("next"), float(getattr(agent.config, "gamma", 0.99))
    reward, done = following.get("reward")[..., 0].double(), following.get("done")[..., 0]
    if agent.reward_scaler is not None:
        reward = agent.reward_scaler(reward)
    terminated = following.get("terminated")[..., 0]
    total, left = torch.zeros(len(reward), dtype=torch.float64), torch.ones(len(reward), dtype=torch.float64)
    returns, remaining = torch.zeros_like(reward), torch.ones_like(reward)
    for step in reversed(range(reward.shape[1])):
        total = reward[:, step] + gamma * total.masked_fill(done[:, step], 0.0)
        left = (gamma * left).masked_fill(terminated[:, step], 0.0)
        left = torch.where(done[:, step] & ~terminated[:, step], torch.full_like(left, gamma), left)
        returns[:, step], remaining[:, step] = total, left
    return returns, (remaining < 0.01) & sequences.get("active")


def greedy_normalizes(agent: Agent, sequences: TensorDictBase) -> bool | None:
    """Returns whether the greedy policy reads the normaliser, as the exploring one does; None if that cannot be told.

    The statistics are moved away for a moment; a policy that reads them then acts otherwise.
    """
    if agent.normalizer is None:
        return None
    part, answers = sequences[:, -16:], {}
    moments = list(agent.normalizer.moments)
    means = [entry.mean.clone() for entry in moments]
    try:
        for explores in (False, True):
            policy, acted = agent.policy(explores), []
            for shift in (0.0, 2.0, -2.0):
                for entry, mean in zip(moments, means):
                    entry.mean.copy_(mean + shift * entry.var.sqrt())
                with undisturbed(agent), own_randomness(0):
                    acted.append(act(agent, policy, part))
            plain = all(isinstance(action, Tensor) for action in acted)
            answers[explores] = plain and not all(torch.equal(acted[0], action) for action in acted)
    finally:
        for entry, mean in zip(moments, means):
            entry.mean.copy_(mean)
    return answers[False] if answers[True] else None


# -- worlds and replay -----------------------------------------------------------------------------------------------


def no_effect(env: EnvBase, interface: Interface, seconds: float = SECONDS) -> dict[int, tuple[float, float]]:
    """Returns the dimensions of a continuous action whose levels on one side of zero all have the same effect.

    All worlds are put into the same states over and over by the same seed and the same first actions; then one
    dimension is held at a level. Levels have the same effect if all observations and rewards are equal.

    Args:
        seconds: the time after which no further dimension is tried.

    Returns the first and the last of these levels by dimension; nothing for worlds that do not repeat themselves.
    """
    began = time.perf_counter()
    size = interface.action.shape[-1]
    generator = torch.Generator().manual_seed(0)
    lead = interface.lead(interface.observed(env.reset()))
    first = torch.rand((_BEFORE, *lead, size), generator=generator) * 2 - 1

    def outcome(dimension: int, level: float) -> Tensor:
        env.set_seed(3)
        tensordict, seen = env.reset(), list[Tensor]()
        for step in range(_BEFORE + _HELD):
            action = torch.zeros(*lead, size) if step >= _BEFORE else first[step].clone()
            if step >= _BEFORE:
                action[..., dimension] = level
            tensordict.set(interface.key("action"), interface.to_env(action.to(interface.dtype)))
            done, tensordict = env.step_and_maybe_reset(tensordict)
            if step >= _BEFORE:
                following = done.get("next") if interface.group is None else done.get(("next", interface.group))
                observation = following.get("observation")
                leaves = [observation] if isinstance(observation, Tensor) else list(observation.values(True, True))
                seen += [leaf.double().flatten() for leaf in (*leaves, following.get("reward"))]
        return torch.cat(seen)

    found: dict[int, tuple[float, float]] = {}
    took = 0.0  # by a dimension
    for dimension in range(min(size, _DIMENSIONS)):
        if time.perf_counter() - began + took > seconds:
            break
        outcomes = [outcome(dimension, level) for level in _LEVELS]
        took = (time.perf_counter() - began) / (dimension + 1)
        if not torch.equal(outcomes[2], outcome(dimension, 0.0)):
            return {}
        same = [torch.equal(one, other) for one, other in pairwise(outcomes)]
        if same == [True, True, False, False]:
            found[dimension] = (-1.0, 0.0)
        elif same == [False, False, True, True]:
            found[dimension] = (0.0, 1.0)
    return found


def _replay(run: LoadedRun) -> dict[str, float] | None:
    """Returns facts about the replay buffer in a checkpoint; None if it holds none, or one too large to look at."""
    if not hasattr(run.agent, "replay") or run.path.stat().st_size > _REPLAY_BYTES:
        return None
    try:
        state = read_checkpoint(run.path).get("replay")
    except CheckpointError:
        return None
    entries = state.get("transitions") if isinstance(state, dict) else None
    if not entries or not isinstance(entries.get("next"), dict):
        return None
    following = entries["next"]
    reward, terminated = following["reward"], following["terminated"]
    return {
        "size": float(terminated.numel()),
        "capacity": float(state["capacity"]) * (terminated.numel() / max(len(terminated), 1)),
        "terminated": float(terminated.float().mean()),
        "rewarded": float((reward != 0).float().mean()),
    }


def mean_error(evidence: Evidence) -> dict[str, float] | None:
    """Returns how well values predict the returns that followed: ``explained`` variance, and ``bias`` in their stds."""
    values, returns, known = evidence.values, evidence.returns, evidence.known
    if values is None or returns is None or known is None or int(known.sum()) < 64:
        return None
    value, target = values[known].double(), returns[known]
    std = float(target.std())
    if std <= 0:
        return None
    explained = 1 - float((target - value).var()) / std**2
    return {"explained": explained, "bias": float((value - target).mean()) / std, "count": float(len(target))}
