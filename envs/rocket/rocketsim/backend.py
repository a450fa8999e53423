"""Steps torch states with the simulator in other processes, and writes the meshes with which it collides.

The simulator has floor, ceiling and side walls as infinite planes. The meshes add end walls, goals, corners and the
quarter rounds between walls, in the shape of :class:`rlstack.envs.rocket.field.Field`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...foundation.files import replacing
from ...foundation.packages import needs
from ...foundation.processes import TIMEOUT, Shared, Workers, divided
from .. import rules
from ..simulation import Events
from ..state import Ball, RocketState, new_cars
from .worker import BALL, CAR, EVENTS, SharedArrays, sizes, work


class Simulators:
    """W matches in the original simulator, divided among worker processes.

    A worker that dies, or does not answer in time, is replaced: its worlds keep the state before the step, are reported
    as lost, and should be reset.

    Args:
        num_worlds, cars: numbers W and C.
        tick_skip: number of ticks per step.
        workers: number of processes, from one to one per world.
        ramps: see :func:`mesh_folder`.
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


# -- meshes -----------------------------------------------------------------------------------------------------------

UNIT = 50.0
"""Number of uu in a unit of the files."""
FACETS = 16
"""Number of flat strips of a quarter round, whose surface is off by 0.3 uu at the floor and 0.6 uu at the ceiling."""
VARIABLE = "RS_COLLISION_MESHES"
"""Environment variable with a folder of meshes, which RocketSim's own programs read, too."""
_MODE = "soccar"  # name of this kind of match's folder within a folder of meshes
_RLGYM = Path("rocket_league/sim/collision_meshes")

Point = tuple[float, float, float]
Profile = Sequence[tuple[float, float]]
"""Distances from a wall's plane and heights, from floor to ceiling."""

_ROOT = math.sqrt(0.5)
_EAST, _NORTH, _SLANT = rules.HALF_WIDTH, rules.HALF_LENGTH, rules.CORNER * _ROOT
_SIDES = (
    *((1.0, 0.0, _EAST), (_ROOT, _ROOT, _SLANT), (0.0, 1.0, _NORTH), (-_ROOT, _ROOT, _SLANT)),
    *((-1.0, 0.0, _EAST), (-_ROOT, -_ROOT, _SLANT), (0.0, -1.0, _NORTH), (_ROOT, -_ROOT, _SLANT)),
)
"""Walls counterclockwise: direction of each, and its distance from the middle."""


class Mesh(NamedTuple):
    """Triangles with corners counterclockwise as seen from inside the field.

    Attributes:
        vertices: float64 ``[V, 3]``, uu.
        triangles: int ``[T, 3]`` rows of vertices.
    """

    vertices: NDArray[np.float64]
    triangles: NDArray[np.int64]

    def to_bytes(self) -> bytes:
        """Returns the contents of a ``.cmf`` file: both counts, triangles, vertices; little-endian 4-byte numbers."""
        counts = np.array([len(self.triangles), len(self.vertices)], "<i4")
        return (
            counts.tobytes() + self.triangles.astype("<i4").tobytes() + (self.vertices / UNIT).astype("<f4").tobytes()
        )


def field_mesh(low_ramp: float = rules.LOW_RAMP, high_ramp: float = rules.HIGH_RAMP, facets: int = FACETS) -> Mesh:
    """Makes the part of the field that the simulator lacks.

    Args:
        low_ramp, high_ramp: radius of the quarter rounds at floor and ceiling in uu, 0 for none.
        facets: number of strips of each.
    """
    shape = profile(low_ramp, high_ramp, facets)
    polygons = [polygon for side in range(len(_SIDES)) for polygon in _wall(side, shape)]
    polygons += [polygon for end in (1.0, -1.0) for polygon in _goal(end, shape)]
    fans = [(first, a, b) for first, *others in polygons for a, b in pairwise(others)]
    corners = np.array(fans).reshape(-1, 3)
    # Corners at the same place are one vertex; + 0.0 turns -0.0 into 0.0.
    _, places, rows = np.unique(corners.round(3) + 0.0, axis=0, return_index=True, return_inverse=True)
    return Mesh(corners[places], rows.reshape(-1, 3))


def profile(low_ramp: float, high_ramp: float, facets: int) -> Profile:
    """Returns the cross-section of a wall, with the crossbar's height among the points."""
    angles = [0.5 * math.pi * step / facets for step in range(facets + 1)]
    low = [(low_ramp * (1 - math.sin(angle)), low_ramp * (1 - math.cos(angle))) for angle in angles]
    under = rules.HEIGHT - high_ramp
    high = [(high_ramp * (1 - math.cos(angle)), under + high_ramp * math.sin(angle)) for angle in angles]
    points = [*(low if low_ramp else [(0.0, 0.0)]), (0.0, rules.GOAL_HEIGHT)]
    return [*points, *(high if high_ramp else [(0.0, rules.HEIGHT)])]


