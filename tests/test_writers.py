"""Each file that the project writes: after a crash or on a full disk the old file is intact or the new is complete."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlstack.adapters.arena.agents import load_files, write_files
from rlstack.adapters.marinenav.agents import load_published, write_directory
from rlstack.config import ConfigError
from rlstack.data.recordings import save_arrays
from rlstack.envs.echelon.recording import load_replay as load_fight
from rlstack.envs.foundation import files
from rlstack.envs.foundation.files import leftovers, open_to_append, replacing, write_text
from rlstack.envs.marinenav.episodes import default_robot, load_episodes, make_episode, save_episodes
from rlstack.envs.recording import Frames
from rlstack.envs.rocket.recording import COLUMNS, RocketRecording, load_replay
from rlstack.evaluation.results import Evaluation
from rlstack.files.pickles import read_object_arrays, write_object_arrays
from rlstack.play.league import League
from rlstack.play.ratings import rating_system
from rlstack.play.results import save_curves, write_csv
from rlstack.runs.checkpoint import CheckpointStore, read_checkpoint
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.loggers import CsvSink
from rlstack.training.recorded import decisions
from tests.adapters.published_networks import acting_network
from tests.conftest import REPO
from tests.envs.echelon.episodes import fight
from tests.exhaustive import exhaustive
from tests.faults import Killed, killed_at, room_for

Content = dict[str, bytes]


def replay(value: int) -> RocketRecording:
    sizes = {"C": 2}
    columns = {
        name: np.full((3, *(sizes.get(str(size), size) for size in shape)), value, dtype=kind)
        for name, (kind, shape) in COLUMNS.items()
    }
    frames = Frames(**{**columns, "clock": np.arange(3, dtype=np.float32), "boosting": columns["boosting"]})
    return RocketRecording(frames, {}, ("a", "b"), f"number {value}")


def checkpoint(folder: Path, value: int) -> None:
    CheckpointStore(folder, keep=1).save({"x": torch.full((50,), value)}, value, best=True)


def metrics(folder: Path, value: int) -> None:
    sink = CsvSink(folder / "metrics.csv")
    sink.log(value, {f"metric{value}": 0.5})  # adds a column: the file is rewritten
    sink.truncate_after(value)
    sink.close()


def league(folder: Path, value: int) -> None:
    made = League(folder, {"name": "rocket"}, rating_system("elo"))
    made.rounds = value
    made.save()


def demonstrations(folder: Path, value: int) -> None:
    from tests.agents.small_agents import sequences

    torch.manual_seed(value)
    save_arrays(folder / "episodes.npz", decisions(sequences(5)))


def arena(folder: Path, value: int) -> None:
    content = {"policy_state_dict": {"w": torch.full((3,), float(value))}, "num_timesteps": value}
    write_files(folder / "a_1_steps.pt", content, {"step": value}, {"count": value})


def evaluation(folder: Path, value: int) -> None:
    Evaluation({"return": torch.tensor([float(value)])}, ["all"], "rocket", {}, 0).save(folder / "evaluation.json")


def episodes(folder: Path, value: int) -> None:
    config = make_episode([default_robot((value, 0), (30, 30), 0)], [], [], seed=value)
    save_episodes(folder / "episodes.json.gz", [config])


def published(folder: Path, value: int) -> None:
    weights = acting_network("DQN").state_dict()
    write_directory(folder, {"network": {name: value * tensor for name, tensor in weights.items()}})


WRITERS: dict[str, tuple[Callable[[Path, int], Any], Callable[[Path], Any]]] = {
    "checkpoints": (checkpoint, lambda folder: [CheckpointStore(folder).load(), read_checkpoint(folder / "best.pt")]),
    "config.yaml": (
        lambda folder, value: RunDirectory(folder).write_config({"seed": value}),
        lambda folder: RunDirectory.open(folder).read_config(),
    ),
    "metrics.csv": (metrics, lambda folder: CsvSink(folder / "metrics.csv").close()),
    "evaluation": (evaluation, lambda folder: Evaluation.from_json((folder / "evaluation.json").read_text())),
    "league": (league, League.open),
    "table": (lambda folder, value: write_csv(folder / "t.csv", [{"a": value}]), lambda folder: None),
    "picture": (lambda folder, value: save_curves(folder / "c.png", {"a": [value, 2.0]}, {}), lambda folder: None),
    "demonstrations": (demonstrations, lambda folder: np.load(folder / "episodes.npz")["action"]),
    "rocket replay": (
        lambda folder, value: replay(value).save_replay(folder / "r.npz"),
        lambda folder: load_replay(folder / "r.npz"),
    ),
    "echelon replay": (
        lambda folder, value: fight()[1].named(("a", "b"), f"number {value}").save_replay(folder / "f.json"),
        lambda folder: load_fight(folder / "f.json"),
    ),
    "marinenav episodes": (episodes, lambda folder: load_episodes(folder / "episodes.json.gz")),
    "marinenav evaluations": (
        lambda folder, value: write_object_arrays(folder / "e.npz", [("a", [[value], [1, 2]])]),
        lambda folder: read_object_arrays(folder / "e.npz", ["a"]),
    ),
    "marinenav weights": (published, lambda folder: load_published(folder, "DQN")),
    "arena checkpoint": (arena, lambda folder: load_files(folder / "a_1_steps.pt")),
}


def content(folder: Path) -> Content:
    """Returns the content of the files that are not leftovers, without the manifest, which is removed beforehand."""
    left = (path for path in folder.iterdir() if ".partial" not in path.name and path.name != "manifest.json")
    return {path.name: path.read_bytes() for path in left}


def whole(name: str, data: bytes, *allowed: Content) -> bool:
    """Returns whether a file is as in an allowed state of its folder; for a table, whether its rows are complete."""
    lines = data.decode().splitlines(keepends=True) if name == "metrics.csv" else []
    rows = bool(lines) and all(line.endswith("\n") and line.count(",") == lines[0].count(",") for line in lines)
    return rows or any(state.get(name) == data for state in allowed)


@exhaustive("name", WRITERS)
def test_a_crash_leaves_whole_files_and_the_next_command_runs(name: str, tmp_path: Path) -> None:
    write, read = WRITERS[name]
    write(tmp_path, 1)
    old = content(tmp_path)
    with killed_at(None) as calls:
        write(tmp_path, 2)
    new = content(tmp_path)
    assert {"fsync", "replace"} <= set(calls) and old != new
    for number in range(1, len(calls) + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        for file, data in old.items():
            (folder / file).write_bytes(data)
        with pytest.raises(Killed), killed_at(number):
            write(folder, 2)
        for file, data in content(folder).items():
            assert whole(file, data, old, new), f"{file}, killed at call {number}, {calls[number - 1]}"
        read(folder)
        write(folder, 2)  # the next command
        assert content(folder).keys() == new.keys()
        read(folder)


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_changes_nothing(name: str, tmp_path: Path) -> None:
    write, read = WRITERS[name]
    write(tmp_path, 1)
    old = content(tmp_path)
    largest = max(len(data) for data in old.values())
    for size in (0, largest // 2):
        with pytest.raises((OSError, RuntimeError, ConfigError)) as caught, room_for(size):
            write(tmp_path, 2)
        assert content(tmp_path) == old, f"with room for {size} bytes: {caught.value}"
    assert not list(tmp_path.glob(".*partial*")), "leftovers of a process that still lives"
    read(tmp_path)


def test_several_files_change_together(tmp_path: Path) -> None:
    one, other = tmp_path / "new" / "one.txt", tmp_path / "other.txt"
    other.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(one, other) as partial:
        for path in partial:
            path.write_text("half")
        raise ZeroDivisionError
    assert not one.exists() and other.read_text() == "old" and len(list(tmp_path.iterdir())) == 2
    with replacing(one, other) as partial:
        assert [path.suffix for path in partial] == [".txt", ".txt"]
        for path in partial:
            path.write_text("new")
        assert other.read_text() == "old"
    assert one.read_text() == other.read_text() == "new"


def test_no_link_leads_the_writing_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, written = tmp_path / "victim.txt", tmp_path / "run" / "config.yaml"
    victim.write_text("intact")
    with replacing(written) as (one,), replacing(written) as (other,):
        assert one.name != other.name
    written.unlink()
    monkeypatch.setattr(files.secrets, "token_hex", lambda count: "7")
    (written.parent / ".config.7.partial.yaml").symlink_to(victim)
    written.symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_text(written, "evil")
    with pytest.raises(OSError, match="symbolic links"):
        open_to_append(written)
    assert victim.read_text() == "intact"


def test_leftovers_are_those_of_killed_writers_alone(tmp_path: Path) -> None:
    killed, user = tmp_path / "a" / ".x.0123456789abcdef.partial.pt", tmp_path / ".mine.partial.txt"
    killed.parent.mkdir()
    for path in (killed, user, tmp_path / "b.7.partial.pt"):
        path.touch()
    (tmp_path / ".y.7.partial.pt").symlink_to(user)
    with replacing(tmp_path / "x.pt") as (partial,):
        assert partial.exists() and list(leftovers(tmp_path)) == [killed]


# -- nobody writes otherwise -------------------------------------------------------------------------------------

_WRITING = {"write_text", "write_bytes", "savefig", "imwrite", "get_writer", "savez", "savez_compressed", "dump"}
_WRITING |= {"open_to_append"}
ELSEWHERE = {
    ("envs/foundation/files.py", "replace"): "the helper itself",
    ("rlstack/adapters/exporting.py", "save"): "into memory",
    ("envs/foundation/files.py", "open"): "the helper itself",
    ("rlstack/training/loggers.py", "open_to_append"): "a row that was cut off is dropped on opening",
    ("rlstack/adapters/marinenav/__main__.py", "open_to_append"): "what was printed",
    ("rlstack/files/safe_load.py", "save"): "into memory",
    ("rlstack/training/distributed.py", "open"): "nowhere",
    ("rlstack/command.py", "open"): "nowhere",
    ("rlstack/play/league.py", "open_to_append"): "a lock",
}


def writing(call: ast.Call) -> str | None:
    """Returns the name of a call that writes to a file."""
    function = call.func
    if isinstance(function, ast.Name):
        if function.id == "write_text":  # that of foundation.files; a path's own is an attribute
            return None
        name, owner = function.id, ""
    elif isinstance(function, ast.Attribute):
        name, owner = function.attr, ast.unparse(function.value)
    else:
        return None
    if name in _WRITING or (name == "save" and owner in ("torch", "torch.jit", "np")):
        return name
    if name in ("replace", "rename") and owner == "os":
        return name
    texts = [entry.value for entry in call.args[:2] if isinstance(entry, ast.Constant) and isinstance(entry.value, str)]
    mode = next((text for text in texts if text.strip("rwaxbt+") == "" and text), "r")
    return name if name == "open" and owner != "archive" and set(mode) & set("wax+") else None


@pytest.mark.slow
@pytest.mark.parametrize("package", ["rlstack", "envs"])
def test_every_writer_replaces_whole_files(package: str) -> None:
    strays: list[str] = []

    def look(node: ast.AST, file: str) -> None:
        if isinstance(node, ast.With) and any("replacing(" in ast.unparse(item.context_expr) for item in node.items):
            return
        if isinstance(node, ast.Call) and (name := writing(node)) and (file, name) not in ELSEWHERE:
            strays.append(f"{file}:{node.lineno}: {name}")
        for child in ast.iter_child_nodes(node):
            look(child, file)

    for path in sorted((REPO / package).rglob("*.py")):
        look(ast.parse(path.read_text(encoding="utf-8")), path.relative_to(REPO).as_posix())
    assert not strays, "outside of `with replacing(...)`"
