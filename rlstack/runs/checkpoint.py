"""Checkpoints: atomic, rotated, checked, and free of code.

A checkpoint is an ordinary file of ``torch.save`` (a zip, whose records carry a CRC-32) that holds nothing
but tensors, numbers, strings and containers of them, so ``torch.load(path, weights_only=True)`` opens it
anywhere. With its state goes a digest of it, so that damage to the zip's own tables shows, too. It is written
beside its final name and moved into place once it is on disk: a killed run leaves the last complete checkpoint,
never half of one.

Why not ``torchrl.checkpoint.Checkpoint`` (measured with TorchRL 0.14.1): its directories hold a file for every tensor
and no checksum, so that a changed byte is loaded without a word; only its archives notice, which take twice as long to
write as a file of ours (92 ms and 41 ms for 1.2 MB). It publishes without waiting for the disk, does not go back to an
older checkpoint where the newest is damaged, and its format is announced to change with the next releases.
"""

import hashlib
import os
import re
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from envs.bounded_files import RATIO
from envs.whole_files import replacing
from rlstack.files.safe_load import is_torchscript, load_tensors

from .run_directory import naming

FORMAT = "rlstack-checkpoint"
VERSION = 1
BEST = "best.pt"

_NAME = re.compile(r"checkpoint_(\d+)\.pt")  # a file of another name is the user's own: never removed
_PLAIN = (bool, int, float, str, type(None))
_FOLDER = 0x10  # an attribute of a zip's entry


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read, told in one line that names the file or the entry."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class CheckpointStore:
    """The checkpoints of one run, in one folder: ``checkpoint_<frames>.pt`` and ``best.pt``.

    Args:
        directory: the folder; created with the first save.
        keep: how many of the latest checkpoints to keep. The best is kept besides, as ``best.pt``.
    """

    def __init__(self, directory: Path | str, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.directory = Path(directory)
        self.keep = keep

    def save(self, state: dict[str, Any], frames: int, best: bool = False) -> Path:
        """Write a checkpoint; when this returns, it is on disk, not merely in the system's cache.

        Args:
            state: nested dicts, lists and tuples of tensors, numbers, strings, booleans and None.
            frames: frames done so far, which name and order the checkpoint. Checkpoints of more frames are
                removed: a run that was resumed from an earlier one has left that future behind.
            best: also keep this one as ``best.pt``.

        Raises:
            ValueError: if ``frames`` is negative.
            CheckpointError: for anything else in ``state``, naming where, before anything is written.
            OSError: if the disk fails; the earlier checkpoints are untouched.
        """
        if frames < 0:
            raise ValueError(f"frames must not be negative, got {frames}")
        content = to_saveable(state)
        self.directory.mkdir(parents=True, exist_ok=True)
        for leftover in self.directory.glob(".*.partial.pt"):
            leftover.unlink(missing_ok=True)
        path = self.directory / f"checkpoint_{frames:012d}.pt"
        write_checkpoint(path, content, frames)
        if best:
            self._keep_as_best(path)
        self._rotate(path)
        return path

    def latest(self) -> Path | None:
        """The checkpoint of the most frames, without looking inside; None when there is none."""
        paths = self._newest_first()
        return paths[0] if paths else None

    @property
    def empty(self) -> bool:
        """There is none, not even the best."""
        return self.latest() is None and not (self.directory / BEST).exists()

    def load(self) -> dict[str, Any]:
        """The newest sound state, its tensors on the CPU; each checkpoint passed over is named in a warning.

        Raises:
            CheckpointError: there is none, or a folder has the name of one.
        """
        candidates = self._newest_first()
        best = self.directory / BEST
        if best.is_file():
            if not candidates:
                warnings.warn(f"{self.directory}: no checkpoint_*.pt, going on from {BEST}", stacklevel=2)
            candidates.append(best)
        for candidate in candidates:
            if candidate.is_dir():  # the next checkpoint may be of this name
                raise CheckpointError(f"{candidate}: a folder, not a checkpoint; move it elsewhere to go on")
            try:
                return read_checkpoint(candidate)
            except CheckpointError as error:
                warnings.warn(f"{error}; trying an older checkpoint", stacklevel=2)
        found = f"none of {len(candidates)} checkpoints is sound" if candidates else "no checkpoint"
        raise CheckpointError(f"{self.directory}: {found}")

    def _newest_first(self) -> list[Path]:
        paths = (path for path in self.directory.glob("checkpoint_*.pt") if _NAME.fullmatch(path.name))
        return sorted(paths, key=_frames_of, reverse=True)

    def _keep_as_best(self, path: Path) -> None:
        with replacing(self.directory / BEST) as (partial,):
            try:
                os.link(path, partial)  # one copy on disk under two names; rotation drops only the other
            except OSError:  # a file system without hard links
                shutil.copyfile(path, partial)

    def _rotate(self, newest: Path) -> None:
        others = [path for path in self._newest_first() if path != newest]
        abandoned = [path for path in others if _frames_of(path) > _frames_of(newest)]
        earlier = [path for path in others if path not in abandoned]
        for path in abandoned + earlier[self.keep - 1 :]:
            path.unlink(missing_ok=True)


def write_checkpoint(path: Path, state: dict[str, Any], frames: int) -> None:
    """Writes one checkpoint file, wholly or not at all; when this returns, it is on disk.

    Raises:
        CheckpointError: ``state`` holds something that cannot be saved, before anything is written.
        OSError: the disk fails; a file that was there is untouched.
    """
    state = to_saveable(state)
    head = {"format": FORMAT, "version": VERSION, "frames": frames}
    write_tensors(path, {**head, "state": state, "digest": content_digest(state)})


def write_tensors(path: Path, content: dict[str, Any]) -> None:
    """Writes a file that ``torch.load(path, weights_only=True)`` reads; as :func:`write_checkpoint` does."""
    content = to_saveable(content)
    with naming(path):
        try:
            with replacing(path) as (partial,), partial.open("wb") as file:
                torch.save(content, file)  # by a name alone, torch would not say what is wrong with the disk
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Verify one checkpoint file, every byte of its records and all that is read of them, and return its state with
    tensors on the CPU.

    Raises:
        CheckpointError: one line that says what is wrong with the file.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    _verify_records(path)
    if is_torchscript(path):
        raise CheckpointError(
            f"{path}: a TorchScript program, not a checkpoint; it acts as agent=legacy agent.kind=torchscript"
        )
    try:
        payload = load_tensors(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a checkpoint of rlstack ({error})") from error
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a checkpoint of rlstack")
    if payload.get("version") != VERSION:
        raise CheckpointError(f"{path}: format version {payload.get('version')}, this program reads version {VERSION}")
    if not isinstance(payload.get("state"), dict):
        raise CheckpointError(f"{path}: not a checkpoint of rlstack, it holds no state")
    if "digest" in payload:  # files of earlier versions have none
        _verify_content(path, payload["state"], payload["digest"])
    return payload["state"]


def to_saveable(value: Any, where: str = "state") -> Any:
    """Rebuild ``value`` from plain containers and plain tensors, or say which entry cannot be saved.

    Tensors are not copied, except views of a larger storage: torch would write that storage whole.

    Raises:
        CheckpointError: naming the entry, such as ``state['agent']['optimizer'][0]``.
    """
    if isinstance(value, Tensor):
        return _plain_tensor(value, where)
    if isinstance(value, dict):
        for key in value:
            if type(key) not in (str, int):
                raise CheckpointError(f"{where}: key {key!r} is neither a string nor an integer")
        return {key: to_saveable(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [to_saveable(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if type(value) in _PLAIN:
        return value
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise CheckpointError(
        f"{where}: cannot save a {kind}, only tensors, numbers, strings, booleans, None, and dicts, lists or "
        "tuples of them"
    )


def state_digest(state: dict[str, Any]) -> str:
    """SHA-256 of what decides how an agent acts and learns on, to the last bit of every tensor.

    That is the frames, the agent, its memory or data, the worlds, the curriculum, the random generators, and whether
    imitation is done. How often a run was evaluated, logged or interrupted makes no difference.

    Example:
        >>> state_digest(read_checkpoint(Path("runs/a/checkpoints/best.pt")))
    """
    return content_digest({key: state[key] for key in _DECIDING if key in state})


_DECIDING = (
    "frames",
    "imitated",
    "agent",
    "replay",
    "data",
    "env",
    "other_ranks",
    "other_ranks_env",
    "curriculum",
    "rng",
)


def content_digest(state: Any) -> str:
    """SHA-256 of nested containers, their keys and types, and all bytes of their tensors."""
    digest = hashlib.sha256()

    def take(value: Any) -> None:
        if isinstance(value, Tensor):
            digest.update(f"tensor {value.dtype} {list(value.shape)};".encode())
            flat = value.detach().cpu().contiguous().flatten()
            if flat.numel() < 2:  # whose stride may be anything, which a view as bytes does not take
                flat = flat.clone(memory_format=torch.contiguous_format)
            digest.update(flat.view(torch.uint8).numpy().data)
        elif isinstance(value, dict):
            digest.update(f"dict {len(value)};".encode())
            for key in sorted(value, key=repr):
                digest.update(f"{key!r}:".encode())
                take(value[key])
        elif isinstance(value, list | tuple):
            digest.update(f"{type(value).__name__} {len(value)};".encode())
            for item in value:
                take(item)
        else:
            digest.update(f"{value!r};".encode())

    take(state)
    return digest.hexdigest()


def _plain_tensor(tensor: Tensor, where: str) -> Tensor:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise CheckpointError(f"{where}: cannot save this tensor, only dense ones with data")
    # Parameters, buffers and memory-mapped tensors are subclasses, which weights_only would refuse.
    plain = tensor.detach().as_subclass(Tensor)
    is_partial_view = plain.untyped_storage().nbytes() > plain.numel() * plain.element_size()
    return plain.clone() if is_partial_view else plain


def _verify_records(path: Path) -> None:
    """Compare every record of the zip with its CRC, in a stream; torch itself does not."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > RATIO * path.stat().st_size:  # torch compresses no tensor
                raise CheckpointError(f"{path}: not a checkpoint, its records are far larger than the file")
            if any(entry.external_attr & _FOLDER for entry in entries):  # torch would read nothing of it, in silence
                raise CheckpointError(f"{path}: corrupted, a record is marked as a folder")
            damaged = archive.testzip()
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    except Exception as error:  # zipfile raises all sorts for damaged bytes
        raise CheckpointError(f"{path}: truncated, corrupted or not a checkpoint ({error})") from error
    if damaged is not None:
        raise CheckpointError(f"{path}: corrupted, record {damaged!r} does not match its checksum")


def _verify_content(path: Path, state: dict[str, Any], digest: Any) -> None:
    """Compares what was read with the digest of what was written: a zip has tables that no checksum covers."""
    try:
        sound = content_digest(state) == digest
    except Exception:  # of tensors that no checkpoint holds
        sound = False
    if not sound:
        raise CheckpointError(f"{path}: corrupted, its content does not match its digest")


def _frames_of(path: Path) -> int:
    return int(path.stem.removeprefix("checkpoint_"))
