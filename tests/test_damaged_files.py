"""Damaged and hostile files: each is read or told in one line, nothing changes, and none is executed."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rlstack
from rlstack import envs
from rlstack.adapters.arena.agents import arena_policy
from rlstack.adapters.marinenav.agents import load_published
from rlstack.adapters.marinenav.evaluations import read_evaluations
from rlstack.adapters.sb3.model import load_sb3, load_vecnormalize
from rlstack.agents import Interface
from rlstack.agents.legacy import load_policy
from rlstack.config import ConfigError, build, to_plain
from rlstack.diagnostics import report as diagnoses
from rlstack.envs.echelon.recording import load_replay as load_fight
from rlstack.envs.marinenav.episodes import load_episodes
from rlstack.envs.rocket.recording import load_replay
from rlstack.evaluation.results import Evaluation
from rlstack.play.league import League
from rlstack.reporting.runs import StoredRun
from rlstack.runs.checkpoint import CheckpointError, CheckpointStore, write_checkpoint
from rlstack.runs.loading import initialise
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.config import TrainConfig
from rlstack.training.loggers import CsvSink
from rlstack.training.recorded import read_file
from tests.adapters.small_worlds import Noise, box
from tests.agents.small_agents import Detour, small
from tests.damage import Bait, bad_arrays, bad_bytes, bad_json, bad_tensors, bad_zip, profile
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.test_writers import WRITERS

FIXTURES = Path(__file__).parent / "fixtures"
FAST, THOROUGH = 8, 300
WORLD = {"name": "tests.agents.small_agents:Detour", "num_worlds": 2}


@cache
def detour() -> Any:
    return Detour(2)


def two_numbers() -> Any:
    return Noise(2, box((-1, 1), (-1, 1)))


@cache
def agent() -> Any:
    return small(detour(), name="ppo")


def trained(folder: Path) -> Path:
    config = {"agent": to_plain(agent().config), "env": WORLD, "total_frames": 100}
    state = {"frames": 7, "agent": agent().state_dict(), "config": config}
    write_checkpoint(folder / "ours.pt", state, 7)
    return folder / "ours.pt"


def written(name: str, file: str) -> Callable[[Path], Path]:
    """Returns a function that makes a file by a writer of ``test_writers``."""

    def make(folder: Path) -> Path:
        WRITERS[name][0](folder, 1)
        return folder / file

    return make


def copied(*names: str) -> Callable[[Path], Path]:
    """Returns a function that copies a file of the fixtures and the files that belong to it."""

    def make(folder: Path) -> Path:
        for name in names:
            shutil.copy(FIXTURES / name, folder)
        return folder / Path(names[0]).name

    return make


def text(name: str, content: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_text(content)
        return folder / name

    return make


def scripted(folder: Path) -> Path:
    torch.jit.save(torch.jit.trace(torch.nn.Tanh(), torch.zeros(1, 2)), str(folder / "tanh.pt"))
    return folder / "tanh.pt"


def graph(folder: Path) -> Path:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 2]) for name in ("x", "y")]
    node = onnx.helper.make_node("Tanh", ["x"], ["y"])
    opset = onnx.helper.make_opsetid("", 18)
    body = onnx.helper.make_graph([node], "tanh", ends[:1], ends[1:])
    model = onnx.helper.make_model(body, ir_version=8, opset_imports=[opset])
    (folder / "tanh.onnx").write_bytes(model.SerializeToString())
    return folder / "tanh.onnx"


def resume(path: Path) -> None:
    """Reads what ``resume=`` reads before it builds anything."""
    build(TrainConfig, RunDirectory.open(path.parent).read_config())


def alone(folder: Path) -> Path:
    return CheckpointStore(folder).save({"x": torch.full((50,), 1)}, 1)


def latest(path: Path) -> Any:
    return CheckpointStore(path.parent).load()


def diagnosed(path: Path) -> None:
    before = diagnoses.read(path)
    list(diagnoses.lines(before, before, path))


@dataclass
class Case:
    """A kind of file: a function that makes one, its reader, its damages, and the errors that the reader may raise."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    damage: Callable[[bytes], st.SearchStrategy[bytes]]
    error: type[Exception] = ConfigError


