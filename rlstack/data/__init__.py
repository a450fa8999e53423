"""TorchRL replay buffers, made of parts that TorchRL's own can replace; each part works in any TorchRL script."""

from .flatten import NStep, NStepWindows
from .replay import MemmapRows, RangeWriter, Replay, TensorRows, make_replay
from .samplers import SumTreeSampler, importance_weights
from .sequences import Windows, cut, episode_starts
from .sum_tree import SumTree

__all__ = [
    "MemmapRows",
    "NStep",
    "NStepWindows",
    "RangeWriter",
    "Replay",
    "SumTree",
    "SumTreeSampler",
    "TensorRows",
    "Windows",
    "cut",
    "episode_starts",
    "importance_weights",
    "make_replay",
]
