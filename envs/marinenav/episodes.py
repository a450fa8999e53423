"""MarineNav episodes: the file format (reading, writing, checking configs), and the published evaluation sets.

An episode config is a plain dictionary ``{"env": {...}, "robots": {...}}``: ``env`` describes the map,
``robots`` holds one list per quantity with one entry per robot. Positions are metres (x north, y east),
angles radians.
"""

from __future__ import annotations

import copy
import gzip
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..foundation.files import MOST, check_regular, replacing
from . import rules
from .dynamics import current
from .rules import MarineNavRules
from .state import WorldState, blank_state

Config = dict[str, Any]
_RULES = MarineNavRules()

_ENV: Config = {  # the published values of the `env` part, and its schema; None: checked separately
    "seed": 0,
    "is_eval_env": True,
    "width": rules.MAP_SIZE,
    "height": rules.MAP_SIZE,
    "r": _RULES.core_radius,
    "v_rel_max": rules.MAX_RELATIVE_SPEED,
    "p": rules.CORE_SPEED_RATIO,
    "v_range": list(rules.CORE_EDGE_SPEED),
    "obs_r_range": list(rules.OBSTACLE_RADIUS),
    "clear_r": rules.CLEAR_RADIUS,
    "angular_speed_max": math.pi / 2,  # stored in every published file, without effect
    "angular_speed_penalty": -1.0,  # the same
    "timestep_penalty": _RULES.timestep_penalty,
    "COLREGs_penalty": _RULES.colregs_penalty,
    "collision_penalty": _RULES.collision_penalty,
    "goal_reward": _RULES.goal_reward,
    "num_robots": 1,
    "cores": None,
    "obstacles": None,
}
_HISTORIES = {"observation_history", "action_history", "trajectory"}  # written by the trainer, ignored here
_INTEGERS = {"seed", "num_robots", "N", "max_obj_num"}
_POSITIVE = {"num_robots", "N", "max_obj_num", "dt", "width", "height", "length", "r", "detect_r", "range"}


def default_robot(start: Sequence[float], goal: Sequence[float], init_theta: float) -> Config:
    """Returns the published values of one robot at rest, for each key of the ``robots`` part of a config.

    Args:
        start: position [2], metres.
        goal: position [2], metres.
        init_theta: heading in radians, clockwise from north as seen from above.
    """
    hull = ("length", "width", "detect_r", "r", "goal_dis", "power_coefficient", "min_thrust", "max_thrust")
    return {
        "dt": _RULES.dt,
        "N": _RULES.substeps,
        **{key: getattr(_RULES, key) for key in hull},
        "left_thrust_change": list(rules.THRUST_RATES),
        "right_thrust_change": list(rules.THRUST_RATES),
        **{key: getattr(_RULES, key) for key in rules.HYDRODYNAMICS},
        "start": [float(x) for x in start],
        "goal": [float(x) for x in goal],
        "init_theta": float(init_theta),
        "init_velocity_r": [0.0, 0.0, 0.0],
        **dict.fromkeys(("init_left_pos", "init_right_pos", "init_left_thrust", "init_right_thrust"), 0.0),
        "perception": {key: getattr(_RULES, key) for key in rules.PERCEPTION} | {"max_obj_num": rules.OBSERVED_OBJECTS},
    }


def make_episode(
    robots: Sequence[Config],
    cores: Sequence[Sequence[float]] = (),
    obstacles: Sequence[Sequence[float]] = (),
    seed: int = 0,
) -> Config:
    """Returns a config with the published map and rewards.

    Args:
        robots: at least one dictionary, see ``default_robot``.
        cores: rows x, y, rotation flag (1 clockwise), circulation in m^2/s.
        obstacles: rows x, y, radius.
        seed: seed of the environment, from which the published reset draws the perception seeds.
    """
    env = copy.deepcopy(_ENV) | {
        "seed": int(seed),
        "num_robots": len(robots),
        "cores": {
            "positions": [[*core[:2]] for core in cores],
            "clockwise": [int(core[2]) for core in cores],
            "Gamma": [core[3] for core in cores],
        },
        "obstacles": {"positions": [[*disc[:2]] for disc in obstacles], "r": [disc[2] for disc in obstacles]},
    }
    return {"env": env, "robots": _stack(robots)}


