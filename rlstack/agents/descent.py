"""What a step does with gradients: their norm, clipping, Adam and RMSprop, for torch as it is and for a compiler."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Moments = dict[str, list[Tensor]]


def norm_of(gradients: list[Tensor]) -> Tensor:
    """Of all of them together, 0-d."""
    # Copied side by side first: a norm of each by itself costs a small network as much as its loss.
    return torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))


def clip(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    """What ``clip_grad_norm_`` does, without sorting the tensors by device and type every time."""
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))


class Adam(torch.optim.Adam):
    """Torch's fused Adam (Kingma & Ba 2015) on the parameters of one device and type."""

    _columns: tuple[list[Tensor], ...] | None = None
    _counts: list[Tensor]
    """The counts of steps: one tensor for all parameters that have made as many."""

    @torch.no_grad()
    def quick_step(self, refused: Tensor | None = None) -> None:
        """What ``step`` does without sorting the tensors anew, which takes as long as a small network's step itself.

        Args:
            refused: 1 on the parameters' device if nothing shall change, else 0.
        """
        group = self.param_groups[0]
        parameters = group["params"]
        gradients = [parameter.grad for parameter in parameters]
        if self._columns is None or any(gradient is None for gradient in gradients):
            self.found_inf = refused  # where torch's own step looks for it
            self.count_apart()
            self.step()
            if len(self.state) == len(parameters):
                states = [self.state[parameter] for parameter in parameters]
                if len({float(state["step"]) for state in states}) == 1:
                    for state in states:
                        state["step"] = states[0]["step"]
                self._columns = tuple([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
                self._counts = list({id(step): step for step in self._columns[2]}.values())
            return
        means, squares, steps = self._columns
        torch._foreach_add_(self._counts, 1)
        torch._fused_adam_(
            *(parameters, gradients, means, squares, [], steps),
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=refused,
        )
        if refused is not None:
            torch._foreach_sub_(self._counts, [refused] * len(self._counts))

    def count_apart(self) -> None:
        """Gives every parameter a count of steps of its own, as torch has them, until the next :meth:`quick_step`."""
        if self._columns is not None:
            self._columns = None
            for state in self.state.values():
                state["step"] = state["step"].clone()

    def state_dict(self) -> dict[str, Any]:
        """Moments, as torch's."""
        self.count_apart()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores moments; they are new tensors."""
        super().load_state_dict(state_dict)
        self._columns = None


def adam_step(
    parameters: list[Tensor],
    gradients: list[Tensor],
    moments: Moments,
    lr: Tensor,
    constants: dict[str, Any],
    sound: Tensor,
) -> None:
    """Adam (Kingma & Ba 2015) in operations that a compiler merges; ``lr`` is 0-d, as is ``sound``: False: no step."""
    low, high = constants["betas"]
    torch._foreach_add_(moments["step"], sound.to(moments["step"][0].dtype))
    done = moments["step"][0].to(lr.dtype)  # all have made as many
    rate, root = lr / (1 - low**done), (1 - high**done).sqrt()
    for parameter, gradient, mean, square in zip(parameters, gradients, moments["exp_avg"], moments["exp_avg_sq"]):
        mean.copy_(torch.where(sound, mean.lerp(gradient, 1 - low), mean))
        square.copy_(torch.where(sound, (square * high).addcmul(gradient, gradient, value=1 - high), square))
        size = square.sqrt() / root.to(square.dtype) + constants["eps"]
        parameter.copy_(torch.where(sound, parameter - rate.to(mean.dtype) * mean / size, parameter))


def rmsprop_step(
    parameters: list[Tensor],
    gradients: list[Tensor],
    moments: Moments,
    lr: Tensor,
    constants: dict[str, Any],
    sound: Tensor,
) -> None:
    """RMSprop (Tieleman & Hinton 2012), see :func:`adam_step`."""
    alpha = constants["alpha"]
    for parameter, gradient, square in zip(parameters, gradients, moments["square_avg"]):
        square.copy_(torch.where(sound, (square * alpha).addcmul(gradient, gradient, value=1 - alpha), square))
        change = lr.to(square.dtype) * gradient / (square.sqrt() + constants["eps"])
        parameter.copy_(torch.where(sound, parameter - change, parameter))
