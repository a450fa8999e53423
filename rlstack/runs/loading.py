"""Loads agents from checkpoints."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.agents import Agent, Interface, build_agent
from rlstack.agents.interface import difference
from rlstack.config import ConfigError, build, to_plain
from rlstack.config.allowed import check_named, granting, links_in
from rlstack.config.errors import nearest_path, unknown_key
from rlstack.config.options import renewed
from rlstack.config.overrides import override
from rlstack.files.safe_load import load_tensors

from .checkpoint import BEST, CheckpointError, CheckpointStore, read_checkpoint
from .run_directory import CONFIG, HUB, PREFIX, RunDirectory, published_file, zoo_folder
from .worlds import build_world, choose_device


@dataclass
class LoadedRun:
    """A trained agent with its run.

    Attributes:
        agent: the agent with the checkpoint's parameters; ``agent.policy(explore=False)`` acts.
        config: resolved configuration of the run.
        frames: number of frames that the agent had trained for.
        path: path of the checkpoint file.
        run_dir: folder of the run; None for a checkpoint file outside a run.
    """

    agent: Agent
    config: dict[str, Any]
    frames: int
    path: Path
    run_dir: Path | None

    @property
    def folder(self) -> Path:
        """Folder for evaluations and exports: the run's, a lone checkpoint's, or ``runs/zoo_<name>`` for the zoo."""
        if self.run_dir is None and self.path.is_relative_to(zoo_folder()):
            return Path("runs") / f"zoo_{self.path.parent.name}"
        return self.run_dir or self.path.parent

    def make_env(self, num_worlds: int = 1, seed: int = 0, **overrides: Any) -> EnvBase:
        """Builds ``num_worlds`` worlds of the kind that the agent was trained in, with other values of its options.

        Raises:
            ConfigError: the world has no such option, or a value is impossible.
        """
        world = self.config["env"]
        accepted = envs.options_of(world["name"])
        if "**" not in accepted and (unknown := [key for key in overrides if key not in accepted]):
            raise ConfigError(unknown_key(f"env.{unknown[0]}", accepted))
        return build_world(world, self.agent.device, seed, num_worlds=num_worlds, **overrides)


def load(
    path: str | os.PathLike[str],
    device: torch.device | str = "cpu",
    which: str = "latest",
    agent: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
) -> LoadedRun:
    """Loads a run's agent.

    Args:
        path: a run directory, a checkpoint file, ``zoo:<name>``, ``hf:<user>/<name>``, or the result of
            :func:`rlstack.train`.
        device: device of the networks.
        which: checkpoint of a run directory: ``"latest"`` or ``"best"`` (highest evaluated success, or return).
        agent: options that replace those of the run, such as ``cvar``, with which AC-IQN acts.
        allow: what the checkpoint may name beyond data, such as a network of your own, ``package.module:attribute``. A
            checkpoint that you wrote on this machine needs none.

    Raises:
        ConfigError: the file does not exist, is not an intact checkpoint of rlstack or names other code, or a value is
            unknown, impossible, or belongs to other networks.

    Example:
        >>> run = rlstack.load("runs/acqn_marinenav_0")
        >>> env = run.make_env(num_worlds=16)
        >>> rollout = env.rollout(100, run.agent.policy(explore=False), break_when_any_done=False)
    """
    given = dict(agent or {})
    with granting(list(allow)):
        try:
            file = checkpoint_file(Path(path), which)
            state = read_agent(file)
        except CheckpointError as error:
            raise ConfigError(f"checkpoint: {error}") from None
        run_dir = file.parent.parent if (file.parent.parent / CONFIG).is_file() else None
        if run_dir is None:
            check_named(links_in(file.parent, _RESULTS), file)
        else:
            RunDirectory.open(run_dir)
        config = state["config"]
        stored = config["agent"]
        changed = to_plain(OmegaConf.merge(stored, given))
        for key in ("algorithm", *SHAPING):
            if key in stored and _shape(key, changed[key]) != _shape(key, stored[key]):
                held = overrides({key: stored[key]})
                raise ConfigError(f"agent.{key}: cannot change, the networks of {file} are of {held}")
        with closing(build_world(config["env"], num_worlds=1)) as env:
            loaded = build_agent(changed, env, config["total_frames"], choose_device(str(device)))
    try:
        acts_only = state["agent"].get("optimizers") == {}  # an agent of the zoo
        (loaded.load_networks if acts_only else loaded.load_state_dict)(state["agent"])
        loaded.begin_episodes()  # the episodes of the run continue only in the run
    except MISFITS as error:
        what = f"the agent with {overrides(given)}" if given else "this version of the agent"
        raise ConfigError(f"checkpoint: {file} does not fit {what} ({brief(error)})") from None
    return LoadedRun(loaded, {**config, "agent": changed}, state["frames"], file, run_dir)


SHAPING = (
    *("inputs", "self_features", "object_features", "hidden", "critic_hidden", "shared_layers", "activation"),
    *("layer_norm", "join", "recurrent", "encoders", "network", "network_options"),
    *("squash", "dueling", "critic", "num_atoms", "value_min", "value_max", "normalize_observations"),
)
"""Keys of an agent's configuration that its networks depend on."""
_OF_TRAINING = ("sequence_length", "burn_in")
_RESULTS = ("evaluations", "exports", "rewards")
"""Names of the folders for results beside a checkpoint that is not in a run."""


