"""The replay buffer: what it holds, what it gives, and that it goes on exactly after a checkpoint."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rlstack.collection.replay import Replay

CPU = torch.device("cpu")


def numbered(start: int, stop: int) -> TensorDict:
    n = torch.arange(start, stop, dtype=torch.float32)[:, None]
    observation = {"self": n + 0.1, "mask": n > 3}
    following = {"observation": {"self": n + 0.2, "mask": n > 4}, "reward": -n, "terminated": n % 2 == 0}
    return TensorDict({"observation": observation, "action": n, "next": following}, [stop - start])


def held(replay: Replay) -> list[int]:
    data = replay.state_dict()["transitions"]
    return [int(value) for value in data["action"][:, 0]]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def test_capacity_and_wrap_around() -> None:
    replay = Replay(10, 4, CPU)
    assert len(replay) == 0
    replay.extend(numbered(0, 7))
    assert len(replay) == 7 and held(replay) == list(range(7))
    replay.extend(numbered(7, 12))
    assert len(replay) == 10 and held(replay) == [10, 11, *range(2, 10)]
    replay.extend(numbered(12, 12))
    assert held(replay) == [10, 11, *range(2, 10)]
    replay.extend(numbered(12, 13))
    assert held(replay) == [10, 11, 12, *range(3, 10)]


def test_more_than_fits_keeps_the_last() -> None:
    replay = Replay(10, 4, CPU)
    replay.extend(numbered(0, 37))
    assert sorted(held(replay)) == list(range(27, 37))
    replay.extend(numbered(37, 39))
    assert sorted(held(replay)) == list(range(29, 39))


def test_samples_are_whole_transitions_of_what_is_held() -> None:
    torch.manual_seed(0)
    replay = Replay(20, 64, CPU)
    replay.extend(numbered(0, 5))
    seen = torch.zeros(30, dtype=torch.int64)
    for _ in range(30):
        sample = replay.sample()
        assert sample.shape == (64,)
        n = sample["action"][:, 0].long()
        assert (sample == numbered(0, 30)[n]).all()
        seen += torch.bincount(n, minlength=30)
    assert not seen[5:].any() and (seen[:5] - 30 * 64 / 5).abs().max() < 100


def test_nothing_is_shared_with_what_came_in_or_went_out() -> None:
    replay, data = Replay(10, 64, CPU), numbered(0, 5)
    replay.extend(data)
    data.zero_()
    assert held(replay) == [0, 1, 2, 3, 4]
    replay.sample().zero_()
    assert held(replay) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("filled", [6, 10, 14, 37])
def test_goes_on_exactly_after_a_checkpoint(filled: int) -> None:
    replay = Replay(10, 5, CPU)
    for start in range(0, filled, 3):
        replay.extend(numbered(start, min(start + 3, filled)))
    torch.manual_seed(0)
    replay.sample()
    saved, rng = through_a_file(replay.state_dict()), torch.get_rng_state()
    other = Replay(10, 5, CPU)
    other.extend(numbered(70, 73))  # what a replay held before is forgotten
    other.load_state_dict(saved)
    runs = []
    for each in (replay, other):
        torch.set_rng_state(rng)
        samples = []
        for step in range(6):
            samples.append(each.sample())
            each.extend(numbered(100 + 4 * step, 104 + 4 * step))
        runs.append((torch.stack(samples), held(each), torch.get_rng_state()))
    assert (runs[0][0] == runs[1][0]).all()
    assert runs[0][1] == runs[1][1] and torch.equal(runs[0][2], runs[1][2])


def test_an_empty_replay_goes_through_a_checkpoint() -> None:
    other = Replay(10, 5, CPU)
    other.extend(numbered(0, 4))
    other.load_state_dict(through_a_file(Replay(10, 5, CPU).state_dict()))
    assert len(other) == 0
    other.extend(numbered(4, 6))
    assert held(other) == [4, 5]


def test_a_larger_replay_does_not_fit() -> None:
    replay = Replay(10, 5, CPU)
    replay.extend(numbered(0, 10))
    with pytest.raises(ValueError, match="replay of 10 transitions does not fit a capacity of 8"):
        Replay(8, 5, CPU).load_state_dict(replay.state_dict())
