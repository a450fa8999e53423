"""Agents of the Arena game's own PPO stack: as policies, as native agents that can be trained on, and back again.

A checkpoint of the stack is ``<run>_<steps>_steps.pt`` or ``<run>_final.pt``, with ``policy_state_dict``,
``optimizer_state_dict`` and ``num_timesteps``. Next to it are ``<name>_metadata.json`` (step, algorithm, style, time)
and the statistics that it was trained with, ``<name>_normalization.json``. A final checkpoint has
``<run>_normalization_final.json`` instead, and the record of the training with its curriculum,
``<name>_training_state.json``. All are read as plain data.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import Composite
from torchrl.envs import EnvBase

from rlstack.adapters.sb3.model import Weights, perceptron
from rlstack.agents import Agent, Interface, make_agent
from rlstack.agents.base import Policy
from rlstack.agents.compatibility import describe_observation
from rlstack.agents.optimizer import Info
from rlstack.agents.ppo import PPO
from rlstack.config import ConfigError, Interval, convert
from rlstack.config.errors import prefixed
from rlstack.data.normalizers import ObservationNormalizer, RewardScaler, RunningMoments
from rlstack.envs.foundation.files import replacing
from rlstack.files.safe_load import load_tensors, read_json_object, reason
from rlstack.networks.distributions import Choices
from rlstack.networks.encoders import FlatEncoder
from rlstack.runs.checkpoint import read_checkpoint
from rlstack.runs.loading import LoadedRun

CONFIGURATION = "ppo_published"
"""The file in ``conf/agent`` with the algorithm and options by which these agents were trained."""
PARTS = ("shared_net", "actor", "critic")
STYLES = {5: 1, 6: 2}
"""The game's style of control by the number of its actions."""
NONE = "none"
"""The word that replaces a file of statistics for an agent that was trained without any."""
_STEPS = re.compile(r"(?P<run>.+)_(?P<steps>\d+)_steps")
_FINAL = "_final"


class PublishedPPO(PPO):
    """PPO as in the Arena game's own stack.

    - Minibatches have exactly ``minibatch_size`` entries, the last one what is left.
    - Metrics, and the distance that ``target_kl`` bounds, are means over all minibatches of an update so far.
    - Running statistics divide the variance of each batch by N - 1.
    """

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        for statistics in (self.normalizer, self.reward_scaler):
            for module in () if statistics is None else statistics.modules():
                if isinstance(module, RunningMoments):
                    module.unbiased = True

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        self._reports: list[Info] = []
        return super().update(batch)

    def minibatch_sizes(self, rows: int, size: int) -> list[int]:
        """Returns parts of exactly ``size``, the last one with what is left."""
        whole, rest = divmod(rows, size)
        return [size] * whole + [rest] * (rest > 0)

    reports_all = True

    def metrics(self, loss: Tensor, norm: Tensor, info: Info) -> dict[str, Tensor | float]:
        """Returns the means over all minibatches of this update so far."""
        latest: Any = super().metrics(loss, norm, info)
        self._reports.append({name: value.clone() for name, value in latest.items()})  # the next step may overwrite it
        return {name: torch.stack([metrics[name] for metrics in self._reports]).mean() for name in latest}


# -- files -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArenaFiles:
    """The content of a checkpoint and of the files next to it.

    Attributes:
        policy: weights by their published names, in float32.
        optimizer: Adam's state in torch's format; empty if there is none.
        num_timesteps: number of env steps it was trained for.
        statistics: statistics of observations and returns, see
            :func:`statistics_to_json`; None for an agent that was trained without.
        training_state: the record of the training; empty if there is none.
        where: the file, for messages.
    """

    policy: dict[str, Tensor]
    optimizer: dict[str, Any]
    num_timesteps: int
    statistics: dict[str, Any] | None
    training_state: dict[str, Any]
    where: str

    @property
    def network(self) -> ArenaNetwork:
        """Its network; raises a :class:`ConfigError` if the weights are those of another one."""
        with prefixed(self.where):
            return ArenaNetwork(self.policy)


