"""Batched evaluation: many worlds at once, each episode scored when it first ends."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.agents import Agent
from rlstack.agents.interface import Interface, difference
from rlstack.config import ConfigError, load_group, to_plain
from rlstack.data.collector import stack_steps
from rlstack.data.finite import LEARNED_FROM, Sum, find, leaves
from rlstack.data.graphs import GRAPHS, Recorded
from rlstack.data.recordings import TransitionRecorder
from rlstack.envs.foundation.tensors import GROUP
from rlstack.envs.foundation.work import Work, working
from rlstack.envs.recording import EpisodeRecorder
from rlstack.envs.registry import evaluation_options
from rlstack.envs.rendering.rendered import RenderedRecorder, rendered
from rlstack.envs.world import World, hooks_of
from rlstack.runs.seeding import own_randomness
from rlstack.runs.worlds import world_options

from .results import Evaluation

__all__ = ["EpisodeSet", "Evaluation", "evaluate", "evaluation_world"]

MAX_WORLDS = 128
"""The number of worlds stepped at once; more episodes are played in turns. A batch runs until its last world has ended,
so small batches spend less time on the last few worlds than one large batch, and their data stay in the cache."""

MAX_WORLDS_ON_GPU = 1024
"""The same on a GPU, where a step of a small batch takes as long as one of a large batch."""

AHEAD = 16
"""Steps that are recorded, and replayed, at once on a GPU."""

MOST_STEPS = 100_000
"""The number of steps after which an episode is cut in a world without ``evaluation_steps``."""

_OBSERVED = frozenset({"observation"})

OURS = ("num_worlds", "num_envs", "device", "seed", "compiled", "workers")
"""Constructor arguments of a world that the evaluation sets."""


class EpisodeSet(NamedTuple):
    """Fixed episodes, for worlds that can start given ones with ``reset_to``."""

    configs: Sequence[Any]
    levels: Sequence[str]


def evaluate(
    policy: TensorDictModuleBase,
    world: str,
    options: Mapping[str, Any],
    episodes: int,
    seed: int,
    device: torch.device | str = "cpu",
    record: int = 0,
    noise_source: Callable[[Sequence[Any]], Any] | None = None,
    *,
    episode_set: EpisodeSet | None = None,
    max_steps: int | None = None,
    name: str = "",
    transitions: TransitionRecorder | None = None,
    kept: Collection[str] = (),
    env: EnvBase | None = None,
) -> Evaluation:
    """Plays episodes to their end and reads the world's own statistics of each.

    A world controls this by its hooks, see :class:`rlstack.envs.world.WorldHooks`: ``evaluation_options``, which
    override
    ``options``, so that shaped rewards and curricula of the training do not count; ``evaluation_set``, fixed episodes
    started by ``reset_to``; ``episode_options``, the options these need; ``evaluation_steps``, see ``max_steps``.
    Without a set, episodes are random, from this seed. Without statistics under ``("next", "episode")``, ``return``
    (mean over agents) and ``length`` are computed here. The global random generator of torch keeps its state.

    Args:
        policy: module that adds actions to an env's tensordict.
        world: name or path for :func:`rlstack.envs.make`.
        options: constructor arguments of the world.
        episodes: number of episodes per level of the world's evaluation set, or in total if it has none.
        seed: seed of episodes, worlds and sampling policies; the same seed gives the same result.
        device: device of the worlds and of the policy.
        record: number of episodes of each level to record, if the world has a recorder; of a world that has a
            ``render`` instead, the first episode is recorded.
        noise_source: returns the perception noise source (``set_noise_source``) for worlds with these configs.
        episode_set: episodes to play instead of the world's own.
        max_steps: number of steps after which an unfinished episode is scored as it stands; None takes the world's
            own ``evaluation_steps``, or plays to the end, at most :data:`MOST_STEPS`.
        name: name of the policy in the results.
        transitions: recorder of each decision until its episode is scored.
        kept: options that ``evaluation_options`` do not override.
        env: worlds to play in, in place of new ones with these options; their own episodes are lost.

    An episode ends at an observation, action or reward that is not finite; :attr:`Evaluation.non_finite` reports it,
    and the policy receives zeros in place of such observations.

    Raises:
        ValueError: there are no episodes, the world or an option is unknown, or the world cannot hold a config.
    """
    if episodes < 1 or (episode_set is not None and not episode_set.configs):
        raise ValueError("an evaluation needs at least one episode")
    fixed = episode_set or envs.world_hooks(world).evaluation_set(episodes, seed)
    configs, levels = ((), ["all"] * episodes) if fixed is None else fixed
    chosen = _options(world, options, configs, kept)
    limit = max_steps or envs.world_hooks(world).evaluation_steps or MOST_STEPS
    number = {level: count() for level in levels}
    recorded = {index for index, level in enumerate(levels) if next(number[level]) < record}
    several = len(set(levels)) > 1
    parts: list[dict[str, Tensor]] = []
    recordings: dict[int, Any] = {}
    faults: dict[int, str] = {}
    cut = 0
    turns = _worlds(world, chosen, len(levels), seed, device, record > 0, env)
    with (
        torch.no_grad(),
        own_randomness(seed),
        closing(turns),
        working("evaluating", "episodes", len(levels)) as work,
    ):
        for first, env in turns:
            indices = range(first, min(first + env.batch_size.numel(), len(levels)))
            configured = configs[indices.start : indices.stop]
            if noise_source is not None:
                env.set_noise_source(noise_source(configured))
            start = env.reset_to(configured) if configured else env.reset()
            if "reset" in vars(policy) or hasattr(type(policy), "reset"):  # of the policy, not of a network in it
                policy.reset()  # it keeps its recurrent state itself
            watched = [index for index in indices if index in recorded]
            titles = [f"level {levels[index]}, episode {index}" if several else f"episode {index}" for index in watched]
            rows = [index - first for index in watched]
            recorder: EpisodeRecorder[Any] | RenderedRecorder | None = None
            recorder = hooks_of(env).recorder(rows, titles) if watched else None
            if recorder is None and first == 0 and 0 in recorded:
                watched, rows, recorder = [0], [0], rendered(env)
            ahead: Iterator[TensorDictBase] | None = None
            watches = recorder is not None or transitions is not None or noise_source is not None
            # A GPU can record steps of worlds in torch, under a policy that names what it depends on.
            in_torch = isinstance(env, World) and env.recordable and env.device.type in GRAPHS
            if in_torch and not watches and hasattr(policy, "phase"):
                ahead = iter(_StepsAhead(env, policy, start))
            scores = _play(env, policy, start, limit, recorder, rows, work, indices, transitions, ahead)
            parts.append({key: value[: len(indices)].cpu() for key, value in scores.values.items()})
            faults |= {first + row: what for row, what in scores.faults.items() if row < len(indices)}
            cut += int(scores.running[: len(indices)].sum())
            if recorder is not None:
                recordings.update(zip(watched, recorder.recordings()))
    columns = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return Evaluation(columns, list(levels), world, chosen, seed, name, recordings, cut, limit, faults)


# -- episodes and worlds -----------------------------------------------------------------------------------------


def evaluation_world(
    world: str,
    options: Mapping[str, Any],
    num_worlds: int = 1,
    device: torch.device | str = "cpu",
    seed: int = 0,
    kept: Collection[str] = (),
    draws: bool = False,
) -> EnvBase:
    """Builds the world for an evaluation: ``options``, overridden by the world's ``evaluation_options``, not compiled.

    Options named in ``kept`` are not overridden. A world without the argument ``num_worlds`` or ``num_envs`` has a
    fixed size. With ``draws`` it can draw itself, if it can at all.
    """
    return _build(world, _options(world, options, kept=kept), num_worlds, device, seed, draws)


def as_evaluated(world: str, options: Mapping[str, Any], kept: Collection[str] = ()) -> dict[str, Any]:
    """Returns a world's options, overridden by its ``evaluation_options`` except where ``kept`` names them."""
    fixed = envs.world_hooks(world).evaluation_options
    return {**options, **{name: value for name, value in fixed.items() if name not in kept or name not in options}}


