import errno
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchrl.envs.utils import step_mdp

import rlstack
from rlstack.runs.checkpoint import CheckpointError, CheckpointStore, UnreadableError, read_checkpoint
from rlstack.runs.run_directory import RunDirectory
from tests.conftest import REPO
from tests.refusals import refused


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return type(a) is type(b) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


STATE: dict[str, Any] = {
    "agent": {"weight": torch.arange(6.0).reshape(2, 3), "half": torch.ones(2, dtype=torch.bfloat16)},
    "optimizer": {"state": {0: {"step": torch.tensor(3)}}, "groups": [{"lr": 1e-3, "betas": (0.9, 0.99)}]},
    "rng": torch.arange(8, dtype=torch.uint8),
    "numpy_rng": 2**127 + 1,
    "mask": torch.tensor([True, False]),
    "empty": torch.zeros(0, 4),
    "flags": [True, None, "§"],
}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    path = store.save(STATE, 1_000)
    assert path.name == "checkpoint_000000001000.pt" and names(path.parent) == [path.name]
    payload = torch.load(path, weights_only=True)  # torch alone opens it, without unpickling objects
    assert payload["frames"] == 1_000
    for loaded in (store.load(), read_checkpoint(path), payload["state"]):
        assert same(STATE, loaded)


def test_a_view_drags_neither_its_storage_nor_a_parameter_its_gradient_along(tmp_path: Path) -> None:
    buffer = torch.rand(1_000_000)
    path = CheckpointStore(tmp_path).save({"first": buffer[:10], "raw": nn.Parameter(buffer[:10])}, 0)
    assert path.stat().st_size < 10_000
    for loaded in read_checkpoint(path).values():
        assert type(loaded) is torch.Tensor and not loaded.requires_grad and torch.equal(loaded, buffer[:10])


def test_rotation_keeps_the_latest_and_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for frames in (10, 20, 30, 40):
        store.save({"frames": frames}, frames, best=frames in (10, 20))
    assert names(tmp_path) == ["best.pt", "checkpoint_000000000030.pt", "checkpoint_000000000040.pt"]
    assert read_checkpoint(tmp_path / "best.pt") == {"frames": 20}
    assert store.latest() == tmp_path / "checkpoint_000000000040.pt"


