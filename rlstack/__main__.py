"""All commands under one name: ``rlstack train agent=ppo`` is ``python -m rlstack.train agent=ppo``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from rlstack import FORMER, __version__
from rlstack.config.errors import ConfigError, did_you_mean, exit_in_one_line
from rlstack.config.groups import FOLDER_FLAGS, option_files, own_folders
from rlstack.help import COMMANDS, LISTS, list_group, table

_HELP = {"help", "--help", "-h"}
_FURTHER = {"completion": 'tab completion for bash: eval "$(rlstack completion)"'}


def main() -> None:
    """Runs the command that the first argument names, with the other arguments.

    Exits with status 2 if the user made a mistake.
    """
    command, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("help", [])
    if command == "completion":
        command, arguments = "train", ["-sc", "install=bash"]
        sys.argv = ["rlstack", *arguments]
    elif command == "-sc":
        command = _completed_command()
    else:
        sys.argv = [f"{sys.argv[0]} {command}", *arguments]
    with exit_in_one_line():
        if command in COMMANDS:
            importlib.import_module(f"rlstack.{command}").main()
        elif command:
            print(_answer(command, arguments))


def _completed_command() -> str:
    """Returns the command whose words bash asks for, and removes it from the line that Hydra completes.

    Prints the commands, or the names for a list, and returns an empty text, where these are asked for.
    """
    program, _, rest = os.environ["COMP_LINE"].partition(" ")
    command, space, line = rest.lstrip().partition(" ")
    if space and command in COMMANDS:
        os.environ["COMP_LINE"] = f"{program} {line}"
        sys.argv[1:1] = [f"{FOLDER_FLAGS[0]}={folder}" for folder in own_folders(line.split())]
        return command
    words = list(option_files(command.removesuffix("s"))) if space and command in LISTS else [*COMMANDS, *LISTS]
    print(" ".join(words))
    return ""


def _answer(command: str, arguments: Sequence[str]) -> str:
    if command in _HELP:
        rows = [*COMMANDS.items(), *LISTS.items(), *_FURTHER.items()]
        lines = ["rlstack <command> [group=name] [key=value] ...", "", *table(rows)]
        return "\n".join([*lines, "", "options, groups and examples of a command: rlstack <command> --help"])
    if command == "--version":
        return f"rlstack {__version__}"
    if command in LISTS:
        return f"rlstack {command}: {LISTS[command]}" if _HELP & set(arguments) else list_group(command, arguments)
    if command in FORMER:
        raise ConfigError(f"rlstack {command} is now: {FORMER[command]}")
    known = [*COMMANDS, *LISTS, *_FURTHER]
    raise ConfigError(f"{command}: no such command, {did_you_mean(command, known)}available: {', '.join(known)}")


if __name__ == "__main__":
    main()
