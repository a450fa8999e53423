"""Refuses code that files name, unless it is a class of our worlds, agents or losses, or the user has allowed it.

Configurations are stored in runs, checkpoints and leagues, and many of their strings would be imported and called
(``package.module:attribute``). Code that reads one from a file calls :func:`check_named`, which neither imports nor
runs anything. What the user wrote on the command line is allowed (:func:`granting`).
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from rlstack.config.errors import ConfigError
from rlstack.config.overrides import override
from rlstack.envs.named import imported

_OURS = {("rlstack.envs.world", "World"), ("rlstack.envs", "World"), ("rlstack.agents.base", "Agent")}
_TORCHRL, _THEIR_BASES = "torchrl", ("EnvBase", "LossModule")
"""Our worlds and losses have these bases in TorchRL, and a user's classes may, too. No other class of TorchRL may be
named freely: some of them start programs."""
_CALLABLE = "callable"
_FILES = ("rlstack", "onnx", "sb3", "marinenav", "arena", "torchscript")
"""Kinds of agents (``kind:path``), which may also be names of modules."""
_SUFFIXES = (".zip", ".npz", ".pt", ".pth", ".onnx", ".json")
_HARMLESS = re.compile(r"https?://.*|(cpu|cuda|mps|xpu):\d+")
"""Addresses and devices, whose first words may also be names of modules."""
_LOCAL = ("auto", "local")

_PARSING = threading.Lock()
"""Python before 3.13 adds up the parsing depths of several threads, and fails (CPython issue 106905)."""

_granted: ContextVar[frozenset[str]] = ContextVar("granted", default=frozenset())


@contextmanager
def granting(content: Any) -> Iterator[None]:
    """Inside this context, files may name the code that is named in ``content``, which the user wrote."""
    written = {text.removeprefix(f"{_CALLABLE}:") for text in _strings(content)}
    token = _granted.set(_granted.get() | written)
    try:
        yield
    finally:
        _granted.reset(token)


def check_named(content: Any, file: str | Path) -> None:
    """Refuses plain content of a file that names code, under any key.

    Allowed are classes whose bases, according to the source of their modules, lead to :class:`rlstack.envs.World`, to
    :class:`rlstack.agents.Agent`, or to TorchRL's ``EnvBase`` or ``LossModule``; and what the user wrote, see
    :func:`granting`.

    Args:
        content: nested mappings and sequences; only strings in them are checked.
        file: the file it comes from, for the message.

    Raises:
        ConfigError: in one line, which shows the option that allows the code.
    """
    for text in _strings(content):
        if "${" in text:
            raise ConfigError(f"{file}: {text!r} is an interpolation, which a file of a run must not hold")
    refused = [name for name in code_in(content) if name not in _granted.get()]
    if refused:
        names = ", ".join(map(repr, refused))
        raise ConfigError(
            f"{file} names code, {names}, which is run only if you allow it: {shlex.quote(allowing(refused))}"
        )


def allowing(names: Sequence[str]) -> str:
    """Returns the command-line option that allows this code, in Hydra's syntax."""
    return override("allow", names)


def code_in(content: Any) -> list[str]:
    """Returns the code named in plain content, each once, except the classes that :func:`check_named` allows."""
    return list(dict.fromkeys(name for name in _named(content) if not _is_ours(name)))


def load_named(path: str) -> Any:
    """Returns the object that ``package.module:attribute`` names; importing the module runs its code.

    Raises:
        ConfigError: the path is not of that form, or there is no such module or attribute.
    """
    module, colon, attribute = path.partition(":")
    if not colon or not module or not attribute:
        raise ConfigError(f"{path!r} is not of the form 'package.module:attribute'")
    try:
        found: Any = imported(module)
    except ValueError as error:
        raise ConfigError(f"{path} cannot be imported: {error}") from error
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            public = ", ".join(key for key in getattr(found, "__dict__", ()) if not key.startswith("_")) or "nothing"
            raise ConfigError(f"{path}: there is no {name!r} in it, but {public}") from None
        except Exception as error:  # an attribute that is computed
            raise ConfigError(f"{path}: {name} cannot be had ({type(error).__name__}: {_first_line(error)})") from error
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _strings(content: Any) -> Iterator[str]:
    return (part for part in _parts(content) if isinstance(part, str))


def _parts(content: Any) -> Iterator[Any]:
    """Yields the content and everything in it, without recursion, which deep nesting would exhaust."""
    waiting = [content]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part