def load_files(path: str | Path | ArenaFiles, normalization: str | Path | None = None) -> ArenaFiles:
    """Reads a checkpoint and the files next to it; nothing in the files is executed.

    Args:
        path: the ``.pt`` file, or its loaded content, which is returned as it is.
        normalization: file of its statistics; ``"none"`` for an agent that was trained without; None finds them by
            :func:`find_statistics`.

    Raises:
        ConfigError: in one line: no such file, not such a checkpoint, or no statistics.
    """
    if isinstance(path, ArenaFiles):
        return path
    path = Path(path)
    try:
        content = load_tensors(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {reason(error)}") from None
    with prefixed(f"{path}: not a checkpoint of the Arena stack"):
        entries = convert(dict[str, Any], content, "it")
        policy = convert(dict[str, Any], entries.get("policy_state_dict"), "policy_state_dict")
        steps = convert(Annotated[int, Interval(low=0)], entries.get("num_timesteps"), "num_timesteps")
        for name, value in policy.items():
            if not isinstance(value, Tensor) or not torch.isfinite(value).all():
                raise ConfigError(f"its weight {name!r} is not a tensor of finite numbers")
        optimizer = entries.get("optimizer_state_dict") or {}
        if not policy or not isinstance(optimizer, Mapping):
            raise ConfigError("it has no weights, or an optimizer_state_dict of another kind")
    statistics = None
    if str(normalization) != NONE:
        file = find_statistics(path) if normalization is None else Path(normalization)
        if file is None:
            advice = f"set normalization=<file>, or normalization={NONE} for an agent that was trained without"
            raise ConfigError(f"{path}: no statistics beside it; {advice}")
        statistics = read_json_object(file)
    beside = path.with_name(f"{path.stem}_training_state.json")
    record = read_json_object(beside) if beside.is_file() else {}
    weights = {name: value.float() for name, value in policy.items()}
    return ArenaFiles(weights, dict(optimizer), steps, statistics, record, str(path))


def find_statistics(path: Path) -> Path | None:
    """Returns the file of a checkpoint's statistics, or None if there is none.

    A final checkpoint has those of the end of the run, others those of the same step or the nearest step before it; a
    checkpoint of any other name has those named after it.
    """
    named = _STEPS.fullmatch(path.stem)
    if named is None:
        final = path.stem.endswith(_FINAL)
        name = f"{path.stem.removesuffix(_FINAL)}_normalization{_FINAL}" if final else f"{path.stem}_normalization"
        own = path.with_name(f"{name}.json")
        return own if own.is_file() else None
    earlier: dict[int, Path] = {}
    for other in path.parent.glob("*_normalization.json"):
        match = _STEPS.fullmatch(other.name.removesuffix("_normalization.json"))
        if match is not None and match["run"] == named["run"] and int(match["steps"]) <= int(named["steps"]):
            earlier[int(match["steps"])] = other
    return earlier[max(earlier)] if earlier else None


def write_files(
    path: Path,
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    statistics: Mapping[str, Any] | None,
    training_state: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Writes a checkpoint and the files that belong next to it: all of them or none.

    Args:
        path: path of the checkpoint, ``*.pt``.
        training_state: content of ``<name>_training_state.json``, if given.

    Raises:
        ConfigError: the name does not end in ``.pt``, or writing fails.
    """
    if path.suffix != ".pt":
        raise ConfigError(f"out: {path} must end in .pt")
    stem, run = path.stem, path.stem.removesuffix(_FINAL)
    own = f"{run}_normalization{_FINAL}.json" if stem.endswith(_FINAL) else f"{stem}_normalization.json"
    texts = {f"{stem}_metadata.json": metadata, own: statistics, f"{stem}_training_state.json": training_state}
    files = {path.with_name(name): content for name, content in texts.items() if content is not None}
    try:
        with replacing(path, *files) as (weights, *others):
            with weights.open("wb") as file:  # not by its name, which torch writes into the file
                torch.save(dict(checkpoint), file)
            for other, entries in zip(others, files.values()):
                other.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    except (OSError, RuntimeError) as error:  # the latter of torch's writer
        raise ConfigError(f"out: {path} cannot be written ({reason(error)})") from None
    return [path, *files]


# -- statistics --------------------------------------------------------------------------------------------------------


def statistics_to_json(observations: ObservationNormalizer | None, rewards: RewardScaler | None) -> dict[str, Any]:
    """Returns running statistics as numbers and lists: ``obs_mean [F]``, ``obs_var [F]``, ``obs_count``,
    ``ret_mean [1]``, ``ret_var [1]``, ``ret_count``; the entries of an argument that is None are left out.

    F is the size of an observation; the leaves of a structured one are concatenated in the order of its keys.

    Raises:
        ConfigError: an observation with object slots, whose statistics have separate counts.
    """
    entries: dict[str, Any] = {}
    for prefix, parts in _moments(observations, rewards).items():
        for name in ("mean", "var"):
            entries[f"{prefix}_{name}"] = torch.cat([getattr(part, name).reshape(-1) for part in parts]).tolist()
        entries[f"{prefix}_count"] = float(parts[0].count)
    return entries


def load_statistics(
    entries: Mapping[str, Any], observations: ObservationNormalizer | None, rewards: RewardScaler | None
) -> None:
    """The inverse of :func:`statistics_to_json`. The statistics keep their device and dtype.

    Raises:
        ConfigError: a missing entry, one of the wrong kind or length, or an impossible number.
    """
    for prefix, parts in _moments(observations, rewards).items():
        sizes, numbers = [part.mean.numel() for part in parts], list[Tensor]()
        for name, size in (("mean", sum(sizes)), ("var", sum(sizes)), ("count", None)):
            given, kind = entries.get(f"{prefix}_{name}"), "a number" if size is None else f"a list of {size} numbers"
            values: Any = [given] if size is None else given
            whole = isinstance(values, list) and len(values) == (size or 1)
            if not whole or not all(type(value) in (int, float) and math.isfinite(value) for value in values):
                raise ConfigError(f"statistics: {prefix}_{name} must be {kind}, all finite")
            numbers.append(torch.tensor(values, dtype=torch.float64))
        mean, var, count = numbers
        if bool((var < 0).any()) or float(count) < 0:
            raise ConfigError(f"statistics: {prefix}_var and {prefix}_count must not be negative")
        for part, *moments in zip(parts, mean.split(sizes), var.split(sizes)):
            part.set(*moments, count)


def _moments(observations: ObservationNormalizer | None, rewards: RewardScaler | None) -> dict[str, list[Any]]:
    """Returns the moments by the beginning of their entries' names."""
    parts: dict[str, list[Any]] = {}
    if observations is not None:
        parts["obs"] = list(observations.moments)
        if not parts["obs"] or observations._slots:
            raise ConfigError(
                "statistics: observations with object slots, or with nothing normalised, have no JSON form"
            )
    return parts if rewards is None else {**parts, "ret": [rewards.moments]}


# -- the curriculum in the record of a training ------------------------------------------------------------------------


COLUMNS = {
    "spawner_kills": "spawners",
    "wins": "success",
    "episode_lengths": "length",
    "episode_rewards": "return",
    "enemy_kills": "enemies",
    "damage_dealt": "damage_dealt",
    "damage_taken": "damage_taken",
}
"""The stack's lists of episodes, and the episode statistics that ours contain for them."""
_WIN_TIMES, _MOST, _MOST_WINS = "win_times", 200, 100


def curriculum_to_published(state: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a curriculum's ``state_dict`` to the stack's stage and lists of episodes by age."""
    columns: Mapping[str, list[float]] = state["episodes"]["columns"]
    metrics = {name: list(columns.get(ours, ()))[-_MOST:] for name, ours in COLUMNS.items()}
    won = zip(columns.get("length", ()), columns.get("success", ()))
    metrics[_WIN_TIMES] = [length for length, success in won if success > 0][-_MOST_WINS:]
    return {"curriculum_stage_index": state["stage"], "curriculum_metrics": metrics}


def curriculum_from_published(entries: Mapping[str, Any], begun: int = 0) -> dict[str, Any]:
    """The inverse, for a curriculum's ``load_state_dict``; won episodes that are too old for the lists are lost.

    Args:
        begun: frame of the run at which the stage began, which is not in the record.

    Raises:
        ConfigError: the entries are not those of such a record.
    """
    key, columns = "curriculum_stage_index", {}
    with prefixed("not the state of a curriculum"):
        stage = convert(Annotated[int, Interval(low=0)], entries.get(key), key)
        metrics = convert(dict[str, Any], entries.get("curriculum_metrics"), "curriculum_metrics")
        for name, ours in COLUMNS.items():
            values = convert(list[bool | float], metrics.get(name), f"curriculum_metrics.{name}")
            columns[ours] = [float(value) for value in values]
        lengths = {len(column) for column in columns.values() if column}
        if len(lengths) > 1:
            raise ConfigError(f"its lists are of {sorted(lengths)} episodes")
    count = max(lengths, default=0)
    filled = {name: column or [0.0] * count for name, column in columns.items()}
    return {"stage": stage, "begun": begun, "episodes": {"columns": filled, "count": count}, "older": []}


# -- agents ------------------------------------------------------------------------------------------------------------


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
    actions = files.network.actions
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
        normalization: see :func:`load_files`.
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
        normalization: see :func:`load_files`.
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
    if moments := files.optimizer.get("state"):  # an optimiser that has made no step yet has none
        state, parameters = agent.optimizer.state_dict(), [parameter for _, parameter in published_names(agent)]
        entries = state["optimizer"]["state"] = {}
        try:
            for index, (place, parameter) in enumerate(zip(_places(agent, parameters), parameters)):
                own = {key: moments[index][key].to(parameter).view_as(parameter) for key in ("exp_avg", "exp_avg_sq")}
                entries[place] = {"step": torch.tensor(float(moments[index]["step"])), **own}
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{files.where}: optimizer_state_dict is not that of its network ({error})") from None
        agent.optimizer.load_state_dict(state)
    agent.set_frames(files.num_timesteps)
    return agent


def structure(files: ArenaFiles) -> dict[str, Any]:
    """Returns the options of ``agent=ppo_published`` that a checkpoint's weights and statistics determine."""
    hidden, scaled = files.network.hidden, files.statistics is not None
    fixed = {"hidden": hidden, "shared_layers": len(hidden) - 1, "normalize_observations": scaled}
    return {"inputs": "raw", "activation": "silu", "critic_hidden": None, **fixed}


def save_arena(
    agent: Any, path: str | Path, frames: int | None = None, curriculum: Mapping[str, Any] | None = None
) -> list[Path]:
    """Writes a native PPO as the Arena stack's files: the checkpoint, its metadata and its statistics.

    Args:
        agent: a PPO with networks as published, of any widths (``agent=ppo_published``).
        path: ``<run>_<steps>_steps.pt``, or ``<run>_final.pt``, which also gets the record of the training.
        frames: number of frames it was trained for; default: the agent's own count.
        curriculum: the curriculum's ``state_dict`` for the record; None for a training without one.

    Returns the paths of the written files, the checkpoint first.

    Raises:
        ConfigError: the agent is of another kind, or the files cannot be written.
    """
    c = agent.config
    fits = isinstance(agent, PPO) and type(agent).policy_and_value is PPO.policy_and_value
    fits = fits and getattr(c, "recurrent", None) is None and len(agent.interface.choices or ()) == 1
    fits = fits and c.activation == "silu" and c.shared_layers == len(c.hidden) - 1 and c.critic_hidden is None
    if fits:
        encoder = agent.actor.encoder.encoder if c.shared_layers else agent.actor.encoder
        fits = isinstance(encoder, FlatEncoder)
    if not fits:
        raise ConfigError(
            f"this agent has other networks than the Arena stack; agent={CONFIGURATION} has such networks"
        )
    path, steps = Path(path), agent.frames if frames is None else frames
    style, now = STYLES.get((agent.interface.choices or (0,))[0]), datetime.datetime.now().isoformat(timespec="seconds")
    names = dict(published_names(agent))
    own, places = agent.optimizer.state_dict()["optimizer"], _places(agent, list(names.values()))
    moments = {
        index: {key: value.detach().float().cpu().clone() for key, value in own["state"][place].items()}
        for index, place in enumerate(places)
        if place in own["state"]
    }
    group = {key: value for key, value in own["param_groups"][0].items() if key != "params"}
    group |= {"fused": None, "foreach": None, "params": list(range(len(names)))}  # nothing of the implementation
    checkpoint = {
        "policy_state_dict": {name: value.detach().float().cpu().clone() for name, value in names.items()},
        "optimizer_state_dict": {"state": moments, "param_groups": [group]},
        "num_timesteps": steps,
    }
    metadata = {"step": steps, "algorithm": "ppo", "style": style, "timestamp": now}
    statistics = record = None
    if agent.normalizer is not None:
        statistics = {"ret_mean": [0.0], "ret_var": [1.0], "ret_count": 0.0}
        statistics |= statistics_to_json(agent.normalizer, agent.reward_scaler)
    if path.stem.endswith(_FINAL):
        published = {"curriculum_stage_index": None, "curriculum_metrics": None}
        record = {
            "model_path": str(path),
            "algo": "ppo",
            "style": style,
            "total_timesteps_completed": steps,
            "total_episodes": None,
            **(published if curriculum is None else curriculum_to_published(curriculum)),
            "vecnormalize_path": str(path.with_name(f"{path.stem.removesuffix(_FINAL)}_normalization{_FINAL}.json")),
            "replay_buffer_path": None,
            "created_at": now,
            "last_updated": now,
        }
    return write_files(path, checkpoint, metadata, statistics, record)


def export_run(loaded: LoadedRun, out: str | None) -> list[Path]:
    """Writes a run's agent as the stack's files."""
    run = loaded.folder
    path = run / "exports" / f"{run.resolve().name}_{loaded.frames}_steps.pt" if out is None else Path(out)
    return save_arena(loaded.agent, path, loaded.frames, read_checkpoint(loaded.path).get("curriculum"))


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


def _network(files: ArenaFiles, interface: Interface) -> ArenaNetwork:
    """Returns the network, after checking that it can act in such an env."""
    network, spec = files.network, interface.observation
    if isinstance(spec, Composite) or tuple(spec.shape) != (network.features,) or not spec.dtype.is_floating_point:
        shown = describe_observation(interface)
        raise ConfigError(f"{files.where}: it takes a vector of {network.features} features, the env shows {shown}")
    if interface.choices != (network.actions,):
        offered = interface.describe_action()
        raise ConfigError(f"{files.where}: it chooses one of {network.actions} actions, the env has {offered}")
    return network


def _places(agent: Any, parameters: list[Tensor]) -> list[int]:
    """Returns the place of each of these parameters in the agent's optimiser."""
    order = {id(parameter): place for place, parameter in enumerate(agent.optimizer.parameters)}
    return [order[id(parameter)] for parameter in parameters]
