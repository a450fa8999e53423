"""Recurrent networks: LSTM (Hochreiter & Schmidhuber 1997) and GRU (Cho et al. 2014) cores after an encoder.

A core runs step by step while acting, and over whole sequences while learning, with the same results. Sequences may
contain ends of episodes: they are split into :class:`Segments` of one episode each, which are then batched, so that
one call of the fused kernels processes all of them and nothing passes from one episode into the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import linear

from rlstack.envs.tensordicts import unchecked

from .cells import GRUSequence, LSTMSequence
from .encoders import Observation
from .segments import Segments

Kind: TypeAlias = Literal["lstm", "gru"]

_WASTE = 2.0
"""Up to this ratio of padded steps to steps, a fused kernel on padded sequences is faster than a loop over steps."""

REMEMBERED = "remembered"
"""Key of the cores' output that replaces an observation, and depends on all observations before it."""


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


class Remembering(nn.Module):
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