def _stack(robots: Sequence[Config]) -> Config:
    """Combines dictionaries of single robots into one dictionary of lists over the robots."""
    first = robots[0]
    return {k: _stack([r[k] for r in robots]) if isinstance(first[k], dict) else [r[k] for r in robots] for k in first}


def load_episodes(path: str | Path) -> list[Config]:
    """Reads episode configs from a ``.json`` or ``.json.gz`` file.

    The file holds one config or a list; an entry may also be a record with its config under ``"config"``.

    Raises:
        ValueError: an entry is invalid; the message names the file, the entry and the fault.
    """
    path = Path(path)
    check_regular(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MOST + 1)
        if len(content) > MOST:
            raise ValueError(f"it expands to more than {MOST / 1e9:.1f} GB")
        entries = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error, struct.error) as error:
        raise ValueError(f"{path}: not a gzip file, or a damaged one ({error})") from None
    entries = entries if isinstance(entries, list) else [entries]
    configs = [entry.get("config", entry) if isinstance(entry, dict) else entry for entry in entries]
    for index, config in enumerate(configs):
        try:
            validate_episode(config)
        except ValueError as error:
            raise ValueError(f"{path}, episode {index}: {error}") from None
    return configs


def save_episodes(path: str | Path, episodes: Sequence[Config]) -> None:
    """Writes configs atomically as one JSON list, compressed if ``path`` ends in ``.gz``.

    Raises:
        ValueError: a config does not fit the format; nothing is written.
    """
    path = Path(path)
    for episode in episodes:
        validate_episode(episode)
    data = json.dumps(list(episodes)).encode()
    with replacing(path) as (partial,):
        partial.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def validate_episode(config: Any) -> None:
    """Checks keys, types, list lengths and counts, and that every number is finite.

    Raises:
        ValueError: an entry is wrong; the message names it, its value and what is required.
    """
    _check(config, {"env": None, "robots": None}, "config")
    env, robots = config["env"], config["robots"]
    _check(env, _ENV, "env")
    for group, example in (("cores", {"clockwise": 0.0, "Gamma": 0.0}), ("obstacles", {"r": 1.0})):
        _check(env[group], {"positions": None, **dict.fromkeys(example)}, f"env.{group}")
        positions = env[group]["positions"]
        count = len(positions) if isinstance(positions, list) else 0
        _check(env[group], {"positions": [[0.0, 0.0]] * count} | _repeat(example, count), f"env.{group}")
    if any(flag not in (0, 1) for flag in env["cores"]["clockwise"]):
        raise ValueError(f"env.cores.clockwise may hold 0 and 1 only, got {env['cores']['clockwise']!r:.60}")
    if isinstance(robots, dict):
        robots = {key: value for key, value in robots.items() if key not in _HISTORIES}
    _check(robots, _repeat(default_robot((0, 0), (0, 0), 0), env["num_robots"]), "robots")


def _repeat(robot: Config, count: int) -> Config:
    """Returns one robot's dictionary as lists over ``count`` equal robots."""
    return {k: _repeat(v, count) if isinstance(v, dict) else [v] * count for k, v in robot.items()}


