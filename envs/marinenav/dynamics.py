"""Vessel motion in a current field: pure functions over tensors whose last dimension is the world.

The model is the 3-DOF manoeuvring model of Fossen (Handbook of Marine Craft Hydrodynamics and Motion Control,
2011, ch. 6) with the coefficients and the update order of the public MarineNav environment (arXiv 2412.09466).
North-east-down frame: x north, y east, yaw clockwise seen from above; body frame x forward, y starboard.

World-last layout (``[..., A, W]``: robots x worlds) keeps every elementwise operation a long contiguous run.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from ..foundation.tensors import constant
from .rules import CONTINUOUS_THRUST_RATE, THRUST_RATES, MarineNavRules, Number

TWO_PI = 2 * math.pi


def current(x: Tensor, y: Tensor, cores: Tensor, core_radius: Number) -> tuple[Tensor, Tensor]:
    """Returns the velocity of the water at ``(x, y)`` in m/s, the superposition of all cores.

    Args:
        x, y: positions ``[..., W]``.
        cores: ``[4, C, W]`` rows x, y, rotation flag (1 clockwise), circulation Gamma; Gamma 0 means no core.
        core_radius: radius in m inside which a core turns like a solid body.

    The occlusion rule of the original never takes effect.
    """
    lead = (slice(None),) + (None,) * (x.dim() - 1)
    core_x, core_y, clockwise, gamma = (row[lead] for row in cores)
    dx, dy = core_x - x, y - core_y
    squared = torch.addcmul(dx * dx, dy, dy)
    # speed/rho in one go: Gamma/(2 pi a^2) inside the core, Gamma/(2 pi rho^2) outside; negative if anticlockwise.
    angular = gamma * (clockwise - 0.5) / (math.pi * squared.clamp_min(core_radius * core_radius))
    return (angular * dy).sum(0), (angular * dx).sum(0)


def thrust_change(action: Tensor, rules: MarineNavRules, continuous: bool) -> Tensor:
    """Returns thrust increments ``[2, A, W]`` in N over one action.

    Args:
        action: ``[2, A, W]`` rates in units of 1000 N/s, not clipped; or integers ``[A, W]``, 0..24, where
            ``index // 5`` chooses the left and ``index % 5`` the right rate.
    """
    duration = rules.dt * rules.substeps if rules.substeps_used is None else rules.dt * rules.substeps_used
    if continuous:
        return action * (CONTINUOUS_THRUST_RATE * duration)
    left, right = action // 5, action % 5
    if rules.left_thrust_change is None or rules.right_thrust_change is None:
        rates = constant(THRUST_RATES, action, 0, torch.get_default_dtype())
        return rates[torch.stack((left, right))] * duration
    left_rate = rules.left_thrust_change.gather(0, left[None])[0]
    right_rate = rules.right_thrust_change.gather(0, right[None])[0]
    return torch.stack((left_rate, right_rate)) * duration


def add_scaled(total: Tensor, scale: Number, *factors: Tensor) -> Tensor:
    """Returns ``total + scale x factor [x factor]`` in one pass over memory; a scale of float 0 costs nothing."""
    if isinstance(scale, Tensor):
        return torch.addcmul(total, scale, factors[0] if len(factors) == 1 else factors[0] * factors[1])
    if scale == 0.0:
        return total
    if len(factors) == 1:
        return torch.add(total, factors[0], alpha=scale)
    return torch.addcmul(total, *factors, value=scale)


def rotate(cos: Tensor, sin: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates from body axes to world axes."""
    return torch.addcmul(cos * x, sin, y, value=-1), torch.addcmul(cos * y, sin, x)


