"""Model files of Stable-Baselines3: PPO, A2C, DQN, SAC and RecurrentPPO with MlpPolicy or MultiInputPolicy.

Nothing in a file is unpickled: its weights are tensors, and its settings are read from what they print.
"""

from __future__ import annotations

import ast
import io
import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.config import ConfigError
from rlstack.envs.bounded_files import check_expansion, check_regular
from rlstack.files.safe_load import first_line, load_json, load_tensors

from .networks import (
    ACTIVATIONS,
    ActorCriticNetwork,
    Layers,
    QNetwork,
    RecurrentActorCritic,
    SB3Network,
    SquashedGaussian,
    Weights,
)
from .vecnormalize import VecNormalize, check_keys, load_vecnormalize

ALGORITHMS = ("PPO", "A2C", "DQN", "SAC", "RecurrentPPO")
_RELU = ("DQN", "SAC")
"""Algorithms whose activation is ReLU unless they say otherwise; that of the others is Tanh."""
_VERSION, _VARIABLES = "_stable_baselines3_version", "pytorch_variables.pth"
_ONLY_VECTORS = "only vectors of floats, or a Dict of them, are supported"


@dataclass(frozen=True)
class SB3Model:
    """A model as it was saved.

    Attributes:
        algorithm: one of :data:`ALGORITHMS`.
        network: in evaluation mode, without gradients, float32; takes joined and normalised features ``[N, F]``.
        normaliser: observation statistics it was trained with, None if it saw raw observations.
        activation: name of a class in ``torch.nn``.
        observation_keys: of a structured observation, in the order in which they are joined; None for a flat one.
        observation_shapes: by key where they are known, under ``""`` for a flat observation.
        action: ``discrete`` (an index) or ``box`` (a vector).
        low, high: bounds of a box ``[n]`` as trained, None where they cannot be read.
        num_timesteps: env steps it was trained for.
        hyperparameters: its settings that are plain numbers or words.
        version: of Stable-Baselines3 that wrote it, empty if it does not say.
        state: the policy's ``state_dict``, on the CPU.
        variables: the file of what is learned beside the policy, such as SAC's temperature; empty if there is none.
        where: the file, for messages.
    """

    algorithm: str
    network: SB3Network
    normaliser: VecNormalize | None
    activation: str
    observation_keys: tuple[str, ...] | None
    observation_shapes: dict[str, tuple[int, ...]]
    action: Literal["discrete", "box"]
    low: Tensor | None
    high: Tensor | None
    num_timesteps: int
    hyperparameters: dict[str, Any]
    version: str
    state: dict[str, Tensor]
    variables: bytes
    where: str

    @property
    def hidden(self) -> dict[str, tuple[int, ...]]:
        """Sizes of the hidden layers by part (``actor``, ``critic``, ``q``, ...)."""
        return self.network.hidden

    @property
    def recurrent(self) -> bool:
        """It has a memory: its network takes and returns a state."""
        return isinstance(self.network, RecurrentActorCritic)

    def features(self, observation: Tensor | Mapping[str, Tensor] | TensorDictBase) -> Tensor:
        """The network's input: float32 ``[N, F]``, joined in the order of the keys, and normalised.

        Args:
            observation: ``[N, *shape]``, or a mapping of such by key.
        """
        if self.observation_keys is None:
            parts = [observation] if isinstance(observation, Tensor) else []
        else:
            parts = [observation[key] for key in self.observation_keys]  # type: ignore[index]
        joined = torch.cat([part.reshape(len(part), -1).float() for part in parts], -1)
        return joined if self.normaliser is None else self.normaliser.normalise(joined)


