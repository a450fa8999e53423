"""Any agent as a policy of an env, by one name: ``kind:path``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tensordict.nn import TensorDictModuleBase
from torchrl.data import Composite
from torchrl.envs import EnvBase

from rlstack.agents.interface import Interface
from rlstack.config import ConfigError
from rlstack.config.errors import missing_option, nearest_path, unknown_key
from rlstack.config.named_code import granting

_Loader = Callable[..., TensorDictModuleBase]


def _rlstack(path: str, env: EnvBase, which: str = "latest", explore: bool = False) -> TensorDictModuleBase:
    """A run directory or checkpoint of ours."""
    from rlstack.runs.loading import load

    agent = load(path, device=env.device or "cpu", which=which).agent
    fault = difference(agent.interface, Interface.of(env))
    if fault is not None:
        raise ConfigError(f"{path}: the agent does not fit the env: {fault}")
    return agent.policy(explore=explore)


def _marinenav(path: str, env: EnvBase, agent_type: str | None = None) -> TensorDictModuleBase:
    from rlstack.adapters.marinenav import published_policy

    return published_policy(path, env, agent_type)


def _sb3(path: str, env: EnvBase, vecnormalize: Any = None, deterministic: bool = True) -> TensorDictModuleBase:
    from rlstack.adapters.sb3 import load_sb3, sb3_policy

    return sb3_policy(load_sb3(path, vecnormalize), env, deterministic)


def _arena(
    path: str, env: EnvBase, normalization: str | None = None, deterministic: bool = True
) -> TensorDictModuleBase:
    from rlstack.adapters.arena import arena_policy

    return arena_policy(path, env, normalization, deterministic)


def _torchscript(path: str, env: EnvBase) -> TensorDictModuleBase:
    from rlstack.adapters.scripted import torchscript_policy

    return torchscript_policy(path, env)


def _onnx(path: str, env: EnvBase) -> TensorDictModuleBase:
    from rlstack.adapters.scripted import onnx_policy

    return onnx_policy(path, env)


def _callable(
    path: str, env: EnvBase, protocol: Any = "auto", batched: bool = True, arrays: Any = "auto"
) -> TensorDictModuleBase:
    from rlstack.adapters.protocols import foreign_policy, load_callable

    return foreign_policy(load_callable(path), env, protocol, batched, arrays)


_LOADERS: dict[str, tuple[_Loader, tuple[str, ...]]] = {
    "rlstack": (_rlstack, ("which", "explore")),
    "marinenav": (_marinenav, ("agent_type",)),
    "sb3": (_sb3, ("vecnormalize", "deterministic")),
    "arena": (_arena, ("normalization", "deterministic")),
    "torchscript": (_torchscript, ()),
    "onnx": (_onnx, ()),
    "callable": (_callable, ("protocol", "batched", "arrays")),
}

KINDS: dict[str, tuple[str, ...]] = {kind: options for kind, (_, options) in _LOADERS.items()}
"""The kinds of agents, and the options that :func:`load_policy` takes for each."""


def load_policy(source: str, env: EnvBase, allow: Collection[str] = (), **options: Any) -> TensorDictModuleBase:
    """An agent from anywhere as a policy of an env.

    ============= ======================================= =============================================================
    kind          path                                    options
    ============= ======================================= =============================================================
    (none)        a run directory or checkpoint of ours   ``which`` (latest, best), ``explore`` (False)
    rlstack       the same                                the same
    marinenav     files of a published agent              ``agent_type`` where the files do not settle it
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
        env: what it is to act in; the policy is on its device.
        allow: code that a checkpoint of ours may name, see :func:`rlstack.runs.loading.load`.
        options: of the kind.

    Raises:
        ConfigError: one line: no such kind, option or file, or an agent that cannot act in this env.

    Example:
        >>> policy = load_policy("sb3:model.zip", env, vecnormalize="statistics.pkl")
    """
    kind, path = parse(source)
    loader, known = _LOADERS[kind]
    for name in options:
        if name not in known:
            raise ConfigError(unknown_key(f"{kind}.{name}", known))
    with granting(list(allow)):
        return loader(path, env, **options)


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


def difference(known: Interface, offered: Interface) -> str | None:
    """What an env shows or takes otherwise than an agent knows it, in words; None if they agree."""
    ours, theirs = _entries(known), _entries(offered)
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            return f"{key} is {theirs.get(key, 'nothing')}, it knows {ours.get(key, 'nothing')}"
    return None


def _entries(interface: Interface) -> dict[str, str]:
    """Kind, shape and type of everything an agent sees and does, in words."""
    leaves = {"action": interface.action}
    if isinstance(interface.observation, Composite):
        for key, leaf in interface.observation.items(include_nested=True, leaves_only=True):
            leaves[key if isinstance(key, str) else ".".join(key)] = leaf
    else:
        leaves["observation"] = interface.observation
    kinds = {key: f"{type(leaf).__name__} {list(leaf.shape)} {leaf.dtype}" for key, leaf in leaves.items()}
    return kinds | {"agents": "several" if interface.group else "one"}
