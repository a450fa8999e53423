"""A recording on the CPU that stands in for a CUDA graph: recording computes nothing, a replay every operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchrl.modules.distributions import continuous

from rlstack.data import graphs
from rlstack.envs.foundation import tensors
from tests.host_waits import asks_the_host, place


class Tape(TorchDispatchMode):
    """Has the methods of :class:`rlstack.data.graphs.CudaGraph`.

    What a GPU could not record raises the error that torch raises there.
    """

    recording = False

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self._generators = [torch.default_generator, *generators]
        self._operations: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self._made: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    @staticmethod
    def warm_up(function: Callable[[], Any]) -> Any:
        return function()

    @staticmethod
    def lane(device: torch.device, own: bool = True) -> Callable[[], None]:
        return lambda: None

    def record(self, function: Callable[[], Any]) -> Any:
        drawn = [generator.get_state() for generator in self._generators]
        Tape.recording = True
        try:
            with self:
                return function()
        finally:
            Tape.recording = False
            for generator, state in zip(self._generators, drawn):
                generator.set_state(state)
            for whole, old in self._before.values():
                whole.copy_(old)

    def replay(self) -> None:
        with torch.no_grad():
            for function, args, kwargs, results in self._operations:
                found = tree_leaves(function(*args, **kwargs))
                for number, result in results:
                    result.copy_(found[number])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if asks_the_host(func, args):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func._schema.name} {place()}")
        schema = func._schema
        for number, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[number] if number < len(args) else kwargs.get(argument.name)
                for changed in (part for part in tree_leaves(given) if isinstance(part, Tensor)):
                    memory = changed.untyped_storage()
                    if memory.data_ptr() not in self._made and memory.data_ptr() not in self._before:
                        whole = torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory)
                        self._before[memory.data_ptr()] = (whole, whole.clone())
        found = func(*args, **kwargs)
        aliased = [value.alias_info is not None for value in schema.returns]
        results = []
        if not any(aliased):
            results = [(number, part) for number, part in enumerate(tree_leaves(found)) if isinstance(part, Tensor)]
            self._made |= {part.untyped_storage().data_ptr() for _, part in results}
        if results or any(
            argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments
        ):
            self._operations.append((func, args, kwargs, results))
        return found


@contextmanager
def rehearsing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A context in which a CPU computes and records as a GPU does."""
    with monkeypatch.context() as patch:
        patch.setattr(tensors, "FREE", set())
        patch.setitem(graphs.GRAPHS, "cpu", Tape)
        # What TorchRL asks before it reads tensors on the host.
        patch.setattr(continuous, "safe_is_current_stream_capturing", lambda: Tape.recording)
        yield
