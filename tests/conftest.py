"""Settings and fixtures for every test."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import pickle
import random
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

# Before torch is imported: one thread per process, no GPU, no window, no upload.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("WANDB_MODE", "offline")

import numpy as np
import pytest
import torch
from hydra._internal import defaults_list as tree
from hydra._internal.config_loader_impl import ConfigLoaderImpl as Loader
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf, flag_override

torch.set_num_threads(1)
_STATE = tempfile.TemporaryDirectory(prefix="rlstack_tests_")
os.environ["XDG_STATE_HOME"] = _STATE.name  # holds the key that signs runs

REPO = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("RLSTACK_SHARED") or REPO.parent / "shared").expanduser()


# -- Tests compose thousands of configurations from the same files, which takes a quarter of their time.

_KEPT: dict[Any, bytes] = {}


def _kept(key: Any, make: Callable[[], Any]) -> Any:
    """Returns a copy of what has been made for a key; unpickling is the quickest way to copy a configuration."""
    if key not in _KEPT:
        _KEPT[key] = pickle.dumps(make())
    return pickle.loads(_KEPT[key])


def _loaded(file: Any, load: Any = OmegaConf.load) -> Any:
    """Replaces ``OmegaConf.load``: a text is parsed once."""
    if isinstance(file, str | Path):
        return load(file)
    text = file.read()
    file.seek(0)
    return _kept(text, lambda: load(file))


def _merged(loader: Any, defaults: Any, repo: Any, merge: Any = Loader._compose_config_from_defaults_list) -> Any:
    """Replaces Hydra's merging of files, to which it then applies the command line: equal contents are merged once."""
    files = [pickle.dumps(repo.load_config(default.config_path)) for default in defaults]
    own = len([*takewhile(lambda default: default.config_path.startswith("hydra/"), defaults)])  # of every command

    def make() -> Any:
        base = _kept((repr(defaults[:own]), *files[:own]), lambda: merge(loader, defaults[:own], repo))
        with flag_override(base, "no_deepcopy_set_nodes", True):
            base.merge_with(merge(loader, defaults[own:], repo))
        return base

    return _kept((repr(defaults), *files), make)


def _choices(overrides: Any, defaults: Any, self_added: bool, make: Any = tree._create_interpolation_map) -> Any:
    """Replaces the choices for defaults that are interpolations, which Hydra gathers for files without any, too."""
    return make(overrides, defaults, self_added) if any(entry.is_interpolation() for entry in defaults) else None


OmegaConf.load = _loaded
Loader._compose_config_from_defaults_list = _merged
tree._create_interpolation_map = _choices
ConfigStore.__deepcopy__ = lambda store, _: store  # Hydra copies it for each composition, and only reads it
importlib.metadata.version = cache(importlib.metadata.version)  # each run asks for two dozen, thrice


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives slow tests time on a busy machine; skips those marked `shared` if the recorded data set is missing."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(1800))
    if SHARED.is_dir():
        return
    skip = pytest.mark.skip(reason=f"recorded data set absent: {SHARED} (set RLSTACK_SHARED)")
    for item in items:
        if item.get_closest_marker("shared"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Exempts what has been imported from garbage collection, which would look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seeds each test, so that its random numbers do not depend on the tests before it."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture
def shared_dir() -> Path:
    """Returns the folder of the full recorded data set; skips the test if it is missing."""
    if not SHARED.is_dir():
        pytest.skip(f"recorded data set absent: {SHARED} (set RLSTACK_SHARED)")
    return SHARED


@pytest.fixture
def fixtures_dir() -> Path:
    """Returns the folder of small recorded files in the repository."""
    return REPO / "tests" / "fixtures"


class Ended(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    def refused(self) -> str:
        """Returns the one line with which a command ends that was typed wrongly."""
        assert self.status == 2 and self.err.startswith("error: ") and self.err.count("\n") == 1, self.err
        return self.err


Command = Callable[..., Ended]
"""``rlstack <words>``, given the words."""


@pytest.fixture
def rlstack_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``rlstack <words>`` in this process (a new one takes seconds to import torch), in an empty folder."""
    from rlstack.__main__ import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # commands add the working folder

    def call(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["rlstack", *words])
        capsys.readouterr()
        status: object = 0
        try:
            main()
        except SystemExit as end:
            status = end.code
        return Ended(int(str(status or 0)), *capsys.readouterr())

    return call
