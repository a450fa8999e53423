"""The replay buffer: its content, its samples, and exact resuming from a checkpoint."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers import RandomSampler, SliceSampler, SliceSamplerWithoutReplacement
from torchrl.envs.transforms import DoubleToFloat, RewardScaling

from rlstack.config import ConfigError
from rlstack.data.replay import MemmapRows, RangeWriter, Replay, TensorRows, make_replay
from rlstack.data.samplers import SumTreeSampler
from rlstack.files.safe_load import from_file, to_file
from rlstack.runs.checkpoint import to_saveable
from tests.refusals import refused

CPU = torch.device("cpu")


def numbered(start: int, stop: int) -> TensorDict:
    n = torch.arange(start, stop, dtype=torch.float32)[:, None]
    observation = {"self": n + 0.1, "mask": n > 3}
    following = {"observation": {"self": n + 0.2, "mask": n > 4}, "reward": -n, "terminated": n % 2 == 0}
    return TensorDict({"observation": observation, "action": n, "next": following}, [stop - start])


def held(replay: Replay) -> list[int]:
    return [int(value) for value in replay.state_dict()["transitions"]["action"][:, 0]]


@pytest.mark.parametrize("storage", ["LazyTensorStorage", "LazyMemmapStorage"])
def test_capacity_and_wrap_around(storage: Any) -> None:
    replay = make_replay(10, 4, CPU, storage=storage)
    assert len(replay) == 0
    assert replay.extend(numbered(0, 7)).tolist() == list(range(7))
    assert len(replay) == 7 and held(replay) == list(range(7))
    assert replay.extend(numbered(7, 12)).tolist() == [7, 8, 9, 0, 1]
    assert len(replay) == 10 and held(replay) == [10, 11, *range(2, 10)]
    replay.extend(numbered(12, 12))
    assert held(replay) == [10, 11, *range(2, 10)]
    replay.extend(numbered(12, 13))
    assert held(replay) == [10, 11, 12, *range(3, 10)]
    replay.extend(numbered(13, 50))  # more than fits
    assert sorted(held(replay)) == list(range(40, 50))
    replay.extend(numbered(50, 52))
    assert sorted(held(replay)) == list(range(42, 52))


def test_samples_are_whole_transitions_of_what_is_held() -> None:
    torch.manual_seed(0)
    replay = make_replay(20, 64, CPU)
    replay.extend(numbered(0, 5))
    seen = torch.zeros(30, dtype=torch.int64)
    for _ in range(30):
        sample = replay.sample()
        assert sample.shape == (64,)
        n = sample["action"][:, 0].long()
        assert (sample.exclude("index") == numbered(0, 30)[n]).all()
        seen += torch.bincount(n, minlength=30)
    assert not seen[5:].any() and (seen[:5] - 30 * 64 / 5).abs().max() < 100


def test_nothing_is_shared_with_what_came_in_or_went_out() -> None:
    replay, data = make_replay(10, 64, CPU), numbered(0, 5)
    replay.extend(data)
    data.zero_()
    assert held(replay) == [0, 1, 2, 3, 4]
    replay.sample().zero_()
    assert held(replay) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
@pytest.mark.parametrize("filled", [0, 6, 10, 14, 37])
def test_goes_on_exactly_after_a_checkpoint(filled: int, sampler: str) -> None:
    def used(replay: Replay, first: int, last: int) -> Any:
        replay.extend(numbered(first, last))
        sample = replay.sample()
        if sampler == "prioritized":
            replay.update_priority(sample["index"], torch.rand(5) * 3)
        return sample

    replay, other = (make_replay(10, 5, CPU, sampler=sampler) for _ in range(2))
    torch.manual_seed(0)
    for start in range(0, filled, 3):
        used(replay, start, min(start + 3, filled))
    for start in (70, 73):  # the buffer's previous content is discarded
        used(other, start, start + 3)
    other.load_state_dict(from_file(to_file(replay.state_dict())))
    assert len(other) == len(replay)
    rng, runs = torch.get_rng_state(), []
    for each in (replay, other):
        torch.set_rng_state(rng)
        samples = [used(each, 100 + 4 * step, 104 + 4 * step) for step in range(8)]
        priorities = [each.sampler.max_priority, each.sampler.tree.values] if sampler == "prioritized" else []
        runs.append(([torch.get_rng_state(), *priorities], held(each), torch.stack(samples)))
    assert all(map(torch.equal, runs[0][0], runs[1][0]))
    assert runs[0][1] == runs[1][1] and (runs[0][2] == runs[1][2]).all()


def state(count: int = 10, capacity: int = 10) -> dict[str, Any]:
    replay = make_replay(capacity, 5, CPU)
    replay.extend(numbered(0, count))
    return replay.state_dict()


@pytest.mark.parametrize(
    "wrong, message",
    [
        (state(capacity=12), "capacity 12 does not fit one of 10"),
        (state(4) | {"cursor": 5}, "4 of 10 transitions, next written at 5"),
        (state(0) | {"cursor": 1}, "0 of 10 transitions, next written at 1"),
        ({"transitions": {}}, "capacity, cursor missing"),
        (state(4) | {"transitions": {"action": torch.zeros(4, 1)}}, "next/observation/mask, .* differ"),
        (state(4) | {"transitions": state(4)["transitions"] | {"action": torch.zeros(4, 2)}}, "kind: action differ"),
    ],
)
def test_a_state_that_does_not_fit(wrong: dict[str, Any], message: str) -> None:
    replay = make_replay(10, 5, CPU)
    replay.extend(numbered(0, 3))
    refused(ValueError, message, replay.load_state_dict, wrong)
    assert held(replay) == [0, 1, 2]


def test_transitions_of_another_kind_are_refused() -> None:
    replay = make_replay(10, 5, CPU)
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
        refused(ValueError, message, replay.extend, wrong)
        assert len(replay) == 3


def test_nothing_to_sample() -> None:
    refused(ValueError, "empty", make_replay(10, 5, CPU).sample)
    refused(ValueError, "positive", make_replay, 0, 5, CPU)


# -- as a part of TorchRL ----------------------------------------------------------------------------------------------


PARTS = {
    "ours": lambda: {"storage": TensorRows(10), "writer": RangeWriter(), "sampler": SumTreeSampler(10, eps=0.5)},
    "storage": lambda: {"storage": LazyTensorStorage(10), "sampler": SumTreeSampler(10, eps=0.5)},
    "writer": lambda: {"storage": TensorRows(10), "writer": None, "sampler": SumTreeSampler(10, eps=0.5)},
}


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("kind", [Replay, TensorDictReplayBuffer])
def test_parts_can_be_exchanged_for_torchrls(parts: str, kind: Any) -> None:
    replay = kind(batch_size=200, **PARTS[parts]())
    replay.extend(numbered(0, 7))
    replay.extend(numbered(7, 13))
    replay.update_priority(torch.arange(10), torch.tensor([0.0] * 9 + [31.5]))  # (p + 1/2)**0.6: 8 to 1/2**0.6
    sample = replay.sample()
    assert (sample["action"][:, 0].long() == torch.tensor([10, 11, 12, *range(3, 10)])[sample["index"]]).all()
    share = 8 / (8 + 9 * 0.5**0.6)
    assert (sample["index"] == 9).sum() == pytest.approx(200 * share, abs=1)  # stratified
    ratio = sample["priority_weight"].min() / sample["priority_weight"].max()
    assert float(ratio) == pytest.approx((8 / 0.5**0.6) ** -0.4, rel=1e-5)


@pytest.mark.parametrize("kind", [SliceSampler, SliceSamplerWithoutReplacement])
def test_torchrls_samplers_of_slices_draw_from_it(kind: Any) -> None:
    sampler = kind(slice_len=5, end_key=("next", "done"))
    replay = Replay(storage=TensorRows(100), sampler=sampler, batch_size=20)
    steps = TensorDict({"x": torch.arange(60), "next": {"done": (torch.arange(60) % 20 == 19).unsqueeze(-1)}}, [60])
    replay.extend(steps)
    slices = replay.sample()["x"].reshape(-1, 5)
    assert torch.equal(slices, slices[:, :1] + torch.arange(5))


@pytest.mark.parametrize("prioritized", [False, True])
def test_entries_are_added_one_by_one_too(prioritized: bool) -> None:
    replay = make_replay(2, 4, CPU, sampler="prioritized" if prioritized else "uniform")
    assert [replay.add(row) for row in numbered(0, 3)] == [0, 1, 0]
    assert held(replay) == [2, 1] and set(replay.sample()["action"][:, 0].tolist()) <= {1.0, 2.0}


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="one for 50 does not fit a storage of 100"):
        Replay(storage=TensorRows(100), sampler=SumTreeSampler(50), batch_size=8)
    replay = Replay(storage=TensorRows(10))
    replay.extend(numbered(0, 3))
    refused(ConfigError, "give batch_size", replay.sample)
    SumTreeSampler(5).update_priority(torch.zeros(0, dtype=torch.int64), torch.zeros(0))  # of nothing, changes nothing


def test_transforms_may_be_appended() -> None:
    for sampler in ("uniform", "prioritized"):
        replay = make_replay(10, 64, sampler=sampler)
        replay.append_transform(RewardScaling(loc=1.0, scale=2.0, in_keys=[("next", "reward")]))
        replay.append_transform(DoubleToFloat(in_keys=["wide"], in_keys_inv=[]))
        replay.extend(numbered(0, 7).set("wide", torch.zeros(7, dtype=torch.float64)))
        sample = replay.sample()
        n = sample["action"]
        assert torch.equal(sample["next", "reward"], 1 - 2 * n) and sample["wide"].dtype == torch.float32
        assert torch.equal(sample["index"], n[:, 0].long())
        assert held(replay) == list(range(7)) and ("priority_weight" in sample) == (sampler == "prioritized")
        replay.extend(numbered(0, 30).set("wide", torch.zeros(30, dtype=torch.float64)))
        assert sorted(held(replay)) == list(range(20, 30))


def test_the_storage_keeps_the_books_of_torchrls() -> None:
    """TorchRL's private attributes that ``Rows`` inherits have the same values as in TorchRL's own storage."""
    ours, theirs = TensorRows(10), LazyTensorStorage(10)
    for start, stop in ((0, 4), (4, 10), (2, 5)):
        for each in (ours, theirs):
            each.set(slice(start, stop), numbered(start, stop))
        assert len(ours) == len(theirs) and ours._is_full == theirs._is_full
        assert ours._last_cursor_index == theirs._last_cursor_index == stop - 1
        assert ours._mutation_revision == theirs._mutation_revision
    assert (ours[:] == theirs[:]).all() and (ours.get(3) == theirs.get(3)).all()
    index = torch.tensor([9, 0, 9])
    assert (ours.get(index) == theirs.get(index)).all()


def test_rows_that_are_sequences_come_back_as_torchrls_storage_returns_them() -> None:
    data = TensorDict({"a": torch.randn(6, 4, 2), "next": TensorDict({"b": torch.randn(6, 4)}, [6, 4])}, [6, 4])
    found = []
    for storage in (TensorRows(10), LazyTensorStorage(10)):
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=3)
        buffer.extend(data)
        torch.manual_seed(0)
        found.append(buffer.sample())
    assert found[0].batch_size == found[1].batch_size == (3, 4) and (found[0] == found[1]).all()


def test_dumps_and_loads(tmp_path: Path) -> None:
    replay, other = (make_replay(10, 5, sampler="prioritized") for _ in range(2))
    replay.extend(numbered(0, 8))
    replay.extend(numbered(8, 12))
    replay.update_priority(torch.arange(3), torch.tensor([3.0, 0.0, 7.0]))
    replay.dumps(tmp_path)
    other.extend(numbered(50, 53))
    other.loads(tmp_path)
    assert held(other) == held(replay) and other.sampler.max_priority == 7
    assert torch.equal(other.sampler.tree.values, replay.sampler.tree.values)
    assert other.extend(numbered(12, 13)).tolist() == [2]


def test_a_generator_draws_instead_of_the_global_one() -> None:
    for sampler in (RandomSampler(), SumTreeSampler(10)):
        replay = Replay(storage=TensorRows(10), sampler=sampler, batch_size=5, generator=torch.Generator())
        replay.extend(numbered(0, 10))
        before, drawn = torch.get_rng_state(), []
        for _ in range(2):
            replay.set_rng(torch.Generator().manual_seed(3))
            drawn.append(replay.sample()["index"].tolist())
        assert drawn[0] == drawn[1] and torch.equal(before, torch.get_rng_state())


def test_states_of_the_first_version_are_read() -> None:
    transitions = {"action": torch.arange(4.0)[:, None], "next": {"reward": torch.ones(4, 1)}}
    state = {"transitions": transitions, "cursor": 3, "capacity": 4}
    tree = {
        "tree": {"values": torch.tensor([0.0, 0.0, 2.0, 0.0], dtype=torch.float64)},
        "max_priority": torch.tensor(9.0),
    }
    for sampler in ("uniform", "prioritized"):
        replay = make_replay(4, 5, sampler=sampler)
        replay.load_state_dict(from_file(to_file(state | tree)))
        assert (
            held(replay) == [0, 1, 2, 3] and replay.extend(replay.sample().exclude("index", "priority_weight")[:1]) == 3
        )
    assert replay.sampler.max_priority == 9
    replay.load_state_dict(state | tree)
    assert (replay.sample()["action"] == 2).all()


# -- in files ----------------------------------------------------------------------------------------------------------


def mapped(folder: Path) -> list[str]:
    """Returns the files of a folder that this process has mapped into memory, also those without a name."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


