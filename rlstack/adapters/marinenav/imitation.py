"""``imitation_learning`` of the published configuration: a trial that clones an expert, and does nothing else.

The configuration names no expert, so the command line does. Nothing is learnt from rewards: the trial ends with the
cloning, and is evaluated once, at timestep 0.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envs.bounded_files import check_regular
from rlstack.agents import build_agent
from rlstack.config import ConfigError, build
from rlstack.runs.run_directory import RunDirectory
from rlstack.runs.worlds import build_world, choose_device
from rlstack.training.config import TrainConfig
from rlstack.training.imitation import Imitation

from .trial import Trial

OPTION = "-I/--imitate"
_RECORDED = {"timesteps.npy", "action.npy"}
"""Members of which every file of recorded episodes has one: the published trainer's, or ours."""
_WORLDS = 16


def check_wanted(trials: Sequence[Trial], expert: str | None) -> None:
    """An expert is given if, and only if, there is a trial that imitates.

    Raises:
        ConfigError: it is not so.
    """
    wanted = any(trial.imitation_learning for trial in trials)
    if wanted and expert is None:
        raise ConfigError(
            f"imitation_learning: true needs {OPTION} <expert>: a run directory, a checkpoint, kind:path of an agent "
            "from elsewhere, or recorded episodes (.npz)"
        )
    if expert is not None and not wanted:
        raise ConfigError(f"{OPTION}: there is nothing to imitate for, imitation_learning is false")


def train_config(trial: Trial, device: str, expert: str | None) -> dict[str, Any]:
    """``trial.train_config(device)``, with the expert where the trial imitates.

    The expert acts in worlds of all levels of the training schedule, drawn evenly: a curriculum is for who learns by
    trying.

    Args:
        trial: what to do.
        device: torch's name of it.
        expert: a policy, or a file of recorded episodes, whose name ends in ``.npz``.
    """
    plain = trial.train_config(device)
    if trial.imitation_learning and expert is not None:
        plain["imitation"] |= {"episodes" if _is_file(expert) else "expert": expert, "only": True}
        levels = {**asdict(trial.training_schedule), "timesteps": None}
        plain["env"] |= {"num_worlds": _WORLDS, "curriculum": levels}
    return plain


def check_expert(plain: dict[str, Any], agent_type: str) -> None:
    """Finds the expert, and tries whether the agent can imitate it.

    Args:
        plain: of :func:`train_config`.
        agent_type: the learner, as published.

    Raises:
        ConfigError: no such expert, or one that does not fit.
    """
    config = build(TrainConfig, plain)
    if not config.imitation.wanted:
        return
    if config.imitation.episodes is not None:
        _check_recorded(config.imitation.episodes)
    device = choose_device(config.device)
    agent = build_agent(config.agent, build_world(config.env, device, config.seed), config.total_frames, device)
    try:
        Imitation(config).find(agent)
    except ConfigError as error:
        who = config.imitation.expert or config.imitation.episodes
        reason = str(error).removeprefix("imitation.expert: ").removeprefix("imitation.episodes: ")
        reason = reason.removeprefix(f"{who}: ").partition("; set env.")[0]  # the agent type sets it here
        raise ConfigError(f"{OPTION}: {agent_type} cannot imitate {who}: {reason}") from None


def stored_expert(trial: Trial, folder: Path) -> str | None:
    """Whom a trial that was begun imitates.

    Raises:
        ConfigError: the trial's ``config.yaml`` cannot be read, or names nobody although the trial imitates.
    """
    if not trial.imitation_learning:
        return None
    group = RunDirectory.open(folder).read_config().get("imitation")
    found = (group.get("expert") or group.get("episodes")) if isinstance(group, dict) else None
    if found is None:
        raise ConfigError(f"{folder}: config.yaml names nobody to imitate")
    return str(found)


def _is_file(expert: str) -> bool:
    return expert.endswith(".npz") and (":" not in expert or Path(expert).exists())


def _check_recorded(path: str) -> None:
    """Weights are published as ``.npz``, too."""
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            recorded = not _RECORDED.isdisjoint(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return  # reading it tells
    if not recorded:
        raise ConfigError(f"{OPTION}: {path} holds no recorded episodes; of published weights give marinenav:{path}")
