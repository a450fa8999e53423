"""Each number of an episode file has an effect: the general vessel model, and each quantity separately."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from rlstack.envs.marinenav.episodes import Config, make_episode
from rlstack.envs.marinenav.noise import PublishedNoise
from rlstack.envs.marinenav.rules import HYDRODYNAMICS, PERCEPTION
from tests.envs.marinenav.recorded import act, assert_close, build, robot
from tests.exhaustive import exhaustive


def vessel_step(
    c: dict[str, float], core: np.ndarray, a: float, pose: np.ndarray, nu_r: np.ndarray, thrust: np.ndarray
):
    """One substep of the manoeuvring model in its matrix form: pose, velocity over ground, velocity_r."""
    d = core[:2] - pose[:2]
    rho = np.linalg.norm(d)
    speed = core[3] * (rho / a**2 if rho <= a else 1 / rho) / (2 * math.pi)
    direction = np.array([-d[1], d[0]]) / rho * (1 if core[2] else -1)
    nu = nu_r + np.append(speed * direction, 0.0)
    x, y, theta = pose + nu * c["dt"]
    turn = np.array([[math.cos(theta), -math.sin(theta), 0], [math.sin(theta), math.cos(theta), 0], [0, 0, 1]])
    (u, v, r), (u_r, v_r, _) = turn.T @ nu, turn.T @ nu_r
    rigid = np.diag([c["m"], c["m"], c["Izz"]])
    added = -np.array([[c["xDotU"], 0, 0], [0, c["yDotV"], c["yDotR"]], [0, c["nDotV"], c["nDotR"]]])
    linear = -np.array([[c["xU"], 0, 0], [0, c["yV"], c["yR"]], [0, c["nV"], c["nR"]]])
    g = c["yDotV"] * v_r + c["yDotR"] * r
    coriolis = c["m"] * np.array([[0, -r, 0], [r, 0, 0], [0, 0, 0]])
    coriolis_added = np.array([[0, 0, g], [0, 0, -c["xDotU"] * u_r], [-g, c["xDotU"] * u_r, 0]])
    p, q = abs(v_r), abs(r)
    side = [c["yVV"] * p + c["yRV"] * q, c["yVR"] * p + c["yRR"] * q]
    yaw = [c["nVV"] * p + c["nRV"] * q, c["nVR"] * p + c["nRR"] * q]
    quadratic = -np.array([[c["xUU"] * abs(u_r), 0, 0], [0, *side], [0, *yaw]])
    angles = np.array([c["init_left_pos"], c["init_right_pos"]])
    along, across = thrust * np.cos(angles), thrust * np.sin(angles)
    moment = c["width"] / 2 * (along[0] - along[1]) - c["length"] / 2 * across.sum()
    force = np.array([along.sum(), across.sum(), moment])
    relative = np.array([u_r, v_r, r])
    b = force - coriolis @ (u, v, r) - (coriolis_added + linear + quadratic) @ relative
    return (x, y, theta), nu, turn @ (relative + np.linalg.solve(rigid + added, b) * c["dt"])


@pytest.mark.parametrize("seed", range(6))
def test_the_general_vessel_model(seed: int) -> None:
    """Random coefficients, hulls, thruster angles and currents; one substep, then seven more."""
    rng = np.random.default_rng(seed)
    coefficients = {name: float(rng.uniform(-30, 30)) for name in HYDRODYNAMICS}
    coefficients |= {"m": 420.0, "Izz": 470.0, "xU": -90.0, "yV": -110.0, "nR": -900.0, "nDotR": -800.0}
    coefficients |= {"length": 6.0, "width": 3.0, "dt": 0.04, "init_left_pos": 0.4, "init_right_pos": -0.3}
    core, radius = np.array([21.0, 21.5, seed % 2, 9.0]), 0.8 if seed < 4 else 3.0
    theta, nu_r, thrust = rng.uniform(1, 5), rng.normal(0, 0.5, 3), rng.uniform(-200, 500, 2)
    start = {"init_velocity_r": nu_r.tolist(), "init_left_thrust": thrust[0], "init_right_thrust": thrust[1]}
    for substeps in (1, 8):
        pose, motion = np.array([20.0, 20.0, theta]), nu_r
        for _ in range(substeps):
            pose_now, ground, motion = vessel_step(coefficients, core, radius, pose, motion, thrust)
            pose = np.array(pose_now)
        vessel = robot((20.0, 20.0), theta=theta, N=substeps, **coefficients, **start)
        episode = make_episode([vessel], [core.tolist()])
        episode["env"]["r"] = radius
        env = build(1, 1)
        td = env.reset_to([episode])
        act(env, td, torch.zeros(1, 1, 2, dtype=torch.float64))
        assert_close(env.state.pose[0, 0], (*pose[:2], pose[2] % (2 * math.pi)), "pose", 1e-11)
        assert_close(env.state.velocity[0, 0], ground, "velocity", 1e-11)
        assert_close(env.state.velocity_r[0, 0], motion, "velocity_r", 1e-11)


def traffic() -> Config:
    """Returns two vessels that collide head-on, and one that arrives, in a current and with noise."""
    push = {"init_left_thrust": 400.0, "init_right_thrust": 380.0, "init_velocity_r": [0.8, 0.3, 0.2]}
    back = push | {"init_velocity_r": [-0.8, 0.1, -0.2]}
    vessels = [
        robot((20.0, 20.0), (50.0, 20.0), **push),
        robot((36.0, 20.5), (10.0, 22.0), math.pi, **back),
        robot((30.0, 33.0), (38.0, 34.0), **push),
        robot((22.0, 29.0), (50.0, 50.0), **push),
    ]
    return make_episode(vessels, [[29.0, 26.0, 1, 9.0], [39.5, 34.0, 0, 12.0]], [[33.0, 28.0, 1.0], [25.0, 12.0, 1.0]])


def outcomes(configs: list[Config], continuous: bool) -> torch.Tensor:
    """Returns all observations and rewards of 25 steps, one row per config; all have the same noise."""
    env = build(len(configs), 4, perception_noise=True, continuous_actions=continuous)
    env.set_noise_source(PublishedNoise([[1, 2, 3, 4]] * len(configs), dtype=torch.float64))
    td = env.reset_to(configs)
    shown = []
    for step in range(25):
        action = torch.full((4, 2), 0.3, dtype=torch.float64) if continuous else torch.tensor([18, 7, 23, 4])
        td = act(env, td, (action if step % 3 else 0 * action).expand(len(configs), *action.shape))
        seen = td["agents", "observation"]
        parts = (seen["self"], seen["objects"], seen["mask"], td["agents", "reward"], td["agents", "energy"])
        shown += [part.double().flatten(1) for part in parts]
    return torch.cat(shown, 1)


NUMBERS = [
    *((("env", name), 1.7) for name in ("timestep_penalty", "COLREGs_penalty", "collision_penalty", "goal_reward")),
    *((("robots", name), 1.3) for name in ("width", "detect_r", "r", "power_coefficient")),
    *(
        (("robots", name), 0.5)
        for name in ("dt", "N", "max_thrust", "m", "Izz", "init_left_thrust", "init_right_thrust")
    ),
    *((("robots", name), 0.4) for name in ("min_thrust", "left_thrust_change", "right_thrust_change")),
    *((("robots", name), "+5") for name in HYDRODYNAMICS if name not in ("m", "Izz")),
    *((("robots", name), "+0.2") for name in ("init_left_pos", "init_right_pos", "init_theta", "start", "goal")),
    *((("robots", "perception", name), 0.6) for name in PERCEPTION if name != "r_kappa"),
    (("robots", "goal_dis"), 3.0),
    (("robots", "init_velocity_r"), 0.5),
]


def changed(value: Any, change: float | str) -> Any:
    if isinstance(value, list):
        return [changed(part, change) for part in value]
    new = value + float(change) if isinstance(change, str) else value * change
    return round(new) if isinstance(value, int) and change in (0.5, 0.6) and value < 20 else new


def variant(path: tuple[str, ...], change: float | str) -> Config:
    config = copy.deepcopy(traffic())
    *parents, name = path
    holder = config
    for parent in parents:
        holder = holder[parent]
    holder[name] = changed(holder[name], change)
    return config


@exhaustive("continuous", [True, False])
def test_each_number_matters(continuous: bool) -> None:
    """Two equal episodes run alike; one with another number somewhere does not."""
    numbers = [pair for pair in NUMBERS if not (continuous and pair[0][-1].endswith(("_thrust_change", "min_thrust")))]
    usual, again, *others = outcomes(
        [traffic(), traffic(), *(variant(path, change) for path, change in numbers)], continuous
    )
    assert torch.equal(usual, again)
    assert [path for (path, _), other in zip(numbers, others, strict=True) if torch.equal(usual, other)] == []
