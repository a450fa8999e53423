"""The perception noise of the published MarineNav environment, draw for draw.

Published results were measured with it; training takes its noise from ``noise.py``.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .episodes import Config
from .perception import Draws


def perception_seeds(config: Config, stale_num_robots: int = 5) -> list[int]:
    """The noise seed of each robot after the published reset of this episode.

    Args:
        config: the episode; ``env.seed`` seeds the stream the seeds are drawn from.
        stale_num_robots: the seeds are below five times this. The published environment takes the robot count
            it held before the reset, not the episode's: in the published evaluation 5, from the last level.
    """
    rng = RandomState(config["env"]["seed"])
    return [int(rng.randint(0, 5 * stale_num_robots)) for _ in range(config["env"]["num_robots"])]


class PublishedNoise:
    """One legacy numpy stream per robot; an instance is a noise source for ``MarineNav.set_noise_source``.

    Args:
        seeds: for every world the perception seeds of its robots; equal seeds give equal streams, not one.
        kappa: concentration of the von Mises draw, broadcast to [W, A].
        dtype: of the tensors handed to the world.
    """

    def __init__(
        self, seeds: Sequence[Sequence[int]], kappa: ArrayLike = 1.0, dtype: torch.dtype = torch.float32
    ) -> None:
        self._dtype = dtype
        self._streams = [[RandomState(seed) for seed in world] for world in seeds]
        self._kappa = np.broadcast_to(kappa, (len(seeds), max(map(len, seeds), default=0)))

    def draw(self, candidates: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The draws of one perception call; the call at reset consumes draws as well.

        Args:
            candidates: bool [W, A, N]: what robot a tests for detection; obstacles first, then robots, each
                in list order. Robots without any candidate draw nothing.

        Returns:
            float64 [W, A, N, 5]: four standard normal draws for position x, y and velocity x, y in world axes
            and one von Mises(0, kappa) angle in radians; zero where there is no candidate.
        """
        noise = np.zeros((*candidates.shape, 5))
        for world, robot, index in np.argwhere(candidates):  # row-major: list order within a robot
            stream = self._streams[world][robot]
            noise[world, robot, index, :4] = stream.standard_normal(4)
            noise[world, robot, index, 4] = stream.vonmises(0.0, self._kappa[world, robot])
        return noise

    def __call__(self, candidates: Tensor) -> Draws:
        """The draws of one perception call in the layout of the simulation.

        Args:
            candidates: bool [N, A, W]: what robot a of world w tests for detection; obstacles, then robots.
        """
        noise = torch.from_numpy(self.draw(candidates.permute(2, 1, 0).cpu().numpy()))
        px, py, vx, vy, angle = noise.to(candidates.device, self._dtype).permute(3, 2, 1, 0).contiguous()
        return Draws(torch.stack((px, py)), angle, torch.stack((vx, vy)), per_candidate=True)
