"""Published MarineNav agents as policies and as native agents, native agents as published files, published learners."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import Composite
from torchrl.envs import EnvBase

from rlstack.agents import Agent, Interface, make_agent
from rlstack.agents.acqn import ACQN
from rlstack.agents.ddpg import DDPG
from rlstack.agents.dqn import DQN
from rlstack.agents.iqn import IQN
from rlstack.agents.rainbow import Rainbow
from rlstack.agents.sac import SAC
from rlstack.config import ConfigError
from rlstack.config.errors import prefixed
from rlstack.data.replay import make_replay
from rlstack.data.samplers import SumTree, importance_weights

from .files import (
    ACTION_SIZE,
    CHOICES,
    CONTINUOUS,
    NETWORKS,
    NUM_OBJECTS,
    OBJECT_SIZE,
    SELF_SIZE,
    Published,
    Source,
    load_published,
    published_arrays,
    published_state,
    widths,
    write_directory,
)

# -- published learners ------------------------------------------------------------------------------------------------


_WHOLE_REDRAWS, _REDRAWS = 100, 1000


class InterleavedReplay:
    """Prioritised n-step replay over one sequence of records (Hessel et al. 2018, as MarineNav published it).

    It is kept for comparison with the published agent: records of several robots follow each other, so returns and next
    observations mix robots. Within a return, records from the start of any robot's next episode on are blank: reward
    and observation zero, terminal. Everything else should use n-step transitions of one robot, drawn by a
    ``SumTreeSampler``.

    Args:
        capacity: number of records kept; the oldest are overwritten.
        batch_size: size of a sample.
        device: device of storage and samples.
        n_step: number of records summed into a return.
        gamma: discount per record.
        alpha: exponent of the priorities, applied when they are set.
        beta: exponent of the importance weights, constant.
    """

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        device: torch.device | str,
        n_step: int = 3,
        gamma: float = 0.99,
        alpha: float = 0.5,
        beta: float = 0.4,
    ) -> None:
        if not 1 <= n_step < capacity - 1:
            raise ConfigError(f"an interleaved replay of {capacity} records has no returns over {n_step}")
        self._records = make_replay(capacity, batch_size, device)
        self._storage: Any = self._records.storage
        self.capacity, self.batch_size, self.device = capacity, batch_size, self._storage.device
        self.n_step, self.gamma, self.alpha, self.beta = n_step, gamma, alpha, beta
        self._tree = SumTree(capacity, self.device)
        self._max = torch.ones((), dtype=self._tree.dtype, device=self.device)
        self._starts = torch.ones(1, dtype=torch.bool, device=self.device)  # the next record starts an episode
        self._ahead = torch.arange(n_step + 1, device=self.device)
        self._discounts = gamma ** torch.arange(n_step, dtype=torch.float64, device=self.device)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def max_priority(self) -> Tensor:
        """The largest priority so far (0-d, at least 1), with the exponent applied; new records get it."""
        return self._max.clone()

    def extend_interleaved(self, sequences: TensorDictBase) -> None:
        """Adds the active entries of ``[B, T]`` (see :mod:`rlstack.data.flatten`), step by step, in the order of rows.

        The end of an episode is ``("next", "done")``: time-outs count.
        """
        by_time = sequences.select("observation", "action").transpose(0, 1)
        active = sequences.get("active").transpose(0, 1)
        records = by_time[active]
        for name, key in (("reward", "reward"), ("terminal", "done")):
            records.set(name, sequences.get(("next", key)).transpose(0, 1)[active])
        if (count := len(records)) == 0:
            return
        terminal = records.get("terminal").to(self.device)
        starts = torch.cat((self._starts[None], terminal))
        self._starts = starts[-1].clone()
        records.set("starts", starts[:-1].to(records.device or terminal.device))
        head, stop = self._records.writer.cursor, self._records.writer.cursor + min(count, self.capacity)
        self._records.extend(records)
        self._tree.set_range(head, min(stop, self.capacity), self._max)
        self._tree.set_range(0, stop - self.capacity, self._max)

    def sample(self, uniform: Callable[[int], Tensor] | None = None) -> TensorDict:
        """Draws a batch of n-step transitions ``[batch_size]``.

        Draws are stratified; the whole batch is drawn again until all its returns lie within the sequence. The
        published loop never ends if the newest records fill a whole segment (with few records, or one priority far
        above the others); here single draws are then replaced by draws from all segments. Checking waits for the
        device.

        Args:
            uniform: returns n numbers in [0, 1), used instead of the device's global generator.

        Returns ``observation``, ``action``, ``next`` (``observation``; ``reward [B, 1]``, the n-step return;
        ``terminated [B, 1]``), ``gamma [B, 1]``, the bootstrap's discount, ``index [B]`` and ``priority_weight [B]``.

        Raises:
            ConfigError: no record has all its successors yet, or those that do have zero priority.
        """
        index = self._draw(uniform)
        batch = self._storage.get(index, ("observation", "action"))
        batch.set("next", self.following(index))
        reward = batch.get(("next", "reward"))
        batch.set("gamma", torch.full_like(reward, self.gamma**self.n_step))
        return batch.set("index", index).set("priority_weight", importance_weights(self._tree.get(index), self.beta))

    def following(self, index: Tensor) -> TensorDict:
        """Returns ``observation``, ``reward`` and ``terminated`` n steps after the records at ``index [N]``."""
        window = (index[:, None] + self._ahead) % self.capacity
        scalars = self._storage.get(window.reshape(-1), ("reward", "terminal", "starts")).view(window.shape)
        # Record k counts only if none of the records 1..k is the first of an episode.
        stands = scalars["starts"][:, 1:, 0].cumsum(1) == 0
        reward = scalars["reward"][:, :-1, 0]
        standing = torch.cat((torch.ones_like(stands[:, :1]), stands[:, :-1]), 1)
        total = (reward * standing).to(torch.float64) @ self._discounts
        blank = ~stands[:, -1:]
        result = self._storage.get(window[:, -1], ("observation",))
        result = result.apply(lambda leaf: leaf.masked_fill(blank.view(-1, *[1] * (leaf.ndim - 1)), 0))
        result.set("reward", total.to(reward.dtype)[:, None])
        return result.set("terminated", scalars["terminal"][:, -1] | blank)

    def update_priority(self, index: Tensor, loss: Tensor) -> None:
        """Sets the priorities of sampled records to ``loss**alpha``, loss ``[N]`` or ``[N, 1]``, >= 0.

        If an index is given twice, the larger loss counts; a loss that is not finite counts as zero.
        """
        loss = torch.nan_to_num(loss.detach().reshape(-1).to(self._tree.dtype), nan=0.0, posinf=0.0)
        priority = loss**self.alpha
        torch.maximum(self._max, priority.max(), out=self._max)
        self._tree.set(index, priority)

    def state_dict(self) -> dict[str, Any]:
        """Returns records, priorities and whether an episode starts, as views: save or copy before the next extend."""
        return {
            "records": self._records.state_dict(),
            "tree": self._tree.state_dict(),
            "max_priority": self.max_priority,
            "starts": self._starts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict` of a buffer of the same capacity.

        Raises:
            ConfigError: the state is that of another capacity.
        """
        self._records.load_state_dict(state["records"])
        self._tree.load_state_dict(state["tree"])
        self._max.copy_(state["max_priority"])
        self._starts = state["starts"].to(self.device, copy=True)

    def _draw(self, uniform: Callable[[int], Tensor] | None) -> Tensor:
        def numbers() -> Tensor:
            if uniform is None:
                return torch.rand(count, dtype=self._tree.dtype, device=self.device)
            return uniform(count).to(self.device, self._tree.dtype)

        count = self.batch_size
        if len(self) > self.n_step:
            index = self._tree.sample(count, numbers())
            for attempt in range(_REDRAWS):
                # Records that have n successors; the oldest of a full buffer, at the write position, is left out.
                valid = (self._records.writer.cursor - index) % self.capacity > self.n_step
                if bool(valid.all()):
                    return index
                if attempt < _WHOLE_REDRAWS:
                    index = self._tree.sample(count, numbers())
                else:  # the newest records fill a whole segment
                    index = torch.where(valid, index, self._tree.find(numbers() * self._tree.total))
        raise ConfigError(f"{len(self)} records are too few for a return over {self.n_step} that may be drawn")


