"""Help on the command line: ``rlstack train --help``, ``rlstack agents``, ``rlstack envs rocket``.

The yaml files and the dataclasses of options are their own documentation, and are shown as they are written.
"""

from __future__ import annotations

import inspect
import os
import re
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import yaml

from rlstack.config import ConfigError
from rlstack.config.errors import missing_option
from rlstack.config.groups import (
    FOLDER_FLAGS,
    conf_dir,
    default_choices,
    inherited,
    installed_worlds,
    option_files,
    own_folders,
)

COMMANDS = {
    "train": "trains an agent in a world, or continues a run",
    "evaluate": "evaluates a trained agent on many episodes, or in games",
    "watch": "shows an agent at play, or the terms of its reward: in a window, in the terminal, or as a film",
    "demo": "shows, or lists, the trained agents that come with rlstack",
    "report": "lists runs, writes one HTML page about them, or compares two runs or groups of seeds",
    "verify": "trains a stretch of a run again, and compares it to the last bit",
    "league": "plays tournaments, rates players, and trains in leagues",
    "convert": "converts an agent from elsewhere to a native one, or exports a policy as a program",
    "explain": "says why an agent does not learn, or why its training is slow",
    "push": "publishes an agent, or recorded transitions, on the Hugging Face Hub",
}
"""Commands with a module each, ``rlstack.<command>``, and their purpose."""

LISTS = {
    "agents": "lists the agents; rlstack agents <name>: every option of one",
    "envs": "lists the worlds; rlstack envs <name>: every option of one, also of <module>:<class>",
}

_FOOT = """\
--cfg job: prints the whole configuration and ends
-m agent=ppo,sac seed=0,1,2: makes several runs, one after another
--config-dir my_conf: adds your own groups: my_conf/agent/*.yaml, my_conf/env/*.yaml"""


def command_help(config: str, own: Sequence[Path] = ()) -> str:
    """Returns the help of the command that ``conf/<config>.yaml`` configures: its file, and what its groups offer.

    Args:
        own: folders of the user's with further options of groups.
    """
    title = f"rlstack {config.replace('_', ' ')}"
    text = (conf_dir() / f"{config}.yaml").read_text(encoding="utf-8")
    defaults = yaml.safe_load(text)["defaults"]
    keys = re.sub(r"^defaults:.*\n(?:  .*\n)*\n?", "\n", text, flags=re.MULTILINE).strip()
    parts = [f"{title}: {COMMANDS[config]}" if config in COMMANDS else title, keys]
    for group, chosen in default_choices(config).items():
        names = ", ".join(option_files(group, own))
        more = f"; every option of one: rlstack {group}s <name>" if f"{group}s" in LISTS else ""
        parts.append(f"{group}=<name> (default: {chosen or 'none'}{more}):\n{textwrap.indent(_wrapped(names), '  ')}")
    if "train" in defaults:
        parts.append("also accepts every option and group of: rlstack train --help")
    return "\n\n".join([*parts, _FOOT])


def list_group(kind: str, arguments: Sequence[str]) -> str:
    """Lists the options of a group with a line each or, if one is named, its keys with defaults and comments.

    Args:
        kind: a key of :data:`LISTS`.

    Raises:
        ConfigError: the option does not exist, or several are named.
    """
    group, own = kind.removesuffix("s"), own_folders(arguments)
    before = ["", *arguments]
    named = [entry for flag, entry in pairwise(before) if not entry.startswith("-") and flag not in FOLDER_FLAGS]
    files = option_files(group, own)
    if len(named) > 1:
        raise ConfigError(f"{' '.join(named)}: one name at most, such as: rlstack {kind} {named[0]}")
    if named:
        return _described(group, named[0].removeprefix(f"{group}="), files)
    rows = [(name, headline(path)) for name, path in files.items()]
    if group == "env":
        rows += [(name, f"of an installed package: {target}") for name, target in installed_worlds().items()]
    foot = f"every option of one: rlstack {kind} {rows[0][0]}"
    return "\n".join([f"{kind}, for {group}=<name>:", *table(rows), "", foot])


def headline(path: Path) -> str:
    """Returns the first sentence of the comment at the beginning of a yaml file."""
    lines = [line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return next((line for line in lines if not line.startswith("@package")), "")


def table(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Returns lines of two columns."""
    return [f"  {first:<20} {second}".rstrip() for first, second in rows]


def _described(group: str, name: str, files: dict[str, Path]) -> str:
    """Returns the yaml files of an option as they are written, and the options of its class."""
    key, built_on = "algorithm" if group == "agent" else "name", list(inherited(name, files))
    target = str(next((content[key] for _, content in built_on if key in content), name))
    parts = [f"# {path}\n{path.read_text(encoding='utf-8').strip()}" for path, _ in built_on]
    if group == "env" and (":" in target or not parts):
        parts.append(_options_of_world(target, files))
    elif group == "agent" and (":" in target or parts):
        from rlstack.agents import agent_class

        declared = [cls for cls in agent_class(target).Config.__mro__[:-1] if "__annotations__" in vars(cls)]
        sources = [re.split(r"\n    (?:@|def )", inspect.getsource(cls), maxsplit=1)[0].rstrip() for cls in declared]
        parts += [f"the options of {target}, for agent.<option>=<value>", *sources]
    elif not parts:
        raise ConfigError(missing_option(group, target, list(files)))
    return "\n\n".join(parts)


def _options_of_world(world: str, files: dict[str, Path]) -> str:
    """Returns the first sentence of a world's class, and its constructor's arguments.

    Raises:
        ConfigError: there is no such world.
    """
    from rlstack.envs.registry import options_of, world_class

    try:
        options, described = options_of(world), inspect.getdoc(world_class(world)) or ""
    except ValueError as error:
        raise ConfigError(f"env: {error}" if ":" in world else missing_option("env", world, list(files))) from None
    lines = [f"env={world}", _wrapped(re.sub(r":\w+:`~?([^`]+)`|``([^`]+)``", r"\1\2", described.partition("\n\n")[0]))]
    for key, entry in options.items():
        if key not in ("device", "seed", "**"):  # set by the run
            default = str(entry.default).removeprefix("torch.")
            default = {"None": "null", "True": "true", "False": "false"}.get(default, default)
            lines.append(f"  env.{key}={'<value>, required' if entry.default is entry.empty else default}")
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, min(int(os.environ.get("COLUMNS", 118)), 118), break_on_hyphens=False)
