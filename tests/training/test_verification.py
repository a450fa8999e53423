"""``rlstack verify``: a stretch of a run, trained again, is the run to the last bit, or it says what differs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlstack
from rlstack.runs.checkpoint import content_digest, read_checkpoint, write_checkpoint
from rlstack.runs.manifest import seal, unseal
from rlstack.training.hooks import Hook
from tests.conftest import Command
from tests.exhaustive import exhaustive
from tests.refusals import refused

RUN = [
    *("total_frames=192", "log_every=32", "eval.every=100", "eval.episodes=1", "eval.max_steps=20", "device=cpu"),
    *("checkpoint.every=48", "checkpoint.keep=9", "logger=csv", "threads=1", "compile=false", "agent.hidden=[8]"),
]
ROLLOUTS = ["agent.steps_per_batch=4", "agent.epochs=1", "agent.minibatch_size=16"]
REPLAY = ["agent.batch_size=16", "agent.buffer_size=100", "agent.learning_starts=40", "agent.frames_per_update=16"]
NETWORKS = ["agent.self_features=4", "agent.object_features=[4]"]
MARINENAV = ["env=marinenav", "env.num_worlds=3", "env.max_steps=9", *NETWORKS]
CARTPOLE = ["env=cartpole", "env.num_worlds=4"]
RUNS = {
    "ppo": ["agent=ppo", *CARTPOLE, *ROLLOUTS],
    "dqn": ["agent=dqn", *CARTPOLE, *REPLAY],
    "sac": ["agent=sac", *MARINENAV, *REPLAY],
    "curriculum": [
        *("agent=ppo", *MARINENAV, *ROLLOUTS, "curriculum=marinenav"),
        "curriculum.advance.any=[{stage_frames: {min: 60}}]",
    ],
    "opponents": [
        *("agent=ppo", "env=rocket", "env.num_worlds=2", "env.max_seconds=1", *ROLLOUTS),
        "env.opponents={players: [random], snapshot_every: 60}",
    ],
    "imitation": [
        *("agent=ppo", *MARINENAV, *ROLLOUTS),
        *("imitation.expert=apf", "imitation.frames=50", "imitation.epochs=1"),
    ],
    "workers": ["agent=ppo", *CARTPOLE, *ROLLOUTS, "collector=multiprocess", "collector.workers=2"],
}


def trained(name: str, folder: Path, *more: str) -> Path:
    return rlstack.train(*RUN, *RUNS[name], *more, f"run_dir={folder / name}", quiet=True).path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns finished runs, each trained once."""
    folder = tmp_path_factory.mktemp("runs")
    return lambda name: folder / name if (folder / name).exists() else trained(name, folder)


@pytest.fixture
def run(runs: Callable[[str], Path], tmp_path: Path) -> Path:
    """Returns a copy of the run of PPO, to be changed."""
    return Path(shutil.copytree(runs("ppo"), tmp_path / "run"))


def content(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def changed(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the state in a checkpoint, whose digest then fits the new content."""
    state = read_checkpoint(file)
    change(state)
    write_checkpoint(file, state, state["frames"])


def flip(tensor: torch.Tensor) -> None:
    """Flips the lowest bit of a tensor's first number."""
    tensor.view(torch.uint8).flatten()[0] ^= 1


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("checkpoint_*.pt"))


@exhaustive(
    ("name", "start"),
    [
        ("ppo", 0),
        ("dqn", None),
        *((name, None) for name in RUNS if name != "dqn"),
        *((name, 0) for name in [*RUNS][1:]),
    ],
    quick=2,
)
def test_a_whole_run_is_equal(name: str, start: int | None, runs: Callable[[str], Path]) -> None:
    before = content(runs(name))
    found = rlstack.verify(runs(name), quiet=True, **{"from": start, "frames": 90})
    assert content(runs(name)) == before, "the run was touched"
    assert found.equal and str(found).startswith("equal: "), str(found)
    assert found.rows >= 1 and found.end - found.start >= 90


def part(state: dict[str, Any], path: str) -> Any:
    for name in path.split("/"):
        state = state[name]
    return state


@exhaustive(
    ("which", "path"),
    [(-1, "agent/networks/actor/trunk.0.weight"), (-2, "rng/torch"), (-2, "agent/networks/critic/output.bias")],
    quick=2,
)
def test_one_bit_is_found(which: int, path: str, run: Path, rlstack_command: Command) -> None:
    """A bit of the later checkpoint is reported with its tensor's name, one of the earlier by what follows from it."""
    changed(checkpoints(run)[which], lambda state: flip(part(state, path)))
    end = rlstack_command("verify", str(run))
    assert end.status == 1 and end.err == f"error: {run} is not what training gives here\n"
    first = end.out.splitlines()[1]
    assert "at 192 frames" in first and "differ" in first
    if which == -1:
        assert path.replace("/", ".") in first and "1 of " in first and "further" not in first


def test_a_damaged_checkpoint_is_named(run: Path, rlstack_command: Command) -> None:
    file = checkpoints(run)[-1]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    end = rlstack_command("verify", str(run))
    assert end.status == 1 and end.err.startswith(f"error: {file}: corrupted")


@pytest.mark.parametrize("sealed", [False, True])
def test_other_metrics_are_found(sealed: bool, run: Path) -> None:
    """A number in ``metrics.csv`` is named, whether or not the folder was sealed again; so is what the seal tells."""
    header, *rows = (run / "metrics.csv").read_text().splitlines()
    column = header.split(",").index("loss/value")
    cells = rows[-2].split(",")
    cells[column] = "7.5"
    rows[-2] = ",".join(cells)
    (run / "metrics.csv").write_text("\n".join([header, *rows]) + "\n")
    if sealed:
        names = list(json.loads((run / "manifest.json").read_text())["files"])
        unseal(run)
        seal(run, names)
    found = rlstack.verify(run, quiet=True)
    told = f"metrics.csv, loss/value at {cells[0]} frames: 7.5 in the run, "
    assert found.differences[-1].startswith(told) and len(found.differences) == 2 - sealed
    if not sealed:
        assert found.differences[0] == f"{run / 'metrics.csv'}: changed or damaged after it was written"


def test_another_machine_is_told_beside_a_difference(run: Path) -> None:
    entries = json.loads((run / "environment.json").read_text())
    entries[-1]["versions"]["torch"] = "1.0"
    unseal(run)
    (run / "environment.json").write_text(json.dumps(entries))
    assert rlstack.verify(run, quiet=True).remarks == []
    changed(checkpoints(run)[-1], lambda state: flip(state["env"]["generator"]))
    found = rlstack.verify(run, quiet=True)
    assert [line.partition(" in the run")[0] for line in found.remarks] == ["torch: '1.0'"]


class Counting(Hook):
    name = "counting"

    def state_dict(self) -> int:
        return 1


CANNOT: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "ranks": (lambda state: state.update(other_ranks=[{}]), "one of 2 processes; start it with torchrun --standalone"),
    "workers": (lambda state: state["config"]["collector"].update(backend="multiasync"), "multiasync never repeats"),
    "instances": (lambda state: state["config"]["env"].update(max_instances=3), "with env.max_instances evaluations"),
    "hooks": (lambda state: state.update(counting=1), r"hooks of its own \(counting\)"),
    "code": (lambda state: state["config"]["env"].update(name="a.b:C"), "names 'a.b:C', which is used only if you"),
}


