"""Model files of Stable-Baselines3: PPO, A2C, DQN, SAC and RecurrentPPO with MlpPolicy or MultiInputPolicy.

Nothing in a file is unpickled: its weights are tensors, and its settings are read from what they print.
"""

from __future__ import annotations

import io
import math
import operator
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
from rlstack.envs.foundation.files import check_expansion, check_regular
from rlstack.files.safe_load import first_line, load_json, load_tensors

from .networks import ACTIVATIONS, SB3Network, Weights
from .vecnormalize import VecNormalize, check_keys, load_vecnormalize

ALGORITHMS = ("PPO", "A2C", "DQN", "SAC", "RecurrentPPO")
_RELU = ("DQN", "SAC")
"""Algorithms whose activation is ReLU unless they say otherwise; that of the others is Tanh."""
_VARIABLES = "pytorch_variables.pth"
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
    state: dict[str, Tensor]
    variables: bytes
    where: str

    @property
    def hidden(self) -> dict[str, tuple[int, ...]]:
        """Sizes of the hidden layers by part (``actor``, ``critic``, ``q``, ...)."""
        parts = self.network.layers()
        return {part: tuple(len(bias) for _, bias in layers[:-1]) for part, layers in parts.items() if layers}

    @property
    def recurrent(self) -> bool:
        """It has a memory: its network takes and returns a state."""
        return len(self.network.memories) > 0

    def features(self, observation: Tensor | Mapping[str, Tensor] | TensorDictBase) -> Tensor:
        """The network's input: float32 ``[N, F]``, joined in the order of the keys, and normalised.

        Args:
            observation: ``[N, *shape]``, or a mapping of such by key.
        """
        known: Any = observation
        parts = [known] if self.observation_keys is None else [known[key] for key in self.observation_keys]
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
    data, state, variables = _members(path)
    try:
        algorithm = _algorithm(data, state)
        # Refuses what would change the networks' input or output without showing in the weights
        kwargs = _printed(data.get("policy_kwargs"))
        extractor = str(kwargs.get("features_extractor_class", ""))
        weights = [name for name in state if "features_extractor." in name]
        if weights or not re.search(r"^$|\.(FlattenExtractor|CombinedExtractor)'>$", extractor):
            other = extractor or weights[0]
            raise ConfigError(f"only MlpPolicy and MultiInputPolicy of vectors are supported, this has {other}")
        if data.get("use_sde") or kwargs.get("use_sde"):
            raise ConfigError("use_sde: state-dependent exploration (gSDE) is not supported")
        activation = _activation(kwargs.get("activation_fn"), algorithm)
        keys, shapes = _observation(data)
        action, *bounds = _action(data)
        if (algorithm, action) in (("SAC", "discrete"), ("DQN", "box")):
            raise ConfigError(f"{algorithm} with {action} actions is not possible")
        left = Weights(state)
        network = SB3Network(left, algorithm, activation, action == "discrete")
        if left.left:
            raise ConfigError(f"the network has layers of an unknown kind: {', '.join(sorted(left.left)[:3])}")
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


def _members(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor], bytes]:
    """Returns settings, weights and variables of a file; the serialised objects in it are left alone."""
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as file:
            check_expansion(file, path)
            names = set(file.namelist())
            if lacks := sorted({"data", "policy.pth"} - names):
                raise ConfigError(f"{path}: not a model of Stable-Baselines3, it lacks {' and '.join(lacks)}")
            data = load_json(file.read("data"))
            state = load_tensors(io.BytesIO(file.read("policy.pth")))
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
    return data, dict(state), variables


# -- what the settings print -------------------------------------------------------------------------------------


def _algorithm(data: Mapping[str, Any], state: Mapping[str, Tensor]) -> str:
    """Infers the algorithm, which the file does not name, from the names of weights and settings."""
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
    policy = f"; its policy is one of {module}" if module else ""
    raise ConfigError(f"the algorithm is none of {', '.join(ALGORITHMS)}{policy}")


def _activation(printed: Any, algorithm: str) -> str:
    if printed is None:
        return "ReLU" if algorithm in _RELU else "Tanh"
    match = re.fullmatch(r"<class 'torch\.nn\.modules\.(?:activation|linear)\.(\w+)'>", str(printed))
    if match is None or match[1] not in ACTIVATIONS:
        raise ConfigError(f"activation_fn: {printed} is not supported, allowed: {', '.join(sorted(ACTIVATIONS))}")
    return match[1]


def _hyperparameters(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are plain numbers or words, and the value of schedules that are constant."""
    settings: dict[str, Any] = {}
    for key, value in data.items():
        if key.startswith("_") or key in ("num_timesteps", "start_time"):
            continue
        if isinstance(value, dict):
            constant = re.fullmatch(r"ConstantSchedule\(val=([-+.\deE]+)\)", str(value.get("value_schedule", "")))
            value = float(constant[1]) if constant else None
        if isinstance(value, bool | int | float | str):
            settings[key] = value
    return settings


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
        shapes = {key: tuple(map(int, re.findall(r"\d+", match[1]))) for key, match in printed.items() if match}
        return tuple(printed), shapes
    if kind != "Box" or space.get("dtype") == "uint8":  # images, or what Stable-Baselines3 turns into one-hot vectors
        raise ConfigError(f"observation_space: {_ONLY_VECTORS}, not {kind} {space.get('dtype', '')}")
    shape = space.get("_shape")
    return None, {"": tuple(map(operator.index, shape))} if isinstance(shape, list) else {}


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
