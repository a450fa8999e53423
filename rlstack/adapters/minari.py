"""Reads Minari datasets (the extra ``offline``) as recorded transitions, and writes the latter as Minari datasets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from torchrl.data import Binary, Categorical, Composite, MultiCategorical, TensorSpec

from rlstack.agents.interface import MASK, Interface
from rlstack.config import ConfigError
from rlstack.data.recordings import continuous, episode_lengths
from rlstack.envs.foundation.packages import needs
from rlstack.files.safe_load import first_line

_NAME = re.compile(r"(?:[\w-][\w/-]*[\w-]/)?[\w-]+-v\d+")
"""Names that Minari takes; it finds out about others only when it has made the folder of the dataset."""


def _minari() -> Any:
    try:
        import minari
    except ImportError:
        raise ConfigError(f"minari {needs('offline')}") from None
    return minari


def read_dataset(name: str) -> dict[str, Any]:
    """Returns the transitions of a dataset, as the arrays of :mod:`rlstack.data.recordings`.

    Args:
        name: name of a local Minari dataset (``minari list local``), or the folder of one.

    Raises:
        ConfigError: there is no such dataset, or Minari is not installed.
    """
    minari = _minari()
    try:
        folder = Path(name) / "data"
        dataset = minari.MinariDataset(folder) if folder.is_dir() else minari.load_dataset(name)
        space = dataset.action_space
        if isinstance(space, spaces.Dict | spaces.Tuple):
            raise TypeError(f"its actions are a {type(space).__name__}, and not one array")
        first = getattr(space, "start", 0)  # the number of the first choice, which worlds count from 0
        parts = [_transitions(episode, first) for episode in dataset.iterate_episodes()]
    except Exception as error:  # Minari and HDF5 raise all sorts, and tuples of observations make no array
        reason = f"{first_line(error)}; `minari list local` shows what is here"
        raise ConfigError(f"minari:{name} cannot be read ({reason})") from None
    if not parts:
        raise ConfigError(f"minari:{name} holds no episodes")
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _transitions(episode: Any, first: Any) -> dict[str, Any]:
    seen = _flat(episode.observations, "observation")
    masks = {key for key in seen if key == f"observation/{MASK}"}
    seen = {MASK if key in masks else key: value for key, value in seen.items()}
    if set(seen) == {"observation/observation", MASK}:
        seen["observation"] = seen.pop("observation/observation")
    truncated = np.asarray(episode.truncations, bool).copy()
    terminated = np.asarray(episode.terminations, bool)
    truncated[-1:] |= ~terminated[-1:]  # an episode that was cut off
    return {
        **{key: value[:-1] for key, value in seen.items()},
        **{f"next/{key}": value[1:] for key, value in seen.items()},
        "action": np.asarray(episode.actions) - first,
        "next/reward": np.asarray(episode.rewards)[:, None],
        "next/terminated": terminated[:, None],
        "next/truncated": truncated[:, None],
    }


def _flat(observations: Any, name: str) -> dict[str, Any]:
    if isinstance(observations, dict):
        parts = [_flat(value, f"{name}/{key}") for key, value in observations.items()]
        return {key: value for part in parts for key, value in part.items()}
    return {name: np.asarray(observations)}


def check_new(name: str) -> None:
    """Raises a one-line :class:`ConfigError` unless a dataset of that name can be created."""
    minari = _minari()
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"minari:{name} is not the name of a dataset; names end in a version, such as minari:marinenav/half-v0"
        )
    if name in minari.list_local_datasets():
        raise ConfigError(f"minari:{name} is there already; `minari delete {name}` removes it")


def write_dataset(name: str, data: TensorDictBase, interface: Interface, policy: str = "") -> None:
    """Creates a dataset in Minari's folder (``MINARI_DATASETS_PATH``).

    Each agent's decisions are separate episodes. Action masks are stored with the observations, in a dict under
    ``action_mask``.

    Args:
        name: name of the dataset, such as ``marinenav/half-v0``.
        data: transitions ``[N]``, one episode after the other, see
            :class:`rlstack.training.recorded.RecordedTransitions`.
        interface: interface of their world.
        policy: name of the policy that acted.

    Raises:
        ConfigError: a dataset of that name exists, Minari is not installed, or the data are not whole episodes.
    """
    check_new(name)
    from minari.data_collector import EpisodeBuffer

    if not continuous(data):
        raise ConfigError(f"minari:{name} would hold whole episodes, these are single transitions")
    following = data.get("next")
    ended = following.get("terminated") | following.get("truncated")
    episodes = []
    for number, part in enumerate(data.split(episode_lengths(ended))):
        after = part.get("next")
        seen = torch.cat([rows.select("observation", MASK, strict=False) for rows in (part, after[-1:])])
        buffer = EpisodeBuffer(
            id=number,
            observations=_seen(seen),
            actions=part.get("action").numpy(),
            rewards=after.get("reward")[:, 0].tolist(),
            terminations=after.get("terminated")[:, 0].tolist(),
            truncations=after.get("truncated")[:, 0].tolist(),
        )
        episodes.append(buffer)
    observed = _space(interface.observation)
    if interface.masked:
        flags = spaces.MultiBinary(sum(interface.choices or ()))
        inner = dict(observed.spaces) if isinstance(observed, spaces.Dict) else {"observation": observed}
        observed = spaces.Dict({**inner, MASK: flags})
    _minari().create_dataset_from_buffers(
        name,
        episodes,
        observation_space=observed,
        action_space=_space(interface.action),
        algorithm_name=policy or None,
        description=f"recorded by rlstack: {len(data):,} decisions",
    )


def _seen(part: TensorDictBase) -> Any:
    """Returns observations in Minari's form: an array, or a dict of arrays."""
    seen, mask = part.get("observation").numpy(), part.get(MASK, None)
    if mask is None:
        return seen
    return {**(seen if isinstance(seen, dict) else {"observation": seen}), MASK: mask.numpy()}


def _space(spec: TensorSpec) -> Any:
    """Returns the Gymnasium space of a spec."""
    if isinstance(spec, Composite):
        return spaces.Dict({str(key): _space(leaf) for key, leaf in spec.items()})
    if isinstance(spec, Binary):
        return spaces.MultiBinary(tuple(spec.shape))
    if isinstance(spec, MultiCategorical):
        return spaces.MultiDiscrete(spec.nvec.numpy())
    if isinstance(spec, Categorical) and not spec.shape:
        return spaces.Discrete(int(spec.n))
    dtype = torch.empty(0, dtype=spec.dtype).numpy().dtype
    if hasattr(spec.space, "low"):
        low, high = spec.space.low.numpy(), spec.space.high.numpy()
    else:
        numbers = np.iinfo(dtype) if dtype.kind != "f" else None
        low, high = (-np.inf, np.inf) if numbers is None else (numbers.min, numbers.max)
    low, high = (np.broadcast_to(np.asarray(bound, dtype), spec.shape) for bound in (low, high))
    return spaces.Box(low, high, tuple(spec.shape), dtype.type)
