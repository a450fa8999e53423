"""What a command tells about itself, and what agents and worlds there are: ``rlstack agents``, ``rlstack envs ppo``."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib import metadata
from itertools import pairwise
from pathlib import Path

from rlstack.config import ConfigError, catalogue
from rlstack.config.catalogue import Option

COMMANDS = {
    "train": "trains an agent in a world, or goes on with a run",
    "evaluate": "judges a trained agent by many episodes, or by games",
    "watch": "shows an agent as it acts: in a window, in the terminal, or as a film",
    "report": "makes one HTML page of a run or a sweep",
    "league": "lets players meet: tournaments, ratings, leagues that grow by training",
    "convert": "makes a native agent of one from elsewhere",
    "export": "writes an agent's policy as a program of its own",
    "diagnose": "finds out why a training is slow",
    "rewards": "shows what a reward is made of",
}
"""Commands that are a module each, with what they do."""

LISTS = {
    "agents": "lists the agents; rlstack agents <name>: every option of one",
    "envs": "lists the worlds; rlstack envs <name>: every option of one",
}

_LISTED = {"agent": "agents", "env": "envs"}

INSTALLED = "rlstack.envs"
"""Group of entry points by which installed packages bring worlds, see :mod:`envs.registry`."""

_NARROW, _WIDE = 60, 120
_FOLDER = "--config-dir"
_FOOT = (
    ("--cfg job", "print the whole configuration instead"),
    ("-m agent=ppo,sac seed=0,1,2", "several runs, one after the other"),
    (f"{_FOLDER} my_conf", "groups of yours: my_conf/agent/*.yaml, my_conf/env/*.yaml"),
)


def command_help(config: str, arguments: Sequence[str] = ()) -> str:
    """The help of the command that is configured by ``conf/<config>.yaml``.

    Args:
        arguments: what else was typed; ``--config-dir`` adds groups.
    """
    where = catalogue.folders(user_folders(arguments))
    command = catalogue.read_command(config)
    name = config.replace("_", " ")
    told = [line for line in command.header if not line.startswith("python -m")]
    examples = [line for line in command.header if line.startswith("python -m")]
    parts = [
        _wrapped(f"rlstack {name}: {COMMANDS[config]}" if config in COMMANDS else f"rlstack {name}", *told),
        _section("examples", [f"  {line}" for line in examples]),
    ]
    for group, default in command.groups.items():
        found = catalogue.names(group, where)
        if len(found) > 1:  # else there is nothing to choose
            parts.append(_section(_group_title(group, default), _choices(group, default, found, where)))
    parts.append(_section("options", table([row(option) for option in command.options if option.told])))
    if command.extends:
        parts.append(f"and every option and group of: rlstack {command.extends} --help")
    parts.append(_section("besides", table(_FOOT)))
    return "\n\n".join(part for part in parts if part)


def tell(text: str) -> None:
    """Prints; it is no fault if the reader has left, as ``head`` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def list_group(group: str, kind: str, arguments: Sequence[str]) -> str:
    """All options of a group with a line each; or, where one is named, its keys with defaults and comments.

    Raises:
        ConfigError: there is no such option, or more than one name.
    """
    where = catalogue.folders(user_folders(arguments))
    named = [entry for index, entry in enumerate(arguments) if not _is_flag(arguments, index)]
    if len(named) > 1:
        raise ConfigError(f"{' '.join(named)}: one name at most, such as: rlstack {kind} {named[0]}")
    if named:
        return _described(group, named[0].removeprefix(f"{group}="), where)
    rows = _titled(group, catalogue.names(group, where), where)
    if group == "env":
        brought = metadata.entry_points(group=INSTALLED)
        rows += [(entry.name, f"of an installed package: {entry.value}") for entry in brought]
    example = rows[0][0]
    return "\n".join(
        [f"{kind}, for {group}=<name>:", *table(rows), "", f"every option of one: rlstack {kind} {example}"]
    )


def user_folders(arguments: Sequence[str]) -> list[str]:
    """The folders that ``--config-dir`` adds."""
    joined = [entry.partition("=")[2] for entry in arguments if entry.startswith(f"{_FOLDER}=")]
    return joined + [after for flag, after in pairwise(arguments) if flag in (_FOLDER, "-cd")]


def table(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of two columns, the second one wrapped to the width of the terminal."""
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


def row(option: Option, prefix: str = "") -> tuple[str, str]:
    """An option for :func:`table`."""
    return f"{prefix}{option.key}{f'={option.value}' if option.value else '.'}", option.comment


def _described(group: str, name: str, where: Sequence[Path]) -> str:
    told = catalogue.header(catalogue.find(group, name, where))
    lines = [_wrapped(f"{group}={name}", *told)]
    found = catalogue.group_options(group, name, where)
    for heading in dict.fromkeys(option.section for option in found):
        rows = [row(option, f"{group}.") for option in found if option.section == heading and option.told]
        lines.append(_section(heading or "options", table(rows)))
    paired = [_pairs(group, recipe, name, where) for recipe in catalogue.names("recipe", where)]
    if any(paired):
        lines.append(_wrapped(f"other defaults (conf/recipe) with: {', '.join(filter(None, paired))}"))
    return "\n\n".join(lines)


def _pairs(group: str, recipe: str, name: str, where: Sequence[Path]) -> str:
    """What a recipe, ``<env>_<agent>``, puts together with an agent or a world; empty if that is not in it."""
    other = "env" if group == "agent" else "agent"
    rest = recipe.removesuffix(f"_{name}") if group == "agent" else recipe.removeprefix(f"{name}_")
    return f"{other}={rest}" if rest in catalogue.names(other, where) else ""


def _choices(group: str, default: str | None, found: Sequence[str], where: Sequence[Path]) -> list[str]:
    """A line for each, or, of what is rarely chosen, the names alone."""
    if default is not None or (not any("/" in name for name in found) and group not in _LISTED):
        return table(_titled(group, found, where))
    text = textwrap.fill(", ".join(found), _width() - 2, break_on_hyphens=False, break_long_words=False)
    return textwrap.indent(text, "  ").splitlines()


def _titled(group: str, found: Sequence[str], where: Sequence[Path]) -> list[tuple[str, str]]:
    return [(name, catalogue.headline(catalogue.find(group, name, where))) for name in found]


def _group_title(group: str, default: str | None) -> str:
    more = f"; every option of one: rlstack {_LISTED[group]} <name>" if group in _LISTED else ""
    return f"{group}=<name> (default: {default or 'none'}{more})"


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{title}:", *lines]) if lines else ""


def _wrapped(*lines: str) -> str:
    return "\n".join(textwrap.fill(line, _width()) for line in lines)


def _is_flag(arguments: Sequence[str], index: int) -> bool:
    return arguments[index].startswith("-") or (index > 0 and arguments[index - 1] in (_FOLDER, "-cd"))


def _width() -> int:
    columns = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() or "COLUMNS" in os.environ else 100
    return min(max(columns - 1, _NARROW), _WIDE)
