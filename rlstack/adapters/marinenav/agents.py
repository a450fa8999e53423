"""Published MarineNav agents: their files, as policies and as native agents; native agents as files; their learners."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
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
from rlstack.config.errors import missing_option, prefixed
from rlstack.data.replay import make_replay
from rlstack.data.samplers import SumTreeSampler, importance_weights
from rlstack.envs.foundation.files import replacing
from rlstack.files.safe_load import is_torchscript, load_arrays, load_tensors, reason

# -- weights -----------------------------------------------------------------------------------------------------------


Arrays = Mapping[str, np.ndarray]
Names = Mapping[str, str]

_ENCODER = {"self_encoder.0": "encoder.self_encoder.0", "object_encoder.0": "encoder.object_encoder.0"}
_TRUNK = {"hidden_layer": "trunk.0", "hidden_layer_2": "trunk.2"}
_OUTPUT = {"output_layer": "output"}
_ACTION = {"action_encoder.0": "action_encoder.0"}
_COSINES = {"cos_embedding": "embedding.linear"}

ACTOR_NAMES = _ENCODER | _TRUNK | _OUTPUT
"""Layers of the AC-IQN and DDPG actor: published name to ours in :class:`~rlstack.networks.actors.DeterministicActor`;
of DQN's network in :class:`~rlstack.networks.values.StateNetwork`."""
CRITIC_NAMES = _ENCODER | _COSINES | _ACTION | {"hidden_layer": "hidden", "hidden_layer_2": "hidden_2"} | _OUTPUT
"""Layers of the AC-IQN critic: published name to the one in :class:`~rlstack.networks.quantile.QuantileCritic`."""
VALUE_NAMES = _ENCODER | _ACTION | _TRUNK | _OUTPUT
"""Layers of the DDPG and SAC critics, in :class:`~rlstack.networks.values.ActionValue`."""
GAUSSIAN_NAMES = _ENCODER | _TRUNK | {"output_layer_mu": "mean", "output_layer_log_std": "log_std"}
"""Layers of the SAC actor, in :class:`~rlstack.networks.actors.GaussianActor`."""
QUANTILE_NAMES = _ENCODER | _COSINES | _TRUNK | _OUTPUT
"""Layers of IQN, in :class:`~rlstack.networks.quantile.QuantileNetwork`."""
NOISY_NAMES = {
    "hidden_layer_v": "value.0.0",
    "hidden_layer_a": "advantage.0.0",
    "hidden_layer_v_2": "value.0.2",
    "hidden_layer_a_2": "advantage.0.2",
    "output_layer_v": "value.1",
    "output_layer_a": "advantage.1",
}
RAINBOW_NAMES = _ENCODER | NOISY_NAMES
"""Layers of Rainbow, in :class:`~rlstack.networks.values.DuelingNetwork`; all but the encoders are noisy."""

NETWORKS: dict[str, dict[str, Names]] = {
    "AC-IQN": {"actor": ACTOR_NAMES, "critic": CRITIC_NAMES},
    "IQN": {"network": QUANTILE_NAMES},
    "DDPG": {"actor": ACTOR_NAMES, "critic": VALUE_NAMES},
    "DQN": {"network": ACTOR_NAMES},
    "SAC": {"actor": GAUSSIAN_NAMES, "critic_1": VALUE_NAMES, "critic_2": VALUE_NAMES},
    "Rainbow": {"network": RAINBOW_NAMES},
}
"""The agent types, and the layers of their networks."""

SELF_SIZE, OBJECT_SIZE, NUM_OBJECTS = 7, 5, 5
ACTION_SIZE, CHOICES = 2, 25
CONTINUOUS = ("AC-IQN", "DDPG", "SAC")


