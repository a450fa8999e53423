"""The simulation against recordings of the original one, flown freely from the first row."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from rlstack.envs.rocket import rules
from rlstack.envs.rocket.simulation import advance_densely
from tests.conftest import REPO, SHARED
from tests.envs.rocket.recorded import Flight, Recording, fly, fly_all

FIXTURES = sorted((REPO / "tests/fixtures/rocket").glob("*.npz"))
GOLDEN = sorted(path for path in (SHARED / "golden/rocket").glob("*.npz") if "_pad_layout" not in path.stem)
GOLDEN = [path for path in GOLDEN if not path.stem.startswith("kickoffs")]
TWO_SECONDS = 240

# Of positions over the first two seconds, uu: largest median over flights at any tick, largest error.
BALL = {
    **{
        "ball_drop": (0.006, 0.03),
        "ball_fast": (0.006, 0.03),
        "ball_oblique": (0.006, 0.03),
        "ball_roll": (0.06, 0.14),
    },
    **{"ball_wall": (0.006, 0.03), "hit_rest": (0.01, 0.1), "hit_moving": (0.01, 0.75), "ball_on_car": (0.01, 0.63)},
    "hit_flip": (0.01, 200.0),  # in one flight the ball is pinched between wheels, body and floor
    "soccar_fillet_ball_random": (0.01, 5000.0),  # one ball in four hits an edge or a facet of the ramps
}
CARS = {
    **dict.fromkeys(("car_settle", "car_double_jump", "car_aerial"), (0.003, 0.003)),
    **dict.fromkeys(("car_air_torque", "car_air_damp", "car_air_boost"), (0.003, 0.003)),
    **dict.fromkeys(("car_throttle", "car_tap_boost", "car_boost", "car_coast", "car_jump"), (0.05, 0.19)),
    **{"car_turn": (0.009, 0.009), "car_flip": (0.015, 0.015), "car_flip_roll": (0.01, 0.01)},
    **{"car_steer_step": (0.01, 0.01), "car_powerslide": (0.01, 0.01), "boost_pads": (0.01, 0.1)},
    "car_brake": (0.05, 20.0),  # one flight passes 25 uu/s, where brakes change, a tick earlier
    **{"car_land": (0.01, 0.2), "car_turtle": (0.01, 0.05), "ball_on_car": (0.01, 0.05)},
    **{"hit_rest": (0.02, 3.0), "hit_moving": (0.05, 0.2), "hit_flip": (0.01, 100.0)},
    "car_car": (2.0, 60.0),  # contacts of two boxes have up to eight points there, four here
}

HITS = ("hit_rest", "hit_moving", "hit_flip")


@cache
def flights(paths: tuple[Path, ...]) -> dict[str, Flight]:
    """Balls alone are flown for the two seconds compared, except on the ramped field."""
    return fly_all(list(paths), TWO_SECONDS)


def flights_of(names: Collection[str]) -> pytest.MarkDecorator:
    """Returns the recordings, from the fixtures and from the full set, with one of some names."""
    cases = [pytest.param(FIXTURES, path.stem, id=path.stem) for path in FIXTURES if path.stem in names]
    full = [path.stem for path in GOLDEN if path.stem in names]
    cases += [
        pytest.param(GOLDEN, name, id=f"all_{name}", marks=[pytest.mark.shared, pytest.mark.slow]) for name in full
    ]
    return pytest.mark.parametrize(("paths", "name"), cases)


@pytest.fixture
def flight(paths: list[Path], name: str) -> Flight:
    return flights(tuple(paths))[name]


def assert_within(errors: np.ndarray, limits: tuple[float, float]) -> None:
    errors = errors[:, :TWO_SECONDS]
    median, largest = float(np.median(errors, 0).max()), float(errors.max())
    assert median <= limits[0] and largest <= limits[1], f"median {median:.4f}, largest {largest:.4f} uu"


@flights_of(BALL.keys() | CARS.keys())
def test_positions(flight: Flight) -> None:
    name = flight.recording.name
    if name in BALL:
        assert_within(flight.ball_errors(), BALL[name])
    if flight.recording.has_cars:
        assert_within(flight.car_errors(), CARS[name])


@flights_of(CARS)
def test_flags_change_on_the_recorded_tick(flight: Flight) -> None:
    wrong = flight.wrong_flags()
    if flight.recording.name == "hit_flip":  # see BALL
        assert sum(wrong.values()) < 0.03 * flight.recording["car_flags"].size
    elif flight.recording.name == "car_car":
        assert "is_demoed" not in wrong
        assert sum(wrong.values()) < 0.002 * flight.recording["car_flags"].size
    else:
        assert not wrong


@flights_of(CARS)
def test_boost_and_pick_ups(flight: Flight) -> None:
    # Beyond the position tolerance of car_car a pad may be reached a tick earlier or later.
    ours, theirs = flight.cars("boost"), flight.recording.number("boost")
    differs = np.abs(ours - theirs) > 1e-3
    allowed = 0.01 if flight.recording.name == "car_car" else 0.0
    assert differs.mean() <= allowed
    if flight.recording.name == "boost_pads":
        assert (flight.event("big_pads") + flight.event("small_pads")).sum() >= 1
        assert (np.diff(theirs, axis=1) > 1).any()


@flights_of(HITS)
def test_single_hits(flight: Flight) -> None:
    """Returns the change of the ball's velocity in the tick of the first hit of each flight."""
    recorded = flight.recording["ball_vel"]
    ours, errors, late = flight.ball("velocity"), [], 0
    for row, touched in enumerate(flight.event("touches")[..., 0] > 0):
        if touched.any():
            tick = int(touched.argmax())
            change = recorded[row, tick + 1] - recorded[row, tick]
            errors.append(np.linalg.norm(ours[row, tick] - recorded[row, tick + 1]) / max(np.linalg.norm(change), 1.0))
            late += flight.recording["hit_tick"][row, tick + 1, 0] != tick
    odd = int(flight.recording.name == "hit_flip")  # see BALL
    assert len(errors) >= 3 and late <= odd
    assert np.median(errors) < 1e-5 and sum(error > 1e-3 for error in errors) <= odd