@contextmanager
def judging_world(config: Mapping[str, Any]) -> Iterator[EnvBase]:
    """A context with one world of an ``env`` group, as for an evaluation, which is closed at its end.

    Raises:
        ConfigError: no world is named, or it cannot be built.
    """
    if not config.get("name"):
        raise ConfigError("env.name: missing; name the world to evaluate in")
    try:
        env = evaluation_world(config["name"], world_options(config))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"env: {error}") from None
    with closing(env):
        yield env


def interface_of(config: Mapping[str, Any]) -> Interface:
    """Returns the interface of the world of an ``env`` group; errors as of :func:`judging_world`."""
    with judging_world(config) as env:
        return Interface.of(env)


def check_fit(agent: Agent, config: Mapping[str, Any]) -> None:
    """Raises a :class:`ConfigError` unless the agent can observe and act in the world of an ``env`` group."""
    if (fault := difference(agent.interface, interface_of(config))) is not None:
        raise ConfigError(f"env={config['name']} does not fit the agent: {fault}")


def _options(
    world: str, options: Mapping[str, Any], configs: Sequence[Any] = (), kept: Collection[str] = ()
) -> dict[str, Any]:
    """Returns all constructor arguments except those that each turn sets."""
    hooks = envs.world_hooks(world)
    needed = hooks.episode_options(configs) if configs else {}
    chosen = evaluation_options({**as_evaluated(world, options, kept), **needed})
    return {key: value for key, value in chosen.items() if key not in OURS}


