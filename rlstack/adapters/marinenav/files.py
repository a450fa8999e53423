"""Files of the published MarineNav agents: their weights by layer, network files, and TorchScript exports."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.agents.base import Policy
from rlstack.agents.interface import Interface
from rlstack.config import ConfigError
from rlstack.config.errors import missing_option
from rlstack.envs.foundation.files import replacing
from rlstack.files.safe_load import forward_arguments, is_torchscript, load_arrays, load_tensors, reason

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

_PLAIN_KINDS = ("weight", "bias")
_NOISY_KINDS = ("weight_mu", "weight_sigma", "bias_mu", "bias_sigma")
_DRAWS = ("weight_epsilon", "bias_epsilon")


def agent_type_named(name: str) -> str:
    """Returns the agent type of this name; ``-`` or ``_``, capitals or not.

    Raises:
        ConfigError: there is none; it lists those there are.
    """
    known = {_folded(kind): kind for kind in NETWORKS}
    if _folded(name) not in known:
        raise ConfigError(missing_option("agent_type", name, list(NETWORKS)))
    return known[_folded(name)]


def _folded(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def type_in_name(name: str) -> str | None:
    """The agent type a file's name starts with (``AC_IQN_params.npz``), None if it starts with none."""
    return next((kind for kind in NETWORKS if _folded(name).startswith(_folded(kind))), None)


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
    expected, optional = _keys(names)
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


def _keys(names: Names) -> tuple[set[str], set[str]]:
    """Returns the names of required and of optional arrays."""
    expected = {
        f"{layer}.{kind}" for layer in names for kind in (_NOISY_KINDS if layer in NOISY_NAMES else _PLAIN_KINDS)
    }
    return expected, {f"{layer}.{kind}" for layer in names if layer in NOISY_NAMES for kind in _DRAWS}


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


# -- exports -----------------------------------------------------------------------------------------------------------
# A TorchScript export cannot run Python, but may compute anything: run what you got from people you trust.


LEVELS = 32
"""Number of quantile levels that an IQN export takes for one decision."""
_COUNT = 3
_TYPES: dict[tuple[Any, ...], list[str]] = {
    (2, (_COUNT, LEVELS, CHOICES)): ["IQN"],
    (1, (_COUNT, ACTION_SIZE)): ["AC-IQN", "DDPG"],
    (1, (_COUNT, ACTION_SIZE), (_COUNT, ACTION_SIZE)): ["SAC"],
    (1, (_COUNT, CHOICES)): ["DQN"],
}
"""Agent types by the number of an export's arguments, and the shapes of its outputs for three observations."""


@dataclass(frozen=True)
class Export:
    """A loaded export.

    Attributes:
        module: ``((self [B, 7], objects [B, 5, 5], mask [B, 5]),)``, for IQN also ``taus [B, 32]``, to actions
            ``[B, 2]`` (AC-IQN, DDPG), values ``[B, 25]`` (DQN), mean and log standard deviation ``[B, 2]`` (SAC),
            quantiles ``[B, 32, 25]`` (IQN) or probabilities ``[B, 25, K]`` (Rainbow).
        agent_types: what it can be.
        dtype: of its inputs.
        device: where it runs.
    """

    module: Any
    agent_types: list[str]
    dtype: torch.dtype
    device: torch.device

    def actions(self, observation: TensorDictBase) -> Tensor:
        """Returns actions ``[B, 2]`` or ``[B]``, chosen as published: of SAC a sample, of IQN at drawn levels."""
        parts = tuple(observation.get(key).to(self.device, self.dtype) for key in ("self", "objects", "mask"))
        kind, levels = self.agent_types[0], (len(parts[0]), LEVELS)
        drawn = [torch.rand(levels, dtype=self.dtype, device=self.device)] if kind == "IQN" else []
        output = self.module(parts, *drawn)
        if kind == "SAC":
            mean, log_std = output
            return (mean + log_std.exp() * torch.randn_like(mean)).arctan() * (2 / math.pi)
        if kind == "IQN":
            return output.mean(-2).argmax(-1)
        if kind == "DQN":
            return output.argmax(-1)
        if kind == "Rainbow":
            atoms = torch.linspace(-1, 1, output.shape[-1], dtype=output.dtype, device=output.device)
            return (output @ atoms).argmax(-1)
        return output


def load_export(path: Path, device: torch.device | str = "cpu") -> Export:
    """Loads a TorchScript export and tries it, to see which agent it is.

    A program that makes tensors of its own may be bound to the CPU, where it was traced: it then runs there.

    Raises:
        ConfigError: not TorchScript, or not a program of the form :class:`Export` describes.
    """
    for where in dict.fromkeys((torch.device(device), torch.device("cpu"))):
        try:
            return _load_on(path, where)
        except Exception as error:  # torch raises all sorts for programs that are no such
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    raise ConfigError(f"{path}: not an export of a published MarineNav agent ({reason})")


def _load_on(path: Path, device: torch.device) -> Export:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.load(str(path), map_location=device).eval()
    dtype = next((value.dtype for value in module.state_dict().values() if value.is_floating_point()), torch.float64)
    shapes = ((SELF_SIZE,), (NUM_OBJECTS, OBJECT_SIZE), (NUM_OBJECTS,))
    sample: list[Any] = [tuple(torch.zeros(_COUNT, *shape, dtype=dtype, device=device) for shape in shapes)]
    if len(forward_arguments(module)) == 2:
        sample.append(torch.full((_COUNT, LEVELS), 0.5, dtype=dtype, device=device))
    with torch.no_grad():
        output = module(*sample)
    parts = output if isinstance(output, tuple | list) else (output,)
    shapes_out = [tuple(part.shape) for part in parts]
    distributions = len(shapes_out) == 1 and len(shapes_out[0]) == 3 and shapes_out[0][:2] == (_COUNT, CHOICES)
    types = ["Rainbow"] if distributions else _TYPES.get((len(sample), *shapes_out))
    if types is None:
        raise ValueError(f"{len(sample)} arguments and outputs {shapes_out} for 3 observations are those of none")
    return Export(module, types, dtype, device)


def export_policy(export: Export, interface: Interface) -> Policy:
    """The export as a policy of an env that it fits, in its own dtype."""

    def act(observation: TensorDictBase) -> Tensor:
        lead = observation.batch_size
        actions = export.actions(observation.reshape(-1))
        action = actions.view(*lead, *actions.shape[1:])
        dtype = interface.dtype if action.is_floating_point() else action.dtype
        return interface.to_env(action.to(observation.get("self").device, dtype))

    policy = Policy(interface, act)
    policy.network = export.module
    return policy
