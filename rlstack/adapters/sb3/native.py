"""Models of Stable-Baselines3 as policies of an env, and as native agents, which continue training."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import Composite
from torchrl.envs import EnvBase

from rlstack.adapters.protocols import ForeignPolicy
from rlstack.agents import Agent, make_agent
from rlstack.agents.compatibility import batch_of, choices, describe_observation, encode
from rlstack.agents.interface import Interface
from rlstack.config import ConfigError
from rlstack.config.errors import prefixed
from rlstack.networks.encoders import FlatEncoder, KeyedEncoder

from .model import Layers, SB3Model, Weights, load_sb3

# -- policies ----------------------------------------------------------------------------------------------------------


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


class SB3Policy(ForeignPolicy):
    """Acts as a model does in an env that it fits, see :func:`sb3_policy`."""

    def __init__(self, model: SB3Model, interface: Interface, deterministic: bool = True) -> None:
        super().__init__(interface)
        self.model, self.deterministic, self.recurrent = model, deterministic, model.recurrent
        self.network = copy.deepcopy(model.network)

    def action(self, observation: Any, mask: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        lead = batch_of(observation, self.interface)
        keys = self.model.observation_keys
        parts = {key: observation.get(key).reshape(lead.numel(), -1) for key in keys or ()}
        features = self.model.features(parts or observation.reshape(lead.numel(), -1))
        if starts is not None and (self._state is None or self._state[0].shape[1] != len(features)):
            self._state = self.network.initial_memory(len(features))
        outputs, self._state = self.network(features, self._state or (), starts)
        action, spec = self.network.choose(outputs, self.deterministic), self.interface.action
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
        takes = interface.describe_action()
        raise ConfigError(f"the {model.algorithm} model has {count} {kind} actions, the env takes {takes}")
    for name, bound in (("low", model.low), ("high", model.high)):  # those of the training, where they are known
        if bound is None:
            continue
        given = getattr(interface.action.space, name).detach().cpu().float().reshape(-1)
        if not bool((torch.isclose(bound, given, rtol=_PRINTED, atol=_PRINTED) | bound.isinf()).all()):
            theirs, ours = (f"[{', '.join(f'{value:g}' for value in values.tolist())}]" for values in (bound, given))
            raise ConfigError(
                f"the {model.algorithm} model was trained with actions whose bounds {name} are {theirs}, the env's are "
                f"{ours}; give the env the bounds that it was trained with"
            )


# -- native agents -----------------------------------------------------------------------------------------------------


ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "SiLU": "silu", "GELU": "gelu", "ELU": "elu"}
"""Theirs to ours."""
_INSTEAD = "agent=legacy uses it as it is"

_SEPARATE = ("PPO", "A2C", "RecurrentPPO")
"""Those whose actor and critic are separate networks."""

_ACTOR_CRITIC = {
    **{name: name for name in ("gamma", "gae_lambda", "max_grad_norm", "normalize_advantage")},
    **{"learning_rate": "lr", "n_steps": "steps_per_batch"},
    **{"ent_coef": "entropy_coefficient", "vf_coef": "value_coefficient"},
}
_PPO = _ACTOR_CRITIC | {
    **{"n_epochs": "epochs", "batch_size": "minibatch_size", "target_kl": "target_kl"},
    **{"clip_range": "clip", "clip_range_vf": "clip_value"},
}
_SAC = {name: name for name in ("gamma", "batch_size", "buffer_size")} | {"tau": "target_tau", "n_steps": "n_step"}
_DQN = _SAC | {
    **{"learning_rate": "lr", "max_grad_norm": "max_grad_norm"},
    **{"exploration_final_eps": "epsilon", "target_update_interval": "target_every"},
}
SETTINGS = {
    "PPO": _PPO,
    "A2C": _ACTOR_CRITIC,
    "RecurrentPPO": _PPO,
    "DQN": _DQN,
    "SAC": _SAC | {"target_entropy": "target_entropy"},
}
"""Their settings that become ours, by algorithm; those that are schedules keep the values of our yaml."""


def sb3_agent(
    path: SB3Model | str | Path,
    env: EnvBase,
    total_frames: int = 1_000_000,
    vecnormalize: str | Path | None = None,
    device: torch.device | str | None = None,
    **overrides: Any,
) -> Agent:
    """A model of Stable-Baselines3 as the native agent of its algorithm, ready to continue training.

    PPO, A2C, DQN, SAC, and RecurrentPPO as a PPO with a memory. Networks, targets, SAC's temperature and observation
    statistics are taken over, and the settings that both have (:data:`SETTINGS`). Its greedy actions are the model's
    own. Optimisers, replay buffer and schedules begin anew.

    Args:
        path: the model's zip, or the model as loaded.
        env: what it is to act in.
        total_frames: length of the run, which schedules are relative to.
        vecnormalize: statistics that its observations were normalised with; a loaded model brings its own.
        device: of networks and memory; default the env's.
        overrides: values that replace the configuration's.

    Raises:
        ConfigError: one line: what is wrong with the files or the overrides, an env that the model cannot act in, or a
            model that no native agent equals.

    Example:
        >>> agent = sb3_agent("ppo.zip", env, vecnormalize="ppo_statistics.pkl", lr=1e-4)
    """
    model = path if isinstance(path, SB3Model) else load_sb3(path, vecnormalize)
    check_fit(model, Interface.of(env))
    with prefixed(model.where):
        name = "ppo" if model.recurrent else model.algorithm.lower()
        agent = make_agent(name, env, total_frames, device, **options_of(model, overrides))
        with torch.no_grad():
            copy_networks(agent, model)
            copy_statistics(agent, model)
    return agent


def converted(
    path: str, env: EnvBase, options: Mapping[str, Any], agent_options: Mapping[str, Any]
) -> tuple[Agent, Any, int]:
    """Converts a model, see :class:`rlstack.config.rooms.Kind`."""
    model = load_sb3(path, options.get("vecnormalize"))
    return sb3_agent(model, env, **agent_options), sb3_policy(model, env), model.num_timesteps


def own_world(path: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Raises a :class:`ConfigError`: a model does not say which env it was trained in."""
    raise ConfigError("env: missing, the world that the agent acts in: env=gymnasium env.id=CartPole-v1")


