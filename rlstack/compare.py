"""Compares two runs, or two groups of seeds: ``rlstack compare runs/<a> runs/<b>``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, words_as
from rlstack.config import ConfigError, build
from rlstack.config.overrides import Word

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    from rlstack.reporting.improvement import Improvement


@dataclass
class CompareConfig:
    """See ``conf/compare.yaml`` for what each key does."""

    first: str | None
    second: str | None
    score: str | None
    json: bool


@as_module
def compare(*words: Word, quiet: bool = False, **keys: Any) -> Improvement:
    """Compares runs as the command ``rlstack compare`` does: ``rlstack.compare("runs/<a>", "runs/<b>")``.

    Args:
        words: arguments as on the command line; also paths, and results of :func:`rlstack.train`.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/compare.yaml``.

    Returns the improvement of the second run or group over the first.
    """
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> Improvement:
    """Reads the runs and prints how much better the second ones are."""
    config = build(CompareConfig, cfg)
    if config.first is None or config.second is None:
        key = "first" if config.first is None else "second"
        raise ConfigError(f"{key}: missing; rlstack compare <run or runs> <run or runs>")
    from rlstack.reporting import improvement

    found = improvement.compare(_paths("first", config.first), _paths("second", config.second), config.score)
    print(json.dumps(asdict(found), indent=1) if config.json else "\n".join(improvement.in_words(found)))
    return found


def _paths(key: str, words: str) -> list[Path]:
    parts = [words] if words and Path(words).exists() else [part.strip() for part in words.split(",")]
    if not all(parts):
        raise ConfigError(f"{key}: {words!r} names an empty path; give one run, or several with commas between them")
    return [Path(part) for part in parts]


command = HydraCommand("compare", words_as("first", "second"))
main = command.line(run)

if __name__ == "__main__":
    main()
