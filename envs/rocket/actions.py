"""Converts three kinds of actions to a driver's controls, and back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec

from ..world import check_known

AXES = ("throttle", "steer", "pitch", "yaw", "roll")
BUTTONS = ("jump", "boost", "handbrake")
BINS = 5
CHOICES = (*[BINS] * len(AXES), *[2] * len(BUTTONS))
KINDS = ("multi", "lookup90", "box8")


def controls(kind: str, action: Tensor) -> Tensor:
    """Converts actions to ``[8, C, W]`` of :class:`~rlstack.envs.rocket.driving.Control`, in a Box's type or float32.

    Args:
        kind: ``"multi"``: ``[W, C, 8]`` int64, bin k of an axis is (k - 2) / 2, buttons are 0 or 1; ``"lookup90"``:
            ``[W, C]`` int64, a row of :func:`lookup_table`; ``"box8"``: ``[W, C, 8]`` within [-1, 1], a button is
            pressed above 0.
    """
    if kind == "lookup90":
        table = _table(action.device).T.contiguous()
        return table.index_select(1, action.T.reshape(-1)).view(len(table), *reversed(action.shape))
    chosen = action.permute(2, 1, 0)
    if kind == "multi":
        chosen = chosen.float()
        return torch.cat(((chosen[:5] - BINS // 2) / (BINS // 2), chosen[5:]))
    return torch.cat((chosen[:5].clamp(-1.0, 1.0), (chosen[5:] > 0).to(chosen.dtype)))


def lookup_table() -> Sequence[tuple[float, ...]]:
    """Returns the 90 controls usual among RLGym's players: 24 for the ground, 66 for the air."""
    thirds, switch = (-1.0, 0.0, 1.0), (0.0, 1.0)
    ground = [
        (throttle, steer, 0.0, steer, 0.0, 0.0, boost, handbrake)
        for throttle in thirds
        for steer in thirds
        for boost in switch
        for handbrake in switch
        if not boost or throttle == 1
    ]
    air = [
        (boost, yaw, pitch, yaw, roll, jump, boost, float(bool(jump and (pitch or yaw or roll))))
        for pitch in thirds
        for yaw in thirds
        for roll in thirds
        for jump in switch
        for boost in switch
        # A flip to the side needs no yaw; controls that neither tilt nor jump are among those for the ground.
        if not (jump and yaw) and (pitch or roll or jump)
    ]
    return ground + air


@cache
def _table(device: torch.device) -> Tensor:
    return torch.tensor(lookup_table(), device=device)


def action_spec(kind: str, lead: tuple[int, int], dtype: torch.dtype, device: torch.device | None) -> TensorSpec:
    """Returns the spec of every car's action; ``lead`` is ``(W, C)``.

    Raises:
        ValueError: the kind is unknown.
    """
    check_known("actions", [kind], KINDS)
    if kind == "multi":
        return MultiCategorical(list(CHOICES), shape=(*lead, len(CHOICES)), dtype=torch.int64, device=device)
    if kind == "lookup90":
        return Categorical(len(lookup_table()), shape=lead, dtype=torch.int64, device=device)
    return Bounded(-1.0, 1.0, shape=(*lead, len(CHOICES)), dtype=dtype, device=device)


def chosen_for(kind: str, wanted: Tensor) -> Tensor:
    """Returns the action ``[W, C, ...]`` whose :func:`controls` are nearest to ``wanted [8, C, W]``."""
    given = wanted.permute(2, 1, 0)
    if kind == "multi":
        half = BINS // 2
        return torch.cat(((given[..., :5] * half + half).round(), given[..., 5:]), -1).long()
    if kind == "box8":
        return torch.cat((given[..., :5], 2 * given[..., 5:] - 1), -1)
    table = _table(given.device).to(given.dtype)
    # Buttons count more than the positions of sticks.
    weight = torch.tensor([1.0] * len(AXES) + [3.0] * len(BUTTONS), dtype=given.dtype, device=given.device)
    return torch.cdist(given * weight, table * weight).argmin(-1)
