"""Optimiser steps: gradients, accumulation, clipping, Adam and RMSprop; compiled or recorded; their precision.

``agent.precision=auto`` means bfloat16 if the configuration says that bfloat16 pays (``agent.bfloat16_pays``, which
recipes set once that has been measured), the device has units for it, and the agent has no recurrent core; otherwise it
means float32. An LSTM won fewer games of Echelon in bfloat16 (58 % against 74 %, five seeds each, p = .07, see
``experiments/echelon/memory.py``).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.config.options import Precision
from rlstack.config.schedules import ScheduleConfig
from rlstack.data.graphs import Recorded
from rlstack.envs.foundation.compilation import Compiled
from rlstack.envs.foundation.tensors import looks_are_free

Info: TypeAlias = dict[str, Tensor]
Loss: TypeAlias = Callable[[TensorDictBase], tuple[Tensor, Info]]
"""A function of a batch: returns a scalar that is a mean over it, and its metrics."""

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

SLOWDOWN = 16
"""Time in bfloat16 over that in float32 on a CPU without units for it (``experiment=arena/style1``, AVX2, 1 thread)."""


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


class Refusal(NamedTuple):
    """The reason why a step was not taken.

    Attributes:
        terms: names of the loss's reported values that are not finite.
        parameters: parameters whose gradients are not finite.
        batch: the batch of the step.
    """

    terms: list[str]
    parameters: list[Tensor]
    batch: TensorDictBase


class Optimizer:
    """Minimises losses over some parameters.

    A step whose loss or gradient is not finite is not taken: the parameters stay as they were. On a GPU this is decided
    without waiting for the result.

    Args:
        groups: the parameters to train; the gradients of each group are clipped separately.
        lr: learning rate, which can be changed later as :attr:`lr`.
        max_grad_norm: gradients are clipped to this norm; None leaves them.
        kind: ``"adam"`` (Kingma & Ba 2015, moments 0.9 and 0.999) or ``"rmsprop"`` (smoothing 0.99).
        eps: added to the denominator of a step.
        precision: precision of the forward pass. float16 scales the loss, so that small gradients do not vanish, and
            skips steps whose gradients overflow (Micikevicius et al. 2018); the dtype of parameters does not change.
        accumulate: number of parts into which a batch is split, whose gradients are summed before the step; a smaller
            last part counts proportionally less.
        adaptive: options of a learning rate that follows the KL divergence ``kl`` that a loss reports, the policy's
            distance from that which gathered the data (rule of rsl_rl, Schwarke et al. 2025). Before a step, the rate
            is divided by ``factor`` if the divergence is above twice the target, and multiplied by it if it is above 0
            and below half the target. The first step after :meth:`begin_update` does not multiply: there the divergence
            is 0 but for rounding. The rate is a tensor on the device, and part of the state.

    Attributes:
        adapts: whether the learning rate is adaptive.
        refused: the number of steps not taken, 0-d on the device; those that float16 skips are not counted.
        refusal: the first of them on the CPU, until it is set to None.
        paused: a flag on a GPU (0-d bool): while it is True, steps are computed, but nothing changes. None: they count.
        left_out: the number of such steps, 0-d on the device; None before the first flag.
        bounds: parameters that every step clamps, with their bounds, from which they can move back.
        mean: where several processes learn together, maps tensors (a step's gradients, and the scalars that it
            reports) to their means over the processes. All processes have equal weight and must take the same steps.
        together: where several agents step as one batch (:mod:`rlstack.agents.together`), makes this agent's step;
            returns None if it is to be made alone.
    """

    together: Callable[[Loss, TensorDictBase], tuple[Tensor, Tensor, Info] | None] | None = None
    mean: Callable[[Sequence[Tensor]], list[Tensor]] | None = None

    def __init__(
        self,
        groups: Sequence[Sequence[Tensor]],
        lr: float = 1e-3,
        max_grad_norm: float | None = None,
        kind: Literal["adam", "rmsprop"] = "adam",
        eps: float = 1e-8,
        precision: Precision = "float32",
        accumulate: int = 1,
        adaptive: ScheduleConfig | None = None,
    ) -> None:
        self.groups = [list(group) for group in groups]
        self.parameters = [parameter for group in self.groups for parameter in group]
        self.max_grad_norm, self.accumulate = max_grad_norm, accumulate
        device = self.parameters[0].device
        self._where, self._device = device, device.type
        self.refused = torch.zeros((), device=device)
        self.refusal: Refusal | None = None
        self.paused: Tensor | None = None
        self.left_out: Tensor | None = None
        self._optimizer: Adam | RMSprop = (Adam if kind == "adam" else RMSprop)(self.parameters, lr=lr, eps=eps)
        # Where steps are recorded, the learning rate is read from the GPU.
        self._live_lr = None if looks_are_free(device) else torch.tensor(lr, dtype=torch.float32, device=device)
        self._filled: float | None = None  # the number last written there
        self._rule, self.adapts = adaptive, adaptive is not None
        self._moved = torch.zeros((), dtype=torch.bool, device=device)
        if adaptive is not None:
            dtype = torch.float64 if looks_are_free(device) else torch.float32
            self._live_lr = torch.tensor(lr, dtype=dtype, device=device)
            self._optimizer.param_groups[0]["lr"] = self._live_lr
        self._dtype = _DTYPES.get(precision)
        self._scaler = torch.amp.GradScaler(self._device, enabled=precision == "float16")
        self._compiler: Compiler | None = None
        self._steps: dict[Loss, Callable[..., Any]] = {}
        self.bounds: list[tuple[Tensor, float, float]] = []
        self._units: list[Tensor] = []

    def keep_unit(self, weights: Sequence[Tensor]) -> None:
        """Gives each row of weights ``[N, F]`` a norm of 1, now and after every step.

        Layers whose output is normalised compute the same with any other norm, but a step of a given size rotates a
        long row less (Palenicek et al. 2025, arXiv 2502.07523, keep the weights of CrossQ's critics at unit norm).
        """
        self._units += weights
        self.constrain()

    def constrain(self) -> None:
        """Clamps and normalises what is kept within bounds, or at norm 1."""
        for parameter, low, high in self.bounds:
            parameter.data.clamp_(low, high)
        for weight in self._units:
            torch.nn.functional.normalize(weight.data, dim=-1, out=weight.data)

    @property
    def lr(self) -> float:
        """The learning rate; setting it changes nothing while it is adaptive."""
        return self._optimizer.param_groups[0]["lr"]

    @lr.setter
    def lr(self, value: float | Tensor) -> None:
        if self.adapts:
            return
        if isinstance(value, Tensor):
            assert self._live_lr is not None
            self._live_lr.copy_(value)
            self._filled = None
            return
        self.know_lr(value)
        if self._live_lr is not None and self._filled != value:
            self._live_lr.fill_(value)
            self._filled = value

    def know_lr(self, value: float) -> None:
        """Tells Python's side the learning rate that the device has already."""
        for group in self._optimizer.param_groups:
            group["lr"] = value

    def autocast(self, enabled: bool = True) -> AbstractContextManager[Any]:
        """Returns a context in which networks run in the precision of the forward pass."""
        return nullcontext() if self._dtype is None or not enabled else torch.autocast(self._device, self._dtype)

    # -- a step --------------------------------------------------------------------------------------------------

    def minimize(self, loss: Loss, batch: TensorDictBase, plainly: bool = False) -> tuple[Tensor, Tensor, Info]:
        """Makes one step on a batch.

        Args:
            loss: loss of the batch; it reports scalars, or one value for each entry.
            plainly: whether to compute it here, even if it is compiled, recorded or part of a larger batch.

        Returns the loss, the largest norm of a group's gradient before clipping (0 for a step that is skipped) and the
        report.
        """
        if self._compiler is not None and not plainly:
            if loss not in self._steps:
                self._steps[loss] = self._compiled(self._compiler, loss)
            return self._steps[loss](batch)
        if self.together is not None and not plainly and (stepped := self.together(loss, batch)) is not None:
            return stepped
        for parameter in self.parameters:
            parameter.grad = None
        parts = [batch] if self.accumulate == 1 else batch.chunk(self.accumulate)
        shares = [1.0] if len(parts) == 1 else [len(part) / len(batch) for part in parts]
        values, infos = [], []
        for part, share in zip(parts, shares):
            with self.autocast():
                value, info = loss(part)
            value = value if share == 1 else value * share
            self._scaler.scale(value).backward(inputs=self.parameters)
            values.append(value.detach())
            infos.append(info)
        value, info = values[0], infos[0]
        if len(parts) > 1:
            value = torch.stack(values).sum()
            info = {name: _join([each[name] for each in infos], shares) for name in info}
        if self.mean is not None:
            # Replaces gradients by their means over the processes, and returns the means of loss and scalar reports
            gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            scalars = {name: entry for name, entry in info.items() if not entry.dim()}
            means = self.mean([*gradients, value, *scalars.values()])
            for gradient, averaged in zip(gradients, means):
                gradient.copy_(averaged)
            value, *reported = means[len(gradients) :]
            info = {**info, **dict(zip(scalars, reported))}
        if self.adapts:
            self._adapt(info)
        norm = self._step(value, info, batch)
        self.constrain()
        return value, norm, info

    def begin_update(self) -> None:
        """Tells an adaptive learning rate that the policy is still the one that gathered the data."""
        if self.adapts:
            self._moved.fill_(False)

    def _adapt(self, info: Info) -> None:
        rule, lr, kl = self._rule, self._live_lr, info["kl"]
        assert rule is not None and rule.kl is not None and lr is not None
        (low, high, _), factor = rule.rates, rule.factor or 1.5
        rises = (kl > 0) & (kl < rule.kl / 2) & self._moved
        new = torch.where(kl > 2 * rule.kl, lr / factor, torch.where(rises, lr * factor, lr)).clamp(low, high)
        lr.copy_(new if self.paused is None else torch.where(self.paused, lr, new))
        self._moved.fill_(True)

    def _step(self, loss: Tensor, info: Info, batch: TensorDictBase) -> Tensor:
        """Clips the gradients and takes the step, unless a number is not finite; returns the largest norm."""
        scaled = self._scaler.is_enabled()
        if scaled:
            self._scaler.unscale_(self._optimizer)
        groups = [[parameter.grad for parameter in group if parameter.grad is not None] for group in self.groups]
        gradients = [group for group in groups if group]
        norms = [norm_of(group) for group in gradients]
        numbers = [loss] if scaled else [loss, *norms]  # overflows are how the scale of gradients is found
        limit = self.max_grad_norm
        sound, refused = True, None
        if looks_are_free(loss.device):
            sound = all(math.isfinite(number.item()) for number in numbers)
            if not sound:
                self.refuse(info, batch, [parameter.grad for parameter in self.parameters])
        else:
            # Zero times a number is zero if the number is finite, and NaN if not.
            refused = self._left_out(torch.stack(numbers).mul_(0).sum().ne(0))
        if sound and limit is not None:
            for group, norm in zip(gradients, norms):
                # Where reading is free, gradients within the bound are not multiplied by one: 17 us of a small update.
                if refused is not None or norm.item() + 1e-6 > limit:
                    clip(group, norm, limit)
        largest = _largest(norms)
        if scaled:
            self._scaler.step(self._optimizer)
            self._scaler.update()
            return torch.nan_to_num(largest, nan=0.0, posinf=0.0)
        if sound:
            self._optimizer.quick_step(self.lr if self._live_lr is None else self._live_lr, refused)
        return largest

    def pause(self, flag: Tensor | None) -> None:
        """Sets :attr:`paused`."""
        self.paused = flag
        if flag is not None and self.left_out is None:
            self.left_out = torch.zeros_like(self.refused)

    def _left_out(self, unsound: Tensor) -> Tensor:
        """Counts a step that is refused (``unsound``, 0-d bool) or paused; returns 1 if it is, else 0."""
        refused = unsound.to(self.refused.dtype)
        if self.paused is None or self.left_out is None:
            self.refused.add_(refused)
            return refused
        paused = self.paused.to(refused.dtype)
        self.left_out.add_(paused)
        self.refused.add_(refused * (1 - paused))
        return torch.maximum(refused, paused)

    def refuse(self, info: Info, batch: TensorDictBase, gradients: Sequence[Tensor | None]) -> None:
        """Counts a step that is not taken, and keeps the reason for the first.

        Args:
            info: what the loss reported.
            batch: the batch of the step.
            gradients: that of each parameter.
        """
        self.refused.add_(1)
        if self.refusal is None:
            terms = [name for name, value in info.items() if not torch.isfinite(value).all()]
            pairs = zip(self.parameters, gradients)
            bad = [parameter for parameter, grad in pairs if grad is not None and not torch.isfinite(grad).all()]
            self.refusal = Refusal(terms, bad, batch)

    # -- compiled and recorded steps -----------------------------------------------------------------------------

    def compile(self, compiler: Compiler, what: str) -> None:
        """Compiles a step into one graph, with the same results up to rounding; on a GPU compiles losses, and records.

        Args:
            compiler: compiles it.
            what: name of the agent that it trains, for messages.

        Raises:
            CannotCompile: the steps use something that has no compiled form.
        """
        if self._scaler.is_enabled():
            raise CannotCompile("agent.precision=float16 leaves out steps that overflow")
        if self.accumulate > 1 and not compiler.graphs:
            raise CannotCompile("agent.accumulate sums gradients over several passes")
        if not compiler.graphs and len({float(step) for step in self.moments()["step"]}) > 1:
            raise CannotCompile("some of its parameters have been trained for longer than others")
        self._steps.clear()
        self._compiler, self._what = compiler, what
        if not compiler.graphs and not self.adapts:
            self._live_lr = torch.tensor(self.lr, dtype=torch.float64, device=self.parameters[0].device)
            self._filled = None

    @staticmethod
    def descend_rows(optimizers: Sequence[Optimizer], rows: Sequence[tuple[Tensor, ...]]) -> None:
        """Takes a step of Adam for several optimisers with one learning rate, whose parameters lie in a row each.

        Args:
            rows: for each optimiser the rows ``[P]`` of its parameters, their gradients, and both moments.
        """
        adams: list[Any] = [optimizer._optimizer for optimizer in optimizers]
        counts = [adam.count for adam in adams]
        for count in counts:
            count.add_(1)
        adams[0].descend(*map(list, zip(*rows)), counts, optimizers[0].lr)

    def run_plainly(self) -> None:
        """Undoes :meth:`compile`."""
        self._compiler = None
        self._steps.clear()

    def _compiled(self, compiler: Compiler, loss: Loss) -> Callable[..., Any]:
        """Returns the step of a loss as a function of a batch that never waits."""
        name = f"the update of {self._what} ({getattr(loss, '__name__', 'loss').strip('_').replace('_', ' ')})"
        if compiler.graphs:
            return Recorded(partial(self.minimize, compiler(loss, name), plainly=True), name, (self,), self._where)
        # All parameters have gradients.
        parameters, groups, limit = self.parameters, self.groups, self.max_grad_norm
        moments, constants = self.moments(), self._optimizer.param_groups[0]

        def step(batch: TensorDictBase, lr: Tensor) -> tuple[Tensor, list[Tensor], Info]:
            with self.autocast():
                value, info = loss(batch)
            gradients = list(torch.autograd.grad(value, parameters))
            norms: list[Tensor] = []
            with torch.no_grad():
                first = 0
                for group in groups:
                    part, first = gradients[first : first + len(group)], first + len(group)
                    norms.append(norm_of(part))
                    if limit is not None:
                        clip(part, norms[-1], limit)
                if self.adapts:
                    self._adapt(info)
                sound = torch.stack([torch.isfinite(number) for number in (value, *norms)]).all()
                descend(parameters, gradients, moments, lr, constants, self._left_out(~sound) == 0)
            return value.detach(), norms, dict(info)

        compiled = compiler(step, name)

        def minimize(batch: TensorDictBase) -> tuple[Tensor, Tensor, Info]:
            value, norms, info = compiled(batch, self._live_lr)
            self.constrain()
            return value, _largest(norms), info

        return minimize

    # -- state ---------------------------------------------------------------------------------------------------

    def moments(self) -> dict[str, list[Tensor]]:
        """Returns the moments kept between steps, by name, in the order of the parameters; made if missing."""
        adam = isinstance(self._optimizer, Adam)
        if isinstance(self._optimizer, Adam):
            self._optimizer.count_apart()
        names = ("exp_avg", "exp_avg_sq") if adam else ("square_avg",)
        for parameter in self.parameters:
            state = self._optimizer.state[parameter]
            if not state:
                state["step"] = torch.zeros((), device=parameter.device if adam else None)
                state.update({name: torch.zeros_like(parameter) for name in names})
        states = [self._optimizer.state[parameter] for parameter in self.parameters]
        return {name: [state[name] for state in states] for name in ("step", *names)}

    def state_dict(self) -> dict[str, Any]:
        """Returns the moments and the loss scale of float16."""
        return {"optimizer": self._optimizer.state_dict(), "scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self._optimizer.load_state_dict(deepcopy(state["optimizer"]))  # without the copy it would share the moments
        if self._rule is not None and self._live_lr is not None:
            low, high, _ = self._rule.rates
            self._live_lr.copy_(torch.as_tensor(self.lr).clamp(low, high))
            self._optimizer.param_groups[0]["lr"] = self._live_lr
        if state["scaler"]:  # empty in a run of another precision
            self._scaler.load_state_dict(state["scaler"])
        self._steps.clear()  # they hold the old moments


def _largest(norms: list[Tensor]) -> Tensor:
    return norms[0] if len(norms) == 1 else torch.stack(norms).max()


def norm_of(gradients: list[Tensor]) -> Tensor:
    """Returns the joint norm of all gradients, 0-d."""
    # Concatenated first: separate norms cost a small network as much as its loss.
    return torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))


