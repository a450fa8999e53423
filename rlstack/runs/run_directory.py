"""The run directory, with all files of a run and everything needed to resume it; and agents that come with rlstack.

``zoo:<name>`` works wherever a checkpoint can be named. Each is a folder ``experiments/zoo/<name>``
(``rlstack/zoo/<name>`` in the wheel) with ``agent.pt``, a checkpoint without optimisers and replay buffer,
``card.json`` with its training and scores, and a film. ``python -m experiments.zoo.build`` makes them from runs.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from rlstack.config import ConfigError
from rlstack.config.allowed import check_named, links_in, sign, yaml_text
from rlstack.config.errors import missing_option, nearest_path
from rlstack.config.options import renewed
from rlstack.envs.foundation.files import write_text

PREFIX, HUB = "zoo:", "hf:"
AGENT, CARD, FILM = "agent.pt", "card.json", "film.mp4"


def zoo_folder() -> Path:
    """Returns the folder of the agents."""
    return Path(__file__).resolve().parents[1] / "zoo"


def zoo_names() -> list[str]:
    """Returns the names of the agents."""
    return sorted(card.parent.name for card in zoo_folder().glob(f"*/{CARD}"))


def card(name: str) -> dict[str, Any]:
    """Reads an agent's card: world, command, commit, frames, configuration, scores, SHA-256, film.

    Raises:
        ConfigError: there is no such agent, or its card is damaged.
    """
    from rlstack.files.safe_load import read_json_object  # imports torch, which takes seconds

    if name not in zoo_names():
        raise ConfigError(missing_option("zoo", name, zoo_names()))
    try:
        return read_json_object(zoo_folder() / name / CARD)
    except ValueError as error:
        raise ConfigError(f"zoo: {error}") from None


def published_file(source: str) -> Path:
    """Returns the checkpoint file of ``zoo:<name>`` or ``hf:<user>/<name>``.

    Raises:
        ConfigError: there is no such agent, or it is damaged: a file differs from the SHA-256 that its card lists.
    """
    if source.startswith(HUB):
        from .hub import hub_file

        return hub_file(source)
    name = source.removeprefix(PREFIX)
    known, file = card(name), zoo_folder() / name / AGENT
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != known.get("sha256"):
        raise ConfigError(f"{source}: {file} is missing or not the file of its card")
    return file


if TYPE_CHECKING:
    from .checkpoint import CheckpointStore

CONFIG = "config.yaml"
LATEST = "latest"
"""Stands for the newest run in place of a run's name; write ``./latest`` for a folder of that name."""
OF_THE_DISK = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "EACCES", "EPERM", "ESTALE", "ENXIO", "ENODEV")
    if hasattr(errno, name)
}
"""Error numbers of full, read-only and broken disks."""


class RunDirectory:
    """``config.yaml``, ``metrics.csv``, ``checkpoints/``, ``evaluations/``, ``tensorboard/`` of one run."""

    def __init__(self, path: Path | str, keep: int = 3) -> None:
        self.path, self._keep = Path(path), keep
        self.evaluations = self.path / "evaluations"

    @cached_property
    def checkpoints(self) -> CheckpointStore:
        """The run's checkpoints; only writing and reading them imports torch."""
        from .checkpoint import CheckpointStore

        return CheckpointStore(self.path / "checkpoints", self._keep)

    @classmethod
    def create(cls, path: Path | str | None, name: str, keep: int) -> RunDirectory:
        """Makes a new, empty run directory.

        Args:
            path: path of the directory; None means ``runs/<name>_<time>``.

        Raises:
            ConfigError: the folder already holds a run, or cannot be written to.
        """
        chosen = Path(path) if path is not None else Path("runs") / f"{name}_{time.strftime('%Y%m%d-%H%M%S')}"
        if path is not None and (chosen / CONFIG).exists():
            raise ConfigError(f"run_dir: {chosen} already holds a run; choose another, or resume={chosen}")
        return cls(make_first_free(chosen, "run_dir") if path is None else make_folder(chosen, "run_dir"), keep)

    @classmethod
    def open(cls, path: Path | str, keep: int = 3) -> RunDirectory:
        """Opens an existing run.

        Raises:
            ConfigError: the folder holds no run, or links to places outside that the user has not allowed.
        """
        if not (Path(path) / CONFIG).is_file():
            raise ConfigError(f"{path}: not a run directory, it has no {CONFIG}{nearest_path(path)}")
        check_named(links_in(Path(path)), Path(path) / CONFIG)
        return cls(path, keep)

    def check_unfinished(self, total_frames: int, last_frame: int) -> None:
        """Checks name and completeness of the newest checkpoint without importing torch.

        Raises:
            ConfigError: the run is complete; see :meth:`refuse_finished`.
        """
        saved = self.path.glob("checkpoints/checkpoint_*.pt")
        files = {int(path.stem[11:]): path for path in saved if path.stem[11:].isdecimal()}
        newest = max(files, default=0)
        if newest < min(total_frames, last_frame):
            return
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(files[newest]) as archive:
            if archive.testzip() is None:
                self.refuse_finished(newest, total_frames, last_frame)

    def evaluation(self, frames: int) -> Path:
        """Path of the evaluation after ``frames`` frames."""
        return self.evaluations / f"{frames:012d}.json"

    def drop_evaluations_after(self, frames: int) -> None:
        """Removes evaluations beyond ``frames``, which a resumed run makes again."""
        for path in self.evaluations.glob("*.json"):
            if path.stem.isdecimal() and int(path.stem) > frames:
                path.unlink()

    def refuse_finished(self, frames: int, total_frames: int, last_frame: int) -> None:
        """Raises a :class:`ConfigError` if a run at ``frames`` frames has reached its end, or the frame to stop at.

        It has not if the evaluation at its end was interrupted.
        """
        if not self.evaluation(frames).is_file():
            return
        if frames >= total_frames:
            raise ConfigError(f"resume: the run is complete ({frames:,} frames); raise total_frames to continue")
        if frames >= last_frame:
            raise ConfigError(f"resume: the run is at {frames:,} frames; raise until, or set until=null")

    def write_config(self, config: dict[str, Any]) -> None:
        """Stores the resolved configuration, signed by :func:`rlstack.config.allowed.sign`."""
        sign(self.path, [config, links_in(self.path)])
        write_text(self.path / CONFIG, OmegaConf.to_yaml(OmegaConf.create(config)))

    def read_config(self) -> dict[str, Any]:
        """Reads the stored configuration, converted to the options of this version.

        Raises:
            ConfigError: the file is not yaml, names something that the user has not allowed, or has options of an
                earlier version that this one does not support.
        """
        try:
            config = OmegaConf.to_container(OmegaConf.create(yaml_text(self.path / CONFIG)))
        except Exception as error:
            raise ConfigError(f"{self.path / CONFIG}: not a configuration ({error})") from None
        if not isinstance(config, dict):
            raise ConfigError(f"{self.path / CONFIG}: not a configuration")
        check_named(config, self.path / CONFIG)
        return renewed({str(key): value for key, value in config.items()})