def _shape(key: str, value: Any) -> Any:
    """Returns the part of such a key's value that the networks depend on."""
    if key != "recurrent" or not isinstance(value, Mapping):
        return value
    return {name: entry for name, entry in value.items() if name not in _OF_TRAINING}


def run_policy(path: str, env: EnvBase, which: str = "latest", explore: bool = False) -> TensorDictModuleBase:
    """Loads the policy of a run directory or checkpoint for an env; see :func:`rlstack.agents.legacy.load_policy`."""
    agent = load(path, device=env.device or "cpu", which=which).agent
    fault = difference(agent.interface, Interface.of(env))
    if fault is not None:
        raise ConfigError(f"{path}: the agent does not fit the env: {fault}")
    return agent.policy(explore=explore)


def zoo_policy(name: str, env: EnvBase, explore: bool = False) -> TensorDictModuleBase:
    """Loads the policy of an agent that comes with rlstack; see :func:`rlstack.agents.legacy.load_policy`."""
    return run_policy(f"{PREFIX}{name}", env, explore=explore)


def hub_policy(name: str, env: EnvBase, explore: bool = False) -> TensorDictModuleBase:
    """Loads the policy of an agent of the Hugging Face Hub; see :func:`rlstack.agents.legacy.load_policy`."""
    return run_policy(f"{HUB}{name}", env, explore=explore)


def initialise(agent: Agent, path: str | Path) -> None:
    """Loads the networks and targets of a checkpoint into an agent; its optimisers, counters and schedules stay new.

    A user's own networks may also take weights from a file of ``torch.save``; see :meth:`Agent.take_weights`.

    Raises:
        ConfigError: there is no intact checkpoint, or its networks do not fit; the message names options that fit.
    """
    weights = None
    if agent.own.roles and Path(path).is_file():
        with suppress(OSError, ValueError):  # reported where it is read as a checkpoint
            weights = load_tensors(path)
    # A state dict, or several by role.
    if isinstance(weights, Mapping) and weights and all(isinstance(v, Tensor | Mapping) for v in weights.values()):
        try:
            agent.take_weights(weights)
        except MISFITS as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"init: the weights of {path} do not fit agent.network ({brief(error)})") from None
        return
    try:
        file = checkpoint_file(Path(path), "latest")
        state = read_agent(file)
    except (CheckpointError, ConfigError) as error:
        raise ConfigError(f"init: {str(error).removeprefix('checkpoint: ')}") from None
    ours, theirs = to_plain(agent.config), state["config"]["agent"]
    # A published variant has the same networks.
    if len({chosen["algorithm"].removesuffix("_published") for chosen in (ours, theirs)}) > 1:
        held, given = _chosen(state["config"]), f"agent={ours['name']}"
        raise ConfigError(f"init: {file} holds the networks of {held}; write these options instead of {given}")
    with suppress(ConfigError):  # options of another version stay as they are
        theirs = to_plain(build(type(agent.config), theirs))  # with the defaults of those that it lacks
    both = [key for key in SHAPING if key in ours and key in theirs]
    other = {key: theirs[key] for key in both if _shape(key, ours[key]) != _shape(key, theirs[key])}
    if other:
        raise ConfigError(f"init: {file} holds other networks; also set {overrides(other)}")
    saved = state["agent"]
    try:
        for name, network in agent.networks.items():
            # The new agent may begin to scale rewards, or to explore by curiosity.
            if name in saved["networks"] or name not in ("reward_scaler", "curiosity"):
                network.load_state_dict(saved["networks"][name])
        for name, target in agent.targets.items():
            held = saved["targets"].get(name)
            target.network.load_state_dict(target.source.state_dict() if held is None else held)
        agent.begin_episodes()
    except MISFITS as error:
        made = f"they were made with {_chosen(state['config'])}"
        raise ConfigError(
            f"init: the networks of {file} do not fit this agent and env ({brief(error)}); {made}"
        ) from None


