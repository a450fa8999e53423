"""Compiled functions, and functions recorded as CUDA graphs: one launch in place of hundreds, without a wait."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from envs.compilation import Compiled

_WARM_UP = 3  # calls on a stream of their own before recording, as libraries choose their algorithms then
_LAYOUTS = 4  # recordings kept; each takes memory


class CannotCompile(Exception):
    """An agent cannot run as compiled code; the message says why."""


@dataclass(frozen=True)
class Compiler:
    """Compiles functions of an agent, or records them as CUDA graphs.

    Attributes:
        backend: of ``torch.compile``.
        compiles: with it; False only records graphs.
        graphs: record CUDA graphs, too.
        varying: batches differ in size from call to call; otherwise code is made for one size.
    """

    backend: str = "inductor"
    compiles: bool = True
    graphs: bool = False
    varying: bool = False

    def __call__(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        """The function, of tensors or nested dicts of tensors, with the same results but for rounding."""
        quick: Callable[..., Any] = function
        if self.compiles:
            quick = Compiled(function, what, self.backend, dynamic=True if self.varying else None)
        return Recorded(quick, what) if self.graphs else quick


def trace_gradients() -> None:
    """Lets a compiled function take gradients within itself.

    Raises:
        CannotCompile: this torch does not know how.
    """
    import torch._dynamo

    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        raise CannotCompile(f"torch {torch.__version__} cannot compile gradients, 2.13 can")
    torch._dynamo.config.trace_autograd_ops = True


class Recorded:
    """A function of tensors on a GPU, recorded once for each layout of its arguments, replayed ever after.

    Tensors that the function reaches by itself (parameters, moments) must stay the same objects. Random numbers go on
    from replay to replay: torch tells graphs of its default generator. Arguments of more layouts than are kept, or on
    a CPU, are computed without a recording.

    Args:
        function: arguments and results are tensors, or nested dicts, tensordicts and lists of them; no gradient
            leads from or to them.
        what: it is, for messages.
    """

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        self.function, self.what = function, what
        self._recordings: dict[Any, _Recording] = {}
        self._failed = False

    def __call__(self, *arguments: Any) -> Any:
        tensors, structure = tree_flatten(arguments)
        if self._failed or not all(map(_is_on_gpu, tensors)):
            return self.function(*arguments)
        layout = (str(structure), tuple((entry.shape, entry.dtype) for entry in tensors))
        recording = self._recordings.get(layout)
        if recording is None:
            if len(self._recordings) == _LAYOUTS:
                return self.function(*arguments)
            recording = self._recordings[layout] = _Recording(self.function)
        try:
            return recording(tensors, structure)
        except RuntimeError as error:  # something in it waits for the GPU, or asks for memory in a way of its own
            if recording.graph is not None:
                raise
            self._failed = True
            warnings.warn(f"{self.what} is not recorded as a CUDA graph: {str(error).splitlines()[0]}", stacklevel=2)
            return self.function(*arguments)


def _is_on_gpu(entry: Any) -> bool:
    return isinstance(entry, Tensor) and entry.is_cuda


class _Recording:
    """For arguments of one layout."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._calls = function, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, tensors: list[Tensor], structure: Any) -> Any:
        self._calls += 1
        if self._calls <= _WARM_UP:
            return self._aside(tensors, structure)
        if self.graph is None:
            self._record(tensors, structure)
        else:
            torch._foreach_copy_(self._inputs, tensors)
        assert self.graph is not None
        self.graph.replay()
        # Copies: the next replay writes into the same memory.
        results = [entry.clone() if isinstance(entry, Tensor) else entry for entry in self._outputs]
        return tree_unflatten(results, self._shape)

    def _aside(self, tensors: list[Tensor], structure: Any) -> Any:
        stream, here = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            results = self._function(*tree_unflatten(tensors, structure))
        here.wait_stream(stream)
        return results

    def _record(self, tensors: list[Tensor], structure: Any) -> None:
        self._inputs = [entry.clone() for entry in tensors]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = self._function(*tree_unflatten(self._inputs, structure))
        self._outputs, self._shape = tree_flatten(results)
        self.graph = graph
