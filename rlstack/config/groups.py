"""Finds the yaml files, and reads one option of a Hydra group without a Hydra application."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlstack.config.errors import ConfigError, missing_option, prefixed
from rlstack.config.typed import in_words, resolve, to_plain

FOLDER_FLAGS = ("--config-dir", "-cd")


def conf_dir() -> Path:
    """The folder of yaml files."""
    return Path(__file__).resolve().parents[1] / "conf"


def own_folders(arguments: Sequence[str]) -> list[Path]:
    """Returns the folders of yaml files that ``--config-dir`` names on a command line."""
    joined = [entry.partition("=")[2] for entry in arguments if entry.startswith(f"{FOLDER_FLAGS[0]}=")]
    following = [after for flag, after in pairwise(arguments) if flag in FOLDER_FLAGS]
    return [Path(folder) for folder in [*joined, *following]]


def folder_flags(arguments: Sequence[str]) -> str:
    """Returns the flags ``--config-dir`` of a command line, with a space before each, for the end of another one."""
    return "".join(f" {FOLDER_FLAGS[0]} {shlex.quote(str(folder))}" for folder in own_folders(arguments))


def option_files(group: str, own: Sequence[Path] = ()) -> dict[str, Path]:
    """Returns the files of a group's options by name, ``folder/name`` for those in sub-folders.

    Args:
        own: folders of the user's, whose files come before those of the same name here.
    """
    files: dict[str, Path] = {}
    for folder in [conf_dir(), *reversed(own)]:
        paths = (folder / group).rglob("*.yaml")
        files |= {path.relative_to(folder / group).with_suffix("").as_posix(): path for path in paths}
    return dict(sorted(files.items(), key=lambda entry: ("/" in entry[0], entry[0])))


def inherited(name: str, files: Mapping[str, Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields the file of an option of a group with its content, and then the files on which it builds.

    Args:
        files: see :func:`option_files`.
    """
    waiting = [name]
    while waiting:
        if (path := files.get(waiting.pop(0))) is not None:
            content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            yield path, content
            waiting += [base for base in content.get("defaults", []) if isinstance(base, str)]


def default_choices(command: str) -> dict[str, str | None]:
    """Returns the groups that a command takes, ``agent`` and so on, with their default choices."""
    content = yaml.safe_load((conf_dir() / f"{command}.yaml").read_text(encoding="utf-8"))
    chosen = [entry for entry in content["defaults"] if isinstance(entry, dict)]
    pairs = [(key.removeprefix("override "), value) for entry in chosen for key, value in entry.items()]
    return {key: value for key, value in pairs if not key.startswith("optional ")}


def installed_worlds() -> dict[str, str]:
    """Returns the worlds that installed packages register by entry points, see :mod:`rlstack.envs.registry`."""
    return {entry.name: entry.value for entry in metadata.entry_points(group="rlstack.envs")}


def is_own(world: str) -> bool:
    """Returns True if a name is that of a world of the user's or an installed package's, without a yaml file here."""
    named = re.fullmatch(r"[\w.:-]+", world) is not None and world != "null"
    return named and not (conf_dir() / "env" / f"{world}.yaml").is_file()


def load_group(group: str, name: str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read one option of a Hydra group outside a Hydra application, inheriting as Hydra would.

    Args:
        group: name of a group, such as ``"agent"``.
        name: name of an option of it, such as ``"sac"``; the file's ``defaults`` list is honoured.
        overrides: values of Python merged over the file's; nested mappings are merged key by key.

    Returns:
        The option's content as a plain dict (no ``agent:`` level around it).

    Raises:
        ConfigError: there is no such option (the message lists those there are), the file is broken, or it could not
            hold one of the values.
    """
    options = option_files(group)
    if name not in options:
        raise ConfigError(missing_option(group, name, list(options)))
    root = _composed(f"{group}/{name}", conf_dir()).copy()
    OmegaConf.set_struct(root, False)
    # A file with "@package _global_" puts its content at the root instead of under its group.
    package = group.replace("/", ".")
    node = OmegaConf.select(root, package)
    node = root if node is None else node
    for key, value in (overrides or {}).items():
        with prefixed(f"{group}.{key}"):
            node.merge_with({key: to_plain(value)})
    return resolve(node, package)


@cache
def _composed(name: str, folder: Path) -> DictConfig:
    """Composes a file of a folder once, as this takes a tenth of a second."""
    return compose_config(name)


def check_kinds(group: str, name: str, values: Mapping[str, Any]) -> None:
    """Compares the types of values with the defaults of a shipped option of a group: numbers against strings.

    All other checks are made by the component itself, which may take seconds to import.

    Raises:
        ConfigError: naming the key.
    """
    path = conf_dir() / group / f"{name}.yaml"
    for key, default in OmegaConf.load(path).items() if path.is_file() else ():
        value, kind = values.get(str(key)), type(default)
        wrong: tuple[type, ...] = (str, Mapping) if kind in (bool, int, float) else ()
        wrong = (bool, int, float, Mapping, list) if kind is str else wrong
        if isinstance(value, wrong):
            raise ConfigError(f"{group}.{key!s}: expected {in_words(kind)}, got {value!r} ({type(value).__name__})")


def compose_config(name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """Compose ``<conf_dir>/<name>.yaml`` outside a Hydra application, with overrides as on a command line.

    Raises:
        ConfigError: it cannot be composed.
    """
    from hydra import compose
    from hydra.errors import HydraException

    try:
        with hydra_set_aside():
            return compose(name, list(overrides))
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"{name}: {error}") from error


@contextmanager
def hydra_set_aside() -> Iterator[None]:
    """A context in which Hydra composes our files; afterwards an application that uses Hydra gets its state back."""
    from hydra import initialize_config_dir, version
    from hydra.core.global_hydra import GlobalHydra

    outer, base = GlobalHydra.instance().hydra, version.getbase()
    GlobalHydra.instance().hydra = None
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer
        version.VersionBase.instance().version_base = base
