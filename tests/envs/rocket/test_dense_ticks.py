"""Ticks as a GPU computes them: the same worlds, few operations, none that a CUDA graph cannot record, one graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlstack import envs
from rlstack.envs import waiting
from rlstack.envs.rocket.simulation import advance, advance_densely
from rlstack.envs.rocket.state import RocketState
from tests.envs.rocket.fields import RAMPED, lively, random_controls
from tests.host_waits import HostWaits

MOST_OPERATIONS = 18_000
VIEWS = {
    *("view", "_unsafe_view", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "select", "slice"),
    *("split", "unbind", "detach", "alias", "as_strided", "split_with_sizes", "diagonal", "empty", "empty_like"),
}


class Operations(HostWaits):
    """Counts operations other than views, too."""

    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += func.overloadpacket.__name__ not in VIEWS
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.parametrize("cars", [1, 2])
def test_a_step_is_few_operations_that_a_graph_can_record(cars: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FREE", set())
    env = envs.make("rocket", num_worlds=4, team_size=cars)
    root = env.reset()
    for _ in range(2):
        _, root = env.step_and_maybe_reset(env.rand_action(root))
    root = env.rand_action(root)
    with Operations() as seen:
        env.step_and_maybe_reset(root)
    assert not seen.places and seen.operations <= MOST_OPERATIONS


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