# -- configuration, networks, statistics ---------------------------------------------------------------------------


def options_of(model: SB3Model, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of the native agent: the model's settings and structure, and what ``overrides`` replace.

    A recurrent model's ``recurrent`` may be completed, as by ``sequence_length``.

    Raises:
        ConfigError: no native agent has such a structure, or an override contradicts it.
    """
    known, algorithm, given = model.hyperparameters, model.algorithm, dict(overrides)
    settings: dict[str, Any] = {
        ours: known[theirs]
        for theirs, ours in SETTINGS[algorithm].items()
        if isinstance(known.get(theirs), bool | int | float)
    }
    if algorithm == "SAC":
        if isinstance(known.get("learning_rate"), float):
            settings |= dict.fromkeys(("lr_actor", "lr_critic", "lr_alpha"), known["learning_rate"])
        settings["learn_alpha"] = str(known.get("ent_coef", "auto")).startswith("auto")
    if {"batch_size", "buffer_size"} <= settings.keys():  # theirs draws a batch larger than its memory with repeats
        settings["buffer_size"] = max(settings["buffer_size"], settings["batch_size"])
    if algorithm == "DQN":
        settings |= {"double": False, "dueling": False}
    if "epsilon" in settings:
        settings["epsilon"] = float(settings["epsilon"])
    if model.normaliser is not None:
        settings["normalize_rewards"] = model.normaliser.norm_reward

    widths = {part: list(sizes) for part, sizes in model.hidden.items() if part != "log_std"}
    hidden, separate = next(iter(widths.values())), algorithm in _SEPARATE
    if not all(widths.values()) or (not separate and any(other != hidden for other in widths.values())):
        shown = ", ".join(f"{part} {sizes}" for part, sizes in widths.items())
        raise ConfigError(f"its networks have different hidden layers ({shown}), or none; {_INSTEAD}")
    if model.activation not in ACTIVATIONS:
        allowed = ", ".join(ACTIVATIONS)
        raise ConfigError(f"the activation {model.activation} is not one that trains here ({allowed}); {_INSTEAD}")
    fixed: dict[str, Any] = {"hidden": hidden, "activation": ACTIVATIONS[model.activation], "inputs": "raw"}
    fixed["normalize_observations"] = model.normaliser is not None and model.normaliser.norm_obs
    if separate:
        fixed["critic_hidden"] = None if widths["critic"] == hidden else widths["critic"]
    if model.recurrent:
        lstms: Any = model.network.memories
        if "critic" not in lstms:
            raise ConfigError(f"its critic has no LSTM of its own, native ones have; {_INSTEAD}")
        core, other = ({"kind": "lstm", "size": lstm.hidden_size, "layers": lstm.num_layers} for lstm in lstms.values())
        if core != other:
            raise ConfigError(f"the LSTMs of its actor and critic differ, native ones do not; {_INSTEAD}")
        wanted = given.pop("recurrent", None)
        if wanted is not None and (not isinstance(wanted, Mapping) or not core.items() <= {**core, **wanted}.items()):
            raise ConfigError(f"agent.recurrent: {wanted} contradicts the model, which has {core}")
        fixed["recurrent"] = {**core, **(wanted or {})}
    for key, value in fixed.items():
        if given.get(key, value) != value:
            raise ConfigError(f"agent.{key}: {given[key]} contradicts the model, which has {value}")
    return {**settings, **fixed, **given}


def copy_networks(agent: Any, model: SB3Model) -> None:
    """Puts a model's networks, targets and temperature into the native agent of its algorithm.

    Raises:
        ConfigError: the agent has no such networks, or the file's temperature is not a number.
    """
    interface, layers, network = agent.interface, model.network.layers(), model.network
    encoder = agent.encoder()
    columns = _columns(model, interface, encoder.encoder if model.recurrent else encoder)
    if model.recurrent:
        lstms: Any = network.memories
        for name, lstm in lstms.items():
            cells, state = agent.memories[name].core.cells, dict(lstm.state_dict())
            wide = torch.zeros_like(cells.weight_ih_l0)
            wide[:, columns] = state["weight_ih_l0"]
            cells.load_state_dict({**state, "weight_ih_l0": wide})
        columns = torch.arange(lstms["actor"].hidden_size)
    if model.algorithm == "DQN":
        _fill(agent.network, layers["q"], columns)
        _fill(agent.loss.target_network, Weights(model.state).linears("q_net_target.q_net"), columns)
        return
    if model.algorithm == "SAC":
        if len(layers) != 4:
            raise ConfigError(f"it has {len(layers) - 2} critics, ours 2; {_INSTEAD}")
        _fill(agent.actor, [*layers["actor"], layers["log_std"][-1]], columns)
        for index, name in enumerate(("critic_1", "critic_2")):
            _fill(agent.networks[name], layers[f"critic{index}"], columns)
            target = Weights(model.state).linears(f"critic_target.qf{index}")
            _fill(agent.targets[name].network, target, columns)
        if alpha := model.temperature():
            agent.temperature.log_alpha.fill_(math.log(alpha))
        return
    if network.log_std is not None:  # the model's actions are in the env's units, ours in [-1, 1]
        low, high = (bound.cpu().float() for bound in (interface.action.space.low, interface.action.space.high))
        if not bool(torch.isfinite(low).all() and torch.isfinite(high).all()):
            raise ConfigError(f"the env's actions have no bounds, which native agents need; {_INSTEAD}")
        centre, half = (high + low) / 2, (high - low) / 2
        weight, bias = layers["actor"][-1]
        layers["actor"][-1] = (weight / half[:, None], (bias - centre) / half)
        agent.actor.log_std.copy_(network.log_std - half.log())
    _fill(agent.actor, layers["actor"], columns)
    _fill(agent.critic, layers["critic"], columns)


def _columns(model: SB3Model, interface: Interface, encoder: nn.Module) -> Tensor:
    """The index among our encoder's features of each feature of the model ``[F]``; ours may have more."""
    if isinstance(encoder, FlatEncoder) and model.observation_keys is None:
        return torch.arange(encoder.out_features)
    if not isinstance(encoder, KeyedEncoder) or not encoder.flat or model.observation_keys is None:
        raise ConfigError(f"the env's observation is more than vectors, which native agents encode first; {_INSTEAD}")
    columns = dict(zip(encoder.names, torch.arange(encoder.out_features).split(encoder.sizes)))
    return torch.cat([columns[key] for key in model.observation_keys])


def _fill(network: nn.Module, layers: Layers, columns: Tensor) -> None:
    """Puts linear layers into those of a network, in order; the first reads the given columns of its input.

    Inputs that the layers know beyond the columns (an action) come last in both.
    """
    linears = [module for module in network.modules() if isinstance(module, nn.Linear)]
    assert len(linears) == len(layers)
    for index, (linear, (weight, bias)) in enumerate(zip(linears, layers)):
        if index == 0:
            joined = weight.shape[1] - len(columns)
            wide = torch.zeros(linear.weight.shape)
            wide[:, columns] = weight[:, : len(columns)]
            if joined:
                wide[:, -joined:] = weight[:, -joined:]
            weight = wide
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)


