"""Prioritised replay: frequencies and weights of the drawn entries, and exact resuming."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from tensordict import TensorDict

from rlstack.data.replay import Replay, make_replay
from rlstack.files.safe_load import from_file, to_file
from tests.refusals import refused

CPU = torch.device("cpu")


def prioritized(capacity: int, batch_size: int, device: Any = CPU, **options: Any) -> Replay:
    return make_replay(capacity, batch_size, device, sampler="prioritized", **options)


def sampled(replay: Replay, beta: float = 0.0) -> TensorDict:
    replay.sampler.beta = beta
    return replay.sample()


def numbered(start: int, stop: int) -> TensorDict:
    n = torch.arange(start, stop, dtype=torch.float32)[:, None]
    return TensorDict({"observation": {"self": n + 0.1}, "action": n, "next": {"reward": -n}}, [stop - start])


def filled(count: int = 10, capacity: int = 20, batch_size: int = 500, **options: Any) -> Replay:
    replay = prioritized(capacity, batch_size, CPU, **options)
    replay.extend(numbered(0, count))
    return replay


def test_samples_are_transitions_with_their_index_and_weight() -> None:
    torch.manual_seed(0)
    replay = filled()
    sample = sampled(replay, 0.4)
    assert sample.shape == (500,) and sample["index"].dtype == torch.int64
    assert sample["priority_weight"].shape == (500,) and sample["priority_weight"].dtype == torch.float32
    assert (sample.exclude("index", "priority_weight") == numbered(0, 10)[sample["index"]]).all()
    assert sample["index"].bincount().tolist() == [50] * 10  # equal priorities, stratified


def test_frequencies_follow_the_priorities() -> None:
    replay = filled(batch_size=32, alpha=0.7, eps=0.01)
    error = torch.tensor([0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 0.2, 0.0, 7.0, 1.0])
    replay.update_priority(torch.arange(10), -error[:, None])
    torch.manual_seed(1)
    counts = torch.stack([sampled(replay)["index"].bincount(minlength=20) for _ in range(1000)]).sum(0)
    assert not counts[10:].any()
    probability = (error.double() + 0.01) ** 0.7
    expected = probability / probability.sum() * 32_000
    assert chisquare(counts[:10].numpy(), expected.numpy()).pvalue > 0.01


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights(beta: float) -> None:
    replay = filled(batch_size=64, alpha=0.5, eps=1e-3)
    error = torch.arange(10).double() / 3
    replay.update_priority(torch.arange(10), error)
    sample = sampled(replay, beta)
    priority = (error + 1e-3) ** 0.5
    weight = (10 * priority / priority.sum())[sample["index"]] ** -beta
    torch.testing.assert_close(sample["priority_weight"], (weight / weight.max()).float())


def test_without_beta_all_weigh_the_same() -> None:
    replay = filled()
    replay.update_priority(torch.arange(10), torch.rand(10))
    assert (sampled(replay)["priority_weight"] == 1).all()


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


@pytest.mark.parametrize("count", [6, 10, 37])
def test_goes_on_exactly_after_a_checkpoint(count: int) -> None:
    replay, other = (prioritized(10, 5, CPU) for _ in range(2))
    torch.manual_seed(0)
    for start in range(0, count, 3):
        replay.extend(numbered(start, min(start + 3, count)))
        replay.update_priority(sampled(replay)["index"], torch.rand(5) * 3)
    other.extend(numbered(70, 79))
    other.update_priority(torch.tensor([8]), torch.tensor([50.0]))
    other.load_state_dict(from_file(to_file(replay.state_dict())))
    rng, runs = torch.get_rng_state(), []
    for each in (replay, other):
        torch.set_rng_state(rng)
        samples = []
        for step in range(8):
            samples.append(sampled(each, 0.5))
            each.update_priority(samples[-1]["index"], torch.rand(5) * 4)
            each.extend(numbered(100 + 4 * step, 104 + 4 * step))
        runs.append((torch.stack(samples), each.sampler.max_priority, each.sampler.tree.values.clone()))
    assert (runs[0][0] == runs[1][0]).all()
    assert torch.equal(runs[0][1], runs[1][1]) and torch.equal(runs[0][2], runs[1][2])


def test_states_that_do_not_fit() -> None:
    uniform = make_replay(20, 5, CPU)
    uniform.extend(numbered(0, 10))
    for wrong, message in ((uniform.state_dict(), "uniform"), (filled(capacity=30).state_dict(), "capacity 30")):
        refused(ValueError, message, filled().load_state_dict, wrong)


def test_mistakes_in_its_options() -> None:
    for options in ({"eps": 0.0}, {"alpha": -0.1}):
        refused(ValueError, "alpha >= 0 and eps > 0", filled, **options)
    refused(ValueError, "empty", prioritized(10, 5, CPU).sample)


@pytest.mark.filterwarnings("error")
def test_storage_on_another_device() -> None:
    replay = prioritized(20, 5, "meta", storage_device=CPU)
    replay.extend(numbered(0, 10))
    sample = sampled(replay, 0.4)
    assert all(sample[key].is_meta for key in ("index", "priority_weight", "action"))


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
