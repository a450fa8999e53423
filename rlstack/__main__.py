"""Every command by one name: ``rlstack train agent=ppo``, the same as ``python -m rlstack.train agent=ppo``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from rlstack import place_working_folder
from rlstack.config.errors import ConfigError, did_you_mean
from rlstack.help import COMMANDS, LISTS, list_group, table, tell

_COMPLETION = "completion"
_GROUPS = {"agents": "agent", "envs": "env"}
_HELP = ("help", "--help", "-h")
_FURTHER = {_COMPLETION: 'tab completion for bash: eval "$(rlstack completion)"'}


def main() -> None:
    """Does what the first argument says with all the others.

    Exits with status 2 on a user's error.
    """
    place_working_folder()
    command, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("help", [])
    if command in COMMANDS:
        sys.argv = [f"{sys.argv[0]} {command}", *arguments]
        importlib.import_module(f"rlstack.{command}").main()
        return
    try:
        tell(_answer(command, arguments))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _answer(command: str, arguments: Sequence[str]) -> str:
    if command in _HELP:
        return overview()
    if command == "--version":
        return f"rlstack {importlib.import_module('rlstack').__version__}"
    if command in LISTS:
        return overview() if set(_HELP) & set(arguments) else list_group(_GROUPS[command], command, arguments)
    if command == _COMPLETION:
        from rlstack.completion import BASH, candidates

        return "\n".join(candidates(arguments[0])) if arguments else BASH
    known = [*COMMANDS, *LISTS, *_FURTHER]
    raise ConfigError(f"{command}: no such command, {did_you_mean(command, known)}available: {', '.join(known)}")


def overview() -> str:
    """The commands, a line each."""
    rows = [*COMMANDS.items(), *LISTS.items(), *_FURTHER.items()]
    lines = ["rlstack <command> [group=name] [key=value] ...", "", *table(rows)]
    return "\n".join([*lines, "", "options, groups and examples of a command: rlstack <command> --help"])


if __name__ == "__main__":
    main()
