"""The published Rainbow buffer against its recording, and its rules on hand-made records."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlstack.adapters.marinenav.agents import InterleavedReplay
from tests.exhaustive import recordings
from tests.refusals import refused

CPU = torch.device("cpu")
TOLERANCE = {"rtol": 0, "atol": 1e-9}


@recordings("losses/public_Rainbow_memory.npz", "golden/marinenav/losses/*_Rainbow_memory.npz")
def test_recorded_memories(path: Path) -> None:
    with np.load(path) as file:
        data = dict(file.items())
    memory = InterleavedReplay(int(data["capacity"]), len(data["sample_idx"]), CPU)
    for step in range(len(data["reward"])):
        seen = {"self": torch.from_numpy(data["self_state"][step])}
        # The recording computes returns in float64 from rewards stored in float32.
        reward = torch.tensor(data["reward"][step], dtype=torch.float64)
        append(memory, TensorDict(seen), torch.tensor(data["action"][step]), reward, bool(data["terminal"][step]))
    index = torch.arange(len(data["loss_given"]))
    assert (memory._tree.get(index) == 1).all() and memory._tree.total == len(index)
    starts = memory.state_dict()["records"]["transitions"]["starts"][:, 0]
    np.testing.assert_array_equal(starts.numpy(), data["record_counter"] == 0)

    memory.update_priority(index, torch.from_numpy(data["loss_given"]))
    np.testing.assert_allclose(float(memory.state_dict()["max_priority"]), data["max_priority"], **TOLERANCE)
    # The recorded total is that of a binary tree in float32, which is coarser than ours.
    recorded, sums = float(data["total_priority"]), memory._tree.values.numpy().astype(np.float32)
    assert float(memory._tree.total) == pytest.approx(recorded, rel=len(sums).bit_length() * 2.0**-24)
    while len(sums) > 1:
        sums = sums[::2] + sums[1::2]
    assert sums[0] == pytest.approx(recorded, abs=1e-9)

    following = memory.following(torch.from_numpy(data["idx"]))
    np.testing.assert_allclose(following["reward"][:, 0].numpy(), data["nstep_return"], **TOLERANCE)
    np.testing.assert_array_equal(following["observation", "self"].numpy(), data["next_self"])
    np.testing.assert_array_equal(following["terminated"][:, 0].numpy(), ~data["nonterminal"])

    random = np.random.RandomState(int(data["sample_seed"]))
    sample = memory.sample(uniform=lambda n: torch.from_numpy(random.uniform(size=n)))
    drawn = sample["index"].numpy()
    np.testing.assert_array_equal(drawn, data["sample_idx"])
    single = np.finfo(np.float32).eps  # these were recorded in float32
    np.testing.assert_allclose(sample["priority_weight"].numpy(), data["sample_weights"], rtol=4 * single)
    drift = 4 * single * np.abs(data["reward"]).max()  # three rewards, discounted and summed, which may cancel out
    np.testing.assert_allclose(sample["next", "reward"][:, 0].numpy(), data["sample_returns"], rtol=0, atol=drift)
    np.testing.assert_array_equal(~sample["next", "terminated"][:, 0].numpy(), data["sample_nonterminal"] > 0)
    np.testing.assert_array_equal(sample["observation", "self"].numpy(), data["self_state"][drawn])
    np.testing.assert_array_equal(sample["action"].numpy(), data["action"][drawn])


def append(memory: InterleavedReplay, observation: Any, action: Any, reward: Any, terminal: Any) -> None:
    """Adds one record."""
    following = {"reward": torch.as_tensor(reward).reshape(1), "done": torch.as_tensor(terminal).reshape(1)}
    record = TensorDict({"observation": observation, "action": action, "next": following, "active": torch.tensor(True)})
    memory.extend_interleaved(record[None, None])


def sequences(rows: int, time: int, seed: int = 0) -> TensorDict:
    """Returns data in which each observation and action shows its row and time: 100 row + t."""
    generator = torch.Generator().manual_seed(seed)
    name = (100 * torch.arange(rows)[:, None] + torch.arange(time)).float()[..., None]
    done = torch.rand(rows, time, 1, generator=generator) < 0.2
    reward = torch.rand(rows, time, 1, generator=generator)
    following = {"observation": {"self": name + 1}, "reward": reward, "terminated": done, "done": done}
    active = torch.rand(rows, time, generator=generator) < 0.8
    entries = {"observation": {"self": name}, "action": name.long(), "next": following, "active": active}
    return TensorDict(entries, [rows, time])


def one_by_one(memory: InterleavedReplay, data: TensorDict) -> None:
    for t in range(data.shape[1]):
        for row in range(data.shape[0]):
            entry = data[row, t]
            if entry["active"]:
                following = entry["next"]
                append(memory, entry["observation"], entry["action"], following["reward"], following["done"])


@pytest.mark.parametrize("capacity", [1000, 50, 17])
def test_folded_batches_are_appended_step_by_step_in_row_order(capacity: int) -> None:
    memory, reference = (InterleavedReplay(capacity, 4, CPU) for _ in range(2))
    for seed in range(3):
        data = sequences(5, 6, seed)
        memory.extend_interleaved(data)
        one_by_one(reference, data)
    ours, theirs = memory.state_dict(), reference.state_dict()
    if capacity == 17:  # one batch is more than fits: its last records stand from the old write position on
        ours, theirs = ({key: state[key] for key in ("starts", "max_priority", "tree")} for state in (ours, theirs))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_what_follows_the_start_of_an_episode_is_blank() -> None:
    memory = InterleavedReplay(50, 4, CPU, n_step=3, gamma=0.5)
    for n in range(12):
        append(memory, torch.tensor([n + 1.0]), torch.tensor([n]), float(2**n), n in (3, 8, 9))
    # Episodes are the records 0-3, 4-8, 9 and 10-.
    following = memory.following(torch.arange(9))
    expected = [1 + 1 + 1, 2 + 2 + 2, 4 + 4, 8, 16 + 16 + 16, 32 + 32 + 32, 64 + 64 + 64, 128 + 128, 256]
    assert following["reward"][:, 0].tolist() == expected
    # The record three later is also terminal where the episode ends with it.
    assert (~following["terminated"][:, 0]).nonzero()[:, 0].tolist() == [4]
    assert following["observation"][:, 0].tolist() == [4, 0, 0, 0, 8, 9, 0, 0, 0]


@pytest.mark.slow
def test_draws_keep_away_from_the_write_position() -> None:
    torch.manual_seed(0)
    memory = InterleavedReplay(40, 4, CPU)
    for length, written in ((30, 30), (27, 57)):
        for n in range(length):
            append(memory, torch.zeros(1), torch.tensor([n]), 0.0, False)
        seen = torch.stack([memory.sample()["index"] for _ in range(1500)]).unique().tolist()
        head = written % 40
        newest = {(head - k) % 40 for k in (1, 2, 3)}
        # The record right at the head is the oldest once the memory is full.
        assert seen == sorted(set(range(min(written, 40))) - newest - {head})


def test_the_first_records_that_can_be_drawn() -> None:
    memory = InterleavedReplay(40, 4, CPU)
    for n in range(4):
        refused(ValueError, f"{n} records are too few", memory.sample)
        append(memory, torch.zeros(1), torch.tensor([n]), 0.0, False)
    assert memory.sample()["index"].tolist() == [0, 0, 0, 0]
    refused(ValueError, "no returns over 3", InterleavedReplay, 4, 4, CPU)


def test_newest_records_with_a_segment_of_their_own() -> None:
    torch.manual_seed(0)
    memory = InterleavedReplay(100, 16, CPU)
    for n in range(40):
        append(memory, torch.zeros(1), torch.tensor([n]), 0.0, False)
    memory.update_priority(torch.tensor([39]), torch.tensor([400.0]))
    index = torch.cat([memory.sample()["index"] for _ in range(20)])
    assert index.max() <= 36 and index.unique().numel() > 20


def test_priorities_and_weights() -> None:
    torch.manual_seed(0)
    memory = InterleavedReplay(100, 16, CPU, alpha=0.5, beta=0.4)
    for n in range(64):
        append(memory, torch.zeros(1), torch.tensor([n]), 0.0, False)
    memory.update_priority(torch.tensor([5, 6, 6, 7]), torch.tensor([[16.0], [4.0], [9.0], [float("nan")]]))
    append(memory, torch.zeros(1), torch.tensor([64]), 0.0, False)
    assert memory._tree.get(torch.tensor([4, 5, 6, 7, 64])).tolist() == [1, 4, 3, 0, 4]
    assert memory.state_dict()["max_priority"] == 4 and memory._tree.total == 64 - 3 + 7 + 4
    for _ in range(20):
        sample = memory.sample()
        weight = torch.ones(65)
        weight[[5, 6]] = torch.tensor([4.0, 3.0]) ** -0.4
        torch.testing.assert_close(sample["priority_weight"], weight[sample["index"]])
        assert sample["gamma"].shape == (16, 1) and sample["gamma"].unique().item() == pytest.approx(0.99**3)
        assert 7 not in sample["index"]


def test_goes_on_exactly_after_a_checkpoint() -> None:
    memory, other = (InterleavedReplay(60, 8, CPU) for _ in range(2))
    memory.extend_interleaved(sequences(5, 10))
    memory.update_priority(torch.arange(20), torch.rand(20) * 9)
    memory.extend_interleaved(sequences(5, 8, seed=1))
    buffer = io.BytesIO()
    torch.save(memory.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    runs = []
    for each in (memory, other):
        torch.manual_seed(4)
        samples = []
        for step in range(5):
            samples.append(each.sample())
            each.update_priority(samples[-1]["index"], torch.rand(8))
            each.extend_interleaved(sequences(5, 3, seed=10 + step))
        runs.append((torch.stack(samples), each.state_dict()))
    assert (runs[0][0] == runs[1][0]).all()
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=0, atol=0)
    refused(ValueError, "capacity 60 does not fit", InterleavedReplay(61, 8, CPU).load_state_dict, memory.state_dict())