RUN = "agent: {name: ppo, algorithm: ppo}\nenv: {name: rocket}\ntotal_frames: 100\nseed: 0\n"
DIAGNOSIS = {
    **{"schema": diagnoses.SCHEMA, "subject": {"env": "rocket"}, "config": {"a": 1}, "machine": {"cpu": "x"}},
    "tests": {"learn": {"ms_per_update": 3.0, "parts_ms": {"loss": 1.0}}},
}
CASES: dict[str, Case] = {
    "checkpoint": Case(trained, rlstack.load, bad_tensors),
    "checkpoint's parts": Case(trained, rlstack.load, bad_zip),
    "init": Case(trained, lambda path: initialise(small(detour(), name="ppo"), path), bad_tensors),
    "policy": Case(trained, lambda path: load_policy(str(path), detour()), bad_tensors),
    "latest checkpoint": Case(alone, latest, bad_zip, CheckpointError),
    "config.yaml": Case(text("config.yaml", RUN), resume, bad_bytes),
    "metrics.csv": Case(written("metrics.csv", "metrics.csv"), lambda path: CsvSink(path).close(), bad_bytes),
    "evaluation": Case(
        written("evaluation", "evaluation.json"),
        lambda path: Evaluation.from_json(path.read_text(errors="replace")).table(),
        bad_json,
        ValueError,
    ),
    "diagnosis": Case(text("diagnosis.json", json.dumps(DIAGNOSIS)), diagnosed, bad_json),
    "league": Case(written("league", "league.json"), lambda path: League.open(path.parent), bad_json),
    "demonstrations": Case(
        written("demonstrations", "episodes.npz"), lambda path: read_file(path, Interface.of(detour())), bad_arrays
    ),
    "rocket replay": Case(written("rocket replay", "r.npz"), load_replay, bad_arrays, ValueError),
    "echelon replay": Case(written("echelon replay", "f.json"), load_fight, bad_json, ValueError),
    "marinenav weights": Case(copied("marinenav/DQN_params.npz"), load_published, bad_arrays),
    "marinenav files": Case(
        written("marinenav weights", "network_params.pth"), lambda path: load_published(path.parent, "DQN"), bad_tensors
    ),
    "marinenav evaluations": Case(
        copied("marinenav/evaluations_example.npz", "marinenav/evaluations_example_configs.json"),
        read_evaluations,
        bad_zip,
    ),
    "marinenav episodes": Case(written("marinenav episodes", "episodes.json.gz"), load_episodes, bad_bytes, ValueError),
    "arena": Case(
        written("arena checkpoint", "a_1_steps.pt"),
        lambda path: arena_policy(path, envs.make("arena", num_worlds=1)),
        bad_tensors,
    ),
    "sb3": Case(copied("sb3/ppo_mlp_box_action.zip"), load_sb3, bad_zip),
    "vecnormalize": Case(copied("sb3/ppo_mlp_box_action_vecnormalize.pkl"), load_vecnormalize, bad_bytes),
    "torchscript": Case(scripted, lambda path: load_policy(f"torchscript:{path}", two_numbers()), bad_zip),
    "onnx": Case(graph, lambda path: load_policy(f"onnx:{path}", two_numbers()), bad_bytes),
}


def check(name: str, damage: bytes, folder: Path, path: Path) -> None:
    case = CASES[name]
    path.write_bytes(damage)
    before = {file: file.read_bytes() for file in folder.iterdir()}
    try:
        case.read(path)
    except case.error as error:
        assert "\n" not in str(error) and len(str(error)) < 2000, str(error)
    if name != "metrics.csv":  # whose last row is dropped if it was cut off
        assert {file: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.filterwarnings("ignore")
@exhaustive("examples", [FAST, THOROUGH])
@pytest.mark.parametrize("name", CASES)
def test_a_damaged_file_is_one_clear_line(name: str, examples: int, tmp_path: Path) -> None:
    path = CASES[name].make(tmp_path)
    sound = path.read_bytes()
    if name not in ("arena", "config.yaml"):
        CASES[name].read(path)

    @profile(examples)
    @given(CASES[name].damage(sound))
    def damaged(content: bytes) -> None:
        check(name, content, tmp_path, path)

    damaged()


# -- files with code that would run when they are opened: no loader runs it --------------------------------------------


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
    refused(ConfigError, r"alias|bytes|deeply|nesting depth", RunDirectory.open(tmp_path).read_config)
    assert StoredRun.read(tmp_path, "a").config == {}


def test_the_bait_works(tmp_path: Path) -> None:
    pickle.loads(raw(tmp_path, Bait(tmp_path / "flag")))
    assert (tmp_path / "flag").is_dir()
