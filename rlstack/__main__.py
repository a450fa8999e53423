"""All commands under one name: ``rlstack train agent=ppo`` is ``python -m rlstack.train agent=ppo``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from rlstack import __version__
from rlstack.config.errors import ConfigError, did_you_mean, exit_in_one_line
from rlstack.help import BASH, COMMANDS, LISTS, candidates, list_group, module_of, table

_HELP = {"help", "--help", "-h"}
_FURTHER = {"completion": 'tab completion for bash: eval "$(rlstack completion)"'}


def main() -> None:
    """Runs the command that the first argument names, with the other arguments.

    Exits with status 2 if the user made a mistake.
    """
    command, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("help", [])
    if command in COMMANDS:
        sys.argv = [f"{sys.argv[0]} {command}", *arguments]
        importlib.import_module(module_of(command)).main()
        return
    with exit_in_one_line():
        print(_answer(command, arguments))


def _answer(command: str, arguments: Sequence[str]) -> str:
    if (told := {**LISTS, **_FURTHER}.get(command)) and _HELP & set(arguments):
        return f"rlstack {command}: {told}"
    if command in _HELP:
        rows = [*COMMANDS.items(), *LISTS.items(), *_FURTHER.items()]
        lines = ["rlstack <command> [group=name] [key=value] ...", "", *table(rows)]
        return "\n".join([*lines, "", "options, groups and examples of a command: rlstack <command> --help"])
    if command == "--version":
        return f"rlstack {__version__}"
    if command in LISTS:
        return list_group(command, arguments)
    if command == "completion":
        return "\n".join(candidates(arguments[0])) if arguments else BASH
    known = [*COMMANDS, *LISTS, *_FURTHER]
    raise ConfigError(f"{command}: no such command, {did_you_mean(command, known)}available: {', '.join(known)}")


if __name__ == "__main__":
    main()
