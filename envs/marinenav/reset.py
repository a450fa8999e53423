"""Random worlds by vectorised rejection sampling, with the distribution of the public environment.

Every world proposes one candidate at a time and accepts or rejects it against what it has accepted so far, as the
original does; worlds only share the loop. A world that has used its 500 attempts keeps what it has, so that it can
hold fewer robots, cores or obstacles than requested.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from . import rules
from .rules import Rules
from .state import WorldState, blank_state

_BLOCK = 8


@dataclass(frozen=True)
class Level:
    """How hard a random world is."""

    num_robots: int = 5
    num_obstacles: int = 4
    num_cores: int = 0
    min_start_goal_dis: float = 40.0


Propose = Callable[[int], Tensor]
Screen = Callable[[Tensor, Tensor], Tensor]
Accept = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _rejection_sample(
    wanted: Tensor, slots: int, propose: Propose, screen: Screen, accept: Accept, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Fills up to ``wanted[w]`` of ``slots`` places of every world by at most 500 proposals each.

    Conditions that do not depend on what the world has accepted (``screen``) are tested on a block of proposals at
    once; the first that passes is tested against the accepted ones (``accept``), the rest of the block is thrown
    away untested and does not count as tried. The proposals being independent, this is the original's distribution.

    Args:
        propose: ``count -> [features, count]`` candidates.
        screen: ``(candidates [features, K, P], worlds [P]) -> [K, P]`` bool.
        accept: ``(candidate [features, P], accepted [features, slots, P], filled [slots, P] bool, worlds [P])
            -> [P]`` bool, ``worlds`` being the indices still searching.

    Returns accepted ``[features, slots, W]`` and filled ``[slots, W]`` bool.
    """
    worlds, device = len(wanted), wanted.device
    features = len(propose(1))
    accepted = like.new_zeros(features, slots, worlds)
    count, tried = torch.zeros_like(wanted), torch.zeros_like(wanted)
    place = torch.arange(slots, device=device)[:, None]
    order = torch.arange(_BLOCK, device=device)[:, None]
    while True:
        index = ((count < wanted) & (tried < rules.MAX_ATTEMPTS)).nonzero()[:, 0]
        if len(index) == 0:
            return accepted, place < count
        block = propose(_BLOCK * len(index)).view(features, _BLOCK, len(index))
        first = torch.where(screen(block, index), order, _BLOCK).amin(0)
        candidate = block.gather(1, first.clamp_max(_BLOCK - 1).expand(features, 1, -1))[:, 0]
        part, part_count, part_tried = accepted[..., index], count[index], tried[index]
        good = (first < _BLOCK) & (part_tried + first < rules.MAX_ATTEMPTS)
        good &= accept(candidate, part, place < part_count, index)
        accepted[..., index] = torch.where(good & (place == part_count), candidate[:, None], part)
        count[index] = part_count + good
        tried[index] = part_tried + (first + 1).clamp_max(_BLOCK)