def clip(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    """Clips as ``clip_grad_norm_`` does, without sorting the tensors by device and dtype every time."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)


class Adam(torch.optim.Adam):
    """Torch's fused Adam (Kingma & Ba 2015) on parameters of one device and dtype."""

    _columns: tuple[list[Tensor], ...] | None = None
    _counts: list[Tensor]
    """The step counts: one tensor shared by all parameters with the same count."""

    def __init__(self, parameters: list[Tensor], lr: float, eps: float) -> None:
        super().__init__(parameters, lr=lr, eps=eps, fused=True)

    @torch.no_grad()
    def quick_step(self, lr: float | Tensor, refused: Tensor | None = None) -> None:
        """Does what ``step`` does, without sorting the tensors again, which takes as long as a small network's step.

        Args:
            lr: learning rate; the parameter groups may have an older one.
            refused: a tensor on the parameters' device: 1 if nothing is to change, else 0.
        """
        group = self.param_groups[0]
        parameters = group["params"]
        gradients = [parameter.grad for parameter in parameters]
        if self._columns is None or any(gradient is None for gradient in gradients):
            self.found_inf = refused  # where torch's own step looks for it
            known, group["lr"] = group["lr"], lr
            self.step()
            group["lr"] = known
            self._line_up()
            return
        means, squares, steps = self._columns
        for count in self._counts:
            count.add_(1)
        self.descend(parameters, gradients, means, squares, steps, lr, refused)
        if refused is not None:
            for count in self._counts:
                count.sub_(refused)

    def descend(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        means: list[Tensor],
        squares: list[Tensor],
        steps: list[Tensor],
        lr: float | Tensor,
        refused: Tensor | None = None,
    ) -> None:
        """Takes torch's fused step on some parameters, with both moments, after the steps (0-d each) were counted."""
        group = self.param_groups[0]
        (low, high), eps = group["betas"], group["eps"]
        options = {"lr": lr, "beta1": low, "beta2": high, "eps": eps, "weight_decay": 0.0, "found_inf": refused}
        columns: list[list[Tensor]] = [parameters, gradients, means, squares, [], steps]
        torch._fused_adam_(*columns, amsgrad=False, maximize=False, **options)

    def step(self, closure: Any = None) -> Any:
        """Makes torch's own step, which counts for each parameter."""
        self.count_apart()
        return super().step(closure)

    def _line_up(self) -> None:
        """Prepares quick steps, once all parameters have moments."""
        parameters = self.param_groups[0]["params"]
        if len(self.state) < len(parameters):
            return
        states = [self.state[parameter] for parameter in parameters]
        if len({float(state["step"]) for state in states}) == 1:
            for state in states:
                state["step"] = states[0]["step"]
        self._columns = tuple([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        self._counts = list({id(step): step for step in self._columns[2]}.values())

    @property
    def count(self) -> Tensor:
        """The step count that all parameters share, 0-d."""
        if self._columns is None:
            self._line_up()
        (count,) = self._counts
        return count

    def count_apart(self) -> None:
        """Gives every parameter its own step count, as torch does, until the next :meth:`quick_step`."""
        if self._columns is not None:
            self._columns = None
            for state in self.state.values():
                state["step"] = state["step"].clone()

    def state_dict(self) -> dict[str, Any]:
        """Returns the moments in torch's format, with a step count for each parameter."""
        state = super().state_dict()
        moments = state["state"].items()
        return {**state, "state": {name: {**own, "step": own["step"].clone()} for name, own in moments}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the moments as new tensors."""
        super().load_state_dict(state_dict)
        self._columns = None
        self._line_up()


class RMSprop(torch.optim.RMSprop):
    """Torch's RMSprop (Tieleman & Hinton 2012) on parameters of one device and dtype."""

    def __init__(self, parameters: list[Tensor], lr: float, eps: float) -> None:
        super().__init__(parameters, lr=lr, alpha=0.99, eps=eps, foreach=True)

    @torch.no_grad()
    def quick_step(self, lr: float | Tensor, refused: Tensor | None = None) -> None:
        """Does what ``step`` does; see :meth:`Adam.quick_step`."""
        group = self.param_groups[0]
        for parameter in group["params"]:
            if (gradient := parameter.grad) is None:
                continue
            if refused is not None:
                gradient.masked_fill_(refused > 0, 0.0)
            state = self.state[parameter]
            if not state:
                # Torch counts steps, but uses them for nothing.
                state["step"], state["square_avg"] = torch.zeros(()), torch.zeros_like(parameter)
            square = state["square_avg"].mul_(group["alpha"]).addcmul_(gradient, gradient, value=1 - group["alpha"])
            size = square.sqrt().add_(group["eps"])
            if isinstance(lr, Tensor):
                parameter.addcdiv_(gradient, size.div_(-lr))
            else:
                parameter.addcdiv_(gradient, size, value=-lr)


def descend(
    parameters: list[Tensor],
    gradients: list[Tensor],
    moments: dict[str, list[Tensor]],
    lr: Tensor,
    constants: dict[str, Any],
    sound: Tensor,
) -> None:
    """Makes one step in operations that a compiler can fuse: Adam, or RMSprop (Tieleman & Hinton 2012).

    Args:
        moments: see :meth:`Optimizer.moments`; ``square_avg`` among them means RMSprop.
        lr: learning rate, 0-d.
        constants: further options of the optimiser, such as ``eps``.
        sound: 0-d bool; False leaves everything as it is.
    """

    def put(old: Tensor, new: Tensor) -> None:
        old.copy_(torch.where(sound, new, old))

    if "square_avg" in moments:
        alpha = constants["alpha"]
        for parameter, gradient, square in zip(parameters, gradients, moments["square_avg"]):
            put(square, (square * alpha).addcmul(gradient, gradient, value=1 - alpha))
            put(parameter, parameter - lr.to(square.dtype) * gradient / (square.sqrt() + constants["eps"]))
        return
    low, high = constants["betas"]
    for step in moments["step"]:
        step.add_(sound.to(step.dtype))
    done = moments["step"][0].to(lr.dtype)  # the same for all
    rate, root = lr / (1 - low**done), (1 - high**done).sqrt()
    for parameter, gradient, mean, square in zip(parameters, gradients, moments["exp_avg"], moments["exp_avg_sq"]):
        put(mean, mean.lerp(gradient, 1 - low))
        put(square, (square * high).addcmul(gradient, gradient, value=1 - high))
        size = square.sqrt() / root.to(square.dtype) + constants["eps"]
        put(parameter, parameter - rate.to(mean.dtype) * mean / size)


def _join(values: list[Tensor], shares: list[float]) -> Tensor:
    """Joins the reports of the parts of a batch: concatenates values per entry, averages scalars."""
    if values[0].dim():
        return torch.cat(values)
    return torch.stack([value * share for value, share in zip(values, shares)]).sum()


# -- precision ---------------------------------------------------------------------------------------------------


_WITHOUT_BFLOAT16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")
"""Values of ``ONEDNN_MAX_CPU_ISA``."""


def has_bfloat16(device: torch.device) -> bool:
    """Returns True if a device has units that multiply bfloat16 matrices without converting them.

    On x86, oneDNN accepts plain AVX-512, although it converts there, so AVX512_BF16 is asked for, which CPUs with AMX
    have, too. ``ONEDNN_MAX_CPU_ISA`` may hold oneDNN back. In a version of torch that tells nothing of the CPU, the
    answer is unknown, and float32 is the safe choice.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type != "cpu" or os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in _WITHOUT_BFLOAT16:
        return False
    try:
        units = torch.cpu.get_capabilities()
    except AttributeError:
        return False
    return bool(units.get("avx512_bf16") or units.get("bf16"))  # of x86 and of ARM


def decided(agent: Mapping[str, Any], device: torch.device) -> str | None:
    """Returns the precision of an ``agent`` group on a device, with ``auto`` resolved; None without such an option."""
    asked = agent.get("precision")
    if asked != "auto":
        return asked
    pays = agent.get("bfloat16_pays") and agent.get("recurrent") is None
    return "bfloat16" if pays and has_bfloat16(device) else "float32"


def explained(agent: Mapping[str, Any], device: torch.device, resumed: bool = False) -> str | None:
    """Returns the precision that :func:`decided` chooses, with the reason, in one line.

    Args:
        agent: the group as it was given, with ``auto`` not yet resolved.
        device: device of the networks.
        resumed: whether the group is that of a resumed run, perhaps on a different machine.
    """
    asked, taken = agent.get("precision"), decided(agent, device)
    here = "this GPU" if device.type == "cuda" else "this CPU" if device.type == "cpu" else f"the device {device}"
    if asked == "auto":
        if not agent.get("bfloat16_pays"):
            return f"{taken} (auto: agent.bfloat16_pays is false)"
        if agent.get("recurrent") is not None:
            return f"{taken} (auto: recurrent cores stay in float32)"
        has = "has" if taken == "bfloat16" else "has no"
        return f"{taken} (auto: bfloat16 pays with this recipe, and {here} {has} units for it)"
    remarks = []
    if resumed and agent.get("bfloat16_pays") and taken != "float16":
        other = decided({**agent, "precision": "auto"}, device)
        if other != taken:
            remarks.append(f"as the run began; on {here} auto is {other}, which agent.precision=auto changes to")
    if taken == "bfloat16" and not has_bfloat16(device):
        cost = f" and takes about {SLOWDOWN} times as long as in float32" if device.type == "cpu" else ""
        remarks.append(f"WARNING: {here} has no units for it{cost}")
    return f"{taken} ({'; '.join(remarks)})" if remarks else taken
