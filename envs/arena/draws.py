"""Where randomness comes from: a generator in training, recorded draws in tests of parity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .rows import counting
from .rules import Rules


class Draws(Protocol):
    """Numbers in [0, 1) for the ``n`` worlds of an index tensor; None: for all."""

    def fire(self, worlds: Tensor | None) -> Tensor:
        """``[E, n]``: whether each enemy that is ready fires."""

    def spawn(self, spawner: Tensor, worlds: Tensor | None) -> tuple[Tensor, Tensor]:
        """Angle ``[attempts + 1, n]`` and gap ``[attempts, n]`` of a new enemy of spawner ``[n]``."""

    def jitter(self, worlds: Tensor | None) -> Tensor:
        """``[2, S, n]``: displacement of a new phase's spawners."""


class SampledDraws:
    """Fresh numbers for ``num_worlds`` worlds from a ``torch.Generator``."""

    def __init__(self, rules: Rules, num_worlds: int, generator: torch.Generator, dtype: torch.dtype) -> None:
        self._rules, self._worlds, self._generator, self._dtype = rules, num_worlds, generator, dtype

    def _uniform(self, worlds: Tensor | int | None, *shape: int) -> Tensor:
        count = self._worlds if worlds is None else worlds if isinstance(worlds, int) else len(worlds)
        generator = self._generator
        return torch.rand(*shape, count, generator=generator, dtype=self._dtype, device=generator.device)

    def fire(self, worlds: Tensor | None) -> Tensor:
        return self._uniform(worlds, self._rules.max_enemies)

    def spawn(self, spawner: Tensor, worlds: Tensor | None) -> tuple[Tensor, Tensor]:
        tries = self._rules.spawn_attempts
        units = self._uniform(worlds, 2 * tries + 1)
        return units[: tries + 1], units[tries + 1 :]

    def jitter(self, worlds: Tensor | int | None) -> Tensor:
        return self._uniform(worlds, 2, self._rules.num_spawners)


@dataclass
class GivenDraws:
    """One number for everything that could be drawn in a step, made beforehand."""

    fires: Tensor  # [E, W]
    angles: Tensor  # [attempts + 1, S, W]
    gaps: Tensor  # [attempts, S, W]
    jitters: Tensor  # [2, S, W]

    def fire(self, worlds: Tensor | None) -> Tensor:
        return self.fires if worlds is None else self.fires[:, worlds]

    def spawn(self, spawner: Tensor, worlds: Tensor | None) -> tuple[Tensor, Tensor]:
        everywhere = self.fires.shape[-1]
        places = counting(everywhere, torch.int64, spawner.device) if worlds is None else worlds
        row = spawner.long()
        return self.angles[:, row, places], self.gaps[:, row, places]

    def jitter(self, worlds: Tensor | None) -> Tensor:
        return self.jitters if worlds is None else self.jitters[..., worlds]
