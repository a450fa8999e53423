"""rlstack: a modular training stack on TorchRL.

Commands as functions: :func:`train`, :func:`evaluate`, :func:`watch`, :func:`demo`, :func:`report`, :func:`verify`,
:func:`league`, :func:`convert`, :func:`push`, :func:`explain`.
Parts: :func:`make_collector`, :func:`make_agent`, :func:`flatten_agents`, :func:`load`, :func:`imitate`; worlds come
from :func:`rlstack.envs.make`.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
if TYPE_CHECKING:
    from . import envs as envs
    from .adapters.exporting import export_policy as export_policy
    from .agents import make_agent as make_agent
    from .agents.legacy import load_policy as load_policy
    from .config.errors import ConfigError as ConfigError
    from .config.errors import RunError as RunError
    from .convert import convert as convert
    from .data.collector import make_collector as make_collector
    from .data.flatten import flatten_agents as flatten_agents
    from .demo import demo as demo
    from .evaluate import evaluate as evaluate
    from .explain import explain as explain
    from .league import league as league
    from .push import push as push
    from .report import report as report
    from .runs.loading import load as load
    from .train import train as train
    from .training.imitation import imitate as imitate
    from .verify import verify as verify
    from .watch import watch as watch

FORMER = {
    "runs": "rlstack report <folder> page=false",
    "list_runs": "rlstack report <folder> page=false",
    "compare": "rlstack report <run or runs> <run or runs>",
    "zoo": "rlstack demo list",
    "list_zoo": "rlstack demo list",
    "rewards": "rlstack watch show=rewards checkpoint=<run>",
    "export": "rlstack convert checkpoint=<run> format=<format>",
    "diagnose": "rlstack explain speed agent=<agent> env=<env>",
}
"""Former commands, and what does the same now; the same holds for functions: ``rlstack.report(folder, page=False)``."""

if sys.argv[:1] == ["-m"]:  # a command is about to start
    for word in sys.orig_argv:
        if word.startswith("rlstack.") and word.removeprefix("rlstack.") in FORMER:
            print(f"error: {word} is now: {FORMER[word.removeprefix('rlstack.')]}", file=sys.stderr)
            raise SystemExit(2)
    if sys.path[:1] in ([""], [os.getcwd()]):
        # Python looks for modules in the working folder first, which may be that of files from a stranger.
        del sys.path[0]
        if os.getcwd() == (home := os.path.dirname(os.path.dirname(os.path.abspath(__file__)))):
            sys.path.append(home)  # processes of ours import rlstack from there

_MODULES = {"envs", "convert", "demo", "evaluate", "explain", "league", "push", "report", "train", "verify", "watch"}
"""Modules; those of commands can also be called, see :func:`rlstack.command.as_module`."""
_HOMES = {
    "ConfigError": "rlstack.config.errors",
    "RunError": "rlstack.config.errors",
    "make_agent": "rlstack.agents",
    "make_collector": "rlstack.data.collector",
    "flatten_agents": "rlstack.data.flatten",
    "imitate": "rlstack.training.imitation",
    "load": "rlstack.runs.loading",
    "load_policy": "rlstack.agents.legacy",
    "export_policy": "rlstack.adapters.exporting",
}
__all__ = [*_MODULES, *_HOMES]


def __getattr__(name: str) -> Any:
    """Imports torch and TorchRL on first use, so that ``--help`` and errors appear at once."""
    if name in _MODULES:
        return importlib.import_module(f"rlstack.{name}")
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
    now = f", is now: {FORMER[name]}" if name in FORMER else ""
    raise AttributeError(f"module 'rlstack' has no attribute {name!r}{now}")
