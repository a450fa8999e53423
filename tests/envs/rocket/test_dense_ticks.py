"""Ticks as a GPU computes them: the same worlds, few operations, none that a CUDA graph cannot record, one graph."""

from __future__ import annotations

import pytest
import torch

from rlstack.envs.rocket.simulation import advance, advance_densely
from rlstack.envs.rocket.state import RocketState
from tests.envs.rocket.fields import RAMPED, lively, random_controls


def furthest(one: RocketState, other: RocketState) -> float:
    pairs = [(value, there) for (_, value), (_, there) in zip(one.items(), other.items())]
    return max(float(torch.where(value == there, 0.0, value - there).abs().max()) for value, there in pairs)


def test_both_ways_lead_to_the_same_worlds() -> None:
    state = lively(64, 4)
    with torch.no_grad():
        for controls in random_controls(4, 4, 64):
            (state, _), (dense, _) = advance(state, controls, RAMPED), advance_densely(state, controls, RAMPED)
            assert furthest(state, dense) < 1e-8


@pytest.mark.slow
def test_a_dense_tick_is_one_graph_for_every_tick() -> None:
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    tick = torch.compile(advance_densely, backend=counter, fullgraph=True, dynamic=False)
    state = eager = lively(8, 2, dtype=torch.float32)
    controls = random_controls(1, 2, 8, dtype=torch.float32)[0]
    with torch.no_grad():
        for _ in range(4):
            state, _ = tick(state, controls, RAMPED)
            eager, _ = advance_densely(eager, controls, RAMPED)
    assert furthest(state, eager) < 1e-2
    assert counter.frame_count <= 2  # once more for the state that a tick leaves, whose tensors are parts of one
