"""Random worlds by vectorised rejection sampling, with the distribution of the public environment.

Every world proposes one candidate at a time and compares it with those that it has accepted, as the original does;
worlds only share the loop. A world that has used its 500 attempts keeps its candidates, so it may have fewer robots,
cores or obstacles than requested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import rules
from .rules import MarineNavRules
from .state import WorldState, blank_state

_TESTED = 1 << 13
"""Approximate number of proposals tested at once: the fewer worlds still search, the more each world gets."""
_PIECE = 512
_FAR = 1.0e6


@dataclass(frozen=True)
class Level:
    """The difficulty of a random world."""

    num_robots: int = 5
    num_obstacles: int = 4
    num_cores: int = 0
    min_start_goal_dis: float = 40.0


class Runs(NamedTuple):
    """K consecutive runs of attempts for each of P worlds; a run ends with a candidate or fails."""

    candidate: Tensor  # [features, K, P] the last proposal of the run
    attempts: Tensor  # [K, P] int64: number of proposals from the first run to this one
    passed: Tensor  # [K, P] bool: the candidate has passed the tests so far


Draw = Callable[[int], Tensor]
"""Draws ``[features, count]`` independent proposals."""
Source = Callable[[Tensor], Runs]
"""Runs of attempts for the worlds of an index tensor ``[P]``."""
Fits = Callable[[Tensor, Tensor], Tensor]
"""``(candidates [features, K, P], accepted [features, slots, 1, P]) -> [K, P]`` bool."""


def _rejection_sample(wanted: Tensor, slots: int, source: Source, fits: Fits, like: Tensor) -> tuple[Tensor, Tensor]:
    """Fills up to ``wanted[w]`` of ``slots`` places of every world with at most 500 proposals each.

    Every world takes the first of its runs that succeeds. Later ones are discarded untested and do not count as
    attempts; since proposals are independent, this is the original's distribution.

    Returns accepted ``[features, slots, W]`` and filled ``[slots, W]`` bool.
    """
    worlds, device = len(wanted), wanted.device
    features = len(source(wanted.new_zeros(1)).candidate)
    # An empty place holds a distant object. One further place takes rejected candidates.
    accepted = like.new_full((features, slots + 1, worlds), _FAR)
    count, tried = torch.zeros_like(wanted), torch.zeros_like(wanted)
    while True:
        index = ((count < wanted) & (tried < rules.MAX_ATTEMPTS)).nonzero()[:, 0]
        if len(index) == 0:
            filled = torch.arange(slots, device=device)[:, None] < count
            return accepted[:, :slots].where(filled, 0.0), filled
        candidate, attempts, passed = source(index)
        before = tried.index_select(0, index)
        good = passed & (before + attempts <= rules.MAX_ATTEMPTS)
        good &= fits(candidate, _of(accepted[:, :slots], index)[:, :, None])
        runs = len(attempts)
        # The first successful run; a maximum of floats is much faster than a search among booleans.
        first = runs - (good * torch.arange(runs, 0.0, -1.0, device=device)[:, None]).amax(0).long()
        succeeds, last = first < runs, first.clamp_max(runs - 1)[None]
        number = count.index_select(0, index)
        place = torch.where(succeeds, number, slots) * worlds + index
        chosen = candidate.gather(1, last.expand(features, 1, -1))[:, 0]
        accepted.view(features, -1).scatter_(1, place.expand(features, -1), chosen)
        tried[index] = before + attempts.gather(0, last)[0]
        count[index] = number + succeeds


class _Stream:
    """Runs that end when a proposal passes a test common to all worlds, which most attempts fail cheaply.

    One long sequence of proposals is cut after every one that passes, and after every 512th, and the pieces are
    distributed to the worlds. A piece without success is a failed run.
    """

    def __init__(self, draw: Draw, passes: Callable[[Tensor], Tensor]) -> None:
        self._draw, self._passes = draw, passes
        self._pieces: tuple[Tensor, ...] | None = None

    def __call__(self, index: Tensor) -> Runs:
        worlds = len(index)
        runs = min(max(_TESTED // (8 * worlds), 1), 16)
        pieces = self._pieces or self._cut(runs * worlds)
        while pieces[1].numel() < runs * worlds:
            more = self._cut(runs * worlds - pieces[1].numel())
            pieces = tuple(torch.cat(both, -1) for both in zip(pieces, more))
        dealt = [piece[..., : runs * worlds].unflatten(-1, (runs, worlds)) for piece in pieces]
        self._pieces = tuple(piece[..., runs * worlds :] for piece in pieces)
        return Runs(dealt[0], dealt[1].cumsum(0), dealt[2])

    def _cut(self, wanted: int) -> tuple[Tensor, ...]:
        """Returns candidates ``[features, n]``, lengths ``[n]`` and successes ``[n]`` of further pieces."""
        proposals = self._draw(_PIECE * (1 + 8 * wanted // _PIECE))
        passed = self._passes(proposals)
        ends = passed.clone()
        ends[_PIECE - 1 :: _PIECE] = True
        index = ends.nonzero()[:, 0]
        length = index.diff(prepend=index.new_full((1,), -1))
        return proposals.index_select(1, index), length, passed.index_select(0, index)


def _one_by_one(draw: Draw, passes: Callable[[Tensor, Tensor], Tensor]) -> Source:
    """Makes runs of one attempt, tested by ``passes(candidates [features, K, P], worlds [P]) -> [K, P]`` bool."""

    def source(index: Tensor) -> Runs:
        runs = min(max(_TESTED // len(index), 4), 64)
        candidate = draw(runs * len(index)).unflatten(1, (runs, len(index)))
        attempts = torch.arange(1, runs + 1, device=index.device)[:, None].expand(-1, len(index))
        return Runs(candidate, attempts, passes(candidate, index))

    return source


def random_worlds(level: Tensor, levels: list[Level], generator: torch.Generator, dtype: torch.dtype) -> WorldState:
    """Draws one random world per entry of ``level`` (indices into ``levels``, ``[W]``)."""
    device, worlds = generator.device, len(level)
    robots = max(entry.num_robots for entry in levels)
    obstacles = max(entry.num_obstacles for entry in levels)
    cores = max(entry.num_cores for entry in levels)
    state = blank_state(robots, obstacles, cores, worlds, dtype, device)
    state.level = level.clone()

    def per_level(name: str) -> Tensor:
        return torch.tensor([getattr(entry, name) for entry in levels], device=device)[level]

    def uniform(features: int, low: float, high: float) -> Draw:
        def draw(count: int) -> Tensor:
            if low == high:
                return torch.full((features, count), low, device=device, dtype=dtype)
            return torch.empty(features, count, device=device, dtype=dtype).uniform_(low, high, generator=generator)

        return draw

    def length2(route: Tensor) -> Tensor:
        return _squared(route[2] - route[0], route[3] - route[1])

    far_enough = per_level("min_start_goal_dis").to(dtype) ** 2
    least = min(entry.min_start_goal_dis for entry in levels) ** 2
    long_routes = _Stream(
        uniform(4, rules.START_MARGIN, rules.MAP_SIZE - rules.START_MARGIN), lambda routes: length2(routes) >= least
    )

    def route_source(index: Tensor) -> Runs:
        runs = long_routes(index)
        return runs._replace(passed=runs.passed & (length2(runs.candidate) >= far_enough.index_select(0, index)))

    def route_fits(candidate: Tensor, accepted: Tensor) -> Tensor:
        """Tests that start and goal are far from others' starts and goals (a start is not compared with a goal)."""
        starts = _squared(accepted[0] - candidate[0], accepted[1] - candidate[1])
        goals = _squared(accepted[2] - candidate[2], accepted[3] - candidate[3])
        return torch.minimum(starts, goals).amin(0) > rules.MIN_ROBOT_SEPARATION**2

    routes, state.present = _rejection_sample(per_level("num_robots"), robots, route_source, route_fits, state.pose)
    heading = 2 * math.pi * torch.rand(robots, worlds, generator=generator, device=device, dtype=dtype)
    state.start, state.goal = routes[:2], routes[2:]
    state.pose = torch.cat((state.start, heading[None])) * state.present
    state.active = state.present.clone()
    # Cores and obstacles keep a distance from the starts and goals of existing robots.
    sites = torch.cat((state.start, state.goal), dim=1).where(torch.cat((state.present, state.present)), _FAR)
    radius = float(MarineNavRules().core_radius)

    def random_core(count: int) -> Tensor:
        centre = uniform(2, 0.0, rules.MAP_SIZE)(count)
        flag = (torch.rand(1, count, generator=generator, device=device) < 0.5).to(dtype)
        return torch.cat((centre, flag, 2 * math.pi * radius * uniform(1, *rules.CORE_EDGE_SPEED)(count)))

    def core_passes(core: Tensor, index: Tensor) -> Tensor:
        inside = _room(core, radius) >= 0
        return inside & (_gap2(core, _of(sites, index)) >= (radius + rules.CLEAR_RADIUS) ** 2)

    def core_fits(candidate: Tensor, accepted: Tensor) -> Tensor:
        """Tests that the flow between a core and each accepted one stays navigable.

        Cores with the same spin keep a distance set by their circulations. For opposite spins the published inequality
        has a negative left side below two core radii, so nearly coincident cores pass.
        """
        gap = _squared(accepted[0] - candidate[0], accepted[1] - candidate[1]).sqrt()
        empty = accepted[0] == _FAR
        same_spin = accepted[2] == candidate[2]
        far = gap >= (accepted[3] + candidate[3]) / (2 * math.pi * rules.MAX_RELATIVE_SPEED)
        stronger, weaker = torch.maximum(accepted[3], candidate[3]), torch.minimum(accepted[3], candidate[3])
        bound = rules.CORE_SPEED_RATIO * weaker / (2 * math.pi * radius)
        passable = ~(stronger / (2 * math.pi * (gap - 2 * radius)) > bound)
        return (torch.where(same_spin, far, passable) | empty).all(0)

    if cores:
        source = _one_by_one(random_core, core_passes)
        state.cores, _ = _rejection_sample(per_level("num_cores"), cores, source, core_fits, state.pose)
    cores_apart = state.cores[:2].where(state.cores[3] > 0, _FAR)

    def random_obstacle(count: int) -> Tensor:
        centre = uniform(2, rules.OBSTACLE_MARGIN, rules.MAP_SIZE - rules.OBSTACLE_MARGIN)(count)
        return torch.cat((centre, uniform(1, *rules.OBSTACLE_RADIUS)(count)))

    def obstacle_passes(disc: Tensor, index: Tensor) -> Tensor:
        size = disc[2]
        passed = _room(disc, size) >= 0
        passed &= _gap2(disc, _of(sites, index)) >= (size + rules.CLEAR_RADIUS) ** 2
        if cores:
            passed &= _gap2(disc, _of(cores_apart, index)) > (radius + size) ** 2
        return passed

    def obstacle_fits(candidate: Tensor, accepted: Tensor) -> Tensor:
        gap = _squared(accepted[0] - candidate[0], accepted[1] - candidate[1]).sqrt()
        return (gap - accepted[2]).amin(0) > candidate[2]

    if obstacles:
        wanted, source = per_level("num_obstacles"), _one_by_one(random_obstacle, obstacle_passes)
        placed = _rejection_sample(wanted, obstacles, source, obstacle_fits, state.pose)
        state.obstacles, state.obstacle_present = placed
    return state


