"""A model file of Stable-Baselines3: weights and the printable part of its settings, without unpickling anything."""

from __future__ import annotations

import ast
import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from envs.bounded_files import check_expansion, check_regular
from rlstack.config import ConfigError
from rlstack.files.safe_load import first_line, load_json, load_tensors

ALGORITHMS = ("PPO", "A2C", "DQN", "SAC", "RecurrentPPO")
DEFAULT_ACTIVATIONS = {"PPO": "Tanh", "A2C": "Tanh", "RecurrentPPO": "Tanh", "DQN": "ReLU", "SAC": "ReLU"}
ACTIVATIONS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        *(nn.Tanh, nn.ReLU, nn.SiLU, nn.GELU, nn.ELU, nn.LeakyReLU, nn.SELU, nn.CELU, nn.Mish, nn.Sigmoid),
        *(nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.ReLU6, nn.Tanhshrink, nn.LogSigmoid, nn.Identity),
    )
}
_VERSION, _VARIABLES = "_stable_baselines3_version", "pytorch_variables.pth"
_ONLY_VECTORS = "only vectors of floats, or a Dict of them, are supported"


@dataclass(frozen=True)
class Archive:
    """What is in a model file.

    Attributes:
        state: the policy's ``state_dict``, on the CPU.
        data: the settings; an object is a dict of its printable attributes.
        version: of Stable-Baselines3 that wrote it, empty if it does not say.
        variables: the file of what is learned beside the policy, such as SAC's temperature; empty if there is none.
    """

    state: dict[str, Tensor]
    data: dict[str, Any]
    version: str
    variables: bytes = b""


def read_archive(path: str | Path) -> Archive:
    """Opens a model file; the serialised objects in it are left alone, and the weights may hold nothing but tensors.

    Raises:
        ConfigError: no such file, not a zip, or a part is missing or broken.
    """
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
    return Archive(dict(state), data, version, variables)


def algorithm_of(archive: Archive) -> str:
    """The algorithm, told by names of weights and settings; the file does not say it.

    Raises:
        ConfigError: none of :data:`ALGORITHMS`.
    """
    names = archive.state.keys()
    if any(name.startswith("mlp_extractor.shared_net") for name in names):
        raise ConfigError(
            "layers shared by actor and critic (mlp_extractor.shared_net, written by Stable-Baselines3 below 1.8) "
            "are not supported"
        )
    module = str(_printed(archive.data.get("policy_class")).get("__module__", ""))
    if "action_net.weight" in names and "maskable" not in module and "cg_max_steps" not in archive.data:
        if any(name.startswith("lstm_actor.") for name in names):
            return "RecurrentPPO"
        return "PPO" if "clip_range" in archive.data else "A2C"
    if any(name.startswith("q_net.q_net.") for name in names):
        return "DQN"
    if "actor.log_std.weight" in names or ("actor.log_std" in names and "actor.mu.0.weight" in names):
        return "SAC"
    found = f"; its policy is one of {module}" if module else ""
    raise ConfigError(f"the algorithm is none of {', '.join(ALGORITHMS)}{found}")


def activation_of(archive: Archive, algorithm: str) -> str:
    """Name of the activation's class in ``torch.nn``.

    Raises:
        ConfigError: it is not a parameter-free one of torch.
    """
    printed = _printed(archive.data.get("policy_kwargs")).get("activation_fn")
    if printed is None:
        return DEFAULT_ACTIVATIONS[algorithm]
    match = re.fullmatch(r"<class 'torch\.nn\.modules\.(?:activation|linear)\.(\w+)'>", str(printed))
    name = match[1] if match else None
    if name not in ACTIVATIONS:
        raise ConfigError(f"activation_fn: {printed} is not supported, allowed: {', '.join(sorted(ACTIVATIONS))}")
    return str(name)


