"""The Arena stack's record of a finished training, ``<run>_final_training_state.json``, and its curriculum in it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlstack.config import ConfigError

COLUMNS = {
    "spawner_kills": "spawners",
    "wins": "success",
    "episode_lengths": "length",
    "episode_rewards": "return",
    "enemy_kills": "enemies",
    "damage_dealt": "damage_dealt",
    "damage_taken": "damage_taken",
}
"""Their lists of episodes, and the episode statistics that ours are made of."""
_WIN_TIMES, _MOST, _MOST_WINS = "win_times", 200, 100


def curriculum_to_published(state: Mapping[str, Any]) -> dict[str, Any]:
    """A curriculum's ``state_dict`` as ``current_stage_index`` and ``metrics``: lists of episodes, oldest first."""
    columns: Mapping[str, list[float]] = state["episodes"]["columns"]
    metrics = {name: list(columns.get(ours, ()))[-_MOST:] for name, ours in COLUMNS.items()}
    won = zip(columns.get("length", ()), columns.get("success", ()))
    metrics[_WIN_TIMES] = [length for length, success in won if success > 0][-_MOST_WINS:]
    return {"current_stage_index": state["stage"], "metrics": metrics}


def curriculum_from_published(entries: Mapping[str, Any], begun: int = 0) -> dict[str, Any]:
    """The inverse, for a curriculum's ``load_state_dict``; won episodes that are too old for the lists are lost.

    Args:
        begun: frames of the run at which the stage began, which the record does not tell.

    Raises:
        ConfigError: other entries.
    """
    metrics, stage = entries.get("metrics"), entries.get("current_stage_index")
    if not isinstance(stage, int) or isinstance(stage, bool) or stage < 0 or not isinstance(metrics, Mapping):
        raise ConfigError("not the state of a curriculum: it lacks current_stage_index or metrics")
    columns = {}
    for name, ours in COLUMNS.items():
        values = metrics.get(name)
        if not isinstance(values, list) or not all(isinstance(value, bool | int | float) for value in values):
            raise ConfigError(f"not the state of a curriculum: metrics.{name} is no list of numbers")
        columns[ours] = [float(value) for value in values]
    lengths = {len(column) for column in columns.values() if column}
    if len(lengths) > 1:
        raise ConfigError(f"not the state of a curriculum: its lists are of {sorted(lengths)} episodes")
    count = max(lengths, default=0)
    filled = {name: column or [0.0] * count for name, column in columns.items()}
    return {"stage": stage, "begun": begun, "episodes": {"columns": filled, "count": count}}


def training_state(
    model: Path, style: int | None, frames: int, episodes: int | None, curriculum: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What the record of a training says.

    Args:
        model: the checkpoint that it belongs to.
        style: of control.
        frames: the agent was trained for.
        episodes: finished in that time, None where nobody counted.
        curriculum: its ``state_dict``, None for a training without.
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
