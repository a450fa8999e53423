"""The generator of the published MarineNav evaluation sets.

It draws from one legacy numpy stream in the order of the published trainer, so that a seed gives exactly the episodes
of the published numbers, and is therefore sequential. Training resets are drawn by the batched ``reset.py``.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import RandomState
from numpy.typing import ArrayLike, NDArray

from . import rules
from .episodes import Config, check_keys, default_robot, make_episode, validate_episode
from .rules import CLEAR_RADIUS, MAP_SIZE, OBSTACLE_MARGIN, START_MARGIN, MarineNavRules

_CORE_RADIUS = float(MarineNavRules().core_radius)

PUBLISHED_LEVELS: tuple[dict[str, float], ...] = (
    {"num_robots": 3, "num_cores": 0, "num_obstacles": 0, "min_start_goal_dis": 30.0},
    {"num_robots": 4, "num_cores": 0, "num_obstacles": 0, "min_start_goal_dis": 35.0},
    {"num_robots": 5, "num_cores": 0, "num_obstacles": 0, "min_start_goal_dis": 40.0},
    {"num_robots": 5, "num_cores": 0, "num_obstacles": 2, "min_start_goal_dis": 40.0},
    {"num_robots": 5, "num_cores": 0, "num_obstacles": 3, "min_start_goal_dis": 40.0},
    {"num_robots": 5, "num_cores": 0, "num_obstacles": 4, "min_start_goal_dis": 40.0},
)
"""The six levels of the published curriculum and evaluation."""


def evaluation_set(per_level: int, seed: int) -> tuple[list[Config], list[str]]:
    """Returns the published evaluation: episodes of all six levels, equal bit for bit to the published trainer's.

    Args:
        per_level: episodes per level (published: 10).
        seed: seed of the set (published: 253).

    Returns:
        The episode configs in level order, and the level of each, ``"0"`` (easiest) to ``"5"``.
    """
    configs = generate_episodes(seed, PUBLISHED_LEVELS, per_level)
    return configs, [str(level) for level in range(len(PUBLISHED_LEVELS)) for _ in range(per_level)]


def episode_options(configs: Sequence[Config]) -> dict[str, Any]:
    """Returns the constructor options that a world needs for these episodes.

    Raises:
        ValueError: a config is invalid; the message says how.
    """
    for config in configs:
        validate_episode(config)
    return {"num_robots": max(config["env"]["num_robots"] for config in configs)}


def generate_episodes(seed: int, levels: Sequence[Mapping[str, float]], per_level: int) -> list[Config]:
    """Generates the episodes on which the published trainer evaluates for this seed, bit for bit.

    One stream runs through all levels, so an episode depends on those before it. Placement ends after 500 attempts per
    kind; a config holds the objects placed until then.

    Args:
        seed: seed of the evaluation environment (the published one is 253).
        levels: mappings with the keys of ``PUBLISHED_LEVELS``; ``min_start_goal_dis`` in metres.
        per_level: episodes per level.

    Returns:
        ``len(levels) * per_level`` configs in level order.

    Raises:
        ValueError: a level has other keys, or no robot could be placed.
    """
    for index, level in enumerate(levels):
        check_keys(level, set(PUBLISHED_LEVELS[0]), f"levels[{index}]")
    rng = RandomState(seed)
    rng.randint(0, 30, size=6)  # the published constructor draws and discards the seeds of six default robots
    return [_random_episode(seed, rng, level) for level in levels for _ in range(per_level)]


def _random_episode(seed: int, rng: RandomState, level: Mapping[str, float]) -> Config:
    robots = _place_robots(rng, int(level["num_robots"]), level["min_start_goal_dis"])
    if not robots:
        raise ValueError(f"no robot could be placed in {rules.MAX_ATTEMPTS} attempts for {dict(level)}")
    keep_clear = np.array([robot[key] for robot in robots for key in ("start", "goal")])
    cores = _place_cores(rng, int(level["num_cores"]), keep_clear)
    obstacles = _place_obstacles(rng, int(level["num_obstacles"]), keep_clear, cores)
    return make_episode(robots, cores, obstacles, seed)


def _place(count: int, propose: Callable[[], Any], fits: Callable[[Any, list[Any]], bool]) -> Iterator[Any]:
    """Samples up to ``count`` items by rejection; ends silently after too many attempts, as published."""
    placed: list[Any] = []
    for _ in range(rules.MAX_ATTEMPTS):
        if len(placed) == count:
            return
        candidate = propose()
        if fits(candidate, placed):
            placed.append(candidate)
            yield candidate


def _distance(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    return np.linalg.norm(np.asarray(a) - np.asarray(b), axis=-1)


def _place_robots(rng: RandomState, count: int, min_distance: float) -> list[Config]:
    def propose() -> list[float]:
        return rng.uniform(START_MARGIN, MAP_SIZE - START_MARGIN, size=4).tolist()  # start x y, goal x y

    def fits(candidate: list[float], placed: list[list[float]]) -> bool:
        start, goal = candidate[:2], candidate[2:]
        apart = (_distance(start, p[:2]) > separation and _distance(goal, p[2:]) > separation for p in placed)
        return bool(_distance(start, goal) >= min_distance) and all(apart)  # no start against another's goal

    robots, separation = [], rules.MIN_ROBOT_SEPARATION
    for pair in _place(count, propose, fits):
        rng.randint(0, 5 * count)  # a perception seed, discarded: every reset of an episode draws its own
        robots.append(default_robot(pair[:2], pair[2:], rng.uniform(0.0, 2 * math.pi)))
    return robots


def _place_cores(rng: RandomState, count: int, keep_clear: NDArray[np.float64]) -> list[list[float]]:
    def propose() -> list[float]:
        position = rng.uniform(0.0, MAP_SIZE, size=2).tolist()
        flag = rng.binomial(1, 0.5)
        return [*position, flag, 2 * math.pi * _CORE_RADIUS * rng.uniform(*rules.CORE_EDGE_SPEED)]

    def fits(core: list[float], placed: list[list[float]]) -> bool:
        clear = (_distance(keep_clear, core[:2]) >= _CORE_RADIUS + CLEAR_RADIUS).all()
        return _inside(core[:2], _CORE_RADIUS) and bool(clear) and all(_compatible(core, p) for p in placed)

    return list(_place(count, propose, fits))


def _compatible(core: list[float], other: list[float]) -> bool:
    """Returns whether two vortices disturb each other little enough; opposite ones within 2a pass, as published."""
    distance = float(_distance(core[:2], other[:2]))
    if core[2] == other[2]:
        return distance >= (core[3] + other[3]) / (2 * math.pi * rules.MAX_RELATIVE_SPEED)
    gap = distance - 2 * _CORE_RADIUS
    weaker, stronger = sorted((core[3], other[3]))
    return gap <= 0 or stronger / gap <= rules.CORE_SPEED_RATIO * weaker / _CORE_RADIUS


def _place_obstacles(
    rng: RandomState, count: int, keep_clear: NDArray[np.float64], cores: list[list[float]]
) -> list[list[float]]:
    def propose() -> list[float]:
        position = rng.uniform(OBSTACLE_MARGIN, MAP_SIZE - OBSTACLE_MARGIN, size=2).tolist()
        return [*position, rng.uniform(*rules.OBSTACLE_RADIUS)]

    def fits(disc: list[float], placed: list[list[float]]) -> bool:
        centre, r = disc[:2], disc[2]
        clear = (_distance(keep_clear, centre) >= r + CLEAR_RADIUS).all()
        others = [(p[:2], p[2]) for p in placed] + [(core[:2], _CORE_RADIUS) for core in cores]
        return _inside(centre, r) and bool(clear) and all(_distance(centre, p) > r + s for p, s in others)

    return list(_place(count, propose, fits))


def _inside(centre: list[float], r: float) -> bool:
    return r <= min(centre) and max(centre) <= MAP_SIZE - r