def test_files_hold_it_and_a_killed_process_leaves_none(tmp_path: Path) -> None:
    replay = make_replay(10, 5, storage="LazyMemmapStorage", directory=str(tmp_path))
    replay.extend(numbered(0, 8))
    assert any("action.memmap" in line for line in mapped(tmp_path)) and list(tmp_path.iterdir()) == []
    replay.extend(numbered(8, 12))
    assert replay.storage.leaves["action"].flatten().tolist() == [10, 11, *range(2, 10)]
    sample, state = replay.sample(), from_file(to_file(to_saveable(replay.state_dict())))
    assert all(type(leaf) is torch.Tensor for leaf in sample.values(True, True))
    other = make_replay(10, 5)
    other.load_state_dict(state)
    assert held(other) == held(replay)
    del replay, sample
    gc.collect()
    assert mapped(tmp_path) == []


def test_a_disk_without_room_is_told_before_it_is_written_to(tmp_path: Path) -> None:
    replay = make_replay(10**15, 5, storage="LazyMemmapStorage", directory=tmp_path)
    with pytest.raises(ConfigError, match=r"replay.directory: 1,000,000,000,000,000 rows take .* GB, .* GB left"):
        replay.extend(numbered(0, 2))
    with pytest.raises(ConfigError, match=r"replay.directory: .*absent cannot be written to"):
        MemmapRows(10, directory=tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"agent\.replay_device: LazyMemmapStorage lies on disk"):
        make_replay(10, 5, storage_device="meta", storage="LazyMemmapStorage")