def rotate_back(cos: Tensor, sin: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates from world axes to body axes."""
    return torch.addcmul(cos * x, sin, y), torch.addcmul(cos * y, sin, x, value=-1)


class ThrusterImpulse(NamedTuple):
    """The change of the body-frame velocity by the thrusters in one ``dt``, equal in every substep of an action."""

    surge: Tensor
    sway: Tensor | None  # None: zero
    yaw: Tensor


def thruster_impulse(left: Tensor, right: Tensor, rules: MarineNavRules) -> ThrusterImpulse:
    """Multiplies the forces of the two stern thrusters (N) by the inverse mass matrix ``M_RB + M_A`` and ``dt``."""
    half_width, half_length = 0.5 * rules.width, 0.5 * rules.length
    per_surge, (vv, vr, rv, rr) = _inverse_mass(rules)
    if isinstance(rules.left_pos, float) and rules.left_pos == rules.right_pos == 0.0:
        yaw = half_width * (left - right)
        side = None if isinstance(vr, float) and vr == 0.0 else vr * yaw
        return ThrusterImpulse(per_surge * (left + right), side, rr * yaw)
    left_pos, right_pos = torch.as_tensor(rules.left_pos), torch.as_tensor(rules.right_pos)
    ahead_left, ahead_right = left_pos.cos() * left, right_pos.cos() * right
    sway = left_pos.sin() * left + right_pos.sin() * right
    yaw = half_width * (ahead_left - ahead_right) - half_length * sway
    return ThrusterImpulse(per_surge * (ahead_left + ahead_right), vv * sway + vr * yaw, rv * sway + rr * yaw)


def _inverse_mass(c: MarineNavRules) -> tuple[Number, tuple[Number, Number, Number, Number]]:
    """Returns ``dt`` times the inverse mass matrix: its surge entry and its sway-yaw block, row by row."""
    mass_v, mass_r = c.m - c.yDotV, c.Izz - c.nDotR
    scale = c.dt / (mass_v * mass_r - c.yDotR * c.nDotV)
    return c.dt / (c.m - c.xDotU), (scale * mass_r, scale * c.yDotR, scale * c.nDotV, scale * mass_v)


def accelerate(
    u: Tensor, v: Tensor, u_r: Tensor, v_r: Tensor, r: Tensor, impulse: ThrusterImpulse, rules: MarineNavRules
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns ``u_r, v_r, r`` one ``dt`` later, by ``(M_RB + M_A) acc = tau - C_RB V - (C_A + D + D_n) V_r``.

    Args:
        u, v: velocity over ground in the body frame; u_r, v_r: relative to the water; r: yaw rate; all ``[A, W]``.
    """
    c = rules
    per_surge, (vv, vr, rv, rr) = _inverse_mass(rules)
    abs_v, abs_r = v_r.abs(), r.abs()
    surge = (*((c.m, v, r), (c.xUU, u_r, u_r.abs())), *((-c.yDotV, v_r, r), (-c.yDotR, r, r)))
    # Without a current u is u_r and two terms become one.
    sway = (
        *(((c.xDotU - c.m, u, r),) if u is u_r else ((c.xDotU, u_r, r), (-c.m, u, r))),
        *((c.yVV, v_r, abs_v), (c.yVR, r, abs_v), (c.yRV, v_r, abs_r), (c.yRR, r, abs_r)),
    )
    yaw = (
        *((c.yDotV - c.xDotU, u_r, v_r), (c.yDotR, u_r, r)),
        *((c.nVV, v_r, abs_v), (c.nVR, r, abs_v), (c.nRV, v_r, abs_r), (c.nRR, r, abs_r)),
    )
    new_u = add_scaled(impulse.surge, 1 + per_surge * c.xU, u_r)
    new_v = (
        v_r * (1 + vv * c.yV + vr * c.nV)
        if impulse.sway is None
        else add_scaled(impulse.sway, 1 + vv * c.yV + vr * c.nV, v_r)
    )
    new_v = add_scaled(new_v, vv * c.yR + vr * c.nR, r)
    new_r = add_scaled(impulse.yaw, 1 + rv * c.yR + rr * c.nR, r)
    new_r = add_scaled(new_r, rv * c.yV + rr * c.nV, v_r)
    for coefficient, *factors in surge:
        new_u = add_scaled(new_u, per_surge * coefficient, *factors)
    for coefficient, *factors in sway:
        new_v = add_scaled(new_v, vv * coefficient, *factors)
        new_r = add_scaled(new_r, rv * coefficient, *factors)
    for coefficient, *factors in yaw:
        new_v = add_scaled(new_v, vr * coefficient, *factors)
        new_r = add_scaled(new_r, rr * coefficient, *factors)
    return new_u, new_v, new_r


def move(
    pose: Tensor, velocity_r: Tensor, thrust: Tensor, change: Tensor, cores: Tensor, rules: MarineNavRules
) -> Tensor:
    """Moves every robot through one action.

    Args:
        pose: ``[3, A, W]`` x, y (m), heading in [0, 2 pi).
        velocity_r: ``[3, A, W]`` velocity relative to the water in world axes (m/s) and yaw rate (rad/s).
        thrust: ``[2, A, W]`` left, right (N); change: its increment over this action.
        cores: ``[4, C, W]`` (see :func:`current`).

    Returns the rows of pose, velocity over ground (it lags velocity_r by one acceleration), velocity_r and thrust,
    ``[11, A, W]``.
    """
    # The new thrust acts from the first acceleration on; the first displacement precedes it.
    thrust = (thrust + change).clamp(rules.min_thrust, rules.max_thrust)  # type: ignore[arg-type]
    impulse = thruster_impulse(thrust[0], thrust[1], rules)
    x, y, theta = pose.unbind()
    ground = relative = velocity_r.unbind()
    sailed: list[tuple[Tensor, ...]] = []
    for k in range(rules.substeps):
        # Explicit Euler for the heading with the old velocity, then for the velocity at the new heading. The velocity
        # over ground is that at the start of the substep, which is observed.
        water = current(x, y, cores, rules.core_radius) if cores.shape[1] else None
        old = theta, *ground, *relative
        rx, ry, yaw_rate = relative
        vx, vy = (rx, ry) if water is None else (rx + water[0], ry + water[1])
        theta = add_scaled(theta, rules.dt, yaw_rate)  # wrapped once, at the end
        cos, sin = theta.cos(), theta.sin()
        u_r, v_r = rotate_back(cos, sin, rx, ry)
        u, v = (u_r, v_r) if water is None else rotate_back(cos, sin, vx, vy)
        u_r, v_r, new_yaw_rate = accelerate(u, v, u_r, v_r, yaw_rate, impulse, rules)
        ground, relative = (vx, vy, yaw_rate), (*rotate(cos, sin, u_r, v_r), new_yaw_rate)
        sailed.append(ground[:2])
        if rules.substeps_used is not None:
            running = k < rules.substeps_used
            new = (theta, *ground, *relative)
            theta, *rows = (torch.where(running, after, before) for after, before in zip(new, old, strict=True))
            ground, relative = tuple(rows[:3]), tuple(rows[3:])
            sailed[-1] = tuple(speed * running for speed in sailed[-1])
        if water is not None:  # otherwise the position has no effect on the next substep
            x, y = (add_scaled(place, rules.dt, speed) for place, speed in zip((x, y), sailed.pop()))
    if sailed:  # compiled code, which joins operations by itself, adds one by one
        joined = torch.compiler.is_compiling()
        ways = (reduce(torch.add, speeds) if joined else torch.stack(speeds).sum(0) for speeds in zip(*sailed))
        x, y = (add_scaled(place, rules.dt, way) for place, way in zip((x, y), ways))
    theta = torch.remainder(theta, TWO_PI)
    theta = theta * (theta < TWO_PI)  # a tiny negative angle, lost in rounding to 2 pi, becomes 0
    return torch.stack((x, y, theta, *ground, *relative, *thrust))
