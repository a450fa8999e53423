"""What files may name: data, registered worlds and agents, and options; anything else only with the user's consent.

Configurations travel in runs, checkpoints and leagues, and many of their strings would be imported, opened or called:
``package.module:attribute``, ``kind:path`` of an agent from elsewhere, addresses of servers, folders to write to. Code
that reads one from a file calls :func:`check_named`. The user consents on the command line (:func:`granting`), or has
consented before, when this user's program wrote the file on this machine (:func:`sign`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from rlstack.config.errors import ConfigError
from rlstack.config.overrides import override
from rlstack.envs.foundation.files import check_regular, write_json

SIGNED = "allowed.json"
"""Name of the file that lists what the files of its folder may name, signed with the user's key."""
_PLACES = ("pool", "directory", "mlflow_uri", "wandb", "address")
"""Keys of folders to write to and of servers to call."""
_HARMLESS = {
    "device": re.compile(r"(cpu|cuda|mps|xpu):\d+"),
    "address": re.compile("auto|local"),
    "wandb": re.compile("disabled|offline"),
}
"""Values of these keys that would be names elsewhere."""
_KEY_BYTES = 32
_YAML_BYTES, _YAML_DEPTH = 2**18, 100
"""Limits of a yaml file, many times what the configuration of any run needs."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_granted: ContextVar[frozenset[str]] = ContextVar("granted", default=frozenset())


@contextmanager
def granting(content: Any) -> Iterator[None]:
    """Inside this context, files may name what ``content`` names, which the user wrote."""
    token = _granted.set(_granted.get().union(text for _, text in _texts(content)))
    try:
        yield
    finally:
        _granted.reset(token)


def check_named(content: Any, file: str | Path) -> None:
    """Refuses plain content of a file that names more than data, unless the user has allowed or signed it.

    Args:
        content: nested mappings and sequences.
        file: the file it comes from.

    Raises:
        ConfigError: in one line, which shows the option that allows it.
    """
    for _, text in _texts(content):
        if "${" in text:
            raise ConfigError(f"{file}: {text!r} is an interpolation, which a file of a run must not hold")
    refused = [name for name in names_in(content) if name not in _granted.get()]
    if refused and not _signed(Path(file).parent).issuperset(refused):
        names = ", ".join(map(repr, refused))
        raise ConfigError(f"{file} names {names}, which is used only if you allow it: {shlex.quote(allowing(refused))}")


def allowing(names: Sequence[str]) -> str:
    """Returns the command-line option that allows these names, in Hydra's syntax."""
    return override("allow", names)


def names_in(content: Any) -> list[str]:
    """Returns what plain content names beyond data, in order: strings with a colon, servers, and folders to write to.

    The file of an agent from elsewhere is given as ``kind:path``, however the content has it.
    """
    names = ((key, text) for key, text in _texts(content) if ":" in text or key in _PLACES)
    return sorted({text for key, text in names if key not in _HARMLESS or not _HARMLESS[key].fullmatch(text)})


def links_in(folder: Path, parts: Sequence[str] = (".",)) -> list[dict[str, str]]:
    """Returns the places outside a folder to which symbolic links in it lead, as content for :func:`check_named`.

    Args:
        parts: names in the folder, to which it is limited.
    """
    root = os.path.realpath(folder)
    tops = [os.path.join(root, part) for part in parts]
    places = chain.from_iterable(os.walk(top) for top in tops if not os.path.islink(top))
    inside = (os.path.join(where, name) for where, *names in places for name in chain(*names))
    targets = (Path(os.path.realpath(path)) for path in chain(tops, inside) if os.path.islink(path))
    return [{_PLACES[0]: str(target)} for target in targets if not target.is_relative_to(root)]


def _texts(content: Any) -> Iterator[tuple[Any, str]]:
    """Yields each string with its key, without recursion, which deep nesting would exhaust."""
    waiting, seen = [(None, content)], set[int]()
    while waiting:
        key, part = waiting.pop()
        if isinstance(part, str):
            yield key, part
        elif id(part) in seen:  # a file's containers may hold themselves
            continue
        seen.add(id(part))
        if isinstance(part, Mapping):
            if "algorithm" in part and isinstance(part.get("path"), str):
                part = {**part, "path": f"{part.get('kind')}:{part['path']}"}
            waiting += part.items()
        elif isinstance(part, list | tuple):
            waiting += ((key, entry) for entry in part)


def yaml_text(path: Path) -> str:
    """Returns the text of a yaml file of unknown origin, whose aliases and nesting could take all memory.

    Raises:
        ConfigError: the file is too large or nested too deeply, or has aliases, which no configuration of a run has.
        OSError, UnicodeDecodeError, yaml.YAMLError: the file cannot be read.
    """
    if (size := check_regular(path).stat().st_size) > _YAML_BYTES:
        raise ConfigError(f"{size:,} bytes are more than the {_YAML_BYTES:,} that a configuration may have")
    text, depth = path.read_text(encoding="utf-8"), 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _YAML_DEPTH:
            raise ConfigError("nested too deeply")
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"line {event.start_mark.line + 1} has an alias, *{event.anchor}: write its value there")
    return text


def read_yaml(path: Path) -> Any:
    """Returns the content of a yaml file as plain values, checked as by :func:`yaml_text`."""
    return yaml.load(yaml_text(path), Loader=_LOADER)


# -- what the user's own program has written ---------------------------------------------------------------------


def sign(folder: Path, content: Any) -> None:
    """Allows the files of a folder to name what ``content`` names, for this user on this machine.

    The proof holds for this path alone: a copy of the folder elsewhere, or one from another user, is a stranger's.

    Raises:
        OSError: the folder cannot be written to.
    """
    before = _signed(folder)
    names = before.union(names_in(content))
    if names != before:
        write_json(folder / SIGNED, {"names": sorted(names), "signature": _signature(folder, names)})


def sign_copy(folder: Path, copy: Path) -> None:
    """Signs for the copy of a folder, and for each folder in it, what is signed for the original; see :func:`sign`."""
    for file in (folder / SIGNED, *folder.glob(f"*/{SIGNED}")):
        sign(copy / file.parent.relative_to(folder), [{_PLACES[0]: name} for name in _signed(file.parent)])


def _signed(folder: Path) -> frozenset[str]:
    """Returns the names in a folder's list; none if its signature is not this user's."""
    try:
        check_regular(folder / SIGNED)
        content = json.loads((folder / SIGNED).read_bytes())
        names = frozenset(content["names"])
        sound = hmac.compare_digest(content["signature"], _signature(folder, names))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()
    return names if sound else frozenset()


def _signature(folder: Path, names: frozenset[str]) -> str:
    text = json.dumps([str(folder.resolve()), sorted(names)])
    return hmac.new(_key(), text.encode(), hashlib.sha256).hexdigest()


@cache
def _key() -> bytes:
    """Returns the user's secret; one for this process alone if none can be kept where others cannot read it."""
    with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home
        file = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "rlstack" / "key"
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            with suppress(FileExistsError), tempfile.NamedTemporaryFile(dir=file.parent) as new:
                new.write(secrets.token_bytes(_KEY_BYTES))
                new.flush()
                os.link(new.name, file)  # whole, or that of another process
        status, key = file.stat(), file.read_bytes()
        if status.st_uid == os.getuid() and not status.st_mode & 0o077 and len(key) >= _KEY_BYTES:
            return key
    return secrets.token_bytes(_KEY_BYTES)
