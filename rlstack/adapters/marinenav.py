"""The published MarineNav agents (arXiv 2412.09466) as policies: weights by the names of the original release."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import Composite
from torchrl.envs import EnvBase

from rlstack.agents.base import Interface, Policy
from rlstack.config import ConfigError
from rlstack.networks.actors import DeterministicActor
from rlstack.networks.encoders import ObjectSetEncoder

SELF_SIZE, OBJECT_SIZE, NUM_OBJECTS, ACTION_SIZE = 7, 5, 5, 2

ACTOR_NAMES = {
    "self_encoder.0": "encoder.self_encoder.0",
    "object_encoder.0": "encoder.object_encoder.0",
    "hidden_layer": "trunk.0",
    "hidden_layer_2": "trunk.2",
    "output_layer": "output",
}
"""Layers of the AC-IQN and DDPG actor: published name to the one in :class:`DeterministicActor`."""
CRITIC_NAMES = {
    "self_encoder.0": "encoder.self_encoder.0",
    "object_encoder.0": "encoder.object_encoder.0",
    "cos_embedding": "embedding.linear",
    "action_encoder.0": "action_encoder.0",
    "hidden_layer": "hidden",
    "hidden_layer_2": "hidden_2",
    "output_layer": "output",
}
"""Layers of the AC-IQN critic: published name to the one in :class:`~rlstack.networks.quantile.QuantileCritic`."""

Source = str | Path | Mapping[str, np.ndarray]


def published_state(arrays: Mapping[str, np.ndarray], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Arrays under published names as a ``state_dict``.

    Args:
        arrays: ``<layer>.weight [out, in]`` and ``<layer>.bias [out]``.
        names: :data:`ACTOR_NAMES` or :data:`CRITIC_NAMES`.

    Raises:
        ConfigError: these are not the weights of that network.
    """
    expected = {f"{layer}.{kind}" for layer in names for kind in ("weight", "bias")}
    if set(arrays) != expected:
        missing, unknown = sorted(expected - set(arrays)), sorted(set(arrays) - expected)
        faults = [f"{word} {', '.join(keys)}" for word, keys in (("lacks", missing), ("has also", unknown)) if keys]
        raise ConfigError(f"not the weights of this network: {'; '.join(faults)}")
    state = {}
    for name, values in arrays.items():
        layer, _, kind = name.rpartition(".")
        values = np.asarray(values)
        if values.dtype.kind != "f" or values.ndim != (2 if kind == "weight" else 1):
            raise ConfigError(f"not the weights of this network: {name} is {values.dtype} of shape {values.shape}")
        state[f"{names[layer]}.{kind}"] = torch.tensor(values)
    return state


def load_published_actor(source: Source, interface: Interface | None = None) -> DeterministicActor:
    """The actor of AC-IQN or DDPG from the file of its published weights.

    Args:
        source: a ``*_params.npz`` file (opened without pickle), or its arrays.
        interface: of the env to act in, to check that the actor fits and for the dtype; None keeps the file's dtype.

    Raises:
        ConfigError: no such file, not such a file, or an env that it cannot act in.

    Example:
        >>> actor = load_published_actor("AC_IQN_params.npz")
        >>> actor(env.reset()["agents", "observation"])  # [W, A, 2]
    """
    where = str(source) if isinstance(source, str | Path) else "published actor"
    try:
        arrays = _read(source) if isinstance(source, str | Path) else source
        actor = _build(published_state(arrays, ACTOR_NAMES))
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{where}: {error}") from error
    if interface is None:
        return actor.requires_grad_(False)
    _check_fit(interface)
    return actor.to(interface.dtype).requires_grad_(False)


def published_policy(source: Source, env: EnvBase) -> TensorDictModuleBase:
    """The published AC-IQN or DDPG agent as a policy of a MarineNav env with continuous actions.

    Args:
        source: see :func:`load_published_actor`.
        env: it acts for all robots of all worlds, on the env's device and in its dtype.

    Example:
        >>> env = envs.make("marinenav", num_worlds=16)
        >>> rollout = env.rollout(100, published_policy("AC_IQN_params.npz", env), break_when_any_done=False)
    """
    interface = Interface.of(env)
    return Policy(interface, load_published_actor(source, interface).to(env.device))


def _read(path: str | Path) -> dict[str, np.ndarray]:
    file = np.load(path, allow_pickle=False)
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise ValueError("not an npz file")
    with file:
        return dict(file.items())


def _build(state: dict[str, Tensor]) -> DeterministicActor:
    """The network whose widths the weights tell; the sizes of its inputs and outputs are the published ones."""
    outputs = len(state["output.bias"])
    if outputs != ACTION_SIZE:
        raise ConfigError(f"not the weights of this network: {outputs} outputs, the actors have {ACTION_SIZE}")
    self_features = len(state["encoder.self_encoder.0.bias"])
    object_features = len(state["encoder.object_encoder.0.bias"])
    hidden = [len(state[f"trunk.{layer}.bias"]) for layer in (0, 2)]
    encoder = ObjectSetEncoder(SELF_SIZE, OBJECT_SIZE, NUM_OBJECTS, self_features, (object_features,))
    actor = DeterministicActor(encoder, ACTION_SIZE, hidden, squash="arctan")
    actor.to(state["output.bias"].dtype).load_state_dict(state)
    return actor


def _check_fit(interface: Interface) -> None:
    spec = interface.observation
    shapes = {"self": (SELF_SIZE,), "objects": (NUM_OBJECTS, OBJECT_SIZE), "mask": (NUM_OBJECTS,)}
    sees = {str(key): tuple(leaf.shape) for key, leaf in spec.items()} if isinstance(spec, Composite) else {}
    if sees != shapes:
        raise ConfigError(f"the published MarineNav actors need the observation {shapes}, the env has {sees or spec}")
    if not interface.continuous or tuple(interface.action.shape) != (ACTION_SIZE,):
        raise ConfigError(
            "the published AC-IQN and DDPG actors need two continuous actions; set env.continuous_actions=true"
        )
