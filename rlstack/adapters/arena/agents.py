"""Agents of the Arena game's own PPO stack: as policies, as native agents that can be trained on, and back again."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import Composite
from torchrl.envs import EnvBase

from rlstack.adapters.sb3.model import Weights, perceptron
from rlstack.agents import Agent, Interface, make_agent
from rlstack.agents.base import Policy
from rlstack.agents.compatibility import describe_observation
from rlstack.agents.ppo import PPO
from rlstack.config import ConfigError
from rlstack.config.errors import prefixed
from rlstack.data.normalizers import ObservationNormalizer
from rlstack.networks.distributions import Choices
from rlstack.networks.encoders import FlatEncoder
from rlstack.runs.checkpoint import read_checkpoint
from rlstack.runs.loading import LoadedRun

from .files import ArenaFiles, load_files, training_state, write_files
from .statistics import load_statistics, statistics_to_json

CONFIGURATION = "ppo_published"
"""The file in ``conf/agent`` with the algorithm and options by which these agents were trained."""
PARTS = ("shared_net", "actor", "critic")
STYLES = {5: 1, 6: 2}
"""The game's style of control by the number of its actions."""


class ArenaNetwork(nn.Module):
    """The published actor-critic, rebuilt from its weights: a shared trunk, and two heads of one hidden layer each.

    Args:
        weights: ``shared_net.{0,2,...}``, ``actor.{0,2}``, ``critic.{0,2}``, each ``.weight`` and ``.bias``.

    Raises:
        ConfigError: the weights are those of other layers.

    Attributes:
        features, actions: F, A.
        hidden: widths of the hidden layers, that of the heads last.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        known = Weights(weights)
        shared, actor, critic = (known.linears(part) for part in PARTS)
        if known.left or len(actor) != 2 or len(critic) != 2:
            raise ConfigError(f"the layers are not those of {', '.join(PARTS)}: {', '.join(sorted(weights)[:12])}")
        self.actor, self.critic = (perceptron([*shared, *head], "SiLU") for head in (actor, critic))
        self.hidden, other = ([len(bias) for _, bias in [*shared, *head[:-1]]] for head in (actor, critic))
        self.features, self.actions = (shared or actor)[0][0].shape[1], len(actor[-1][1])
        if other != self.hidden or len(critic[-1][1]) != 1:
            raise ConfigError(f"the critic's layers {other} do not fit the actor's {self.hidden}")


def style_of(path: str | Path | ArenaFiles, normalization: str | Path | None = None) -> int:
    """Returns the game's style of control that a checkpoint was trained for, by its number of actions.

    Raises:
        ConfigError: the files are invalid, or the agent is from another game.
    """
    files = load_files(path, normalization)
    actions = _rebuilt(files).actions
    if actions not in STYLES:
        raise ConfigError(f"{files.where}: it chooses one of {actions} actions, as no style of the game; set env")
    return STYLES[actions]


def arena_policy(
    path: str | Path | ArenaFiles,
    env: EnvBase,
    normalization: str | Path | None = None,
    deterministic: bool = True,
) -> TensorDictModuleBase:
    """Returns a published agent as a policy of an env, with frozen statistics.

    Args:
        path: path of the ``.pt`` file, or its loaded content.
        env: an env with the agent's number of features and actions; the policy is on its device.
        normalization: see :func:`~rlstack.adapters.arena.files.load_files`.
        deterministic: True takes the most probable action; False samples, as the agent did in training.

    Raises:
        ConfigError: in one line: the files are invalid, or the agent cannot act in the env.
    """
    files, interface = load_files(path, normalization), Interface.of(env)
    network = _network(files, interface).to(env.device).requires_grad_(False)
    scaling: nn.Module = nn.Identity()
    if files.statistics is not None:
        scaling = ObservationNormalizer(interface.observation)
        with prefixed(files.where):
            load_statistics(files.statistics, scaling, None)
        scaling.to(env.device)

    def act(observation: Tensor, mask: Tensor | None = None) -> Tensor:
        choices = Choices(network.actor(scaling(observation).float()), (network.actions,), mask)
        return interface.to_env(choices.mode() if deterministic else choices.sample())

    policy = Policy(interface, act)
    policy.network, policy.scaling = network, scaling
    return policy


def arena_agent(
    path: str | Path | ArenaFiles,
    env: EnvBase,
    total_frames: int = 1_000_000,
    normalization: str | Path | None = None,
    device: torch.device | str | None = None,
    **overrides: Any,
) -> Agent:
    """Returns a published agent as a native PPO of ``conf/agent/ppo_published.yaml``, ready to continue training.

    Networks, statistics, Adam's moments and the number of frames are taken from the files.

    Args:
        path: path of the ``.pt`` file, or its loaded content.
        env: world in which the agent will act.
        total_frames: length of the run, to which schedules are relative.
        normalization: see :func:`~rlstack.adapters.arena.files.load_files`.
        device: device of the networks; default: the env's.
        overrides: values that replace the configuration's.

    Raises:
        ConfigError: in one line, what is wrong with the files, the overrides or the env.

    Example:
        >>> agent = arena_agent("ppo_style2_final.pt", env, lr=5e-5)
    """
    files = load_files(path, normalization)
    _network(files, Interface.of(env))
    scaled, fixed = files.statistics is not None, structure(files)
    for key, value in fixed.items():
        if overrides.get(key, value) != value:
            raise ConfigError(f"{files.where}: agent.{key}: {overrides[key]} contradicts its weights, {value} fits")
    chosen = {"normalize_rewards": scaled, **fixed, **overrides}
    agent: Any = make_agent(CONFIGURATION, env, total_frames, device, **chosen)
    with torch.no_grad():
        for name, parameter in published_names(agent):
            parameter.copy_(files.policy[name])
    if files.statistics is not None:
        with prefixed(files.where):
            load_statistics(files.statistics, agent.normalizer, agent.reward_scaler)
    _fill_optimizer(agent, files)
    agent.set_frames(files.num_timesteps)
    return agent


def structure(files: ArenaFiles) -> dict[str, Any]:
    """Returns the options of ``agent=ppo_published`` that a checkpoint's weights and statistics determine."""
    hidden, scaled = _rebuilt(files).hidden, files.statistics is not None
    fixed = {"hidden": hidden, "shared_layers": len(hidden) - 1, "normalize_observations": scaled}
    return {"inputs": "raw", "activation": "silu", "critic_hidden": None, **fixed}


