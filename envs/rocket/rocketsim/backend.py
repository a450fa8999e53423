"""Steps torch states with the simulator in other processes."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...extras import needs
from ...processes import Processes, Shared, WorkerFailed, WorkersFailed
from .. import rules
from ..simulation import Events
from ..state import Ball, RocketState, new_cars
from .meshes import mesh_folder
from .worker import BALL, CAR, EVENTS, SharedArrays, WorkerShare, parts, sizes, work

PATIENCE = 60.0  # s for a step
_TO_BEGIN = 300.0  # s, as thousands of matches take a while
_STEP = b"s"
_IN_VAIN = 3  # steps in a row in which a worker may fail


class Simulators:
    """W matches in the original simulator, divided among worker processes.

    A worker that dies, or does not answer in time, is replaced: its worlds keep the state before the step, are reported
    as lost, and should be reset. The first time causes a warning.

    Args:
        num_worlds, cars: numbers W and C.
        tick_skip: number of ticks per step.
        workers: number of processes, from one to one per world.
        ramps: see :func:`~rlstack.envs.rocket.rocketsim.meshes.mesh_folder`.
        dtype, device: type and device of states and events.
        patience: seconds that a worker may take for a step before it counts as hung.

    Attributes:
        failures: number of workers that have been replaced.

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
        patience: float = PATIENCE,
    ) -> None:
        if importlib.util.find_spec("RocketSim") is None:
            raise ValueError(f"backend: rocketsim {needs('rocketsim')}")
        self.failures, self.patience = 0, patience
        self._in_vain: Counter[int] = Counter()
        self._cars = cars
        self._kind: dict[str, Any] = {"dtype": dtype, "device": device}
        shared = tuple(Shared.like(array) for array in SharedArrays.zeros(num_worlds, cars))
        self._arrays = SharedArrays(*(part.array() for part in shared))
        count, meshes = max(1, min(workers, num_worlds)), str(mesh_folder(ramps))
        starts = [num_worlds * worker // count for worker in range(count + 1)]
        self._shares = [WorkerShare(range(*ends), cars, tick_skip, meshes, shared) for ends in pairwise(starts)]
        self._processes: Processes | None = None
        self._closed = False

    def close(self) -> None:
        """Ends the workers."""
        self._closed = True
        if self._processes is not None:
            self._processes.close()

    # -- begin ---------------------------------------------------------------------------------------------------

    def begin(self, state: RocketState, worlds: Tensor | None) -> None:
        """Restarts the worlds of an index tensor (None: all) from a state before the next step."""
        if worlds is None:
            worlds = torch.arange(state.clock.shape[-1], device=state.clock.device)

        def chosen(value: Tensor) -> Tensor:
            return value.index_select(-1, worlds).detach().flatten(0, -3).float().cpu().movedim(-1, 0)

        rows, cars = worlds.cpu().numpy(), state.cars
        like = (-1, *cars.boost.shape)
        found = parts(np.zeros((len(rows), self._arrays.rows.shape[1]), np.float32), self._cars)
        entries = [getattr(cars, name).reshape(like) for name in CAR]
        found.cars[:] = chosen(torch.cat(entries)).transpose(1, 2).numpy()
        ball = [getattr(state.ball, name) for name in BALL]
        rest = chosen(torch.cat([*ball, state.pads, state.clock[None], state.goal[None]])[:, None])[..., 0].numpy()
        found.ball[:], found.pads[:], found.clock[:] = np.split(rest, [9, 9 + len(rules.PADS)], axis=1)
        self._arrays.rows[rows] = np.concatenate([part.reshape(len(rows), -1) for part in found], axis=1)
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
        self._arrays.controls[:] = controls.detach().permute(2, 1, 0).float().cpu().numpy()
        lost = torch.zeros(controls.shape[-1], dtype=torch.bool)
        for worker in self._exchange():
            worlds = torch.tensor(list(self._shares[worker].worlds))
            lost[worlds] = True
            self.begin(state, worlds.to(controls.device))
        return *self._read(), lost.to(controls.device)

    def _exchange(self) -> list[int]:
        """Makes a step in all processes; returns the workers that have failed and been replaced."""
        processes = self._processes or self._start()
        try:
            workers = range(len(processes))
            failed = {worker: error for worker in workers if (error := _failure(processes.send, worker, _STEP))}
            end = time.monotonic() + self.patience
            for worker in workers:
                left = end - time.monotonic()
                if worker not in failed and (error := _failure(processes.receive, worker, left)):
                    failed[worker] = error
            for worker in workers:
                self._in_vain[worker] = self._in_vain[worker] + 1 if worker in failed else 0
            for worker, error in failed.items():
                self._replace(processes, worker, error)
        except BaseException:  # Ctrl-C too: an answer left behind would be taken for that to the next message
            self.close()
            raise
        return list(failed)

    def _start(self) -> Processes:
        """Starts the workers on the first step, since a world may be built only for its specs."""
        if self._closed:
            raise RuntimeError("this world is closed")
        self._processes = Processes(work, self._shares, "matches")
        for worker in range(len(self._shares)):
            self._await(self._processes, worker)
        return self._processes

    def _await(self, processes: Processes, worker: int) -> None:
        """Waits until a worker has begun."""
        if error := _failure(processes.receive, worker, _TO_BEGIN):
            self.close()
            raise WorkersFailed(f"{self._named(worker)} cannot begin: {error}", error.traceback) from error

    def _replace(self, processes: Processes, worker: int, error: WorkerFailed) -> None:
        text = f"{self._named(worker)} of RocketSim: {error}"
        if self._in_vain[worker] > _IN_VAIN:
            times = f"it has failed {self._in_vain[worker]} times in a row"
            raise WorkersFailed(f"{text}; {times}", error.traceback) from error
        if not self.failures:
            text += "; it is replaced, its matches begin anew, as after any further failure"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        self.failures += 1
        processes.restart(worker)
        self._await(processes, worker)

    def _named(self, worker: int) -> str:
        worlds = self._shares[worker].worlds
        return f"worker {worker} of {len(self._shares)} (worlds {worlds[0]} to {worlds[-1]})"

    def _read(self) -> tuple[RocketState, Events]:
        """Returns the rows as separate tensors."""
        rows = torch.from_numpy(self._arrays.rows).clone().to(**self._kind).t().contiguous()
        worlds, width = rows.shape[1], sum(CAR.values())
        cars, ball, pads, clock, events = rows.split(sizes(self._cars))
        car = cars.view(self._cars, width, worlds).transpose(0, 1).contiguous()
        told = dict(zip(CAR, car.split(tuple(CAR.values()))))
        single = {name: value[0] for name, value in told.items() if CAR[name] == 1}
        several = {name: value for name, value in told.items() if CAR[name] > 1}
        several["rotation"] = several["rotation"].view(3, 3, *several["rotation"].shape[1:])
        found = new_cars(several["position"], several["rotation"], single["boost"]).replace(**several, **single)
        state = RocketState(found, Ball(*ball.view(len(BALL), 3, worlds)), pads, *clock)
        return state, Events(*events.view(self._cars, len(EVENTS), worlds).unbind(1))


def _failure(call: Callable[..., Any], *arguments: Any) -> WorkerFailed | None:
    """Sends to a worker or receives from it; returns the reason of a failure."""
    try:
        call(*arguments)
    except WorkerFailed as error:
        return error
    return None
