"""Loading a model of Stable-Baselines3: PPO, A2C, DQN, SAC and RecurrentPPO with MlpPolicy or MultiInputPolicy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.adapters.sb3.archive import (
    Archive,
    action_of,
    activation_of,
    algorithm_of,
    check_extractor,
    hyperparameters_of,
    observation_of,
    read_archive,
)
from rlstack.adapters.sb3.networks import ActorCritic, Layers, Network, QNetwork, SquashedGaussian, Weights
from rlstack.adapters.sb3.recurrent import RecurrentActorCritic
from rlstack.adapters.sb3.vecnormalize import VecNormalize, as_vecnormalize, check_keys
from rlstack.config import ConfigError
from rlstack.files.safe_load import first_line


@dataclass(frozen=True)
class SB3Model:
    """A model as it was saved.

    Attributes:
        algorithm: one of PPO, A2C, DQN, SAC, RecurrentPPO.
        network: in evaluation mode, without gradients, float32; takes joined and normalised features ``[N, F]``.
        normaliser: observation statistics it was trained with, None if it saw raw observations.
        activation: name of a class in ``torch.nn``.
        hidden: sizes of the hidden layers by part (``actor``, ``critic``, ``q``, ...).
        observation_keys: of a structured observation, in the order in which they are joined; None for a flat one.
        observation_shapes: by key, under ``""`` for a flat observation.
        action: ``discrete`` (an index) or ``box`` (a vector).
        low, high: bounds of a box ``[n]`` as trained, None where they cannot be read or are infinite in print.
        num_timesteps: env steps it was trained for.
        hyperparameters: its settings that are plain numbers, for reference.
        version: of Stable-Baselines3 that wrote it.
        archive: the file's content.
        where: the file, for messages.
    """

    algorithm: str
    network: Network
    normaliser: VecNormalize | None
    activation: str
    hidden: dict[str, tuple[int, ...]]
    observation_keys: tuple[str, ...] | None
    observation_shapes: dict[str, tuple[int, ...]]
    action: Literal["discrete", "box"]
    low: Tensor | None
    high: Tensor | None
    num_timesteps: int
    hyperparameters: dict[str, Any]
    version: str
    archive: Archive
    where: str

    @property
    def recurrent(self) -> bool:
        """It has a memory: its network takes and returns a state."""
        return isinstance(self.network, RecurrentActorCritic)

    def features(self, observation: Tensor | Mapping[str, Tensor] | TensorDictBase) -> Tensor:
        """What the network takes: float32 ``[N, F]``, joined in the order of the keys, and normalised.

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
    """Reads a model's zip file. Nothing in it is unpickled: its weights are tensors, the rest is what it prints.

    Args:
        path: the ``.zip``.
        vecnormalize: statistics that its observations were normalised with: a file (see
            :func:`~rlstack.adapters.sb3.vecnormalize.load_vecnormalize`) or as loaded.

    Raises:
        ConfigError: no such file, not such a file, a model of another kind, or statistics of something else; one line.
    """
    archive = read_archive(path)
    try:
        return _model(archive, None if vecnormalize is None else as_vecnormalize(vecnormalize), str(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except Exception as error:  # whatever settings are that Stable-Baselines3 has not written
        raise ConfigError(
            f"{path}: its settings cannot be read ({type(error).__name__}: {first_line(error)})"
        ) from error


def _model(archive: Archive, normaliser: VecNormalize | None, where: str) -> SB3Model:
    algorithm = algorithm_of(archive)
    check_extractor(archive)
    activation = activation_of(archive, algorithm)
    keys, shapes = observation_of(archive)
    kind, low, high = action_of(archive)
    network = _network(algorithm, Weights(archive.state), activation, kind == "discrete")
    _check_sizes(network, shapes, keys)
    if normaliser is not None:
        check_keys(normaliser, keys, network.in_features)
    steps = archive.data.get("num_timesteps", 0)
    return SB3Model(
        algorithm=algorithm,
        network=network.requires_grad_(False).eval(),
        normaliser=normaliser,
        activation=activation,
        hidden=network.hidden,
        observation_keys=keys,
        observation_shapes=shapes,
        action="discrete" if kind == "discrete" else "box",
        low=_bounds(low, network.out_features),
        high=_bounds(high, network.out_features),
        num_timesteps=steps if isinstance(steps, int) else 0,
        hyperparameters=hyperparameters_of(archive),
        version=archive.version,
        archive=archive,
        where=where,
    )


def _network(algorithm: str, weights: Weights, activation: str, discrete: bool) -> Network:
    network: Network
    if (algorithm == "SAC" and discrete) or (algorithm == "DQN" and not discrete):
        raise ConfigError(f"{algorithm} with {'discrete' if discrete else 'continuous'} actions is not possible")
    if algorithm == "RecurrentPPO":
        network = RecurrentActorCritic(weights, activation, discrete)
    elif algorithm == "DQN":
        network = QNetwork(weights, activation)
    elif algorithm == "SAC":
        network = SquashedGaussian(weights, activation)
    else:
        network = ActorCritic(weights, activation, discrete)
    if weights.left:
        raise ConfigError(f"the network has layers of an unknown kind: {', '.join(sorted(weights.left)[:3])}")
    return network


def _check_sizes(network: Network, shapes: Mapping[str, tuple[int, ...]], keys: tuple[str, ...] | None) -> None:
    known = len(shapes) == (1 if keys is None else len(keys))
    size = sum(math.prod(shape) for shape in shapes.values())
    if known and size != network.in_features:
        raise ConfigError(f"the observation has {size} features, the network takes {network.in_features}")


def _bounds(values: Any, count: int) -> Tensor | None:
    return torch.from_numpy(values) if values is not None and len(values) == count else None


def sb3_layers(model: SB3Model) -> dict[str, Layers]:
    """The linear layers, to fill a network of one's own with: ``(weight [out, in], bias [out])`` in order, by part.

    Every layer but the last of its part is followed by ``model.activation``. PPO and A2C have ``actor`` and ``critic``
    (two separate networks), DQN ``q``, SAC ``actor`` (ending in the mean), ``log_std`` (the same hidden layers, ending
    in the logarithm of the standard deviation) and ``critic0``, ``critic1``, ... (input: features, then the action in
    [-1, 1]). RecurrentPPO has ``actor`` and ``critic`` as they stand behind the LSTMs. PPO's state-independent spread
    of continuous actions is ``model.network.heads.log_std``.
    """
    parts = model.network.layers()
    return {part: [(weight.clone(), bias.clone()) for weight, bias in layers] for part, layers in parts.items()}
