"""Code that a configuration names, and optional packages.

Since configurations travel in runs and checkpoints, only some code may be called.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import os
import re
import shlex
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin, get_type_hints

_OTHERS = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_OTHERS.append(Path(__file__).parents[2])
"""Folders of code that is not the user's."""


def found(target: str) -> Any:
    """Returns the object that ``package.module:attribute`` names; importing the module runs its code.

    Raises:
        ValueError: the target is not of that form, or there is no such module or attribute.
    """
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise ValueError(f"{target!r} is not of the form 'package.module:attribute'")
    try:
        thing: Any = imported(module)
    except ValueError as error:
        raise ValueError(f"{target} cannot be imported: {error}") from error
    for name in attribute.split("."):
        try:
            thing = getattr(thing, name)
        except AttributeError:
            raise ValueError(f"{target}: {lacks(thing, name)}") from None
        except Exception as error:  # an attribute that is computed
            raise ValueError(f"{target}: {name} cannot be had ({type(error).__name__}: {error})") from error
    return thing


def lacks(thing: Any, name: str) -> str:
    """Returns a phrase for a name that is missing in a module or a class: what may be meant, and what there is."""
    public = [key for key in getattr(thing, "__dict__", ()) if not key.startswith("_")]
    close = difflib.get_close_matches(name, public, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    owner = getattr(thing, "__name__", type(thing).__name__)
    return f"{owner} has no {name!r}{'; it has ' if public else ''}{', '.join(public)}{meant}"


def belongs_to(made: type, world: str, id: str) -> str:
    """Returns a phrase that names the world for a class of another library than that of ``world``, or ``""``."""
    libraries = [base.__module__.partition(".")[0] for base in made.__mro__]
    others = [name for name in libraries if name in ("gymnasium", "pettingzoo", "torchrl") and name != world]
    return f"; for environments of {others[0]}, use env={others[0]} env.id={id}" if others else ""


def imported(module: str) -> ModuleType:
    """Imports a module of the user's, from the working folder if it is nowhere else.

    Only then is the working folder searched: torch, Gymnasium and Hydra import the plugins that they find on the path,
    and it may hold those of a stranger. With ``python -P`` it never is.

    Raises:
        ValueError: it cannot be imported; one line says why, and where in the user's code.
    """
    try:
        top, here = module.partition(".")[0], os.getcwd()
        nowhere = bool(top) and top not in sys.modules and importlib.util.find_spec(top) is None
        if nowhere and here not in sys.path and not getattr(sys.flags, "safe_path", False):  # new in Python 3.11
            sys.path.append(here)
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a user's code may raise anything, or end the program
        reason, top = " ".join(str(error).split()), module.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name in (top, module):
            file = f"{top}.py" if top == module else top
            where = f"; run the command in the folder of {file}, or put that folder on PYTHONPATH"
            reason += where if error.name == top else ""
        elif isinstance(error, SyntaxError):  # which names its place
            reason = f"{type(error).__name__}: {reason}"
        elif place := place_in_users_code(error):
            reason = f"{type(error).__name__}: {reason}{place}"
        elif not isinstance(error, ImportError | TypeError | ValueError):  # TypeError: a relative name
            raise
        raise ValueError(reason or type(error).__name__) from error


def place_in_users_code(error: BaseException) -> str:
    """Returns file and line of the user's code that raised an error, such as ``(tank.py, line 38)``, or ``""``."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and not any(file.is_relative_to(folder) for folder in _OTHERS):
            return f" ({file.name}, line {frame.lineno})"
    return ""


def made_by(factory: Any) -> type:
    """Returns the class of a call's result: the callee if it is a class, or a function's annotated return type.

    Returns ``object`` for anything else, such as ``subprocess.run``, which a file must not be able to call.
    """
    if not inspect.isclass(factory):
        try:
            factory = get_type_hints(factory).get("return")
        except (AttributeError, NameError, TypeError):  # not a function, or annotated with unknown names
            return object
        factory = get_origin(factory) or factory
    return factory if inspect.isclass(factory) else object


# -- optional packages: the extras of ``pyproject.toml`` ---------------------------------------------------------------


_DISTRIBUTION = "rlstack-torchrl"
_ROOT = Path(__file__).resolve().parents[2]


def needs(extra: str) -> str:
    """Returns ``needs the extra 'sweep': pip install ...``, the end of a message about a missing package."""
    return f"needs the extra {extra!r}: {install(extra)}"


def install(extra: str) -> str:
    """Returns the command that installs an extra: for a clone of the repository from there, otherwise from an index."""
    project = _ROOT / "pyproject.toml"
    if not project.is_file() or not re.search(rf'^name = "{_DISTRIBUTION}"', project.read_text("utf-8"), re.MULTILINE):
        return f"pip install '{_DISTRIBUTION}[{extra}]'"
    here = Path.cwd() == _ROOT
    constraints = "constraints.txt" if here else shlex.quote(str(_ROOT / "constraints.txt"))
    place = shlex.quote(f"{'.' if here else _ROOT}[{extra}]")
    return f"pip install -e {place} -c {constraints}"
