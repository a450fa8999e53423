"""An agent's updates and its policy as compiled code, and as recorded CUDA graphs.

An optimiser step is one graph: loss, gradients, clipping, moments and parameters. Between two steps nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from envs.compilation import Compiled

from .cuda_graphs import Recorded
from .descent import adam_step, clip, norm_of, rmsprop_step

if TYPE_CHECKING:
    from .interface import Interface
    from .optimizer import Info, Loss, Optimizer


class CannotCompile(Exception):
    """Says why an agent runs as it is."""


@dataclass(frozen=True)
class Compiler:
    """How functions of an agent are made quick.

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


class Compilable:
    """What of an agent can run as compiled code."""

    config: Any
    interface: Interface
    device: torch.device
    optimizers: dict[str, Optimizer]
    schedules: dict[str, Callable[[int], float]]
    scheduled: dict[str, float]
    compiler: Compiler | None = None
    _live: Mapping[str, Tensor] = MappingProxyType({})

    def now(self, name: str) -> Any:
        """The value of a schedule for losses and policies: a number, or for compiled code a 0-d tensor."""
        return self._live.get(name, self.scheduled[name])

    def unused(self, name: str) -> bool:
        """What a schedule scales is zero and need not be computed; compiled code is for whenever it is not."""
        return name not in self._live and not self.scheduled[name]

    def compile(self, compiler: Compiler) -> None:
        """From now on updates, and exploring policies that are made later, run as compiled code.

        Raises:
            CannotCompile: not this agent, it says why; nothing has changed then.
        """
        if compiler.compiles:
            trace_gradients()
        try:
            for optimizer in self.optimizers.values():
                optimizer.compile(compiler, self.config.name)
        except CannotCompile:
            for optimizer in self.optimizers.values():
                optimizer.run_plainly()
            raise
        self.compiler = compiler
        self._live = {
            name: torch.tensor(self.scheduled[name], dtype=self.interface.dtype, device=self.device)
            for name, schedule in self.schedules.items()
            if not getattr(schedule, "constant", False)
        }

    def quick(self, choose: Callable[..., Any]) -> Callable[..., Any]:
        """How an exploring policy acts, compiled where the agent is."""
        return choose if self.compiler is None else self.compiler(choose, f"the policy of {self.config.name}")

    def refresh(self) -> None:
        """Tells compiled code what the schedules say now."""
        for name, value in self._live.items():
            value.fill_(self.scheduled[name])


class CompiledSteps:
    """The steps of an optimiser, each loss in one graph.

    Args:
        optimizer: whose parameters they change; all of them have gradients.
        compiler: how.
        what: of the agent it trains, for messages.

    Raises:
        CannotCompile: the steps take a way that has no compiled form.
    """

    def __init__(self, optimizer: Optimizer, compiler: Compiler, what: str) -> None:
        if optimizer.scales:
            raise CannotCompile("agent.precision=float16 leaves out steps that overflow")
        if optimizer.accumulate > 1:
            raise CannotCompile("agent.accumulate sums gradients over several passes")
        self._optimizer, self._compiler, self._what = optimizer, compiler, what
        self._steps: dict[Any, Callable[..., Any]] = {}
        self._lr = torch.tensor(optimizer.lr, dtype=torch.float64, device=optimizer.parameters[0].device)
        if len({float(step) for step in optimizer.moments()["step"]}) > 1:
            raise CannotCompile("some of its parameters have been trained for longer than others")

    def set_lr(self, value: float) -> None:
        """The learning rate of the steps to come."""
        self._lr.fill_(value)

    def forget(self) -> None:
        """The moments are other tensors now."""
        self._steps.clear()

    def __call__(self, loss: Loss, batch: TensorDictBase) -> tuple[Tensor, list[Tensor], Info]:
        """One step, as :meth:`Optimizer.minimize` takes it: loss, norms of the groups and report."""
        step = self._steps.get(loss)
        if step is None:
            name = getattr(loss, "__name__", "loss").strip("_").replace("_", " ")
            step = self._steps[loss] = self._compiler(self._made(loss), f"the update of {self._what} ({name})")
        return step(batch, self._lr)

    def _made(self, loss: Loss) -> Callable[..., Any]:
        optimizer = self._optimizer
        parameters, groups, most = optimizer.parameters, optimizer.groups, optimizer.max_grad_norm
        moments, constants = optimizer.moments(), optimizer.constants
        descend = adam_step if "exp_avg" in moments else rmsprop_step
        refused = optimizer.refused

        def step(batch: TensorDictBase, lr: Tensor) -> tuple[Tensor, list[Tensor], Info]:
            with optimizer.autocast():
                value, info = loss(batch)
            gradients = list(torch.autograd.grad(value, parameters))
            norms: list[Tensor] = []
            with torch.no_grad():
                first = 0
                if most is not None:
                    for group in groups:
                        part, first = gradients[first : first + len(group)], first + len(group)
                        norms.append(norm_of(part))
                        clip(part, norms[-1], most)
                sound = torch.stack([torch.isfinite(number).all() for number in (value, *(norms or gradients))]).all()
                refused.add_((~sound).to(refused.dtype))
                descend(parameters, gradients, moments, lr, constants, sound)
            return value.detach(), norms, dict(info)

        return step
