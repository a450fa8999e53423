"""Functions recorded as CUDA graphs; on a CPU, a tape of operations stands in for a graph."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.torch_version import TorchVersion

from rlstack.data import graphs
from rlstack.data.graphs import CudaGraph, Recorded
from tests.rehearsal import Tape

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _rehearse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(graphs.GRAPHS, "cpu", Tape)


class Pair(NamedTuple):
    older: Tensor
    newer: Tensor


class Slots:
    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = torch.zeros(3)


def _summing() -> Callable[[Tensor], Tensor]:
    total = torch.zeros(3)

    def add(x: Tensor) -> Tensor:
        nonlocal total
        total = total + x
        return total

    return add


class Walk:
    """Changes its state in all the ways that objects do: in place, by replacing tensors, in tuples and by counting."""

    def __init__(self) -> None:
        self.latest, self.inside, self.add = deque([torch.zeros(3)], maxlen=2), Slots(), _summing()
        self.place, self.pace = torch.zeros(3), torch.ones(3)
        self.seen, self.shown = Pair(torch.ones(2), torch.ones(2)), TensorDict({"a": torch.zeros(2)}, [2])
        self.steps, self.generator = 0, torch.Generator().manual_seed(3)

    def step(self, push: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.place = 2 * self.place + push + torch.rand(3) + torch.rand(3, generator=self.generator)
        self.pace.mul_(1.5)
        self.latest.append(self.latest[-1] + push)
        self.inside.last = self.inside.last + self.latest[0] + self.add(push)
        self.seen = Pair(self.seen.newer, self.seen.older + 1)
        self.shown = TensorDict({"a": self.seen.newer * 2}, [2])
        self.steps += 1
        return self.place, self.seen.older, self.pace.sum() + self.inside.last


def _walked(wrap: Callable[[Walk], Any], jump: int = -1) -> tuple[list[Any], Walk]:
    torch.manual_seed(0)
    walk, told = Walk(), []
    step = wrap(walk)
    for k in range(8):
        if k == jump:  # as a checkpoint that is loaded
            walk.place, walk.seen = torch.full((3,), 7.0), Pair(torch.zeros(2), torch.ones(2))
        told.append([part.clone() for part in step(torch.full((3,), float(k)))])
    return told, walk


@pytest.mark.parametrize("jump", [-1, 2, 6])
def test_replays_are_calls(jump: int) -> None:
    wanted, one = _walked(lambda walk: walk.step, jump)
    found, other = _walked(lambda walk: Recorded(walk.step, "a walk", (walk,), CPU), jump)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    for name in ("place", "pace", "seen", "steps"):
        torch.testing.assert_close(getattr(other, name), getattr(one, name), rtol=0, atol=0)
    assert torch.equal(other.shown["a"], one.shown["a"])


def test_nobody_elses_tensors_are_overwritten() -> None:
    walk = Walk()
    step, kept = Recorded(walk.step, "a walk", (walk,), CPU), []
    given = torch.ones(3)
    for _ in range(6):
        kept.append((walk.place, walk.place.clone()) if not step.replays else (given, torch.ones(3)))
        step(given)
    assert step.replays and all(torch.equal(tensor, content) for tensor, content in kept)


_calls: list[int] = []


def test_each_layout_has_its_recording_up_to_a_number() -> None:
    def double(x: Tensor, plus: int) -> Tensor:
        _calls.append(len(x))
        return 2 * x + plus

    recorded = Recorded(double, "doubling", (), CPU)
    for size in range(1, 11):
        for k in range(6):
            assert recorded(torch.full((size,), float(k)), size % 2).tolist() == [2.0 * k + size % 2] * size
    assert [_calls.count(size) for size in range(1, 11)] == [4] * 8 + [6, 6]


def test_what_is_recorded_inside_is_part_of_the_whole() -> None:
    inner = Recorded(lambda x: x + 1, "one more", (), CPU)
    outer = Recorded(lambda x: 2 * inner(x), "twice", (), CPU)
    for k in range(6):
        assert outer(torch.tensor(float(k))) == 2 * k + 2
    assert outer.replays and not inner.replays


class Odd:
    """Does what a replay would not repeat."""

    def __init__(self) -> None:
        self.steps, self.place, self.word = 0, torch.zeros(2), "a"
        self.elsewhere, self.all = torch.zeros(1, device="meta"), {0: self.place}

    def looks(self) -> Tensor:
        self._go_on()
        return self.place if float(self.place.sum()) > 0 else -self.place

    def grows(self) -> Tensor:
        self._go_on()
        self.place = torch.cat((self.place, self.place[:1]))
        return self.place

    def renames(self) -> Tensor:
        self._go_on()
        self.word += "a"
        return self.place

    def gathers(self) -> Tensor:
        self._go_on()
        self.all[self.steps] = self.place
        return self.place

    def counts(self) -> Tensor:
        self._go_on()
        self.elsewhere += 1
        return self.place

    def rolls(self) -> Tensor:
        self._go_on()
        return self.place * random.random()

    def _go_on(self) -> None:
        self.steps += 1
        self.place = self.place + torch.rand(())


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("looks", r"operation not permitted .*_local_scalar_dense tests/data/test_graphs.py:\d+"),
        ("grows", r"it changes 'place' from \[5\] to \[6\]"),
        ("renames", "it changes 'word' from 'aaaa' to 'aaaaa'"),
        ("gathers", "it adds 4"),
        ("counts", "it changes 'elsewhere' on another device: meta"),
        ("rolls", "it draws random numbers of Python or NumPy"),
    ],
)
def test_what_cannot_be_recorded_is_told_once_and_goes_on_as_it_was(name: str, told: str) -> None:
    results = []
    for wrap in (lambda odd: getattr(odd, name), lambda odd: Recorded(getattr(odd, name), "a look", (odd,), CPU)):
        torch.manual_seed(0)
        random.seed(0)
        odd = Odd()
        step: Any = wrap(odd)
        results.append([step().clone() for _ in range(3)])
        with (
            pytest.warns(UserWarning, match=f"^a look is not recorded as a CUDA graph: {told}")
            if isinstance(step, Recorded)
            else nullcontext()
        ):
            results[-1].append(step().clone())
        results[-1] += [step().clone() for _ in range(2)]
        assert odd.steps == 6
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize("own", [True, False])
def test_numbers_that_the_cpu_draws_for_a_gpu_are_not_recorded(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(graphs.GRAPHS, "meta", Tape)  # a device that is not the CPU
    results = []
    for device in ("meta", "xpu"):  # which has no recordings
        generator = torch.Generator().manual_seed(0) if own else torch.default_generator.manual_seed(0)
        draw = Recorded(partial(torch.rand, 2, generator=generator), "a draw", (), torch.device(device))
        with (
            pytest.warns(UserWarning, match="it draws random numbers of torch on the CPU$")
            if device == "meta"
            else nullcontext()
        ):
            results.append([draw() for _ in range(6)])
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_elsewhere_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(graphs.GRAPHS, "cpu")
    calls: list[int] = []
    recorded = Recorded(lambda x: calls.append(1) or x, "nothing", (), CPU)
    for _ in range(6):
        recorded(torch.zeros(1))
    assert len(calls) == 6


def test_all_warm_ups_on_a_gpu_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        device = torch.device("cuda", 0)

        def wait_stream(self, other: Stream) -> None:
            self.after = other

    here, used = Stream(), list[Stream]()

    def on(stream: Stream) -> Any:
        used.append(stream)
        return nullcontext()

    monkeypatch.setattr(CudaGraph, "_streams", {})
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: here)
    monkeypatch.setattr(torch.cuda, "stream", on)
    assert [CudaGraph.warm_up(lambda: 3) for _ in range(2)] == [3, 3]
    assert used[0] is used[1] is not here
    assert here.after is used[0] and used[0].after is here


def test_two_lanes_of_a_gpu_share_neither_streams_nor_states_of_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings are made on a stream that is nobody else's, and keep its workspace of cuBLAS."""
    now: dict[str, Any] = {"stream": "default", "recorded on": []}

    class Generator:
        state = "of the caller"

        def clone_state(self) -> str:
            return f"clone of what was {self.state}"

        def graphsafe_get_state(self) -> str:
            return self.state

        def graphsafe_set_state(self, state: str) -> None:
            self.state = state

    @contextmanager
    def recording(graph: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        now["recorded on"].append(stream)
        yield

    streams, generators = count(), (Generator(), Generator())
    fakes = {
        "Stream": lambda device: f"stream {next(streams)}",
        "synchronize": lambda device: None,
        "current_stream": lambda device=None: now["stream"],
        "set_stream": lambda stream: now.__setitem__("stream", stream),
        "default_generators": generators,
        "graph": recording,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: None)
    monkeypatch.setattr(CudaGraph, "_lanes", {})
    back, *lanes = (CudaGraph.lane(torch.device("cuda:0"), own) for own in (False, True, True))
    seen = []
    for enter in (*lanes, lanes[0]):
        enter()
        assert CudaGraph.warm_up(lambda: now["stream"]) == now["stream"], "a lane needs no other stream to warm up on"
        CudaGraph([]).record(lambda: None)
        seen.append((now["stream"], now["recorded on"][-1]))
    assert seen[0] == seen[2] and len({*seen[0], *seen[1]}) == 4
    assert all(generator.state.startswith("clone") for generator in generators)
    back()
    assert now["stream"] == "default" and {generator.state for generator in generators} == {"of the caller"}


def test_each_recording_on_a_gpu_has_a_workspace_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of one frees the workspace of its stream (pytorch/pytorch#193402), which no other may have then."""
    workspaces: dict[str, int] = {}  # of streams: the number of the recording in whose memory it is
    numbers, current = count(), list[int]()

    class Graph:
        def __init__(self) -> None:
            self.number = next(numbers)

        def __del__(self) -> None:
            workspaces.clear()

    @contextmanager
    def recording(graph: Graph, stream: Any, capture_error_mode: str) -> Iterator[None]:
        current.append(graph.number)
        yield

    def multiplies() -> tuple[int, int]:
        return current[-1], workspaces.setdefault("stream of all recordings", current[-1])

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "default")
    monkeypatch.setattr(torch, "zeros", lambda *size, device: multiplies())
    kept = [CudaGraph([]), CudaGraph([])]
    for graph in kept:
        own, workspace = graph.record(multiplies)
        assert own == workspace


@pytest.mark.parametrize(("version", "registered"), [("2.11.0+cu128", True), ("2.13.0", True), ("2.14.1", False)])
def test_generators_are_registered_where_torch_does_not_do_it(
    monkeypatch: pytest.MonkeyPatch, version: str, registered: bool
) -> None:
    """Torch 2.14 warns of the call as of a deprecated one."""
    generator, calls = SimpleNamespace(device=torch.device("cuda"), get_state=lambda: None), list[Any]()
    graph = SimpleNamespace(register_generator_state=calls.append)
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "default")
    monkeypatch.setattr(torch, "zeros", lambda *size, device: None)
    CudaGraph([generator]).record(lambda: None)  # type: ignore[list-item]
    assert (generator in calls) == registered


def test_a_recording_that_fails_on_a_gpu_leaves_stream_and_generators_behind_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state: dict[str, Any] = {"stream": "default", "records": False}

    class Graph:
        def register_generator_state(self, generator: Any) -> None:
            pass

    @contextmanager
    def recording(graph: Graph, stream: Any, capture_error_mode: str) -> Iterator[None]:
        assert stream is None and capture_error_mode == "thread_local"
        before, state["stream"], state["records"] = state["stream"], "recording", True
        yield  # an error leaves both
        state["stream"], state["records"] = before, False

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: state["stream"])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: state.__setitem__("stream", stream))
    monkeypatch.setattr(torch, "zeros", lambda *size, device: None)

    def fails() -> None:
        raise RuntimeError("operation not permitted")

    with pytest.raises(RuntimeError, match=r"^operation not permitted$"):
        CudaGraph([]).record(fails)
    assert state == {"stream": "default", "records": False}
