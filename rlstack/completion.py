"""Tab completion for bash, of commands, groups, keys and values: ``eval "$(rlstack completion)"``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlstack.config import ConfigError, catalogue
from rlstack.config.catalogue import Option
from rlstack.help import COMMANDS, LISTS, user_folders

_LEAGUE = ("run", "rank", "play", "init", "add", "list", "evaluate", "train")
_CONVERT = ("arena", "marinenav", "sb3")
_WORDS = {"league": _LEAGUE, "convert": _CONVERT}
"""The words that commands take first."""

BASH = r"""_rlstack() {
    local IFS=$'\n' line=${COMP_LINE:0:COMP_POINT} word
    word=${line##*[[:space:]]}
    COMPREPLY=($(rlstack completion "$line" 2>/dev/null))
    # bash takes a word to begin behind = and :, so what is before goes from the answers, too.
    COMPREPLY=("${COMPREPLY[@]#"${word%"$2"}"}")
}
complete -o nospace -o default -F _rlstack rlstack"""
"""What bash evaluates. Where nothing is known to follow, as after ``checkpoint=``, it completes names of files."""


def candidates(line: str) -> list[str]:
    """How the last word of a command line could go on; what is complete ends with a space.

    Args:
        line: up to the cursor, from ``rlstack`` on.
    """
    typed = line.split()[1:]
    word = "" if not typed or line[-1].isspace() else typed.pop()
    try:
        return sorted(entry for entry in _possible(typed, word) if entry.startswith(word))
    except (ConfigError, OSError):  # a broken yaml of the user's: they will be told when the command runs
        return []


def _possible(typed: list[str], word: str) -> list[str]:
    if not typed:
        return [f"{name} " for name in (*COMMANDS, *LISTS)]
    command, *arguments = typed
    where = catalogue.folders(user_folders(arguments))
    if command in LISTS:
        return [f"{name} " for name in catalogue.names(command.removesuffix("s"), where)]
    if command not in COMMANDS:
        return []
    config = "league_train" if command == "league" and "train" in arguments else command
    groups, options = _offered(config)
    key, equals, _ = word.partition("=")
    if equals:
        return [f"{key}={value} " for value in _values(key, groups, options, arguments, where)]
    group, dot, _ = word.partition(".")
    if dot and group in groups:
        chosen = _chosen(group, groups, arguments)
        return [f"{group}.{option.key}=" for option in _keys(group, chosen, where) if option.value]
    words = [f"{name} " for name in _WORDS.get(command, ()) if not arguments]
    return [*words, *(f"{name}=" for name in groups), *(f"{option.key}=" for option in options if option.value)]


def _offered(config: str) -> tuple[dict[str, str | None], list[Option]]:
    """Groups and options of a command, those of the one that it extends included."""
    own = catalogue.read_command(config)
    groups, options = _offered(own.extends) if own.extends else ({}, [])
    return {**groups, **own.groups}, [*options, *own.options]


def _values(
    key: str, groups: dict[str, str | None], options: list[Option], arguments: Sequence[str], where: Sequence[Path]
) -> list[str]:
    if key in groups:
        return catalogue.names(key, where)
    group, dot, rest = key.partition(".")
    if dot and group in groups:
        key, options = rest, _keys(group, _chosen(group, groups, arguments), where)
    return next((option.choices for option in options if option.key == key), [])


def _chosen(group: str, groups: dict[str, str | None], arguments: Sequence[str]) -> str | None:
    given = [entry.partition("=")[2] for entry in arguments if entry.startswith(f"{group}=")]
    return given[-1].partition(",")[0] if given else groups[group]


def _keys(group: str, chosen: str | None, where: Sequence[Path]) -> list[Option]:
    return catalogue.group_options(group, chosen, where) if chosen else []