def test_the_best_is_saved_again_at_the_same_frame_and_is_a_file_of_its_own(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save({"x": 1}, 10, best=True)
    path = store.save({"x": 2}, 10, best=True)
    assert names(tmp_path) == ["best.pt", "checkpoint_000000000010.pt"]
    assert read_checkpoint(tmp_path / "best.pt") == {"x": 2}
    (tmp_path / "best.pt").write_bytes(b"another file, copied over it")
    assert read_checkpoint(path) == {"x": 2}


def test_a_run_never_goes_on_from_a_best_checkpoint_that_best_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.save({"x": 1}, 10, best=True)

    def fails(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", fails)
    refused(OSError, "No space left", store.save, {"x": 2}, 20, best=True)
    assert store.load() == {"x": 1} and names(tmp_path) == ["best.pt", "checkpoint_000000000010.pt"]
    assert read_checkpoint(tmp_path / "best.pt") == {"x": 2}


def test_an_abandoned_future_is_removed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    for frames in (10, 20, 30):
        store.save({"x": frames}, frames)
    store.save({"x": "resumed"}, 15)  # resumed from 10
    assert names(tmp_path) == ["checkpoint_000000000010.pt", "checkpoint_000000000015.pt"]
    assert store.load() == {"x": "resumed"}


def test_files_of_other_names_are_never_removed(tmp_path: Path) -> None:
    for name in ("checkpoint_mine.pt", "notes.txt"):
        (tmp_path / name).write_text("keep me")
    store = CheckpointStore(tmp_path, keep=1)
    store.save({}, 1)
    store.save({}, 2)
    assert names(tmp_path) == ["checkpoint_000000000002.pt", "checkpoint_mine.pt", "notes.txt"]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [{"b": np.zeros(2)}]}, r"^state\['a'\]\[0\]\['b'\]: cannot save a numpy.ndarray, only tensors"),
        ({"a": {"f": np.float64(1)}}, r"^state\['a'\]\['f'\]: cannot save a numpy.float64"),
        ({"a": {1}}, r"^state\['a'\]: cannot save a builtins.set"),
        ({"a": {(1, 2): 3}}, r"^state\['a'\]: key \(1, 2\) is neither a string nor an integer"),
        ({"a": torch.zeros(2, device="meta")}, r"^state\['a'\]: cannot save this tensor"),
        ({"a": torch.eye(2).to_sparse()}, r"^state\['a'\]: cannot save this tensor"),
        ({"a": lambda: 0}, r"^state\['a'\]: cannot save a builtins.function"),
    ],
)
def test_other_types_are_refused_before_anything_is_written(
    tmp_path: Path, state: dict[str, Any], message: str
) -> None:
    refused(CheckpointError, message, CheckpointStore(tmp_path / "new").save, state, 0)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), r"No space left on device: .*checkpoint_000000000020.pt"),
        (KeyboardInterrupt(), None),
    ],
)
def test_a_failing_or_interrupted_write_leaves_the_earlier_checkpoint_alone(
    error: BaseException, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.save({"x": 1}, 10)

    def half(payload: Any, file: Any) -> None:
        file.write(b"half")
        raise error

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(type(error), match=told):
        store.save({"x": 2}, 20)
    assert names(tmp_path) == ["checkpoint_000000000010.pt"] and store.load() == {"x": 1}


def test_every_truncation_is_detected(tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path).save(STATE, 0)
    content = path.read_bytes()
    for length in [0, 1, 100, len(content) // 2, len(content) - 30, len(content) - 1]:
        path.write_bytes(content[:length])
        refused(CheckpointError, "truncated, corrupted", read_checkpoint, path)


def test_a_flipped_bit_never_changes_what_is_loaded(tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path).save(STATE, 0)
    content = path.read_bytes()
    rng = random.Random(0)
    detected = 0
    for position in rng.sample(range(len(content)), 100):
        damaged = bytearray(content)
        damaged[position] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            assert same(read_checkpoint(path), STATE)  # padding and timestamps hold no content
        except CheckpointError:
            detected += 1
    assert detected > 15
    weights = content.find(np.arange(6, dtype=np.float32).tobytes())
    path.write_bytes(content[: weights + 5] + b"!" + content[weights + 6 :])
    refused(CheckpointError, "does not match its checksum", read_checkpoint, path)


def test_what_no_checksum_covers_is_checked_too(tmp_path: Path) -> None:
    """Torch does not read a record with the directory attribute; content is checked with our own digest."""
    path = CheckpointStore(tmp_path).save(STATE, 0)
    content = bytearray(path.read_bytes())
    content[content.find(b"PK\x01\x02", content.find(b"PK\x01\x02") + 1) + 38] ^= 0x10  # of the second record
    path.write_bytes(content)
    refused(CheckpointError, "a record is marked as a folder", read_checkpoint, path)
    payload = torch.load(CheckpointStore(tmp_path).save(STATE, 1), weights_only=True)
    torch.save({**payload, "state": {**payload["state"], "more": 1}}, path)
    refused(CheckpointError, "its content does not match its digest", read_checkpoint, path)


def test_files_of_earlier_versions_have_no_digest(tmp_path: Path) -> None:
    torch.save({"format": "rlstack-checkpoint", "version": 1, "frames": 3, "state": {"x": 1}}, tmp_path / "old.pt")
    assert read_checkpoint(tmp_path / "old.pt") == {"x": 1}


@pytest.mark.parametrize(
    ("at", "error", "why"),
    [
        ("zipfile.ZipFile", OSError(errno.EIO, "Input/output error"), "Input/output error"),
        ("zipfile.ZipFile", OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        ("torch.load", MemoryError(), "the memory is full"),
        ("torch.load", RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "the memory is full"),
        ("hashlib.sha256", MemoryError(), "the memory is full"),
        ("os.listdir", PermissionError(errno.EACCES, "Permission denied"), "Permission denied"),
    ],
)
def test_what_may_be_intact_is_not_taken_for_damaged(
    at: str, error: Exception, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.save({"x": 1}, 10)
    store.save({"x": 2}, 20)

    def failing(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch, pytest.raises(UnreadableError, match=rf"cannot be read \({why}\)"):
        patch.setattr(at, failing)
        store.load()
    assert store.load() == {"x": 2} and len(names(tmp_path)) == 2


def test_the_newest_sound_one_is_loaded_and_the_best_is_the_last_resort(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    refused(CheckpointError, "no checkpoint", store.load)
    paths = [store.save({"x": x}, 10 * x, best=x == 1) for x in (1, 2, 3)]
    paths[2].write_bytes(paths[2].read_bytes()[:-40])
    with pytest.warns(UserWarning, match=r"checkpoint_000000000030\.pt: truncated.*; trying an older"):
        assert store.load() == {"x": 2}
    paths[0].unlink()
    paths[1].write_bytes(b"")
    with pytest.warns(UserWarning, match="trying an older"):
        assert store.load() == {"x": 1}
    (tmp_path / "best.pt").write_bytes(b"")
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="none of 3 checkpoints is sound"):
        store.load()


def test_not_a_checkpoint_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    refused(CheckpointError, "no such checkpoint", read_checkpoint, path)
    refused(CheckpointError, f"{tmp_path}: no checkpoint", CheckpointStore(tmp_path).load)
    path.write_text("hello")
    refused(CheckpointError, "not a checkpoint", read_checkpoint, path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "hello")
    refused(CheckpointError, "not a checkpoint of rlstack", read_checkpoint, path)
    torch.save({"weights": torch.zeros(2)}, path)
    refused(CheckpointError, r"not a checkpoint of rlstack$", read_checkpoint, path)
    torch.save({"format": "rlstack-checkpoint", "version": 99, "state": {}}, path)
    refused(CheckpointError, "format version 99, this program reads version 1", read_checkpoint, path)
    for payload in ({}, {"state": [1]}):
        torch.save({"format": "rlstack-checkpoint", "version": 1, **payload}, path)
        refused(CheckpointError, "it holds no state", read_checkpoint, path)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_torchscript_file_is_told_from_a_checkpoint(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    torch.jit.save(torch.jit.trace(nn.Tanh(), torch.zeros(1)), str(tmp_path / "policy.pt"))
    recwarn.clear()
    with pytest.raises(CheckpointError, match=r"a TorchScript program, .* agent=legacy agent\.kind=torchscript"):
        read_checkpoint(tmp_path / "policy.pt")
    assert not recwarn.list


# -- checkpoints of an earlier version load, act as they did then, and go on training -----------------------------


FROZEN = REPO / "tests" / "fixtures" / "checkpoints"
CASES = sorted(path.stem for path in FROZEN.glob("*.pt"))
assert len(CASES) == 10


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_of_an_earlier_version_acts_as_it_did(case: str) -> None:
    """Compares the greedy actions after the first reset of four worlds, and after that step."""
    own = {"greedy": "mode"} if case == "rocket" else None  # its recipe samples
    loaded = rlstack.load(FROZEN / f"{case}.pt", agent=own)
    env, policy = loaded.make_env(4, seed=11), loaded.agent.policy(explore=False)
    key = loaded.agent.interface.key("action")
    with torch.no_grad():
        first = env.step(policy(env.reset()))
        second = policy(step_mdp(first))
    env.close()
    found = torch.stack([first.get(key), second.get(key)]).numpy()
    np.testing.assert_allclose(found, np.load(FROZEN / "actions.npz")[case], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_of_an_earlier_version_goes_on(case: str, tmp_path: Path) -> None:
    state = read_checkpoint(FROZEN / f"{case}.pt")
    run = RunDirectory.create(str(tmp_path / "run"), case, 3)
    run.write_config(state["config"])
    (run.path / "checkpoints").mkdir()
    shutil.copy(FROZEN / f"{case}.pt", run.path / "checkpoints" / f"checkpoint_{state['frames']:012d}.pt")
    assert rlstack.load(rlstack.train(resume=str(run.path), total_frames=500, quiet=True)).frames >= 500
