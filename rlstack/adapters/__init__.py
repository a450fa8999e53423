"""Agents from elsewhere; here the common part of other trainers' command lines, which are translated to ours."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import NoReturn

from rlstack.config import ConfigError
from rlstack.config.errors import exit_in_one_line


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


def command(main: Callable[[Sequence[str] | None], None]) -> Callable[..., None]:
    """Makes a function of arguments (default: those of the process) a command, which reports an error in one line."""

    @functools.wraps(main)
    def guarded(arguments: Sequence[str] | None = None) -> None:
        from torchrl import logger  # slow to import, and not needed by register.py

        logger.setLevel("WARNING")  # it logs its internals
        with exit_in_one_line():
            main(arguments)

    return guarded
