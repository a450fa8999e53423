"""Finds the yaml files, and reads one option of a Hydra group without a Hydra application."""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlstack.config.errors import ConfigError, missing_option
from rlstack.config.typed import in_words, resolve


def conf_dir() -> Path:
    """The folder of yaml files."""
    return Path(__file__).resolve().parents[1] / "conf"


def is_own(world: str) -> bool:
    """Returns True if a name is that of a world of the user's or an installed package's, without a yaml file here."""
    named = re.fullmatch(r"[\w.:-]+", world) is not None and world != "null"
    return named and not (conf_dir() / "env" / f"{world}.yaml").is_file()


def load_group(group: str, name: str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read one option of a Hydra group outside a Hydra application, inheriting as Hydra would.

    Args:
        group: name of a group, such as ``"agent"``.
        name: name of an option of it, such as ``"sac"``; the file's ``defaults`` list is honoured.
        overrides: values merged over the file's; nested mappings are merged key by key.

    Returns:
        The option's content as a plain dict (no ``agent:`` level around it).

    Raises:
        ConfigError: there is no such option (the message lists those there are), or the file is broken.
    """
    options = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    if name not in options:
        raise ConfigError(missing_option(group, name, options))
    times = [path.stat().st_mtime_ns for path in conf_dir().rglob("*.yaml")]
    root = copy.deepcopy(_composed(f"{group}/{name}", (str(conf_dir()), len(times), max(times, default=0))))
    OmegaConf.set_struct(root, False)
    # A file with "@package _global_" puts its content at the root instead of under its group.
    package = group.replace("/", ".")
    node = OmegaConf.select(root, package)
    node = root if node is None else node
    node.merge_with(dict(overrides or {}))
    return resolve(node, package)


@cache
def _composed(name: str, changed: tuple[str, int, int]) -> DictConfig:
    """Composes a file once, as this takes a tenth of a second.

    ``changed`` has the folder of yaml files, their number, and the time of the last change to any of them.
    """
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
    from yaml import YAMLError

    try:
        with hydra_set_aside():
            return compose(name, list(overrides))
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
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
