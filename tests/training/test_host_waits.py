"""Waits for a GPU are seen on a CPU; what is recorded waits for nothing, see ``test_recorded_iterations.py``."""

from __future__ import annotations

import torch

from tests.host_waits import HostWaits


def test_waits_are_seen() -> None:
    x = torch.arange(4.0)
    with HostWaits() as waits:
        float(x.sum()), x[x > 1], x.nonzero(), x[[0, 1]], torch.tensor([1.0]), bool(x[0] > 0)
        x[x > 1] = x[:2].clone()
    assert waits.count == 7, waits.places
    with HostWaits() as waits:
        torch.add(x, x, alpha=x[0])
    assert waits.count == 1, waits.places
    with HostWaits() as waits:
        torch.where(x > 1, x, 0.0), x.masked_fill(x > 1, 0.0), x[1:], x.index_select(0, torch.arange(2))
    assert not waits.count, waits.places