def load_sb3(path: str | Path, vecnormalize: VecNormalize | str | Path | None = None) -> SB3Model:
    """Reads a model's zip file.

    Args:
        path: the ``.zip``.
        vecnormalize: statistics that its observations were normalised with: a file (see
            :func:`~rlstack.adapters.sb3.vecnormalize.load_vecnormalize`) or as loaded.

    Raises:
        ConfigError: no such file, not such a file, a model of another kind, or statistics of something else; one line.
    """
    data, state, version, variables = _members(path)
    try:
        algorithm = _algorithm(data, state)
        # Refuses what would change the networks' input or output without showing in the weights
        kwargs = _printed(data.get("policy_kwargs"))
        extractor = str(kwargs.get("features_extractor_class", ""))
        weights = [name for name in state if "features_extractor." in name]
        if weights or not re.search(r"^$|\.(FlattenExtractor|CombinedExtractor)'>$", extractor):
            found = extractor or weights[0]
            raise ConfigError(f"only MlpPolicy and MultiInputPolicy of vectors are supported, this has {found}")
        if data.get("use_sde") or kwargs.get("use_sde"):
            raise ConfigError("use_sde: state-dependent exploration (gSDE) is not supported")
        activation = _activation(data, algorithm)
        keys, shapes = _observation(data)
        action, *bounds = _action(data)
        network = _network(algorithm, Weights(state), activation, action == "discrete")
        size = sum(math.prod(shape) for shape in shapes.values())
        if len(shapes) == (1 if keys is None else len(keys)) and size != network.in_features:
            raise ConfigError(f"the observation has {size} features, the network takes {network.in_features}")
        normaliser = load_vecnormalize(vecnormalize) if isinstance(vecnormalize, str | Path) else vecnormalize
        if normaliser is not None:
            check_keys(normaliser, keys, network.in_features)
        steps = data.get("num_timesteps", 0)
        low, high = (value if value is not None and len(value) == network.out_features else None for value in bounds)
        return SB3Model(
            algorithm=algorithm,
            network=network.requires_grad_(False).eval(),
            normaliser=normaliser,
            activation=activation,
            observation_keys=keys,
            observation_shapes=shapes,
            action=action,
            low=low,
            high=high,
            num_timesteps=steps if isinstance(steps, int) else 0,
            hyperparameters=_hyperparameters(data),
            version=version,
            state=state,
            variables=variables,
            where=str(path),
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except Exception as error:  # whatever settings are that Stable-Baselines3 has not written
        raise ConfigError(
            f"{path}: its settings cannot be read ({type(error).__name__}: {first_line(error)})"
        ) from error


def sb3_layers(model: SB3Model) -> dict[str, Layers]:
    """The linear layers, to fill a network of your own with: ``(weight [out, in], bias [out])`` in order, by part.

    Every layer but the last of its part is followed by ``model.activation``. PPO and A2C have ``actor`` and ``critic``
    (two separate networks), DQN ``q``, SAC ``actor`` (ending in the mean), ``log_std`` (the same hidden layers, ending
    in the logarithm of the standard deviation) and ``critic0``, ``critic1``, ... (input: features, then the action in
    [-1, 1]). RecurrentPPO has ``actor`` and ``critic`` as they stand behind the LSTMs. PPO's state-independent spread
    of continuous actions is ``model.network.log_std``.
    """
    parts = model.network.layers()
    return {part: [(weight.clone(), bias.clone()) for weight, bias in layers] for part, layers in parts.items()}


def _members(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor], str, bytes]:
    """Settings, weights, version and variables of a file; the serialised objects in it are left alone."""
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as file:
            check_expansion(file, path)
            names = set(file.namelist())
            lacks = sorted({"data", "policy.pth"} - names)
            if lacks:
                raise ConfigError(f"{path}: not a model of Stable-Baselines3, it lacks {' and '.join(lacks)}")
            data = load_json(file.read("data"))
            state = load_tensors(io.BytesIO(file.read("policy.pth")))
            version = file.read(_VERSION).decode().strip() if _VERSION in names else ""
            variables = file.read(_VARIABLES) if _VARIABLES in names else b""
    except ConfigError:
        raise
    except zipfile.BadZipFile:
        raise ConfigError(f"{path}: not a zip file, as models of Stable-Baselines3 are") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception as error:  # zipfile and zlib raise all sorts for damaged bytes
        raise ConfigError(f"{path}: a part of the file is broken ({first_line(error)})") from None
    tensors = isinstance(state, Mapping) and all(isinstance(value, Tensor) for value in state.values())
    if not tensors or not isinstance(data, dict):
        raise ConfigError(f"{path}: not a model of Stable-Baselines3, its policy.pth or data is something else")
    return data, dict(state), version, variables


def _network(algorithm: str, weights: Weights, activation: str, discrete: bool) -> SB3Network:
    network: SB3Network
    if (algorithm == "SAC" and discrete) or (algorithm == "DQN" and not discrete):
        raise ConfigError(f"{algorithm} with {'discrete' if discrete else 'continuous'} actions is not possible")
    if algorithm in ("DQN", "SAC"):
        network = (QNetwork if algorithm == "DQN" else SquashedGaussian)(weights, activation)
    else:
        kind = RecurrentActorCritic if algorithm == "RecurrentPPO" else ActorCriticNetwork
        network = kind(weights, activation, discrete)
    if weights.left:
        raise ConfigError(f"the network has layers of an unknown kind: {', '.join(sorted(weights.left)[:3])}")
    return network


# -- what the settings print -------------------------------------------------------------------------------------


