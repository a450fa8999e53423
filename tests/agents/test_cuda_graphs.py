"""Functions recorded as CUDA graphs; on a CPU, a tape of operations stands in for a graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlstack.agents import compilation
from rlstack.agents.compilation import Recorded


class _Tape(TorchDispatchMode):
    """Records operations, and writes into the same tensors when it replays them."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in ("aten::_local_scalar_dense", "aten::nonzero"):
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self.operations:
            again = func(*args, **kwargs)
            if isinstance(again, Tensor) and again.data_ptr() != result.data_ptr():
                result.copy_(again)


class _Stream:
    def wait_stream(self, other: Any) -> None:
        pass


class _Current(_Stream):
    def __init__(self) -> None:
        self.name = _Device.stream


class _Device:
    """What a recording that fails leaves behind: the current stream and a generator that records."""

    stream: Any = "default"
    records = False


@contextmanager
def _recording(graph: _Tape, capture_error_mode: str) -> Iterator[None]:
    assert capture_error_mode == "thread_local"
    before, stream = [entry.clone() for entry in _untouched], _Device.stream
    _Device.stream, _Device.records = "recording", True
    try:
        with graph:
            yield
    except RuntimeError:
        raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
    _Device.stream, _Device.records = stream, False
    for entry, old in zip(_untouched, before):  # recording computes nothing
        entry.copy_(old)


_untouched: list[Tensor] = []


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compilation, "_is_on_gpu", lambda entry: isinstance(entry, Tensor))
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", _Current)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(_Device, "stream", stream.name))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", _Tape)
    monkeypatch.setattr(torch.cuda, "graph", _recording)
    yield
    _untouched.clear()


def test_replays_compute_with_new_inputs_and_change_the_same_state() -> None:
    weight, calls = torch.tensor([2.0, 3.0]), []
    _untouched.append(weight)

    def learn(batch: TensorDict, rate: Tensor) -> dict[str, Tensor]:
        calls.append(1)
        loss = (batch["x"] * weight).sum(-1)
        weight.sub_(rate * batch["x"].mean(0))
        return {"loss": loss}

    recorded, expected, results = Recorded(learn, "a step"), weight.clone(), []
    for k in range(8):
        x, rate = torch.full((3, 2), float(k)), torch.tensor(0.1 / (k + 1))
        wanted = (x * expected).sum(-1)
        expected -= rate * x.mean(0)
        results.append((recorded(TensorDict({"x": x}, [3]), rate)["loss"], wanted))
        torch.testing.assert_close(weight, expected)
    assert len(calls) == 4, "three times to warm up, once to record"
    for found, wanted in results:  # none is overwritten by a later one
        torch.testing.assert_close(found, wanted)


def test_each_layout_has_its_recording_up_to_a_number() -> None:
    calls: list[int] = []

    def double(x: Tensor) -> Tensor:
        calls.append(len(x))
        return 2 * x

    recorded = Recorded(double, "doubling")
    for size in (1, 2, 3, 4, 5):
        for k in range(6):
            assert recorded(torch.full((size,), float(k))).tolist() == [2.0 * k] * size
    assert [calls.count(size) for size in (1, 2, 3, 4, 5)] == [4, 4, 4, 4, 6]


def test_what_cannot_be_recorded_goes_on_without_and_leaves_nothing_behind() -> None:
    def looks(x: Tensor) -> Tensor:
        assert not _Device.records or _Device.stream == "recording", "offset increment outside graph capture"
        return x if float(x.sum()) > 0 else -x

    recorded = Recorded(looks, "a look")
    for _ in range(3):
        recorded(torch.tensor([1.0]))
    told = r"^a look is not recorded as a CUDA graph: operation not permitted .* \(test_cuda_graphs.py, line \d+: "
    with pytest.warns(UserWarning, match=told):
        assert recorded(torch.tensor([-1.0])).tolist() == [1.0]
    assert recorded(torch.tensor([-2.0])).tolist() == [2.0]
    assert (_Device.stream, _Device.records) == ("default", False)


def test_on_a_cpu_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    calls: list[int] = []
    recorded = Recorded(lambda x: calls.append(1) or x, "nothing")
    for _ in range(6):
        recorded(torch.zeros(1))
    assert len(calls) == 6