def copy_statistics(agent: Agent, model: SB3Model) -> None:
    """Lets an agent's running statistics go on from the model's.

    Theirs is ``clip((x - mean) / sqrt(var + epsilon), -c, c)``, ours the same with c = 10 and epsilon = 1e-8.

    Raises:
        ConfigError: the agent's cannot be the same.
    """
    statistics = model.normaliser
    if agent.normalizer is not None and statistics is not None:
        if statistics.clip_obs != 10:
            raise ConfigError(f"its observations were clipped at {statistics.clip_obs:g}, ours are at 10; {_INSTEAD}")
        if statistics.obs_mask is not None:
            raise ConfigError(f"only a part of its observations was normalised, ours are as a whole; {_INSTEAD}")
        mean, var, count = (
            torch.tensor(numbers, dtype=torch.float64)
            for numbers in (statistics.obs_mean, statistics.obs_var, statistics.obs_count)
        )
        var = var + (statistics.epsilon - 1e-8)
        moments, keys = agent.normalizer.moments_by_leaf(), model.observation_keys or (None,)
        if not moments.keys() >= set(keys):
            fault = "an observation is not in floating point, ours are normalised only if they are"
            raise ConfigError(f"{fault}; {_INSTEAD}")
        spec = agent.interface.observation
        sizes = [len(mean) if key is None else spec[key].shape.numel() for key in keys]
        for key, *parts in zip(keys, mean.split(sizes), var.split(sizes)):
            moments[key].set(*parts, count)
    if agent.reward_scaler is not None and statistics is not None and statistics.norm_reward:
        if statistics.clip_reward != 10:
            clipped = f"its rewards were clipped at {statistics.clip_reward:g}, ours are at 10"
            raise ConfigError(f"{clipped}; normalize_rewards=false leaves its scale out, and {_INSTEAD}")
        own = torch.tensor([*statistics.ret_mean, *statistics.ret_var, statistics.ret_count], dtype=torch.float64)
        agent.reward_scaler.moments.set(own[0], own[1], own[2])
