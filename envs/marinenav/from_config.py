"""Episode files (``episodes.py``) as batched state: every number a config states is honoured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .dynamics import current
from .rules import HYDRODYNAMICS, OBSERVED_OBJECTS, PERCEPTION, Rules
from .state import WorldState, blank_state

_ROBOT_SCALARS = (
    *("dt", "length", "width", "detect_r", "r", "goal_dis", "power_coefficient", "min_thrust", "max_thrust"),
    *HYDRODYNAMICS,
)
_FAR = 1.0e6
"""Where absent vortex cores are put, so that no robot ever stands on one."""


def load_worlds(
    configs: Sequence[dict[str, Any]], num_robots: int, dtype: torch.dtype, device: torch.device
) -> tuple[WorldState, Rules]:
    """The start of one episode per config, padded to ``num_robots``, and the rules they ask for.

    Raises:
        ValueError: a config has more robots than the world was built for, or wants more objects than are observed.
    """
    most = max(config["env"]["num_robots"] for config in configs)
    if most > num_robots:
        raise ValueError(f"an episode has {most} robots, the world was built for num_robots={num_robots}")
    slots = max(max(config["robots"]["perception"]["max_obj_num"]) for config in configs)
    if slots > OBSERVED_OBJECTS:
        raise ValueError(
            f"max_obj_num: an episode asks for {slots} objects, observations have {OBSERVED_OBJECTS} slots"
        )

    def tensor(values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).movedim(0, -1).to(device=device, dtype=dtype)

    def per_robot(values: Sequence[Sequence[Any]]) -> Tensor:
        """``[..., A, W]`` from one list per world; padded robots repeat the first one's value."""
        return tensor([[*row, *[row[0]] * (num_robots - len(row))] for row in values]).movedim(0, -2)

    def robots(name: str) -> Tensor:
        return per_robot([config["robots"][name] for config in configs])

    def world(name: str) -> Tensor:
        return tensor([config["env"][name] for config in configs])

    rules = Rules(
        **{name: robots(name) for name in _ROBOT_SCALARS},
        **{name: per_robot([config["robots"]["perception"][name] for config in configs]) for name in PERCEPTION},
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
        state.velocity[:2] += torch.stack(current(state.pose[0], state.pose[1], state.cores, rules.core_radius))
    return state, rules


def _rows(group: dict[str, Any], positions: str, *columns: str) -> Any:
    for position, *values in zip(group[positions], *(group[name] for name in columns), strict=True):
        yield [*position, *values]
