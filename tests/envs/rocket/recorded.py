"""Recorded flights of the original simulator: their beginnings as states, and a comparison."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlstack.envs.rocket.field import Field
from rlstack.envs.rocket.simulation import Events, advance
from rlstack.envs.rocket.state import Ball, Cars, RocketState, new_cars, new_state

Array = NDArray[Any]
PLANES = Field(closed=False)
FLAGS = {
    **{"has_jumped": "jumped", "has_double_jumped": "double_jumped", "has_flipped": "flipped"},
    **{"is_flipping": "flipping", "is_jumping": "jumping", "is_supersonic": "supersonic", "is_demoed": "gone"},
    **{"is_auto_flipping": "auto_flip", "has_world_contact": "touching"},
}
"""Flags of a recording and what they are called here; ``is_on_ground`` is three wheels."""


class Recording:
    """One file: ``B`` flights of ``T`` ticks with ``C`` cars. Row t of an array is the state after tick t."""

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.arrays: dict[str, Array] = dict(file.items())
        self.name = path.stem
        self.flights, rows = self["ball_pos"].shape[:2]
        self.ticks = rows - 1
        self.has_cars = "car_pos" in self.arrays

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    @property
    def field(self) -> Field:
        """Returns the field on which it was recorded."""
        if self.name.startswith("soccar_fillet"):
            return Field(True, 256.0, 512.0)
        return Field(True) if self.name.startswith("soccar") else PLANES

    def flag(self, name: str) -> Array:
        """Returns ``[B, T, C]`` after each tick."""
        return self["car_flags"][:, 1 : self.ticks + 1, :, list(self["flag_names"]).index(name)]

    def number(self, name: str) -> Array:
        """Returns ``[B, T, C]`` after each tick."""
        return self["car_floats"][:, 1 : self.ticks + 1, :, list(self["float_names"]).index(name)]

    def start(self, dtype: torch.dtype = torch.float64) -> RocketState:
        """Returns the state before the first tick."""

        def first(name: str) -> Tensor:
            return torch.as_tensor(self[name][:, 0]).to(dtype)

        ball = Ball(*(first(name).T.contiguous() for name in ("ball_pos", "ball_vel", "ball_ang")))
        return new_state(self._cars(first, dtype), ball)

    def _cars(self, first: Any, dtype: torch.dtype) -> Cars:
        if not self.has_cars:
            absent = torch.zeros(1, self.flights, dtype=dtype)
            rotation = torch.eye(3, dtype=dtype)[..., None, None].repeat(1, 1, 1, self.flights)
            cars = new_cars(torch.zeros(3, 1, self.flights, dtype=dtype), rotation, absent)
            return cars.replace(gone=absent + torch.inf)
        boost = first("car_floats")[..., list(self["float_names"]).index("boost")]
        rotation = first("car_rot").permute(2, 3, 1, 0).contiguous()
        cars = new_cars(first("car_pos").permute(2, 1, 0).contiguous(), rotation, boost.T.contiguous())
        velocity = first("car_vel").permute(2, 1, 0).contiguous()
        fast = ((velocity**2).sum(0) > 2200.0**2).to(dtype)
        return cars.replace(velocity=velocity, spin=first("car_ang").permute(2, 1, 0).contiguous(), supersonic=fast)

    def controls(self, tick: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Returns the controls ``[8, C, B]`` of a tick, counted from 1."""
        if not self.has_cars:
            return torch.zeros(8, 1, self.flights, dtype=dtype)
        return torch.as_tensor(self["ctrl"][:, tick]).to(dtype).permute(2, 1, 0).contiguous()


class Flight:
    """A recording flown again from its first row, with arrays in the recording's layout after each tick.

    Args:
        states, events: after each tick, of a batch of which the recording is a part.
        first: place of its first flight in the batch.
    """

    def __init__(self, recording: Recording, states: list[RocketState], events: list[Events], first: int = 0) -> None:
        self.recording = recording
        self._part = slice(first, first + recording.flights)
        self._states, self._events = states[: recording.ticks], events[: recording.ticks]

    def event(self, name: str) -> Array:
        """Returns ``[B, T, C]``."""
        values = [getattr(events, name)[..., self._part].T for events in self._events]
        return torch.stack(values, 1).double().numpy()

    def ball(self, name: str) -> Array:
        """Returns ``[B, T, 3]`` of the ball."""
        return torch.stack([getattr(state.ball, name)[:, self._part].T for state in self._states], 1).double().numpy()

    def cars(self, name: str) -> Array:
        """Returns ``[B, T, C, ...]`` of the cars."""
        values = [getattr(state.cars, name)[..., self._part] for state in self._states]
        return torch.stack([value.permute(*range(value.dim() - 1, -1, -1)) for value in values], 1).double().numpy()

    def ball_errors(self) -> Array:
        """Returns the ball's error ``[B, T]`` in uu."""
        return np.abs(self.ball("position") - self.recording["ball_pos"][:, 1 : self.recording.ticks + 1]).max(-1)

    def car_errors(self) -> Array:
        """Returns the error ``[B, T]`` of the worst car in uu."""
        return np.abs(self.cars("position") - self.recording["car_pos"][:, 1 : self.recording.ticks + 1]).max((-1, -2))

    def wrong_flags(self) -> dict[str, int]:
        """Returns how many flags differ, by name, without those that all agree."""
        wrong = {name: (self.cars(ours) > 0) != self.recording.flag(name) for name, ours in FLAGS.items()}
        grounded = self.cars("wheels").sum(-1) >= 3
        # A demolished car's own flags mean nothing.
        counts = grounded != self.recording.flag("is_on_ground")
        there = ~self.recording.flag("is_demoed")
        wrong["is_on_ground"] = counts
        kept = {name: int((differs & (there | (name == "is_demoed"))).sum()) for name, differs in wrong.items()}
        return {name: count for name, count in kept.items() if count}


Tick = Callable[[RocketState, Tensor, Field], tuple[RocketState, Events]]


def fly(recordings: list[Recording], dtype: torch.dtype = torch.float64, tick: Tick = advance) -> list[Flight]:
    """Flies all recordings of the same number of cars on the same field at once."""
    starts = [dict(recording.start(dtype).items()) for recording in recordings]
    state = RocketState.from_items({name: torch.cat([start[name] for start in starts], -1) for name in starts[0]})
    states, events = [], []
    with torch.no_grad():
        for now in range(1, max(recording.ticks for recording in recordings) + 1):
            controls = [recording.controls(min(now, recording.ticks), dtype) for recording in recordings]
            state, happened = tick(state, torch.cat(controls, -1), recordings[0].field)
            states.append(state)
            events.append(happened)
    firsts = [sum(recording.flights for recording in recordings[:place]) for place in range(len(recordings))]
    return [Flight(recording, states, events, first) for recording, first in zip(recordings, firsts)]
