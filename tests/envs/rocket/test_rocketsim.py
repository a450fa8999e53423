"""The original simulator, run live, repeats its recordings, and the torch world repeats both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rlstack.envs.rocket.rocketsim.backend import Simulators
from rlstack.envs.rocket.rocketsim.meshes import VARIABLE
from rlstack.envs.rocket.simulation import Events
from rlstack.envs.rocket.state import RocketState
from tests.conftest import REPO
from tests.envs.rocket.recorded import Flight, Recording, fly
from tests.envs.rocket.test_recordings import BALL, CARS

pytest.importorskip("RocketSim", reason="needs the extra rocketsim")

RECORDED = (
    *("car_throttle", "car_coast", "car_boost", "car_turn", "car_powerslide", "car_jump", "car_double_jump"),
    *("car_flip", "car_land", "car_air_torque", "car_aerial", "ball_oblique", "hit_rest", "hit_moving", "boost_pads"),
)
TICKS = 240


def first_ticks(recording: Recording) -> Recording:
    """Cuts a recording as :data:`TICKS` says."""
    rows = recording.ticks + 1
    for name, array in recording.arrays.items():
        if array.ndim > 1 and array.shape[1] == rows:
            recording.arrays[name] = array[:, : TICKS + 1]
    recording.ticks = min(recording.ticks, TICKS)
    return recording


@pytest.fixture(scope="module")
def flights(meshes: Path) -> dict[str, tuple[Flight, Flight]]:
    """Flies recordings again in both, from the same starts, with the same controls: torch first."""
    recordings = [first_ticks(Recording(REPO / f"tests/fixtures/rocket/{name}.npz")) for name in RECORDED]
    starts = [dict(recording.start().items()) for recording in recordings]
    state = RocketState.from_items({name: torch.cat([start[name] for start in starts], -1) for name in starts[0]})
    worlds = state.clock.shape[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(meshes))
        live = Simulators(worlds, 1, 1, 1, True, torch.float64, torch.device("cpu"))
    live.begin(state, None)
    states: list[RocketState] = []
    events: list[Events] = []
    for tick in range(1, TICKS + 1):
        controls = torch.cat([recording.controls(min(tick, recording.ticks)) for recording in recordings], -1)
        state, happened, _ = live.advance(state, controls)
        states.append(state)
        events.append(happened)
    live.close()
    ours = fly(recordings, ticks=TICKS)
    firsts = np.cumsum([0, *(recording.flights for recording in recordings)])
    theirs = [Flight(recording, states, events, int(first)) for recording, first in zip(recordings, firsts)]
    return {name: flown for name, *flown in zip(RECORDED, ours, theirs)}  # type: ignore[misc]


def on_the_flat(flight: Flight) -> np.ndarray:
    """Returns which flights stay away from the ramps, which most recordings lack."""
    if not flight.recording.has_cars:
        return np.ones(flight.recording.flights, bool)
    places = np.abs(flight.recording["car_pos"][:, :, 0])
    return (places[..., 0].max(1) < 3800) & (places[..., 1].max(1) < 4800)


@pytest.mark.parametrize("name", RECORDED)
def test_it_flies_as_it_was_recorded(flights: dict[str, tuple[Flight, Flight]], name: str) -> None:
    _, live = flights[name]
    chosen = on_the_flat(live)
    # RocketSim computes in float32; after two seconds its results on another processor differ by 0.002 uu.
    assert chosen.sum() >= 1 and live.ball_errors()[chosen].max() < 1e-2
    if live.recording.has_cars:
        assert live.car_errors()[chosen].max() < 1e-2


@pytest.mark.parametrize("name", RECORDED)
def test_torch_flies_as_it_does(flights: dict[str, tuple[Flight, Flight]], name: str) -> None:
    """The limits are those of the recordings."""
    ours, live = flights[name]
    chosen = on_the_flat(live)

    def errors(body: str, value: str) -> np.ndarray:
        return np.abs(getattr(ours, body)(value) - getattr(live, body)(value))[chosen]

    for body, limits in (("ball", BALL.get(name)), ("cars", CARS.get(name))):
        if limits is not None:
            apart = errors(body, "position")
            apart = apart.reshape(*apart.shape[:2], -1).max(-1)
            assert np.median(apart, 0).max() <= limits[0] and apart.max() <= limits[1]
    if not live.recording.has_cars:
        return
    for flag in ("wheels", "jumping", "jumped", "flipped", "flipping", "double_jumped", "held", "touching", "gone"):
        assert not errors("cars", flag).any(), flag
    for number in ("flip_ticks", "air_ticks", "boosting", "flip_axis", "handbrake", "boost"):
        assert errors("cars", number).max() < 1e-2, number
    assert (errors("cars", "jump_ticks") * live.cars("jumped")[chosen]).max() == 0


@pytest.mark.parametrize("name", ["hit_rest", "hit_moving", "boost_pads"])
def test_events_are_the_same(flights: dict[str, tuple[Flight, Flight]], name: str) -> None:
    ours, live = flights[name]
    chosen = on_the_flat(live)
    limits = {"touches": 0, "big_pads": 0, "small_pads": 0, "power": 2.0, "boost_gained": 1e-3, "boost_used": 1e-3}
    for event, limit in limits.items():
        assert np.abs(ours.event(event) - live.event(event))[chosen].max() <= limit, event
    if name == "boost_pads":
        assert live.event("small_pads")[chosen].sum() >= 1 and live.event("boost_gained")[chosen].sum() >= 12
    else:
        assert live.event("touches").sum() >= 3 and live.event("power").max() > 1000
