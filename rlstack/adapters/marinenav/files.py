"""The files of published MarineNav agents: ``.pth`` with constructor JSON, ``.npz`` arrays, TorchScript exports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlstack.adapters.marinenav.exports import Export, load_export
from rlstack.adapters.marinenav.weights import (
    NETWORKS,
    NUM_OBJECTS,
    OBJECT_SIZE,
    SELF_SIZE,
    Arrays,
    agent_type_named,
    published_state,
    type_in_name,
    widths,
)
from rlstack.config import ConfigError
from rlstack.envs.foundation.files import replacing
from rlstack.files.safe_load import is_torchscript, load_arrays, load_tensors, reason

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
        agent_type: a key of :data:`~rlstack.adapters.marinenav.weights.NETWORKS`; None for an actor alone that may be
            AC-IQN's or DDPG's, which do not differ.
        arrays: weights under published names, by network (``actor``, ``critic``, ``network``, ...); empty for an
            export whose weights do not say what they are.
        where: the source, for messages.
        export: a TorchScript program that acts.
    """

    agent_type: str | None
    arrays: Mapping[str, Arrays]
    where: str
    export: Export | None = None

    @property
    def missing(self) -> list[str]:
        """Networks of the agent that were not published with it."""
        return [part for part in NETWORKS.get(self.agent_type or "", ()) if part not in self.arrays]


def load_published(
    source: Source, agent_type: str | None = None, device: torch.device | str | None = None
) -> Published:
    """Reads a published agent; nothing in its files is ever run as Python.

    Args:
        source: a directory with the files of :data:`FILES`, one of its ``.pth`` files (what chooses the actions), a
            ``<AGENT>_params.npz``, a TorchScript export, or arrays by published name.
        agent_type: AC-IQN, IQN, DDPG, DQN, SAC or Rainbow; None finds it out.
        device: of an export's program; weights stay on the CPU.

    Raises:
        ConfigError: no such file, not such files, or an agent type that they do not allow or do not settle.

    Example:
        >>> load_published("training/seed_9").agent_type
        'AC-IQN'
    """
    wanted = None if agent_type is None else agent_type_named(agent_type)
    if not isinstance(source, str | Path):
        return _single(source, wanted, None, "published weights")
    path = Path(source)
    if path.is_dir():
        return _directory(path, wanted)
    if not path.is_file():
        raise ConfigError(f"{path}: No such file or directory")
    named = type_in_name(path.name)
    if is_torchscript(path):
        export = load_export(path, device or "cpu")
        kind = _settled(export.agent_types, wanted, named, str(path))
        return Published(kind, _network_of(export), str(path), export)
    return _single(read_arrays(path), wanted, named, str(path))


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The tensors of a ``.npz`` or a ``.pth`` file by name, opened without pickle (``weights_only`` for the latter).

    Raises:
        ConfigError: no such file, or another content.
    """
    try:
        if Path(path).suffix in (".npz", ".npy"):
            return load_arrays(path)
        content = load_tensors(path)
        if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
            raise ValueError("not a file of named tensors")
        return {str(key): value.detach().numpy() for key, value in content.items()}
    except (OSError, ValueError, TypeError, RuntimeError) as error:  # the latter two of tensors that fit no array
        raise ConfigError(f"{path}: {reason(error)}") from None


# -- one network -------------------------------------------------------------------------------------------------

_OUTPUTS = {"AC-IQN": 2, "DDPG": 2, "IQN": 25, "DQN": 25}
"""Outputs of the network that acts, for types with a plain output layer; a critic has one."""


def _acting(kind: str) -> str:
    """Returns the network of an agent that chooses its actions."""
    return next(iter(NETWORKS[kind]))


def _types(arrays: Arrays, part: str | None, closest: str | None, where: str) -> list[str]:
    """Returns the agent types of which these can be the weights of ``part``, by default of the one that acts.

    Raises:
        ConfigError: of none; it says what is wrong compared with ``closest``, or with the type of the likest layers.
    """
    tables = {kind: part or _acting(kind) for kind, parts in NETWORKS.items() if part is None or part in parts}
    faults: dict[str, str] = {}
    for kind, name in tables.items():
        try:
            outputs = published_state(arrays, NETWORKS[kind][name]).get("output.bias")
        except ConfigError as error:
            faults[kind] = str(error)
            continue
        expected = 1 if name.startswith("critic") else _OUTPUTS.get(kind)
        if outputs is not None and expected is not None and len(outputs) != expected:
            faults[kind] = f"it has {len(outputs)} outputs, not {expected}"
    if len(faults) < len(tables):
        return [kind for kind in tables if kind not in faults]
    layers = {name.rpartition(".")[0] for name in arrays}
    nearest = min(tables, key=lambda kind: len(layers ^ set(NETWORKS[kind][tables[kind]])))
    kind = closest if closest in tables else nearest
    known = ", ".join(tables)
    raise ConfigError(f"{where}: {tables[kind]}: {faults[kind]} (compared with {kind}'s; known: {known})")


def _single(arrays: Arrays, wanted: str | None, named: str | None, where: str) -> Published:
    """Returns the network that chooses the actions, alone."""
    types = _types(arrays, None, wanted or named, where)
    kind = _settled(types, wanted, named, where)
    return Published(kind, {_acting(kind or types[0]): arrays}, where)


def _settled(types: list[str], wanted: str | None, named: str | None, where: str) -> str | None:
    """Returns the agent type, from what the weights allow, the caller says, and the file's name says."""
    if wanted is not None and wanted not in types:
        raise ConfigError(f"{where}: holds an agent of type {' or '.join(types)}, not {wanted}")
    if len(types) == 1:
        return types[0]
    return wanted or (named if named in types else None)


def _network_of(export: Export) -> dict[str, Arrays]:
    """Returns the export's weights by network, if they have the published names (under any common prefix)."""
    state = {name: value.detach().cpu().numpy() for name, value in export.module.state_dict().items()}
    prefix = next((name.removesuffix("self_encoder.0.weight") for name in state if "self_encoder.0.weight" in name), "")
    arrays = {name.removeprefix(prefix): value for name, value in state.items()}
    try:
        fitting = [kind for kind in _types(arrays, None, None, "") if kind in export.agent_types]
    except ConfigError:
        return {}
    return {_acting(fitting[0]): arrays} if fitting else {}


# -- a directory -------------------------------------------------------------------------------------------------


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


# -- writing -----------------------------------------------------------------------------------------------------


def constructor_arguments(arrays: Arrays) -> dict[str, Any]:
    """Returns the arguments of the published constructor, which describe the widths of the weights."""
    sizes = widths(arrays)
    own, objects = sizes["self_features"], sizes["object_features"][0]
    return {
        "self_dimension": SELF_SIZE,
        "object_dimension": OBJECT_SIZE,
        "max_object_num": NUM_OBJECTS,
        "self_feature_dimension": own,
        "object_feature_dimension": objects,
        "concat_feature_dimension": own + NUM_OBJECTS * objects,
        "hidden_dimension": sizes["hidden"][0],
    }


def write_directory(directory: str | Path, networks: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Writes the published files of these networks; an existing directory is kept, its files replaced whole."""
    files = [Path(directory) / name for part in networks for name in FILES[part]]
    with replacing(*files) as partial:
        for state, weights, constructor in zip(networks.values(), partial[::2], partial[1::2]):
            arguments = constructor_arguments({name: value.numpy() for name, value in state.items()})
            with weights.open("wb") as file:  # not by its name, which torch writes into the file
                torch.save(dict(state), file)
            constructor.write_text(json.dumps(arguments, indent=2) + "\n")
