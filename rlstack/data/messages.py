"""States as sent between processes: in-memory files that are read without pickle."""

from __future__ import annotations

import io
from typing import Any

import torch


def to_file(state: dict[str, Any]) -> bytes:
    """Returns nested dicts of tensors and numbers as a file that :func:`from_file` reads without pickle."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def from_file(saved: bytes) -> dict[str, Any]:
    """The inverse of :func:`to_file`."""
    return torch.load(io.BytesIO(saved), weights_only=True, map_location="cpu")
