"""Gathers what ``rlstack explain`` judges a run by: its files, its agent, fresh episodes, and facts about them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack.agents import Agent, on_policy
from rlstack.agents.interface import Interface
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.envs.foundation.work import counted
from rlstack.losses.ppo import estimate
from rlstack.networks import actors
from rlstack.networks.distributions import legal
from rlstack.networks.own import OwnGaussianActor
from rlstack.runs.checkpoint import CheckpointError, read_checkpoint
from rlstack.runs.loading import LoadedRun, load
from rlstack.runs.seeding import own_randomness, rng_untouched
from rlstack.runs.worlds import build_world, size_key
from rlstack.training.loggers import METRICS_FILE, read_metrics

from .signs import (
    AT_BOUND,
    SATURATED,
    Activity,
    act,
    discounted,
    dormant_units,
    effective_rank,
    outcomes,
    predictions,
    undisturbed,
    value_errors,
)

WORLDS, CHUNK, MOST_STEPS, EPISODES = 16, 10, 2000, 48
"""Worlds of a fresh rollout, steps between two looks at the clock, most steps of a world, and episodes wanted."""
SECONDS = 8.0
"""The time after which a fresh rollout ends, and trying out the levels of actions."""
_MOST_BYTES = 5e8  # of a fresh rollout
_LOOKED_AT = 2048  # decisions that the networks are called on
_LEVELS = (-1.0, -0.5, 0.0, 0.5, 1.0)
_DIMENSIONS, _BEFORE, _HELD = 6, 4, 2
_REPLAY_BYTES = 4e9
_ALONE = {"workers": 0, "compiled": False}  # options of worlds that are built quickly, in this process


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
        ended_episodes = []
        for row in range(len(reward)):
            ends = (done[row] & active[row]).nonzero()[:, 0].tolist()
            for before, end in pairwise([-1, *ends]):
                part = reward[row, before + 1 : end + 1][active[row, before + 1 : end + 1]]
                ended = bool(terminated[row, end])
                ended_episodes.append(Episode(len(part), float(part.sum()), ended, bool((part != 0).any())))
        return ended_episodes

    @property
    def returns(self) -> Tensor:
        """The returns of the episodes, ``[N]``; those so far, ``[B]``, where none has ended."""
        if self.episodes:
            return torch.tensor([episode.total for episode in self.episodes], dtype=torch.float64)
        return self.sequences.get(("next", "reward"))[..., 0].double().sum(1)


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
        no_effect: for each dimension of the action, the levels in [-1, 1] from which on the world reacts alike.
        replay: ``size``, ``capacity``, shares of ``terminated`` and ``rewarded`` entries, and how far it is ``filled``
            beside the frames of a run of some length; None without a buffer.
        seconds: time that gathering took.
    """

    config: dict[str, Any]
    rows: list[dict[str, float]]
    agent: Agent
    frames: int
    explored: Rollout
    greedy: Rollout
    random: Rollout
    no_effect: dict[int, tuple[float, float]] = field(default_factory=dict)
    replay: dict[str, float] | None = None
    seconds: float = 0.0

    def option(self, name: str, default: Any = None) -> Any:
        """Returns an option of the agent; ``default`` if it has none."""
        return self.config["agent"].get(name, default)

    def logged(self, metric: str) -> list[float]:
        """Returns the logged values of a metric, oldest first."""
        return [row[metric] for row in self.rows if metric in row]

    def highest(self, schedule: str) -> float:
        """Returns the highest value of one of the agent's schedules over the run."""
        total = max(int(self.config.get("total_frames") or 1), 1)
        return max(float(self.agent.schedules[schedule](round(total * part / 20))) for part in range(21))

    @cached_property
    def learned(self) -> bool:
        """Whether the agent is clearly better than random actions: by three standard errors of the difference."""
        ours, theirs = max(self.explored.returns, self.greedy.returns, key=torch.mean), self.random.returns
        return float(ours.mean() - theirs.mean()) > 3 * _error(ours, theirs) + 1e-9

    @cached_property
    def ends(self) -> list[Episode]:
        """The episodes of the exploring policy and of random actions that ended."""
        return [*self.explored.episodes, *self.random.episodes]

    def facts(self) -> dict[str, Any]:
        """Returns figures by name, which ``checks.yaml`` judges; those that do not apply to the run are left out."""
        known: dict[str, Any] = {"better_than_random": self.learned, "seconds": self.seconds, "frames": self.frames}
        known |= {f"replay_{name}": value for name, value in (self.replay or {}).items()}
        for measure in (_played, _set_up, _ends, _rewards, _world, _inputs, _exploration, _learning, _networks):
            known |= measure(self)
        return known


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
    file = None if run.run_dir is None else run.run_dir / METRICS_FILE
    rows = read_metrics(file) if file is not None and file.is_file() else []
    rollouts: dict[str, Any] = {}
    interface = run.agent.interface
    world, fixed = run.config["env"], {key: value for key, value in _ALONE.items() if key in run.config["env"]}
    if (size := size_key(world)) is not None:
        fixed[size] = min(WORLDS, world[size], world.get("max_instances") or WORLDS)
    with rng_untouched(), closing(build_world({**world, **fixed}, run.agent.device, 1)) as env:
        for name in counted(("explored", "greedy", "random"), "playing", "policies"):
            policy: Any = env.rand_action if name == "random" else run.agent.policy(name == "explored")
            with own_randomness(0):
                env.set_seed(1)
                rollouts[name] = play(env, policy, interface.group, seconds)
        without = no_effect(env, interface, seconds) if interface.continuous else {}
    evidence = Evidence(run.config, rows, run.agent, run.frames, **rollouts, no_effect=without, replay=_replay(run))
    evidence.seconds = time.perf_counter() - began
    return evidence