@contextmanager
def taken(path: Path | str) -> Iterator[None]:
    """A context that locks a folder against training by other processes; the lock ends with the process.

    It makes the folder, and removes it at the end if it is empty.

    Raises:
        ConfigError: another process holds the lock.
    """
    try:
        os.makedirs(path, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"run_dir: {path} cannot be made ({error.strerror})") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"run_dir: another process trains {path}; wait for it, or end it first") from None
        except OSError:
            pass  # the file system lacks locks
        try:
            yield
        finally:
            with suppress(OSError):
                os.rmdir(path)
    finally:
        os.close(descriptor)


def is_taken(path: Path | str) -> bool:
    """Returns whether a process trains in this folder, if its file system has locks; see :func:`taken`."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(descriptor)
    return False


def make_folder(path: Path, key: str) -> Path:
    """Makes a folder unless it exists.

    Args:
        key: option with its name, for messages.

    Raises:
        ConfigError: the folder cannot be made, or is not writable.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be made ({error.strerror})") from None
    if not os.access(path, os.W_OK):
        raise ConfigError(f"{key}: {path} is not writable")
    return path


@contextmanager
def removed_if_empty(folder: Path) -> Iterator[Path]:
    """A context that removes the folder if it is still empty after a failure or an interruption."""
    try:
        yield folder
    except BaseException:
        with suppress(OSError):  # the folder is not empty
            folder.rmdir()
        raise


def make_first_free(path: Path, key: str) -> Path:
    """Makes a folder under its name or with the first free number, since runs of a sweep may start simultaneously.

    Raises:
        ConfigError: the folder cannot be made; see :func:`make_folder`.
    """
    candidate, number = path, 1
    while True:
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            number += 1
            candidate = path.with_name(f"{path.name}-{number}")
        except OSError as error:
            raise ConfigError(f"{key}: {path} cannot be made ({error.strerror})") from None
        else:
            return candidate


def named(path: str, key: str) -> str:
    """Resolves a run directory or checkpoint: ``zoo:<name>`` and ``hf:<user>/<name>`` are files, ``latest`` a run.

    ``latest`` is the run below ``runs/`` whose last checkpoint is the newest; it is also printed.

    Args:
        path: the name that the user gave.
        key: option with the name, for messages.

    Raises:
        ConfigError: there is no such run.
    """
    if path.startswith((PREFIX, HUB)):
        return str(published_file(path))
    if path != LATEST:
        return path
    files = (file for file in Path("runs").rglob("checkpoints/[!.]*.pt") if (file.parents[1] / CONFIG).is_file())
    newest = max(files, key=lambda file: (file.stat().st_mtime_ns, file), default=None)
    if newest is None:
        raise ConfigError(
            f"{key}: latest is the newest run below runs/, where no run has a checkpoint; set {key}=<run>"
        )
    if os.environ.get("RANK", "0") == "0":
        print(f"{key}: latest is {newest.parents[1]}", flush=True)
    return str(newest.parents[1])
