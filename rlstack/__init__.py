"""rlstack: a modular training stack on TorchRL.

Commands as functions: :func:`train`, :func:`evaluate`, :func:`watch`, :func:`report`, :func:`compare`,
:func:`list_runs`, :func:`list_zoo`, :func:`export`, :func:`convert`, :func:`league`, :func:`diagnose`,
:func:`rewards`, :func:`demo`, :func:`verify`.
Parts: :func:`make_collector`, :func:`make_agent`, :func:`flatten_agents`, :func:`load`, :func:`imitate`; worlds come
from :func:`rlstack.envs.make`.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "RunError",
    "compare",
    "convert",
    "demo",
    "diagnose",
    "envs",
    "evaluate",
    "export",
    "export_policy",
    "flatten_agents",
    "imitate",
    "league",
    "list_runs",
    "list_zoo",
    "load",
    "load_policy",
    "make_agent",
    "make_collector",
    "report",
    "rewards",
    "train",
    "verify",
    "watch",
]

if TYPE_CHECKING:
    from . import envs
    from .adapters.exporting import export_policy
    from .agents import make_agent
    from .agents.foreign import load_policy
    from .compare import compare
    from .config.errors import ConfigError, RunError
    from .convert import convert
    from .data.collector import make_collector
    from .data.flatten import flatten_agents
    from .demo import demo
    from .diagnose import diagnose
    from .evaluate import evaluate
    from .export import export
    from .league import league
    from .list_runs import list_runs
    from .list_zoo import list_zoo
    from .report import report
    from .rewards import rewards
    from .runs.loading import load
    from .train import train
    from .training.imitation import imitate
    from .verify import verify
    from .watch import watch


if sys.argv[:1] == ["-m"] and sys.path[:1] in ([""], [os.getcwd()]):  # a command is about to start
    # Python looks for modules in the working folder first, which may be that of files from a stranger.
    del sys.path[0]
    if os.getcwd() == (home := os.path.dirname(os.path.dirname(os.path.abspath(__file__)))):
        sys.path.append(home)  # processes of ours import rlstack from there

_COMMANDS = {
    *("compare", "convert", "demo", "diagnose", "evaluate", "export", "league", "list_runs", "list_zoo", "report"),
    *("rewards", "train", "verify", "watch"),
}
"""Modules that can also be called, see :func:`rlstack.command.as_module`."""
_HOMES = {
    "ConfigError": "rlstack.config.errors",
    "RunError": "rlstack.config.errors",
    "make_agent": "rlstack.agents",
    "make_collector": "rlstack.data.collector",
    "flatten_agents": "rlstack.data.flatten",
    "imitate": "rlstack.training.imitation",
    "load": "rlstack.runs.loading",
    "load_policy": "rlstack.agents.foreign",
    "export_policy": "rlstack.adapters.exporting",
}


def __getattr__(name: str) -> Any:
    """Imports torch and TorchRL on first use, so that ``--help`` and errors appear at once."""
    if name in _COMMANDS or name == "envs":
        return importlib.import_module(f"rlstack.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'rlstack' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found
