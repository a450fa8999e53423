"""Counts on a CPU where a program would wait for a GPU."""

from __future__ import annotations

import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ASKING = {
    "aten::_local_scalar_dense",  # item, bool, int, float, tolist
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::is_nonzero",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::bincount",
    "aten::multinomial",  # checks the weights
    "aten::lift_fresh",  # torch.tensor(...) and indexing by a list: a copy from the host
}
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_ROOT = Path(__file__).resolve().parents[1]


class HostWaits(TorchDispatchMode):
    """A context; afterwards :attr:`places` counts operations by name and line of code."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Counter[str]()

    @property
    def count(self) -> int:
        return sum(self.places.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if asks_the_host(func, args):
            self.places[f"{func._schema.name} {place()}"] += 1
        return func(*args, **(kwargs or {}))


def asks_the_host(func: Any, args: Any) -> bool:
    """Returns whether an operation would wait for a GPU, or copy from the host's memory."""
    name = func._schema.name
    if func in (torch.ops.aten.normal.Tensor_Tensor, torch.ops.aten.normal.float_Tensor):
        return True  # whether a standard deviation is negative
    if name not in _ASKING and not (name in _INDEXING and any(map(_is_mask, args[1]))):
        return False
    # Torch's own optimisers count their steps on the host.
    return not any("/torch/optim/" in frame.filename for frame in traceback.extract_stack())


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def place() -> str:
    """Returns the innermost lines of this project that are being run."""
    own = [frame for frame in traceback.extract_stack() if frame.filename.startswith(str(_ROOT))]
    own = [frame for frame in own if "site-packages" not in frame.filename]
    own = [frame for frame in own if Path(frame.filename).name not in ("host_waits.py", "rehearsal.py")]
    return " < ".join(f"{Path(frame.filename).relative_to(_ROOT)}:{frame.lineno}" for frame in own[:-4:-1])