def _named(content: Any) -> Iterator[str]:
    """Yields the strings that could be used to import code."""
    for part in _parts(content):
        if isinstance(part, str):
            yield from _in_text(part)
        elif isinstance(part, Mapping):
            path, id, address = part.get("path"), part.get("id"), part.get("address")
            if part.get("kind") == _CALLABLE and isinstance(path, str):
                yield path
            # PettingZoo's ids may be just the name of a module.
            if isinstance(id, str) and ":" not in id and id.partition(".")[0] != "pettingzoo" and _importable(id):
                yield id
            if isinstance(address, str) and address not in _LOCAL:  # of a cluster, which sends pickles
                yield address


def _in_text(text: str) -> Iterator[str]:
    head, colon, rest = text.partition(":")
    if not colon:
        return
    if head == _CALLABLE:
        yield rest
    elif head in _FILES and (Path(rest).suffix in _SUFFIXES or Path(rest).exists() or not _is_dotted(rest)):
        return
    elif not _HARMLESS.fullmatch(text) and _importable(head):
        yield text


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


# -- modules, which are found and read, but not imported ---------------------------------------------------------


def _importable(module: str) -> bool:
    """Returns True if importing a module would run code: the first part of a dotted name is imported first."""
    top = module.partition(".")[0]
    return bool(top) and (top in sys.modules or _found(top, None) is not None)


def _found(module: str, path: Any) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            spec = None if find is None else find(module, path)
        except (ImportError, ValueError, KeyError, AttributeError):  # KeyError: its package is not imported
            continue
        if spec is not None:
            return spec
    return None


def _spec(module: str) -> ModuleSpec | None:
    path: Any = None
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for count, part in enumerate(parts, 1):
        spec = _found(".".join(parts[:count]), path)
        if spec is None or spec.origin is None:  # folders without __init__.py, which are found once they are imported
            path = [str(Path(entry or ".", part)) for entry in (sys.path if path is None else path)]
        elif spec.submodule_search_locations is None and count < len(parts):
            return None
        else:
            path = spec.submodule_search_locations
    return spec


def _is_ours(name: str) -> bool:
    """Returns True if a name is that of an allowed class, according to the source of its module."""
    module, _, attribute = name.partition(":")
    return attribute.isidentifier() and _leads_to_ours(module, attribute, set())


def _leads_to_ours(module: str, name: str, seen: set[tuple[str, str]]) -> bool:
    if (module, name) in _OURS:
        return True
    if module.partition(".")[0] == _TORCHRL:
        return name in _THEIR_BASES
    if (module, name) in seen:
        return False
    seen.add((module, name))
    tree, package = _source(module)
    if tree is None:
        return False
    bound = _binding(tree, name)
    if isinstance(bound, ast.ImportFrom):
        origin = next(alias.name for alias in bound.names if (alias.asname or alias.name) == name)
        return _leads_to_ours(_absolute(bound, package), origin, seen)
    if not isinstance(bound, ast.ClassDef):
        return False
    places = (_place(base, tree, module, package) for base in bound.bases)
    return any(place is not None and _leads_to_ours(*place, seen) for place in places)


def _source(module: str) -> tuple[ast.Module | None, str]:
    """Returns the parsed source of a module (None if there is none), and the package of its relative imports."""
    spec = _spec(module)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None, ""
    package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
    try:
        with _PARSING:
            return ast.parse(Path(spec.origin).read_bytes()), package
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None, ""


def _binding(tree: ast.Module, name: str) -> ast.stmt | None:
    """Returns the last top-level statement of a module that binds the name."""
    found: ast.stmt | None = None
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = {statement.name}
        elif isinstance(statement, ast.ImportFrom):
            names = {alias.asname or alias.name for alias in statement.names}
        elif isinstance(statement, ast.Import):
            names = {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
        else:
            mentioned = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
            names = {node.id for node in mentioned if not isinstance(node.ctx, ast.Load)}
        found = statement if name in names else found
    return found


def _place(base: ast.expr, tree: ast.Module, module: str, package: str) -> tuple[str, str] | None:
    """Returns the module and name of a base class written as ``Name`` or ``package.module.Name``."""
    if isinstance(base, ast.Name):
        return module, base.id
    if not isinstance(base, ast.Attribute):
        return None
    *heads, name = ast.unparse(base).split(".")
    bound = _binding(tree, heads[0])
    if isinstance(bound, ast.Import):
        for alias in bound.names:
            if alias.asname == heads[0]:
                return ".".join([alias.name, *heads[1:]]), name
        return ".".join(heads), name
    if isinstance(bound, ast.ImportFrom):
        origin = next(alias.name for alias in bound.names if (alias.asname or alias.name) == heads[0])
        return ".".join([_absolute(bound, package), origin, *heads[1:]]), name
    return None


def _absolute(statement: ast.ImportFrom, package: str) -> str:
    """Returns the module that a statement imports from."""
    if not statement.level:
        return statement.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - statement.level + 1], *([statement.module] if statement.module else [])])
