"""A model of Stable-Baselines3 as a policy of a TorchRL env."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import Composite
from torchrl.envs import EnvBase

from rlstack.agents.compatibility import batch_of, choices, describe_action, describe_observation, encode
from rlstack.agents.interface import Interface
from rlstack.agents.recurrent import EpisodeStarts
from rlstack.config import ConfigError
from rlstack.envs.foundation.tensors import by_name

from .model import SB3Model, load_sb3
from .networks import Memory

_PRINTED = 1e-5
"""The precision of bounds in a file."""


def sb3_policy(
    model: SB3Model | str | Path, env: EnvBase, deterministic: bool = True, vecnormalize: str | Path | None = None
) -> TensorDictModuleBase:
    """Returns a policy that acts like the model's ``predict``, for all worlds and agents of an env at once.

    Discrete actions are the most probable ones (PPO, A2C) or those of highest value (DQN). Continuous ones are the
    Gaussian's mean clipped to the env's bounds (PPO, A2C), or the squashed mean rescaled from [-1, 1] to the env's
    bounds (SAC). A RecurrentPPO carries its LSTM's state from call to call, one per world and agent, and resets it
    where :class:`~rlstack.agents.recurrent.EpisodeStarts` tells; ``policy.reset()`` forgets all states.

    Args:
        model: a loaded model, which is copied to the env's device, or its file; a structured observation must have its
            keys.
        env: an env with the model's number of features and actions.
        deterministic: False samples from the distribution; a DQN has none and stays greedy.
        vecnormalize: statistics with which the model was trained, if it is given as a file.

    Raises:
        ConfigError: no such model, or the env's observations, actions or bounds are not the model's.
    """
    loaded, interface = model if isinstance(model, SB3Model) else load_sb3(model, vecnormalize), Interface.of(env)
    check_fit(loaded, interface)
    return SB3Policy(loaded, interface, deterministic).to(env.device)


class SB3Policy(TensorDictModuleBase):
    """Writes the actions of a model into the tensordict of an env that it fits, see :func:`sb3_policy`."""

    def __init__(self, model: SB3Model, interface: Interface, deterministic: bool = True) -> None:
        super().__init__()
        self.in_keys, self.out_keys = interface.observation_keys(), [interface.key("action")]
        self.model, self.interface, self.deterministic = model, interface, deterministic
        self.network = copy.deepcopy(model.network)
        self._starts = EpisodeStarts(interface)
        self._memory: Memory = ()

    def reset(self) -> None:
        """Forgets the state of a recurrent model: the next call begins episodes everywhere."""
        self._starts.reset()
        self._memory = ()

    @by_name()
    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        observation = tensordict.get(self.interface.key("observation"))
        lead = batch_of(observation, self.interface)
        keys = self.model.observation_keys
        parts = {key: observation.get(key).reshape(lead.numel(), -1) for key in keys or ()}
        features = self.model.features(parts or observation.reshape(lead.numel(), -1))
        starts = None
        if self.model.recurrent:
            starts = self._starts(tensordict, lead).reshape(-1)
            if not self._memory or self._memory[0].shape[1] != len(features):
                self._memory = self.network.initial_memory(len(features))
        outputs, self._memory = self.network(features, self._memory, starts)
        self._starts.remember(tensordict, lead)
        action = self.network.choose(outputs, self.deterministic)
        return tensordict.set(self.out_keys[0], self._to_env(action, lead))

    def _to_env(self, action: Tensor, lead: torch.Size) -> Tensor:
        spec = self.interface.action
        if self.model.action == "discrete":
            return encode(spec, action.reshape(lead))
        action = action.reshape(*lead, *spec.shape).to(spec.dtype)
        low, high = spec.space.low.to(action), spec.space.high.to(action)
        if self.model.algorithm == "SAC":
            action = low + 0.5 * (action + 1) * (high - low)
        return action.clamp(low, high)


def check_fit(model: SB3Model, interface: Interface) -> None:
    """Checks that an env has the observations and actions with which the model was trained.

    Raises:
        ConfigError: it does not.
    """
    keys, spec, size = model.observation_keys, interface.observation, model.network.in_features
    leaves = dict(spec.items()) if isinstance(spec, Composite) else {"": spec}
    seen = [leaves.get(key) for key in ([""] if keys is None else keys)]
    sizes = [None if leaf is None or isinstance(leaf, Composite) else leaf.shape.numel() for leaf in seen]
    known = [model.observation_shapes.get(key) for key in keys or ()]
    if (
        None in sizes
        or sum(filter(None, sizes)) != size
        or any(shape is not None and count != math.prod(shape) for shape, count in zip(known, sizes))
    ):
        wants = f"a vector of {size} features" if keys is None else dict(zip(keys, known))
        raise ConfigError(f"the {model.algorithm} model takes {wants}, the env shows {describe_observation(interface)}")
    count, kind = model.network.out_features, "discrete" if model.action == "discrete" else "continuous"
    offered = interface.action.shape.numel() if interface.continuous else None
    if count != (choices(interface.action) if kind == "discrete" else offered):
        takes = describe_action(interface)
        raise ConfigError(f"the {model.algorithm} model has {count} {kind} actions, the env takes {takes}")
    for name, bound in (("low", model.low), ("high", model.high)):  # those of the training, where they are known
        if bound is None:
            continue
        given = getattr(interface.action.space, name).detach().cpu().float().reshape(-1)
        if not bool((torch.isclose(bound, given, rtol=_PRINTED, atol=_PRINTED) | bound.isinf()).all()):
            raise ConfigError(
                f"the {model.algorithm} model was trained with actions whose bounds {name} are {_shown(bound)}, "
                f"the env's are {_shown(given)}; give the env the bounds that it was trained with"
            )


def _shown(values: Tensor) -> str:
    return f"[{', '.join(f'{value:g}' for value in values.tolist())}]"
