"""Recurrent networks: LSTM (Hochreiter & Schmidhuber 1997) and GRU (Cho et al. 2014) cores after an encoder.

A core runs step by step while acting, and over whole sequences while learning, with the same results. Sequences may
contain ends of episodes: they are split into :class:`Segments` of one episode each, which are then batched, so that
one call of the fused kernels processes all of them and nothing passes from one episode into the next.

Where segments differ much in length, they are packed instead of padded: ``[P, ...]`` holds the first step of all
sequences, then the second of those that have one, and so on; sequences are sorted by length, the longest first, and
``sizes`` gives the number of sequences that have each step. For these, LSTM and GRU are written out with their backward
passes: autograd through a loop of cells spends most of its time on bookkeeping, here a backward step is a handful of
operations, and the gradients of the weights are one matrix product at the end. The formulas are those of
``torch.nn.LSTM`` and ``torch.nn.GRU`` (whose reset gate acts after the matrix product).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import linear

from rlstack.envs.foundation.tensors import unchecked

from .encoders import Encoder, Observation

Kind: TypeAlias = Literal["lstm", "gru"]

_WASTE = 2.0
"""Up to this ratio of padded steps to steps, a fused kernel on padded sequences is faster than a loop over steps."""

REMEMBERED = "remembered"
"""Key of the cores' output that replaces an observation, and depends on all observations before it."""


class Segments:
    """The segments of one episode each in sequences ``[N, L]``, the longest first.

    Entries that are not active belong to no segment.

    Args:
        starts: ``[N, L]`` bool, steps before which the recurrent state is zero.
        active: ``[N, L]`` bool, at least one True.
        extended: whether every segment has one more step after its end, for the observation there.

    Attributes:
        count: S, the number of segments.
        length: T, the number of steps of the longest.
        steps: the number of steps of all segments.
        ends: ``[N, L]`` bool, last steps of the segments.
        whole: whether no episode ends within a sequence, and all entries are active.
    """

    def __init__(self, starts: Tensor, active: Tensor, extended: bool = False) -> None:
        apart = torch.zeros_like(active[:, :1])
        first = active & (starts | ~torch.cat((apart, active[:, :-1]), 1))
        self.ends = active & ~torch.cat((active[:, 1:] & ~starts[:, 1:], apart), 1)
        self.active = active
        time = torch.arange(active.shape[1], device=active.device).expand_as(active)
        self._position = time - torch.where(first, time, 0).cummax(1).values
        lengths = self._position[self.ends] + (2 if extended else 1)  # in the order of the segments
        order = lengths.argsort(descending=True, stable=True)
        self._lengths = lengths[order]
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        self._rank = rank[(first.flatten().cumsum(0) - 1).clamp(min=0)].view_as(time)
        rows, begun = first.nonzero(as_tuple=True)
        self._rows = rows[order]
        self._goes_on = ((begun == 0) & ~starts[rows, 0])[order]
        self.count, self.length, self.steps = len(order), int(self._lengths[0]), int(lengths.sum())
        self.whole = self.steps == active.numel() + self.count * extended and self.count == len(active)

    def begin(self, memory: Tensor) -> Tensor:
        """Returns their initial states ``[S, M]``, given those ``[N, M]`` of the sequences; zero for new episodes."""
        return memory[self._rows] * self._goes_on.to(memory.dtype)[:, None]

    def layout(self, padded: bool) -> StepLayout:
        """Returns the layout of their steps, padded or packed."""
        if padded:
            offsets = torch.arange(self.length, device=self._rank.device) * self.count
            return StepLayout(self, offsets, self.length * self.count, None)
        sizes = self.count - torch.bincount(self._lengths, minlength=self.length + 1).cumsum(0)[: self.length]
        offsets = sizes.cumsum(0) - sizes
        return StepLayout(self, offsets, self.steps, sizes.tolist())

    def places(self, offsets: Tensor, later: int = 0) -> Tensor:
        """Returns the places ``[N, L]`` of the steps in a row where the t-th steps begin at ``offsets [T]``."""
        reached = self._position if later == 0 else self._position + later
        return (offsets[reached.clamp(max=self.length - 1)] + self._rank).masked_fill(~self.active, 0)


