"""Any parallel PettingZoo environment as a batched world with a group of agents."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import TensorSpec

from ..foreign import check_instances, check_positive, completed, factory_at, fault, raised
from ..foundation.packages import imported, needs, place_in_users_code
from ..foundation.processes import EnvironmentFailed
from ..foundation.tensors import ACTION_MASK
from ..spaces import MASKS, Actions, Array, Observations, mask_path, misfit_of, split_mask, taken
from ..world import GROUP, ForeignWorld, flag_spec, seed_of_share

_ENDS = ("done", "terminated", "truncated")


@dataclass
class _Batch:
    """Observations and states of ``W`` worlds of ``A`` agents; replaced, never changed, since tensors share the memory.

    Attributes:
        observations: one array ``[W, A, ...]`` per leaf of the observation.
        mask: ``[W, A, n]`` bool or None.
        active, terminated, truncated: ``[W, A]`` bool; the end flags of an ended agent stay set.
        reward: ``[W, A]``, rewards of the last step.
    """

    observations: list[Array]
    mask: Array | None
    active: Array
    terminated: Array
    truncated: Array
    reward: Array


class PettingZoo(ForeignWorld):
    """Parallel PettingZoo environments, stepped one after the other in this process.

    The group ``agents`` has a slot for each of the ``A`` possible agents in order: ``observation [W, A, ...]`` (encoded
    by :mod:`rlstack.envs.spaces`), ``action [W, A]`` or ``[W, A, D]``, ``reward [W, A, 1]``, ``done``, ``terminated``,
    ``truncated [W, A, 1]`` and ``active [W, A]``. If the environment has action masks, in its observations or infos,
    ``action_mask [W, A, n]`` bool is true for allowed choices. An agent has its last observation in the step in which
    it ends, and zeros afterwards. One that the environment no longer lists, but has not ended either, counts as
    truncated, and goes on when it is listed again. A world ends with its last agent, ``truncated`` if any agent was
    truncated in that step; ``("next", "episode")`` has ``return`` (mean over the agents present at the start) and
    ``length``.

    A checkpoint holds the random generator, but not the state of environments: loading it begins new episodes.

    Args:
        id: ``pettingzoo.butterfly.pistonball_v6``, in short ``butterfly/pistonball_v6``, or
            ``package.module:factory`` of any other parallel environment.
        num_envs: number of environments W.
        kwargs: arguments of the environment's constructor.
        max_steps: number of steps after which all agents are truncated.
        dtype: type of floating-point observations, continuous actions and rewards.
        seed: seed of the world's generator, which seeds every episode.
        max_instances: number of environments that can live at once; see :class:`~rlstack.envs.gymnasium.Gymnasium`.

    Raises:
        ValueError: the environment does not exist, an option is impossible, or the agents' spaces differ or have no
            encoding.
    """

    observing = ("rlstack.envs.pettingzoo.env:PettingZoo._enter", "rlstack.envs.pettingzoo.env:PettingZoo._show")

    def __init__(
        self,
        id: str | None = None,
        num_envs: int = 1,
        kwargs: dict[str, Any] | None = None,
        max_steps: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int | None = 0,
        max_instances: int | None = None,
    ) -> None:
        check_positive(num_envs=num_envs, max_steps=max_steps)
        super().__init__(num_envs, device, dtype, seed)
        self._id = id
        if not id:
            raise ValueError("id: missing, such as butterfly/pistonball_v6 or my_package.my_module:my_parallel_env")
        factory = parallel_factory(id)
        check_instances(num_envs, max_instances)
        self._max_steps = max_steps
        self._real = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
        self._make = partial(build, factory, id, kwargs or {})
        self._envs = [self._make()]  # the others on the first reset, since a world may be built only for its specs
        try:
            self._set_specs(id)
        except BaseException:
            self.close()
            raise
        self._present = np.zeros((num_envs, len(self.agents)), bool)
        self._returns = np.zeros((num_envs, len(self.agents)))
        self._steps = np.zeros(num_envs, np.int64)
        self._shown = TensorDict({}, self.batch_size, self.device)

    # -- specs ---------------------------------------------------------------------------------------------------

    def _set_specs(self, id: str) -> None:
        self.agents = tuple(self._envs[0].possible_agents)
        if not self.agents:
            raise ValueError(f"id: {id!r} has no possible_agents")
        self._slots = {agent: slot for slot, agent in enumerate(self.agents)}
        space = common_space(self._envs[0], self.agents, "observation_space", id)
        own, self._own_part = split_mask(space)
        self._misfit, self._mask_path = misfit_of(space), mask_path(space)
        self._observations = Observations(own, self._real)
        # Ended agents have zeros, which must lie within the bounds.
        self._observations.leaves = tuple(
            replace(leaf, low=np.minimum(leaf.low, 0), high=np.maximum(leaf.high, 0))
            for leaf in self._observations.leaves
        )
        self._actions = Actions(common_space(self._envs[0], self.agents, "action_space", id), self._real)
        self._masked = self._actions.discrete and self._mask_path is not None
        if self._actions.discrete and not self._masked:
            _, infos = self._reset_one(self._envs[0], 0)
            self._masked = any(_mask_of(info) is not None for info in infos.values())
        lead = (self.num_worlds, len(self.agents))
        shown: dict[str, TensorSpec] = {"observation": self._observations.spec(lead, self.device)}
        shown["active"] = flag_spec(*lead, device=self.device)
        if self._masked:
            self.choices = self._actions.nvec
            shown[ACTION_MASK] = self._actions.mask_spec(lead, self.device)
        self.declare_specs(shown, self._actions.spec(lead, self.device), agents=len(self.agents))
        self._batch = self._empty_batch()

    # -- episodes ------------------------------------------------------------------------------------------------

    def _restart(self, worlds: Tensor | None) -> None:
        rows = range(self.num_worlds) if worlds is None else worlds.tolist()
        seeds = torch.randint(2**31 - 1, (len(rows),), generator=self.generator, device=self.device).tolist()
        self._begin(rows, seeds)

    def share(self, first: int, all_worlds: int, seed: int) -> None:
        """See :meth:`World.share`; the seeds of episodes come from a generator, which needs a seed of its own."""
        super().share(first, all_worlds, seed_of_share(first, seed))

    def _restart_each(self, seeds: list[int]) -> None:
        self._begin(range(self.num_worlds), seeds)
        self._go_on_from(seeds)

    def _begin(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        batch = deepcopy(self._batch)
        completed(self._envs, self._make, self.num_worlds)
        for row, seed in zip(rows, seeds):
            env = self._envs[row]
            observations, infos = self._reset_one(env, seed)
            for array in (*batch.observations, batch.active, batch.truncated, batch.reward):
                array[row] = 0
            batch.terminated[row] = True
            if batch.mask is not None:
                batch.mask[row] = True
            for agent in env.agents:
                with self._answering("reset", agent):
                    seen = _there(observations.get(agent))
                    self._enter(batch, (row, self._slots[agent]), seen, infos.get(agent), checked=True)
            self._present[row] = batch.active[row]
            self._steps[row], self._returns[row] = 0, 0.0
        self._show(batch)

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        actions = self._actions.array(self.num_worlds, len(self.agents))
        self._actions.store(actions, tensordict.get((GROUP, "action")).detach().cpu().numpy())
        before, batch = self._batch, self._empty_batch()
        batch.terminated[:], batch.truncated[:] = before.terminated, before.truncated
        for row in np.flatnonzero(before.active.any(axis=1)).tolist():  # ended worlds wait for their reset
            self._step_one(batch, row, actions[row])
        self._returns += batch.reward
        self._show(batch)
        done: Array = np.logical_not(batch.active.any(axis=1))
        truncated = done & (batch.truncated & before.active).any(1)
        own = {"reward": batch.reward, "terminated": batch.terminated, "truncated": batch.truncated}
        following = self._current()
        agents = following.get(GROUP)
        for name, values in (own | {"done": batch.terminated | batch.truncated}).items():
            agents.set(name, self._tensor(values)[..., None])
        for name, flags in zip(_ENDS, (done, done & ~truncated, truncated)):
            following.set(name, self._tensor(flags)[:, None])
        return following

    def _step_one(self, batch: _Batch, row: int, actions: Array) -> None:
        """Steps one environment and writes its row; agents that are missing or have ended become inactive."""
        self._steps[row] += 1
        env, before, call = self._envs[row], self._batch.active[row], f"step {self._steps[row]} of an episode"
        chosen = {agent: self._actions.decode(actions[self._slots[agent]]) for agent in env.agents}
        with self._answering(call):
            answer = env.step(chosen)
        if not isinstance(answer, tuple) or len(answer) != 5:
            raise self._foreign(call, answer)
        observations, rewards, *ends, infos = answer
        late = self._max_steps is not None and self._steps[row] >= self._max_steps
        checked = self.run_type_checks or self._steps[row] == 1
        for agent, slot in self._slots.items():
            place, stays = (row, slot), agent in env.agents
            if not before[slot] and (agent in chosen or not stays):
                continue
            with self._answering(call, agent):
                seen = observations.get(agent)
                self._enter(batch, place, _there(seen) if stays else seen, infos.get(agent), checked)
                outcome = [rewards.get(agent, 0.0), *(kind.get(agent, False) for kind in ends)]
                if wrong := fault(None, None, *outcome):
                    raise ValueError(wrong)
                batch.reward[place], over, cut = outcome
                over = bool(over)
                cut = not over and (bool(cut) or late or not stays)
            batch.terminated[place], batch.truncated[place] = over, cut
            batch.active[place] = not (over or cut)

    def _enter(self, batch: _Batch, place: tuple[int, int], observation: Any, info: Any, checked: bool) -> None:
        """Writes an agent's observation (its last one if there is none) and mask, and makes it active."""
        batch.active[place], batch.terminated[place], batch.truncated[place] = True, False, False
        if observation is None:
            for now, before in zip(batch.observations, self._batch.observations):
                now[place] = before[place]
        else:
            if checked and (wrong := fault(self._misfit, observation)):
                raise ValueError(wrong)
            self._observations.write(batch.observations, place, self._own_part(observation))
        mask = _mask_of(info)
        if batch.mask is not None:
            if self._mask_path is not None:
                mask = None if observation is None else taken(observation, self._mask_path)
            self._actions.write_mask(batch.mask, place, mask)
        elif mask is not None and self._actions.discrete:
            raise ValueError("its info has an action mask, but none had one at the first reset")

    # -- faults of the environments ------------------------------------------------------------------------------

    def _reset_one(self, env: Any, seed: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
        with self._answering("reset"):
            answer = env.reset(seed=seed)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._foreign("reset", answer)
        return answer

    def _foreign(self, call: str, answer: Any) -> EnvironmentFailed:
        kind = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else f"one {type(answer).__name__}"
        return EnvironmentFailed(f"{self._id}: {call} returns {kind}; {_INTERFACE}")

    @contextmanager
    def _answering(self, call: str, agent: Any = None) -> Iterator[None]:
        """A context that names the environment, the call and the agent whose answer fits nowhere."""
        try:
            yield
        except Exception as error:  # a user's code may raise anything
            if agent is None:
                raise raised(f"{self._id}: {call}", error) from error
            failure = f"{self._id}: {call}: agent {agent!r}: {error}{place_in_users_code(error)}"
            raise EnvironmentFailed(" ".join(failure.split())) from error

    # -- arrays --------------------------------------------------------------------------------------------------

    def _empty_batch(self) -> _Batch:
        """Returns a batch of ended agents: zeros, with everything allowed."""
        lead = (self.num_worlds, len(self.agents))
        mask = np.ones((*lead, self._actions.mask_size), bool) if self._masked else None
        flags = np.zeros(lead, bool), np.ones(lead, bool), np.zeros(lead, bool)
        return _Batch(self._observations.arrays(*lead), mask, *flags, np.zeros(lead, self._real))

    def _show(self, batch: _Batch) -> None:
        self._batch = batch
        lead = [self.num_worlds, len(self.agents)]
        observation = self._observations.nested(
            [self._tensor(array) for array in batch.observations],
            lambda entries: TensorDict(entries, lead, self.device),
        )
        agents = {"observation": observation, "active": self._tensor(batch.active)}
        if batch.mask is not None:
            agents[ACTION_MASK] = self._tensor(batch.mask)
        mean = (self._returns * self._present).sum(1) / self._present.sum(1).clip(1)
        statistics = {"return": mean, "length": self._steps}
        episode = {name: self._tensor(value.astype(self._real))[:, None] for name, value in statistics.items()}
        entries = {GROUP: TensorDict(agents, lead, self.device), "episode": episode}
        self._shown = TensorDict(entries, self.batch_size, self.device)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)


