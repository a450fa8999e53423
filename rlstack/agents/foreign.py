"""Loads agents from any source as policies of an env, named by ``kind:path``."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from rlstack.config import ConfigError
from rlstack.config.allowed import granting
from rlstack.config.errors import missing_option, nearest_path, unknown_key
from rlstack.config.rooms import Kind, registered, target

from .interface import check_world

KINDS: dict[str, Kind] = {
    "rlstack": Kind("rlstack.runs.loading:run_policy", ("which", "explore")),
    "zoo": Kind("rlstack.runs.loading:zoo_policy", ("explore",)),
    "hf": Kind("rlstack.runs.loading:hub_policy", ("explore",)),
    **registered("KINDS"),
}
"""The kinds of agents that :func:`load_policy` loads, with the options of each."""


def load_policy(source: str, env: EnvBase, allow: Collection[str] = (), **options: Any) -> TensorDictModuleBase:
    """Loads an agent from any source as a policy of an env.

    Without a kind, and of kind ``rlstack``, the path is a run directory or a checkpoint, with the options ``which``
    (latest, best) and ``explore`` (False); of kind ``zoo`` it is the name of an agent of rlstack's own, of kind ``hf``
    ``<user>/<name>`` on the Hugging Face Hub. The other kinds and their options are those that rooms register: see
    :data:`KINDS` and ``rlstack/adapters/README.md``.

    Args:
        source: ``kind:path``.
        env: world in which the policy acts, and whose device it is on.
        allow: what one of our checkpoints may name, see :func:`rlstack.load`.
        options: options of the kind.

    Raises:
        ConfigError: in one line: no such kind, option or file, or an agent that cannot act in this env.

    Example:
        >>> policy = load_policy("sb3:model.zip", env, vecnormalize="statistics.pkl")
    """
    check_world(env)
    kind, path = parse(source)
    for name in options:
        if name not in KINDS[kind].options:
            raise ConfigError(unknown_key(f"{kind}.{name}", KINDS[kind].options))
    with granting(list(allow)):
        return target(KINDS[kind].policy)(path, env, **options)


def parse(source: str) -> tuple[str, str]:
    """Splits ``kind:path`` into its parts; a path alone is one of our runs or checkpoints.

    Raises:
        ConfigError: no such kind, or no path after it.
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
