"""Environments of Gymnasium: made by their id, and stepped as a batch in this process or in others."""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from traceback import walk_tb
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from ..foreign import close_all, completed, factory_at, fault, raised
from ..foundation.packages import imported, needs, place_in_users_code
from ..foundation.processes import TIMEOUT, EnvironmentFailed, EnvironmentRaised, Shared, Workers, divided, serve
from ..spaces import MASKS, Actions, Array, Observations, mask_path, misfit_of, split_mask, taken

# -- made by their id --------------------------------------------------------------------------------------------------


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

    @property
    def preprocessed(self) -> bool:
        """Whether it is an Atari game with the usual preprocessing."""
        return str(self.id).startswith("ALE/") and not {"frameskip", "obs_type"} & self.kwargs.keys()

    def _registered(self) -> Environment:
        if str(self.id).startswith("ALE/"):
            quiet_atari()
        if self.preprocessed:
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
    stay as the game is registered with (Machado et al. 2018). :class:`AtariSimulators` steps many of them as a batch.
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


# -- stepped as a batch ------------------------------------------------------------------------------------------------


MaskSource = Callable[[Environment, Any, dict[str, Any]], Any]
"""Returns the mask of an environment that has answered with an observation and an info; None if it is missing."""


class Codec(NamedTuple):
    """Converts between an environment's values and arrays.

    Attributes:
        misfit: says what of an observation does not fit the environment's space.
        mask: where action masks come from, None without one.
    """

    observations: Observations
    actions: Actions
    misfit: Callable[[Any], str]
    mask: MaskSource | None

    @classmethod
    def of(cls, environment: Environment, info: dict[str, Any], dtype: str) -> Codec:
        """Reads an environment's spaces and what its first reset told.

        Raises:
            ValueError: a space that has no form here, or a mask for continuous actions.
        """
        space, actions = environment.observation_space, Actions(environment.action_space, dtype)
        observations, mask = Observations(split_mask(space)[0], dtype), _mask_source(environment, info)
        if mask and not actions.discrete:
            raise ValueError(f"action mask: action space {environment.action_space} has no choices to mask")
        return cls(observations, actions, misfit_of(space), mask)

    @classmethod
    def of_first(cls, recipe: Recipe, dtype: str) -> tuple[Codec, Environment]:
        """Makes an environment and reads its spaces; closes it if it cannot be used."""
        environment = recipe.make()
        try:
            _, info = recipe.begin(environment, 0)
            return cls.of(environment, info, dtype), environment
        except BaseException:
            environment.close()
            raise

    def arrays(self, count: int) -> SimulatorArrays:
        """Zeroed arrays for a batch of environments."""
        mask = np.zeros((count, self.actions.mask_size), bool) if self.mask else None
        flags, action = np.zeros((3, count, 1), bool), self.actions.array(count)
        numbers = np.zeros(count), np.zeros(count)
        return SimulatorArrays(self.observations.arrays(count), action, *numbers, flags, mask)


def _mask_source(environment: Environment, info: dict[str, Any]) -> MaskSource | None:
    """Returns where an environment tells its action masks: in observations, infos, or by sb3-contrib's method."""
    if (path := mask_path(environment.observation_space)) is not None:
        return lambda environment, observation, info: taken(observation, path)
    if (name := next(filter(info.__contains__, MASKS), None)) is not None:
        return lambda environment, observation, info: info.get(name)
    if environment.has_wrapper_attr("action_masks"):
        return lambda environment, observation, info: environment.get_wrapper_attr("action_masks")()
    return None


