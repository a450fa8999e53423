"""Prioritised replay, and the sum tree that it draws by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from rlstack.data.replay import Replay, make_replay
from rlstack.data.samplers import SumTree, _rising_only_at_values, _summed
from tests.data.test_replay import numbered
from tests.refusals import refused

CPU = torch.device("cpu")


def prioritized(capacity: int, batch_size: int, device: Any = CPU, **options: Any) -> Replay:
    return make_replay(capacity, batch_size, device, sampler="prioritized", **options)


def sampled(replay: Replay, beta: float = 0.0) -> TensorDict:
    replay.sampler.beta = beta
    return replay.sample()


def filled(count: int = 10, capacity: int = 20, batch_size: int = 500, **options: Any) -> Replay:
    replay = prioritized(capacity, batch_size, CPU, **options)
    replay.extend(numbered(0, count))
    return replay


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights(beta: float) -> None:
    replay = filled(batch_size=64, alpha=0.5, eps=1e-3)
    error = torch.arange(10).double() / 3
    replay.update_priority(torch.arange(10), -error[:, None])
    sample = sampled(replay, beta)
    priority = (error + 1e-3) ** 0.5
    weight = (10 * priority / priority.sum())[sample["index"]] ** -beta
    torch.testing.assert_close(sample["priority_weight"], (weight / weight.max()).float())


def test_new_transitions_get_the_largest_priority_so_far() -> None:
    replay = filled(5, alpha=1.0, eps=0.5)
    assert replay.sampler.max_priority == 1 and replay.sampler.tree.values[:6].tolist() == [1.5] * 5 + [0]
    replay.update_priority(torch.tensor([0, 1]), torch.tensor([0.25, 0.125]))
    replay.extend(numbered(5, 6))
    assert replay.sampler.max_priority == 1 and replay.sampler.tree.values[5] == 1.5
    replay.update_priority(torch.tensor([5, 2]), torch.tensor([4.0, 2.0]))
    replay.update_priority(torch.tensor([5]), torch.tensor([1.0]))
    replay.extend(numbered(6, 8))
    assert replay.sampler.max_priority == 4
    assert replay.sampler.tree.values[:9].tolist() == [0.75, 0.625, 2.5, 1.5, 1.5, 1.5, 4.5, 4.5, 0]


@pytest.mark.parametrize("counts", [[7, 5], [8], [12, 8], [37], [10, 10, 1], [3, 0, 4]])
def test_priorities_follow_the_write_position(counts: list[int]) -> None:
    replay, start = prioritized(10, 4, CPU, alpha=1.0, eps=0.5), 0
    for count in counts:
        replay.extend(numbered(start, start + count))
        start += count
        index = torch.arange(len(replay))
        replay.update_priority(index, torch.zeros(len(replay)))
    before = replay.state_dict()["transitions"]["action"].clone()
    replay.extend(numbered(start, start + 4))
    after = replay.state_dict()["transitions"]["action"]
    new = torch.ones(len(replay), dtype=torch.bool)
    new[: len(before)] = (after[: len(before)] != before)[:, 0]
    expected = torch.where(new, 1.5, 0.5).double()
    assert new.sum() == 4 and torch.equal(replay.sampler.tree.values[: len(replay)], expected)


def test_duplicates_and_what_is_not_finite() -> None:
    replay = filled(alpha=1.0, eps=0.5)
    replay.update_priority(torch.tensor([3, 4, 3]), torch.tensor([2.0, 1.0, 3.0]))
    assert replay.sampler.tree.values[3:5].tolist() == [3.5, 1.5]
    replay.update_priority(torch.tensor([3, 4, 5]), torch.tensor([float("nan"), float("inf"), -float("inf")]))
    assert replay.sampler.tree.values[3:6].tolist() == [0.5, 0.5, 0.5] and replay.sampler.max_priority == 3


def test_updates_leave_the_graph_of_the_loss() -> None:
    replay = filled()
    loss = torch.rand(10, requires_grad=True)
    replay.update_priority(torch.arange(10), loss * 2)
    assert not sampled(replay, 0.4)["priority_weight"].requires_grad and not replay.sampler.max_priority.requires_grad


def test_states_of_a_uniform_replay_and_impossible_options_are_refused() -> None:
    uniform = make_replay(20, 5, CPU)
    uniform.extend(numbered(0, 10))
    refused(ValueError, "uniform", filled().load_state_dict, uniform.state_dict())
    for options in ({"eps": 0.0}, {"alpha": -0.1}):
        refused(ValueError, "alpha >= 0 and eps > 0", filled, **options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_without_waiting_for_it() -> None:
    replay = prioritized(1000, 64, "cuda")
    replay.extend(numbered(0, 700).to("cuda"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            sample = sampled(replay, 0.4)
            replay.update_priority(sample["index"], sample["priority_weight"])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (sample["action"][:, 0].long() == sample["index"]).all() and sample["index"].max() < 700


# -- the sum tree compared with sums, prefix searches and frequencies by brute force -----------------------------------


# Capacities at and around the width of a group (64), and one with wider groups.
CAPACITIES = st.sampled_from([1, 2, 63, 64, 65, 200, 1_100_000])
# Multiples of 1/64 up to 2^10, whose sums are exact in float64.
EXACT = st.integers(0, 2**16).map(lambda n: n / 64)
# From negligible to dominant values.
ROUGH = st.one_of(st.just(0.0), st.floats(1e-300, 1e6), st.floats(1e-3, 1.0))


@st.composite
def filled_tree(draw: st.DrawFn, values: st.SearchStrategy[float]) -> tuple[SumTree, np.ndarray]:
    """Draws a tree after any sequence of writes, with duplicates, and the values that it should hold."""
    capacity = draw(CAPACITIES)
    tree, expected = SumTree(capacity), np.zeros(capacity)
    place = st.integers(0, capacity - 1)
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            start, stop = sorted((draw(place), draw(place)))
            value = draw(values)
            tree.set_range(start, stop, torch.tensor(value, dtype=torch.float64))
            expected[start:stop] = value
        else:
            writes = draw(st.lists(st.tuples(place, values), min_size=1, max_size=300 if capacity < 300 else 20))
            index, value = (list(column) for column in zip(*writes))
            tree.set(torch.tensor(index), torch.tensor(value, dtype=torch.float64))
            for i in set(index):
                expected[i] = max(v for j, v in writes if j == i)
    return tree, expected


def find(tree: SumTree, mass: np.ndarray) -> np.ndarray:
    return tree.find(torch.from_numpy(mass)).numpy()


@settings(max_examples=60, deadline=None)
@given(filled_tree(EXACT), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=40))
def test_sums_and_finds_by_brute_force(made: tuple[SumTree, np.ndarray], fractions: list[float]) -> None:
    tree, expected = made
    np.testing.assert_array_equal(tree.values.numpy(), expected)
    assert tree.total == expected.sum()
    if expected.any():
        mass = np.floor(np.array(fractions) * expected.sum() * 64) / 64  # often exactly at an entry's edge
        np.testing.assert_array_equal(find(tree, mass), np.searchsorted(expected.cumsum(), mass, side="right"))


@settings(max_examples=60, deadline=None)
@given(filled_tree(ROUGH), st.lists(st.floats(0, 1), max_size=40), st.integers(0, 1000))
def test_rounding_never_leads_to_an_empty_entry(
    made: tuple[SumTree, np.ndarray], fractions: list[float], seed: int
) -> None:
    tree, expected = made
    total = expected.sum()
    assert float(tree.total) == pytest.approx(total, rel=1e-12)
    if total == 0:
        return
    edges = expected.cumsum()
    mass = np.concatenate(
        (np.array(fractions) * total, edges[:200], [0.0, total, np.nextafter(total, np.inf), 2 * total])
    )
    index = find(tree, mass)
    assert (expected[index] > 0).all()
    slack = 1e-9 * total
    inside = np.minimum(mass, total)
    assert ((edges[index] >= inside - slack) & (edges[index] - expected[index] <= inside + slack)).all()
    torch.manual_seed(seed)
    assert (expected[tree.sample(500).numpy()] > 0).all()


def test_draws_are_stratified() -> None:
    tree = SumTree(1000)
    tree.set_range(0, 1000, 0.5)
    torch.manual_seed(0)
    for _ in range(20):
        assert torch.equal(tree.sample(100) // 10, torch.arange(100))
    uniform = torch.linspace(0, 0.999, 100, dtype=torch.float64)
    assert torch.equal(tree.sample(100, uniform), torch.arange(100) * 10 + (uniform * 10).long())


def test_small_values_count_beside_a_large_total() -> None:
    tree = SumTree(1_000_000)
    tree.set_range(0, 1_000_000, 1e6)
    tree.set(torch.tensor([500_000]), torch.tensor([1e-3]))
    edge = 500_000 * 1e6
    assert find(tree, np.array([edge - 1, edge + 5e-4, edge + 2e-3])).tolist() == [499_999, 500_000, 500_001]


@pytest.mark.parametrize("capacity", [100, 70_000])
def test_the_state_restores_every_sum(capacity: int) -> None:
    torch.manual_seed(0)
    tree, other = SumTree(capacity), SumTree(capacity)
    for _ in range(5):
        tree.set(torch.randint(capacity, (50,)), torch.rand(50))
    other.set_range(0, capacity, 3.0)
    other.load_state_dict(tree.state_dict())
    mass = torch.rand(1000, dtype=torch.float64) * tree.total
    assert torch.equal(other.total, tree.total) and torch.equal(other.find(mass), tree.find(mass))
    refused(ValueError, "does not fit a capacity of 99", SumTree(99).load_state_dict, tree.state_dict())


@pytest.mark.parametrize(
    "sums, expected",
    [
        ([1.0, 1.0000001, 3.0], [1.0, 1.0, 3.0]),  # a rise at an empty entry
        ([1.0, 0.9999999, 3.0], [1.0, 1.0, 3.0]),  # a fall
        ([1.0, 3.0000001, 3.0], [1.0, 1.0, 3.0]),
    ],
)
def test_sums_of_a_parallel_scan_are_put_right(sums: list[float], expected: list[float]) -> None:
    values = torch.tensor([[1.0, 0.0, 2.0]])
    assert _rising_only_at_values(values, torch.tensor([sums])).equal(torch.tensor([expected]))


@pytest.mark.parametrize("shape", [(1,), (256,), (257,), (3, 64), (2, 600), (70_000,)])
def test_sums_in_a_fixed_order_are_running_sums(shape: tuple[int, ...]) -> None:
    values = torch.randint(0, 2**16, shape).double() / 64  # whose sums are exact
    assert _summed(values).equal(values.cumsum(-1))


def test_a_total_above_its_group_does_not_lead_out_of_it() -> None:
    tree = SumTree(128)
    tree.set(torch.tensor([0, 9, 64]), torch.tensor([1.0, 2.0, 3.0]))
    tree._root_sums[1] += 1e-12  # as a parallel scan may round
    assert find(tree, np.array([3.0, 3.0 + 5e-13, 3.0 + 2e-12])).tolist() == [9, 9, 64]


def test_compiles_into_one_graph() -> None:
    def work(index: Tensor, value: Tensor) -> Tensor:
        tree.set(index, value)
        return tree.sample(16, uniform)

    tree, uniform = SumTree(200), torch.rand(16, dtype=torch.float64)
    index, value = torch.arange(200), torch.rand(200)
    expected = work(index, value)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(work, backend="eager", fullgraph=True)(index, value), expected)
