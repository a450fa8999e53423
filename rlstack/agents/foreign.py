"""Agents from anywhere as policies of an env, by one name: ``kind:path``.

A kind is loaded by a function named here, which is imported when it is used: rooms above register theirs by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from rlstack.config import ConfigError
from rlstack.config.errors import missing_option, nearest_path, unknown_key
from rlstack.config.named_code import granting

_LOADERS: dict[str, str] = {
    "rlstack": "rlstack.runs.loading:run_policy",
    "zoo": "rlstack.runs.loading:zoo_policy",
    "marinenav": "rlstack.adapters.marinenav:published_policy",
    "sb3": "rlstack.adapters.sb3:sb3_policy",
    "arena": "rlstack.adapters.arena:arena_policy",
    "torchscript": "rlstack.adapters.scripted:torchscript_policy",
    "onnx": "rlstack.adapters.scripted:onnx_policy",
    "callable": "rlstack.adapters.protocols:callable_policy",
}

KINDS: dict[str, tuple[str, ...]] = {
    "rlstack": ("which", "explore"),
    "zoo": ("explore",),
    "marinenav": ("agent_type",),
    "sb3": ("vecnormalize", "deterministic"),
    "arena": ("normalization", "deterministic"),
    "torchscript": (),
    "onnx": (),
    "callable": ("protocol", "batched", "arrays"),
}
"""The kinds of agents, and the options that :func:`load_policy` takes for each."""

_RECORDINGS: dict[str, str] = {"timesteps.npy": "rlstack.adapters.marinenav.evaluations:demonstrations"}
"""Recorded episodes from elsewhere: a member that their ``.npz`` files alone have, and the function that reads them."""

_MINARI = "rlstack.adapters.minari"


def load_policy(source: str, env: EnvBase, allow: Collection[str] = (), **options: Any) -> TensorDictModuleBase:
    """An agent from anywhere as a policy of an env.

    ============= ======================================= =============================================================
    kind          path                                    options
    ============= ======================================= =============================================================
    (none)        a run directory or checkpoint of ours   ``which`` (latest, best), ``explore`` (False)
    rlstack       the same                                the same
    zoo           the name of an agent that comes with    ``explore`` (False)
                  rlstack, see ``rlstack zoo``
    marinenav     files of a published agent              ``agent_type`` if the files do not tell
    sb3           a model's zip                           ``vecnormalize`` (its statistics), ``deterministic`` (True)
    arena         a ``.pt`` of the Arena's own stack      ``normalization`` (its statistics; ``none``),
                                                          ``deterministic`` (True)
    torchscript   a file of ``torch.jit.save``
    onnx          an ONNX file
    callable      ``package.module:attribute``            ``protocol`` (auto, callable, act, predict), ``batched``
                                                          (True), ``arrays`` (auto, numpy, torch)
    ============= ======================================= =============================================================

    Args:
        source: ``kind:path``.
        env: the world in which it acts; the policy is on its device.
        allow: code that a checkpoint of ours may name, see :func:`rlstack.load`.
        options: of the kind.

    Raises:
        ConfigError: one line: no such kind, option or file, or an agent that cannot act in this env.

    Example:
        >>> policy = load_policy("sb3:model.zip", env, vecnormalize="statistics.pkl")
    """
    kind, path = parse(source)
    for name in options:
        if name not in KINDS[kind]:
            raise ConfigError(unknown_key(f"{kind}.{name}", KINDS[kind]))
    with granting(list(allow)):
        policy: TensorDictModuleBase = _imported(_LOADERS[kind])(path, env, **options)
    return policy


def recording_reader(members: Collection[str]) -> Callable[[str | Path], dict[str, Any]] | None:
    """The function that reads the decisions in a file of recorded episodes from elsewhere, as arrays by name.

    Args:
        members: the names in the file, an ``.npz``.

    Returns None where the members are those of no such file.
    """
    return next((_imported(reader) for member, reader in _RECORDINGS.items() if member in members), None)


def minari_arrays(name: str) -> dict[str, Any]:
    """The transitions of a Minari dataset as the arrays of :mod:`rlstack.data.recordings`.

    Raises:
        ConfigError: Minari is not installed, or no such dataset is here.
    """
    return _imported(f"{_MINARI}:read_dataset")(name)


def write_minari(name: str, data: Any, interface: Any, policy: str) -> None:
    """Writes transitions as a new Minari dataset, see :func:`rlstack.adapters.minari.write_dataset`."""
    _imported(f"{_MINARI}:write_dataset")(name, data, interface, policy)


def check_new_dataset(name: str) -> None:
    """Raises a one-line :class:`ConfigError` unless a Minari dataset of that name can be made."""
    _imported(f"{_MINARI}:check_new")(name)


def _imported(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def parse(source: str) -> tuple[str, str]:
    """``kind:path`` in its parts; a path alone is a run or checkpoint of ours.

    Raises:
        ConfigError: no such kind, or nothing behind it.
    """
    kind, colon, path = source.partition(":")
    if Path(source).exists():
        return "rlstack", source
    if not colon:
        raise ConfigError(
            f"{source!r} does not exist{nearest_path(source)}; a policy is a run directory, a checkpoint, or kind:path "
            f"with one of the kinds {', '.join(KINDS)}"
        )
    check_kind(kind, source)
    if not path:
        raise ConfigError(f"{source!r}: nothing behind the kind, expected {kind}:path")
    return kind, path


def check_kind(kind: str, source: str = "") -> None:
    """Raises a one-line :class:`ConfigError` unless agents of such a kind can be loaded."""
    if kind not in KINDS:
        raise ConfigError(missing_option(f"{source!r}: kind" if source else "kind", kind, list(KINDS)))
