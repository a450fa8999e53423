"""LSTM and GRU over many steps on the CPU, with their backward passes written out.

Autograd through a loop of cells spends most of its time on bookkeeping. Here a backward step is a handful of
operations, and the gradients of the weights are one matrix product at the end. Sequences of different lengths cost no
more than their steps. The formulas are those of ``torch.nn.LSTM`` and ``torch.nn.GRU`` (whose reset gate acts after the
matrix product), against which the tests compare them.

Steps are packed: ``[P, ...]`` holds the first step of all sequences, then the second of those that have one, and so on;
sequences are sorted by length, the longest first. ``sizes`` gives the number of sequences that have each step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class LSTMSequence(torch.autograd.Function):
    """``apply(inputs, hidden, cell, weight, sizes)``: hidden states ``[P, H]`` after each step.

    Args:
        inputs: ``[P, 4H]``, the input's part of input gate, forget gate, candidate and output gate, with biases.
        hidden, cell: states ``[S, H]`` before the first step.
        weight: weight of the hidden state, ``[4H, H]``, in the same order.
        sizes: the number of sequences at each step.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, sizes: list[int]) -> Tensor:
        size = hidden.shape[1]
        gates, squashed = torch.empty_like(inputs), inputs.new_empty(len(inputs), size)
        states, cells = torch.empty_like(squashed), torch.empty_like(squashed)
        into, forget, new, out = (part.split(sizes) for part in gates.split(size, -1))
        both = gates[:, : 2 * size].split(sizes)
        steps = zip(
            *(sizes, inputs.split(sizes), gates.split(sizes), both, into, forget, new, out),
            *(states.split(sizes), cells.split(sizes), squashed.split(sizes)),
        )
        transposed, before, kept = weight.t(), hidden, cell
        for rows, given, all_gates, first, gate_in, gate_forget, candidate, gate_out, after, inner, shown in steps:
            torch.addmm(given, before[:rows], transposed, out=all_gates)
            first.sigmoid_()
            candidate.tanh_()
            gate_out.sigmoid_()
            torch.mul(gate_forget, kept[:rows], out=inner).addcmul_(gate_in, candidate)
            torch.mul(gate_out, torch.tanh(inner, out=shown), out=after)
            before, kept = after, inner
        ctx.save_for_backward(gates, squashed, states, cells, hidden, cell, weight)
        ctx.sizes = sizes
        return states

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        gates, squashed, states, cells, hidden, cell, weight = ctx.saved_tensors
        sizes, size = ctx.sizes, hidden.shape[1]
        into, forget, new, out = gates.split(size, -1)
        kept = _before(cells, cell, sizes)
        # Derivatives by each gate's input: of the output for the output gate, of the cell for the others.
        slopes = gates * (1 - gates)
        by_out, by_cell = squashed * slopes[:, 3 * size :], out * (1 - squashed.square())
        by_in, by_forget = new * slopes[:, :size], kept * slopes[:, size : 2 * size]
        by_new = into * (1 - new.square())
        moved = torch.empty_like(gates)
        at_in, at_forget, at_new, at_out = (part.split(sizes) for part in moved.split(size, -1))
        steps = zip(
            *(sizes, gradient.split(sizes), by_out.split(sizes), by_cell.split(sizes), by_in.split(sizes)),
            *(by_forget.split(sizes), by_new.split(sizes), forget.split(sizes)),
            *(moved.split(sizes), at_in, at_forget, at_new, at_out),
        )
        flow, inner = torch.zeros_like(hidden), torch.zeros_like(cell)
        for rows, given, o, c, i, f, g, keeps, all_moved, to_in, to_forget, to_new, to_out in reversed(list(steps)):
            ahead, held = flow[:rows], inner[:rows]
            ahead.add_(given)
            torch.mul(ahead, o, out=to_out)
            held.addcmul_(ahead, c)
            torch.mul(held, i, out=to_in)
            torch.mul(held, f, out=to_forget)
            torch.mul(held, g, out=to_new)
            held.mul_(keeps)
            torch.mm(all_moved, weight, out=ahead)
        return moved, flow, inner, moved.t() @ _before(states, hidden, sizes), None


