"""What play has to know of a world in which two sides meet."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Composite
from torchrl.envs import EnvBase

from rlstack.agents.interface import GROUP
from rlstack.config import ConfigError


class Told(NamedTuple):
    """What a player that comes with the world does where the world's actions are too coarse to write it down.

    Attributes:
        actions: the nearest ones, ``[n, A, ...]``.
        exact: what the world takes instead by its method ``tell(half_worlds, exact)``, ``[2 n, ...]``: rows 2 k and
            2 k + 1 are the sides of the k-th of the n worlds.
    """

    actions: Tensor
    exact: Tensor


Scripted = Callable[[Any, Tensor], Tensor | Told]
"""Of a world and the indices ``[n]`` of some of its worlds the actions ``[n, A, ...]`` of all their agents."""


@dataclass(frozen=True)
class Sides:
    """A world whose agents ``[W, A]`` are two sides of A / 2 each: the first half of the agents, and the second.

    A side of fewer agents has absent ones (``("agents", "active")`` is False). Both sides see the world as if they
    were the first, so that any policy can drive either.

    Attributes:
        names: of the sides.
        score: of what a step led to (``"next"``), the points ``[W, 2]`` that each side has; more are a win.
        scripted: players that come with the world, by name.
        anchors: ratings of players by name, on Elo's scale, which give ratings in this world their meaning.
        mirrored: pairs of statistics under ``episode`` that change places when seen from the other side.
        one_sided: how the names of statistics begin that are known of the first side alone.
    """

    names: tuple[str, str]
    score: Callable[[TensorDictBase], Tensor]
    scripted: Mapping[str, Scripted] = field(default_factory=dict)
    anchors: Mapping[str, float] = field(default_factory=dict)
    mirrored: tuple[tuple[str, str], ...] = ()
    one_sided: tuple[str, ...] = ()


_SIDES: dict[str, str] = {
    "envs.echelon.env:Echelon": "rlstack.play.echelon:SIDES",
    "envs.rocket.env:Rocket": "rlstack.play.rocket:SIDES",
}


def register(world: str, sides: str) -> None:
    """Says where the :class:`Sides` of a world's class are; both are dotted paths ``package.module:name``.

    A world can also say it itself, by an attribute ``two_sided`` with the second path.
    """
    for path in (world, sides):
        if ":" not in path:
            raise ValueError(f"{path!r} is not of the form 'package.module:name'")
    _SIDES[world] = sides


def innermost(env: Any) -> Any:
    """The world itself, without wrappers."""
    while hasattr(env, "inner"):
        env = env.inner
    return env


def sides_of(env: EnvBase) -> Sides:
    """What is known of the two sides of a world, of the innermost one where it is wrapped.

    Raises:
        ConfigError: a world without sides, or one whose agents are no two halves.
    """
    core = innermost(env)
    cls = type(core)
    paths = [f"{base.__module__}:{base.__qualname__}" for base in cls.__mro__]
    target = getattr(core, "two_sided", None) or next((_SIDES[path] for path in paths if path in _SIDES), None)
    if target is None:
        known = ", ".join(path.rpartition(":")[2] for path in _SIDES)
        raise ConfigError(f"{cls.__name__} has no two sides to play against each other; known: {known}")
    if GROUP not in env.observation_spec.keys():  # noqa: SIM118
        raise ConfigError(f"{cls.__name__} has no agents under {GROUP!r}, two sides need at least one each")
    agents = env.observation_spec[GROUP].shape[1]
    if agents % 2:
        raise ConfigError(f"{cls.__name__} has {agents} agents, two sides need an even number")
    module, _, attribute = target.partition(":")
    try:
        return attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the sides of {cls.__name__}: {target} cannot be imported: {error}") from error


def half_worlds(agents: TensorDictBase) -> TensorDictBase:
    """Agents ``[W, A]`` as half-worlds ``[2 W, A / 2]``: rows 2 w and 2 w + 1 are the two sides of world w."""
    worlds, count = agents.batch_size[:2]
    return agents.reshape(2 * worlds, count // 2)


def of_first(spec: Any, agents: int) -> Any:
    """The spec of the first so many agents, of one of ``[W, A, ...]``."""
    if isinstance(spec, Composite):
        entries = {key: of_first(entry, agents) for key, entry in spec.items()}
        return Composite(entries, shape=(spec.shape[0], agents, *spec.shape[2:]), device=spec.device)
    if isinstance(spec, Binary) and spec.ndim == 2:  # TorchRL takes its agents for one binary vector
        return Binary(n=agents, shape=(spec.shape[0], agents), dtype=spec.dtype, device=spec.device)
    return spec[:, :agents].clone()
