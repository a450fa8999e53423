"""Seeds, saves and restores the random generators of torch, numpy and Python."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seeds torch (all devices), numpy and ``random``."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """Returns the state of every global generator as plain tensors and numbers."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    rest = [float(value) if isinstance(value, float) else int(value) for value in rest]
    return {
        "python": random.getstate(),
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_rng(state: dict[str, Any]) -> None:
    """Restores :func:`rng_state`: of as many GPUs as the state and this machine have."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    for gpu, own in zip(range(torch.cuda.device_count()), state["cuda"]):
        torch.cuda.set_rng_state(own, gpu)


@contextmanager
def rng_untouched() -> Iterator[None]:
    """A context that restores all random generators at its end."""
    state = rng_state()
    try:
        yield
    finally:
        restore_rng(state)


@contextmanager
def surroundings_untouched() -> Iterator[None]:
    """A context that restores at its end all random generators, torch's number of threads, and its determinism."""
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    try:
        with rng_untouched():
            yield
    finally:
        torch.set_num_threads(threads)
        if mode != torch.get_deterministic_debug_mode():  # setting it imports torch's compiler, which takes a while
            torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """A context that seeds torch's global generators, for policies that draw, and restores all at its end."""
    with rng_untouched():
        torch.manual_seed(seed)
        yield
