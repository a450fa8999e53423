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
    Names,
    agent_type_named,
    possible_types,
    published_state,
    type_in_name,
    widths,
)
from rlstack.config import ConfigError
from rlstack.config.errors import prefixed
from rlstack.envs.whole_files import replacing
from rlstack.files.safe_load import is_torchscript, load_arrays, load_tensors, read_json_object, reason

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
        arrays = _network_of(export)
        return _checked(Published(_settled(export.agent_types, wanted, named, str(path)), arrays, str(path), export))
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


def _single(arrays: Arrays, wanted: str | None, named: str | None, where: str) -> Published:
    """The network that chooses the actions, alone."""
    types = possible_types(arrays)
    if not types:
        _explain(arrays, wanted or named, where)
    kind = _settled(types, wanted, named, where)
    return _checked(Published(kind, {_acting(kind or types[0]): arrays}, where))


def _acting(kind: str) -> str:
    """The network of an agent that chooses its actions."""
    return next(iter(NETWORKS[kind]))


def _checked(published: Published) -> Published:
    """The same, unless its arrays are none that a network can have."""
    for part, arrays in published.arrays.items():
        with prefixed(f"{published.where}: {part}"):
            published_state(arrays, NETWORKS[published.agent_type or "AC-IQN"][part])
    return published


def _settled(types: list[str], wanted: str | None, named: str | None, where: str) -> str | None:
    """The agent type, from what the weights allow, the caller says, and the file's name says."""
    if wanted is not None and wanted not in types:
        raise ConfigError(f"{where}: holds an agent of type {' or '.join(types)}, not {wanted}")
    if len(types) == 1:
        return types[0]
    return wanted or (named if named in types else None)


def _explain(arrays: Arrays, kind: str | None, where: str) -> None:
    """Raises the error that says what is wrong with weights that no agent has."""
    tables = {kind: NETWORKS[kind][_acting(kind)] for kind in NETWORKS}
    closest = kind or min(tables, key=lambda known: _distance(arrays, tables[known]))
    try:
        published_state(arrays, tables[closest])
    except ConfigError as error:
        raise ConfigError(f"{where}: {error} (compared with {closest}'s; known: {', '.join(tables)})") from None
    outputs = len(arrays["output_layer.bias"])
    raise ConfigError(f"{where}: {outputs} outputs, the actors have 2 and the discrete agents 25")


def _distance(arrays: Arrays, names: Names) -> int:
    """The number of layers that only one of the two has."""
    return len({name.rpartition(".")[0] for name in arrays} ^ set(names))


def _network_of(export: Export) -> dict[str, Arrays]:
    """The export's weights by network, if they have the published names (under any common prefix)."""
    state = {name: value.detach().cpu().numpy() for name, value in export.module.state_dict().items()}
    prefix = next((name.removesuffix("self_encoder.0.weight") for name in state if "self_encoder.0.weight" in name), "")
    arrays = {name.removeprefix(prefix): value for name, value in state.items()}
    fitting = [kind for kind in possible_types(arrays) if kind in export.agent_types]
    return {_acting(fitting[0]): arrays} if fitting else {}


# -- a directory -------------------------------------------------------------------------------------------------


def _directory(path: Path, wanted: str | None) -> Published:
    parts = _parts(path, wanted)
    arrays = {part: read_arrays(path / FILES[part][0]) for part in parts}
    for part in parts:
        if not possible_types(arrays[part], part):
            _explain_part(arrays[part], part, wanted, path / FILES[part][0])
    kinds = [kind for kind, networks in NETWORKS.items() if list(networks) == parts]
    kinds = [kind for kind in kinds if all(kind in possible_types(arrays[part], part) for part in parts)]
    if not kinds:
        raise ConfigError(f"{path}: {_listed(parts)} are of different agents")
    published = _checked(Published(_settled(kinds, wanted, None, str(path)), arrays, str(path)))
    for part in parts:
        _check_constructor(path / FILES[part][1], arrays[part])
    return published


def _parts(path: Path, wanted: str | None) -> list[str]:
    """The networks to read, all of one kind of agent."""
    present = [part for part, (file, _) in FILES.items() if (path / file).is_file()]
    sets: dict[tuple[str, ...], list[str]] = {}
    for kind, networks in NETWORKS.items():
        sets.setdefault(tuple(networks), []).append(kind)
    needed = "; ".join(f"{_listed(parts)} ({', '.join(kinds)})" for parts, kinds in sets.items())
    alone = f"an actor alone is given as {path / FILES['actor'][0]}" if "actor" in present else "or give a single file"
    complete = [parts for parts in sets if set(parts) <= set(present)]
    if not present:
        raise ConfigError(f"{path}: holds no published agent, needed is one of: {needed}")
    if wanted is not None:
        lacking = [part for part in NETWORKS[wanted] if part not in present]
        if lacking:
            raise ConfigError(f"{path}: lacks {_listed(lacking)} of {wanted}; {alone}")
        return list(NETWORKS[wanted])
    if len(complete) > 1:
        raise ConfigError(f"{path}: holds networks of several agents; set agent_type; needed is one of: {needed}")
    if not complete or set(present) - set(complete[0]):
        raise ConfigError(f"{path}: {_listed(present)} are not one agent, needed is one of: {needed}; {alone}")
    return list(complete[0])


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(FILES[part][0] for part in parts)


def _explain_part(arrays: Arrays, part: str, wanted: str | None, file: Path) -> None:
    if part in ("actor", "network"):
        _explain(arrays, wanted, str(file))
    tables = [networks[part] for networks in NETWORKS.values() if part in networks]
    published_state(arrays, min(tables, key=lambda names: _distance(arrays, names)))
    raise ConfigError(f"{file}: a critic has one output")


# -- constructor arguments ---------------------------------------------------------------------------------------


def constructor_arguments(arrays: Arrays) -> dict[str, Any]:
    """The numbers that describe a network beside its weights, which tell them as well."""
    found = widths(arrays)
    own, objects = found["self_features"], found["object_features"][0]
    return {
        "self_dimension": SELF_SIZE,
        "object_dimension": OBJECT_SIZE,
        "max_object_num": NUM_OBJECTS,
        "self_feature_dimension": own,
        "object_feature_dimension": objects,
        "concat_feature_dimension": own + NUM_OBJECTS * objects,
        "hidden_dimension": found["hidden"][0],
    }


def _check_constructor(file: Path, arrays: Arrays) -> None:
    """Raises unless the file is absent, or a JSON object that does not contradict the weights."""
    if not file.is_file():
        return
    given = read_json_object(file)
    for key, value in constructor_arguments(arrays).items():
        if given.get(key, value) != value:
            raise ConfigError(f"{file}: {key} is {given[key]}, the weights have {value}")


def write_directory(directory: str | Path, networks: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Writes the published files of these networks; an existing directory is kept, its files replaced whole."""
    files = [Path(directory) / name for part in networks for name in FILES[part]]
    with replacing(*files) as partial:
        for state, weights, constructor in zip(networks.values(), partial[::2], partial[1::2]):
            arguments = constructor_arguments({name: value.numpy() for name, value in state.items()})
            with weights.open("wb") as file:  # not by its name, which torch writes into the file
                torch.save(dict(state), file)
            constructor.write_text(json.dumps(arguments, indent=2) + "\n")
