"""What play has to know of a world in which two sides meet."""

from __future__ import annotations

import importlib
from operator import attrgetter
from typing import Any

from tensordict import TensorDictBase
from torchrl.data import Binary, Composite
from torchrl.envs import EnvBase

from envs.world import GROUP, Sides, WorldHooks, hooks_of
from rlstack.config import ConfigError

_SIDES: dict[str, str] = {
    "envs.echelon.env:Echelon": "rlstack.play.echelon:SIDES",
    "envs.rocket.env:Rocket": "rlstack.play.rocket:SIDES",
}


def register(world: str, sides: str) -> None:
    """Says where the :class:`Sides` of a world's class are; both are dotted paths ``package.module:name``.

    A world can also say it itself, by :meth:`envs.world.WorldHooks.sides`.
    """
    for path in (world, sides):
        if ":" not in path:
            raise ValueError(f"{path!r} is not of the form 'package.module:name'")
    _SIDES[world] = sides


def sides_of(env: EnvBase) -> Sides:
    """What is known of the two sides of a world, of the innermost one where it is wrapped.

    Raises:
        ConfigError: a world without sides, or one whose agents are no two halves.
    """
    hooks = hooks_of(env)
    cls = type(env if type(hooks) is WorldHooks else hooks.innermost)
    paths = [f"{base.__module__}:{base.__qualname__}" for base in cls.__mro__]
    sides = hooks.sides()
    target = next((_SIDES[path] for path in paths if path in _SIDES), None)
    if sides is None and target is None:
        known = ", ".join(path.rpartition(":")[2] for path in _SIDES)
        raise ConfigError(f"{cls.__name__} has no two sides to play against each other; known: {known}")
    if GROUP not in env.observation_spec.keys():  # noqa: SIM118
        raise ConfigError(f"{cls.__name__} has no agents under {GROUP!r}, two sides need at least one each")
    agents = env.observation_spec[GROUP].shape[1]
    if agents % 2:
        raise ConfigError(f"{cls.__name__} has {agents} agents, two sides need an even number")
    if sides is not None:
        return sides
    module, _, attribute = str(target).partition(":")
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
