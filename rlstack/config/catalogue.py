"""Reads the yaml files with their comments: a group's options, and the keys of each with their defaults.

The defaults of a dataclass, from which an agent's yaml starts, are also read with their comments. Nothing is composed
and torch is not imported, so that help and completion are immediate.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from rlstack.config.agents import OPTIONS, defaults_of
from rlstack.config.errors import ConfigError, missing_option
from rlstack.config.groups import conf_dir

FOLDER_FLAGS = ("--config-dir", "-cd")
_SELF = "_self_"


@dataclass(frozen=True)
class Option:
    """A key of a yaml file.

    Attributes:
        key: dotted key.
        value: its default as written in the file; empty for a key that only contains others.
        comment: its comment in the file.
        section: the heading above it.
    """

    key: str
    value: str
    comment: str = ""
    section: str = ""

    @property
    def choices(self) -> list[str]:
        """The values that its comment lists as ``a | b | c``, or ``false`` and ``true`` for a switch."""
        if self.value in ("true", "false"):
            return ["false", "true"]
        listed = re.search(r"[\w.]+(?: \([^)]*\))?(?: \| [\w.<>:]+)+", self.comment)
        found = [part.split()[0].rstrip(":") for part in listed[0].split(" | ")] if listed else []
        return [choice for choice in found if "<" not in choice] if self.value in (*found, "null") else []


@dataclass(frozen=True)
class Command:
    """The yaml file of a command.

    Attributes:
        header: lines of the comment at its beginning.
        options: its own keys.
        groups: the groups that it takes, ``agent`` and so on, with their default choices.
        extends: the command whose keys and groups it also takes, or None.
    """

    header: list[str]
    options: list[Option]
    groups: dict[str, str | None]
    extends: str | None


def folders(arguments: Sequence[str] = ()) -> list[Path]:
    """Returns the folders of yaml files: first those of ``--config-dir`` on a command line, then :func:`conf_dir`."""
    joined = [entry.partition("=")[2] for entry in arguments if entry.startswith(f"{FOLDER_FLAGS[0]}=")]
    following = [after for flag, after in pairwise(arguments) if flag in FOLDER_FLAGS]
    return [*map(Path, [*joined, *following]), conf_dir()]


def folder_flags(arguments: Sequence[str]) -> str:
    """Returns the flags ``--config-dir`` of a command line, with a space before each, for the end of another one."""
    return "".join(f" {FOLDER_FLAGS[0]} {shlex.quote(str(folder))}" for folder in folders(arguments)[:-1])


def names(group: str, where: Sequence[Path]) -> list[str]:
    """Returns the names of a group's options; those in sub-folders as ``folder/name``."""
    found = {
        path.relative_to(folder / group).with_suffix("").as_posix()
        for folder in where
        for path in (folder / group).rglob("*.yaml")
    }
    return sorted(found, key=lambda name: ("/" in name, name))


def find(group: str, name: str, where: Sequence[Path]) -> Path:
    """Returns the file of an option.

    Raises:
        ConfigError: there is no such option; the message lists those there are.
    """
    for folder in where:
        if (path := folder / group / f"{name}.yaml").is_file():
            return path
    raise ConfigError(missing_option(group, name, names(group, where)))


def header(path: Path) -> list[str]:
    """Returns the comment lines at the beginning of a file."""
    lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return [line for line in (line.lstrip("# ").rstrip() for line in lines) if not line.startswith("@package")]


def headline(path: Path) -> str:
    """Returns the first line of a file's first comment, without the command at its end."""
    return re.sub(r": (python -m .*|[\w.]+=\S+)$", "", next(iter(header(path)), ""))


def group_options(group: str, name: str, where: Sequence[Path]) -> list[Option]:
    """Returns the keys of an option of a group, including those inherited from other options of the group.

    A key without a comment in the file itself gets that in the file named after its algorithm or world.

    Raises:
        ConfigError: no such option, or a broken file.
    """
    if group == "agent" and name in OPTIONS:
        return dataclass_options(OPTIONS[name])
    path = find(group, name, where)
    merged: dict[str, Option] = {}
    for base in _defaults(path):
        if isinstance(base, str) and base != _SELF:
            merged |= {option.key: option for option in group_options(group, base, where)}
    for option in options(path):
        inherited = merged.get(option.key)
        merged[option.key] = option if option.comment or inherited is None else replace(inherited, value=option.value)
    original, told = next((merged[key].value for key in ("algorithm", "name") if key in merged), name), {}
    if original != name and original in names(group, where):
        told = {option.key: option.comment for option in options(find(group, original, where))}
    return [replace(option, comment=option.comment or told.get(option.key, "")) for option in merged.values()]


