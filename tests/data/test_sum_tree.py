"""The sum tree compared with sums, prefix searches and frequencies by brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from rlstack.data.samplers import SumTree, _rising_only_at_values, _summed
from tests.exhaustive import exhaustive

# Capacities at and around the width of a group (64), and one with wider groups.
CAPACITIES = st.sampled_from([1, 2, 63, 64, 65, 200, 1_100_000])
# Multiples of 1/64 up to 2^10, whose sums are exact in float64.
EXACT = st.integers(0, 2**16).map(lambda n: n / 64)
# From negligible to dominant values.
ROUGH = st.one_of(st.just(0.0), st.floats(1e-300, 1e6), st.floats(1e-3, 1.0))


@st.composite
def filled(draw: st.DrawFn, values: st.SearchStrategy[float]) -> tuple[SumTree, np.ndarray]:
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
@given(filled(EXACT), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=40))
def test_sums_and_finds_by_brute_force(made: tuple[SumTree, np.ndarray], fractions: list[float]) -> None:
    tree, expected = made
    np.testing.assert_array_equal(tree.values.numpy(), expected)
    assert tree.total == expected.sum()
    if expected.any():
        mass = np.floor(np.array(fractions) * expected.sum() * 64) / 64  # often exactly at an entry's edge
        np.testing.assert_array_equal(find(tree, mass), np.searchsorted(expected.cumsum(), mass, side="right"))


@settings(max_examples=60, deadline=None)
@given(filled(ROUGH), st.lists(st.floats(0, 1), max_size=40), st.integers(0, 1000))
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


def test_get_and_values_are_what_was_set() -> None:
    tree = SumTree(200)
    tree.set(torch.tensor([3, 150, 3]), torch.tensor([2.0, 5.0, 7.0]))
    assert tree.get(torch.tensor([150, 3, 4, 150])).tolist() == [5, 7, 0, 5]
    tree.set(torch.tensor([3]), torch.tensor([1.0]))
    assert tree.total == 6 and tree.values.shape == (200,)
    tree.set_range(149, 152, torch.tensor([1.0, 2.0, 3.0]))
    assert tree.values.nonzero()[:, 0].tolist() == [3, 149, 150, 151] and tree.total == 7


def test_draws_are_stratified() -> None:
    tree = SumTree(1000)
    tree.set_range(0, 1000, 0.5)
    torch.manual_seed(0)
    for _ in range(20):
        assert torch.equal(tree.sample(100) // 10, torch.arange(100))
    uniform = torch.linspace(0, 0.999, 100, dtype=torch.float64)
    assert torch.equal(tree.sample(100, uniform), torch.arange(100) * 10 + (uniform * 10).long())


@exhaustive("batch", [1, 7, 64])
def test_frequencies_follow_the_values(batch: int) -> None:
    generator = np.random.default_rng(5)
    values = generator.exponential(size=150) * (generator.random(150) < 0.7)
    tree = SumTree(150)
    tree.set(torch.arange(150), torch.from_numpy(values))
    torch.manual_seed(3)
    rounds = 30_000 // batch
    counts = sum(torch.bincount(tree.sample(batch), minlength=150) for _ in range(rounds)).numpy()  # type: ignore
    positive = values > 0
    assert counts[~positive].sum() == 0
    expected = values[positive] / values.sum() * rounds * batch
    # Stratified draws vary less than independent ones, so only the upper tail would indicate an error.
    assert chisquare(counts[positive], expected).pvalue > 0.01


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
    with pytest.raises(ValueError, match="does not fit a capacity of 99"):
        SumTree(99).load_state_dict(tree.state_dict())


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
