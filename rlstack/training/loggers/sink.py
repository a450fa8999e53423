"""The interface of a destination of metrics, and the configuration in the form that destinations take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol

FRAMES = "frames"


class Sink(Protocol):
    """One destination of metrics, with a name for messages."""

    name: ClassVar[str]

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Records metrics measured at ``frames``."""

    def truncate_after(self, frames: int) -> None:
        """Removes entries beyond ``frames``, as far as the destination can."""

    def close(self, failed: bool) -> None:
        """Writes pending entries; ``failed`` means that the run ended with an exception."""


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """Yields dotted keys and values of a configuration, without those that name the run's folder."""
    for key, value in config.items():
        if prefix or key not in ("logger", "run_dir", "resume"):
            if isinstance(value, Mapping) and value:
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value if isinstance(value, bool | int | float | str) else str(value)