class StepLayout:
    """Arranges the steps of segments in a row: all first ones, then all second ones, and so on.

    Args:
        segments: the segments.
        offsets: ``[T]``, where the t-th steps begin.
        size: P, length of the row.
        sizes: the number of segments that have each step; None if shorter ones are padded with arbitrary values.
    """

    def __init__(self, segments: Segments, offsets: Tensor, size: int, sizes: list[int] | None) -> None:
        self.sizes, self._segments, self._offsets, self._size = sizes, segments, offsets, size
        self._place = segments.places(offsets)

    def lay(self, x: Tensor, following: Tensor | None = None) -> Tensor:
        """Arranges features ``[N, L, F]`` as ``[P, F]``.

        Args:
            following: for extended segments, the features ``[E, F]`` after each end, in the order of
                ``ends.nonzero()``.
        """
        if self._segments.whole:  # in the order of the sequences: nothing to look up
            steps = x.transpose(0, 1)
            return (steps if following is None else torch.cat((steps, following[None]))).flatten(0, 1)
        flat, active = x.flatten(0, 1), self._segments.active
        source = torch.zeros(self._size, dtype=torch.int64, device=x.device)
        source[self._place[active]] = active.flatten().nonzero()[:, 0]
        if following is not None:
            after = self._segments.places(self._offsets, 1)[self._segments.ends]
            source[after] = torch.arange(len(following), device=x.device) + len(flat)
            flat = torch.cat((flat, following))
        return flat.index_select(0, source)

    def gather(self, laid: Tensor, later: int = 0) -> Tensor:
        """Puts ``[P, F]`` back into ``[N, L, F]``; at each place that ``later`` steps further in the same segment."""
        if self._segments.whole:
            steps = laid.view(self._segments.length, self._segments.count, -1).transpose(0, 1)
            return steps[:, later:][:, : self._segments.active.shape[1]]
        place = self._place if later == 0 else self._segments.places(self._offsets, later)
        return laid.index_select(0, place.flatten()).view(*place.shape, -1)