@dataclass
class SimulatorArrays:
    """The current step of W environments; what they write and read.

    Attributes:
        observations: one array ``[W, ...]`` for each leaf.
        action: ``[W, ...]`` as a policy gives it.
        reward, success: float64 ``[W]``; the latter is ``info["is_success"]`` at an episode's end.
        flags: bool ``[3, W, 1]``: done, terminated, truncated; they stay until a reset.
        mask: bool ``[W, choices]``, None without action masks.
    """

    observations: list[Array]
    action: Array
    reward: Array
    success: Array
    flags: Array
    mask: Array | None

    def map(self, function: Callable[[Any], Any]) -> SimulatorArrays:
        """Returns the function's results for all arrays."""
        observations = [function(leaf) for leaf in self.observations]
        action, reward, success, flags = map(function, (self.action, self.reward, self.success, self.flags))
        mask = None if self.mask is None else function(self.mask)
        return SimulatorArrays(observations, action, reward, success, flags, mask)


class LocalSimulators:
    """Environments of this process, for some rows of the arrays.

    Those that have ended stay as they are, with reward 0, until they are reset. A reset with the seed None continues
    with an environment's own random numbers.

    Args:
        recipe: by which they were made.
        environments: one for each row.
        rows: which rows of ``arrays`` are theirs.
        every_step: whether every answer is checked against the interface; otherwise those of an episode's reset and
            first step are.
    """

    failures = 0

    def __init__(
        self,
        recipe: Recipe,
        environments: Sequence[Environment],
        rows: range,
        codec: Codec,
        arrays: SimulatorArrays,
        every_step: bool = False,
    ) -> None:
        self._recipe, self.environments, self.arrays, self._codec = recipe, list(environments), arrays, codec
        self._rows = dict(zip(rows, self.environments))
        own = slice(rows.start, rows.stop)
        self._over, self._actions, self._rewards = arrays.flags[0, own, 0], arrays.action[own], arrays.reward[own]
        # Where an observation is one array as it comes, it goes straight to its row.
        self._plain = arrays.observations[0] if codec.observations.plain and not codec.mask else None
        _, self._rest = split_mask(self.environments[0].observation_space)
        self._every_step, self._steps = every_step, 0
        self._begun: dict[int, int] = {}  # the number of steps before an episode, by row
        self._fresh: set[int] = set()  # rows whose episode has made no step

    def step(self) -> None:
        self._steps += 1
        flags, plain, codec, every, fresh = self.arrays.flags, self._plain, self._codec, self._every_step, self._fresh
        rewards, careful, row, answer = [], every or bool(fresh), 0, None
        actions, ended = codec.actions.decode_all(self._actions), self._over.tolist()
        try:
            for row, environment, action, over in zip(self._rows, self.environments, actions, ended):
                if over:
                    rewards.append(0.0)
                    continue
                answer = None
                answer = observation, reward, terminated, truncated, info = environment.step(action)
                if careful and (every or row in fresh) and (wrong := fault(codec.misfit, *answer)):
                    raise ValueError(wrong)
                rewards.append(float(reward))
                if terminated or truncated:
                    if wrong := fault(None, observation, reward, terminated, truncated):
                        raise ValueError(wrong)
                    flags[:, row, 0] = True, bool(terminated), bool(truncated)
                    self.arrays.success[row] = bool(info.get("is_success", False))
                if plain is not None:
                    plain[row] = observation
                else:
                    self._observe(row, observation, info)
                if info and not codec.mask and not info.keys().isdisjoint(MASKS):
                    raise ValueError("its info has an action mask, but that of the reset had none")
        except Exception as error:  # a user's code may raise anything, and answer with anything
            step = f"step {self._steps - self._begun[row]} of an episode"
            if answer is None:
                raise self._recipe.failed(step, error) from error
            raise self._unfit(step, answer, error) from error
        fresh.clear()
        self._rewards[:] = rewards

    def reset(self, rows: Iterable[int], seeds: Iterable[int | None]) -> None:
        for row, seed in zip(rows, seeds):
            observation, info = self._recipe.begin(self._rows[row], seed)
            self.arrays.flags[:, row] = False
            self.arrays.reward[row] = self.arrays.success[row] = 0.0
            self._begun[row] = self._steps
            self._fresh.add(row)
            try:
                if wrong := fault(self._codec.misfit, observation):
                    raise ValueError(wrong)
                self._observe(row, observation, info)
            except Exception as error:
                raise self._unfit("reset", (observation, 0.0, False, False, info), error) from error

    def close(self) -> None:
        close_all(self.environments)

    def _observe(self, row: int, observation: Any, info: dict[str, Any]) -> None:
        codec, arrays = self._codec, self.arrays
        if codec.mask and arrays.mask is not None:
            mask = codec.mask(self._rows[row], observation, info)
            if mask is None and not arrays.flags[0, row, 0]:
                raise ValueError("its info has no action mask, but that of the first reset had one")
            codec.actions.write_mask(arrays.mask, row, mask)
            observation = self._rest(observation)
        codec.observations.write(arrays.observations, row, observation)

    def _unfit(self, call: str, answer: Any, error: Exception) -> EnvironmentFailed:
        """The error of an environment whose answer fits nowhere."""
        if not isinstance(answer, tuple) or len(answer) != 5:
            return self._recipe.misfit(call, str(error))
        why = fault(self._codec.misfit, *answer) or f"{error}{place_in_users_code(error)}"
        return EnvironmentFailed(" ".join(f"{self._recipe.id}: {call}: {why}".split()))


