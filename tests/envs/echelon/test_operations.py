"""A step as a GPU makes it: few operations, and none that a CUDA graph cannot record."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlstack import envs
from rlstack.envs import waiting

VIEWS = {
    *(
        "view",
        "_unsafe_view",
        "expand",
        "permute",
        "transpose",
        "t",
        "unsqueeze",
        "squeeze",
        "select",
        "slice",
        "split",
    ),
    *("split", "unbind", "detach", "alias", "as_strided", "split_with_sizes", "empty_strided", "new_empty_strided"),
}
READS = {
    *("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "item", "lift_fresh", "one_hot"),
    *("_unique2", "unique_dim", "bincount"),
}


class Counted(TorchDispatchMode):
    """Counts operations by name, those on masks as an index under ``mask``."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name.startswith("index") and isinstance(args[1], list | tuple):
            name = "mask" if any(index is not None and index.dtype == torch.bool for index in args[1]) else name
        self.names[name] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 3000),
        ({"opponent": "policy", "visibility": "partial", "actions": "hybrid"}, 3000),
        ({"blue": 7, "red": 6, "opponent_mix": {"rush": 1.0, "veteran": 1.0, "random": 1.0}, "actions": "box"}, 3000),
    ],
)
def test_a_step_is_recordable_and_of_few_operations(
    options: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FREE", set())
    env = envs.make("echelon", num_worlds=2, maps=2, max_steps=2, **options)
    root = env.reset()
    for _ in range(2):  # the second ends all episodes
        _, root = env.step_and_maybe_reset(env.rand_action(root))
    for _ in range(2):
        env.rand_action(root)
        with Counted() as counted:
            _, root = env.step_and_maybe_reset(root)
        assert not READS.union(("mask",)).intersection(counted.names), counted.names
        assert sum(count for name, count in counted.names.items() if name not in VIEWS) <= most
