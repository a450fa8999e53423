"""The replay buffer: what it holds, what it gives, and that it goes on exactly after a checkpoint."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage

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


def state(count: int = 10, capacity: int = 10) -> dict[str, Any]:
    replay = Replay(capacity, 5, CPU)
    replay.extend(numbered(0, count))
    return replay.state_dict()


@pytest.mark.parametrize(
    "wrong, message",
    [
        (state(capacity=12), "capacity 12 does not fit one of 10"),
        (state(4) | {"cursor": 5}, "4 of 10 transitions, next written at 5"),
        (state() | {"cursor": 10}, "10 of 10 transitions, next written at 10"),
        (state(0) | {"cursor": 1}, "0 of 10 transitions, next written at 1"),
        ({"transitions": {}}, "capacity, cursor missing"),
        (state(4) | {"transitions": {"action": torch.zeros(4, 1)}}, "next/observation/mask, .* differ"),
        (state(4) | {"transitions": state(4)["transitions"] | {"action": torch.zeros(4, 2)}}, "kind: action differ"),
    ],
)
def test_a_state_that_does_not_fit(wrong: dict[str, Any], message: str) -> None:
    replay = Replay(10, 5, CPU)
    replay.extend(numbered(0, 3))
    with pytest.raises(ValueError, match=message):
        replay.load_state_dict(wrong)
    assert held(replay) == [0, 1, 2]


def test_transitions_of_another_kind_are_refused() -> None:
    replay = Replay(10, 5, CPU)
    replay.extend(numbered(0, 3))
    wide = numbered(3, 6)
    wide["action"] = torch.zeros(3, 1, 1)
    scalar = numbered(3, 6)
    scalar["next", "reward"] = torch.zeros(3)
    for wrong, message in (
        (numbered(3, 6).exclude("action"), r"keep their keys: .*'action'.*, got \['next', 'observation'\]"),
        (numbered(3, 6).set("more", torch.zeros(3)), "got .*'more'"),
        (wide, r"shapes: action \[1\], got \[1, 1\]"),
        (scalar, r"shapes: reward \[1\], got \[\]"),
    ):
        with pytest.raises(ValueError, match=message):
            replay.extend(wrong)
        assert len(replay) == 3


def test_nothing_to_sample() -> None:
    with pytest.raises(ValueError, match="empty"):
        Replay(10, 5, CPU).sample()
    with pytest.raises(ValueError, match="positive"):
        Replay(0, 5, CPU)


def test_storage_is_torchrls() -> None:
    replay = Replay(10, 5, CPU)
    replay.extend(numbered(0, 10))
    assert isinstance(replay._storage, LazyTensorStorage)
    replay.extend(numbered(10, 12))
    assert replay._storage._storage["action"][:, 0].tolist() == [10, 11, *range(2, 10)]


def test_a_sample_is_an_ordinary_tensordict() -> None:
    replay = Replay(10, 5, CPU)
    replay.extend(numbered(0, 10))
    sample = replay.sample()
    assert sample.batch_size == (5,) and sample.device == CPU
    inner = sample["next", "observation"]
    assert isinstance(inner, TensorDict) and inner.batch_size == (5,) and inner.device == CPU
    assert sample[2:].set("more", torch.zeros(3)).reshape(3, 1).shape == (3, 1)
    for key, leaf in numbered(0, 1).items(include_nested=True, leaves_only=True):
        assert sample[key].dtype == leaf.dtype and sample[key].shape[1:] == leaf.shape[1:]


@pytest.mark.filterwarnings("error")
def test_storage_on_another_device() -> None:
    replay = Replay(10, 5, "meta", storage_device=CPU)
    replay.extend(numbered(0, 7))
    assert held(replay) == list(range(7))
    sample = replay.sample()
    assert sample.device.type == "meta" and sample["next", "observation", "self"].is_meta
    assert sample.shape == (5,) and sample["next", "observation", "self"].shape == (5, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_from_pinned_memory_to_a_gpu() -> None:
    replay = Replay(1000, 64, "cuda", storage_device=CPU)
    replay.extend(numbered(0, 1000).to("cuda"))
    samples = [replay.sample() for _ in range(50)]  # copies in flight must not share their memory
    for sample in samples:
        n = sample["action"][:, 0].long().cpu()
        assert sample.device == torch.device("cuda", 0) and n.unique().numel() > 32
        assert (sample.cpu() == numbered(0, 1000)[n]).all()
