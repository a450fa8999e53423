"""Plain Gymnasium environments by name."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from traceback import walk_tb
from typing import Any

import gymnasium

from ..foreign import factory_at, raised
from ..foundation.packages import imported, needs, place_in_users_code
from ..foundation.processes import EnvironmentFailed, EnvironmentRaised

Environment = gymnasium.Env[Any, Any]

_INTERFACE = (
    "Gymnasium's reset(seed=, options=) returns (observation, info), its step (observation, reward, terminated, "
    "truncated, info); shimmy.GymV21CompatibilityV0 converts an environment with the old interface"
)
_EXTRAS = {
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "gymnasium.envs.classic_control": "classic",
    "gymnasium.envs.toy_text": "classic",
    "ALE/": "atari",
    "ale_py": "atari",
}


@dataclass(frozen=True)
class Recipe:
    """Makes one environment.

    Attributes:
        id: ``Name-v0``, ``package.module:Name-v0`` (the module registers it) or ``package.module:Class``, a class of
            environments or a function annotated to return one.
        kwargs: its own arguments.
        max_steps: steps until it is truncated, None for its own limit.
    """

    id: str | None
    kwargs: dict[str, Any] = field(default_factory=dict)
    max_steps: int | None = None

    def begin(self, environment: Environment, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Resets an environment of this kind; returns its first observation and its info.

        Raises:
            EnvironmentFailed: its ``reset`` is none of Gymnasium's.
            EnvironmentRaised: its ``reset`` raises an error.
        """
        try:
            answer = environment.reset(seed=seed)
        except Exception as error:  # a user's code may raise anything
            raise self.failed("reset", error) from error
        if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict):
            return answer
        kind = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else f"one {type(answer).__name__}"
        raise self.misfit("reset", f"it returns {kind}")

    def misfit(self, call: str, why: str) -> EnvironmentFailed:
        """The error of an environment of this kind whose method is none of Gymnasium's."""
        return EnvironmentFailed(f"{self.id}: {call} does not fit ({why}); {_INTERFACE}")

    def failed(self, call: str, error: Exception) -> EnvironmentFailed | EnvironmentRaised:
        """The error of an environment of this kind whose method has failed: its interface's fault, or its own."""
        *_, (frame, _) = walk_tb(error.__traceback__)
        by_caller = str(frame.f_globals.get("__name__")).startswith(
            (__package__, "gymnasium.wrappers", "gymnasium.core")
        )
        if by_caller and any(part in str(error) for part in ("unpack", "unexpected keyword argument")):
            return self.misfit(call, str(error))
        return raised(f"{self.id}: {call}", error)

    def make(self) -> Environment:
        """A new environment, without the checks that Gymnasium makes on every first step.

        Raises:
            ValueError: no such environment, one that lacks a package, or arguments that it does not take.
        """
        if not self.id:
            raise ValueError("id: missing, give an environment such as CartPole-v1 or package.module:Class")
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps: {self.max_steps} is not a positive number of steps")
        build = self._own_class(self.id) or self._registered
        try:
            return build()
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            raise ValueError(f"id: {missing_package(self.id, error)}") from error
        except gymnasium.error.UnregisteredEnv as error:
            _, _, name = self.id.rpartition(":")
            known = {entry.lower(): entry for entry in gymnasium.registry}
            close = [known[entry] for entry in difflib.get_close_matches(name.lower(), known, n=3)]
            hint = f", did you mean {' or '.join(close)}?" if close else ""
            forms = "a registered name, package.module:Name-v0 where the module registers it, or package.module:Class"
            raise ValueError(f"id: unknown environment {self.id!r}{hint} (allowed: {forms})") from error
        except Exception as error:  # of a constructor, which may be the user's
            failure = f"{_line(error)}{place_in_users_code(error)}"
            raise ValueError(f"{self.id} cannot be made with kwargs {self.kwargs}: {failure}") from error

    def _registered(self) -> Environment:
        if str(self.id).startswith("ALE/"):
            quiet_atari()
            if not {"frameskip", "obs_type"} & self.kwargs.keys():
                return self._limited(atari(str(self.id), self.kwargs))
        # Gymnasium takes None for "as registered".
        return gymnasium.make(
            str(self.id), max_episode_steps=self.max_steps, disable_env_checker=True, **dict(self.kwargs)
        )

    def _own_class(self, id: str) -> Callable[[], Environment] | None:
        """The function that makes an environment of ``package.module:Class``; None for the other forms."""
        name, colon, attribute = id.partition(":")
        if not colon:
            return None
        try:
            module = imported(name)
        except ValueError as error:
            raise ValueError(f"id: {id} cannot be imported: {error}") from error
        if not attribute.isidentifier() or (not hasattr(module, attribute) and attribute in gymnasium.registry):
            return None
        factory = factory_at(id, "gymnasium", "gymnasium.Env", lambda made: issubclass(made, gymnasium.Env))
        return lambda: self._limited(factory(**self.kwargs))

    def _limited(self, environment: Any) -> Environment:
        if not isinstance(environment, gymnasium.Env):
            raise ValueError(f"that is a {type(environment).__name__}, not a gymnasium.Env")
        return gymnasium.wrappers.TimeLimit(environment, self.max_steps) if self.max_steps else environment


def atari(id: str, kwargs: dict[str, Any]) -> Environment:
    """Makes an Atari game with the preprocessing of Mnih et al. 2015, bytes ``[4, 84, 84]``: the last four pictures.

    A picture is grey and shows the brighter of the last two frames of the game at each point; an action lasts four
    frames, and an episode begins with up to 30 of them idle. It ends with the game, not with a life, and sticky actions
    stay as the game is registered with (Machado et al. 2018).
    """
    game = gymnasium.make(id, disable_env_checker=True, frameskip=1, **kwargs)
    return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.AtariPreprocessing(game), 4)


def quiet_atari() -> None:
    """Registers the Atari games, and silences the line that each of them prints.

    Raises:
        ImportError: the package is not installed.
    """
    ale_py = importlib.import_module("ale_py")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def missing_package(id: str, error: Exception) -> str:
    """A line for the user: which extra brings it."""
    module = id.partition(":")[0] if ":" in id else str(getattr(gymnasium.registry.get(id), "entry_point", id))
    for package, extra in _EXTRAS.items():
        if module.startswith(package):
            installed = isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError)
            return f"{id} {needs(extra)}" + (f" ({_line(error)})" if installed else "")
    return f"{id} needs a package that is not installed or cannot be imported: {_line(error)}"


def _line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