def _algorithm(data: Mapping[str, Any], state: Mapping[str, Tensor]) -> str:
    """The algorithm, told by names of weights and settings; the file does not say it."""
    if any(name.startswith("mlp_extractor.shared_net") for name in state):
        raise ConfigError(
            "layers shared by actor and critic (mlp_extractor.shared_net, written by Stable-Baselines3 below 1.8) "
            "are not supported"
        )
    module = str(_printed(data.get("policy_class")).get("__module__", ""))
    if "action_net.weight" in state and "maskable" not in module and "cg_max_steps" not in data:
        if any(name.startswith("lstm_actor.") for name in state):
            return "RecurrentPPO"
        return "PPO" if "clip_range" in data else "A2C"
    if any(name.startswith("q_net.q_net.") for name in state):
        return "DQN"
    if "actor.log_std.weight" in state or ("actor.log_std" in state and "actor.mu.0.weight" in state):
        return "SAC"
    found = f"; its policy is one of {module}" if module else ""
    raise ConfigError(f"the algorithm is none of {', '.join(ALGORITHMS)}{found}")


def _activation(data: Mapping[str, Any], algorithm: str) -> str:
    printed = _printed(data.get("policy_kwargs")).get("activation_fn")
    if printed is None:
        return "ReLU" if algorithm in _RELU else "Tanh"
    match = re.fullmatch(r"<class 'torch\.nn\.modules\.(?:activation|linear)\.(\w+)'>", str(printed))
    if match is None or match[1] not in ACTIVATIONS:
        raise ConfigError(f"activation_fn: {printed} is not supported, allowed: {', '.join(sorted(ACTIVATIONS))}")
    return match[1]


def _hyperparameters(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are plain numbers or words, and the value of schedules that are constant."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if key.startswith("_") or key in ("num_timesteps", "start_time"):
            continue
        if isinstance(value, dict):
            constant = re.fullmatch(r"ConstantSchedule\(val=([-+.\deE]+)\)", str(value.get("value_schedule", "")))
            value = float(constant[1]) if constant else None
        if isinstance(value, bool | int | float | str):
            found[key] = value
    architecture = _printed(data.get("policy_kwargs")).get("net_arch")
    return found if architecture is None else {**found, "net_arch": _literal(architecture)}


def _observation(data: Mapping[str, Any]) -> tuple[tuple[str, ...] | None, dict[str, tuple[int, ...]]]:
    """Keys in the order in which the network takes them, None for a flat observation, and the shapes that are known."""
    space = _printed(data.get("observation_space"))
    kind = _kind(space)
    if kind == "Dict" and isinstance(space.get("spaces"), str):
        entries = re.findall(r"""['"]([^'"]+)['"](?::|,) (\w+)\(((?:[^()]|\([^()]*\))*)\)""", space["spaces"])
        strange = [f"{key}: {entry}" for key, entry, content in entries if entry != "Box" or "uint8" in content]
        if strange or not entries:
            raise ConfigError(f"observation_space: {_ONLY_VECTORS}, not {', '.join(strange) or space}")
        printed = {key: re.search(r"\(([\d, ]*)\)", content) for key, _, content in entries}
        shapes = {key: match[1].split(",") for key, match in printed.items() if match}
        return tuple(printed), {
            key: tuple(int(size) for size in shape if size.strip()) for key, shape in shapes.items()
        }
    if kind != "Box" or space.get("dtype") == "uint8":  # images, or what Stable-Baselines3 turns into one-hot vectors
        raise ConfigError(f"observation_space: {_ONLY_VECTORS}, not {kind} {space.get('dtype', '')}")
    shape = space.get("_shape")
    if not isinstance(shape, list):
        return None, {}
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape):
        raise ConfigError(f"observation_space: {shape} is not a shape")
    return None, {"": tuple(shape)}


def _action(data: Mapping[str, Any]) -> tuple[Literal["discrete", "box"], Tensor | None, Tensor | None]:
    """The kind of actions, and the bounds of a box where they can be read."""
    space = _printed(data.get("action_space"))
    kind = _kind(space)
    if kind == "Discrete":
        return "discrete", None, None
    if kind == "Box":
        return "box", _numbers(space.get("low")), _numbers(space.get("high"))
    raise ConfigError(f"action_space: only Discrete and Box are supported, not {kind}")


def _printed(entry: Any) -> dict[str, Any]:
    return entry if isinstance(entry, dict) else {}


def _kind(space: Mapping[str, Any]) -> str:
    match = re.fullmatch(r"<class '(?:gym|gymnasium)\.spaces\.\w+\.(\w+)'>", str(space.get(":type:", "")))
    return match[1] if match else str(space.get(":type:", "something unknown"))


def _numbers(printed: Any) -> Tensor | None:
    """An array as numpy prints it; long ones are abridged and cannot be read."""
    words = str(printed).replace("[", " ").replace("]", " ").split()
    try:
        return torch.tensor([float(word) for word in words], dtype=torch.float32) if words else None
    except ValueError:
        return None


def _literal(value: Any) -> Any:
    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return value
