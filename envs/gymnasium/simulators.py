"""Environments stepped one after the other, their results in rows of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from ..instances import close_all, completed
from ..keys import ACTION_MASK
from ..spaces import Actions, Array, Observations, has_mask, split_mask
from .making import Environment, Recipe


class Codec(NamedTuple):
    """Converts between an environment's values and arrays.

    Attributes:
        mask: where action masks come from, None without one.
    """

    observations: Observations
    actions: Actions
    mask: Literal["observation", "info"] | None

    @classmethod
    def of(cls, environment: Environment, info: dict[str, Any], dtype: str) -> Codec:
        """Reads an environment's spaces and what its first reset told.

        Raises:
            ValueError: a space that has no form here, or a mask for continuous actions.
        """
        observed, _ = split_mask(environment.observation_space)
        codec = cls(
            Observations(observed, dtype),
            Actions(environment.action_space, dtype),
            "observation" if has_mask(environment.observation_space) else "info" if ACTION_MASK in info else None,
        )
        if codec.mask and not codec.actions.discrete:
            raise ValueError(f"{ACTION_MASK}: action space {environment.action_space} has no choices to mask")
        return codec

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
        return SimulatorArrays(self.observations.arrays(count), action, np.zeros(count), flags, mask)


@dataclass
class SimulatorArrays:
    """The current step of W environments; what they write and read.

    Attributes:
        observations: one array ``[W, ...]`` for each leaf.
        action: ``[W, ...]`` as a policy gives it.
        reward: float64 ``[W]``.
        flags: bool ``[3, W, 1]``: done, terminated, truncated; they stay until a reset.
        mask: bool ``[W, choices]``, None without action masks.
    """

    observations: list[Array]
    action: Array
    reward: Array
    flags: Array
    mask: Array | None

    def parts(self) -> list[Array]:
        """All arrays in a fixed order."""
        return [*self.observations, self.action, self.reward, self.flags, *([] if self.mask is None else [self.mask])]

    @classmethod
    def of_parts(cls, parts: Sequence[Array], leaves: int) -> SimulatorArrays:
        """Reverses :meth:`parts`."""
        action, reward, flags, *mask = parts[leaves:]
        return cls(list(parts[:leaves]), action, reward, flags, mask[0] if mask else None)


class EnvironmentSimulators(Protocol):
    """Environments behind :class:`SimulatorArrays`, here or in other processes; ``failures`` of these were replaced."""

    failures: int

    def step(self) -> None:
        """Takes the stored actions; environments that have ended stay as they are, with reward 0."""

    def reset(self, rows: Iterable[int], seeds: Iterable[int | None]) -> None:
        """Starts new episodes; a seed of None continues with the environment's own random numbers."""

    def render(self) -> Any:
        """A picture of the first environment, or None."""

    def close(self) -> None:
        """Ends them for good."""


class LocalSimulators:
    """Environments of this process, for some rows of the arrays.

    Args:
        recipe: by which they were made.
        environments: one for each row.
        rows: which rows of ``arrays`` are theirs.
    """

    failures = 0

    def __init__(
        self, recipe: Recipe, environments: Sequence[Environment], rows: range, codec: Codec, arrays: SimulatorArrays
    ) -> None:
        self._recipe, self.environments, self.arrays, self._codec = recipe, list(environments), arrays, codec
        self._rows = dict(zip(rows, self.environments))
        own = slice(rows.start, rows.stop)
        self._over, self._actions, self._rewards = arrays.flags[0, own, 0], arrays.action[own], arrays.reward[own]
        # Where an observation is one array as it comes, it goes straight to its row.
        self._plain = arrays.observations[0] if codec.observations.plain and not codec.mask else None
        _, self._without_mask = split_mask(self.environments[0].observation_space)

    @classmethod
    def make(cls, recipe: Recipe, rows: range, dtype: str, arrays: SimulatorArrays) -> LocalSimulators:
        """Makes as many environments as there are rows."""
        codec, first = Codec.of_first(recipe, dtype)
        return cls(recipe, completed([first], recipe.make, len(rows)), rows, codec, arrays)

    def step(self) -> None:
        arrays, plain, observe = self.arrays, self._plain, self._observe
        rewards = []
        actions, ended = self._codec.actions.decode_all(self._actions), self._over.tolist()
        for row, environment, action, over in zip(self._rows, self.environments, actions, ended):
            if over:
                rewards.append(0.0)
                continue
            try:
                observation, reward, terminated, truncated, info = environment.step(action)
            except (TypeError, ValueError) as error:
                if "unpack" not in str(error):  # here, or in a wrapper
                    raise
                raise self._recipe.misfit("step", str(error)) from error
            rewards.append(float(reward))
            if terminated or truncated:
                arrays.flags[:, row, 0] = True, bool(terminated), bool(truncated)
            if plain is not None:
                plain[row] = observation
            else:
                observe(row, observation, info)
        self._rewards[:] = rewards

    def reset(self, rows: Iterable[int], seeds: Iterable[int | None]) -> None:
        for row, seed in zip(rows, seeds):
            observation, info = self._recipe.begin(self._rows[row], seed)
            self.arrays.flags[:, row] = False
            self.arrays.reward[row] = 0.0
            self._observe(row, observation, info)

    def render(self) -> Any:
        return self.environments[0].render()

    def close(self) -> None:
        close_all(self.environments)

    def _observe(self, row: int, observation: Any, info: dict[str, Any]) -> None:
        codec, arrays = self._codec, self.arrays
        if codec.mask and arrays.mask is not None:
            source = info if codec.mask == "info" else observation
            codec.actions.write_mask(arrays.mask, row, source.get(ACTION_MASK))
            observation = self._without_mask(observation)
        codec.observations.write(arrays.observations, row, observation)
