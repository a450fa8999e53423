"""The field: distances, rays and contacts, and ticks in which all contacts are computed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlstack.envs.foundation import tensors
from rlstack.envs.rocket import rules, solver
from rlstack.envs.rocket.field import Field
from rlstack.envs.rocket.simulation import advance, advance_densely, compiled_kernels
from rlstack.envs.rocket.state import RocketState, new_ball, new_cars, new_state
from rlstack.envs.rocket.vectors import from_angles
from tests.envs.rocket.fields import RAMPED, lively, random_controls

PLANAR = Field(True)


def gap_and_normal(field: Field, *point: float) -> tuple[float, list[float]]:
    gap, normal = field.inside(torch.tensor(point, dtype=torch.float64))
    return float(gap), [round(value, 6) + 0.0 for value in normal.tolist()]


def test_distances_to_walls_ramps_and_goals() -> None:
    root = math.sqrt(0.5)
    assert gap_and_normal(PLANAR, 0, 0, 300) == (300, [0, 0, 1])
    assert gap_and_normal(PLANAR, -4000, 100, 500) == (96, [1, 0, 0])
    assert gap_and_normal(PLANAR, 2000, -5000, 900) == (120, [0, 1, 0])
    assert gap_and_normal(PLANAR, 500, 300, 2000) == (48, [0, 0, -1])
    gap, normal = gap_and_normal(PLANAR, 3500, 4500, 900)
    assert gap == pytest.approx(64 * root) and normal == [round(-root, 6), round(-root, 6), 0]
    # In the goal: the back, a side, the roof; before it nothing but the frame.
    assert gap_and_normal(PLANAR, 0, 5900, 300) == (100, [0, -1, 0])
    assert gap_and_normal(PLANAR, 850, -5500, 300) == (pytest.approx(42.755), [-1, 0, 0])
    assert gap_and_normal(PLANAR, 0, 5500, 600) == (pytest.approx(42.775), [0, 0, -1])
    # Behind a post, where the ray of a wheel ends.
    assert gap_and_normal(PLANAR, 892.75501, -5567, 300) == (pytest.approx(-0.00001), [-1, 0, 0])
    assert gap_and_normal(PLANAR, 0, 5110, 300) == (300, [0, 0, 1])
    gap, normal = gap_and_normal(PLANAR, 862.755, 5080, 300)
    assert gap == pytest.approx(50) and normal == [-0.6, -0.8, 0]
    # A quarter round: on its axis one is a radius away, half way to the edge it is (root - 1) radii.
    assert gap_and_normal(RAMPED, 4096 - 256, 0, 256)[0] == pytest.approx(256)
    gap, normal = gap_and_normal(RAMPED, 4096, 0, 0)
    assert gap == pytest.approx(256 * (1 - math.sqrt(2))) and normal == [round(-root, 6), 0, round(root, 6)]
    assert gap_and_normal(RAMPED, 4096 - 512, 0, 2048 - 512)[0] == pytest.approx(512)


def first_ray(field: Field, x: float, y: float, z: float, *up: tuple[float, float, float]) -> tuple[float, list[float]]:
    """Returns the length of the first wheel's ray, which begins there, and the normal in the car's axes."""
    rotation = torch.tensor(up, dtype=torch.float64)
    wheel = torch.tensor((rules.WHEEL_X[0], rules.WHEEL_Y[0], rules.WHEEL_Z), dtype=torch.float64)
    position = torch.tensor((x, y, z), dtype=torch.float64) - wheel @ rotation
    ground = field.trace(position[:, None], rotation[..., None], torch.zeros(3, 1, dtype=torch.float64))
    return float(ground.distance[0, 0]), [round(value, 6) + 0.0 for value in ground.normal[:, 0, 0].tolist()]


UPRIGHT = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
ON_ITS_SIDE = (0.0, 1.0, 0.0), (0.0, 0.0, -1.0), (-1.0, 0.0, 0.0)  # the rays point to +x
NONE = 1.0e6


def test_rays_end_at_the_first_surface() -> None:
    assert first_ray(RAMPED, 500, 300, 40, *UPRIGHT) == (40, [0, 0, 1])
    assert first_ray(RAMPED, 4000, 300, 900, *ON_ITS_SIDE) == (96, [0, 0, 1])
    # Above a quarter round, 3/5 and 4/5 of a radius from its axis: the surface is 256 / 5 above the floor.
    length, normal = first_ray(RAMPED, 4096 - 256 + 0.6 * 256, 0, 80, *UPRIGHT)
    assert length == pytest.approx(80 - 51.2) and normal == [-0.6, 0, 0.8]
    length, normal = first_ray(RAMPED, 3900, 0, 2048 - 512 + 0.6 * 512, *ON_ITS_SIDE)
    assert length == pytest.approx(4096 - 512 + 0.8 * 512 - 3900) and normal == [0, 0.6, 0.8]
    # Rays that begin outside meet nothing: below the floor, and in the filling of a quarter round.
    assert first_ray(RAMPED, 500, 300, -1, *UPRIGHT)[0] == first_ray(RAMPED, 4090, 300, 20, *UPRIGHT)[0] == NONE


def test_rays_pass_a_goals_mouth_both_ways() -> None:
    assert first_ray(PLANAR, 850, -5500, 300, *ON_ITS_SIDE) == (pytest.approx(42.755), [0, 0, 1])
    assert first_ray(PLANAR, 850, 5000, 300, *ON_ITS_SIDE)[0] == pytest.approx(8064 - 5000 - 850)  # the corner
    forth = (1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.0, -1.0, 0.0)
    assert first_ray(PLANAR, 0, 5100, 300, *forth) == (pytest.approx(900), [0, 0, 1])  # the goal's back
    assert first_ray(PLANAR, 0, 5100, 700, *forth) == (pytest.approx(20), [0, 0, 1])  # above it, the wall
    # Upwards from within, out of the mouth just below the crossbar, and into it.
    root = math.sqrt(0.5)
    out = (1.0, 0.0, 0.0), (0.0, root, -root), (0.0, root, root)
    assert first_ray(PLANAR, 0, 5130, 20, *out)[0] == pytest.approx(20 / root)
    up = (1.0, 0.0, 0.0), (0.0, -root, -root), (0.0, root, -root)
    assert first_ray(PLANAR, 0, 5130, 600, *up)[0] == pytest.approx((2048 - 600) / root)
    assert first_ray(PLANAR, 0, 5200, 600, *up)[0] == pytest.approx(42.775 / root)


def one_car(x: float, y: float, yaw: float, speed: float) -> RocketState:
    zero = torch.zeros(1, 1, dtype=torch.float64)
    rotation = from_angles(zero + yaw, zero, zero)
    cars = new_cars(torch.stack((zero + x, zero + y, zero + 17)), rotation, zero + 100)
    ball = new_ball(torch.tensor([[0.0], [-4000.0], [93.15]], dtype=torch.float64))
    return new_state(cars.replace(velocity=rotation[0] * speed), ball)


def drive_on(state: RocketState, field: Field, ticks: int, boost: bool = False) -> list[RocketState]:
    pressed = torch.zeros(8, 1, 1, dtype=torch.float64)
    pressed[0], pressed[6] = 1.0, float(boost)
    states = []
    for _ in range(ticks):
        state, _ = advance(state, pressed, field)
        states.append(state)
    return states


@pytest.mark.slow
@pytest.mark.parametrize(("x", "y", "yaw"), [(3000, 1000, 0.0), (2000, 4000, math.pi / 2), (2600, 3700, math.pi / 4)])
def test_cars_drive_up_ramped_walls(x: float, y: float, yaw: float) -> None:
    states = drive_on(one_car(x, y, yaw, 1800.0), RAMPED, 150, boost=True)
    last = states[-1].cars
    assert last.position[2, 0, 0] > 700 and last.wheels.sum() == 4
    assert last.rotation[0, 2, 0, 0] > 0.99  # it looks up
    off = [int(state.cars.wheels.sum()) for state in states[20:]]
    assert min(off) >= 2


@pytest.mark.slow
def test_walls_without_ramps_are_bumpers() -> None:
    states = drive_on(one_car(3000, 1000, 0.0, 1800.0), PLANAR, 150)
    last = states[-1].cars
    assert last.position[2, 0, 0] < 100 and last.velocity.norm() < 400
    assert max(float(state.cars.position[0, 0, 0]) for state in states) < 4096 - 40


def test_a_car_that_scores_no_goal_can_enter_one() -> None:
    last = drive_on(one_car(0, 4900, math.pi / 2, 1400.0), RAMPED, 25)[-1]
    assert last.cars.position[1, 0, 0] > 5120 and last.cars.wheels.sum() == 4 and last.goal[0] == 0


def worst(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max())


@pytest.mark.slow
def test_compiled_code_moves_worlds_the_same_way() -> None:
    state = other = lively(16, 4, dtype=torch.float32)
    kernels = compiled_kernels()
    with torch.no_grad():
        for controls in random_controls(3, 4, 16, dtype=torch.float32):
            for _ in range(8):
                state, events = advance(state, controls, RAMPED)
                other, compiled_events = advance(other, controls, RAMPED, kernels)
        assert worst(state.cars.position, other.cars.position) < 0.05
        assert worst(state.ball.position, other.ball.position) < 0.05
        assert worst(events.boost_used, compiled_events.boost_used) < 1e-5


# -- Ticks as a GPU computes them: the same worlds, few operations, none that a CUDA graph cannot record, one graph


def furthest(one: RocketState, other: RocketState) -> float:
    pairs = [(value, there) for (_, value), (_, there) in zip(one.items(), other.items())]
    return max(float(torch.where(value == there, 0.0, value - there).abs().max()) for value, there in pairs)


def test_both_ways_lead_to_the_same_worlds() -> None:
    state = lively(64, 4)
    with torch.no_grad():
        for controls in random_controls(4, 4, 64):
            (state, _), (dense, _) = advance(state, controls, RAMPED), advance_densely(state, controls, RAMPED)
            assert furthest(state, dense) < 1e-8


@pytest.mark.slow
def test_a_dense_tick_is_one_graph_for_every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that graph leaves out the sweeps over contacts, which are most of a tick if they are written out."""
    monkeypatch.setattr(tensors, "FREE", set())
    monkeypatch.setattr(solver, "_compiled_sweep", lambda: solver.sweep)
    operations: list[int] = []

    def counting(graph: Any, _: Any) -> Any:
        operations.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward

    tick = torch.compile(advance_densely, backend=counting, fullgraph=True, dynamic=False)
    state = eager = lively(8, 2, dtype=torch.float32).map(torch.Tensor.contiguous)
    controls = random_controls(1, 2, 8, dtype=torch.float32)[0]
    with torch.no_grad():
        for _ in range(4):
            state, _ = tick(state, controls, RAMPED)
            eager, _ = advance_densely(eager, controls, RAMPED)
    assert furthest(state, eager) < 1e-2
    assert len(operations) == 1 and operations[0] < 3000
