"""Settings and fixtures for every test."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch is imported: one thread per process, no window, no upload.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("WANDB_MODE", "offline")

import pytest
import torch

torch.set_num_threads(1)

REPO = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("RLSTACK_SHARED") or REPO.parent / "shared").expanduser()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `shared` where the recorded data set is absent."""
    if SHARED.is_dir():
        return
    skip = pytest.mark.skip(reason=f"recorded data set absent: {SHARED} (set RLSTACK_SHARED)")
    for item in items:
        if item.get_closest_marker("shared"):
            item.add_marker(skip)


@pytest.fixture
def shared_dir() -> Path:
    """The folder of the full recorded data set; skips the test where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"recorded data set absent: {SHARED} (set RLSTACK_SHARED)")
    return SHARED


@pytest.fixture
def fixtures_dir() -> Path:
    """The folder of small recorded files that travel with the tests."""
    return REPO / "tests" / "fixtures"