def play(env: EnvBase, policy: Any, group: str | None, seconds: float) -> Rollout:
    """Lets a policy act from fresh episodes until enough have ended, or the time is over."""
    began, parts, ended = time.perf_counter(), list[TensorDictBase](), 0
    collector = make_collector(env, policy, CHUNK)
    batches = iter(collector)
    while ended < EPISODES and len(parts) * CHUNK < MOST_STEPS:
        parts.append(part := flatten_agents(next(batches), group))
        ended += int((part.get(("next", "done"))[..., 0] & part.get("active")).sum())  # absent agents stay done
        if time.perf_counter() - began > seconds or len(parts) * part.bytes() > _MOST_BYTES:
            break
    collector.shutdown(close_env=False)
    return Rollout(torch.cat(parts, 1))


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

    alike: dict[int, tuple[float, float]] = {}
    took = 0.0  # by a dimension
    for dimension in range(min(size, _DIMENSIONS)):
        if time.perf_counter() - began + took > seconds:
            break
        outcomes = [outcome(dimension, level) for level in _LEVELS]
        took = (time.perf_counter() - began) / (dimension + 1)
        if not torch.equal(outcomes[2], outcome(dimension, 0.0)):
            return {}
        same = [torch.equal(one, other) for one, other in pairwise(outcomes)]
        if same in ([True, True, False, False], [False, False, True, True]):
            alike[dimension] = (-1.0, 0.0) if same[0] else (0.0, 1.0)
    return alike


def _replay(run: LoadedRun) -> dict[str, float] | None:
    """Returns facts about the replay buffer in a checkpoint; None if it holds none, or one too large to look at."""
    if run.agent.replay is None or run.path.stat().st_size > _REPLAY_BYTES:
        return None
    try:
        state = read_checkpoint(run.path).get("replay")
    except CheckpointError:
        return None
    if not isinstance(state, dict) or "next" not in (entries := state.get("transitions") or {}):
        return None
    reward, terminated = entries["next"]["reward"], entries["next"]["terminated"]
    size = float(terminated.numel())
    facts = {"size": size, "capacity": float(state["capacity"]) * (size / max(len(terminated), 1))}
    facts |= {"terminated": float(terminated.float().mean()), "rewarded": float((reward != 0).float().mean())}
    if run.config.get("data") is None and (wanted := min(facts["capacity"], float(run.frames))) >= 500:
        facts["filled"] = size / wanted
    return facts


# -- facts -----------------------------------------------------------------------------------------------------------


def _played(evidence: Evidence) -> dict[str, Any]:
    """Returns, of each fresh rollout, its mean return and the shares of episodes with a reward and cut by a limit."""
    known: dict[str, Any] = {}
    for name in ("random", "explored", "greedy"):
        rollout = getattr(evidence, name)
        known[f"return_{name}"] = float(rollout.returns.mean())
        if episodes := rollout.episodes:
            known[f"episodes_{name}"] = len(episodes)
            known[f"rewarded_{name}"] = sum(episode.rewarded for episode in episodes) / len(episodes)
            known[f"cut_{name}"] = sum(not episode.terminated for episode in episodes) / len(episodes)
    if evaluated := evidence.logged("eval/return"):
        known["return_evaluated"] = evaluated[-1]
    if evidence.learned:
        error = _error(evidence.greedy.returns, evidence.explored.returns)
        loss = known["return_explored"] - known["return_greedy"]
        usual = max(0.5 * (known["return_explored"] - known["return_random"]), 4 * error)
        known["greedy_loss"] = loss / usual if usual > 0 else 0.0
    return known


