"""Reads the files of the Arena game's own training stack as plain data, and writes them.

A checkpoint is ``<run>_<steps>_steps.pt`` or ``<run>_final.pt``, with ``policy_state_dict``, ``optimizer_state_dict``
and ``num_timesteps``. Next to it are ``<name>_metadata.json`` (step, algorithm, style, time) and the statistics that it
was trained with, ``<name>_normalization.json``. A final checkpoint has ``<run>_normalization_final.json`` instead, and
the record of the training with its curriculum, ``<name>_training_state.json``.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from rlstack.config import ConfigError, Interval, convert
from rlstack.config.errors import prefixed
from rlstack.envs.foundation.files import replacing
from rlstack.files.safe_load import load_tensors, read_json_object, reason

NONE = "none"
"""The word that replaces a file of statistics for an agent that was trained without any."""

_STEPS = re.compile(r"(?P<run>.+)_(?P<steps>\d+)_steps")
_FINAL = "_final"


@dataclass(frozen=True)
class ArenaFiles:
    """The content of a checkpoint and of the files next to it.

    Attributes:
        policy: weights by their published names, in float32.
        optimizer: Adam's state in torch's format; empty if there is none.
        num_timesteps: number of env steps it was trained for.
        statistics: statistics of observations and returns, see
            :func:`~rlstack.adapters.arena.statistics.statistics_to_json`; None for an agent that was trained without.
        metadata, training_state: content of the files next to it; empty if there is no such file.
        where: the file, for messages.
    """

    policy: dict[str, Tensor]
    optimizer: dict[str, Any]
    num_timesteps: int
    statistics: dict[str, Any] | None
    metadata: dict[str, Any]
    training_state: dict[str, Any]
    where: str


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
        policy, optimizer, steps = _checked(content)
    beside = [path.with_name(f"{path.stem}_{name}.json") for name in ("metadata", "training_state")]
    metadata, training_state = (read_json_object(file) if file.is_file() else {} for file in beside)
    return ArenaFiles(
        policy=policy,
        optimizer=optimizer,
        num_timesteps=steps,
        statistics=_statistics(path, normalization),
        metadata=metadata,
        training_state=training_state,
        where=str(path),
    )


def _checked(content: Any) -> tuple[dict[str, Tensor], dict[str, Any], int]:
    """Returns weights, the optimiser's state and the number of steps in a checkpoint."""
    entries = convert(dict[str, Any], content, "it")
    policy = convert(dict[str, Any], entries.get("policy_state_dict"), "policy_state_dict")
    steps = convert(Annotated[int, Interval(low=0)], entries.get("num_timesteps"), "num_timesteps")
    for name, value in policy.items():
        if not isinstance(value, Tensor) or not torch.isfinite(value).all():
            raise ConfigError(f"its weight {name!r} is not a tensor of finite numbers")
    optimizer = entries.get("optimizer_state_dict") or {}
    if not policy or not isinstance(optimizer, Mapping):
        raise ConfigError("it has no weights, or an optimizer_state_dict of another kind")
    return {name: value.float() for name, value in policy.items()}, dict(optimizer), steps


# -- what lies beside --------------------------------------------------------------------------------------------


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


def _statistics(path: Path, given: str | Path | None) -> dict[str, Any] | None:
    if str(given) == NONE:
        return None
    file = find_statistics(path) if given is None else Path(given)
    if file is None:
        raise ConfigError(
            f"{path}: no statistics beside it; set normalization=<file>, or normalization={NONE} for an agent that "
            "was trained without"
        )
    return read_json_object(file)


# -- writing -----------------------------------------------------------------------------------------------------


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


# -- the record of a training ------------------------------------------------------------------------------------

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
    """Converts a curriculum's ``state_dict`` to ``current_stage_index`` and ``metrics``, lists of episodes by age."""
    columns: Mapping[str, list[float]] = state["episodes"]["columns"]
    metrics = {name: list(columns.get(ours, ()))[-_MOST:] for name, ours in COLUMNS.items()}
    won = zip(columns.get("length", ()), columns.get("success", ()))
    metrics[_WIN_TIMES] = [length for length, success in won if success > 0][-_MOST_WINS:]
    return {"current_stage_index": state["stage"], "metrics": metrics}


def curriculum_from_published(entries: Mapping[str, Any], begun: int = 0) -> dict[str, Any]:
    """The inverse, for a curriculum's ``load_state_dict``; won episodes that are too old for the lists are lost.

    Args:
        begun: frame of the run at which the stage began, which is not in the record.

    Raises:
        ConfigError: the entries are not those of such a record.
    """
    key, columns = "current_stage_index", {}
    with prefixed("not the state of a curriculum"):
        stage = convert(Annotated[int, Interval(low=0)], entries.get(key), key)
        metrics = convert(dict[str, Any], entries.get("metrics"), "metrics")
        for name, ours in COLUMNS.items():
            values = convert(list[bool | float], metrics.get(name), f"metrics.{name}")
            columns[ours] = [float(value) for value in values]
        lengths = {len(column) for column in columns.values() if column}
        if len(lengths) > 1:
            raise ConfigError(f"its lists are of {sorted(lengths)} episodes")
    count = max(lengths, default=0)
    filled = {name: column or [0.0] * count for name, column in columns.items()}
    return {"stage": stage, "begun": begun, "episodes": {"columns": filled, "count": count}, "older": []}


def training_state(
    model: Path, style: int | None, frames: int, episodes: int | None, curriculum: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns the content of the record of a training.

    Args:
        model: the checkpoint that it belongs to.
        style: style of control.
        frames: number of frames the agent was trained for.
        episodes: number of episodes finished in that time; None if they were not counted.
        curriculum: the curriculum's ``state_dict``; None for a training without one.
    """
    now = datetime.datetime.now().isoformat(timespec="seconds")
    published = None if curriculum is None else curriculum_to_published(curriculum)
    return {
        "model_path": str(model),
        "algo": "ppo",
        "style": style,
        "total_timesteps_completed": frames,
        "total_episodes": episodes,
        "curriculum_stage_index": None if published is None else published["current_stage_index"],
        "curriculum_metrics": None if published is None else published["metrics"],
        "vecnormalize_path": str(model.with_name(f"{model.stem.removesuffix('_final')}_normalization_final.json")),
        "replay_buffer_path": None,
        "created_at": now,
        "last_updated": now,
    }
