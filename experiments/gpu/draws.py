"""Makes random numbers equal on every device, so that results can be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_NOT_DRAWN = ("_cudnn_rnn", "miopen_rnn", "attention")
"""Parts of the names of operations that are tagged as drawing because of their dropout, which nothing here has.

They exist on a GPU alone.
"""


class DrawnOnCpu(TorchDispatchMode):
    """A context in which every random operation runs on the CPU, with its result moved to the requested device.

    Operations without a generator draw from the CPU's default one (``torch.manual_seed``); those with a generator draw
    from a copy on the CPU that begins with the generator's seed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[tuple[int, int], tuple[torch.Generator, torch.Generator]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if not draws or any(name in func._schema.name for name in _NOT_DRAWN):
            return func(*args, **kwargs)
        given = [entry for entry in (*args, *kwargs.values()) if isinstance(entry, Tensor)]
        asked = kwargs.get("device")
        device = torch.device(asked) if asked is not None else given[0].device if given else torch.device("cpu")
        copies = {id(entry): entry.cpu() for entry in given if entry.device.type != "cpu"}

        def here(value: Any) -> Any:
            if isinstance(value, torch.Generator):
                if value.device.type != device.type:  # torch would raise an error, too
                    raise RuntimeError(f"{func}: a generator on {value.device} for numbers on {device}")
                return self._copy(value)
            return copies.get(id(value), value)

        arguments, options = tree_map(here, args), {name: here(value) for name, value in kwargs.items()}
        if asked is not None:
            options["device"] = torch.device("cpu")
        drawn = func(*arguments, **options)
        for entry in given:  # operations in place, or with ``out``
            if id(entry) in copies and drawn is copies[id(entry)]:
                return entry.copy_(drawn)
        return tree_map(lambda value: value.to(device) if isinstance(value, Tensor) else value, drawn)

    def _copy(self, generator: torch.Generator) -> torch.Generator:
        # Torch hands in another Python object every time; the generator is kept, so that its address stays its own.
        key = generator._cdata, generator.initial_seed()  # type: ignore[attr-defined]
        if key not in self._copies:
            self._copies[key] = generator, torch.Generator().manual_seed(key[1])
        return self._copies[key][1]