def _build(
    world: str, options: Mapping[str, Any], num_worlds: int, device: torch.device | str, seed: int, draws: bool
) -> EnvBase:
    accepted = envs.options_of(world)
    fixed = zip(OURS, (num_worlds, num_worlds, device, seed, False, 0))
    every = {**options, **{key: value for key, value in fixed if key in accepted}}
    if draws and (drawing := envs.world_hooks(world).drawing_options):
        asked = {key: {**value, **(options.get(key) or {})} for key, value in drawing.items()}
        with suppress(Exception), warnings.catch_warnings():  # whatever a constructor says that cannot draw here
            warnings.simplefilter("ignore")
            return envs.make(world, **{**every, **asked})
    return envs.make(world, **every)


def _worlds(
    world: str,
    options: Mapping[str, Any],
    episodes: int,
    seed: int,
    device: torch.device | str,
    draws: bool,
    given: EnvBase | None,
) -> Generator[tuple[int, Any], None, None]:
    """Yields seeded worlds for all episodes in turns: the index of the first episode, and the env for it and the next.

    Each turn has its own seed, so that random episodes do not repeat. Worlds that are not ``given`` are closed, before
    others are built and at the end.
    """
    first, env = 0, given
    most = MAX_WORLDS if torch.device(device).type == "cpu" else MAX_WORLDS_ON_GPU
    most = min(options.get("max_instances") or most, most)
    try:
        while first < episodes:
            wanted = min(most, episodes - first)
            if env is None or (env is not given and env.batch_size.numel() > wanted):
                if env is not None:
                    env.close()
                env = _build(world, options, wanted, device, seed, draws)
            env.set_seed(int(np.random.SeedSequence((seed, first)).generate_state(1)[0]))
            yield first, env
            first += env.batch_size.numel()
    finally:
        if env is not None and env is not given:
            env.close(raise_if_closed=False)


# -- playing -----------------------------------------------------------------------------------------------------


