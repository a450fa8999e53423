"""Builds typed dataclasses from mappings, and converts them to plain values for yaml."""

import dataclasses
import math
import os
import reprlib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlstack.config.errors import ConfigError, did_you_mean, unknown_key

T = TypeVar("T")

_UNIONS = (Union, types.UnionType)
_SCALARS = (bool, int, float, str, types.NoneType)
_WORDS = {
    bool: "true or false",
    int: "a whole number such as 64 or 1e6",
    float: "a number",
    str: "text",
    None: "null",
    types.NoneType: "null",
    dict: "a mapping",
    Mapping: "a mapping",
}


@dataclass(frozen=True)
class Interval:
    """Bounds of a number, used as ``Annotated[float, Interval(low=0, high=1, open_high=True)]``.

    A side without a bound is infinite, but NaN and the infinities themselves are outside every interval.

    Attributes:
        why: the reason for the bounds, for the message about a number outside them.
    """

    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    why: str = ""

    def __contains__(self, value: float) -> bool:
        if value != value or abs(value) == math.inf:
            return False
        above = self.low is None or value > self.low or (value == self.low and not self.open_low)
        below = self.high is None or value < self.high or (value == self.high and not self.open_high)
        return above and below

    def __str__(self) -> str:
        left = "(-inf" if self.low is None else f"{'(' if self.open_low else '['}{self.low:g}"
        right = "inf)" if self.high is None else f"{self.high:g}{')' if self.open_high else ']'}"
        return f"{left}, {right}"

    def refusal(self, key: str, value: float) -> str:
        """Returns the message about a number outside the interval."""
        return f"{key}: {reprlib.repr(value)} is outside {self}{f' ({self.why})' if self.why else ''}"


def build(cls: type[T], mapping: Mapping[str, Any] | DictConfig, where: str = "") -> T:
    """Build the dataclass ``cls`` from a mapping, checking every key, type and bound.

    Nothing is coerced except int to float, a float that is a whole number (``1e6``) to int, and a key from int to text.

    Args:
        cls: a dataclass; fields may be nested dataclasses, Optional, unions, Literal, lists, tuples, dicts,
            scalars, and any of these inside ``Annotated`` with an :class:`Interval`.
        mapping: a dict or a Hydra node; interpolations in a node are resolved.
        where: key of the mapping, for messages (``"agent"``).

    Raises:
        ConfigError: in one line naming the key, for anything that does not fit. A ValueError raised by a
            dataclass's ``__post_init__`` is reported the same way.
    """
    if isinstance(mapping, DictConfig):
        mapping = resolve(mapping, where)
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{where or cls.__name__}: expected a mapping, got {_show(mapping)}")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    hints = get_type_hints(cls, include_extras=True)
    for key in mapping:
        if key not in fields:
            raise ConfigError(unknown_key(_join(where, key), fields))
    values: dict[str, Any] = {}
    for name, field in fields.items():
        key, value = _join(where, name), mapping.get(name, MISSING)
        if not (isinstance(value, str) and value == MISSING):
            values[name] = convert(hints[name], value, key)
        elif name in mapping or field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{key}: missing, expected {in_words(hints[name])}")
    try:
        return cls(**values)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from error