def dataclass_options(config: type[Any]) -> list[Option]:
    """Returns the fields of a dataclass that have a default, its bases' first, with the comments beside and below them.

    A field to which a subclass only gives another default keeps its comment and its heading.
    """
    defaults, hints = defaults_of(config), get_type_hints(config)
    found: dict[str, Option] = {}
    for cls in reversed(config.__mro__[:-1]):
        lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
        body, section = ast.parse("\n".join(lines)).body[0], ""
        assert isinstance(body, ast.ClassDef)
        for entry in body.body:
            if not isinstance(entry, ast.AnnAssign) or not isinstance(entry.target, ast.Name):
                continue
            key = entry.target.id
            section = _heading(lines, entry.lineno - 1, entry.col_offset) or section
            comment = _comment(lines, (entry.end_lineno or 1) - 1, entry.end_col_offset or 0, entry.col_offset)
            known = found.get(key, Option(key, "", "", section))
            found[key] = replace(known, comment=comment or known.comment)
    told: list[Option] = []
    for key, option in found.items():
        if is_dataclass(hints[key]) and isinstance(hints[key], type):
            told.append(option)
            for inner in dataclass_options(hints[key]):
                value = _flow(defaults[key][inner.key])
                told.append(replace(inner, key=f"{key}.{inner.key}", value=value, section=option.section))
        elif key in defaults:
            told.append(replace(option, value=_flow(defaults[key])))
    return told


def _flow(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).removesuffix("...\n").strip()


def read_command(name: str) -> Command:
    """Reads the yaml file of a command.

    Raises:
        ConfigError: a broken file.
    """
    path = conf_dir() / f"{name}.yaml"
    groups: dict[str, str | None] = {}
    extends = None
    for entry in _defaults(path):
        if isinstance(entry, dict):
            ((group, chosen),) = entry.items()
            group = group.removeprefix("override ")
            if not group.startswith("optional "):
                groups[group] = chosen
        elif entry not in (_SELF, "hydra_quiet"):
            extends = entry
    return Command(header(path), options(path), groups, extends)


def options(path: Path) -> list[Option]:
    """Returns the keys of a file in their order, except ``defaults``.

    Raises:
        ConfigError: the file is not a yaml mapping.
    """
    root, text = _composed(path)
    return [entry for entry in _walk(root, text.splitlines(), "") if entry.key != "defaults"]


def _defaults(path: Path) -> list[Any]:
    root, _ = _composed(path)
    return yaml.constructor.SafeConstructor().construct_document(root).get("defaults") or []


def _composed(path: Path) -> tuple[yaml.MappingNode, str]:
    text = path.read_text(encoding="utf-8")
    try:
        root = yaml.compose(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(root, yaml.MappingNode | None):
        raise ConfigError(f"{path}: expected keys and values")
    return root or yaml.MappingNode("tag:yaml.org,2002:map", []), text


def _walk(node: yaml.MappingNode, lines: list[str], prefix: str) -> Iterator[Option]:
    section = ""
    for key_node, value in node.value:
        first, column = key_node.start_mark.line, key_node.start_mark.column
        section = _heading(lines, first, column) or section
        key = f"{prefix}{key_node.value}"
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield Option(key, "", _comment(lines, first, key_node.end_mark.column, column), section)
            yield from _walk(value, lines, f"{key}.")
        elif key == "defaults":
            yield Option(key, "")
        else:
            start, end = value.start_mark, value.end_mark
            shown = " ".join(value.start_mark.buffer[start.index : end.index].split()) if start.buffer else ""
            last = end.line if end.column else end.line - 1  # a block ends at the start of the next line
            yield Option(key, shown or "null", _comment(lines, last, end.column, column), section)


def _comment(lines: list[str], last: int, after: int, column: int) -> str:
    """Returns the comment beside a value, with the lines below it that are indented past its key or are ``#   ...``."""
    found = re.search(r"#\s*(.*)", lines[last][after:]) if last < len(lines) else None
    parts = [] if found is None else [found[1]]
    for line in lines[last + 1 :]:
        stripped = line.lstrip()
        further = len(line) - len(stripped) > column and parts
        if not stripped.startswith("#   ") and not (stripped.startswith("#") and further):
            break
        parts.append(stripped.lstrip("# "))
    return " ".join(part.strip() for part in parts)


def _heading(lines: list[str], first: int, column: int) -> str:
    """Returns the comment directly above a key, at its column and with an empty line above."""
    above = lines[first - 1] if first else ""
    if first < 2 or lines[first - 2].strip() or not above.startswith("#", column) or above[:column].strip():
        return ""
    return above.lstrip("# ").strip()
