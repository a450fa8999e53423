"""The fixed episodes that MarineNav is evaluated on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .episodes import Config, validate_episode
from .generator import PUBLISHED_LEVELS, generate_episodes


def evaluation_set(per_level: int, seed: int) -> tuple[list[Config], list[str]]:
    """The published evaluation: episodes of all six levels, bit for bit those of the published trainer.

    Args:
        per_level: episodes per level (published: 10).
        seed: of the set (published: 253).

    Returns:
        The episode configs in level order, and the level of each, ``"0"`` (easiest) to ``"5"``.
    """
    configs = generate_episodes(seed, PUBLISHED_LEVELS, per_level)
    return configs, [str(level) for level in range(len(PUBLISHED_LEVELS)) for _ in range(per_level)]


def episode_options(configs: Sequence[Config]) -> dict[str, Any]:
    """The constructor options without which a world cannot hold these episodes.

    Raises:
        ValueError: a config is invalid; it says how.
    """
    for config in configs:
        validate_episode(config)
    return {"num_robots": max(config["env"]["num_robots"] for config in configs)}