def save_arena(
    agent: Agent,
    path: str | Path,
    frames: int | None = None,
    training_state: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Writes a native PPO as the Arena stack's files: the checkpoint, its metadata and its statistics.

    Args:
        agent: a PPO with networks as published, of any widths (``agent=ppo_published``).
        path: ``<run>_<steps>_steps.pt`` or ``<run>_final.pt``.
        frames: number of frames it was trained for; default: the agent's own count.
        training_state: further content about the run, written to a separate file.

    Returns the paths of the written files, the checkpoint first.

    Raises:
        ConfigError: the agent is of another kind, or the files cannot be written.
    """
    _check_published(agent)
    names = list(published_names(agent))
    steps, now = agent.frames if frames is None else frames, datetime.datetime.now()
    checkpoint = {
        "policy_state_dict": {name: value.detach().float().cpu().clone() for name, value in names},
        "optimizer_state_dict": _published_optimizer(agent, [parameter for _, parameter in names]),
        "num_timesteps": steps,
    }
    style = STYLES.get((agent.interface.choices or (0,))[0])
    metadata = {"step": steps, "algorithm": "ppo", "style": style, "timestamp": now.isoformat(timespec="seconds")}
    statistics = None
    if agent.normalizer is not None:
        statistics = {"ret_mean": [0.0], "ret_var": [1.0], "ret_count": 0.0}
        statistics |= statistics_to_json(agent.normalizer, agent.reward_scaler)
    return write_files(Path(path), checkpoint, metadata, statistics, training_state)


def export_run(loaded: LoadedRun, out: str | None) -> list[Path]:
    """Writes a run's agent as the stack's files; a final checkpoint also gets the record of the training."""
    run = loaded.folder
    path = run / "exports" / f"{run.resolve().name}_{loaded.frames}_steps.pt" if out is None else Path(out)
    state = None
    if path.stem.endswith("_final"):
        style = STYLES.get((loaded.agent.interface.choices or (0,))[0])
        curriculum = read_checkpoint(loaded.path).get("curriculum")
        state = training_state(path, style, loaded.frames, None, curriculum)
    return save_arena(loaded.agent, path, loaded.frames, state)


def converted(
    path: str, env: EnvBase, options: Mapping[str, Any], agent_options: Mapping[str, Any]
) -> tuple[Agent, Any, int]:
    """Converts a checkpoint, see :class:`rlstack.config.rooms.Kind`."""
    files = load_files(path, **options)
    return arena_agent(files, env, **agent_options), arena_policy(files, env), files.num_timesteps


def own_world(path: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the world of a checkpoint, with its style of control."""
    return "arena", {"style": style_of(path, **options)}


def published_names(agent: Any) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a native agent with their published names, in the published order."""
    actor, critic = agent.networks["actor"], agent.networks["critic"]
    shared = [layer for layer in getattr(actor.encoder, "layers", ()) if isinstance(layer, nn.Linear)]
    parts = zip(PARTS, (shared, [actor.trunk[0], actor.output], [critic.trunk[0], critic.output]), strict=True)
    for part, layers in parts:
        for index, layer in enumerate(layers):
            yield f"{part}.{2 * index}.weight", layer.weight
            yield f"{part}.{2 * index}.bias", layer.bias


# -- checks ------------------------------------------------------------------------------------------------------


def _rebuilt(files: ArenaFiles) -> ArenaNetwork:
    with prefixed(files.where):
        return ArenaNetwork(files.policy)


def _network(files: ArenaFiles, interface: Interface) -> ArenaNetwork:
    """Returns the network, after checking that it can act in such an env."""
    network, spec = _rebuilt(files), interface.observation
    if isinstance(spec, Composite) or tuple(spec.shape) != (network.features,) or not spec.dtype.is_floating_point:
        shown = describe_observation(interface)
        raise ConfigError(f"{files.where}: it takes a vector of {network.features} features, the env shows {shown}")
    if interface.choices != (network.actions,):
        offered = interface.describe_action()
        raise ConfigError(f"{files.where}: it chooses one of {network.actions} actions, the env has {offered}")
    return network


def _check_published(agent: Any) -> None:
    c = agent.config
    fits = isinstance(agent, PPO) and type(agent).policy_and_value is PPO.policy_and_value
    fits = fits and getattr(c, "recurrent", None) is None and len(agent.interface.choices or ()) == 1
    if fits and c.activation == "silu" and c.shared_layers == len(c.hidden) - 1 and c.critic_hidden is None:
        encoder = agent.actor.encoder.encoder if c.shared_layers else agent.actor.encoder
        if isinstance(encoder, FlatEncoder):
            return
    raise ConfigError(f"this agent has other networks than the Arena stack; agent={CONFIGURATION} has such networks")


# -- Adam --------------------------------------------------------------------------------------------------------


def _fill_optimizer(agent: Any, files: ArenaFiles) -> None:
    """Loads Adam's moments; an optimiser that has made no step yet has none."""
    saved = files.optimizer.get("state")
    if not saved:
        return
    state, parameters = agent.optimizer.state_dict(), [parameter for _, parameter in published_names(agent)]
    entries = state["optimizer"]["state"] = {}
    try:
        for index, (place, parameter) in enumerate(zip(_places(agent, parameters), parameters)):
            moments = {key: saved[index][key].to(parameter).view_as(parameter) for key in ("exp_avg", "exp_avg_sq")}
            entries[place] = {"step": torch.tensor(float(saved[index]["step"])), **moments}
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{files.where}: optimizer_state_dict is not that of its network ({error})") from None
    agent.optimizer.load_state_dict(state)


def _published_optimizer(agent: Any, parameters: list[Tensor]) -> dict[str, Any]:
    """Returns Adam's state in the published order of parameters, without options of its implementation."""
    own, places = agent.optimizer.state_dict()["optimizer"], _places(agent, parameters)
    group = {key: value for key, value in own["param_groups"][0].items() if key != "params"}
    group |= {"fused": None, "foreach": None, "params": list(range(len(parameters)))}
    state = {
        index: {key: value.detach().float().cpu().clone() for key, value in own["state"][place].items()}
        for index, place in enumerate(places)
        if place in own["state"]
    }
    return {"state": state, "param_groups": [group]}


def _places(agent: Any, parameters: list[Tensor]) -> list[int]:
    """Returns the place of each of these parameters in the agent's optimiser."""
    order = {id(parameter): place for place, parameter in enumerate(agent.optimizer.parameters)}
    return [order[id(parameter)] for parameter in parameters]