class PublishedSAC(SAC):
    """SAC as in MarineNav: log densities use the correction for tanh with any squash."""

    def loss_options(self) -> dict[str, Any]:
        return {**super().loss_options(), "correction": "tanh"}


class PublishedRainbow(Rainbow):
    """Rainbow as in MarineNav: its replay buffer is one sequence in which the robots alternate."""

    def make_replay(self, steps: int = 1) -> InterleavedReplay:
        c = self.config
        if self.interface.masked:
            raise ConfigError("agent.algorithm: rainbow_published keeps no action masks, as the env has; use rainbow")
        if c.correction != "none":
            raise ConfigError("agent.correction: rainbow_published replays its own n-step returns; set none")
        if c.steps_per_batch != 1:
            raise ConfigError("agent.steps_per_batch: rainbow_published takes steps one by one; set 1")
        if c.replay.storage != "LazyTensorStorage":
            raise ConfigError("agent.replay.storage: rainbow_published keeps no files; set LazyTensorStorage")
        if c.replay_device is not None:
            raise ConfigError("agent.replay_device: rainbow_published replays on the learner's device; set null")
        return InterleavedReplay(c.buffer_size, c.batch_size, self.device, c.n_step, c.gamma, c.priority_exponent)

    def extend(self, sequences: TensorDictBase) -> None:
        self.replay.extend_interleaved(self._own(sequences))

    def load_data(self, recorded: TensorDictBase, seen: bool = False) -> None:
        raise ConfigError("data: rainbow_published learns from steps of all robots in turn, not from data; use rainbow")

    def sample(self) -> TensorDictBase:
        self.replay.beta = self.scheduled["importance_exponent"]
        return self.replay.sample()


