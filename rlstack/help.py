"""Help on the command line: options, lists of agents and worlds, and tab completion for bash.

``rlstack train --help``, ``rlstack agents``, ``rlstack envs rocket``, ``eval "$(rlstack completion)"``.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from itertools import pairwise
from pathlib import Path

from rlstack.config import ConfigError, catalogue
from rlstack.config.catalogue import Option
from rlstack.config.rooms import registered

COMMANDS = {
    "train": "trains an agent in a world, or continues a run",
    "evaluate": "evaluates a trained agent on many episodes, or in games",
    "watch": "shows an agent at play: in a window, in the terminal, or as a film",
    "demo": "shows a trained agent that comes with rlstack at play",
    "zoo": "lists the trained agents that come with rlstack, with their scores",
    "runs": "lists the runs below a folder: state, score, age",
    "compare": "compares two runs, or two groups of seeds, with intervals",
    "verify": "trains a stretch of a run again, and compares it to the last bit",
    "report": "writes one HTML page about a run or a sweep",
    "league": "plays tournaments, rates players, and trains in leagues",
    "convert": "converts an agent from elsewhere to a native one",
    "export": "exports an agent's policy as a stand-alone program",
    "diagnose": "finds out why a training is slow",
    "rewards": "shows the terms of a reward",
}
"""Commands with a module each, and their purpose."""


def module_of(command: str) -> str:
    """Returns the module of a command: ``rlstack.<command>``, unless a package has that name."""
    return f"rlstack.{ {'runs': 'list_runs', 'zoo': 'list_zoo'}.get(command, command) }"


LISTS = {
    "agents": "lists the agents; rlstack agents <name>: every option of one",
    "envs": "lists the worlds; rlstack envs <name>: every option of one, also of <module>:<class>",
}

INSTALLED = "rlstack.envs"
"""The group of entry points with which installed packages register worlds, see :mod:`rlstack.envs.registry`."""

_NARROW, _WIDE = 60, 120
_EXAMPLES = ("python -m ", "rlstack ")
_FOOT = (
    ("--cfg job", "prints the whole configuration and ends"),
    ("-m agent=ppo,sac seed=0,1,2", "makes several runs, one after another"),
    ("--config-dir my_conf", "adds your own groups: my_conf/agent/*.yaml, my_conf/env/*.yaml"),
)


def command_help(config: str, arguments: Sequence[str] = ()) -> str:
    """Returns the help of the command that ``conf/<config>.yaml`` configures.

    Args:
        arguments: the other arguments; ``--config-dir`` adds groups.
    """
    where = catalogue.folders(arguments)
    command = catalogue.read_command(config)
    name = config.replace("_", " ")
    told = [line for line in command.header if not line.startswith(_EXAMPLES)]
    examples = [line for line in command.header if line.startswith(_EXAMPLES)]
    parts = [
        _wrapped(f"rlstack {name}: {COMMANDS[config]}" if config in COMMANDS else f"rlstack {name}", *_joined(told)),
        _section("examples", [f"  {line}" for line in examples]),
    ]
    for group, default in command.groups.items():
        found = catalogue.names(group, where)
        if len(found) > 1:  # otherwise there is nothing to choose
            more = f"; every option of one: rlstack {group}s <name>" if f"{group}s" in LISTS else ""
            title = f"{group}=<name> (default: {default or 'none'}{more})"
            parts.append(_section(title, _choices(group, default, found, where)))
    parts.append(_section("options", _options(command.options)))
    if command.extends:
        parts.append(f"also accepts every option and group of: rlstack {command.extends} --help")
    parts.append(_section("further flags", table(_FOOT if command.groups or command.extends else _FOOT[:1])))
    return "\n\n".join(part for part in parts if part)


def list_group(kind: str, arguments: Sequence[str]) -> str:
    """Lists the options of a group with a line each or, if one is named, its keys with defaults and comments.

    Args:
        kind: a key of :data:`LISTS`.

    Raises:
        ConfigError: the option does not exist, or several are named.
    """
    group, where = kind.removesuffix("s"), catalogue.folders(arguments)
    named = [
        entry
        for before, entry in pairwise(["", *arguments])
        if not entry.startswith("-") and before not in catalogue.FOLDER_FLAGS
    ]
    if len(named) > 1:
        raise ConfigError(f"{' '.join(named)}: one name at most, such as: rlstack {kind} {named[0]}")
    if named:
        return _described(group, named[0].removeprefix(f"{group}="), where)
    rows = _titled(group, catalogue.names(group, where), where)
    if group == "env":
        brought = metadata.entry_points(group=INSTALLED)
        rows += [(entry.name, f"of an installed package: {entry.value}") for entry in brought]
    foot = f"every option of one: rlstack {kind} {rows[0][0]}"
    return "\n".join([f"{kind}, for {group}=<name>:", *table(rows), "", foot])


def table(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Returns lines of two columns, the second wrapped to the width of the terminal."""
    usual = sorted(len(first) for first, _ in rows if len(first) <= _WIDE // 3)
    left = usual[-1] + 4 if usual else 4
    lines = []
    for first, second in rows:
        wrapped = textwrap.wrap(second, max(_width() - left, 24)) or [""]
        if len(first) > left - 4:
            lines.append(f"  {first}")
        else:
            lines.append(f"  {first:<{left - 2}}{wrapped.pop(0)}".rstrip())
        lines += [" " * left + line for line in wrapped if line]
    return lines


def _options(options: Iterable[Option], prefix: str = "") -> list[str]:
    """Returns the lines of all options with a description or a default, which a key that contains others may lack."""
    told = [option for option in options if option.value or option.comment]
    return table([(f"{prefix}{o.key}{f'={o.value}' if o.value else '.'}", o.comment) for o in told])


def _described(group: str, name: str, where: Sequence[Path]) -> str:
    brought = {entry.name for entry in metadata.entry_points(group=INSTALLED)}
    installed = group == "env" and name in brought
    own = (":" in name or installed) and name not in catalogue.names(group, where)
    found = [] if own else catalogue.group_options(group, name, where)
    key = "algorithm" if group == "agent" else "name"
    target = name if own else next((option.value.strip("'\"") for option in found if option.key == key), "")
    told = [] if own else _joined(catalogue.header(catalogue.find(group, name, where)))
    if own or ":" in target:
        described, options = (_own_algorithm if group == "agent" else _own_world)(target)
        known = {option.key: option for option in options}
        written = {o.key: replace(o, comment=o.comment or known.get(o.key, o).comment) for o in found}
        found, told = [*(written | known | written).values()], told or [described]
    lines = [_wrapped(f"{group}.{key}={name}" if own and installed else f"{group}={name}", *told)]
    for heading in dict.fromkeys(option.section for option in found):
        chosen = [option for option in found if option.section == heading]
        lines.append(_section(heading or "options", _options(chosen, f"{group}.")))
    paired = [_pairs(group, recipe, name, where) for recipe in catalogue.names("recipe", where)]
    if any(paired):
        lines.append(_wrapped(f"other defaults (conf/recipe) with: {', '.join(filter(None, paired))}"))
    return "\n\n".join(lines)


def _own_algorithm(name: str) -> tuple[str, list[Option]]:
    """Returns the first sentence and the options of an algorithm that is named by its class."""
    from rlstack.agents import agent_class

    algorithm = agent_class(name)
    return _sentence(algorithm), catalogue.dataclass_options(algorithm.Config)


def _own_world(name: str) -> tuple[str, list[Option]]:
    """Returns the first sentence of a world without a yaml, and its constructor's arguments."""
    from rlstack.envs.registry import options_of, world_class

    try:
        options, described = options_of(name), _sentence(world_class(name))
    except ValueError as error:
        raise ConfigError(f"env: {error}") from None
    return described, [
        Option(key, "<value>", "required") if entry.default is entry.empty else Option(key, _as_yaml(entry.default))
        for key, entry in options.items()
        if key not in ("device", "seed", "**")  # set by the run
    ]


def _sentence(described: object) -> str:
    """Returns the first sentence of a docstring, without markup."""
    return re.sub(r":\w+:`~?([^`]+)`|``([^`]+)``", r"\1\2", (inspect.getdoc(described) or "").partition("\n\n")[0])


def _as_yaml(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value).removeprefix("torch.")


def _pairs(group: str, recipe: str, name: str, where: Sequence[Path]) -> str:
    """Returns the other part of a recipe, ``<env>_<agent>``, as an override; empty if the option is not in it."""
    other = "env" if group == "agent" else "agent"
    rest = recipe.removesuffix(f"_{name}") if group == "agent" else recipe.removeprefix(f"{name}_")
    return f"{other}={rest}" if rest in catalogue.names(other, where) else ""


def _choices(group: str, default: str | None, found: Sequence[str], where: Sequence[Path]) -> list[str]:
    """Returns a line for each option, or only the names in groups that are rarely chosen from."""
    if default is not None or (not any("/" in name for name in found) and f"{group}s" not in LISTS):
        return table(_titled(group, found, where))
    text = textwrap.fill(", ".join(found), _width() - 2, break_on_hyphens=False, break_long_words=False)
    return textwrap.indent(text, "  ").splitlines()


def _titled(group: str, found: Sequence[str], where: Sequence[Path]) -> list[tuple[str, str]]:
    return [(name, catalogue.headline(catalogue.find(group, name, where))) for name in found]


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{title}:", *lines]) if lines else ""


def _joined(lines: Sequence[str]) -> list[str]:
    """Joins the lines of each sentence."""
    found: list[str] = []
    for line in lines:
        if found and line[:1].islower() and not found[-1].endswith((".", ":")):
            found[-1] += f" {line}"
        else:
            found.append(line)
    return found


def _wrapped(*lines: str) -> str:
    return "\n".join(textwrap.fill(line, _width()) for line in lines)


def _width() -> int:
    columns = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() or "COLUMNS" in os.environ else 100
    return min(max(columns - 1, _NARROW), _WIDE)


# -- completion --------------------------------------------------------------------------------------------------

_WORDS = {
    "league": ("run", "rank", "play", "init", "add", "list", "evaluate", "train"),
    "convert": sorted(kind for kind, entry in registered("KINDS").items() if entry.conversion),
}
"""The first words that commands accept."""

BASH = r"""_rlstack() {
    local IFS=$'\n' line=${COMP_LINE:0:COMP_POINT} word
    word=${line##*[[:space:]]}
    COMPREPLY=($(rlstack completion "$line" 2>/dev/null))
    # bash takes a word to begin behind = and :, so what is before goes from the answers, too.
    COMPREPLY=("${COMPREPLY[@]#"${word%"$2"}"}")
}
complete -o nospace -o default -F _rlstack rlstack"""
"""The script for bash. Where no candidates are known, as after ``checkpoint=``, bash completes file names."""


def candidates(line: str) -> list[str]:
    """Returns the words to which the last word of a command line can be completed; complete words end with a space.

    Args:
        line: the command line from ``rlstack`` up to the cursor.
    """
    typed = line.split()[1:]
    word = "" if not typed or line[-1].isspace() else typed.pop()
    try:
        return sorted(entry for entry in _possible(typed, word) if entry.startswith(word))
    except (ConfigError, OSError):  # a broken yaml of the user's is reported when the command runs
        return []


def _possible(typed: list[str], word: str) -> list[str]:
    if not typed:
        return [f"{name} " for name in (*COMMANDS, *LISTS)]
    command, *arguments = typed
    where = catalogue.folders(arguments)
    if command in LISTS:
        return [f"{name} " for name in catalogue.names(command.removesuffix("s"), where)]
    if command not in COMMANDS:
        return []
    groups, options = offered("league_train" if command == "league" and "train" in arguments else command)
    key, equals, _ = word.partition("=")
    if equals and key in groups:
        return [f"{key}={name} " for name in catalogue.names(key, where)]
    group, dot, _ = word.partition(".")
    if dot and group in groups:
        given = [entry.partition("=")[2] for entry in arguments if entry.startswith(f"{group}=")]
        chosen = given[-1].partition(",")[0] if given else groups[group]
        found = catalogue.group_options(group, chosen, where) if chosen else []
        options = [replace(option, key=f"{group}.{option.key}") for option in found]
        groups = {}
    if equals:
        return [f"{key}={value} " for option in options if option.key == key for value in option.choices]
    first = [] if arguments else [f"{name} " for name in _WORDS.get(command, ())]
    return [*first, *(f"{name}=" for name in groups), *(f"{option.key}=" for option in options if option.value)]


def offered(config: str) -> tuple[dict[str, str | None], list[Option]]:
    """Returns the groups and options of a command, including those of the command that it extends."""
    own = catalogue.read_command(config)
    groups, options = offered(own.extends) if own.extends else ({}, [])
    return {**groups, **own.groups}, [*options, *own.options]
