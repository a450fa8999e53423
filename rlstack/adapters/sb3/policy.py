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

from rlstack.agents.fit import batch_of, choices, describe_action, describe_observation, encode
from rlstack.agents.interface import Interface
from rlstack.agents.recurrent import EpisodeStarts
from rlstack.config import ConfigError
from rlstack.networks.calls import by_name

from .model import SB3Model, load_sb3
from .networks import FeedForward, RecurrentActorCritic, State

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
    found, interface = model if isinstance(model, SB3Model) else load_sb3(model, vecnormalize), Interface.of(env)
    check_fit(found, interface)
    return SB3Policy(found, interface, deterministic).to(env.device)


class SB3Policy(TensorDictModuleBase):
    """Writes the actions of a model into the tensordict of an env that it fits, see :func:`sb3_policy`."""

    def __init__(self, model: SB3Model, interface: Interface, deterministic: bool = True) -> None:
        super().__init__()
        self.in_keys, self.out_keys = interface.observation_keys(), [interface.key("action")]
        self.model, self.interface, self.deterministic = model, interface, deterministic
        self.network = copy.deepcopy(model.network)
        self._starts = EpisodeStarts(interface)
        self._state: State | None = None

    def reset(self) -> None:
        """Forgets the state of a recurrent model: the next call begins episodes everywhere."""
        self._starts.reset()
        self._state = None

    @by_name()
    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        observation = tensordict.get(self.interface.key("observation"))
        lead = batch_of(observation, self.interface)
        keys = self.model.observation_keys
        parts = {key: observation.get(key).reshape(lead.numel(), -1) for key in keys or ()}
        features = self.model.features(parts or observation.reshape(lead.numel(), -1))
        if isinstance(self.network, RecurrentActorCritic):
            starts, state = self._starts(tensordict, lead).reshape(-1), self._state
            if state is None or state[0].shape[1] != len(features):
                state = self.network.initial_state(len(features))
            action, self._state = self.network.act(features, state, starts, self.deterministic)
            self._starts.remember(tensordict, lead)
        else:
            assert isinstance(self.network, FeedForward)
            action = self.network.act(features, self.deterministic)
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
    sees = describe_observation(interface)
    if keys is None:
        if isinstance(spec, Composite) or spec.shape.numel() != size:
            raise ConfigError(f"the {model.algorithm} model takes a vector of {size} features, the env shows {sees}")
    else:
        wants = {key: model.observation_shapes.get(key) for key in keys}
        leaves = set(spec.keys()) if isinstance(spec, Composite) else set()
        fits = all(key in leaves and not isinstance(spec[key], Composite) for key in keys)
        known = {key: shape for key, shape in wants.items() if shape is not None}
        fits = fits and all(spec[key].shape.numel() == math.prod(shape) for key, shape in known.items())
        if not fits or sum(spec[key].shape.numel() for key in keys) != size:
            raise ConfigError(f"the {model.algorithm} model takes {wants}, the env shows {sees}")
    count = model.network.out_features
    if model.action == "discrete":
        if choices(interface.action) != count:
            raise ConfigError(
                f"the {model.algorithm} model has {count} discrete actions, the env takes {describe_action(interface)}"
            )
    elif not interface.continuous or interface.action.shape.numel() != count:
        raise ConfigError(
            f"the {model.algorithm} model has {count} continuous actions, the env takes {describe_action(interface)}"
        )
    else:
        # Checks that the env's action bounds are those of the model's training, where these are known and finite
        space = interface.action.space
        for name, bound, offered in (("low", model.low, space.low), ("high", model.high, space.high)):
            if bound is None:
                continue
            given = offered.detach().cpu().float().reshape(-1)
            alike = torch.isclose(bound, given, rtol=_PRINTED, atol=_PRINTED) | bound.isinf()
            if not bool(alike.all()):
                raise ConfigError(
                    f"the {model.algorithm} model was trained with actions whose bounds {name} are {_shown(bound)}, "
                    f"the env's are {_shown(given)}; give the env the bounds that it was trained with"
                )


def _shown(values: Tensor) -> str:
    return f"[{', '.join(f'{value:g}' for value in values.tolist())}]"