# -- policies ----------------------------------------------------------------------------------------------------------


_CLASSES = {"AC-IQN": ACQN, "IQN": IQN, "DDPG": DDPG, "DQN": DQN, "SAC": SAC, "Rainbow": Rainbow}
CONFIGURATIONS = {kind: f"{algorithm.__name__.lower()}_published" for kind, algorithm in _CLASSES.items()}
"""The agent type's file in ``conf/agent``."""
_VARIANTS: dict[str, type[Agent]] = {"SAC": PublishedSAC, "Rainbow": PublishedRainbow}

_FIXED = {"activation": "relu", "inputs": "raw", "normalize_observations": False, "squash": "arctan"}
_FIXED_OF: dict[str, dict[str, Any]] = {
    "Rainbow": {"num_atoms": 51, "value_min": -1.0, "value_max": 1.0},
    "SAC": {"critic": "scalar"},
}
"""Options with which an agent's weights mean the same in the published networks."""


def published_policy(source: Source, env: EnvBase, agent_type: str | None = None) -> TensorDictModuleBase:
    """A published agent of any type as a policy of a MarineNav env, acting as published.

    AC-IQN and DDPG act by their actor, DQN and Rainbow (without noise) by the highest value, IQN by the highest mean of
    32 quantiles at random levels; SAC samples.

    Args:
        source: see :func:`~rlstack.adapters.marinenav.files.load_published`.
        env: it acts for all robots of all worlds, on the env's device and in its dtype; with continuous actions for
            AC-IQN, DDPG and SAC, discrete ones for the others.
        agent_type: where files do not settle it.

    Raises:
        ConfigError: one line: what is wrong with the files, or an env that the agent cannot act in.

    Example:
        >>> env = envs.make("marinenav", num_worlds=16)
        >>> rollout = env.rollout(100, published_policy("AC_IQN_params.npz", env), break_when_any_done=False)
    """
    published = load_published(source, agent_type)
    # An actor alone acts the same whichever it is; the memory is never used, and as small as its rules allow.
    agent = _build(published, published.agent_type or "AC-IQN", env, 1, {"batch_size": 1, "buffer_size": 8})
    return agent.policy(explore=False)


# -- native agents -----------------------------------------------------------------------------------------------


def published_agent(
    source: Source,
    env: EnvBase,
    total_frames: int = 6_000_000,
    agent_type: str | None = None,
    device: torch.device | str | None = None,
    **overrides: Any,
) -> Agent:
    """A published agent as a native one of its ``*_published`` configuration, ready to continue training.

    Networks and targets get the weights. Where critics were not published with the actor they start fresh, which a
    warning says. Optimisers and memory start empty, and schedules at their beginning: the files hold none of these.

    Args:
        source: see :func:`~rlstack.adapters.marinenav.files.load_published`.
        env: what it is to act in.
        total_frames: length of the run, which schedules are relative to; the default is that of the original, in env
            steps.
        agent_type: where files do not settle it.
        device: of networks and memory; default the env's.
        overrides: values that replace the configuration's; widths follow the weights.

    Raises:
        ConfigError: one line: what is wrong with the files, the overrides or the env.

    Example:
        >>> agent = published_agent("training/seed_9", env, lr_actor=1e-5)
    """
    published = load_published(source, agent_type)
    if published.agent_type is None:
        raise ConfigError(f"{published.where}: the actor of AC-IQN or of DDPG; set agent_type")
    agent = _build(published, published.agent_type, env, total_frames, overrides, device)
    if published.missing:
        text = f"{published.where}: published without {', '.join(published.missing)}, which start fresh"
        warnings.warn(text, stacklevel=2)
    return agent


