"""The generated field: file format, corners on the surface, no gaps; and the folders searched for files."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from rlstack.envs.rocket.field import Field
from rlstack.envs.rocket.rocketsim import backend
from rlstack.envs.rocket.rocketsim.backend import VARIABLE, Mesh, field_mesh, mesh_folder

SHAPES = {"ramps": (256.0, 512.0), "planes": (0.0, 0.0)}
POST, LINE = 892.755, 5120.0


@pytest.fixture(params=SHAPES)
def ramps(request: pytest.FixtureRequest) -> tuple[float, float]:
    return SHAPES[request.param]


def gaps(points: np.ndarray, ramps: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Returns how far points ``[n, 3]`` are inside the torch world's field, and the direction further in."""
    gap, normal = Field(True, *ramps).inside(torch.from_numpy(points).T)
    return gap.numpy(), normal.T.numpy()


def sides(mesh: Mesh) -> tuple[np.ndarray, np.ndarray]:
    """Returns the centres and unit normals of all triangles ``[T, 3]``."""
    corners = mesh.vertices[mesh.triangles]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    return corners.mean(1), normal / np.linalg.norm(normal, axis=1, keepdims=True)


def test_the_file_is_laid_out_as_documented(ramps: tuple[float, float]) -> None:
    mesh = field_mesh(*ramps)
    content = mesh.to_bytes()
    triangles, vertices = struct.unpack_from("<ii", content)
    assert (triangles, vertices) == (len(mesh.triangles), len(mesh.vertices))
    assert len(content) == 8 + 12 * triangles + 12 * vertices
    rows = struct.unpack_from(f"<{3 * triangles}i", content, 8)
    assert min(rows) == 0 and max(rows) == vertices - 1
    last = struct.unpack_from("<3f", content, len(content) - 12)
    np.testing.assert_allclose(np.array(last) * 50, mesh.vertices[-1], atol=1e-3)


def test_every_corner_is_on_the_surface(ramps: tuple[float, float]) -> None:
    vertices = field_mesh(*ramps).vertices
    # The edges of a goal's box belong to its inside.
    nudge = np.where(np.abs(vertices[:, 1:2]) > LINE, [1e-6, 1e-6, 1e-6], 0.0) * np.sign([0, 0, 322.0] - vertices)
    gap, _ = gaps(vertices + nudge, ramps)
    assert np.abs(gap).max() < 1e-5
    for axis, most in ((0, 4096.0), (1, 6000.0), (2, 2048.0)):
        assert np.abs(vertices[:, axis]).max() == most


def test_triangles_face_inwards_and_follow_the_rounds(ramps: tuple[float, float]) -> None:
    middle, normal = sides(field_mesh(*ramps))
    # What closes the rounds beside the posts has no like in the torch world, which has nothing there.
    closes = (np.abs(np.abs(middle[:, 0]) - POST) < 1e-6) & (np.abs(middle[:, 1]) < LINE)
    assert (normal[closes, 0] * middle[closes, 0] < 0).all() and closes.sum() == (64 if ramps[0] else 0)
    gap, inwards = gaps((middle + normal)[~closes], ramps)
    assert ((normal[~closes] * inwards).sum(1) > 0.99).all()
    assert (np.abs(gap - 1) < 0.8).all()


def test_it_has_no_holes_but_where_the_simulator_has_planes(ramps: tuple[float, float]) -> None:
    mesh = field_mesh(*ramps)
    edges = Counter((a, b) for row in mesh.triangles.tolist() for a, b in zip(row, row[1:] + row[:1]))
    assert set(edges.values()) == {1}
    rims = [mesh.vertices[list(edge)] for edge in edges if edge[::-1] not in edges]
    assert rims
    for rim in rims:
        on_floor, on_ceiling = (rim[:, 2] == 0).all(), (np.abs(rim[:, 2] - 2048) < 1e-9).all()
        assert on_floor or on_ceiling or (np.abs(np.abs(rim[:, 0]) - 4096) < 1e-9).all()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(backend, "_RLGYM", Path("nowhere"))  # as if RLGym were not installed
    return tmp_path / "cache"


def test_meshes_are_generated_into_the_cache(cache: Path) -> None:
    folder = mesh_folder(ramps=True)
    assert cache in folder.parents and folder != mesh_folder(ramps=False)
    (file,) = [path for path in folder.rglob("*") if path.is_file()]
    assert file == folder / "soccar/field.cmf" and file.read_bytes() == field_mesh().to_bytes()
    file.write_bytes(b"half of it")
    assert mesh_folder(ramps=True) == folder and file.read_bytes() == field_mesh().to_bytes()


def test_a_cache_that_cannot_be_written_does_no_harm(cache: Path) -> None:
    cache.write_text("a file where a folder should be")
    folder = mesh_folder(ramps=True)
    assert (folder / "soccar/field.cmf").is_file() and cache not in folder.parents


def test_the_users_own_meshes_come_first(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    monkeypatch.setenv(VARIABLE, str(own))
    with pytest.raises(ValueError, match=rf"{VARIABLE}: no meshes .*own/soccar/\*.cmf; unset it"):
        mesh_folder(ramps=True)
    (own / "soccar").mkdir(parents=True)
    (own / "soccar/mesh.cmf").write_bytes(b"")
    assert mesh_folder(ramps=True) == own
    assert cache in mesh_folder(ramps=False).parents


def test_then_come_those_of_an_installed_rlgym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    meshes = tmp_path / "rlgym/rocket_league/sim/collision_meshes"
    (meshes / "soccar").mkdir(parents=True)
    (meshes / "soccar/mesh_0.cmf").write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert mesh_folder(ramps=True) == meshes