def random_worlds(
    level: Tensor, levels: list[Level], generator: torch.Generator, dtype: torch.dtype
) -> WorldState:
    """Draws one random world per entry of ``level`` (indices into ``levels``, ``[W]``)."""
    device, worlds = generator.device, len(level)
    robots = max(entry.num_robots for entry in levels)
    obstacles = max(entry.num_obstacles for entry in levels)
    cores = max(entry.num_cores for entry in levels)
    state = blank_state(robots, obstacles, cores, worlds, dtype, device)
    state.level = level.clone()

    def per_level(name: str) -> Tensor:
        return torch.tensor([getattr(entry, name) for entry in levels], device=device)[level]

    def uniform(features: int, low: float, high: float) -> Propose:
        def draw(count: int) -> Tensor:
            return low + (high - low) * torch.rand(features, count, generator=generator, device=device, dtype=dtype)

        return draw

    far_enough = per_level("min_start_goal_dis").to(dtype)
    low, high = rules.START_MARGIN, rules.MAP_SIZE - rules.START_MARGIN
    routes, state.present = _rejection_sample(
        per_level("num_robots"),
        robots,
        uniform(4, low, high),
        lambda block, index: _squared(block[2] - block[0], block[3] - block[1]) >= far_enough[index] ** 2,
        _accept_route,
        state.pose,
    )
    heading = 2 * math.pi * torch.rand(robots, worlds, generator=generator, device=device, dtype=dtype)
    state.start, state.goal = routes[:2], routes[2:]
    state.pose = torch.cat((state.start, heading[None])) * state.present
    state.active = state.present.clone()
    # Cores and obstacles keep clear of the starts and goals of the robots that exist.
    sites, filled = torch.cat((state.start, state.goal), dim=1), torch.cat((state.present, state.present))
    radius = Rules().core_radius

    def random_core(count: int) -> Tensor:
        centre = uniform(2, 0.0, rules.MAP_SIZE)(count)
        flag = (torch.rand(1, count, generator=generator, device=device) < 0.5).to(dtype)
        return torch.cat((centre, flag, 2 * math.pi * radius * uniform(1, *rules.CORE_EDGE_SPEED)(count)))

    def screen_core(block: Tensor, index: Tensor) -> Tensor:
        inside = ((block[:2] >= radius) & (block[:2] <= rules.MAP_SIZE - radius)).all(0)
        return inside & _clear(block, sites[..., index], filled[:, index], radius + rules.CLEAR_RADIUS)

    if cores:
        state.cores, _ = _rejection_sample(
            per_level("num_cores"), cores, random_core, screen_core, _accept_core(radius), state.pose
        )

    def random_obstacle(count: int) -> Tensor:
        centre = uniform(2, rules.OBSTACLE_MARGIN, rules.MAP_SIZE - rules.OBSTACLE_MARGIN)(count)
        return torch.cat((centre, uniform(1, *rules.OBSTACLE_RADIUS)(count)))

    def screen_obstacle(block: Tensor, index: Tensor) -> Tensor:
        size = block[2]
        inside = ((block[:2] >= size) & (block[:2] <= rules.MAP_SIZE - size)).all(0)
        free = _clear(block, sites[..., index], filled[:, index], size + rules.CLEAR_RADIUS)
        exists = state.cores[3, :, index] > 0
        return inside & free & _clear(block, state.cores[:2, :, index], exists, radius + size, strict=True)

    if obstacles:
        state.obstacles, state.obstacle_present = _rejection_sample(
            per_level("num_obstacles"), obstacles, random_obstacle, screen_obstacle, _accept_obstacle, state.pose
        )
    return state


def _squared(x: Tensor, y: Tensor) -> Tensor:
    return torch.addcmul(x * x, y, y)


def _clear(candidate: Tensor, sites: Tensor, filled: Tensor, distance: Tensor | float, strict: bool = False) -> Tensor:
    """``[..., P]`` bool: centres ``[>=2, ..., P]`` keep (more than) ``distance`` from all filled sites ``[2, S, P]``."""
    clear = torch.ones(candidate.shape[1:], dtype=torch.bool, device=candidate.device)
    for site, exists in zip(sites.unbind(1), filled, strict=True):
        gap = _squared(candidate[0] - site[0], candidate[1] - site[1])
        clear &= (gap > distance * distance if strict else gap >= distance * distance) | ~exists
    return clear


def _accept_route(candidate: Tensor, accepted: Tensor, filled: Tensor, _: Tensor) -> Tensor:
    """Start and goal apart from the other robots' starts and goals (a start is never compared with a goal)."""
    starts = _squared(accepted[0] - candidate[0], accepted[1] - candidate[1])
    goals = _squared(accepted[2] - candidate[2], accepted[3] - candidate[3])
    return ((torch.minimum(starts, goals) > rules.MIN_ROBOT_SEPARATION**2) | ~filled).all(0)


def _accept_obstacle(candidate: Tensor, accepted: Tensor, filled: Tensor, _: Tensor) -> Tensor:
    gap = _squared(accepted[0] - candidate[0], accepted[1] - candidate[1])
    return ((gap > (accepted[2] + candidate[2]) ** 2) | ~filled).all(0)


def _accept_core(radius: float) -> Accept:
    """The flow between a core and each accepted one must stay navigable.

    Cores of the same spin keep a distance set by their circulations. For opposite spins the published inequality
    has a negative left side below two core radii, so that nearly coincident cores pass.
    """

    def accept(candidate: Tensor, accepted: Tensor, filled: Tensor, _: Tensor) -> Tensor:
        gap = _squared(accepted[0] - candidate[0], accepted[1] - candidate[1]).sqrt()
        same_spin = accepted[2] == candidate[2]
        far = gap >= (accepted[3] + candidate[3]) / (2 * math.pi * rules.MAX_RELATIVE_SPEED)
        stronger, weaker = torch.maximum(accepted[3], candidate[3]), torch.minimum(accepted[3], candidate[3])
        bound = rules.CORE_SPEED_RATIO * weaker / (2 * math.pi * radius)
        passable = ~(stronger / (2 * math.pi * (gap - 2 * radius)) > bound)
        return (torch.where(same_spin, far, passable) | ~filled).all(0)

    return accept