def _check(value: Any, example: Any, where: str) -> None:
    """Checks that ``value`` has the keys, lengths and types of ``example``; ``where`` is its path."""
    if isinstance(example, dict):
        check_keys(value, set(example), where)
        for key, part in example.items():
            _check(value[key], part, key if where == "config" else f"{where}.{key}")
    elif isinstance(example, list):
        if not isinstance(value, list) or len(value) != len(example):
            raise ValueError(f"{where} must be a list of length {len(example)}, got {value!r:.60}")
        for index, part in enumerate(example):
            _check(value[index], part, f"{where}[{index}]")
    elif isinstance(example, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{where} must be true or false, got {value!r:.60}")
    elif example is not None:
        name = where.rpartition(".")[2].partition("[")[0]
        kind = "an integer" if name in _INTEGERS else "a finite number"
        wrong = isinstance(value, bool) or not isinstance(value, int if name in _INTEGERS else (int, float))
        if wrong or not math.isfinite(value):
            raise ValueError(f"{where} must be {kind}, got {value!r:.60}")
        if name in _POSITIVE and value <= 0:
            raise ValueError(f"{where} must be positive, got {value!r:.60}")


def check_keys(mapping: Any, keys: set[str], where: str) -> None:
    """Checks that ``mapping`` is a mapping with exactly these keys; ``where`` names it in the error."""
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{where} must be a dictionary, got {mapping!r:.60}")
    if missing := keys - set(mapping):
        raise ValueError(f"{where} lacks {sorted(missing)}")
    if unknown := set(mapping) - keys:
        raise ValueError(f"{where} has unknown keys {sorted(unknown)}; allowed are {sorted(keys)}")


# -- as batched state ------------------------------------------------------------------------------------------------


_ROBOT_SCALARS = (
    *("dt", "length", "width", "detect_r", "r", "goal_dis", "power_coefficient", "min_thrust", "max_thrust"),
    *rules.HYDRODYNAMICS,
)
_FAR = 1.0e6
"""Coordinate of absent vortex cores, far from every robot."""


def load_worlds(
    configs: Sequence[dict[str, Any]], num_robots: int, dtype: torch.dtype, device: torch.device
) -> tuple[WorldState, MarineNavRules]:
    """Returns the start of one episode per config, padded to ``num_robots``, and their rules.

    Raises:
        ValueError: a config has more robots than the world, or observes more objects than the world does.
    """
    most = max(config["env"]["num_robots"] for config in configs)
    if most > num_robots:
        raise ValueError(f"an episode has {most} robots, the world was built for num_robots={num_robots}")
    slots = max(max(config["robots"]["perception"]["max_obj_num"]) for config in configs)
    if slots > rules.OBSERVED_OBJECTS:
        raise ValueError(
            f"max_obj_num: an episode asks for {slots} objects, observations have {rules.OBSERVED_OBJECTS} slots"
        )

    def tensor(values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).movedim(0, -1).to(device=device, dtype=dtype)

    def per_robot(values: Sequence[Sequence[Any]]) -> Tensor:
        """Returns ``[..., A, W]`` from one list per world; padded robots repeat the first one's value."""
        return tensor([[*row, *[row[0]] * (num_robots - len(row))] for row in values]).movedim(0, -2)

    def robots(name: str) -> Tensor:
        return per_robot([config["robots"][name] for config in configs])

    def world(name: str) -> Tensor:
        return tensor([config["env"][name] for config in configs])

    numbers = MarineNavRules(
        **{name: robots(name) for name in _ROBOT_SCALARS},
        **{name: per_robot([config["robots"]["perception"][name] for config in configs]) for name in rules.PERCEPTION},
        substeps=int(max(max(config["robots"]["N"]) for config in configs)),
        substeps_used=robots("N"),
        left_pos=robots("init_left_pos"),
        right_pos=robots("init_right_pos"),
        left_thrust_change=robots("left_thrust_change"),
        right_thrust_change=robots("right_thrust_change"),
        core_radius=world("r"),
        timestep_penalty=world("timestep_penalty"),
        colregs_penalty=world("COLREGs_penalty"),
        collision_penalty=world("collision_penalty"),
        goal_reward=world("goal_reward"),
    )
    cores = [list(_rows(config["env"]["cores"], "positions", "clockwise", "Gamma")) for config in configs]
    obstacles = [list(_rows(config["env"]["obstacles"], "positions", "r")) for config in configs]
    num_cores, num_obstacles = max(map(len, cores)), max(map(len, obstacles))
    state = blank_state(num_robots, num_obstacles, num_cores, len(configs), dtype, device)
    if num_cores:
        state.cores = tensor([row + [[_FAR, _FAR, 0.0, 0.0]] * (num_cores - len(row)) for row in cores]).movedim(0, 1)
    if num_obstacles:
        padded = [row + [[0.0, 0.0, 0.0]] * (num_obstacles - len(row)) for row in obstacles]
        state.obstacles = tensor(padded).movedim(0, 1)
        counts = torch.tensor([len(row) for row in obstacles], device=device)
        state.obstacle_present = torch.arange(num_obstacles, device=device)[:, None] < counts
    counts = torch.tensor([config["env"]["num_robots"] for config in configs], device=device)
    state.present = torch.arange(num_robots, device=device)[:, None] < counts
    state.active = state.present.clone()
    state.start, state.goal = robots("start"), robots("goal")
    state.pose = torch.cat((state.start, torch.remainder(robots("init_theta"), 2 * torch.pi)[None]))
    state.thrust = torch.stack((robots("init_left_thrust"), robots("init_right_thrust")))
    state.velocity_r = robots("init_velocity_r")
    state.velocity = state.velocity_r.clone()
    if num_cores:
        state.velocity[:2] += torch.stack(current(state.pose[0], state.pose[1], state.cores, numbers.core_radius))
    return state, numbers


def _rows(group: dict[str, Any], positions: str, *columns: str) -> Any:
    for position, *values in zip(group[positions], *(group[name] for name in columns), strict=True):
        yield [*position, *values]


# -- the published evaluation sets -------------------------------------------------------------------------------------


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
    def new_route() -> list[float]:
        return rng.uniform(
            rules.START_MARGIN, rules.MAP_SIZE - rules.START_MARGIN, size=4
        ).tolist()  # start x y, goal x y

    def route_fits(candidate: list[float], placed: list[list[float]]) -> bool:
        start, goal, separation = candidate[:2], candidate[2:], rules.MIN_ROBOT_SEPARATION
        apart = (_distance(start, p[:2]) > separation and _distance(goal, p[2:]) > separation for p in placed)
        far = _distance(start, goal) >= level["min_start_goal_dis"]
        return bool(far) and all(apart)  # no start against another's goal

    robots, count = [], int(level["num_robots"])
    for route in _place(count, new_route, route_fits):
        rng.randint(0, 5 * count)  # a perception seed, discarded: every reset of an episode draws its own
        robots.append(default_robot(route[:2], route[2:], rng.uniform(0.0, 2 * math.pi)))
    if not robots:
        raise ValueError(f"no robot could be placed in {rules.MAX_ATTEMPTS} attempts for {dict(level)}")
    keep_clear = np.array([robot[key] for robot in robots for key in ("start", "goal")])

    def clear(centre: list[float], r: float) -> bool:
        inside = r <= min(centre) and max(centre) <= rules.MAP_SIZE - r
        return inside and bool((_distance(keep_clear, centre) >= r + rules.CLEAR_RADIUS).all())

    def new_core() -> list[float]:
        position = rng.uniform(0.0, rules.MAP_SIZE, size=2).tolist()
        flag = rng.binomial(1, 0.5)
        return [*position, flag, 2 * math.pi * _CORE_RADIUS * rng.uniform(*rules.CORE_EDGE_SPEED)]

    def compatible(core: list[float], other: list[float]) -> bool:
        """Returns whether two vortices disturb each other little enough; opposite ones within 2a pass, as published."""
        distance = float(_distance(core[:2], other[:2]))
        if core[2] == other[2]:
            return distance >= (core[3] + other[3]) / (2 * math.pi * rules.MAX_RELATIVE_SPEED)
        gap = distance - 2 * _CORE_RADIUS
        weaker, stronger = sorted((core[3], other[3]))
        return gap <= 0 or stronger / gap <= rules.CORE_SPEED_RATIO * weaker / _CORE_RADIUS

    def core_fits(core: list[float], placed: list[list[float]]) -> bool:
        return clear(core[:2], _CORE_RADIUS) and all(compatible(core, other) for other in placed)

    cores = list(_place(int(level["num_cores"]), new_core, core_fits))

    def new_obstacle() -> list[float]:
        position = rng.uniform(rules.OBSTACLE_MARGIN, rules.MAP_SIZE - rules.OBSTACLE_MARGIN, size=2).tolist()
        return [*position, rng.uniform(*rules.OBSTACLE_RADIUS)]

    def obstacle_fits(disc: list[float], placed: list[list[float]]) -> bool:
        others = [(p[:2], p[2]) for p in placed] + [(core[:2], _CORE_RADIUS) for core in cores]
        return clear(disc[:2], disc[2]) and all(_distance(disc[:2], p) > disc[2] + s for p, s in others)

    obstacles = list(_place(int(level["num_obstacles"]), new_obstacle, obstacle_fits))
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