def _squared(x: Tensor, y: Tensor) -> Tensor:
    return torch.addcmul(x * x, y, y)


def _room(disc: Tensor, size: Tensor | float) -> Tensor:
    """Returns the distance of discs ``[>=2, K, P]`` from the nearest edge of the map, negative outside."""
    return torch.minimum(disc[:2], rules.MAP_SIZE - disc[:2]).amin(0) - size


def _of(values: Tensor, index: Tensor) -> Tensor:
    """Returns worlds ``index`` of ``[..., W]``, indexed in two dimensions, which is faster."""
    return values.flatten(0, -2).index_select(1, index).unflatten(0, values.shape[:-1])


def _gap2(candidate: Tensor, sites: Tensor) -> Tensor:
    """Returns the squared distance ``[K, P]`` of candidates ``[>=2, K, P]`` from the nearest site ``[2, S, P]``."""
    nearest = torch.full_like(candidate[0], torch.inf)
    for x, y in sites.unbind(1):
        nearest = torch.minimum(nearest, _squared(candidate[0] - x, candidate[1] - y))
    return nearest


# -- curriculum ------------------------------------------------------------------------------------------------------


_MOST = 1000
_LISTS = ("num_robots", "num_cores", "num_obstacles", "min_start_goal_dis")


@dataclass(frozen=True)
class LevelSchedule:
    """The levels of difficulty.

    Attributes:
        levels: size of a random world in each level.
        timesteps: ascending numbers of environment steps (summed over parallel worlds) at which each level begins.
            None: every reset draws one of the levels with equal probability.
        stage: the only level that is drawn, regardless of ``timesteps``; None follows ``timesteps``.
    """

    levels: list[Level]
    timesteps: list[int] | None
    stage: int | None = None

    @classmethod
    def from_options(
        cls,
        options: Mapping[str, Any] | None,
        num_robots: int,
        num_obstacles: int,
        num_cores: int,
        min_start_goal_dis: float,
    ) -> LevelSchedule:
        """Builds the curriculum from the published schedule format (lists of equal length) or from one level.

        Raises:
            ValueError: a list is unknown or missing, lengths differ, or ``timesteps`` do not ascend from 0.
        """
        if options is None:
            return cls([_checked(Level(num_robots, num_obstacles, num_cores, float(min_start_goal_dis)))], None)
        unknown = set(options) - {"timesteps", *_LISTS}
        missing = set(_LISTS) - set(options)
        if unknown or missing:
            problem = f"unknown {sorted(unknown)}" if unknown else f"missing {sorted(missing)}"
            raise ValueError(f"curriculum: {problem}; it takes the lists timesteps (or null), {', '.join(_LISTS)}")
        timesteps = options.get("timesteps")
        columns = [list(options[name]) for name in _LISTS] + ([list(timesteps)] if timesteps is not None else [])
        if len({len(column) for column in columns}) != 1 or not columns[0]:
            lengths = {name: len(options[name]) for name in _LISTS}
            raise ValueError(f"curriculum: its lists need one entry per level, got lengths {lengths}")
        if timesteps is not None and (timesteps[0] != 0 or list(timesteps) != sorted(timesteps)):
            raise ValueError(f"curriculum.timesteps: {list(timesteps)} must ascend from 0")
        levels = [
            _checked(Level(int(robots), int(obstacles), int(cores), float(distance)))
            for robots, cores, obstacles, distance in zip(*columns[:4], strict=True)
        ]
        return cls(levels, None if timesteps is None else [int(step) for step in timesteps])

    def phase(self, total_steps: int) -> int:
        """Returns a number that changes with the distribution of random worlds."""
        if self.stage is not None:
            return 1 + self.stage  # 0 stands for all levels at once
        return 0 if self.timesteps is None else sum(step <= total_steps for step in self.timesteps) - 1

    @property
    def num_stages(self) -> int:
        """Returns the number of levels for :meth:`at`; 0 if env steps choose the level."""
        return len(self.levels) if self.timesteps is None else 0

    def at(self, stage: int | None) -> LevelSchedule:
        """Returns the same levels, of which only this one is drawn; None: as without a stage."""
        return replace(self, stage=stage)

    def draw(self, total_steps: int, count: int, generator: torch.Generator) -> Tensor:
        """Draws the levels ``[count]`` of new worlds."""
        if self.stage is None and self.timesteps is None:
            return torch.randint(len(self.levels), (count,), generator=generator, device=generator.device)
        level = self.phase(total_steps) if self.stage is None else self.stage
        return torch.full((count,), level, dtype=torch.int64, device=generator.device)


def _checked(level: Level) -> Level:
    if level.num_robots < 1 or level.num_obstacles < 0 or level.num_cores < 0:
        raise ValueError(f"{level}: needs at least one robot and no negative counts")
    if max(level.num_robots, level.num_obstacles, level.num_cores) > _MOST:
        raise ValueError(f"{level}: the map has room for {_MOST} robots, obstacles and cores of each kind at most")
    if not 0 <= level.min_start_goal_dis <= 70:
        raise ValueError(f"min_start_goal_dis: {level.min_start_goal_dis} does not fit the map, allowed 0 to 70 m")
    return level
