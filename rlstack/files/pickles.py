"""Reads untrusted pickles of numpy's arrays and numbers, and ``.npz`` files of object arrays.

A pickle names the classes and functions that it needs. Every name is looked up in a table of inert stand-ins: nothing
is imported, nothing runs, and a name outside the table refuses the whole file.
"""

from __future__ import annotations

import gc
import math
import pickle
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from rlstack.config import ConfigError
from rlstack.envs.foundation.files import check_archive, replacing

_STRUCTS = {
    **{"f8": "d", "f4": "f", "f2": "e", "b1": "?"},
    **{"i8": "q", "i4": "i", "i2": "h", "i1": "b", "u8": "Q", "u4": "I", "u2": "H", "u1": "B"},
}
"""numpy's names of plain numbers with their codes in ``struct``."""


class Standin:
    """Replaces an object: keeps its fields and does nothing.

    All stand-ins are classes with ``__setstate__``, so a pickle cannot write to other classes or functions.
    """

    fields: dict[str, Any]

    def __new__(cls, *_: Any, **__: Any) -> Any:
        standin = super().__new__(cls)
        standin.fields = {}  # a pickle may create an object without initialising it
        return standin

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.fields = state if isinstance(state, dict) else {}


class _Dtype(Standin):
    """A numpy dtype: objects, or plain numbers of one kind."""

    code, order, reader = "", "<", struct.Struct("<d")

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = str(code)

    def __setstate__(self, state: Any) -> None:
        self.order = ">" if state[1] == ">" else "<"
        if self.code in _STRUCTS:
            self.reader = struct.Struct(self.order + _STRUCTS[self.code])

    def numbers(self, content: bytes, shape: tuple[int, ...], order: Any) -> Any:
        if self.code not in _STRUCTS:
            raise ValueError(f"an array of {self.code!r} where numbers are expected")
        return np.frombuffer(content, self.order + self.code).reshape(shape, order=order).tolist()


class _Array(list[Any], Standin):
    """A numpy array, which becomes the nested lists of its elements when its state arrives."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if isinstance(content, bytes):
            numbers = dtype.numbers(content, shape, "F" if fortran else "C")
            self[:] = numbers if shape else [numbers]
            return
        if dtype.code[:1] != "O" or type(content) is not list or len(content) != math.prod(shape):
            raise ValueError("an array that does not hold what it says")
        if fortran and len(shape) > 1:
            raise ValueError("an object array in Fortran order")
        self[:] = _nested(content, shape)


class _Scalar(Standin):
    """``scalar(dtype, bytes)``: a number as numpy pickles it; becomes a plain one."""

    def __new__(cls, dtype: _Dtype, content: bytes) -> Any:
        if dtype.code not in _STRUCTS:
            raise ValueError(f"a number of type {dtype.code!r}")
        return dtype.reader.unpack(content)[0]


class _FromBuffer(Standin):
    """``_frombuffer(bytes, dtype, shape, order)``: an array of numbers in pickle protocol 5."""

    def __new__(cls, content: bytes, dtype: _Dtype, shape: tuple[int, ...], order: str) -> Any:
        return dtype.numbers(content, shape, "F" if order == "F" else "C")


class _Bytes(Standin):
    """``encode(text, "latin1")``: bytes in pickle protocols below 3."""

    def __new__(cls, text: str, *_: Any) -> Any:
        return text.encode("latin1")


Names = Mapping[tuple[str, str], type]
"""The stand-in for each module and name that may occur in a pickle."""
NUMPY: Names = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("_codecs", "encode"): _Bytes,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _Scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FromBuffer for core in ("core", "_core")},
}
"""Stand-ins for arrays, which become nested lists, and for numbers."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], names: Names, only: str) -> None:
        super().__init__(file)
        self.names, self.only = names, only

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.names:
            raise ConfigError(f"refused: the pickle names {module}.{name}; only {self.only} may occur")
        return self.names[module, name]


def read_pickle(file: IO[bytes], names: Names = NUMPY, only: str = "numpy's arrays and numbers") -> Any:
    """Reads the object in a pickle as stand-ins, plain containers and plain values.

    Args:
        only: description of ``names``, for messages.

    Raises:
        ConfigError: the pickle names anything else.
        Exception: any error that a broken or hostile stream causes in the stand-ins.
    """
    return _Unpickler(file, names, only).load()


# -- object arrays -----------------------------------------------------------------------------------------------


def write_object_arrays(path: str | Path, arrays: Iterable[tuple[str, list[Any]]]) -> None:
    """Writes an ``.npz`` file for ``numpy.load(path, allow_pickle=True)`` atomically.

    Args:
        arrays: nested lists by name. Numpy makes an axis of every level at which all lists are equally long.
    """
    with replacing(path) as (partial,), _many_objects(), zipfile.ZipFile(partial, "w") as archive:
        for name, nested in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.array(nested, dtype=object))


def read_object_arrays(path: str | Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Reads arrays of an ``.npz`` file by name, as nested lists of plain numbers, flags and None.

    Args:
        path: the file; its arrays may be object arrays, as ``numpy.savez`` writes them, or plain numbers.
        names: names of the arrays to read.

    Raises:
        ConfigError: there is no such file or array, or a pickle names anything but numpy's arrays and numbers.
    """
    arrays = {}
    try:
        check_archive(path)
        with _many_objects(), zipfile.ZipFile(path) as archive:
            members = set(archive.namelist())
            if missing := [name for name in names if f"{name}.npy" not in members]:
                raise ConfigError(f"{path}: lacks {', '.join(missing)}")
            for name in names:
                with archive.open(f"{name}.npy") as file:
                    read = np.lib.format
                    version = read.read_magic(file)
                    header = read.read_array_header_1_0 if version == (1, 0) else read.read_array_header_2_0
                    shape, fortran, dtype = header(file)
                    if dtype == np.dtype(object):
                        content = read_pickle(file)
                        if not isinstance(content, _Array):
                            raise ValueError(f"a {type(content).__name__} where an array is expected")
                        arrays[name] = list(content)
                    elif dtype.kind not in "fiub":
                        raise ValueError(f"an array of {dtype}")
                    else:
                        numbers = np.frombuffer(file.read(), dtype).reshape(shape, order="F" if fortran else "C")
                        arrays[name] = numbers.tolist()
    except ConfigError as error:
        raise error if str(error).startswith(str(path)) else ConfigError(f"{path}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception as error:  # any error that a broken or hostile file causes in the stand-ins
        raise ConfigError(f"{path}: not a file of such arrays ({type(error).__name__}: {error})") from None
    return arrays


def _nested(flat: list[Any], shape: Sequence[int]) -> list[Any]:
    if len(shape) == 1:
        return flat
    size = len(flat) // shape[0] if shape[0] else 0
    return [_nested(flat[index * size : (index + 1) * size], shape[1:]) for index in range(shape[0])]


@contextmanager
def _many_objects() -> Iterator[None]:
    """A context without garbage collection, which would take most of the time among millions of new lists."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