def to_plain(obj: Any) -> Any:
    """Turn a dataclass, a Hydra node, a Python value or any nesting of them into what a configuration file can hold.

    That is dicts, lists and scalars. Numbers and arrays of numpy and torch become Python's, paths text, and a class or
    a function ``package.module:name``.

    Raises:
        ConfigError: for any other value, or an interpolation that does not resolve.
    """
    if isinstance(obj, DictConfig | ListConfig):
        return resolve(obj, "")
    if isinstance(obj, type | types.FunctionType):
        if "<" in obj.__qualname__:  # <locals>, <lambda>
            raise ConfigError(f"{obj.__qualname__} has no name that a file could hold; define it outside of a function")
        return f"{obj.__module__}:{obj.__qualname__}"
    if isinstance(obj, os.PathLike):
        return str(os.fspath(obj))
    if dataclasses.is_dataclass(obj):
        return {field.name: to_plain(getattr(obj, field.name)) for field in dataclasses.fields(obj)}
    if type(obj).__module__ in ("numpy", "torch"):
        obj = obj.tolist() if hasattr(obj, "tolist") else str(obj)  # str: torch.device and dtypes
    if isinstance(obj, Mapping):
        return {key: to_plain(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [to_plain(value) for value in obj]
    if type(obj) in _SCALARS:
        return obj
    raise ConfigError(f"expected a class or what a configuration file can hold, got {type(obj).__name__}")


def resolve(node: DictConfig | ListConfig, where: str) -> Any:
    """Returns a Hydra node as plain dicts and lists, with its interpolations resolved."""
    try:
        return OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        key = error.full_key or where
        raise ConfigError(f"{key}: {str(error).splitlines()[0]}") from error


def convert(hint: Any, value: Any, key: str) -> Any:
    """Converts one value to the type ``hint``, by the rules of :func:`build`.

    Raises:
        ConfigError: the value does not fit; the message names ``key``.
    """
    if isinstance(value, DictConfig | ListConfig):
        value = resolve(value, key)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        value = convert(args[0], value, key)
        for interval in args[1:] if isinstance(value, int | float) and not isinstance(value, bool) else ():
            if isinstance(interval, Interval) and value not in interval:
                raise ConfigError(interval.refusal(key, value))
        return value
    if hint is Any or (isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, hint)):
        return value
    if not _fits(hint, value):
        guess = did_you_mean(value, _words_of(hint)) if isinstance(value, str) else ""
        raise ConfigError(f"{key}: {guess}expected {in_words(hint)}, got {_show(value)}")
    if origin in _UNIONS:
        # An exact type first, so that 1.0 stays a float.
        fitting = [option for option in args if _fits(option, value)]
        return convert(min(fitting, key=lambda option: _base(option) is not type(value)), value, key)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, key)
    if origin in (dict, Mapping):
        # A key of digits, such as that of a part of a tuple, is a number in yaml and on the command line.
        named = {str(k) if args[0] is str and type(k) is int else k: v for k, v in value.items()}
        return {convert(args[0], k, f"key of {key}"): convert(args[1], v, _join(key, k)) for k, v in named.items()}
    if origin in (list, Sequence, tuple):
        hints = list(args) if origin is tuple and args[-1] is not Ellipsis else [args[0]] * len(value)
        if len(hints) != len(value):
            raise ConfigError(f"{key}: expected {len(hints)} values, got {len(value)}")
        items = [convert(h, item, f"{key}[{i}]") for i, (h, item) in enumerate(zip(hints, value, strict=True))]
        return tuple(items) if origin is tuple else items
    try:
        return hint(value) if hint in (int, float) else value
    except OverflowError:
        raise ConfigError(f"{key}: {reprlib.repr(value)} is too large for a number with decimals") from None


def _fits(hint: Any, value: Any) -> bool:
    """Returns True if ``value`` has the outer type of ``hint``; its content is checked during conversion."""
    base = _base(hint)
    if base in _UNIONS:
        return any(_fits(option, value) for option in get_args(hint))
    if base is Literal:  # True == 1, but True is not a valid 1
        return any(type(choice) is type(value) and choice == value for choice in get_args(hint))
    if base is float:
        return type(value) in (int, float)
    if base is int:
        return type(value) is int or (type(value) is float and value.is_integer())
    if base in _SCALARS:
        return type(value) is base
    if base is Any:
        return True
    if base in (tuple, list, Sequence):
        return isinstance(value, list | tuple)
    if dataclasses.is_dataclass(base) or base in (dict, Mapping):
        return isinstance(value, Mapping | base)
    raise TypeError(f"a configuration field cannot have the type {hint!r}")


def _base(hint: Any) -> Any:
    origin = get_origin(hint)
    return _base(get_args(hint)[0]) if origin is Annotated else origin or hint


def _words_of(hint: Any) -> list[str]:
    """Returns the words that a type, or a part of a union, admits."""
    if _base(hint) in _UNIONS:
        return [word for option in get_args(hint) for word in _words_of(option)]
    return [word for word in get_args(hint) if isinstance(word, str)] if get_origin(hint) is Literal else []


def in_words(hint: Any) -> str:
    """Describes the values of a type, for messages."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return in_words(args[0])
    if origin in _UNIONS:
        return " or ".join(map(in_words, args))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args))
    base = origin or hint
    if base in (list, Sequence, tuple):
        return "a list such as [64, 64]" if args and _base(args[0]) is int else "a list"
    if dataclasses.is_dataclass(base):
        keys = ", ".join(f"{field.name}: ..." for field in dataclasses.fields(base))
        return str(getattr(base, "in_words", f"a mapping {{{keys}}}"))
    return _WORDS.get(base, getattr(base, "__name__", str(base)))


def _show(value: Any) -> str:
    return "null" if value is None else f"{reprlib.repr(value)} ({type(value).__name__})"


def _join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)
