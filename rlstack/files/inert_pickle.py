"""Reading a pickle of Stable-Baselines3's statistics into inert stand-ins: nothing in it is imported, nothing runs."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np

from rlstack.config import ConfigError


class Standin:
    """Takes the place of an object in the pickle: keeps its fields and can do nothing.

    All stand-ins are classes with ``__setstate__``, so that a pickle cannot write to a class or function of ours.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __new__(cls, *_: Any, **__: Any) -> Any:
        standin = super().__new__(cls)
        standin.fields = {}  # a pickle may create an object without initialising it
        return standin

    fields: dict[str, Any]

    def __setstate__(self, state: Any) -> None:
        self.fields = state if isinstance(state, dict) else {}


class Normaliser(Standin):
    """A ``VecNormalize``."""


class Dtype(Standin):
    """A numpy dtype, of which only plain numbers are understood."""

    code, order = "", "<"

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = str(code)

    def __setstate__(self, state: Any) -> None:
        self.order = ">" if state[1] == ">" else "<"

    def numpy(self) -> np.dtype[Any]:
        """The dtype, if it is one of plain numbers.

        Raises:
            ValueError: it is not.
        """
        if self.code[:1] not in ("f", "i", "u", "b") or not self.code[1:].isdigit():
            raise ValueError(f"an array of {self.code!r} where numbers are expected")
        return np.dtype(self.order + self.code)


class Array(Standin):
    """A numpy array as its bytes, unpacked only when asked for."""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, self.fortran, self.content = state

    def array(self) -> np.ndarray[Any, Any]:
        """The numbers.

        Raises:
            ValueError: not numbers, or not as many as the shape says.
        """
        return np.frombuffer(self.content, self.dtype.numpy()).reshape(self.shape, order="F" if self.fortran else "C")


class _Scalar(Standin):
    """``scalar(dtype, bytes)``: a number as numpy pickles it."""

    def __new__(cls, dtype: Dtype, content: Any = b"") -> Any:
        scalar = Array()
        scalar.__setstate__((1, (), dtype, False, content))
        return scalar


class _FromBuffer(Standin):
    """``_frombuffer(bytes, dtype, shape, order)``: an array of pickle protocol 5."""

    def __new__(cls, content: Any, dtype: Dtype, shape: Any, order: Any) -> Any:
        array = Array()
        array.__setstate__((1, shape, dtype, order == "F", content))
        return array


class _Bytes(Standin):
    """``encode(text, "latin1")``: how pickle protocols below 3 spell bytes."""

    def __new__(cls, text: str, *_: Any) -> Any:
        return text.encode("latin1")


def _allowed() -> dict[tuple[str, str], Any]:
    allowed: dict[tuple[str, str], Any] = {
        ("collections", "OrderedDict"): OrderedDict,
        ("_codecs", "encode"): _Bytes,
        ("numpy", "dtype"): Dtype,
        ("numpy", "ndarray"): Array,
        ("stable_baselines3.common.vec_env.vec_normalize", "VecNormalize"): Normaliser,
        ("stable_baselines3.common.running_mean_std", "RunningMeanStd"): Standin,
    }
    for core in ("numpy.core", "numpy._core"):
        allowed[f"{core}.multiarray", "_reconstruct"] = Array
        allowed[f"{core}.multiarray", "scalar"] = _Scalar
        allowed[f"{core}.numeric", "_frombuffer"] = _FromBuffer
    spaces = {"box": "Box", "discrete": "Discrete", "dict": "Dict", "tuple": "Tuple"}
    spaces |= {"multi_discrete": "MultiDiscrete", "multi_binary": "MultiBinary"}
    for library in ("gym", "gymnasium"):
        for module, name in spaces.items():
            allowed[f"{library}.spaces.{module}", name] = Standin
        allowed[f"{library}.utils.seeding", "RandomNumberGenerator"] = Standin
    for name in ("__randomstate_ctor", "__generator_ctor", "__bit_generator_ctor"):
        allowed["numpy.random._pickle", name] = Standin
    for module, name in (("_pcg64", "PCG64"), ("_pcg64", "PCG64DXSM"), ("_mt19937", "MT19937"), ("_philox", "Philox")):
        allowed[f"numpy.random.{module}", name] = Standin
    for name in ("SeedSequence", "__pyx_unpickle_SeedSequence"):
        allowed["numpy.random.bit_generator", name] = Standin
    return allowed


class _Unpickler(pickle.Unpickler):
    """Finds nothing but the stand-ins."""

    allowed = _allowed()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise ConfigError(
                f"refused: the pickle names {module}.{name}; only numpy data, spaces, random generators and "
                "Stable-Baselines3's VecNormalize and RunningMeanStd may occur"
            )
        return self.allowed[module, name]


def read_pickle(content: bytes) -> Any:
    """The object in a pickle, made of stand-ins, plain containers and plain values.

    Raises:
        ConfigError: it names anything that is not allowed, or is no pickle.
    """
    try:
        return _Unpickler(io.BytesIO(content)).load()
    except ConfigError:
        raise
    except Exception as error:  # whatever a broken or hostile stream makes of the stand-ins
        raise ConfigError(f"not a pickle of a VecNormalize ({type(error).__name__}: {error})") from None