class Core(nn.Module):
    """Recurrent layers whose state is one vector: the hidden state of each layer and, in an LSTM, its cell state.

    Args:
        kind: ``lstm`` or ``gru``.
        inputs: number of features F.
        size: width H of a layer.
        layers: number of layers.

    Attributes:
        memory_size: M, size of the recurrent state.
    """

    def __init__(self, kind: Kind, inputs: int, size: int, layers: int = 1) -> None:
        super().__init__()
        self.kind, self.size, self.layers, self.out_features = kind, size, layers, size
        self.cells = (nn.LSTM if kind == "lstm" else nn.GRU)(inputs, size, layers)
        self._parts = 2 if kind == "lstm" else 1
        self.memory_size = layers * self._parts * size

    def step(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Makes one step: features ``[..., F]`` and state ``[..., M]`` give outputs ``[..., H]`` and the next state."""
        if _in_low_precision(x):
            with torch.autocast("cpu", enabled=False):
                return self.step(x.to(memory.dtype), memory)
        lead = x.shape[:-1]
        x = x.reshape(-1, x.shape[-1])
        before, after = memory.reshape(-1, self.memory_size).split(self.size, -1), []
        for layer, weights in enumerate(self.cells.all_weights):
            if self.kind == "lstm":
                run = torch.lstm_cell if lasts(x) else lstm_cell
                x, cell = run(x, before[2 * layer : 2 * layer + 2], *weights)
                after += [x, cell]
            else:
                x = torch.gru_cell(x, before[layer], *weights)
                after.append(x)
        following = after[0] if len(after) == 1 else torch.cat(after, -1)
        return x.view(*lead, self.size), following.view(*lead, self.memory_size).to(memory.dtype)

    def unroll(self, x: Tensor, memory: Tensor, sizes: list[int] | None) -> Tensor:
        """Makes all steps of S sequences that begin in the states ``[S, M]``.

        Args:
            x: ``[P, F]``, all first steps, then all second ones, and so on.
            sizes: the number of sequences that have each step, the longest first; None if all are of the same length.

        Returns the outputs ``[P, H]``.
        """
        if _in_low_precision(x):
            with torch.autocast("cpu", enabled=False):
                return self.unroll(x.to(memory.dtype), memory, sizes)
        states = memory.view(-1, self.layers, self._parts, self.size).permute(2, 1, 0, 3).contiguous()
        if sizes is None:
            x = x.view(-1, len(memory), x.shape[-1])
            return self.cells(x, tuple(states) if self.kind == "lstm" else states[0])[0].flatten(0, 1)
        for layer, (weight, recurrent, bias, recurrent_bias) in enumerate(self.cells.all_weights):
            if self.kind == "lstm":
                x = linear(x, weight, bias + recurrent_bias)
                x = LSTMSequence.apply(x, states[0, layer], states[1, layer], recurrent, sizes)
            else:
                x = GRUSequence.apply(linear(x, weight, bias), states[0, layer], recurrent, recurrent_bias, sizes)
        return x

    def pads(self, segments: Segments) -> bool:
        """Returns True if it is faster to pad all segments to the same length and use a fused kernel.

        There is one for the LSTM on the CPU, and for both on a GPU, where each launch in a loop of kernels takes time.
        """
        if segments.active.device.type != "cpu":
            return True
        return self.kind == "lstm" and segments.count * segments.length <= _WASTE * segments.steps


def lstm_cell(x: Tensor, state: Sequence[Tensor], *weights: Tensor) -> tuple[Tensor, Tensor]:
    """Does what ``torch.lstm_cell`` does, which ``vmap`` cannot express, in separate operations."""
    (hidden, cell), (weight, recurrent, bias, recurrent_bias) = state, weights
    gates = (linear(x, weight, bias) + linear(hidden, recurrent, recurrent_bias)).chunk(4, -1)
    into, forget, out = (gates[index].sigmoid() for index in (0, 1, 3))
    cell = forget * cell + into * gates[2].tanh()
    return out * cell.tanh(), cell


def becomes_a_program() -> bool:
    """Returns whether the present call is recorded by ``torch.export`` or ``torch.jit.trace``."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()  # type: ignore[attr-defined]


def lasts(tensor: Tensor) -> bool:
    """Returns False for a tensor of ``vmap``, ``torch.export`` or a trace, which must not be kept after the call."""
    if becomes_a_program():
        return False
    if torch.compiler.is_compiling():
        return True
    try:
        tensor.data_ptr()
    except RuntimeError:  # it has no numbers of its own
        return False
    return True


def _in_low_precision(x: Tensor) -> bool:
    """Returns whether autocast is on for the CPU, whose recurrent kernels lack low precisions."""
    return x.device.type == "cpu" and torch.is_autocast_enabled("cpu")


class Remembering(Encoder):
    """An encoder followed by a recurrent core.

    For the network that contains it, it encodes what is :data:`REMEMBERED`: observations first go through :meth:`step`
    or :meth:`unroll`, and their output goes through :meth:`forward`, which only picks its own part.

    Args:
        encoder: observation encoder.
        core: takes the encoder's features.

    Attributes:
        name: key of its features.
    """

    def __init__(self, encoder: nn.Module, core: Core) -> None:
        super().__init__()
        self.encoder, self.core, self.name = encoder, core, ""
        self.out_features = core.out_features

    def forward(self, remembered: TensorDictBase) -> Tensor:
        return remembered.get(REMEMBERED).get(self.name)

    def step(self, observation: Observation, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Makes one step; see :meth:`Core.step`."""
        return self.core.step(self.encoder(observation), memory)

    def unroll(
        self, observation: Observation, memory: Tensor, segments: Segments, following: Observation | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Makes all steps of sequences ``[N, L]`` that begin in states ``[N, M]``.

        Args:
            following: observations ``[E]`` after the ends of the segments, which must then be extended.

        Returns features ``[N, L, H]``, and, if ``following`` is given, those of the next step of the same episode.
        """
        layout = segments.layout(self.core.pads(segments))
        after = None if following is None else self.encoder(following)
        laid = layout.lay(self.encoder(observation), after)
        out = self.core.unroll(laid, segments.begin(memory), layout.sizes)
        return layout.gather(out), None if following is None else layout.gather(out, 1)

    @torch.no_grad()
    def follow(
        self, observation: Observation, memory: Tensor, starts: Tensor, active: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """Returns the states of sequences ``[N, L]`` that begin in states ``[N, M]``: before each step and last."""
        x: Tensor = self.encoder(observation)
        keep, there = (~starts).to(x.dtype)[..., None], active.to(x.dtype)[..., None]
        before = []
        for t in range(x.shape[1]):
            before.append(memory * keep[:, t])
            _, memory = self.core.step(x[:, t], before[-1])
            memory = memory * there[:, t]
        return before, memory


def remembered(features: dict[str, Tensor], **besides: Any) -> TensorDict:
    """Returns features ``[..., H]`` by the name of their core, as a replacement for an observation."""
    lead = next(iter(features.values())).shape[:-1]
    inner = unchecked(dict(features), batch_size=lead)
    return unchecked({REMEMBERED: inner, **besides}, batch_size=lead)


# -- written out for packed steps ----------------------------------------------------------------------------------


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