# -- environments by id ----------------------------------------------------------------------------------------------


_INTERFACE = (
    "PettingZoo's reset(seed=, options=) returns (observations, infos), its step (observations, rewards, terminations, "
    "truncations, infos)"
)
_METHODS = ("observation_space", "action_space", "reset", "step")


def _there(observation: Any) -> Any:
    if observation is None:
        raise ValueError("it is listed, but has no observation")
    return observation


def _mask_of(info: Any) -> Any:
    """Returns the action mask in an agent's info, None without one."""
    return next((info[name] for name in MASKS if name in info), None) if info else None


def parallel_factory(id: str) -> Callable[..., Any]:
    """Returns the function that builds the parallel environment of an id; see :class:`PettingZoo`.

    Other callables than a module's ``parallel_env`` must be a class, or a function annotated to return one.

    Raises:
        ValueError: the id cannot be imported, or its module has no parallel environment.
    """
    family, _, short = id.partition("/")
    path, colon, attribute = (f"pettingzoo.{family}.{short}" if short else id).partition(":")
    if not colon and not path.startswith("pettingzoo."):
        raise ValueError(f"id: {id!r} is not one of PettingZoo's own; name others as package.module:parallel_env")
    if path.startswith("pettingzoo.") and find_spec("pettingzoo") is None:
        raise ValueError(f"id: {id} {needs('pettingzoo')}")
    try:
        module = imported(path)
    except ValueError as error:
        raise ValueError(f"id: {id} cannot be imported: {error}{_advice(path, error.__cause__)}") from error
    name = attribute or "parallel_env"
    if not colon and not hasattr(module, name) and hasattr(module, "env"):
        raise ValueError(f"id: {path} has no 'parallel_env': its agents take turns, all at once is supported")
    return factory_at(
        f"{path}:{name}",
        "pettingzoo",
        "parallel-environment",
        lambda made: name == "parallel_env" or all(callable(getattr(made, method, None)) for method in _METHODS),
    )


