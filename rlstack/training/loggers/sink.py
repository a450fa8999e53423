"""A destination of metrics, and a configuration as such a destination takes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol

FRAMES = "frames"


class Sink(Protocol):
    """One destination of metrics, and its name for messages."""

    name: ClassVar[str]

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Record metrics measured at ``frames``."""

    def truncate_after(self, frames: int) -> None:
        """Forget what was recorded beyond ``frames``, as far as the destination can."""

    def close(self, failed: bool) -> None:
        """Write out what is pending; ``failed`` says that the run ended with an exception."""


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """Dotted keys and values of a configuration, but for those that say where a run goes."""
    for key, value in config.items():
        if prefix or key not in ("logger", "run_dir", "resume"):
            if isinstance(value, Mapping) and value:
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value if isinstance(value, bool | int | float | str) else str(value)
