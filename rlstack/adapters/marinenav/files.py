"""Files of the published MarineNav agents: their weights by layer, in directories, arrays and TorchScript exports."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlstack.config import ConfigError
from rlstack.config.errors import missing_option
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
        agent_type: a key of :data:`~rlstack.adapters.marinenav.files.NETWORKS`; None for an actor alone that may be
            AC-IQN's or DDPG's, which do not differ.
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
