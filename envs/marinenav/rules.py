"""The constants of MarineNav.

Source of every number: the public MarineNav environment of arXiv 2412.09466. SI units, angles in radians. A field of
:class:`MarineNavRules` is a plain float if all robots share it (the usual and fast case: zero coefficients drop out of
the equations), or a tensor that broadcasts against ``[A, W]`` (robots x worlds) if an episode file gives each robot its
own value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

Number = float | Tensor

OBSERVED_OBJECTS = 5
"""Greatest number of objects in a robot's observation."""

MAP_SIZE = 55.0
START_MARGIN = 2.0
OBSTACLE_MARGIN = 5.0
MIN_ROBOT_SEPARATION = 10.0
CLEAR_RADIUS = 10.0
OBSTACLE_RADIUS = (1.0, 1.0)
CORE_EDGE_SPEED = (3.0, 3.0)
MAX_RELATIVE_SPEED = 1.0
CORE_SPEED_RATIO = 0.8
MAX_ATTEMPTS = 500
THRUST_RATES = (0.0, -500.0, -1000.0, 500.0, 1000.0)
"""Thrust change of each discrete choice, N/s; the continuous action is the rate in units of 1000 N/s."""
CONTINUOUS_THRUST_RATE = 1000.0

LENGTH, WIDTH = 5.0, 2.5
HULL_RADIUS = 0.5 * math.hypot(LENGTH, WIDTH)


@dataclass
class MarineNavRules:
    """All numbers of a simulation step, with the names of the episode file format."""

    # integration
    dt: Number = 0.05
    substeps: int = 10
    substeps_used: Tensor | None = None  # [A, W] if robots differ; None: all use `substeps`
    # hull and thrusters
    length: Number = LENGTH
    width: Number = WIDTH
    detect_r: Number = HULL_RADIUS
    r: Number = HULL_RADIUS
    goal_dis: Number = 2.0
    power_coefficient: Number = 1.0
    min_thrust: Number = -500.0
    max_thrust: Number = 1000.0
    left_pos: Number = 0.0
    right_pos: Number = 0.0
    left_thrust_change: Tensor | None = None  # [5, A, W], or None: THRUST_RATES
    right_thrust_change: Tensor | None = None
    # rigid body and added mass
    m: Number = 400.0
    Izz: Number = 450.0
    xDotU: Number = 20.0
    yDotV: Number = 0.0
    yDotR: Number = 0.0
    nDotR: Number = -980.0
    nDotV: Number = 0.0
    # linear and quadratic damping
    xU: Number = -100.0
    xUU: Number = -150.0
    yV: Number = -100.0
    yVV: Number = -150.0
    yR: Number = 0.0
    yRV: Number = 0.0
    yVR: Number = 0.0
    yRR: Number = 0.0
    nR: Number = -980.0
    nRR: Number = -950.0
    nV: Number = 0.0
    nVV: Number = 0.0
    nRV: Number = 0.0
    nVR: Number = 0.0
    # perception
    range: Number = 20.0
    angle: Number = 2 * math.pi
    max_obj_num: Number = float(OBSERVED_OBJECTS)
    pos_std: Number = 0.05
    vel_std: Number = 0.05
    r_kappa: Number = 1.0
    r_mean_ratio: Number = 0.8
    # world and rewards, per world
    core_radius: Number = 0.5
    timestep_penalty: Number = -0.1
    colregs_penalty: Number = -0.1
    collision_penalty: Number = -5.0
    goal_reward: Number = 10.0


HYDRODYNAMICS = (
    *("m", "Izz", "xDotU", "yDotV", "yDotR", "nDotR", "nDotV", "xU", "xUU", "yV", "yVV", "yR", "yRV", "yVR"),
    *("yRR", "nR", "nRR", "nV", "nVV", "nRV", "nVR"),
)
"""Coefficients of the manoeuvring model, in the order of the episode file."""

PERCEPTION = ("range", "angle", "max_obj_num", "pos_std", "vel_std", "r_kappa", "r_mean_ratio")
