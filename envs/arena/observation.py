"""The player's observation: 32 numbers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from ..world import Mirror
from .rules import FAR, SURELY, ArenaRules, ArenaTables
from .state import ArenaState, length, length2, nearest, two_nearest

GROUPS = {
    "player_state": slice(0, 7),
    "combat_targets": slice(10, 27),
    "mission_progress": slice(7, 10),
    "spatial_awareness": slice(27, 31),
    "enemy_count": slice(31, 32),
}
"""The entries of a structured observation, as parts of the flat one."""

SIZE = 32


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
    there = (FAR / 2 - distance).mul_(SURELY).clamp_(0, 1)
    # Directions relative to the heading, 0 to 1: 0.5 is dead ahead.
    rotation = state.rotation.to(offset.dtype)
    bearing = torch.atan2(offset[1], offset[0]).sub_(rotation).mul_(0.5 / math.pi).add_(0.5)
    bearing = bearing - bearing.floor().clamp_max_(0)  # one turn more below 0
    if rules.style != 1:  # with a heading from 0 on, as in style 1, nothing is beyond 1
        bearing = bearing - bearing.ceil().sub_(1).clamp_min_(0)
    bearing = bearing.sub_(0.5).mul_(there).add_(0.5)

    # Who is not there, with a health of 0, adds nothing.
    left = (health[enemies:] * SURELY).clamp_max(1).sum(0)
    share = tables.shares.index_select(0, state.phase.long())
    beyond = rules.danger_radius**2 * (1 + torch.finfo(distance2.dtype).eps)  # the next larger number, or the one after
    within = (beyond - bullet_distance2).mul_(SURELY).clamp_(0, 1).sum(0)
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


_DISTANCES = [10, 13, 16, 20, 24]  # indices of the distances of two enemies, two spawners and one shot
_BEARINGS = [11, 14, 17, 21, 25]
_OTHERS = [2, 3, 5, 6, 7, 8, 9, 19, 23, 26, 31]
_DIAGONAL = math.hypot(ArenaRules.width, ArenaRules.height)
_AIM = 30.0
"""Scale in px: a shot hits a spawner less than 28 px off its line."""
_FAR, _NEAR = 1000.0, 100.0


class TargetFeatures(nn.Module):
    """Maps a flat observation ``[..., 32]`` to ``[..., 60]``, all of order 1.

    For the two nearest enemies, the two nearest spawners and the nearest enemy shot there are nine numbers each, zeros
    for missing ones: existence, nearness, cosine and sine of the bearing, distance from the line of fire in units of a
    target's size, position in the arena's axes (2), and distance from the lines along them (2). Then follow the ship's
    position from -1 to 1, its heading (cosine, sine), and the rest of the observation.
    """

    size = 9 * len(_DISTANCES) + 4 + len(_OTHERS)

    def __init__(self) -> None:
        super().__init__()
        for name, columns in (("distances", _DISTANCES), ("bearings", _BEARINGS), ("others", _OTHERS)):
            self.register_buffer(name, torch.tensor(columns), persistent=False)  # stays on the device

    distances: Tensor
    bearings: Tensor
    others: Tensor

    def forward(self, observation: Tensor) -> Tensor:
        seen = observation.movedim(observation.dim() - 1, 0).contiguous()  # contiguous rows are faster
        turn, share = 2 * math.pi * seen[4:5], seen.index_select(0, self.distances)
        there = (share < 1).to(share.dtype)
        distance, bearing = share * _DIAGONAL * there, 2 * math.pi * (seen.index_select(0, self.bearings) - 0.5)
        ahead, aside = bearing.cos(), bearing.sin()
        along, across = turn.cos(), turn.sin()
        x = distance * (ahead * along - aside * across)
        y = distance * (aside * along + ahead * across)
        off = [(line / _AIM).tanh() for line in (distance * aside, x, y)]
        targets = [there, there / (1 + distance / _NEAR), ahead * there, aside * there, off[0]]
        targets += [x / _FAR, y / _FAR, off[1], off[2]]
        return torch.cat([*targets, 2 * seen[:2] - 1, along, across, seen.index_select(0, self.others)]).movedim(0, -1)


# -- the mirror symmetry -------------------------------------------------------------------------------------------


_TURNS = {1: (2, 3), 2: (3, 4)}
"""The actions to the left and to the right, by style."""


def mirror(style: int) -> Mirror:
    """Returns the mirror of a style of control, which swaps left and right.

    One rule is not symmetric: if several spawners are due and only some of them may still make an enemy, the first in
    the list of the phase do.
    """
    return Mirror(partial(_seen, style), partial(_chosen, _TURNS[style]))


def _seen(style: int, observation: Any) -> Any:
    """Mirrors an observation, ``[..., 32]`` or a dict; :class:`~.env.Arena` describes its numbers."""
    if not isinstance(observation, Tensor):
        names = sorted(GROUPS, key=lambda name: GROUPS[name].start)
        flat = _seen(style, torch.cat([observation.get(name) for name in names], -1))
        parts = {name: flat[..., GROUPS[name]] for name in GROUPS}
        return TensorDict(parts, observation.batch_size, observation.device)
    seen = list(observation.unbind(-1))
    seen[0], seen[2] = 1 - seen[0], -seen[2]
    # A heading lies in [0, 1) in style 1 and in (-0.5, 0.5] in style 2, a bearing in [0, 1) and in (0, 1].
    heading = 0.5 - seen[4]
    seen[4] = heading.remainder(1) if style == 1 else torch.where(heading > 0.5, heading - 1, heading)
    for column in _BEARINGS:
        seen[column] = (-seen[column]).remainder(1) if style == 1 else 1 - seen[column].remainder(1)
    seen[27], seen[28] = seen[28], seen[27]
    return torch.stack(seen, -1)


def _chosen(turns: tuple[int, int], action: Tensor) -> Tensor:
    left, right = turns
    turned = (action == left).to(action.dtype) - (action == right).to(action.dtype)
    return action + (right - left) * turned