def _chosen(config: Mapping[str, Any]) -> str:
    """Returns the options that choose the agent and the world of a run's configuration."""
    agent, env = config["agent"], config["env"]
    own = ":" in agent["algorithm"]
    given = {"agent": agent["algorithm" if own else "name"], "env": env["name"]}
    if isinstance(env.get("id"), str):
        given["env.id"] = env["id"]
    return " ".join(shlex.quote(override(key, value)) for key, value in given.items())


def unfinished(run: RunDirectory, total_frames: int, last_frame: int) -> dict[str, Any] | None:
    """Returns the newest intact state of a run that will continue to ``last_frame``; None without a checkpoint.

    Raises:
        ConfigError: no checkpoint is intact, it is not that of a run or names something that the user has not allowed,
            or the run is complete.
    """
    checkpoints = run.checkpoints
    if checkpoints.latest() is None and not (checkpoints.directory / BEST).exists():
        return None
    try:
        state = checkpoints.load()
        check_content(state, checkpoints.directory / BEST, OF_A_RUN)
    except CheckpointError as error:
        raise ConfigError(f"resume: {error}") from None
    run.refuse_finished(state["frames"], total_frames, last_frame)
    return state


OF_A_RUN: dict[str, Any] = {
    **{"frames": int, "agent": dict, "config": dict},
    **{f"config.{group}": dict for group in ("agent", "env", "collector", "logger")},
}
"""Entries of a checkpoint from which a run continues, with their types."""
OF_AN_AGENT: dict[str, Any] = {
    **{"frames": int, "agent": dict, "agent.networks": dict, "agent.targets": dict},
    **{"config.agent": dict, "config.agent.name": str, "config.agent.algorithm": str},
    **{"config.env": dict, "config.env.name": str, "config.total_frames": (int, float)},  # 1e6 is a float in yaml
}
"""Entries from which an agent is built."""
MISFITS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""Errors that loading another agent's state raises."""


def check_content(state: dict[str, Any], file: Path, needed: Mapping[str, Any] = OF_AN_AGENT) -> None:
    """Checks what an intact checkpoint says: what it names beyond data, and that it has the entries that are needed.

    Raises:
        CheckpointError: an entry is missing or of another type.
        ConfigError: it names something that the user has not allowed.
    """
    check_named(state, file)
    for entry, kind in needed.items():
        value: Any = state
        for key in entry.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            what = "a trained agent" if needed is OF_AN_AGENT else "a run"
            raise CheckpointError(f"{file}: not a checkpoint of {what}, it lacks {entry}")


def read_agent(file: Path) -> dict[str, Any]:
    """Reads the state in a checkpoint and checks the entries from which an agent is built.

    Raises:
        CheckpointError: the checkpoint is damaged, or not that of an agent.
        ConfigError: it names something that the user has not allowed, or has options that this version lacks.
    """
    state = read_checkpoint(file)
    check_content(state, file)
    return {**state, "config": renewed(state["config"])}


def brief(error: Exception) -> str:
    """Returns the last line of an error, in which torch names the tensor."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
    return line if len(line) < 200 else f"{line[:200]} ..."


def overrides(values: Mapping[str, Any]) -> str:
    """Formats an agent's keys and values as overrides for a shell."""
    return " ".join(shlex.quote(override(f"agent.{key}", value)) for key, value in values.items())


def checkpoint_file(path: Path, which: str, key: str = "checkpoint") -> Path:
    """Returns the checkpoint of a run directory, or the file itself.

    Args:
        path: a run directory, a checkpoint file, ``zoo:<name>`` or ``hf:<user>/<name>``.
        which: ``"latest"`` or ``"best"``.
        key: option with the path, for messages.

    Raises:
        ConfigError: there is no checkpoint, or ``which`` is unknown.
    """
    if which not in ("latest", "best"):
        raise ConfigError(f"which: {which!r} is unknown, allowed: latest, best")
    file = published_file(str(path)) if str(path).startswith((PREFIX, HUB)) else path
    if file.is_file():
        if which == "best" and file.name != BEST:
            raise ConfigError(f"which: best is for the folder of a run, {path} is one checkpoint")
        return file
    if not path.is_dir():
        raise ConfigError(f"{key}: {path} does not exist{nearest_path(path)}")
    store: CheckpointStore = RunDirectory(path).checkpoints
    held = store.latest() if which == "latest" else store.directory / BEST
    if held is None or not held.is_file():
        within = sorted(str(file.parent) for file in path.glob(f"*/{CONFIG}"))
        one = f"; choose one of its runs, such as {within[0]}" if within else ""
        raise ConfigError(f"{key}: {path} holds no {which} checkpoint{one}")
    return held
