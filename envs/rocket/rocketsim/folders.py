"""Where the simulator finds the field's meshes: the user's own, those of an installed RLGym, or generated ones."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path

from .meshes import Mesh, field_mesh

VARIABLE = "RS_COLLISION_MESHES"
"""Environment variable that names a folder of meshes; RocketSim's own programs read it, too."""
_MODE = "soccar"  # folder of this kind of match within a folder of meshes
_RLGYM = Path("rocket_league/sim/collision_meshes")


def mesh_folder(ramps: bool) -> Path:
    """The folder to give to the simulator; writes the generated mesh into the cache where it is needed.

    Args:
        ramps: the usual field. Without them it is always the generated one, as no other is without.

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
    return _of_rlgym() or _cached(field_mesh(), "ramps")


def _has_meshes(folder: Path) -> bool:
    return any((folder / _MODE).glob("*.cmf"))


def _of_rlgym() -> Path | None:
    """The meshes that an installed ``rlgym-rocket-league`` brings."""
    spec = importlib.util.find_spec("rlgym")
    folders = [Path(place) / _RLGYM for place in (spec.submodule_search_locations or ())] if spec else []
    return next((folder for folder in folders if _has_meshes(folder)), None)


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/rlstack``, by default ``~/.cache/rlstack``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rlstack"


def _cached(mesh: Mesh, name: str) -> Path:
    """A folder with just this mesh, in the cache or, where that cannot be written, among temporary files."""
    content = mesh.to_bytes()
    folder = f"collision_meshes/{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    try:
        return _written(cache_folder() / folder, content)
    except OSError:
        return _written(Path(tempfile.mkdtemp(prefix="rlstack-")) / folder, content)


def _written(folder: Path, content: bytes) -> Path:
    file = folder / _MODE / "field.cmf"
    if not (file.is_file() and file.read_bytes() == content):
        file.parent.mkdir(parents=True, exist_ok=True)
        # In one go, as other processes may be about to read or write it.
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as part:
            part.write(content)
        os.replace(part.name, file)
    return folder