class AtariSimulators:
    """Copies of one Atari game, stepped by ale-py's own threads, with the methods of :class:`LocalSimulators`.

    Everything is as in :func:`atari`, but pictures from before the first one are black, not copies of it, and ale-py
    composes the last one of an episode that its limit cuts of other frames.

    Args:
        recipe: of every game; see :meth:`plays`.
        arrays: what the games write and read.
        threads: number of threads.
        idle: the largest number of idle frames with which an episode begins.
    """

    failures = 0
    _OPTIONS = ("repeat_action_probability", "full_action_space")

    def __init__(self, recipe: Recipe, arrays: SimulatorArrays, threads: int, idle: int = 30) -> None:
        registered = gymnasium.registry[str(recipe.id)].kwargs
        frames = registered["max_num_frames_per_episode"]
        self.arrays = arrays
        self._games = importlib.import_module("ale_py.vector_env").AtariVectorEnv(
            registered["game"],
            len(arrays.reward),
            num_threads=threads,
            max_num_frames_per_episode=frames if recipe.max_steps is None else min(frames, 4 * recipe.max_steps),
            noop_max=idle,
            reward_clipping=False,
            use_fire_reset=False,
            **{name: recipe.kwargs.get(name, registered[name]) for name in self._OPTIONS},
        )

    @classmethod
    def plays(cls, recipe: Recipe) -> bool:
        """Whether a recipe is for a game, without options that a batch does not take."""
        return recipe.preprocessed and recipe.kwargs.keys() <= set(cls._OPTIONS)

    def step(self) -> None:
        arrays, running = self.arrays, ~self.arrays.flags[0, :, 0]
        # Games that have ended begin anew in this step; nobody sees that, and a reset begins them once more.
        pictures, rewards, terminated, truncated, _ = self._games.step(arrays.action.astype(np.int64))
        arrays.observations[0][running] = pictures[running]
        arrays.reward[:] = rewards * running
        arrays.flags[:, running, 0] |= np.stack((terminated | truncated, terminated, truncated))[:, running]

    def reset(self, rows: Iterable[int], seeds: Iterable[int | None]) -> None:
        chosen = sorted(zip(rows, seeds))
        own, wanted = np.zeros(len(self.arrays.reward), bool), [-1 if seed is None else seed for _, seed in chosen]
        own[[row for row, _ in chosen]] = True
        pictures, _ = self._games.reset(seed=np.asarray(wanted), options={"reset_mask": own})
        self.arrays.observations[0][own] = pictures[own]
        self.arrays.flags[:, own] = False
        self.arrays.reward[own] = self.arrays.success[own] = 0.0

    def close(self) -> None:
        self._games.close()


