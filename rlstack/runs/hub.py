"""Agents and data sets of the Hugging Face Hub: ``hf:<user>/<name>`` where a checkpoint or ``data`` can be named.

An agent's repository holds ``model.safetensors`` with all tensors, ``config.json`` with everything else, a card
``README.md``, perhaps a film, and ``SHA256SUMS`` in the format of ``sha256sum``; that of a data set holds files
``.npz`` of recorded transitions instead of the first two. None of these can hold code. What an agent's configuration
names is treated like that of any file from elsewhere (:mod:`rlstack.config.allowed`). ``rlstack push`` makes
repositories.

``HF_ENDPOINT`` names another server, ``HF_TOKEN`` or ``hf auth login`` the account, and ``hf:<user>/<name>@<revision>``
a branch, tag or commit.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from rlstack.config import ConfigError
from rlstack.config.errors import writing
from rlstack.envs.foundation.files import check_regular, write_json, write_text
from rlstack.envs.foundation.packages import needs
from rlstack.files.safe_load import first_line, read_json_object

from .checkpoint import to_saveable, write_checkpoint
from .run_directory import HUB as PREFIX

SUMS, MODEL, CONFIG, CARD = "SHA256SUMS", "model.safetensors", "config.json", "README.md"
FORMAT, VERSION = "rlstack-agent", 1
_TENSOR = "$tensor"
"""The only key of a mapping in ``config.json`` that stands for a tensor, with its name in the other file as value."""
_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_SUM = re.compile(r"([0-9a-f]{64}) [ *]([\w-][\w. +-]*)")


def acting_parts(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what acts of a run's state, for others: no optimisers, replay buffer, or paths on this machine."""
    config = {key: state["config"].get(key) for key in ("agent", "env", "total_frames", "seed")}
    agent = {key: state["agent"][key] for key in ("networks", "targets", "updates", "frames")} | {"optimizers": {}}
    return {"frames": state["frames"], "agent": agent, "config": config}


# -- repositories on this machine --------------------------------------------------------------------------------------


