"""Compares a diagnosis with an earlier one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlstack.config import ConfigError
from rlstack.envs.foundation.files import check_regular

from .report import number

SCHEMA = "rlstack.diagnosis/1"
NOISE = 1.1
"""Ratios closer to 1 than this do not count as changes."""
_PARTS = {"learn": "parts_ms", "collect": "parts_seconds"}


def read(path: str | Path) -> dict[str, Any]:
    """Reads an earlier diagnosis.

    Raises:
        ConfigError: the file does not exist, or is of another kind or version.
    """
    try:
        content = json.loads(check_regular(path).read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"its schema is {content['schema']!r}, not {SCHEMA!r}")
        list(lines(content, content, path))  # every part is there
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise ConfigError(f"compare: {path} is not a whole diagnosis ({reason})") from None
    result: dict[str, Any] = content
    return result


def measures(diagnosis: Mapping[str, Any]) -> dict[str, tuple[float, bool]]:
    """Returns the comparable numbers by name, each with whether more is better."""
    numbers: dict[str, tuple[float, bool]] = {}
    for test, values in diagnosis["tests"].items():
        for name, value in values.items():
            if name.endswith(("per_second", "real_time_factor", "gpu_percent")):
                numbers[f"{test}.{name}"] = value, True
            elif name.startswith("ms_per_") or (name.endswith("_ms") and not isinstance(value, Mapping)):
                numbers[f"{test}.{name}"] = value, False
        # Parts are compared per frame, since longer iterations do not make a run slower.
        frames = values.get("frames_per_iteration")
        unit, scale = (" ms", 1.0) if frames is None else (" s per million frames", 1e6 / frames)
        parts = values.get(_PARTS.get(test, ""), {})
        numbers |= {f"{test}.{name}{unit}": (scale * took, False) for name, took in parts.items()}
        if "gpu_peak_memory_mb" in values:
            numbers[f"{test}.gpu_peak_memory_mb"] = values["gpu_peak_memory_mb"], False
    return numbers


def changes(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns ``name``, ``before``, ``now`` and ``ratio`` (above 1: better now) of each number that both have."""
    earlier, rows = measures(before), []
    for name, (value, better) in measures(now).items():
        old, _ = earlier.get(name, (0.0, better))
        if old > 0 and value > 0:
            rows.append({"name": name, "before": old, "now": value, "ratio": value / old if better else old / value})
    return rows


def lines(now: Mapping[str, Any], before: Mapping[str, Any], path: str | Path) -> Iterator[str]:
    """Yields the comparison as lines of text."""
    yield f"compared with {path}"
    for difference in differences(now, before):
        yield f"  not the same: {difference}"
    rows = changes(now, before)
    if not rows:
        yield "  nothing was measured in both"
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        ratio = row["ratio"]
        change = f"{ratio:.2f} times better" if ratio > 1 else f"{1 / ratio:.2f} times worse"
        change = f"about the same ({ratio:.2f})" if 1 / NOISE < ratio < NOISE else change
        yield f"  {row['name']:<{width}}  {number(row['before']):>12} -> {number(row['now']):>12}  {change}"


def differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Yields the conditions that differ: machine, device, options."""
    for part in ("machine", "subject", "config"):
        ours, theirs = (_flat(side.get(part, {})) for side in (now, before))
        for key in {**theirs, **ours}:
            if key not in ("cpu_share", "seconds") and theirs.get(key) != ours.get(key):
                yield f"{key} {theirs.get(key)} -> {ours.get(key)}"


def _flat(entries: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in entries.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return flat
