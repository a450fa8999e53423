"""Trained agents that come with rlstack: ``zoo:<name>`` works wherever a checkpoint can be named.

Each is a folder ``experiments/zoo/<name>`` (``rlstack/zoo/<name>`` in the wheel) with ``agent.pt``, a checkpoint
without optimisers and replay buffer, ``card.json`` with its training and scores, and a film. ``python -m
experiments.zoo.build`` makes them from runs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from rlstack.config import ConfigError
from rlstack.config.errors import missing_option

PREFIX = "zoo:"
AGENT, CARD, FILM = "agent.pt", "card.json", "film.mp4"


def zoo_folder() -> Path:
    """Returns the folder of the agents."""
    return Path(__file__).resolve().parents[1] / "zoo"


def zoo_names() -> list[str]:
    """Returns the names of the agents."""
    return sorted(card.parent.name for card in zoo_folder().glob(f"*/{CARD}"))


def card(name: str) -> dict[str, Any]:
    """Reads an agent's card: world, command, commit, frames, configuration, scores, SHA-256, film.

    Raises:
        ConfigError: there is no such agent, or its card is damaged.
    """
    from rlstack.files.safe_load import read_json_object  # imports torch, which takes seconds

    if name not in zoo_names():
        raise ConfigError(missing_option("zoo", name, zoo_names()))
    try:
        return read_json_object(zoo_folder() / name / CARD)
    except ValueError as error:
        raise ConfigError(f"zoo: {error}") from None


def zoo_file(source: str) -> Path:
    """Returns the checkpoint file of ``zoo:<name>``.

    Raises:
        ConfigError: there is no such agent, or the file differs from its card's SHA-256.
    """
    name = source.removeprefix(PREFIX)
    known, file = card(name), zoo_folder() / name / AGENT
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != known.get("sha256"):
        raise ConfigError(f"{source}: {file} is missing or not the file of its card")
    return file