def write_agent(folder: Path, state: Mapping[str, Any]) -> None:
    """Writes ``model.safetensors`` and ``config.json``.

    Raises:
        ConfigError: a package is missing, or the folder cannot be written to.
    """
    tensors: dict[str, Tensor] = {}
    content = _without_tensors(to_saveable(dict(state)), "", tensors)
    with writing(folder):
        # Copies: the format refuses tensors that share memory.
        _package("safetensors.torch").save_file(
            {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, folder / MODEL
        )
        write_json(folder / CONFIG, {"format": FORMAT, "version": VERSION, "state": content})


def read_agent_folder(folder: Path) -> dict[str, Any]:
    """Returns the state that :func:`write_agent` wrote.

    Raises:
        ConfigError: a file is missing, damaged or of another kind.
    """
    content = read_json_object(folder / CONFIG)
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise ConfigError(f"{CONFIG} is not of the format {FORMAT!r}, version {VERSION}")
    try:
        tensors = _package("safetensors.torch").load_file(check_regular(folder / MODEL))
        state: dict[str, Any] = _with_tensors(content.get("state"), tensors)
    except ConfigError:
        raise
    except KeyError as error:
        raise ConfigError(f"{MODEL} has no tensor {error}") from None
    except Exception as error:  # the library raises errors of its own
        raise ConfigError(f"{MODEL} cannot be read ({first_line(error)})") from None
    return state


def _without_tensors(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Returns plain content with a reference for each tensor, which is added to ``tensors`` by its place."""
    if isinstance(value, Tensor):
        tensors[place] = value
        return {_TENSOR: place}
    if isinstance(value, Mapping):
        strange = [key for key in value if not isinstance(key, str) or key == _TENSOR]
        if strange:
            raise ConfigError(f"{place or 'the state'} has the key {strange[0]!r}, which {CONFIG} cannot hold")
        return {key: _without_tensors(entry, f"{place}/{key}".lstrip("/"), tensors) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_tensors(entry, f"{place}/{index}", tensors) for index, entry in enumerate(value)]
    return value


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[str(value[_TENSOR])]
        return {key: _with_tensors(entry, tensors) for key, entry in value.items()}
    return [_with_tensors(entry, tensors) for entry in value] if isinstance(value, list) else value


def write_sums(folder: Path) -> None:
    """Writes the SHA-256 of each file of a folder; ``sha256sum -c SHA256SUMS`` checks them, too."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != SUMS)
    write_text(folder / SUMS, "".join(f"{_digest(file)}  {file.name}\n" for file in files))


def check_sums(folder: Path, wanted: Sequence[str] = ()) -> list[Path]:
    """Returns the files with these names, or, without names, the listed ``.npz``, if they are as listed.

    Raises:
        ConfigError: a file is missing, not listed, or has other content.
    """
    try:
        lines = check_regular(folder / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"it has no readable {SUMS}; `rlstack push` writes it") from None
    listed = {entry[2]: entry[1] for line in lines if (entry := _SUM.fullmatch(line))}
    names = wanted or [name for name in listed if name.endswith(".npz")]
    if not names:
        raise ConfigError(f"{SUMS} lists no .npz")
    for name in names:
        if name not in listed:
            raise ConfigError(f"{SUMS} does not list {name}")
        if not (folder / name).is_file() or _digest(folder / name) != listed[name]:
            raise ConfigError(f"{name} is missing, or not the file of {SUMS}")
    return [folder / name for name in names]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# -- the server --------------------------------------------------------------------------------------------------------


def hub_file(source: str) -> Path:
    """Downloads the agent of ``hf:<user>/<name>`` and returns it as a checkpoint, ``runs/hf_<user>_<name>/agent.pt``.

    The checkpoint is not signed: it is a stranger's.

    Raises:
        ConfigError: there is no such agent, or it is damaged.
    """
    folder = _downloaded(source, "model", [SUMS, CONFIG, MODEL])
    file = Path("runs") / f"hf_{source.removeprefix(PREFIX).replace('/', '_')}" / "agent.pt"
    try:
        check_sums(folder, [CONFIG, MODEL])
        state = read_agent_folder(folder)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    frames = state.get("frames") if isinstance(state, dict) else None
    if not isinstance(frames, int):
        raise ConfigError(f"{source}: {CONFIG} is not that of an agent, it lacks frames")
    with writing(file):
        write_checkpoint(file, state, frames, own=False)
    return file


def hub_data(source: str) -> list[Path]:
    """Downloads the data set ``hf:<user>/<name>`` and returns its files ``.npz`` in the order of their names.

    Raises:
        ConfigError: there is no such data set, or it is damaged.
    """
    try:
        return sorted(check_sums(_downloaded(source, "dataset", [SUMS, "*.npz"])))
    except ConfigError as error:
        raise ConfigError(f"{source}: {str(error).removeprefix(f'{source}: ')}") from None


def check_name(name: str, key: str) -> None:
    """Raises a :class:`ConfigError` unless ``name`` has the form ``<user>/<name>``."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{key}: {name!r} is not of the form <user>/<name>")


def upload(folder: Path, name: str, kind: str, private: bool) -> str:
    """Makes the repository if there is none, uploads all files of a folder in one commit, and returns its address.

    Args:
        kind: ``"model"`` or ``"dataset"``.

    Raises:
        ConfigError: the server refuses, or cannot be reached.
    """
    api = _package("huggingface_hub").HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="rlstack")
    try:
        made = api.create_repo(name, repo_type=kind, private=private or None, exist_ok=True)
        api.upload_folder(repo_id=name, repo_type=kind, folder_path=folder, commit_message="rlstack push")
    except Exception as error:  # of the library, of its HTTP client, and of the system
        raise ConfigError(f"to: {name} cannot be written ({_reason(error)})") from None
    return str(made)


def _downloaded(source: str, kind: str, patterns: list[str]) -> Path:
    name, _, revision = source.removeprefix(PREFIX).partition("@")
    check_name(name, PREFIX.rstrip(":"))
    library = _package("huggingface_hub")
    options = {"repo_type": kind, "revision": revision or None, "library_name": "rlstack"}
    try:
        folder = library.snapshot_download(
            name, allow_patterns=patterns, endpoint=os.environ.get("HF_ENDPOINT"), **options
        )
    except Exception as error:  # of the library, of its HTTP client, and of the system
        raise ConfigError(f"{source}: cannot be downloaded ({_reason(error)})") from None
    return Path(folder)


def _reason(error: Exception) -> str:
    """Returns the first line of an error, with what to do if the server asks who is there."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    login = "; `hf auth login` stores your token, HF_TOKEN holds it for one command" if status in (401, 403) else ""
    return f"{first_line(error)}{login}"


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"{PREFIX.rstrip(':')}: {name.partition('.')[0]} {needs('hub')}") from None