def widths(arrays: Arrays) -> dict[str, Any]:
    """Infers the options for layer widths from the shapes of weights.

    Args:
        arrays: weights of any of its networks.
    """
    noisy = "output_layer_v.bias_mu" in arrays
    layers = ("hidden_layer_v", "hidden_layer_v_2") if noisy else ("hidden_layer", "hidden_layer_2")
    options: dict[str, Any] = {
        "self_features": len(arrays["self_encoder.0.bias"]),
        "object_features": [len(arrays["object_encoder.0.bias"])],
        "hidden": [len(arrays[f"{layer}.{'bias_mu' if noisy else 'bias'}"]) for layer in layers],
    }
    return options | ({"num_atoms": len(arrays["output_layer_v.bias_mu"])} if noisy else {})


def published_state(arrays: Mapping[str, Any], names: Names) -> dict[str, Tensor]:
    """Arrays under published names as a ``state_dict``.

    Args:
        arrays: ``<layer>.weight [out, in]`` and ``<layer>.bias [out]``; of noisy layers ``weight_mu``,
            ``weight_sigma``, ``bias_mu``, ``bias_sigma`` and, if they are there, ``weight_epsilon``, ``bias_epsilon``.
        names: the table of that network, such as :data:`ACTOR_NAMES`.

    Raises:
        ConfigError: these are not the weights of that network.
    """
    noisy = [layer for layer in names if layer in NOISY_NAMES]
    expected = {f"{layer}.{kind}" for layer in noisy for kind in ("weight_mu", "weight_sigma", "bias_mu", "bias_sigma")}
    expected |= {f"{layer}.{kind}" for layer in names if layer not in noisy for kind in ("weight", "bias")}
    optional = {f"{layer}.{kind}" for layer in noisy for kind in ("weight_epsilon", "bias_epsilon")}
    missing, unknown = sorted(expected - set(arrays)), sorted(set(arrays) - expected - optional)
    if missing or unknown:
        faults = [f"{word} {', '.join(keys)}" for word, keys in (("lacks", missing), ("has also", unknown)) if keys]
        raise ConfigError(f"not the weights of this network: {'; '.join(faults)}")
    state = {}
    for name, values in arrays.items():
        layer, _, kind = name.rpartition(".")
        values = np.asarray(values)
        if values.dtype.kind != "f" or values.ndim != (2 if kind.startswith("weight") else 1):
            raise ConfigError(f"not the weights of this network: {name} is {values.dtype} of shape {values.shape}")
        if not np.isfinite(values).all():
            raise ConfigError(f"broken weights: {name} has numbers that are not finite")
        state[f"{names[layer]}.{kind}"] = torch.tensor(values)
    return state


def published_arrays(state: Mapping[str, Tensor], names: Names) -> dict[str, Tensor]:
    """The inverse of :func:`published_state`: a ``state_dict`` under the published names, on the CPU."""
    published = {ours: theirs for theirs, ours in names.items()}
    split = {key: key.rpartition(".") for key in state}
    return {f"{published[split[key][0]]}.{split[key][2]}": value.detach().cpu().clone() for key, value in state.items()}


# -- files -------------------------------------------------------------------------------------------------------------


Source = str | Path | Mapping[str, Any]

FILES = {
    "actor": ("actor_network_params.pth", "actor_constructor_params.json"),
    "critic": ("critic_network_params.pth", "critic_constructor_params.json"),
    "critic_1": ("critic_1_params.pth", "critic_1_constructor_params.json"),
    "critic_2": ("critic_2_params.pth", "critic_2_constructor_params.json"),
    "network": ("network_params.pth", "constructor_params.json"),
}
"""Weights and constructor arguments of each network in a published directory."""


@dataclass(frozen=True)
class Published:
    """A published agent as read.

    Attributes:
        agent_type: a key of :data:`NETWORKS`; None for an actor alone that may be AC-IQN's or DDPG's, which do not
            differ.
        arrays: weights under published names, by network (``actor``, ``critic``, ``network``, ...).
        where: the source, for messages.
    """

    agent_type: str | None
    arrays: Mapping[str, Arrays]
    where: str

    @property
    def missing(self) -> list[str]:
        """Networks of the agent that were not published with it."""
        return [part for part in NETWORKS.get(self.agent_type or "", ()) if part not in self.arrays]


