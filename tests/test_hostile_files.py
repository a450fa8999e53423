"""Files with code that would run when they are opened: no loader runs it."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rlstack.config import ConfigError
from rlstack.reporting.runs import StoredRun
from rlstack.runs.run_directory import RunDirectory
from tests.damage import Bait
from tests.refusals import refused
from tests.test_damaged_files import CASES, FIXTURES

Maker = Callable[[Path, Bait], bytes]


def raw(path: Path, bait: Bait) -> bytes:
    """Returns a bare pickle under the file's name."""
    return pickle.dumps(bait)


def torch_file(path: Path, bait: Bait) -> bytes:
    """Returns a file of ``torch.save`` with the bait in place of a weight, or of everything."""
    buffer = io.BytesIO()
    keys = ("state", "policy_state_dict", "num_timesteps", "metadata", "agent")
    torch.save({"format": "rlstack-checkpoint", "version": 1, **dict.fromkeys(keys, bait)}, buffer)
    return buffer.getvalue()


def old_torch_file(path: Path, bait: Bait) -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": bait}, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def object_arrays(path: Path, bait: Bait) -> bytes:
    """Returns an ``.npz`` in which each array that a reader may request is a pickle."""
    names = {"action", "observation", "meta", "clock", "timesteps", "rewards", "successes", "self_encoder.0.weight"}
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=True) as file:
            names |= set(file.files)
    buffer = io.BytesIO()
    np.savez(buffer, **{name: np.array([bait, 1], dtype=object) for name in names})  # type: ignore[arg-type]
    return buffer.getvalue()


def every_member(path: Path, bait: Bait) -> bytes:
    """Returns a zip with the same members, all of them pickles."""
    if not zipfile.is_zipfile(path):
        return raw(path, bait)
    buffer = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            new.writestr(name, pickle.dumps(bait))
    return buffer.getvalue()


MAKERS: list[Maker] = [raw, torch_file, old_torch_file, object_arrays, every_member]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_nothing_in_a_file_is_executed(name: str, tmp_path: Path) -> None:
    case, flag = CASES[name], tmp_path / "flag"
    folder = tmp_path / "folder"
    folder.mkdir()
    path = case.make(folder)
    sound = path.read_bytes()
    for maker in MAKERS:
        path.write_bytes(sound)
        path.write_bytes(maker(path, Bait(flag)))
        refused(case.error, ".", case.read, path)
        assert not flag.exists(), maker


def test_the_bait_works(tmp_path: Path) -> None:
    pickle.loads(raw(tmp_path, Bait(tmp_path / "flag")))
    assert (tmp_path / "flag").is_dir()


def test_serialised_objects_of_a_model_stay_closed(tmp_path: Path) -> None:
    """Stable-Baselines3's ``data`` holds cloudpickles next to their text form; the model loads without them."""
    import base64

    source, path = FIXTURES / "sb3/ppo_mlp_box_action.zip", tmp_path / "model.zip"
    bait = base64.b64encode(pickle.dumps(Bait(tmp_path / "flag"))).decode()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "data":
                entries = json.loads(data)
                baited = [entry for entry in entries.values() if isinstance(entry, dict) and ":serialized:" in entry]
                assert baited
                for entry in baited:
                    entry[":serialized:"] = bait
                data = json.dumps(entries).encode()
            new.writestr(name, data)
    CASES["sb3"].read(path)
    assert not (tmp_path / "flag").exists()


ZIPS = {
    **{"checkpoint": "records are far larger", "latest checkpoint": "is sound", "sb3": "expand to 4.3 GB"},
    **{
        "demonstrations": "expand to 4.3 GB",
        "rocket replay": "cannot be read",
        "marinenav weights": "expand to 4.3 GB",
    },
    **{"marinenav evaluations": "expand to 4.3 GB", "arena": "expand to 4.3 GB"},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ZIPS)
def test_a_small_zip_of_gigabytes_is_refused_unread(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = case.make(tmp_path)
    content = bytearray(path.read_bytes())
    entry = content.rfind(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (2**32 - 2).to_bytes(4, "little")  # its stated size
    path.write_bytes(content)
    refused(case.error, ZIPS[name], case.read, path)


def test_a_small_gzip_of_gigabytes_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = CASES["marinenav episodes"].make(tmp_path)
    CASES["marinenav episodes"].read(path)
    monkeypatch.setattr("rlstack.envs.marinenav.episodes.MOST", 100)
    refused(ValueError, "it expands to more than", CASES["marinenav episodes"].read, path)


ENDLESS = [
    *("checkpoint", "init", "policy", "diagnosis", "demonstrations", "rocket replay", "echelon replay"),
    *("marinenav weights", "marinenav evaluations", "marinenav episodes", "arena", "sb3", "vecnormalize"),
    *("torchscript", "onnx"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENDLESS)
def test_a_device_is_no_file(name: str) -> None:
    with pytest.raises((CASES[name].error, OSError)):
        CASES[name].read(Path("/dev/zero"))


BOMB = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))])


DEEP = ["[" * 100_000, "- " * 100_000]


@pytest.mark.parametrize("text", [BOMB, "a: &a [*a]", "a: &a {<<: *a}", f"a: {'x' * 300_000}", *DEEP])
def test_yaml_that_expands_or_nests_too_far_is_refused_unbuilt(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    refused(ConfigError, r"alias|bytes|deeply", RunDirectory.open(tmp_path).read_config)
    assert StoredRun.read(tmp_path, "a").config == {}
