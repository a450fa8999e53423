"""Recorded decisions to imitate: gathered with a policy, or read from a file of plain arrays.

A file is an ``.npz`` without pickles: ``observation [N, ...]``, or ``observation/<leaf>`` of a structured one,
``action [N, ...]`` as the world takes it, and ``action_mask [N, n]`` where the world has one. Recorded episodes from
elsewhere, such as MarineNav's ``evaluations.npz``, are read, too.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import Composite
from torchrl.envs import EnvBase

from envs.bounded_files import check_archive
from envs.whole_files import replacing
from envs.working import working
from rlstack.agents.fit import check_bounds
from rlstack.agents.foreign import recording_reader
from rlstack.agents.interface import MASK, Interface
from rlstack.config import ConfigError
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.files.safe_load import load_arrays

_KEYS = ("observation", "action", MASK)
Arrays = dict[str, NDArray[Any]]


def decisions(sequences: TensorDictBase) -> TensorDict:
    """What is needed of sequences ``[B, T]`` (see ``collection.flatten``) to imitate them.

    Returns the active entries as a flat batch ``[N]`` with ``observation``, ``action`` and, where there is one,
    ``action_mask``. All entries count where there is no ``active``; a batch may be flat already.
    """
    kept = sequences.select(*_KEYS, strict=False)
    active = sequences.get("active", None)
    return kept.reshape(-1) if active is None else kept[active]


def in_order(sequences: TensorDictBase) -> TensorDict:
    """What is needed of sequences ``[B, T]`` to imitate them by an agent with a memory: also where episodes end."""
    kept = sequences.select(*_KEYS, "active", ("next", "done"), strict=False)
    if "active" not in kept.keys():  # noqa: SIM118
        kept.set("active", torch.ones(kept.batch_size, dtype=torch.bool, device=kept.device))
    return kept


def gather(
    env: EnvBase,
    expert: TensorDictModuleBase,
    interface: Interface,
    frames: int,
    steps_per_batch: int = 16,
    observe: Callable[[TensorDictBase], None] | None = None,
    ordered: bool = False,
) -> TensorDict:
    """Lets a policy act until ``frames`` decisions of active agents have been made; ``[frames]`` of them.

    Args:
        observe: is shown every collected batch of sequences ``[B, T]``.
        ordered: returns them as :func:`in_order` does, ``[B, T]``.
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
                if observe is not None:
                    observe(sequences)
                gathered.append(in_order(sequences) if ordered else decisions(sequences))
                count += int(sequences.get("active").sum())
                if count >= frames:
                    break
        finally:
            hook.remove()
            collector.shutdown(close_env=False)
    return torch.cat(gathered, 1) if ordered else torch.cat(gathered)[:frames]


# -- files -------------------------------------------------------------------------------------------------------


def save_demonstrations(path: str | Path, sequences: TensorDictBase | Sequence[TensorDictBase]) -> None:
    """Writes the decisions of sequences ``[B, T]``, one batch or several, to a file (see the module's docstring).

    Example:
        >>> batches = [rlstack.flatten_agents(batch) for batch in collector]
        >>> save_demonstrations("demonstrations.npz", batches)
    """
    batches = [sequences] if isinstance(sequences, TensorDictBase) else list(sequences)
    data: Any = torch.cat([decisions(batch).detach().cpu() for batch in batches])
    arrays: Any = {
        key if isinstance(key, str) else "/".join(key): value.numpy()
        for key, value in data.items(include_nested=True, leaves_only=True)
    }
    with replacing(path) as (partial,), partial.open("wb") as file:
        np.savez_compressed(file, **arrays)


def read_demonstrations(path: str | Path, interface: Interface, device: torch.device | str = "cpu") -> TensorDict:
    """The decisions of a file, checked against the world they are to be imitated in.

    Returns a flat batch ``[N]`` as :func:`decisions` does.

    Raises:
        ConfigError: no such file, not such a file, or observations or actions of another world.
    """
    try:
        check_archive(path)
        with zipfile.ZipFile(path) as archive:
            members = set(archive.namelist())
        arrays = (recording_reader(members) or load_arrays)(path)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} cannot be read as recorded episodes ({error})") from None
    try:
        return _fitted(arrays, interface).to(device)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _fitted(arrays: Arrays, interface: Interface) -> TensorDict:
    if isinstance(interface.action, Composite):
        raise ConfigError(f"it holds one array of actions, the world has {interface.describe_action()}")
    specs: dict[Any, Any] = {"observation": interface.observation, "action": interface.action}
    if isinstance(interface.observation, Composite):
        leaves = interface.observation.items(include_nested=True, leaves_only=True)
        specs = {("observation", *_path(key)): leaf for key, leaf in leaves} | {"action": interface.action}
    data: dict[Any, Tensor] = {key: _leaf(arrays, key, spec.shape, spec.dtype) for key, spec in specs.items()}
    if interface.masked:
        data[MASK] = _leaf(arrays, MASK, (sum(interface.choices or ()),), torch.bool)
    lengths = {len(value) for value in data.values()}
    if len(lengths) > 1:
        raise ConfigError(f"arrays of different lengths: {', '.join(map(str, sorted(lengths)))}")
    _check_actions(data["action"], interface)
    count = lengths.pop()
    batch = TensorDict({}, [count])
    for key, value in data.items():
        batch.set(key, value)
    return batch.auto_batch_size_(1)


def _leaf(arrays: Arrays, key: Any, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    name = "/".join(_path(key))
    if name not in arrays:
        raise ConfigError(f"{name} is missing, it holds {', '.join(sorted(arrays)) or 'nothing'}")
    array = arrays[name]
    if key == "action" and dtype.is_floating_point != (array.dtype.kind == "f"):
        raise ConfigError(f"action is {array.dtype}, the world takes {dtype}")
    if array.shape[1:] != tuple(shape) or array.ndim == 0 or array.dtype.kind not in "biuf":
        wanted = ", ".join(map(str, ("N", *shape)))
        raise ConfigError(f"{name} is {array.dtype} {list(array.shape)}, the world has [{wanted}]")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigError(f"{name} is not finite everywhere")
    return torch.from_numpy(np.ascontiguousarray(array)).to(dtype)


def _check_actions(action: Tensor, interface: Interface) -> None:
    if not len(action):
        raise ConfigError("there is nothing in it")
    if interface.choices is None:
        check_bounds(action, interface.action, "action")
    else:
        parts = action.reshape(len(action), -1)
        if bool(((parts < 0) | (parts >= parts.new_tensor(interface.choices))).any()):
            raise ConfigError(f"actions up to {int(parts.max())}, the world has {interface.describe_action()}")


def _path(key: Any) -> tuple[str, ...]:
    return key if isinstance(key, tuple) else (key,)
