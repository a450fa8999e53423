"""rlstack: a modular training stack on TorchRL.

Programmatic face: :func:`make_collector`, :func:`make_agent`, :func:`flatten_agents`, :func:`load`,
:func:`imitate`; worlds come from ``envs.make``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["export_policy", "flatten_agents", "imitate", "load", "load_policy", "make_agent", "make_collector"]

if TYPE_CHECKING:
    from .adapters.exporting import export_policy
    from .adapters.loading import load_policy
    from .agents import make_agent
    from .collection.collector import make_collector
    from .collection.flatten import flatten_agents
    from .training.imitation import imitate
    from .training.loading import load

_HOMES = {
    "make_agent": "rlstack.agents",
    "make_collector": "rlstack.collection.collector",
    "flatten_agents": "rlstack.collection.flatten",
    "imitate": "rlstack.training.imitation",
    "load": "rlstack.training.loading",
    "load_policy": "rlstack.adapters.loading",
    "export_policy": "rlstack.adapters.exporting",
}


def __getattr__(name: str) -> Any:
    """Imports torch and TorchRL only when something is used, so that ``--help`` and errors come at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rlstack' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
