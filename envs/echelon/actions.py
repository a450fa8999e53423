"""Converts agents' actions, in three forms, to orders, and computes the mask of possible choices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..foundation.tensors import made_once
from .state import State
from .tables import Tables

KINDS = ("hybrid", "multi", "box")
AXES, BUTTONS = 4, 5
_BINS = 5
TURNS = (-1.0, -0.4, -0.12, 0.0, 0.12, 0.4, 1.0)
"""Bins of turning, finer in the middle, since a gauss rifle aims within 0.1 rad."""
BUTTON_CHOICES = (2, 2, 3, 2, 2)


def counts(mechs: int) -> list[int]:
    """Returns the number of choices of each part of ``multi``: forward, strafe, jet, yaw, five buttons, target."""
    return [_BINS, _BINS, 2, len(TURNS), *BUTTON_CHOICES, mechs + 1]


def mask_size(kind: str, mechs: int) -> int:
    """Returns the size of a mask: all choices of ``multi``, buttons and target of ``hybrid``, none of ``box``."""
    return {"multi": sum(counts(mechs)), "hybrid": sum(BUTTON_CHOICES) + mechs + 1, "box": 0}[kind]


def orders_of(kind: str, action: Any, teams: int, mechs: int) -> Tensor:
    """Converts actions to orders, ``[teams, 10, n, W]``.

    Args:
        action: ``multi``: ``[W, A, 10]``, bin k of forward and strafe is (k - 2) / 2, of turning one of
            :data:`TURNS`; ``box``: ``[W, A, 9 + n]``, a button counts
            above 0 (a scout's secondary: ECM up to 0.5, ECCM above), the greatest of the last n names the target if
            it is above 0; ``hybrid``: a dict with ``axes [W, A, 4]`` in [-1, 1], ``buttons [W, A, 5]`` and
            ``target [W, A]``, 0: none.
    """
    if kind == "multi":
        chosen = action.to(torch.float32)
        half = _BINS // 2
        turns = made_once(_turns, chosen.dtype, chosen.device)
        turn = turns.index_select(0, action[..., 3].flatten()).view(*action.shape[:-1], 1)
        steps = (chosen[..., :2] - half) / half
        rows = torch.cat((steps, chosen[..., 2:3], turn, chosen[..., AXES:-1], chosen[..., -1:] - 1), -1)
    elif kind == "box":
        buttons = action[..., AXES : AXES + BUTTONS]
        pressed = (buttons > 0).to(action.dtype)
        # Only a scout's secondary has a third choice; for other buttons every value above 0 is a press.
        pressed = torch.cat((pressed[..., :2], pressed[..., 2:3] + (buttons[..., 2:3] > 0.5), pressed[..., 3:]), -1)
        best, place = action[..., AXES + BUTTONS :].max(-1, keepdim=True)
        target = torch.where(best > 0, place, -1).to(action.dtype)
        rows = torch.cat((action[..., :AXES].clamp(-1.0, 1.0), pressed, target), -1)
    else:
        axes = action.get("axes")
        buttons, target = (action.get(name).to(axes.dtype) for name in ("buttons", "target"))
        rows = torch.cat((axes.clamp(-1.0, 1.0), buttons, target[..., None] - 1), -1)
    return rows.permute(2, 1, 0).unflatten(1, (teams, mechs)).transpose(0, 1)


def _turns(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(TURNS, dtype=dtype, device=device)


def chosen_for(kind: str, orders: Tensor) -> Any:
    """Returns the action whose :func:`orders_of` are nearest to ``orders [teams, 10, n, W]``."""
    rows = orders.transpose(0, 1).flatten(1, 2).permute(2, 1, 0)
    axes, buttons, target = rows[..., :AXES], rows[..., AXES:-1], rows[..., -1]
    if kind == "hybrid":
        return {"axes": axes, "buttons": buttons.long(), "target": target.long() + 1}
    if kind == "box":
        names = torch.arange(orders.shape[2], device=rows.device) == target[..., None]
        pressed = torch.where(buttons > 1, 1.0, torch.where(buttons > 0, 0.5, -1.0)).to(rows.dtype)
        return torch.cat((axes, pressed, 2 * names.to(rows.dtype) - 1), -1)
    half = _BINS // 2
    jet = (axes[..., 2:3] > 0).to(rows.dtype)
    steps = (axes[..., :2] * half + half).round()
    turn = (axes[..., 3:4] - made_once(_turns, axes.dtype, axes.device)).abs().argmin(-1, keepdim=True)
    return torch.cat((steps, jet, turn, buttons, target[..., None] + 1), -1).long()


def possible(kind: str, state: State, tables: Tables, visible: Tensor, teams: int) -> Tensor | None:
    """Returns the mask ``[W, A, mask_size]`` bool of a class's buttons and visible targets; the dead have no choice.

    Args:
        visible: ``[2, n, n, W]`` bool.
    """
    if kind == "box":
        return None
    scout, light, _, heavy = (row.expand_as(state.hp[0]) > 0 for row in tables.classes)
    always = torch.ones_like(scout)
    fires = heavy | light | scout
    buttons = [always] * 4 + [always, fires, scout, always, ~scout, always, always]
    jets = light | scout
    axes = [always] * (2 * _BINS) + [always, jets] + [always] * len(TURNS)
    fixed = torch.stack([*axes, *buttons] if kind == "multi" else buttons)[:, None].expand(-1, teams, -1, -1)
    alive = state.alive[:teams]
    names = visible[:teams].permute(2, 0, 1, 3) & alive
    mask = torch.cat((fixed, torch.ones_like(names[:1]), names))
    return mask.flatten(1, 2).permute(2, 1, 0).contiguous()
