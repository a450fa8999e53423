"""Trained agents that come with rlstack: ``zoo:<name>`` wherever a checkpoint can be named.

Each is a folder ``experiments/zoo/<name>`` (``rlstack/zoo/<name>`` in the wheel) of ``agent.pt``, a checkpoint without
optimisers and replay, ``card.json``, which says how it was trained and what it scores, and a film. ``python -m
experiments.zoo.build`` makes them of runs.
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
    """The folder of the agents, in a checkout or in an installed package."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "zoo"
    return installed if installed.is_dir() else package.parent / "experiments" / "zoo"


def zoo_names() -> list[str]:
    """The names of the agents."""
    return sorted(card.parent.name for card in zoo_folder().glob(f"*/{CARD}"))


def card(name: str) -> dict[str, Any]:
    """What is known of an agent: world, command, commit, frames, configuration, scores, SHA-256, film.

    Raises:
        ConfigError: no such agent, or a damaged card.
    """
    from rlstack.files.safe_load import read_json_object  # torch takes seconds to import

    if name not in zoo_names():
        raise ConfigError(missing_option("zoo", name, zoo_names()))
    try:
        return read_json_object(zoo_folder() / name / CARD)
    except ValueError as error:
        raise ConfigError(f"zoo: {error}") from None


def zoo_file(source: str) -> Path:
    """The checkpoint of ``zoo:<name>``.

    Raises:
        ConfigError: no such agent, or a file that is not the one of its card.
    """
    name = source.removeprefix(PREFIX)
    known, file = card(name), zoo_folder() / name / AGENT
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != known.get("sha256"):
        raise ConfigError(f"{source}: {file} is missing or not the file of its card")
    return file
