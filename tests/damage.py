"""Damages of files, as hypothesis strategies."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

OTHERS: list[Any] = [None, True, -1, 2**70, 0.5, float("nan"), "", "text", [], [1, [2]], {}, {"a": 1}]
"""Values of other kinds than the replaced one."""


def profile(examples: int) -> settings:
    """Returns settings with the same examples in each run and no deadline, since tests write files."""
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=checks)


@st.composite
def bad_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Draws damaged bytes: truncated, with flipped bits, a block of zeros or an insertion, or other content."""
    kind = draw(st.sampled_from(["cut", "flip", "zeros", "insert", "other"]))
    place = draw(st.integers(0, max(0, len(content) - 1)))
    if kind == "cut":
        return content[:place]
    if kind == "other":
        return draw(st.sampled_from([b"", b"\0" * 100, b"hello", b"[" * 100_000, pickle.dumps({"a": 1}), b"\xff\xfe"]))
    if kind == "insert":
        return content[:place] + draw(st.binary(min_size=1, max_size=8)) + content[place:]
    damaged = bytearray(content or b"\0")
    if kind == "zeros":
        length = draw(st.integers(1, max(1, len(content) // 4)))
        damaged[place : place + length] = bytes(len(damaged[place : place + length]))
        return bytes(damaged)
    for position in [place, *draw(st.lists(st.integers(0, max(0, len(content) - 1)), max_size=4))]:
        damaged[position] ^= 1 << draw(st.integers(0, 7))
    return bytes(damaged)


@st.composite
def bad_tree(draw: st.DrawFn, tree: Any) -> Any:
    """Draws a copy of nested containers with one entry missing, or of another kind or shape."""
    if isinstance(tree, dict | list | tuple) and len(tree) and (draw(st.integers(0, 4)) or isinstance(tree, tuple)):
        key = draw(st.sampled_from(sorted(tree, key=repr) if isinstance(tree, dict) else range(len(tree))))
        fate = draw(st.sampled_from(["deeper", "deeper", "deeper", "gone", "other"]))
        entries = dict(tree) if isinstance(tree, dict) else dict(enumerate(tree))
        if fate == "gone":
            del entries[key]
        elif fate == "other":
            entries[key] = draw(st.sampled_from(OTHERS))
        else:
            entries[key] = draw(bad_tree(entries[key]))
        return entries if isinstance(tree, dict) else type(tree)(entries.values())
    if isinstance(tree, torch.Tensor):
        shapes = [tree[None], tree.reshape(-1)[:-1], tree.double(), tree.bool(), torch.zeros(3), torch.zeros(0)]
        return draw(st.sampled_from(shapes))
    if isinstance(tree, np.ndarray):
        return draw(st.sampled_from([tree[None], tree.reshape(-1)[:-1], tree.astype(bool), np.zeros(3), np.array("x")]))
    return draw(st.sampled_from(OTHERS))


@st.composite
def bad_json(draw: st.DrawFn, content: bytes) -> bytes:
    """Draws well-formed JSON with other entries, or damaged bytes."""
    if draw(st.booleans()):
        return draw(bad_bytes(content))
    return json.dumps(draw(bad_tree(json.loads(content)))).encode()


@st.composite
def bad_tensors(draw: st.DrawFn, content: bytes) -> bytes:
    """Draws a valid file of ``torch.save`` with other entries, or damaged bytes."""
    if draw(st.booleans()):
        return draw(bad_bytes(content))
    buffer = io.BytesIO()
    torch.save(draw(bad_tree(torch.load(io.BytesIO(content), weights_only=True))), buffer)
    return buffer.getvalue()


@st.composite
def bad_arrays(draw: st.DrawFn, content: bytes) -> bytes:
    """Draws a valid ``.npz`` with other arrays, or damaged bytes."""
    with np.load(io.BytesIO(content), allow_pickle=True) as file:
        arrays = dict(file.items())
    if draw(st.booleans()) or any(array.dtype == object for array in arrays.values()):
        return draw(bad_bytes(content))
    changed = draw(bad_tree(arrays))
    named = changed if isinstance(changed, dict) else {"a": changed}
    buffer = io.BytesIO()
    # Lists become arrays of objects, which numpy pickles.
    np.savez(buffer, **{k: np.array(v, dtype=object if isinstance(v, list | dict) else None) for k, v in named.items()})
    return buffer.getvalue()


@st.composite
def bad_zip(draw: st.DrawFn, content: bytes) -> bytes:
    """Draws a valid zip with one member damaged or missing, or damaged bytes."""
    if draw(st.integers(0, 2)) == 0:
        return draw(bad_bytes(content))
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        chosen = draw(st.sampled_from(sorted(old.namelist())))
        for name in old.namelist():
            if name != chosen:
                new.writestr(name, old.read(name))
            elif draw(st.integers(0, 4)):
                data = old.read(name)
                is_json = data[:1] == b"{"
                new.writestr(name, draw(bad_json(data) if is_json else bad_bytes(data)))
    return buffer.getvalue()


class Bait:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)
