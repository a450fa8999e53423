"""Compiled functions, and functions recorded as CUDA graphs: one launch instead of hundreds, without waiting."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from rlstack.envs.compilation import Compiled

_WARM_UP = 3  # calls on a separate stream before recording, during which libraries choose their algorithms
_LAYOUTS = 4  # recordings kept; each takes memory


class CannotCompile(Exception):
    """Raised when an agent cannot run as compiled code; the message says why."""


@dataclass(frozen=True)
class Compiler:
    """Compiles functions of an agent, or records them as CUDA graphs.

    Attributes:
        backend: backend of ``torch.compile``.
        compiles: whether to compile; False only records graphs.
        graphs: whether to record CUDA graphs as well.
        varying: whether batches differ in size from call to call; otherwise code is made for one size.
    """

    backend: str = "inductor"
    compiles: bool = True
    graphs: bool = False
    varying: bool = False

    def __call__(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        """Returns a faster function of tensors or nested dicts of tensors, with the same results up to rounding."""
        quick: Callable[..., Any] = function
        if self.compiles:
            quick = Compiled(function, what, self.backend, dynamic=True if self.varying else None)
        return Recorded(quick, what) if self.graphs else quick


def trace_gradients() -> None:
    """Lets compiled functions compute gradients inside themselves.

    Raises:
        CannotCompile: this version of torch does not support it.
    """
    import torch._dynamo

    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        raise CannotCompile(f"torch {torch.__version__} cannot compile gradients, 2.13 can")
    torch._dynamo.config.trace_autograd_ops = True


class Recorded:
    """A function of tensors on a GPU, recorded once for each layout of its arguments, and replayed after that.

    Tensors that the function uses without taking them as arguments (parameters, moments) must stay the same objects.
    Random numbers continue from replay to replay, because torch registers its default generator with graphs. Once the
    limit of layouts is reached, further layouts, like arguments on a CPU, are computed without a recording.

    Args:
        function: takes and returns tensors, or nested dicts, tensordicts and lists of them; no gradient flows through
            them.
        what: name of the function in messages.
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
        except RuntimeError as error:  # something in it waits for the GPU, or allocates memory by itself
            if recording.graph is not None:
                raise
            self._failed = True
            first = error.__context__  # the end of a recording that has failed raises an error of its own
            error = first if isinstance(first, RuntimeError) else error
            at, told = traceback.extract_tb(error.__traceback__)[-1], str(error).splitlines()[0]
            where = f"{Path(at.filename).name}, line {at.lineno}: {at.line}"
            warnings.warn(f"{self.what} is not recorded as a CUDA graph: {told} ({where})", stacklevel=2)
            return self.function(*arguments)


def _is_on_gpu(entry: Any) -> bool:
    return isinstance(entry, Tensor) and entry.is_cuda


class _Recording:
    """The recording of a function for one layout of arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._calls = function, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, tensors: list[Tensor], structure: Any) -> Any:
        self._calls += 1
        if self._calls <= _WARM_UP:
            stream, here = torch.cuda.Stream(), torch.cuda.current_stream()
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                results = self._function(*tree_unflatten(tensors, structure))
            here.wait_stream(stream)
            return results
        if self.graph is None:
            self._record(tensors, structure)
        else:
            torch._foreach_copy_(self._inputs, tensors)
        assert self.graph is not None
        self.graph.replay()
        # Copies: the next replay writes into the same memory.
        results = [entry.clone() if isinstance(entry, Tensor) else entry for entry in self._outputs]
        return tree_unflatten(results, self._shape)

    def _record(self, tensors: list[Tensor], structure: Any) -> None:
        self._inputs = [entry.clone() for entry in tensors]
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                results = self._function(*tree_unflatten(self._inputs, structure))
        except BaseException:
            # Torch stays on the recording's stream, and its generator in the mode of recording until one succeeds.
            torch.cuda.set_stream(stream)
            with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
                self._inputs[0].clone()
            raise
        self._outputs, self._shape = tree_flatten(results)
        self.graph = graph
