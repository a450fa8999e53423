"""Random numbers that depend on a world's own key and clock only, so that it plays alone as it does in a batch."""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN, _FIRST, _SECOND, _THIRD = -7046029254386353131, -4658895280553007687, -7723592293110705685, 3935559000370003845


def draws(key: Tensor, time: Tensor, count: int, salt: int) -> Tensor:
    """Uniform numbers in [0, 1), ``[count, W]`` float32: splitmix64 (Steele et al. 2014) of key, time and place.

    Args:
        key: ``[W]`` int64.
        time: ``[W]``, whole numbers.
        salt: tells different uses at the same time apart.
    """
    place = torch.arange(count, device=key.device)[:, None] + salt * 4096
    x = key + time.to(torch.int64) * _GOLDEN + place * _THIRD
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND
    x = x ^ ((x >> 31) & 0x1FFFFFFFF)
    return ((x >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24
