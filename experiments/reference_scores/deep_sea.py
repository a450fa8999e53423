"""A task that random actions hardly ever solve: ``env.id=experiments.reference_scores.deep_sea:DeepSea-v0``.

The task of Osband et al. 2019 (Deep Exploration via Randomized Value Functions), as bsuite words it (Osband et al.
2020), without the permutation of actions in each cell.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Observation = NDArray[np.float32]


class DeepSea(gymnasium.Env[Observation, np.int64]):
    """A diver sinks one row a step, to the left (action 0) or to the right (1), through ``size`` rows.

    Each step to the right costs 0.01 / ``size``. Only the diver who never goes left reaches the treasure in the last
    corner, a reward of 1, for a return of 0.99; uniform actions find it in one of 2 ** ``size`` episodes.
    """

    def __init__(self, size: int = 20, render_mode: str | None = None) -> None:
        self.size = size
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (size * size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)  # type: ignore[assignment]
        self._row = self._column = 0

    def _observation(self) -> Observation:
        """One-hot over the cells; all zero below the last row."""
        cells = np.zeros((self.size, self.size), np.float32)
        if self._row < self.size:
            cells[self._row, self._column] = 1.0
        return cells.ravel()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._row = self._column = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        if action:
            reward = float(self._column == self.size - 1) - 0.01 / self.size
        self._column = min(self._column + 1, self.size - 1) if action else max(self._column - 1, 0)
        self._row += 1
        return self._observation(), reward, self._row == self.size, False, {}


gymnasium.register("DeepSea-v0", DeepSea)
