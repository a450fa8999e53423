"""Which random worlds are drawn when: one difficulty, levels by schedule, or all levels at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .reset import Level

_MOST = 1000
_LISTS = ("num_robots", "num_cores", "num_obstacles", "min_start_goal_dis")


@dataclass(frozen=True)
class Curriculum:
    """Levels of difficulty.

    Attributes:
        levels: what each level asks of a random world.
        timesteps: ascending; level k starts once this many environment steps (summed over parallel worlds) have been
            made. None: every reset draws one of the levels with equal probability.
        stage: the only level that is drawn, whatever ``timesteps`` say; None: as they say.
    """

    levels: list[Level]
    timesteps: list[int] | None
    stage: int | None = None

    @classmethod
    def from_options(
        cls,
        options: Mapping[str, Any] | None,
        num_robots: int,
        num_obstacles: int,
        num_cores: int,
        min_start_goal_dis: float,
    ) -> Curriculum:
        """Builds the curriculum from the published schedule format (lists of equal length) or from one level.

        Raises:
            ValueError: unknown or missing list, lists of unequal length, ``timesteps`` not ascending from 0.
        """
        if options is None:
            return cls([_checked(Level(num_robots, num_obstacles, num_cores, float(min_start_goal_dis)))], None)
        unknown = set(options) - {"timesteps", *_LISTS}
        missing = set(_LISTS) - set(options)
        if unknown or missing:
            problem = f"unknown {sorted(unknown)}" if unknown else f"missing {sorted(missing)}"
            raise ValueError(f"curriculum: {problem}; it takes the lists timesteps (or null), {', '.join(_LISTS)}")
        timesteps = options.get("timesteps")
        columns = [list(options[name]) for name in _LISTS] + ([list(timesteps)] if timesteps is not None else [])
        if len({len(column) for column in columns}) != 1 or not columns[0]:
            lengths = {name: len(options[name]) for name in _LISTS}
            raise ValueError(f"curriculum: its lists need one entry per level, got lengths {lengths}")
        if timesteps is not None and (timesteps[0] != 0 or list(timesteps) != sorted(timesteps)):
            raise ValueError(f"curriculum.timesteps: {list(timesteps)} must ascend from 0")
        levels = [
            _checked(Level(int(robots), int(obstacles), int(cores), float(distance)))
            for robots, cores, obstacles, distance in zip(*columns[:4], strict=True)
        ]
        return cls(levels, None if timesteps is None else [int(step) for step in timesteps])

    @property
    def most_robots(self) -> int:
        """A, the robots that worlds are padded to."""
        return max(level.num_robots for level in self.levels)

    def phase(self, total_steps: int) -> int:
        """Changes whenever the distribution of random worlds does."""
        if self.stage is not None:
            return 1 + self.stage  # 0 is that of all levels at once
        return 0 if self.timesteps is None else sum(step <= total_steps for step in self.timesteps) - 1

    @property
    def num_stages(self) -> int:
        """Levels that :meth:`at` can choose; none where env steps choose them."""
        return len(self.levels) if self.timesteps is None else 0

    def at(self, stage: int) -> Curriculum:
        """The same levels, of which only this one is drawn."""
        return replace(self, stage=stage)

    def draw(self, total_steps: int, count: int, generator: torch.Generator) -> Tensor:
        """Levels ``[count]`` of ``count`` new worlds."""
        if self.stage is None and self.timesteps is None:
            return torch.randint(len(self.levels), (count,), generator=generator, device=generator.device)
        level = self.phase(total_steps) if self.stage is None else self.stage
        return torch.full((count,), level, dtype=torch.int64, device=generator.device)


def _checked(level: Level) -> Level:
    if level.num_robots < 1 or level.num_obstacles < 0 or level.num_cores < 0:
        raise ValueError(f"{level}: needs at least one robot and no negative counts")
    if max(level.num_robots, level.num_obstacles, level.num_cores) > _MOST:
        raise ValueError(f"{level}: the map has room for {_MOST} robots, obstacles and cores of each kind at most")
    if not 0 <= level.min_start_goal_dis <= 70:
        raise ValueError(f"min_start_goal_dis: {level.min_start_goal_dis} does not fit the map, allowed 0 to 70 m")
    return level