def check_extractor(archive: Archive) -> None:
    """Refuses what would change the networks' input or output without showing in the weights.

    Raises:
        ConfigError: an own features extractor, convolutions, or state-dependent exploration.
    """
    kwargs = _printed(archive.data.get("policy_kwargs"))
    extractor = str(kwargs.get("features_extractor_class", ""))
    weights = [name for name in archive.state if "features_extractor." in name]
    if weights or not re.search(r"^$|\.(FlattenExtractor|CombinedExtractor)'>$", extractor):
        what = extractor or weights[0]
        raise ConfigError(f"only MlpPolicy and MultiInputPolicy of vectors are supported, this has {what}")
    if archive.data.get("use_sde") or kwargs.get("use_sde"):
        raise ConfigError("use_sde: state-dependent exploration (gSDE) is not supported")


def hyperparameters_of(archive: Archive) -> dict[str, Any]:
    """The settings that are plain numbers or words, and the value of schedules that are constant."""
    found: dict[str, Any] = {}
    for key, value in archive.data.items():
        if key.startswith("_") or key in ("num_timesteps", "start_time"):
            continue
        if isinstance(value, dict):
            constant = re.fullmatch(r"ConstantSchedule\(val=([-+.\deE]+)\)", str(value.get("value_schedule", "")))
            value = float(constant[1]) if constant else None
        if isinstance(value, bool | int | float | str):
            found[key] = value
    architecture = _printed(archive.data.get("policy_kwargs")).get("net_arch")
    return found if architecture is None else {**found, "net_arch": _literal(architecture)}


def observation_of(archive: Archive) -> tuple[tuple[str, ...] | None, dict[str, tuple[int, ...]]]:
    """Keys of the observation in the order in which the network takes them, and the shapes that are known.

    Returns ``(None, {"": shape})`` for a flat observation.

    Raises:
        ConfigError: images, or discrete observations (which Stable-Baselines3 turns into one-hot vectors).
    """
    space = _printed(archive.data.get("observation_space"))
    kind = _kind(space)
    if kind == "Dict" and isinstance(space.get("spaces"), str):
        entries = re.findall(r"""['"]([^'"]+)['"](?::|,) (\w+)\(((?:[^()]|\([^()]*\))*)\)""", space["spaces"])
        strange = [f"{key}: {entry}" for key, entry, content in entries if entry != "Box" or "uint8" in content]
        if strange or not entries:
            raise ConfigError(f"observation_space: {_ONLY_VECTORS}, not {', '.join(strange) or space}")
        shapes = {key: _shape(content) for key, _, content in entries}
        return tuple(shapes), {key: shape for key, shape in shapes.items() if shape is not None}
    if kind != "Box" or space.get("dtype") == "uint8":
        raise ConfigError(f"observation_space: {_ONLY_VECTORS}, not {kind} {space.get('dtype', '')}")
    shape = space.get("_shape")
    if not isinstance(shape, list):
        return None, {}
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape):
        raise ConfigError(f"observation_space: {shape} is no shape")
    return None, {"": tuple(shape)}


def action_of(archive: Archive) -> tuple[str, np.ndarray[Any, Any] | None, np.ndarray[Any, Any] | None]:
    """``("discrete", None, None)``, or ``("box", low, high)`` with the bounds where they can be read.

    Raises:
        ConfigError: another kind of action space.
    """
    space = _printed(archive.data.get("action_space"))
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


def _shape(content: str) -> tuple[int, ...] | None:
    match = re.search(r"\(([\d, ]*)\)", content)
    return tuple(int(size) for size in match[1].split(",") if size.strip()) if match else None


def _numbers(printed: Any) -> np.ndarray[Any, Any] | None:
    """An array as numpy prints it; long ones are abridged and cannot be read."""
    words = str(printed).replace("[", " ").replace("]", " ").split()
    try:
        return np.array([float(word) for word in words], dtype=np.float32) if words else None
    except ValueError:
        return None


def _literal(value: Any) -> Any:
    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return value