_STEP = b"step"


class WorkerSimulators:
    """Environments divided among worker processes, with the methods of :class:`LocalSimulators`.

    If a worker is replaced, the episodes of its environments end as truncated, with reward 0 and the observations seen
    last; the next ones begin from seeds of their own.

    Args:
        recipe: of every environment.
        dtype: of floating-point observations and actions.
        arrays: shapes and types of what is shared.
        workers: number of processes.
        timeout: see :class:`~rlstack.envs.foundation.processes.Workers`.
        every_step: see :class:`LocalSimulators`.

    Attributes:
        arrays: in shared memory.
    """

    def __init__(
        self,
        recipe: Recipe,
        dtype: str,
        arrays: SimulatorArrays,
        workers: int,
        timeout: float = TIMEOUT,
        every_step: bool = False,
    ) -> None:
        shared = arrays.map(Shared.like)
        self.arrays = shared.map(Shared.array)
        self._lost: set[int] = set()  # rows whose next episode has no random numbers to go on with
        self._cut: set[int] = set()  # rows whose episode ends in the next step
        arguments, rows = (recipe, dtype, shared, every_step), divided(len(arrays.reward), workers)
        self._workers = Workers(_work, arguments, rows, "environments", timeout)
        self.close = self._workers.close

    @property
    def failures(self) -> int:
        """Number of workers that have been replaced."""
        return self._workers.failures

    def step(self) -> None:
        self._end(self._cut)
        self._cut.clear()
        over = self.arrays.flags[0, :, 0].copy()
        rows = self._workers.rows
        for worker in self._exchange(dict.fromkeys(range(len(rows)), _STEP)):
            self.arrays.reward[list(rows[worker])] = 0.0
            self._end(row for row in rows[worker] if not over[row])

    def reset(self, rows: Iterable[int], seeds: Iterable[int | None]) -> None:
        wanted = {row: self._seed(row) if seed is None else seed for row, seed in zip(rows, seeds)}
        messages = {}
        for worker, own in enumerate(self._workers.rows):
            if part := [row for row in own if row in wanted]:
                messages[worker] = json.dumps([part, [wanted[row] for row in part]]).encode()
        while messages:
            failed = self._exchange(messages)
            for worker in failed:
                over = self.arrays.flags[0, :, 0]
                self._cut.update(row for row in self._workers.rows[worker] if row not in wanted and not over[row])
            messages = {worker: messages[worker] for worker in failed}

    def _end(self, rows: Iterable[int]) -> None:
        """Truncates episodes; the worker leaves environments alone that have ended."""
        for row in rows:
            self.arrays.flags[:, row, 0] = True, False, True

    def _seed(self, row: int) -> int | None:
        """Returns the seed of the next episode: None where an environment continues with its own random numbers."""
        if row not in self._lost:
            return None
        self._lost.remove(row)
        return int(np.random.SeedSequence((self.failures, row)).generate_state(1)[0] >> 1)

    def _exchange(self, messages: dict[int, bytes]) -> list[int]:
        """Sends messages; returns the workers that have been replaced."""
        failed = self._workers.exchange(messages)
        for worker in failed:
            self._lost.update(self._workers.rows[worker])
        return failed


def _work(
    connection: Connection, rows: range, recipe: Recipe, dtype: str, shared: SimulatorArrays, every_step: bool
) -> None:
    """Runs a worker."""

    def build() -> LocalSimulators:
        codec, first = Codec.of_first(recipe, dtype)
        environments = completed([first], recipe.make, len(rows))
        return LocalSimulators(recipe, environments, rows, codec, shared.map(Shared.array), every_step)

    def obey(simulators: LocalSimulators, message: bytes) -> None:
        if message == _STEP:
            simulators.step()
        else:
            simulators.reset(*json.loads(message))

    serve(connection, build, obey, LocalSimulators.close)
