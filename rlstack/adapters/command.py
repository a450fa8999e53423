"""The common part of other trainers' command lines, which are translated to ours."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from torchrl import logger as torchrl_logger

from rlstack.config import ConfigError, conf_dir, to_plain
from rlstack.config.errors import exit_in_one_line


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


def command(main: Callable[[Sequence[str] | None], None]) -> Callable[..., None]:
    """Makes a function of arguments (default: those of the process) a command, which reports an error in one line."""

    @functools.wraps(main)
    def guarded(arguments: Sequence[str] | None = None) -> None:
        torchrl_logger.setLevel("WARNING")  # it logs its internals
        with exit_in_one_line():
            main(arguments)

    return guarded


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the configuration of ``rlstack.train`` with these overrides, as plain values."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return to_plain(compose("train", list(overrides)))