class GRUSequence(torch.autograd.Function):
    """``apply(inputs, hidden, weight, bias, sizes)``: hidden states ``[P, H]`` after each step.

    Args:
        inputs: ``[P, 3H]``, the input's part of reset gate, update gate and candidate, with its biases.
        hidden: states ``[S, H]`` before the first step.
        weight, bias: those of the hidden state, ``[3H, H]`` and ``[3H]``, in the same order.
        sizes: the number of sequences at each step.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, sizes: list[int]) -> Tensor:
        size, steps = hidden.shape[1], len(inputs)
        gates, moved = inputs.new_empty(steps, 2 * size), torch.empty_like(inputs)
        new, states = inputs.new_empty(steps, size), inputs.new_empty(steps, size)
        own = 2 * size  # where the candidate's part begins
        parts = zip(
            *(sizes, inputs[:, :own].split(sizes), inputs[:, own:].split(sizes)),
            *(moved.split(sizes), moved[:, :own].split(sizes), moved[:, own:].split(sizes)),
            *(gates.split(sizes), gates[:, :size].split(sizes), gates[:, size:].split(sizes)),
            *(new.split(sizes), states.split(sizes)),
        )
        transposed, before = weight.t(), hidden
        for rows, to_gates, to_new, recurrent, on_gates, on_new, both, reset, update, candidate, after in parts:
            earlier = before[:rows]
            torch.addmm(bias, earlier, transposed, out=recurrent)
            torch.add(to_gates, on_gates, out=both).sigmoid_()
            torch.addcmul(to_new, reset, on_new, out=candidate).tanh_()
            before = torch.lerp(candidate, earlier, update, out=after)
        ctx.save_for_backward(gates, new, moved[:, own:], states, hidden, weight)
        ctx.sizes = sizes
        return states

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        gates, new, on_new, states, hidden, weight = ctx.saved_tensors
        sizes, size = ctx.sizes, hidden.shape[1]
        before, reset, update = _before(states, hidden, sizes), gates[:, :size], gates[:, size:]
        keeps = 1 - update
        # Derivatives of the state by each part's input; for the reset gate, that of the candidate's input.
        by_new, by_update = keeps * (1 - new.square()), (before - new) * update * keeps
        by_reset = on_new * reset * (1 - reset)
        moved = gates.new_empty(len(gates), 3 * size)
        inputs = torch.empty_like(moved)
        steps = zip(
            *(sizes, gradient.split(sizes), by_new.split(sizes), by_update.split(sizes), by_reset.split(sizes)),
            *(reset.split(sizes), update.split(sizes), inputs[:, 2 * size :].split(sizes), moved.split(sizes)),
            *(part.split(sizes) for part in moved.split(size, -1)),
        )
        flow = torch.zeros_like(hidden)
        for rows, given, n, u, r, gate, kept, to_new, all_moved, at_reset, at_update, at_new in reversed(list(steps)):
            ahead = flow[:rows]
            ahead.add_(given)
            torch.mul(ahead, n, out=to_new)
            torch.mul(ahead, u, out=at_update)
            torch.mul(to_new, r, out=at_reset)
            torch.mul(to_new, gate, out=at_new)
            ahead.mul_(kept).addmm_(all_moved, weight)
        inputs[:, : 2 * size] = moved[:, : 2 * size]
        return inputs, flow, moved.t() @ before, moved.sum(0), None


def _before(states: Tensor, first: Tensor, sizes: list[int]) -> Tensor:
    """Returns the packed states before each step, given those after each step and the first ones."""
    parts = [first, *states.split(sizes)]
    return torch.cat([part[:rows] for part, rows in zip(parts, sizes)])