@pytest.mark.parametrize("why", CANNOT)
def test_what_cannot_be_repeated_is_refused(why: str, run: Path) -> None:
    change, told = CANNOT[why]
    unseal(run)
    file = checkpoints(run)[-1]
    state = read_checkpoint(file)
    change(state)
    (file.parent / "allowed.json").unlink(missing_ok=True)
    torch.save({**torch.load(file), "state": state, "digest": content_digest(state)}, file)
    refused(rlstack.ConfigError, told, rlstack.verify, run, quiet=True)


def test_a_length_that_changed_within_the_stretch_is_told_beside_the_difference(tmp_path: Path) -> None:
    """The learning rate falls over the run, and the checkpoint before the change is no longer there."""
    folder = trained("ppo", tmp_path, "checkpoint.keep=1", "total_frames=96", "eval.every=48")
    begin = folder / "checkpoints" / "checkpoint_000000000096.pt"
    kept = begin.read_bytes()
    rlstack.train(f"resume={folder}", "total_frames=288", "until=144", quiet=True)
    assert rlstack.train(f"resume={folder}", "total_frames=192", "until=null", quiet=True).load().frames == 192
    begin.write_bytes(kept)
    found = rlstack.verify(folder, **{"from": 96}, quiet=True)
    assert "total_frames: 96 in " in found.remarks[0] and ", 192 in " in found.remarks[0]


def test_hooks_of_the_run_take_part_again(tmp_path: Path) -> None:
    words = [*RUN, *RUNS["ppo"], "total_frames=96", f"run_dir={tmp_path / 'own'}"]
    run = rlstack.train(*words, hooks=[Counting()], quiet=True).path
    assert rlstack.verify(run, hooks=[Counting()], quiet=True).equal


def test_without_the_replay_buffer_only_the_seed_repeats(tmp_path: Path, rlstack_command: Command) -> None:
    run = trained("dqn", tmp_path, "checkpoint.replay=false", "total_frames=96")
    end = rlstack_command("verify", str(run))
    assert end.status == 2 and "without the replay buffer only from=0 repeats exactly" in end.err
    assert rlstack.verify(run, quiet=True, **{"from": 0}).equal


def test_a_run_on_recorded_data_repeats_in_a_world_that_cannot_be_saved(tmp_path: Path) -> None:
    seen, flags = np.random.default_rng(0).normal(size=(65, 4)).astype(np.float32), np.zeros((64, 1), dtype=bool)
    arrays = {"observation": seen[:-1], "next/observation": seen[1:], "action": np.arange(64) % 2}
    arrays |= {"next/reward": np.ones((64, 1)), "next/terminated": flags, "next/truncated": flags}
    np.savez(tmp_path / "data.npz", **arrays)
    words = ["agent=dqn", "env=gymnasium", "env.id=CartPole-v1", "env.workers=0", "agent.batch_size=6"]
    run = rlstack.train(*RUN, *words, f"data={tmp_path / 'data.npz'}", f"run_dir={tmp_path / 'run'}", quiet=True).path
    found = rlstack.verify(run, quiet=True)
    assert found.equal and found.start > 0, str(found)


@exhaustive("word", ["best", "best.pt"])
def test_the_best_may_also_be_one_of_the_latest(word: str, run: Path) -> None:
    earlier, last = checkpoints(run)[-2:]
    shutil.copy(earlier, run / "checkpoints/best.pt")
    found = rlstack.verify(run, f"from={word}", quiet=True)
    assert found.equal and (found.start, found.end) == tuple(int(path.stem[11:]) for path in (earlier, last))


def test_no_such_checkpoint(run: Path) -> None:
    for words, told in (
        (["from=5"], "has no checkpoint 5; it has: 48, 96, "),
        (["from=192"], "has no later checkpoint; it has"),
        (["from=48", "frames=1e6"], "has no later checkpoint, 1,000,000 frames or more"),
        (["from=[1]"], "from: expected"),
    ):
        refused(rlstack.ConfigError, told, rlstack.verify, run, *words, quiet=True)
