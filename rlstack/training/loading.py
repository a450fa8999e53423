"""Agents back from disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torchrl.envs import EnvBase

from rlstack.agents import Agent, build_agent
from rlstack.config import ConfigError

from .checkpoint import BEST, CheckpointError, CheckpointStore, read_checkpoint
from .run_directory import RunDirectory
from .worlds import build_world, choose_device


@dataclass
class LoadedRun:
    """A trained agent and where it comes from.

    Attributes:
        agent: with the checkpoint's parameters; ``agent.policy(explore=False)`` acts.
        config: the run's resolved configuration.
        frames: how long it had trained.
        path: the checkpoint file.
        run_dir: the run's folder, None for a checkpoint file outside of one.
    """

    agent: Agent
    config: dict[str, Any]
    frames: int
    path: Path
    run_dir: Path | None

    def make_env(self, num_worlds: int = 1, seed: int = 0, **overrides: Any) -> EnvBase:
        """The world the agent was trained in, with as many worlds as wanted."""
        return build_world(self.config["env"], self.agent.device, seed, num_worlds=num_worlds, **overrides)


def load(path: str | Path, device: torch.device | str = "cpu", which: str = "latest") -> LoadedRun:
    """Loads a run's agent.

    Args:
        path: a run directory, or a checkpoint file.
        device: where its networks are put.
        which: of a run directory: ``"latest"`` or ``"best"`` (highest evaluated success, or return).

    Raises:
        ConfigError: nothing there, or not a sound checkpoint of rlstack.

    Example:
        >>> run = rlstack.load("runs/acqn_marinenav_0")
        >>> env = run.make_env(num_worlds=16)
        >>> rollout = env.rollout(100, run.agent.policy(explore=False), break_when_any_done=False)
    """
    path = Path(path)
    try:
        file = _checkpoint_file(path, which)
        state = read_checkpoint(file)
    except CheckpointError as error:
        raise ConfigError(f"checkpoint: {error}") from None
    config = state["config"]
    env = build_world(config["env"], num_worlds=1)
    agent = build_agent(config["agent"], env, config["total_frames"], choose_device(str(device)))
    try:
        agent.load_state_dict(state["agent"])
    except (KeyError, RuntimeError, ValueError) as error:
        raise ConfigError(f"checkpoint: {file} does not fit this version of the agent ({error})") from None
    run_dir = file.parent.parent if (file.parent.parent / "config.yaml").is_file() else None
    return LoadedRun(agent, config, state["frames"], file, run_dir)


def _checkpoint_file(path: Path, which: str) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise ConfigError(f"checkpoint: {path} does not exist")
    if which not in ("latest", "best"):
        raise ConfigError(f"which: {which!r} is unknown, allowed: latest, best")
    store: CheckpointStore = RunDirectory(path).checkpoints
    file = store.latest() if which == "latest" else store.directory / BEST
    if file is None or not file.is_file():
        raise ConfigError(f"checkpoint: {path} holds no {which} checkpoint")
    return file
