"""Meshes for the tests of the simulator's backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlstack.envs.rocket.rocketsim.backend import VARIABLE, field_mesh


@pytest.fixture(scope="session")
def meshes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the generated field."""
    folder = tmp_path_factory.mktemp("meshes")
    (folder / "soccar").mkdir()
    (folder / "soccar/field.cmf").write_bytes(field_mesh().to_bytes())
    return folder


@pytest.fixture
def own_meshes(meshes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the generated meshes, whatever packages are installed."""
    monkeypatch.setenv(VARIABLE, str(meshes))
