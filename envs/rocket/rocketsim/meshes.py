"""The field's surface as triangles, in RocketSim's file format for collision meshes.

RocketSim itself has floor, ceiling and side walls as infinite planes. The mesh adds end walls, goals, corners and the
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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...foundation.files import replacing
from .. import rules

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