def load_published(source: Source, agent_type: str | None = None) -> Published:
    """Reads a published agent; nothing in its files is ever run as Python.

    Args:
        source: a directory with the files of :data:`FILES`, one of its ``.pth`` files (what chooses the actions), a
            ``<AGENT>_params.npz``, a TorchScript export, or arrays by published name.
        agent_type: AC-IQN, IQN, DDPG, DQN, SAC or Rainbow, in capitals or not, with ``-`` or ``_``; None finds it out.

    Raises:
        ConfigError: no such file, not such files, or an agent type that they do not allow or do not settle.

    Example:
        >>> load_published("training/seed_9").agent_type
        'AC-IQN'
    """
    if agent_type is not None:
        known = {_folded(kind): kind for kind in NETWORKS}
        if _folded(agent_type) not in known:
            raise ConfigError(missing_option("agent_type", agent_type, list(NETWORKS)))
        agent_type = known[_folded(agent_type)]
    if not isinstance(source, str | Path):
        arrays, where, named = source, "published weights", None
    elif Path(source).is_dir():
        return _directory(Path(source), agent_type)
    else:
        arrays, where, name = read_arrays(source), str(source), _folded(Path(source).name)
        named = next((kind for kind in NETWORKS if name.startswith(_folded(kind))), None)
    types = _types(arrays, None, agent_type or named, where)
    if agent_type is not None and agent_type not in types:
        raise ConfigError(f"{where}: holds an agent of type {' or '.join(types)}, not {agent_type}")
    kind = types[0] if len(types) == 1 else agent_type or (named if named in types else None)
    return Published(kind, {next(iter(NETWORKS[kind or types[0]])): arrays}, where)


