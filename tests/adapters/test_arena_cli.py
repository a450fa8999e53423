"""The Arena stack's own command line: its options, its files, and training its checkpoints further."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rlstack
from rlstack.adapters.arena import __main__ as door
from rlstack.adapters.arena.__main__ import main
from rlstack.adapters.arena.files import COLUMNS, load_files
from rlstack.runs.run_directory import RunDirectory

FINAL = ["final.pt", "final_metadata.json", "final_training_state.json", "normalization_final.json"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Shortens rollouts to two worlds and evaluations to a few steps, in a temporary folder."""
    full = door.composed

    def composed(overrides: list[str]) -> dict[str, Any]:
        plain = full(overrides)
        plain["agent"] |= {"steps_per_batch": 16, "epochs": 1, "hidden": [9, 8], "shared_layers": 1}
        plain["collector"]["steps_per_batch"] = 16
        plain["eval"] |= {"episodes": 1, "max_steps": 3}
        return plain

    monkeypatch.setattr(door, "composed", composed)
    monkeypatch.setattr(door.os, "cpu_count", lambda: 2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(folder: Path, *arguments: str) -> Path:
    """Returns the folder of the run that a command makes."""
    before = set(folder.glob("runs/ppo/*/*"))
    main(["--device", "cpu", "--steps", "64", *arguments])
    (made,) = set(folder.glob("runs/ppo/*/*")) - before
    return made


@pytest.mark.slow
def test_a_training_leaves_the_files_of_the_stack(small: Path) -> None:
    run = trained(small, "--style", "2", "--no-render", "--lr", "0.002", "--batch", "8")
    assert run.parent.name == "style2" and run.name.startswith("ppo_style2_20")
    assert sorted(path.name for path in (run / "final").iterdir()) == [f"{run.name}_{name}" for name in FINAL]
    files = load_files(run / "final" / f"{run.name}_final.pt")
    assert files.num_timesteps == 64 and files.metadata["style"] == 2
    assert files.training_state["curriculum_stage_index"] == 0
    assert files.training_state["total_timesteps_completed"] == 64
    assert load_files(run / "checkpoints" / f"{run.name}_64_steps.pt").num_timesteps == 64
    assert rlstack.load(run).frames == 64
    config = RunDirectory.open(run).read_config()
    assert (config["agent"]["lr"], config["agent"]["minibatch_size"]) == (0.002, 8)
    assert (config["env"]["name"], config["env"]["style"]) == ("arena", 2)


def edited(run: Path, **changes: Any) -> Path:
    """Returns the final checkpoint of a run, with another record of its training."""
    model = run / "final" / f"{run.name}_final.pt"
    record = model.with_name(f"{model.stem}_training_state.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | changes))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("reset", [False, True])
def test_a_training_goes_on_with_stage_and_window(reset: bool, small: Path) -> None:
    metrics = {name: [float(10 * column + k) for k in range(7)] for column, name in enumerate(COLUMNS)}
    stage = {"curriculum_stage_index": 3, "curriculum_metrics": {**metrics, "win_times": []}}
    first = edited(trained(small, "--style", "2"), **stage)
    run = trained(small, "--load-model", str(first), *(["--reset-timesteps"] if reset else []))
    assert run.parent.name == "style2"
    before, after = load_files(first), load_files(run / "final" / f"{run.name}_final.pt")
    assert after.num_timesteps == (64 if reset else 128)
    assert after.training_state["curriculum_stage_index"] == 3
    for name, values in metrics.items():
        assert after.training_state["curriculum_metrics"][name][:7] == values, name
    steps = [float(files.optimizer["state"][0]["step"]) for files in (before, after)]
    assert steps[1] == 2 * steps[0] > 0
    for name, values in before.policy.items():
        assert not torch.equal(values, after.policy[name]) or values.numel() < 3, name
        torch.testing.assert_close(values, after.policy[name], rtol=0, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "needle"),
    [
        ({"curriculum_stage_index": 9}, "stage 9 of 6"),
        ({"curriculum_metrics": {"wins": 3}}, "not the state of a curriculum"),
    ],
)
def test_a_record_that_does_not_fit_is_one_line(
    changes: dict[str, Any], needle: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = edited(trained(small), **changes)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["--device", "cpu", "--load-model", str(model)])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --load-model: ") and needle in line
    assert len(list(small.glob("runs/ppo/*/*"))) == 1


@pytest.mark.parametrize(
    ("arguments", "needle"),
    [
        (["--algo", "dqn"], "rlstack train agent=dqn env=arena"),
        (["--style", "3"], "--style"),
        (["--steps", "0"], "--steps"),
        (["--load-model", "none.pt"], "none.pt: No such file"),
        (["--device", "tpu"], "device"),
        (["--batch", "0"], "minibatch_size"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    arguments: list[str], needle: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and needle in line
    assert not list(small.iterdir())