def converted(
    path: str, env: EnvBase, options: Mapping[str, Any], agent_options: Mapping[str, Any]
) -> tuple[Agent, Any, int]:
    """Converts a published agent, see :class:`rlstack.config.rooms.Kind`."""
    return published_agent(path, env, **options, **agent_options), published_policy(path, env, **options), 0


def own_world(path: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the world of a published agent, with its kind of actions."""
    agent_type = load_published(path, **options).agent_type
    return "marinenav_published", {"continuous_actions": agent_type is None or agent_type in CONTINUOUS}


def save_published(agent: Agent, directory: str | Path) -> None:
    """Writes the published files (``.pth`` weights and constructor JSON) of a native agent of one of the six types.

    Args:
        agent: with networks as published: its configuration is a ``*_published`` one, of any widths.
        directory: is made; files of the same names are replaced.

    Raises:
        ConfigError: another algorithm, or other networks.
    """
    kind = next((kind for kind, known in _CLASSES.items() if type(agent) in (known, _VARIANTS.get(kind))), None)
    if kind is None:
        raise ConfigError(f"{type(agent).__name__} is not one of the published agents {', '.join(NETWORKS)}")
    _check_fit(agent.interface, kind)
    networks = {}
    fixed = {**_FIXED, **_FIXED_OF.get(kind, {})}
    changed = any(getattr(agent.config, key, value) != value for key, value in fixed.items())
    for part, names in NETWORKS[kind].items():
        state: Mapping[str, Tensor] = network_of(agent, part).state_dict()  # type: ignore[union-attr]
        if changed or {key.rpartition(".")[0] for key in state} != set(names.values()):
            raise ConfigError(
                f"this {kind} agent has other networks than the published; agent={CONFIGURATIONS[kind]} has those"
            )
        networks[part] = published_arrays(state, names)
    write_directory(directory, networks)


def network_of(agent: Agent, part: str, target: bool = False) -> nn.Module | None:
    """Returns a network by its part in :data:`NETWORKS`, or its target network; None if it has no target."""
    if isinstance(agent, ACQN):
        network: nn.Module = getattr(agent.loss, f"{'target_' if target else ''}{part}_network")
        return network
    if target:
        return agent.targets[part].network if part in agent.targets else None
    return agent.networks[part]


def _build(
    published: Published,
    kind: str,
    env: EnvBase,
    total_frames: int,
    overrides: dict[str, Any],
    device: torch.device | str | None = None,
) -> Agent:
    _check_fit(Interface.of(env), kind)
    sizes = widths(next(iter(published.arrays.values())))
    for name in sizes.keys() & overrides.keys():
        if overrides[name] != sizes[name]:
            raise ConfigError(
                f"agent.{name}: {overrides[name]} contradicts the published weights, which have {sizes[name]}"
            )
    agent = make_agent(CONFIGURATIONS[kind], env, total_frames, device, **{**overrides, **sizes})
    with prefixed(published.where):
        for part, arrays in published.arrays.items():
            state = published_state(arrays, NETWORKS[kind][part])
            for network in filter(None, (network_of(agent, part, target) for target in (False, True))):
                try:
                    missing, surplus = network.load_state_dict(state, strict=False)
                except RuntimeError as error:
                    raise ConfigError(f"{part}: {error}") from None
                if surplus or not all(key.endswith("_epsilon") for key in missing):  # noise stays as drawn
                    raise ConfigError(f"{part}: the agent's network has other layers than the published")
    return agent


def _check_fit(interface: Interface, kind: str) -> None:
    """Raises an error unless the env shows what MarineNav shows and takes the agent's kind of actions."""
    spec = interface.observation
    shapes = {"self": (SELF_SIZE,), "objects": (NUM_OBJECTS, OBJECT_SIZE), "mask": (NUM_OBJECTS,)}
    sees = {str(key): tuple(leaf.shape) for key, leaf in spec.items()} if isinstance(spec, Composite) else {}
    if sees != shapes:
        raise ConfigError(f"the published MarineNav agents need the observation {shapes}, the env has {sees or spec}")
    needed, option, fits = f"{CHOICES} discrete", "false", interface.choices == (CHOICES,)
    if kind in CONTINUOUS:
        needed, option = f"{ACTION_SIZE} continuous", "true"
        fits = interface.continuous and tuple(interface.action.shape) == (ACTION_SIZE,)
    if not fits:
        offered = f"the env has {interface.describe_action()}; set env.continuous_actions={option}"
        raise ConfigError(f"the published {kind} needs {needed} actions, {offered}")