def _error(*returns: Tensor) -> float:
    """Returns the standard error of the difference of two means."""
    return math.sqrt(sum(float(part.var(unbiased=False)) / max(len(part), 1) for part in returns))


def _set_up(evidence: Evidence) -> dict[str, Any]:
    agent, frames, env = evidence.agent, evidence.frames, evidence.config["env"]
    known: dict[str, Any] = {"hundredth": frames // 100, "begins_at": float(evidence.option("learning_starts", 0) or 0)}
    for name in agent.optimizers:
        if not 1e-6 <= (rate := evidence.highest(name)) <= 0.02:
            known |= {"rate": rate, "rate_name": name}
    if now := agent.scheduled.get("lr"):
        known["tenth_rate"] = float(now) / 10
    if frames and not agent.updates and known["begins_at"] >= frames:
        known["not_begun"] = 1
    for name, schedule in agent.schedules.items():
        first, then = float(schedule(0)), float(schedule(int(known["begins_at"])))
        if name.startswith(("lr", "epsilon")) and known["begins_at"] and first > 0 and then < 0.06 * first:
            known |= {"schedule": name, "schedule_first": first, "schedule_then": then, "schedule_left": then / first}
    collector, total = evidence.config.get("collector") or {}, float(evidence.config.get("total_frames") or 0)
    steps = collector.get("steps_per_batch", evidence.option("steps_per_batch"))
    decisions = agent.interface.agents if collector.get("count") == "env_steps" else 1  # of a frame
    if agent.replay is not None and agent.updates and evidence.config.get("data") is None:
        known["updates"] = agent.updates
        known["drawn"] = agent.updates * float(evidence.option("batch_size", 1)) / max(frames * decisions, 1)
    elif agent.replay is None and isinstance(steps, int) and total:
        known["size_name"] = "num_worlds" if "num_worlds" in env else "num_envs"
        known["worlds"] = worlds = int(env.get(known["size_name"]) or 1)
        known |= {"batches": total * decisions / (steps * worlds * agent.interface.agents), "steps": steps}
        known["fewer_worlds"] = max(worlds // 8, 1)
    return known


def _ends(evidence: Evidence) -> dict[str, Any]:
    """Returns how episodes end: too early for a time limit, at one step as if at one, or long before the horizon."""
    ends, explored, gamma = evidence.ends, evidence.explored.episodes, float(evidence.option("gamma", 0.99))
    lengths = [episode.length for episode in ends] or [evidence.random.sequences.shape[1]]
    length, count = Counter(lengths).most_common(1)[0]
    known = {"ends": len(ends), "gamma": gamma, "longest": max(lengths), "length": sum(lengths) / len(lengths)}
    terminated = [episode.terminated for episode in ends]
    if len(ends) >= 8 and not any(terminated) and len(set(lengths)) >= 4:
        known["early_limits"] = sum(each < max(lengths) for each in lengths) / len(ends)
    if count >= 4 and all(terminated) and ends and length >= 10 and length == max(lengths):
        known |= {"same_length": count / len(ends), "same_length_count": count}
    if gamma < 1:
        known["horizon"] = 1 / (1 - gamma)
        known |= {"horizons": known["length"] / known["horizon"]} if gamma < 0.9 else {}
        if len(explored) >= 8 and sum(not episode.terminated for episode in explored) >= 0.95 * len(explored):
            known["cut_at"] = max(episode.length for episode in explored)
            known["cut_reach"] = known["cut_at"] / known["horizon"]
    elif terminated and not any(terminated):
        known["unbounded"] = 1
    return known


def _rewards(evidence: Evidence) -> dict[str, Any]:
    rollouts = (evidence.random, evidence.explored)
    rewarded = any(bool((part.sequences.get(("next", "reward")) != 0).any()) for part in rollouts)
    known: dict[str, Any] = {} if rewarded or len(evidence.ends) < 4 else {"unrewarded": 1}
    sums = [returns_that_followed(evidence.agent, part.sequences) for part in rollouts]
    returns = torch.cat([values[counted] for values, counted in sums])
    if len(returns) > 1 and float(returns.std()) > 0:
        known["return_std"] = float(returns.std())
    return known


def _masks(evidence: Evidence) -> Tensor | None:
    """Returns the masks ``[N, choices]`` of the decisions at random and of the exploring policy, if there are any."""
    rollouts = [part.sequences for part in (evidence.random, evidence.explored)]
    masks = [part.get("action_mask", None) for part in rollouts]
    if any(mask is None for mask in masks):
        return None
    return torch.cat([mask[part.get("active")] for mask, part in zip(masks, rollouts)]).bool()


def _world(evidence: Evidence) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if (allowed := _masks(evidence)) is not None:
        never, parts = ~allowed.any(0), len(evidence.agent.interface.choices or (1,))
        known |= {"never_legal": int(never.sum()), "never_legal_share": float(never.float().mean())}
        known |= {"choices": len(never), "masked_decisions": len(allowed)}
        known["single_choice"] = float((allowed.sum(-1) == parts).float().mean())
    if evidence.no_effect:
        low, high = next(iter(evidence.no_effect.values()))
        dimensions = ", ".join(str(number) for number in evidence.no_effect)
        known |= {"one_sided": len(evidence.no_effect), "one_sided_dimensions": dimensions}
        known |= {"one_sided_low": low, "one_sided_high": high}
    return known


def _inputs(evidence: Evidence) -> dict[str, Any]:
    """Returns the scale of what the networks see of the explored states, and the state of the normaliser."""
    agent, part, known = evidence.agent, evidence.explored.sequences, dict[str, Any]()
    observation, offset, spread = part.get("observation"), 0.0, 1.0
    if isinstance(observation, Tensor) and observation.dim() == 3:  # neither structured nor images
        with undisturbed(agent):
            inputs = agent.normalized(observation)[part.get("active")].double()
        if len(inputs) > 1:
            offset, spread = float(inputs.mean(0).abs().max()), float(inputs.std(0).max())
            known["constant_inputs"] = float((inputs.std(0) == 0).float().mean())
            if agent.normalizer is None:
                known["input_scale"] = max(offset, spread) if math.isfinite(offset + spread) else math.inf
    if agent.normalizer is not None and evidence.frames >= 1000:
        moments: list[Any] = list(agent.normalizer.moments)
        known["normalizer_count"] = min(float(entry.count) for entry in moments)
        if evidence.config.get("data") is None:  # otherwise frames are draws of the same observations
            known["normalizer_share"] = known["normalizer_count"] / evidence.frames
        known |= {"normalized_offset": offset, "normalized_spread": spread}
    if (reads := greedy_normalizes(agent, part)) is not None:
        known["greedy_normalizes"] = int(reads)
    return known


def _exploration(evidence: Evidence) -> dict[str, Any]:
    agent, interface, given = evidence.agent, evidence.agent.interface, evidence.config["agent"]
    known: dict[str, Any] = {}
    acts_by_values = "epsilon" in agent.schedules and "alpha" not in given and not interface.continuous
    if acts_by_values and "noise_std" not in given and not evidence.option("random_frames"):
        known["highest_epsilon"] = evidence.highest("epsilon")
    if interface.choices and (entropies := evidence.logged("policy/entropy")):
        first = entropies[: max(len(entropies) // 10, 1)]
        known |= {"early_entropy": sum(first) / len(first), "most_entropy": sum(map(math.log, interface.choices))}
        if (allowed := _masks(evidence)) is not None:  # the mean over the decisions, of what their masks allow
            counts = torch.stack([legal(part).sum(-1) for part in allowed.split(interface.choices, -1)])
            known["most_entropy"] = float(counts.double().log().sum(0).mean())
        if known["most_entropy"] > 0:
            known["entropy_share"] = known["early_entropy"] / known["most_entropy"]
    actor: Any = getattr(agent, "actor", None)
    log_std = stds = getattr(actor, "log_std", None)
    ends, seen = on_policy.LOG_STD_RANGE, evidence.explored.sequences.get("observation")
    if isinstance(actor, actors.GaussianActor | OwnGaussianActor) and evidence.option("recurrent") is None:
        part = seen[: max(_LOOKED_AT // seen.shape[1], 1)]
        with undisturbed(agent):
            (_, stds), ends = actor(agent.normalized(part)), actors.LOG_STD_RANGE
    if isinstance(stds, Tensor):
        known["std_at_bounds"] = float(((stds <= ends[0]) | (stds >= ends[1])).float().mean())
    if isinstance(log_std, Tensor) and interface.continuous:
        known |= {"std": float(log_std.detach().exp().max()), "first_std": float(evidence.option("initial_std", 1.0))}
        known["widest_std"] = max(known["std"], known["first_std"])
    if not evidence.option("learn_alpha", True):
        known["fixed_alpha"] = float(evidence.option("alpha", 1.0))
    return known


def _learning(evidence: Evidence) -> dict[str, Any]:
    """Returns means of the last quarter of logged metrics, and how many times too long gradients are."""
    known: dict[str, Any] = {}
    for name in ("policy/kl", "policy/clipped", "policy/entropy", "grad/all", "grad/critic", "grad/actor"):
        if values := evidence.logged(name):
            last = values[-max(len(values) // 4, 1) :]
            known[name] = sum(last) / len(last)
    norms = [(sorted(values)[len(values) // 2], name) for name in known if (values := evidence.logged(name))]
    norms = [entry for entry in norms if entry[1].startswith("grad/")]
    limit = evidence.option("max_grad_norm")
    if norms and isinstance(limit, int | float):
        known["median_norm"], known["median_norm_of"] = max(norms)
        known |= {"norm_ratio": known["median_norm"] / limit if limit else math.inf, "max_grad_norm": limit}
    interface, greedy = evidence.agent.interface, evidence.greedy.sequences
    if interface.continuous:
        action = interface.from_env(greedy.get("action"))[greedy.get("active")]
        known["at_bounds"] = float((action.abs() >= AT_BOUND).float().mean())
    return known


def _networks(evidence: Evidence) -> dict[str, Any]:
    """Returns what the agent predicts for the explored decisions, and how active its hidden units are."""
    agent, sequences, known = evidence.agent, evidence.explored.sequences, dict[str, Any]()
    part, policy = sequences[: max(_LOOKED_AT // sequences.shape[1], 1)], agent.policy(explore=False)
    with undisturbed(agent), Activity(agent) as activity:
        values, _ = predictions(agent, part)
        act(agent, policy, part)
    last = sequences[:, -32:]
    with undisturbed(agent):
        chosen = act(agent, policy, last) if agent.interface.choices else None
    made = [str(choice) for choice in chosen[last.get("active")].tolist()] if isinstance(chosen, Tensor) else []
    if len(made) >= 64:
        known["same_choice"] = Counter(made).most_common(1)[0][1] / len(made)
        known["compared_decisions"] = len(made)
    if activity.layers:
        known["dormant"] = max(float(dormant_units(mean).float().mean()) for mean, _ in activity.layers)
        shares = [float((mean > SATURATED).float().mean()) for mean, saturates in activity.layers if saturates]
        known["saturated"] = max(shares, default=0.0)
    if activity.last is not None and (size := activity.last.shape[-1]) > 1:
        known |= {"rank": effective_rank(activity.last[: 4 * size]), "features": size}
        if size >= 16:
            known["rank_ratio"] = known["rank"] / max(0.02 * size, 1)
    if values is None or getattr(agent, "curiosity", None) is not None:  # whose values count a bonus that is gone
        return known
    returns, counted = returns_that_followed(agent, part)
    if int(counted.sum()) >= 64 and float(returns[counted].std()) > 0:
        errors = value_errors(values.double(), returns, counted)
        known |= {"explained": float(errors["value/explained_variance"]), "bias": float(errors["value/bias"])}
        known["count"] = int(counted.sum())
    if evidence.option("gae_lambda") is not None and values.shape[1] >= 2 and int(counted.sum()) >= 256:
        # The share of decisions whose advantage has the sign of what followed.
        guesses = values.double().unsqueeze(-1)
        after = torch.cat((guesses[:, 1:], guesses[:, -1:]), 1)
        reward, done, terminated = (entry.unsqueeze(-1) for entry in outcomes(agent, part, double=True))
        gamma, decay = float(evidence.option("gamma")), float(evidence.option("gae_lambda"))
        advantage, _ = estimate(gamma, decay, guesses, after, reward, done, terminated)
        sides = [side - side[counted].mean() > 0 for side in (advantage[..., 0], returns - guesses[..., 0])]
        known["advantage_std"] = float(advantage[..., 0][counted].std())
        known["agreement"] = float((sides[0] == sides[1])[counted].double().mean())
    return known


def returns_that_followed(agent: Agent, sequences: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Returns the discounted returns ``[B, T]`` that followed each decision, and which are known without a guess."""
    gamma = float(getattr(agent.config, "gamma", 0.99))
    returns, counted = discounted(*outcomes(agent, sequences, double=True), gamma)
    return returns, counted & sequences.get("active")


def greedy_normalizes(agent: Agent, sequences: TensorDictBase) -> bool | None:
    """Returns whether the greedy policy reads the normaliser, as the exploring one does; None if that cannot be told.

    The statistics are moved away for a moment; a policy that reads them then acts otherwise.
    """
    if agent.normalizer is None:
        return None
    part, answers = sequences[:, -16:], dict[bool, bool]()
    moments: list[Any] = list(agent.normalizer.moments)
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
