"""The player's observation: 32 numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .movement import length, length2
from .rules import FAR, ArenaRules, ArenaTables
from .state import ArenaState, nearest, two_nearest

GROUPS = {
    "player_state": slice(0, 7),
    "combat_targets": slice(10, 27),
    "mission_progress": slice(7, 10),
    "spatial_awareness": slice(27, 31),
    "enemy_count": slice(31, 32),
}
"""The entries of a structured observation, as parts of the flat one."""

SIZE = 32
_SURELY = 1.0e30  # multiplied with any positive number gives more than 1


def closest(state: ArenaState, rules: ArenaRules) -> tuple[Tensor, Tensor]:
    """Returns the squared distances ``[W]`` of the nearest enemy and the nearest enemy shot."""
    player = state.position[:, None]
    enemies = length2(state.targets[:, : rules.max_enemies] - player)
    return enemies.amin(0), length2(state.bullets - player).amin(0)


def observe(state: ArenaState, rules: ArenaRules, tables: ArenaTables) -> Tensor:
    """Returns the observation ``[W, 32]``; :class:`~.env.Arena` describes its numbers."""
    enemies, player = rules.max_enemies, state.position[:, None]
    targets, bullets = state.targets - player, state.bullets - player
    distance2, bullet_distance2 = length2(targets), length2(bullets)
    health = state.target_health
    enemy = two_nearest(distance2[:enemies], targets[:, :enemies])
    spawner = two_nearest(distance2[enemies:], torch.cat((targets[:, enemies:], health[None, enemies:])))
    offset = torch.stack((*enemy, spawner[0][:2], spawner[1][:2], nearest(bullet_distance2, bullets)), 1)  # [2, 5, W]
    distance = length(offset)
    there = (FAR / 2 - distance).mul_(_SURELY).clamp_(0, 1)
    rotation = state.rotation.to(offset.dtype)
    bearing = _bearing(offset, rotation, rules).sub_(0.5).mul_(there).add_(0.5)

    # Who is not there, with a health of 0, adds nothing.
    left = (health[enemies:] * _SURELY).clamp_max(1).sum(0)
    share = tables.shares.index_select(0, state.phase.long())
    beyond = rules.danger_radius**2 * (1 + torch.finfo(distance2.dtype).eps)  # the next larger number, or the one after
    within = (beyond - bullet_distance2).mul_(_SURELY).clamp_(0, 1).sum(0)
    (x, y), speed = state.position.unbind(0), state.velocity.unbind(0)
    d, b, t = distance.unbind(0), bearing.unbind(0), there.unbind(0)
    raw = [
        *(x, y, *speed, rotation, state.health, (state.shot_ready - state.step).clamp_min(0)),
        *(state.phase, left * share, state.step),
        *(d[0], b[0], t[0], d[1], b[1], t[1], d[2], b[2], t[2], spawner[0][2], d[3], b[3], t[3], spawner[1][2]),
        *(d[4], b[4], within, x, x, y, y, state.enemies),
    ]
    # The distance of what is not there is cut to 1 with the rest.
    return torch.stack(raw).mul_(tables.scale).add_(tables.shift).clamp_(-1, 1).T.contiguous()


def _bearing(offset: Tensor, rotation: Tensor, rules: ArenaRules) -> Tensor:
    """Direction relative to the heading, 0 to 1: 0.5 is dead ahead."""
    turn = torch.atan2(offset[1], offset[0]).sub_(rotation).mul_(0.5 / math.pi).add_(0.5)
    turn = turn - turn.floor().clamp_max_(0)  # one turn more below 0
    if rules.style == 1:  # with a heading from 0 on nothing is beyond 1
        return turn
    return turn - turn.ceil().sub_(1).clamp_min_(0)
