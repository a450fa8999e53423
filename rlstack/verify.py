"""Trains a stretch of a run again and compares it with the run: ``rlstack verify runs/<run>``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, words_as
from rlstack.config import ConfigError, build, convert, to_plain
from rlstack.config.errors import RunError
from rlstack.config.options import Count, Whole
from rlstack.config.overrides import Word
from rlstack.runs.run_directory import named
from rlstack.training.hooks import Hook

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    from rlstack.training.verification import Verified


@dataclass
class VerifyConfig:
    """See ``conf/verify.yaml`` for what each key does; ``from``, a word of Python's, is read apart."""

    run: str | None
    frames: Count | None
    allow: list[str] = field(default_factory=list)


@as_module
def verify(*words: Word, hooks: Sequence[Hook] = (), quiet: bool = False, **keys: Any) -> Verified:
    """Verifies a run as the command ``rlstack verify`` does: ``rlstack.verify("runs/<run>")``.

    Args:
        words: arguments as on the command line; also paths, and results of :func:`rlstack.train`.
        hooks: the hooks of its own that the run had.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/verify.yaml``.

    Returns what differs; ``equal`` says that nothing does.

    Raises:
        ConfigError: the stretch cannot be repeated exactly; the message says why.
        RunError: a checkpoint is damaged.
    """
    return command.call(lambda cfg: run(cfg, hooks), words, keys, quiet)


def run(cfg: DictConfig, hooks: Sequence[Hook] = ()) -> Verified:
    """Trains the stretch again, and prints what differs."""
    plain = to_plain(cfg)
    start = convert(Whole | str | None, plain.pop("from"), "from")
    config = build(VerifyConfig, plain)
    if config.run is None:
        raise ConfigError("run: missing; rlstack verify <run>")
    from rlstack.training import verification

    verified = verification.verify(Path(named(config.run, "run")), start, config.frames, hooks)
    if os.environ.get("RANK", "0") == "0":
        print(verified)
    return verified


def _judge(cfg: DictConfig) -> None:
    if not (verified := run(cfg)).equal:
        raise RunError(f"{verified.run} is not what training gives here")


command = HydraCommand("verify", words_as("run"))
main = command.line(_judge)

if __name__ == "__main__":
    main()
