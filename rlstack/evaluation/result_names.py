"""Names of the folders of results: equal for equal agents, worlds and opponents."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from rlstack.config import ConfigError, load_group, to_plain

from .evaluator import OURS, as_evaluated

_LONGEST = 60  # letters for the opponents in a folder's name


def world_names(env: dict[str, Any]) -> list[str]:
    """Returns a world's name, its ``id`` if it has one, and a hash of options that differ from those of its yaml."""
    name, which = str(env.get("name")), env.get("id")
    try:
        usual = as_evaluated(name, load_group("env", name))
    except ConfigError:  # a world without a yaml
        usual = {}
    ignored = ("name", "id", *OURS)
    options, usual = ({key: entries[key] for key in entries if key not in ignored} for entries in (env, usual))
    called = [*as_names(name), *(as_names(str(which)) if which is not None else [])]
    return [*called, *([] if options == usual else [short_hash(options)])]


def opponent_names(opponents: list[Any]) -> list[str]:
    """Returns the names of the opponents, with a hash of paths, whose names may be equal; if long, the hash alone."""
    plain = all(isinstance(source, str) for source in opponents)
    places = [Path(source.partition(":")[2] or source) for source in opponents] if plain else []
    text = "_".join(Path(source).name for source in opponents) if plain else ""
    called = as_names(text) if len(text) <= _LONGEST else []
    if called and not any(place.exists() for place in places):
        return ["against", *called]
    resolved = [str(place.resolve()) if place.exists() else source for place, source in zip(places, opponents)]
    return ["against", *called, short_hash({"opponents": resolved if plain else opponents})]


def short_hash(content: dict[str, Any]) -> str:
    """Returns a hash of six letters."""
    return hashlib.sha256(json.dumps(to_plain(content), sort_keys=True).encode()).hexdigest()[:6]


def as_names(text: str) -> list[str]:
    """Splits a text into words that can be part of a folder's name."""
    return re.sub(r"[^\w=.-]", " ", text.replace("agent.", "")).split()
