"""Sequences that contain ends of episodes, split into segments of one episode each."""

from __future__ import annotations

import torch
from torch import Tensor


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
