"""Opens untrusted files as plain data: nothing in them runs, and every fault has a message of its own.

The libraries' own messages are not repeated: some of them advise to load the file unsafely.
"""

from __future__ import annotations

import io
import json
import os
import warnings
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import numpy as np
import torch

from rlstack.config.errors import ConfigError
from rlstack.envs.foundation.files import check_archive, check_regular

REFUSED = "refused, it holds objects that are not plain data"


def load_tensors(file: str | Path | IO[bytes]) -> Any:
    """Loads a file of ``torch.save`` onto the CPU if it holds only tensors, numbers, strings and containers of them.

    Raises:
        OSError: the file cannot be read.
        MemoryError: the content does not fit into memory.
        ValueError: the content is anything else; the message says what.
    """
    if isinstance(file, str | Path):
        check_archive(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch raises errors of many types for damaged and hostile bytes
        if out_of_memory(error):
            raise MemoryError("the memory is full") from None
        if not isinstance(error, UnpicklingError):
            raise ValueError(f"not a file of torch.save, or a damaged one ({type(error).__name__})") from None
        # Bytes that are not a pickle end at the first byte that is not an operation.
        reason = "not a file of torch.save" if "operand" in str(error) else REFUSED
        raise ValueError(reason) from None


def load_arrays(path: str | Path) -> dict[str, np.ndarray[Any, Any]]:
    """Loads the arrays of an ``.npz`` file by name.

    Raises:
        OSError: the file cannot be read.
        MemoryError: the content does not fit into memory.
        ValueError: the content is anything else; the message says what.
    """
    check_archive(path)
    with open(path, "rb") as content:
        if not zipfile.is_zipfile(content):
            raise ValueError("not an npz file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file.items())
    except (OSError, MemoryError):
        raise
    except Exception as error:  # numpy and zlib raise errors of many types for damaged and hostile bytes
        if "pickle" in str(error):
            raise ValueError(REFUSED) from None
        raise ValueError(f"not an npz file, or a damaged one ({type(error).__name__})") from None
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("not an npz file of arrays alone")
    return arrays


def out_of_memory(error: BaseException) -> bool:
    """Returns whether an error reports that the memory is full, in Python, torch on the CPU or on a GPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "allocate memory" in str(error)
    )


def load_json(content: str | bytes) -> Any:
    """Calls ``json.loads``, and raises a ``ValueError`` also for content that is nested too deeply.

    Raises:
        ValueError: the content is not JSON.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json_object(path: str | Path) -> dict[str, Any]:
    """Reads the JSON object in a file.

    Raises:
        ConfigError: the file does not exist, is not JSON, or holds another value than an object.
    """
    try:
        content = load_json(check_regular(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({reason(error)})") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: not a JSON object but a {type(content).__name__}")
    return content


def is_torchscript(path: str | Path) -> bool:
    """Returns whether a path is a file, and a TorchScript archive."""
    try:
        if not os.path.isfile(path):  # a device may have no end
            return False
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name for name in archive.namelist())
    except Exception:  # zipfile raises errors of many types for damaged bytes
        return False


def forward_arguments(module: Any) -> list[Any]:
    """Returns the arguments of a TorchScript module's ``forward`` without ``self``.

    Raises:
        ValueError: the module has no ``forward``.
    """
    try:
        arguments = module.forward.schema.arguments
    except (AttributeError, NotImplementedError, RuntimeError):
        raise ValueError("a program without a forward, which cannot act") from None
    return list(arguments[1:])  # the first one is the module, whatever its name


def reason(error: Exception) -> str:
    """Returns in one line why something cannot be read or written."""
    return getattr(error, "strerror", None) or first_line(error)


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, shortened, or its type if the text is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def to_file(state: dict[str, Any]) -> bytes:
    """Returns nested dicts of tensors and numbers as a file that :func:`from_file` reads without pickle."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def from_file(saved: bytes) -> dict[str, Any]:
    """The inverse of :func:`to_file`."""
    return torch.load(io.BytesIO(saved), weights_only=True, map_location="cpu")