def _advice(module: str, error: BaseException | None) -> str:
    """Returns what to do about an environment of PettingZoo that cannot be imported: its extra, or the right name."""
    if not module.startswith("pettingzoo."):
        return ""
    if not str(getattr(error, "name", None)).startswith("pettingzoo"):
        return f"; it {needs('pettingzoo')}"
    family, _, name = module.rpartition(".")
    try:
        siblings = [entry.name for entry in pkgutil.iter_modules(importlib.import_module(family).__path__)]
    except ImportError:
        return ""
    close = difflib.get_close_matches(name, siblings, n=1)
    return f", did you mean {family + '.' + close[0]!r}?" if close else ""


def build(factory: Callable[..., Any], id: str, kwargs: dict[str, Any]) -> Any:
    """Builds one environment.

    Raises:
        ValueError: the constructor rejects an argument, or the result is not a parallel environment.
    """
    try:
        env = factory(**kwargs)
    except Exception as error:  # of a constructor, which may be the user's
        line = (" ".join(str(error).split()) or type(error).__name__) + place_in_users_code(error)
        raise ValueError(f"id: {id!r} with kwargs {kwargs}: {line}") from error
    needed = ("possible_agents", *_METHODS)
    if missing := [name for name in needed if not hasattr(env, name)]:
        raise ValueError(f"id: {id!r} is not a parallel environment: it lacks {', '.join(missing)}")
    return env


def common_space(env: Any, agents: Sequence[Any], kind: str, id: str) -> Any:
    """Returns the ``observation_space`` or ``action_space`` (``kind``) of all agents.

    Raises:
        ValueError: the spaces differ; the message lists the agents.
    """
    spaces = {agent: getattr(env, kind)(agent) for agent in agents}
    common = spaces[agents[0]]
    if others := [f"{agent} {space}" for agent, space in spaces.items() if space != common]:
        which = f"{agents[0]} has {common}, but {', '.join(others)}"
        raise ValueError(f"id: {id!r}: all agents must share one {kind.replace('_', ' ')}; {which}")
    return common
