"""What the folder of an evaluation is called: by agent, world and opponents; the same whenever they are the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from rlstack.config import ConfigError, load_group, to_plain

_LONGEST = 60  # letters of opponents in a folder's name


def world_names(env: dict[str, Any]) -> list[str]:
    """A world's name, which of many it is (``id``), and a hash of options that are not those of its yaml."""
    from .evaluator import OURS  # with torch, which takes seconds to import

    name, which = str(env.get("name")), env.get("id")
    try:
        usual = load_group("env", name)
    except ConfigError:  # a world without a yaml
        usual = {}
    ignored = ("name", "id", *OURS)
    options, usual = ({key: entries[key] for key in entries if key not in ignored} for entries in (env, usual))
    called = [*as_names(name), *(as_names(str(which)) if which is not None else [])]
    return [*called, *([] if options == usual else [short_hash(options)])]


def rivals(opponents: list[Any]) -> list[str]:
    """Whom games are played against, or a hash of it where that is long."""
    plain = all(isinstance(source, str) for source in opponents)
    text = "_".join(Path(source).name for source in opponents) if plain else ""
    called = as_names(text) if 0 < len(text) <= _LONGEST else [short_hash({"opponents": opponents})]
    return ["against", *called]


def short_hash(content: dict[str, Any]) -> str:
    """Six letters that tell contents apart."""
    return hashlib.sha256(json.dumps(to_plain(content), sort_keys=True).encode()).hexdigest()[:6]


def as_names(text: str) -> list[str]:
    """Words that can be part of a folder's name."""
    kept = "".join(letter if letter.isalnum() or letter in "=.-_" else " " for letter in text.replace("agent.", ""))
    return kept.split()
