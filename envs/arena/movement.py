"""The movement of player, enemies and projectiles in a step of every world."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..foundation.tensors import made_once
from .rules import ArenaRules, ArenaTables
from .state import ArenaState

_TINY = 1.0e-20  # replaces a distance of 0 before dividing, so that an enemy at its destination does not move


def move(
    state: ArenaState, action: Tensor, rules: ArenaRules, tables: ArenaTables, in_place: bool = True
) -> tuple[ArenaState, Tensor]:
    """Moves all objects by one step; also returns ``[W]`` bool whether the player shoots.

    Args:
        action: ``[W]`` int64, see :attr:`ArenaRules.num_actions`.
        in_place: whether to update the tensors of targets and projectiles in place.
    """
    step = state.step + 1
    position, velocity, rotation = steer(state, action, rules, tables)
    shoots = (action == rules.num_actions - 1) & (state.shot_ready <= step)
    shot_ready = torch.where(shoots, step + rules.shot_cooldown, state.shot_ready)
    add, addcmul = (Tensor.add_, Tensor.addcmul_) if in_place else (Tensor.add, Tensor.addcmul)
    # Enemies head for the player's current position; still targets have speed 0. Enemies cannot leave the arena this
    # way, since the player's box is smaller than theirs by more than a step.
    toward = position[:, None] - state.targets
    share = state.speed / length(toward).clamp_min_(_TINY)
    moved = state.replace(
        step=step,
        position=position,
        velocity=velocity,
        rotation=rotation,
        shot_ready=shot_ready,
        targets=addcmul(state.targets, toward, share),
        shots=add(state.shots, state.shot_velocity),
        bullets=add(state.bullets, state.bullet_velocity),
    )
    return moved, shoots


def steer(state: ArenaState, action: Tensor, rules: ArenaRules, tables: ArenaTables) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the player's position, velocity and rotation after an action."""
    control = tables.controls.index_select(1, action)
    if rules.style == 1:
        angle = state.rotation.to(control.dtype)
        push = torch.stack((angle.cos(), angle.sin())) * control[0]
        velocity = (state.velocity + push) * rules.friction
        velocity = velocity * (rules.top_speed / length(velocity)).clamp_max(1.0)
        rotation = torch.remainder(state.rotation + rules.turn * control[1].double(), 2 * math.pi)
    else:
        velocity, heading = control[:2], control[2].double() * math.pi
        rotation = torch.where(heading.isnan(), state.rotation, heading)
    return kept_inside(state.position + velocity, rules.player_radius, rules), velocity, rotation


def length(vector: Tensor) -> Tensor:
    """Returns the Euclidean length of ``[2, ...]``."""
    return length2(vector).sqrt()


def length2(vector: Tensor) -> Tensor:
    """Returns the squared length of ``[2, ...]``."""
    x, y = vector.unbind(0)
    return torch.addcmul(x * x, y, y)


def bounds(like: Tensor, rules: ArenaRules, margin: float = 0.0) -> Tensor:
    """Returns the greatest coordinates ``[2, 1, ...]`` of an object that keeps its distance from the edges."""
    sides = made_once(_bounds, rules.width - margin, rules.height - margin, like.dtype, like.device)
    return sides.view(2, *[1] * (like.dim() - 1))


def _bounds(x: float, y: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor((x, y), dtype=dtype, device=device)


def kept_inside(position: Tensor, radius: float, rules: ArenaRules) -> Tensor:
    """Returns the nearest places ``[2, ...]`` at which circles are inside the arena."""
    return position.clamp_min(radius).minimum(bounds(position, rules, radius))


def outside(position: Tensor, rules: ArenaRules) -> Tensor:
    """Returns whether centres ``[2, ...]`` are outside the arena."""
    x, y = position != kept_inside(position, 0.0, rules)
    return x | y