def _edge(side: int, point: tuple[float, float]) -> Point:
    """Returns the point at which the wall ``side`` meets the next one, for a point of the profile."""
    distance, height = point
    (ax, ay, a), (bx, by, b) = _SIDES[side % 8], _SIDES[(side + 1) % 8]
    a, b, scale = a - distance, b - distance, 1 / (ax * by - ay * bx)
    return (a * by - b * ay) * scale, (b * ax - a * bx) * scale, height


def _wall(side: int, shape: Profile) -> Iterator[tuple[Point, ...]]:
    """Returns the polygons of one of the eight walls from edge to edge, with its rounds."""
    normal_x, normal_y, _ = _SIDES[side]
    for lower, upper in pairwise(shape):
        first, last = _edge(side - 1, lower), _edge(side, lower)
        first_up, last_up = _edge(side - 1, upper), _edge(side, upper)
        if abs(normal_y) < 1.0:
            # The simulator has the plane of a side wall.
            if not (abs(normal_x) == 1.0 and lower[0] == upper[0] == 0.0):
                yield first, first_up, last_up, last
            continue
        near, far = (_post(normal_y, lower, which) for which in (0, 1))
        if upper[1] <= rules.GOAL_HEIGHT:
            yield first, first_up, _post(normal_y, upper, 0), near
            yield far, _post(normal_y, upper, 1), last_up, last
        elif lower[1] == rules.GOAL_HEIGHT:
            yield first_up, last_up, last, far, near, first
        else:
            yield first, first_up, last_up, last


def _post(end: float, point: tuple[float, float], which: int) -> Point:
    """Adds the end wall at the goal's first (0) or second (1) post along the wall."""
    # Counterclockwise, the north wall runs west and the south wall east.
    x = rules.GOAL_HALF_WIDTH * end * (1 - 2 * which)
    return x, end * (rules.HALF_LENGTH - point[0]), point[1]


def _goal(end: float, shape: Profile) -> Iterator[tuple[Point, ...]]:
    """Returns a box without a front, and the surfaces that close the round at the floor beside the posts."""
    wide, line, back = (end * value for value in (rules.GOAL_HALF_WIDTH, rules.HALF_LENGTH, rules.GOAL_BACK))
    top = rules.GOAL_HEIGHT
    lower = [point for point in shape if point[1] <= top]
    frame = sorted({0.0, *(height for distance, height in lower if distance == 0.0)})
    # Looking into the goal, `right` is the post on the right.
    right, left = ([(x, line, height) for height in frame] for x in (wide, -wide))
    yield (wide, back, 0.0), *right, (wide, back, top)
    yield (-wide, back, 0.0), (-wide, back, top), *reversed(left)
    yield (-wide, line, top), (-wide, back, top), (wide, back, top), (wide, line, top)
    yield (wide, back, top), (-wide, back, top), (-wide, back, 0.0), (wide, back, 0.0)
    rounded = [point for point in lower if point[1] <= frame[1]] if shape[0][0] > 0 else []
    for x, order in ((wide, 1), (-wide, -1)):
        outline = [(x, end * (rules.HALF_LENGTH - distance), height) for distance, height in rounded]
        if outline:
            yield (x, line, 0.0), *outline[::order]


# -- folders -----------------------------------------------------------------------------------------------------------


def mesh_folder(ramps: bool) -> Path:
    """Returns the folder for the simulator; writes the generated mesh into the cache if needed.

    Args:
        ramps: whether the field has ramps; without them it is always the generated mesh.

    Raises:
        ValueError: :data:`VARIABLE` names a folder without meshes.
    """
    if not ramps:
        return _cached(field_mesh(0.0, 0.0), "planes")
    named = os.environ.get(VARIABLE)
    if named:
        folder = Path(named).expanduser()
        if not _has_meshes(folder):
            raise ValueError(f"{VARIABLE}: no meshes {folder / _MODE}/*.cmf; unset it to have them generated")
        return folder
    spec = importlib.util.find_spec("rlgym")
    folders = [Path(place) / _RLGYM for place in (spec.submodule_search_locations or ())] if spec else []
    installed = next((folder for folder in folders if _has_meshes(folder)), None)
    return installed or _cached(field_mesh(), "ramps")


def _has_meshes(folder: Path) -> bool:
    return any((folder / _MODE).glob("*.cmf"))


def cache_folder() -> Path:
    """Returns ``$XDG_CACHE_HOME/rlstack``, by default ``~/.cache/rlstack``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rlstack"


def _cached(mesh: Mesh, name: str) -> Path:
    """Makes a folder with only this mesh, in the cache or, if that is not writable, among temporary files."""
    content = mesh.to_bytes()
    folder = f"collision_meshes/{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    try:
        return _written(cache_folder() / folder, content)
    except OSError:
        return _written(Path(tempfile.mkdtemp(prefix="rlstack-")) / folder, content)


def _written(folder: Path, content: bytes) -> Path:
    file = folder / _MODE / "field.cmf"
    if not (file.is_file() and file.read_bytes() == content):
        with replacing(file) as (partial,):  # other processes may read or write it
            partial.write_bytes(content)
    return folder
