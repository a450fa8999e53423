"""Steps torch states with the simulator in other processes."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...foundation.packages import needs
from ...foundation.processes import TIMEOUT, Shared, Workers, divided
from ..simulation import Events
from ..state import Ball, RocketState, new_cars
from .meshes import mesh_folder
from .worker import BALL, CAR, EVENTS, SharedArrays, sizes, work


class Simulators:
    """W matches in the original simulator, divided among worker processes.

    A worker that dies, or does not answer in time, is replaced: its worlds keep the state before the step, are reported
    as lost, and should be reset.

    Args:
        num_worlds, cars: numbers W and C.
        tick_skip: number of ticks per step.
        workers: number of processes, from one to one per world.
        ramps: see :func:`~rlstack.envs.rocket.rocketsim.meshes.mesh_folder`.
        dtype, device: type and device of states and events.
        patience: seconds that a worker may take for a step before it counts as hung.

    Raises:
        ValueError: the simulator is not installed, or its meshes are missing.
    """

    def __init__(
        self,
        num_worlds: int,
        cars: int,
        tick_skip: int,
        workers: int,
        ramps: bool,
        dtype: torch.dtype,
        device: torch.device,
        patience: float = TIMEOUT,
    ) -> None:
        if importlib.util.find_spec("RocketSim") is None:
            raise ValueError(f"backend: rocketsim {needs('rocketsim')}")
        self._cars, self._patience = cars, patience
        self._kind: dict[str, Any] = {"dtype": dtype, "device": device}
        shapes, kinds = ((sum(sizes(cars)),), (cars, 8), ()), (np.float32, np.float32, np.uint8)
        shared = tuple(Shared.like(np.zeros((num_worlds, *shape), kind)) for shape, kind in zip(shapes, kinds))
        self._arrays = SharedArrays(*(part.array() for part in shared))
        self._arguments = cars, tick_skip, str(mesh_folder(ramps)), shared
        self._rows = divided(num_worlds, workers)
        self._workers: Workers | None = None
        self._closed = False

    @property
    def failures(self) -> int:
        """Number of workers that have been replaced."""
        return 0 if self._workers is None else self._workers.failures

    def close(self) -> None:
        """Ends the workers."""
        self._closed = True
        if self._workers is not None:
            self._workers.close()

    # -- begin ---------------------------------------------------------------------------------------------------

    def begin(self, state: RocketState, worlds: Tensor | None) -> None:
        """Restarts the worlds of an index tensor (None: all) from a state before the next step."""
        if worlds is None:
            worlds = torch.arange(state.clock.shape[-1], device=state.clock.device)

        cars, ball = state.cars, state.ball
        like = (-1, *cars.boost.shape)
        own = torch.cat([getattr(cars, name).reshape(like) for name in CAR]).transpose(0, 1).flatten(0, 1)
        rest = [*(getattr(ball, name) for name in BALL), state.pads, state.clock[None], state.goal[None]]
        events = own.new_zeros(sizes(self._cars)[-1], own.shape[-1])
        rows = worlds.cpu().numpy()
        self._arrays.rows[rows] = torch.cat((own, *rest, events)).index_select(-1, worlds).T.float().cpu().numpy()
        self._arrays.fresh[rows] = 1

    # -- step ----------------------------------------------------------------------------------------------------

    def advance(self, state: RocketState, controls: Tensor) -> tuple[RocketState, Events, Tensor]:
        """Makes a step of all worlds.

        Args:
            state: state of all worlds before the step, for lost worlds.
            controls: ``[8, C, W]``.

        Returns the state after the step, its events, and the lost worlds ``[W]`` bool.

        Raises:
            WorkersFailed: a worker fails repeatedly.
        """
        if self._closed:
            raise RuntimeError("this world is closed")
        if self._workers is None:  # on the first step, since a world may be built only for its specs
            self._workers = Workers(work, self._arguments, self._rows, "matches", self._patience)
        self._arrays.controls[:] = controls.detach().permute(2, 1, 0).float().cpu().numpy()
        lost = torch.zeros(controls.shape[-1], dtype=torch.bool)
        for worker in self._workers.exchange(dict.fromkeys(range(len(self._rows)), b"step")):
            worlds = torch.tensor(list(self._rows[worker]))
            lost[worlds] = True
            self.begin(state, worlds.to(controls.device))
        return *self._read(), lost.to(controls.device)

    def _read(self) -> tuple[RocketState, Events]:
        """Returns the rows as separate tensors."""
        rows = torch.from_numpy(self._arrays.rows).clone().to(**self._kind).t().contiguous()
        worlds, width = rows.shape[1], sum(CAR.values())
        cars, ball, pads, clock, events = rows.split(sizes(self._cars))
        car = cars.view(self._cars, width, worlds).transpose(0, 1).contiguous()
        values = dict(zip(CAR, car.split(tuple(CAR.values()))))
        values = {name: value[0] if CAR[name] == 1 else value for name, value in values.items()}
        values["rotation"] = values["rotation"].unflatten(0, (3, 3))
        others = new_cars(values["position"], values["rotation"], values["boost"])  # whose entries share memory
        moved = others.map(torch.clone).replace(**values)
        state = RocketState(moved, Ball(*ball.view(len(BALL), 3, worlds)), pads, *clock)
        return state, Events(*events.view(self._cars, len(EVENTS), worlds).unbind(1))
