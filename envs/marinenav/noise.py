"""Sources of perception noise: a generator in training, recorded draws in parity tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .episodes import Config
from .perception import NoiseDraws
from .rules import OBSERVED_OBJECTS, Number

_QUANTILES = 1 << 14


def von_mises_quantiles(kappa: float, count: int = _QUANTILES) -> Tensor:
    """Returns ``count`` equally likely angles of von Mises(0, kappa) in radians, ascending, float64.

    The midpoint quantiles of the distribution function, integrated numerically; drawing one of 16384 of them at
    random differs from the distribution by less than 1e-4 in probability.
    """
    if kappa <= 0:
        raise ValueError(f"r_kappa: {kappa} is not positive")
    angle = torch.linspace(-math.pi, math.pi, 200_001, dtype=torch.float64)
    cdf = torch.cumulative_trapezoid(torch.exp(kappa * (angle.cos() - 1)), angle)
    cdf = torch.cat((cdf.new_zeros(1), cdf / cdf[-1]))
    level = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    right = torch.searchsorted(cdf, level).clamp(1, len(cdf) - 1)
    fraction = (level - cdf[right - 1]) / (cdf[right] - cdf[right - 1])
    return angle[right - 1] + fraction * (angle[right] - angle[right - 1])


class SampledNoise:
    """Draws noise for perception calls from a ``torch.Generator``.

    Args:
        kappa: concentration of the radius noise, a float or a tensor ``[A, W]``.
        generator: generator on the device of the draws, and the only state of the noise.
    """

    def __init__(self, kappa: Number, generator: torch.Generator, dtype: torch.dtype) -> None:
        self._generator, self._dtype = generator, dtype
        self._offset: Tensor | None = None
        if isinstance(kappa, Tensor):
            values, kind = kappa.unique(return_inverse=True)
            tables = [von_mises_quantiles(float(value)) for value in values]
            self._offset = kind.to(generator.device, torch.int32) * _QUANTILES
        else:
            tables = [von_mises_quantiles(kappa)]
        self._table = torch.cat(tables).to(generator.device, dtype)

    def draw(self, candidates: int, robots: int, worlds: int) -> NoiseDraws:
        """Draws noise for ``[M, A, W]`` candidate pairs."""
        generator, device = self._generator, self._generator.device
        shape, slots = (candidates, robots, worlds), (2, OBSERVED_OBJECTS, robots, worlds)
        # Random bits are expensive: the table's 14-bit index uses one of the four 16-bit parts of a 63-bit draw.
        bits = torch.empty(-(-math.prod(shape) // 4), dtype=torch.int64, device=device).random_(generator=generator)
        index = (bits.view(torch.int16)[: math.prod(shape)] & (_QUANTILES - 1)).int()
        if self._offset is not None:
            index = (index.view(shape) + self._offset).view(-1)
        return NoiseDraws(
            torch.randn(2, *shape, generator=generator, device=device, dtype=self._dtype),
            self._table.index_select(0, index).view(shape),
            torch.randn(slots, generator=generator, device=device, dtype=self._dtype),
        )


# -- published noise -------------------------------------------------------------------------------------------------


def perception_seeds(config: Config, stale_num_robots: int = 5) -> list[int]:
    """Returns the noise seed of each robot after the published reset of this episode.

    Args:
        config: the episode; ``env.seed`` seeds the stream of seeds.
        stale_num_robots: a fifth of the seeds' upper bound. The published environment takes the number of robots before
            the reset, not the episode's: in the published evaluation 5, from the last level.
    """
    rng = RandomState(config["env"]["seed"])
    return [int(rng.randint(0, 5 * stale_num_robots)) for _ in range(config["env"]["num_robots"])]


class PublishedNoise:
    """A noise source for ``MarineNav.set_noise_source`` with one legacy numpy stream per robot.

    Args:
        seeds: the perception seeds of every world's robots; equal seeds give equal, separate streams.
        kappa: concentration of the von Mises draw, broadcast to [W, A].
        dtype: type of the tensors for the world.
    """

    def __init__(
        self, seeds: Sequence[Sequence[int]], kappa: ArrayLike = 1.0, dtype: torch.dtype = torch.float32
    ) -> None:
        self._dtype = dtype
        self._streams = [[RandomState(seed) for seed in world] for world in seeds]
        self._kappa = np.broadcast_to(kappa, (len(seeds), max(map(len, seeds), default=0)))

    def draw(self, candidates: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Draws the noise of one perception call; the call of a reset consumes draws, too.

        Args:
            candidates: bool [W, A, N]: the objects that robot a tests for detection; obstacles first, then robots, each
                in list order. Robots without candidates draw nothing.

        Returns:
            float64 [W, A, N, 5]: four standard normal draws for position x, y and velocity x, y in world axes
            and one von Mises(0, kappa) angle in radians; zero for other objects.
        """
        noise = np.zeros((*candidates.shape, 5))
        for world, robot, index in np.argwhere(candidates):  # row-major: list order within a robot
            stream = self._streams[world][robot]
            noise[world, robot, index, :4] = stream.standard_normal(4)
            noise[world, robot, index, 4] = stream.vonmises(0.0, self._kappa[world, robot])
        return noise

    def __call__(self, candidates: Tensor) -> NoiseDraws:
        """Draws the noise of one perception call in the layout of the simulation.

        Args:
            candidates: bool [N, A, W]: the objects that robot a of world w tests for detection; obstacles, then robots.
        """
        noise = torch.from_numpy(self.draw(candidates.permute(2, 1, 0).cpu().numpy()))
        px, py, vx, vy, angle = noise.to(candidates.device, self._dtype).permute(3, 2, 1, 0).contiguous()
        return NoiseDraws(torch.stack((px, py)), angle, torch.stack((vx, vy)), per_candidate=True)
