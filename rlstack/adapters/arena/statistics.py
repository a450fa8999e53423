"""Running statistics of observations and rewards in the JSON layout of the Arena game's stack."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlstack.config import ConfigError
from rlstack.data.normalizers import ObservationNormalizer, RewardScaler


def statistics_to_json(observations: ObservationNormalizer | None, rewards: RewardScaler | None) -> dict[str, Any]:
    """Returns the statistics as numbers and lists: ``obs_mean [F]``, ``obs_var [F]``, ``obs_count``, ``ret_mean [1]``,
    ``ret_var [1]``, ``ret_count``; the entries of an argument that is None are left out.

    F is the size of an observation; the leaves of a structured one are concatenated in the order of its keys.

    Raises:
        ConfigError: an observation with object slots, whose statistics have separate counts.
    """
    entries: dict[str, Any] = {}
    if observations is not None:
        parts = _counted_together(observations)
        for name in ("mean", "var"):
            entries[f"obs_{name}"] = torch.cat([getattr(part, name).reshape(-1) for part in parts]).tolist()
        entries["obs_count"] = float(parts[0].count)
    if rewards is not None:
        own = rewards.moments
        entries |= {"ret_mean": [float(own.mean)], "ret_var": [float(own.var)], "ret_count": float(own.count)}
    return entries


def load_statistics(
    entries: Mapping[str, Any], observations: ObservationNormalizer | None, rewards: RewardScaler | None
) -> None:
    """The inverse of :func:`statistics_to_json`; an argument that is None is skipped. The statistics keep their device
    and dtype.

    Raises:
        ConfigError: a missing entry, one of the wrong kind or length, or an impossible number.
    """
    parts = [] if observations is None else _counted_together(observations)
    sizes = [part.mean.numel() for part in parts]
    seen = _read(entries, "obs", sum(sizes)) if parts else None
    returns = None if rewards is None else _read(entries, "ret", 1)
    if seen is not None:
        for part, mean, var in zip(parts, seen[0].split(sizes), seen[1].split(sizes)):
            part.set(mean, var, seen[2])
    if rewards is not None and returns is not None:
        rewards.moments.set(*returns)


def _counted_together(observations: ObservationNormalizer) -> list[Any]:
    parts = list(observations.moments)
    if not parts:
        raise ConfigError("statistics: no part of this observation is normalised")
    if observations._slots:
        raise ConfigError("statistics: those of observations with object slots have no JSON form")
    return parts


def _read(entries: Mapping[str, Any], prefix: str, size: int) -> tuple[Tensor, Tensor, Tensor]:
    lists = [_numbers(entries, f"{prefix}_{name}", size) for name in ("mean", "var")]
    count = _numbers(entries, f"{prefix}_count", None)
    if bool((lists[1] < 0).any()) or float(count) < 0:
        raise ConfigError(f"statistics: {prefix}_var and {prefix}_count must not be negative")
    return lists[0], lists[1], count


def _numbers(entries: Mapping[str, Any], key: str, size: int | None) -> Tensor:
    """Reads a list of ``size`` numbers, or one number if ``size`` is None."""
    value = entries.get(key)
    values = [value] if size is None else value
    wanted = 1 if size is None else size
    kind = "a number" if size is None else f"a list of {size} numbers"
    if (
        not isinstance(values, list)
        or len(values) != wanted
        or not all(type(number) in (int, float) and math.isfinite(number) for number in values)
    ):
        raise ConfigError(f"statistics: {key} must be {kind}, all finite")
    return torch.tensor(values[0] if size is None else values, dtype=torch.float64)
