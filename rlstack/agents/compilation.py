"""How an agent's functions are compiled and recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlstack.envs.compilation import Compiled


class CannotCompile(Exception):
    """Raised when an agent's learning cannot be compiled or recorded; the message says why."""


@dataclass(frozen=True)
class Compiler:
    """Compiles functions of an agent.

    Attributes:
        backend: backend of ``torch.compile``.
        compiles: whether to compile; False only records graphs.
        graphs: whether steps and updates are recorded as CUDA graphs (:class:`~rlstack.data.graphs.Recorded`). Then
            losses are compiled, not whole updates.
        varying: whether batches differ in size from call to call; otherwise code is made for one size.
    """

    backend: str = "inductor"
    compiles: bool = True
    graphs: bool = False
    varying: bool = False

    def __call__(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        """Returns a faster function of tensors or nested dicts of tensors, with the same results up to rounding."""
        if not self.compiles:
            return function
        return Compiled(function, what, self.backend, dynamic=True if self.varying else None)


def trace_gradients() -> None:
    """Lets compiled functions compute gradients inside themselves.

    Raises:
        CannotCompile: this version of torch does not support it.
    """
    import torch._dynamo

    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        raise CannotCompile(f"torch {torch.__version__} cannot compile gradients, 2.13 can")
    torch._dynamo.config.trace_autograd_ops = True
