"""Optimiser steps: mixed precision, gradient accumulation, clipping, Adam and RMSprop; compiled or recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.config.agents import Precision
from rlstack.data.graphs import Recorded
from rlstack.envs.waiting import looks_are_free

from .compilation import CannotCompile, Compiler

Info: TypeAlias = dict[str, Tensor]
Loss: TypeAlias = Callable[[TensorDictBase], tuple[Tensor, Info]]
"""A function of a batch: returns a scalar that is a mean over it, and its metrics."""

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


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

    Attributes:
        refused: the number of steps not taken, 0-d on the device; those that float16 skips are not counted.
        refusal: the first of them on the CPU, until it is set to None.
        mean: where several processes learn together, maps tensors (a step's gradients, and the scalars that it
            reports) to their means over the processes. All processes have equal weight and must take the same steps.
    """

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
    ) -> None:
        self.groups = [list(group) for group in groups]
        self.parameters = [parameter for group in self.groups for parameter in group]
        self.max_grad_norm, self.accumulate = max_grad_norm, accumulate
        device = self.parameters[0].device
        self._device = device.type
        self.refused = torch.zeros((), device=device)
        self.refusal: Refusal | None = None
        self._optimizer: Adam | RMSprop = (Adam if kind == "adam" else RMSprop)(self.parameters, lr=lr, eps=eps)
        # Where steps are recorded, the learning rate is read from the GPU.
        self._live_lr = None if looks_are_free(device) else torch.tensor(lr, dtype=torch.float32, device=device)
        self._dtype = _DTYPES.get(precision)
        self._scaler = torch.amp.GradScaler(self._device, enabled=precision == "float16")
        self._compiler: Compiler | None = None
        self._steps: dict[Loss, Callable[..., Any]] = {}
        self.norms: list[Tensor] = []
        self._bounds: list[tuple[Tensor, float, float]] = []
        self._units: list[Tensor] = []

    def keep_within(self, parameter: Tensor, low: float, high: float) -> None:
        """Clamps a parameter to bounds after every step; it can move back from their ends."""
        self._bounds.append((parameter, low, high))

    def keep_unit(self, weights: Sequence[Tensor]) -> None:
        """Gives each row of weights ``[N, F]`` a norm of 1, now and after every step.

        Layers whose output is normalised compute the same with any other norm, but a step of a given size rotates a
        long row less (Palenicek et al. 2025, arXiv 2502.07523, keep the weights of CrossQ's critics at unit norm).
        """
        self._units += weights
        self._clamp()

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
        if not compiler.graphs:
            self._live_lr = torch.tensor(self.lr, dtype=torch.float64, device=self.parameters[0].device)

    def run_plainly(self) -> None:
        """Undoes :meth:`compile`."""
        self._compiler = None
        self._steps.clear()

    @property
    def lr(self) -> float:
        """The learning rate."""
        return self._optimizer.param_groups[0]["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = value
        if self._live_lr is not None:
            self._live_lr.fill_(value)

    def minimize(self, loss: Loss, batch: TensorDictBase, plainly: bool = False) -> tuple[Tensor, Tensor, Info]:
        """Makes one step on a batch.

        Args:
            loss: loss of the batch; it reports scalars, or one value for each entry.
            plainly: whether to compute it here, even if it is compiled or recorded.

        Returns the loss, the largest norm of a group's gradient before clipping (0 for a step that is skipped) and the
        report.
        """
        if self._compiler is not None and not plainly:
            if loss not in self._steps:
                what = getattr(loss, "__name__", "loss").strip("_").replace("_", " ")
                make = self._recorded if self._compiler.graphs else self._compiled
                self._steps[loss] = make(self._compiler, loss, f"the update of {self._what} ({what})")
            return self._steps[loss](batch)
        for parameter in self.parameters:
            parameter.grad = None
        parts = [batch] if self.accumulate == 1 else batch.chunk(self.accumulate)
        shares = [1.0] if len(parts) == 1 else [len(part) / len(batch) for part in parts]
        values, infos = [], []
        for part, share in zip(parts, shares):
            value, info = self._forward(loss, part)
            value = value if share == 1 else value * share
            self._scaler.scale(value).backward(inputs=self.parameters)
            values.append(value.detach())
            infos.append(info)
        value, info = values[0], infos[0]
        if len(parts) > 1:
            value = torch.stack(values).sum()
            info = {name: _join([told[name] for told in infos], shares) for name in info}
        if self.mean is not None:
            # Replaces gradients by their means over the processes, and returns the means of loss and scalar reports
            gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            scalars = {name: told for name, told in info.items() if not told.dim()}
            means = self.mean([*gradients, value, *scalars.values()])
            for gradient, averaged in zip(gradients, means):
                gradient.copy_(averaged)
            value, *told = means[len(gradients) :]
            value, info = value, {**info, **dict(zip(scalars, told))}
        norm = self._step(value, info, batch)
        self._clamp()
        return value, norm, info

    def _recorded(self, compiler: Compiler, loss: Loss, name: str) -> Callable[..., Any]:
        step = partial(self.minimize, compiler(loss, name), plainly=True)
        return Recorded(step, name, (self,), self.refused.device)

    def _clamp(self) -> None:
        for parameter, low, high in self._bounds:
            parameter.data.clamp_(low, high)
        for weight in self._units:
            torch.nn.functional.normalize(weight.data, dim=-1, out=weight.data)

    def _compiled(self, compiler: Compiler, loss: Loss, name: str) -> Callable[..., Any]:
        """Returns the step of a loss as one graph: a function of a batch that never waits."""
        # All parameters have gradients.
        parameters, groups, most, refused = self.parameters, self.groups, self.max_grad_norm, self.refused
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
                    if most is not None:
                        clip(part, norms[-1], most)
                sound = torch.stack([torch.isfinite(number) for number in (value, *norms)]).all()
                refused.add_((~sound).to(refused.dtype))
                descend(parameters, gradients, moments, lr, constants, sound)
            return value.detach(), norms, dict(info)

        quick = compiler(step, name)

        def minimize(batch: TensorDictBase) -> tuple[Tensor, Tensor, Info]:
            value, self.norms, info = quick(batch, self._live_lr)
            self._clamp()
            return value, self._largest_norm(), info

        return minimize

    def _forward(self, loss: Loss, part: TensorDictBase) -> tuple[Tensor, Info]:
        """Computes the loss; a separate function so that :mod:`rlstack.diagnostics` can time it."""
        with self.autocast():
            return loss(part)

    def autocast(self, enabled: bool = True) -> AbstractContextManager[Any]:
        """Returns a context in which networks run in the precision of the forward pass."""
        return nullcontext() if self._dtype is None or not enabled else torch.autocast(self._device, self._dtype)

    def _step(self, loss: Tensor, info: Info, batch: TensorDictBase) -> Tensor:
        scaled = self._scaler.is_enabled()
        if scaled:
            self._scaler.unscale_(self._optimizer)
        groups = [[parameter.grad for parameter in group if parameter.grad is not None] for group in self.groups]
        parts = [part for part in groups if part]
        self.norms = [norm_of(part) for part in parts]
        refused = self._unsound(loss)
        if refused is True:
            self._explain(info, batch)
        elif self.max_grad_norm is not None:
            for part, norm in zip(parts, self.norms):
                # Where reading is free, gradients within the bound are not multiplied by one: 17 us of a small update.
                if refused is not False or norm.item() + 1e-6 > self.max_grad_norm:
                    clip(part, norm, self.max_grad_norm)
        if scaled:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        elif refused is not True:
            self._take(None if refused is False else refused)
        largest = self._largest_norm()
        return torch.nan_to_num(largest, nan=0.0, posinf=0.0) if scaled else largest

    def _largest_norm(self) -> Tensor:
        return self.norms[0] if len(self.norms) == 1 else torch.stack(self.norms).max()

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

    def _unsound(self, loss: Tensor) -> bool | Tensor:
        """Returns True if loss or gradients are not finite; on a GPU, 0 or 1 as a tensor, without waiting for it.

        With scaled gradients only the loss is checked: overflows are how the scale is found.
        """
        numbers = [loss, *([] if self._scaler.is_enabled() else self.norms)]
        if looks_are_free(loss.device):
            return not all(math.isfinite(number.item()) for number in numbers)
        # Zero times a number is zero if the number is finite, and NaN if not.
        found = torch.stack(numbers).mul_(0).sum().ne(0).to(self.refused.dtype)
        self.refused.add_(found)
        return found

    def _explain(self, info: Info, batch: TensorDictBase) -> None:
        self.refused.add_(1)
        if self.refusal is None:
            terms = [name for name, value in info.items() if not torch.isfinite(value).all()]
            gradients = ((parameter, parameter.grad) for parameter in self.parameters)
            bad = [parameter for parameter, grad in gradients if grad is not None and not torch.isfinite(grad).all()]
            self.refusal = Refusal(terms, bad, batch)

    def _take(self, refused: Tensor | None) -> None:
        """Makes the step itself, which on a GPU changes nothing where ``refused`` is 1."""
        self._optimizer.quick_step(self.lr if self._live_lr is None else self._live_lr, refused)

    def state_dict(self) -> dict[str, Any]:
        """Returns the moments and the loss scale of float16."""
        return {"optimizer": self._optimizer.state_dict(), "scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self._optimizer.load_state_dict(deepcopy(state["optimizer"]))  # without the copy it would share the moments
        if state["scaler"]:  # empty in a run of another precision
            self._scaler.load_state_dict(state["scaler"])
        self._steps.clear()  # they hold the old moments


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
            lr: learning rate, that of the parameter groups.
            refused: a tensor on the parameters' device: 1 if nothing is to change, else 0.
        """
        group = self.param_groups[0]
        parameters = group["params"]
        gradients = [parameter.grad for parameter in parameters]
        if self._columns is None or any(gradient is None for gradient in gradients):
            self.found_inf = refused  # where torch's own step looks for it
            self.step()
            self._line_up()
            return
        means, squares, steps = self._columns
        for count in self._counts:
            count.add_(1)
        torch._fused_adam_(
            *(parameters, gradients, means, squares, [], steps),
            lr=lr,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=refused,
        )
        if refused is not None:
            for count in self._counts:
                count.sub_(refused)

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
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        gradients = [parameter.grad for parameter in parameters]
        if refused is not None:
            for gradient in gradients:
                gradient.masked_fill_(refused > 0, 0.0)
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                # Torch counts steps, but uses them for nothing.
                state["step"], state["square_avg"] = torch.zeros(()), torch.zeros_like(parameter)
        squares = [self.state[parameter]["square_avg"] for parameter in parameters]
        torch._foreach_mul_(squares, group["alpha"])
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - group["alpha"])
        sizes = torch._foreach_sqrt(squares)
        torch._foreach_add_(sizes, group["eps"])
        if isinstance(lr, Tensor):
            torch._foreach_div_(sizes, -lr)
            torch._foreach_addcdiv_(parameters, gradients, sizes)
        else:
            torch._foreach_addcdiv_(parameters, gradients, sizes, value=-lr)


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
    return (
        torch.cat(values)
        if values[0].dim()
        else torch.stack([value * share for value, share in zip(values, shares)]).sum()
    )