def _play(
    env: EnvBase,
    policy: TensorDictModuleBase,
    tensordict: TensorDictBase,
    max_steps: int,
    recorder: EpisodeRecorder[Any] | RenderedRecorder | None,
    recorded: Sequence[int],
    work: Work,
    episodes: range,
    transitions: TransitionRecorder | None,
    ahead: Iterator[TensorDictBase] | None,
) -> EpisodeStatistics:
    """Steps until every world has ended once, at most ``max_steps`` steps.

    The recorder records the ``recorded`` worlds until the last of them has ended. ``episodes`` are those of ``work``
    that the first worlds play; others do not count. The results of steps come from ``ahead`` if it is given.
    """
    scores, before = EpisodeStatistics(env, tensordict), episodes.start
    scores.running[len(episodes) :] = False
    if recorder is not None:
        recorder.add()
    for step in range(max_steps):
        going_on = scores.running
        if ahead is None:
            tensordict = env.step(policy(scores.checked(tensordict, step)))
        else:
            tensordict = next(ahead)
            scores.checked(tensordict, step)
        if recorder is not None and scores.running[recorded].any():
            recorder.add()
        left = scores.take(tensordict, step)
        if transitions is not None:
            transitions.add(tensordict, going_on & ~scores.spoiled)
        most, part = "", 0.0
        if max_steps < MOST_STEPS:
            most = f" of at most {max_steps:,}"
            part = (before + env.batch_size.numel() * (step + 1) / max_steps) / max(work.total or 0, 1)
        done = min(before + env.batch_size.numel() - left, work.total or 0)
        work.reach(done, f"step {step + 1:,}{most}", min(part, 1.0))
        if not left:
            break
        if ahead is None:
            tensordict = env.maybe_reset(env.step_mdp(tensordict))
    if transitions is not None:
        transitions.end()
    return scores


class _StepsAhead:
    """Iterates over the results of steps, which are recorded as a CUDA graph, :data:`AHEAD` of them at once.

    A policy's actions for an observation that is not finite reach the world, whose episode has ended then.
    """

    def __init__(self, env: Any, policy: Any, first: TensorDictBase) -> None:
        self.env, self.policy, self.carrier = env, policy, first
        self._recorded = Recorded(self._steps, "evaluating", (self,), env.device)

    def __iter__(self) -> Iterator[TensorDictBase]:
        while True:
            self.env.make_ready(AHEAD)
            steps = self._recorded(self.policy.phase, self.env.phase)
            yield from (steps[:, step] for step in range(AHEAD))

    def _steps(self, *_phases: Any) -> TensorDictBase:
        steps, carrier = [], self.carrier.copy()
        for _ in range(AHEAD):
            done, carrier = self.env.step_and_maybe_reset(self.policy(carrier))
            steps.append(done)
        self.carrier = carrier
        return stack_steps(steps, 1)


