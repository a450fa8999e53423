"""Where perception noise comes from: a generator in training, recorded draws in parity tests."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .perception import Draws
from .rules import OBSERVED_OBJECTS, Number

_QUANTILES = 1 << 14


def von_mises_quantiles(kappa: float, count: int = _QUANTILES) -> Tensor:
    """``count`` equally likely angles of von Mises(0, kappa) in radians, ascending, float64.

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
    """Draws for perception calls from a ``torch.Generator``.

    Args:
        kappa: concentration of the radius noise, a float or a tensor ``[A, W]``.
        generator: on the device of the draws; its state is the noise's only state.
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

    def draw(self, candidates: int, robots: int, worlds: int) -> Draws:
        """Fresh draws for ``[M, A, W]`` candidate pairs."""
        generator, device = self._generator, self._generator.device
        shape, slots = (candidates, robots, worlds), (2, OBSERVED_OBJECTS, robots, worlds)
        # Random bits are dear: the table's 14-bit index takes one of the four 16-bit parts of a 63-bit draw.
        bits = torch.empty(-(-math.prod(shape) // 4), dtype=torch.int64, device=device).random_(generator=generator)
        index = (bits.view(torch.int16)[: math.prod(shape)] & (_QUANTILES - 1)).int()
        if self._offset is not None:
            index = (index.view(shape) + self._offset).view(-1)
        return Draws(
            torch.randn(2, *shape, generator=generator, device=device, dtype=self._dtype),
            self._table.index_select(0, index).view(shape),
            torch.randn(slots, generator=generator, device=device, dtype=self._dtype),
        )
