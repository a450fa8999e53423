"""The state of a batch of worlds: tensors by name, whose last dimension is the world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from torch import Tensor

Fields = TypeVar("Fields", bound="Record")


@dataclass
class Record:
    """Tensors by name, and nested records with the types ``records``."""

    records: ClassVar[dict[str, type[Record]]] = {}

    def map(self: Fields, function: Callable[[Tensor], Tensor]) -> Fields:
        """Returns a new record with ``function`` applied to every tensor."""
        return type(self)(
            **{name: value.map(function) if isinstance(value, Record) else function(value) for name, value in self.own}
        )

    def replace(self: Fields, **changes: Any) -> Fields:
        """Returns a new record that shares all except the given entries."""
        return replace(self, **changes)

    @property
    def own(self) -> list[tuple[str, Any]]:
        """Returns names and values."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]

    def items(self, prefix: str = "") -> list[tuple[str, Tensor]]:
        """Returns names such as ``cars.boost`` and tensors."""
        entries: list[tuple[str, Tensor]] = []
        for name, value in self.own:
            entries += value.items(f"{prefix}{name}.") if isinstance(value, Record) else [(prefix + name, value)]
        return entries

    @classmethod
    def from_items(cls: type[Fields], items: Mapping[str, Tensor]) -> Fields:
        """Inverts :meth:`items`."""
        groups: dict[str, dict[str, Tensor]] = {name: {} for name in cls.records}
        for name, value in items.items():
            group, _, key = name.partition(".")
            if key:
                groups[group][key] = value
        inner = {name: kind.from_items(groups[name]) for name, kind in cls.records.items()}
        return cls(**inner, **{name: value for name, value in items.items() if "." not in name})

    def copy_worlds(self, target: Tensor, other: Record, source: Tensor | slice) -> None:
        """Overwrites the worlds ``target`` (indices) in place with the worlds ``source`` of another record."""
        for (_, value), (_, new) in zip(self.items(), other.items()):
            value[..., target] = new[..., source]