@flights_of(["soccar_fillet_ball_random"])
def test_most_balls_cross_the_ramped_field_exactly(flight: Flight) -> None:
    """Covers half a minute of walls, corners, ramps and goals; ramps were recorded as flat facets."""
    errors = flight.ball_errors()
    assert (errors[:, 60] < 0.05).mean() > 0.95
    assert (errors[:, 120] < 0.05).mean() > 0.85
    assert (errors[:, -1] < 0.5).mean() > 0.6


def test_every_recording_has_limits() -> None:
    known = BALL.keys() | CARS.keys()
    assert FIXTURES and {path.stem for path in FIXTURES} <= known
    assert {path.stem for path in GOLDEN} <= known


@pytest.mark.slow
@pytest.mark.parametrize("name", ["car_turn", "car_land", "hit_moving", "car_car"])
def test_single_precision_and_all_contacts_lead_to_the_same(name: str, fixtures_dir: Path) -> None:
    recording = Recording(fixtures_dir / "rocket" / f"{name}.npz")
    recording.ticks = min(recording.ticks, 100)
    (exact,), (single,) = fly([recording]), fly([recording], torch.float32)
    (dense,) = fly([recording], tick=advance_densely)
    assert np.abs(exact.cars("position") - dense.cars("position")).max() < 1e-6
    assert np.abs(exact.ball("position") - dense.ball("position")).max() < 1e-6
    assert np.abs(exact.cars("position") - single.cars("position")).max() < 0.5


@pytest.mark.shared
def test_pads_and_kick_offs_are_where_they_were_recorded(shared_dir: Path) -> None:
    folder = shared_dir / "golden/rocket"
    with np.load(folder / "boost_pad_layout.npz", allow_pickle=False) as layout:
        order = np.lexsort((layout["pos"][:, 0], layout["pos"][:, 1]))
        recorded = [tuple(place) for place in layout["pos"][order, :2].tolist()]
        assert recorded == [tuple(place) for place in rules.PADS]
        assert layout["big"][order].tolist() == [place in rules.BIG_PADS for place in rules.PADS]
    with np.load(folder / "kickoffs_1v1.npz", allow_pickle=False) as places:
        blue, orange = places["states"][:, 0], places["states"][:, 1]
    assert {tuple(np.round(place[:2]).tolist()) for place in blue} <= {place[:2] for place in rules.KICK_OFFS}
    for x, y, _, yaw, boost in blue.tolist():
        (match,) = [place for place in rules.KICK_OFFS if abs(place[0] - x) < 1 and abs(place[1] - y) < 1]
        assert match[2] == pytest.approx(yaw, abs=1e-4) and boost == pytest.approx(rules.BOOST_START, abs=1e-4)
    np.testing.assert_allclose(orange[:, :2], -blue[:, :2], atol=1e-3)