def _folded(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The tensors of a ``.npz``, a ``.pth`` or a TorchScript file by name.

    No pickle runs, and of a program in TorchScript at most the ``__setstate__`` of its modules.

    Raises:
        ConfigError: no such file, or another content.
    """
    try:
        if Path(path).suffix in (".npz", ".npy"):
            return load_arrays(path)
        if is_torchscript(path):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                content = torch.jit.load(str(path), map_location="cpu").state_dict()
        else:
            content = load_tensors(path)
        if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
            raise ValueError("not a file of named tensors")
        arrays = {str(key): value.detach().numpy() for key, value in content.items()}
    except (OSError, ValueError, TypeError, RuntimeError) as error:  # the latter two of tensors that fit no array
        raise ConfigError(f"{path}: {reason(error)}") from None
    # The networks of an export may be part of another module.
    first = "self_encoder.0.weight"
    prefix = next((name.removesuffix(first) for name in arrays if name.endswith(first)), "")
    return {name.removeprefix(prefix): value for name, value in arrays.items()}


def _types(arrays: Arrays, part: str | None, closest: str | None, where: str) -> list[str]:
    """Returns the agent types of which these can be the weights of ``part``, by default of the one that acts.

    Raises:
        ConfigError: of none; it says what is wrong compared with ``closest``, or with the type of the likest layers.
    """
    tables = {kind: part or next(iter(parts)) for kind, parts in NETWORKS.items() if part is None or part in parts}
    faults: dict[str, str] = {}
    for kind, name in tables.items():
        expected = 1 if name.startswith("critic") else ACTION_SIZE if kind in CONTINUOUS else CHOICES
        try:
            outputs = published_state(arrays, NETWORKS[kind][name]).get("output.bias")
        except ConfigError as error:
            faults[kind] = str(error)
        else:
            if outputs is not None and len(outputs) != expected:
                faults[kind] = f"it has {len(outputs)} outputs, not {expected}"
    if fitting := [kind for kind in tables if kind not in faults]:
        return fitting
    layers = {name.rpartition(".")[0] for name in arrays}
    nearest = min(tables, key=lambda kind: len(layers ^ set(NETWORKS[kind][tables[kind]])))
    kind = closest if closest in tables else nearest
    known = ", ".join(tables)
    raise ConfigError(f"{where}: {tables[kind]}: {faults[kind]} (compared with {kind}'s; known: {known})")


def _directory(path: Path, wanted: str | None) -> Published:
    present = [part for part, (file, _) in FILES.items() if (path / file).is_file()]
    needed = "; ".join(f"{_listed(parts)} ({kind})" for kind, parts in NETWORKS.items())
    if not present:
        raise ConfigError(f"{path}: holds no published agent, needed is one of: {needed}")
    kinds = [kind for kind, parts in NETWORKS.items() if parts.keys() <= set(present) and wanted in (None, kind)]
    parts = [part for part in present if any(part in NETWORKS[kind] for kind in kinds)]
    if not kinds or (wanted is None and parts != present):
        alone = f"an actor alone is given as {path / FILES['actor'][0]}"
        who = "one agent" if wanted is None else wanted
        raise ConfigError(f"{path}: {_listed(present)} are not {who}, needed is one of: {needed}; {alone}")
    arrays = {part: read_arrays(path / FILES[part][0]) for part in parts}
    fitting = {part: _types(arrays[part], part, wanted, str(path / FILES[part][0])) for part in parts}
    matching = [kind for kind in kinds if all(kind in fitting[part] for part in NETWORKS[kind])]
    if len(matching) > 1:
        raise ConfigError(f"{path}: holds networks of several agents; set agent_type: {', '.join(matching)}")
    if not matching:
        raise ConfigError(f"{path}: {_listed(parts)} are of different agents")
    return Published(matching[0], {part: arrays[part] for part in NETWORKS[matching[0]]}, str(path))


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(FILES[part][0] for part in parts)


def write_directory(directory: str | Path, networks: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Writes the published files of these networks; an existing directory is kept, its files replaced whole."""
    files = [Path(directory) / name for part in networks for name in FILES[part]]
    with replacing(*files) as partial:
        for state, weights, constructor in zip(networks.values(), partial[::2], partial[1::2]):
            sizes = widths({name: value.numpy() for name, value in state.items()})
            own, objects = sizes["self_features"], sizes["object_features"][0]
            arguments = {
                "self_dimension": SELF_SIZE,
                "object_dimension": OBJECT_SIZE,
                "max_object_num": NUM_OBJECTS,
                "self_feature_dimension": own,
                "object_feature_dimension": objects,
                "concat_feature_dimension": own + NUM_OBJECTS * objects,
                "hidden_dimension": sizes["hidden"][0],
            }
            with weights.open("wb") as file:  # not by its name, which torch writes into the file
                torch.save(dict(state), file)
            constructor.write_text(json.dumps(arguments, indent=2) + "\n")


# -- published learners ------------------------------------------------------------------------------------------------


_WHOLE_REDRAWS, _REDRAWS = 100, 1000


class _PlainSampler(SumTreeSampler):
    """Draws in proportion to the priorities as they are given."""

    def _stored(self, priority: Tensor) -> Tensor:
        return priority


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
        self._priorities = _PlainSampler(capacity, device=self.device)
        self._tree = self._priorities.tree
        self._starts = torch.ones(1, dtype=torch.bool, device=self.device)  # the next record starts an episode
        self._ahead = torch.arange(n_step + 1, device=self.device)
        self._discounts = gamma ** torch.arange(n_step, dtype=torch.float64, device=self.device)

    def __len__(self) -> int:
        return len(self._records)

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
        start = self._records.writer.cursor
        self._records.extend(records)
        self._priorities.renew(start, min(count, self.capacity))

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
        self._priorities.update_priority(index, loss.to(self._tree.dtype) ** self.alpha)

    def state_dict(self) -> dict[str, Any]:
        """Returns records, priorities and whether an episode starts, as views: save or copy before the next extend."""
        return {
            "records": self._records.state_dict(),
            **self._priorities.state_dict(),
            "starts": self._starts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict` of a buffer of the same capacity.

        Raises:
            ConfigError: the state is that of another capacity.
        """
        self._records.load_state_dict(state["records"])
        self._priorities.load_state_dict(state)
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
        source: see :func:`load_published`.
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
        source: see :func:`load_published`.
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