class EpisodeStatistics:
    """Statistics of each world, frozen at its first end.

    Attributes:
        values: float64 ``[W]`` by name.
        running: ``[W]`` bool: worlds that have not ended yet.
        faults: the first number of the episode that is not finite, by world.
    """

    def __init__(self, env: EnvBase, first: TensorDictBase) -> None:
        self.values: dict[str, Tensor] = {}
        self.faults: dict[int, str] = {}
        self._env, self._worlds = env, env.batch_size.numel()
        self.running = torch.ones(self._worlds, dtype=torch.bool, device=first.device)
        active = first.get((GROUP, "active"), None)
        self._present = None if active is None else active.reshape(self._worlds, -1).double()
        self._return: Tensor | float = 0.0
        self._length = 0

    def checked(self, root: TensorDictBase, step: int) -> TensorDictBase:
        """Returns the tensordict before a step, with zeros in place of observations that are not finite."""
        if self._find(root, step, _OBSERVED):
            return root
        for key, value in list(leaves(root, _OBSERVED)):
            root = root.clone(recurse=False).set(key, value.nan_to_num(0.0, 0.0, 0.0))  # never in place
        return root

    @property
    def spoiled(self) -> Tensor:
        """Returns the worlds ``[W]`` in whose episode a number was not finite."""
        spoiled = torch.zeros_like(self.running)
        spoiled[list(self.faults)] = True
        return spoiled

    def take(self, stepped: TensorDictBase, step: int) -> int:
        """Reads the result of a step; returns the number of worlds that have not ended."""
        following = stepped.get("next")
        for name, value in self._statistics(following).items():
            self.values[name] = torch.where(self.running, value, self.values.get(name, value))
        self._find(stepped, step, LEARNED_FROM)
        done = following.get("done", None)  # otherwise a world is done when all its agents are
        keys = [key for key in self._env.done_keys if key[-1] == "done"]
        ends = [done] if done is not None else [following.get(key) for key in keys]
        self.running = self.running & ~torch.cat([self._flat(end) for end in ends], -1).all(-1)
        return int(self.running.sum())

    def _find(self, shown: TensorDictBase, step: int, only: frozenset[str]) -> bool:
        """Returns True if all numbers are finite; ends the other episodes and records them in :attr:`faults`."""
        values = [value for _, value in leaves(shown, only)]
        if Sum(values).is_finite() or all(bool(torch.isfinite(value).all()) for value in values):
            return True
        single = shown.reshape(self._worlds)
        for world in self.running.nonzero()[:, 0].tolist():
            if what := find(single[world : world + 1].unsqueeze(1), only):
                agent = "" if what.agent is None else f" of agent {what.agent}"
                self.faults[world] = f"{what.name}{agent} is {what.value} in step {step}"
                self.running[world] = False
        return False

    def _statistics(self, following: TensorDictBase) -> dict[str, Tensor]:
        episode = following.get("episode", None)
        if episode is not None:
            # The level is known beforehand, but not to worlds that start given episodes.
            return {key: self._flat(value)[:, 0].double() for key, value in episode.items() if key != "level"}
        reward = torch.cat([self._flat(following.get(key)) for key in self._env.reward_keys], -1).double()
        if self._present is None or self._present.shape != reward.shape:
            mean = reward.mean(-1)
        else:  # over the agents that were present at the start
            mean = (reward * self._present).sum(-1) / self._present.sum(-1)
        self._length, self._return = self._length + 1, self._return + mean
        return {"return": self._return, "length": torch.full_like(self._return, self._length)}

    def _flat(self, value: Tensor) -> Tensor:
        return value.reshape(self._worlds, -1)


_LONGEST = 60  # letters for the opponents in a folder's name


def world_names(env: dict[str, Any]) -> list[str]:
    """Returns a world's name, its ``id`` if it has one, and a hash of options that differ from those of its yaml."""
    name, which = str(env.get("name")), env.get("id")
    try:
        usual = as_evaluated(name, load_group("env", name))
    except ConfigError:  # a world without a yaml
        usual = {}
    ignored = ("name", "id", *OURS)
    options, usual = ({key: entries[key] for key in entries if key not in ignored} for entries in (env, usual))
    called = [*as_names(name), *(as_names(str(which)) if which is not None else [])]
    return [*called, *([] if options == usual else [short_hash(options)])]


def opponent_names(opponents: list[Any]) -> list[str]:
    """Returns the names of the opponents, with a hash of paths, whose names may be equal; if long, the hash alone."""
    plain = all(isinstance(source, str) for source in opponents)
    places = [Path(source.partition(":")[2] or source) for source in opponents] if plain else []
    text = "_".join(Path(source).name for source in opponents) if plain else ""
    called = as_names(text) if len(text) <= _LONGEST else []
    if called and not any(place.exists() for place in places):
        return ["against", *called]
    resolved = [str(place.resolve()) if place.exists() else source for place, source in zip(places, opponents)]
    return ["against", *called, short_hash({"opponents": resolved if plain else opponents})]


def short_hash(content: dict[str, Any]) -> str:
    """Returns a hash of six letters."""
    return hashlib.sha256(json.dumps(to_plain(content), sort_keys=True).encode()).hexdigest()[:6]


def as_names(text: str) -> list[str]:
    """Splits a text into words that can be part of a folder's name."""
    return re.sub(r"[^\w=.-]", " ", text.replace("agent.", "")).split()