# -- devices and layout ------------------------------------------------------------------------------------------------


def test_a_sample_is_an_ordinary_tensordict() -> None:
    replay = make_replay(10, 5, CPU)
    replay.extend(numbered(0, 10))
    sample = replay.sample()
    assert sample.batch_size == (5,) and sample.device == CPU
    inner = sample["next", "observation"]
    assert isinstance(inner, TensorDict) and inner.batch_size == (5,) and inner.device == CPU
    assert sample[2:].set("more", torch.zeros(3)).reshape(3, 1).shape == (3, 1)
    for key, leaf in numbered(0, 1).items(include_nested=True, leaves_only=True):
        assert sample[key].dtype == leaf.dtype and sample[key].shape[1:] == leaf.shape[1:]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_storage_on_another_device(sampler: str) -> None:
    replay = make_replay(10, 5, "meta", storage_device=CPU, sampler=sampler)
    replay.extend(numbered(0, 7))
    assert held(replay) == list(range(7))
    sample = replay.sample()
    assert sample.device.type == "meta" and all(leaf.is_meta for leaf in sample.values(True, True))
    assert ("priority_weight" in sample) == (sampler == "prioritized")
    assert sample.shape == (5,) and sample["next", "observation", "self"].shape == (5, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_from_pinned_memory_to_a_gpu() -> None:
    replay = make_replay(1000, 64, "cuda", storage_device=CPU)
    replay.extend(numbered(0, 1000).to("cuda"))
    samples = [replay.sample() for _ in range(50)]  # copies in flight must not share their memory
    for sample in samples:
        n = sample["action"][:, 0].long().cpu()
        assert sample.device == torch.device("cuda", 0) and n.unique().numel() > 32
        assert (sample.exclude("index").cpu() == numbered(0, 1000)[n]).all()


class Newest(RandomSampler):
    """Keeps the position that was written last, under a name that the replay buffer has, too."""

    cursor = -1

    def extend(self, index: Any) -> None:
        self.cursor = int(index[-1])

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self.cursor}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.cursor = state_dict["cursor"]


def test_the_state_of_a_sampler_is_its_own() -> None:
    replay, other = (Replay(storage=TensorRows(10), sampler=Newest(), batch_size=5) for _ in range(2))
    replay.extend(numbered(0, 4))
    other.load_state_dict(from_file(to_file(replay.state_dict())))
    assert held(other) == [0, 1, 2, 3] and other.sampler.cursor == 3
    assert other.extend(numbered(4, 5)).tolist() == [4]
