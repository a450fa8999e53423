"""Runs as they are read from their folders, and listed."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlstack.evaluation.table import print_rows
from rlstack.reporting.charts import MOST, aligned, thinned
from rlstack.reporting.listing import configurations, listed, shown, state_of
from rlstack.reporting.runs import Curve, StoredRun, find, natural, read_curves
from rlstack.reporting.sections import seconds_of
from rlstack.runs.run_directory import taken
from rlstack.training.environment import end_recorded, record_environment
from tests.conftest import Ended
from tests.reporting.made_runs import HEADER, ROWS, config, make_evaluation, make_run, score_rows


def test_a_whole_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = tuple(f"{row},{seconds}" for row, seconds in zip(ROWS, (0, 2, 2, 8)))
    make_run(tmp_path / "run", config(seed=3), rows, f"{HEADER},time/evaluating_seconds")
    make_evaluation(tmp_path / "run/evaluations/000000000200.json", [1.0, 2.0])
    make_evaluation(tmp_path / "run/evaluations/later/evaluation.json", [4.0])
    ((run,), leagues) = find(tmp_path)
    assert (run.name, run.seed, run.frames, run.complete, run.notes, leagues) == ("run", 3, 200, True, [], [])
    np.testing.assert_array_equal(run.curves["train/return"], [[100, 200], [1, 2]])
    np.testing.assert_array_equal(run.curves["eval/success"], [[100, 200], [0.5, 0.75]])
    assert [(entry.name, entry.frames) for entry in run.evaluations] == [("200", 200), ("later", None)]
    assert seconds_of(run) == {"collecting and learning": 18, "evaluating": 8}


def test_what_is_damaged_or_missing_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", None, (*ROWS[:2], "150,nonsense,,,,,1,1", "160,1", "170,nan,,,,,15,14"))
    with open(folder / "metrics.csv", "a") as file:
        file.write("200,9.0,,,,,2")
    make_evaluation(folder / "evaluations/000000000100.json", [1.0]).write_text('{"levels": [1')
    ((run,), _) = find(tmp_path)
    np.testing.assert_array_equal(run.curves["train/return"], [[100], [1]])
    assert run.frames == 170 and run.seed is None
    told = "\n".join(run.notes)
    for part in (
        "config.yaml is missing",
        "the last row is cut off",
        "2 damaged rows",
        "NaN or infinite",
        "train/return",
    ):
        assert part in told
    assert "evaluations/000000000100.json is damaged" in told


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("", "no rows"),
        (HEADER + "\n", "no rows"),
        ("step,loss\n1,2\n", "no column 'frames'"),
        ("\x00\xff\n\n,,\n", "no column"),
        (HEADER, "cut off"),
    ],
)
def test_a_file_without_numbers_gives_no_curves(content: str, note: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(content)
    notes: list[str] = []
    assert read_curves(tmp_path / "metrics.csv", notes) == {}
    assert note in "\n".join(notes)


def test_runs_are_found_below_folders_but_not_inside_runs_or_hidden_ones(tmp_path: Path) -> None:
    for name in ("a/seed10", "a/seed2", ".cache/old", "a/seed2/opponents/inner"):
        make_run(tmp_path / name, config())
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/config.yaml").write_text("colour: red\n")
    assert [run.name for run in find(tmp_path)[0]] == ["a/seed2", "a/seed10"]
    assert sorted(["x10", "x9", "x"], key=natural) == ["x", "x9", "x10"]


def test_links_lead_to_runs_elsewhere_and_do_not_rename_those_that_are_here(tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere/run", config())
    here = make_run(tmp_path / "here/m/run", config()).parent.parent
    targets = {"a": here / "m", "loop": tmp_path, "other": tmp_path / "elsewhere", "z": here / "m/run"}
    for name, target in targets.items():
        (here / name).symlink_to(target)
    assert [run.name for run in find(here)[0]] == ["m/run", "other/run"]


def test_seeds_are_averaged_at_the_same_frames_as_far_as_most_of_them_go() -> None:
    x = np.array([0.0, 100.0, 200.0])
    curves = [Curve(x, x), Curve(x, 3 * x), Curve(np.array([0.0, 50.0]), np.array([0.0, 1000.0]))]
    grid, values = aligned(curves)
    assert grid.tolist() == [0, 100, 200]
    assert np.nanmean(values, 0).tolist() == [0, 200, 400]
    grid, values = aligned([Curve(x + 10, x), Curve(np.array([0.0, 110.0]), np.array([0.0, 110.0]))])
    assert grid.tolist() == [10, 110]
    assert values.tolist() == [[0, 100], [10, 110]]


def test_single_points_at_other_frames_are_set_side_by_side() -> None:
    grid, values = aligned([Curve(np.array([190.0]), np.array([1.0])), Curve(np.array([210.0]), np.array([5.0]))])
    assert grid.tolist() == [200] and values.tolist() == [[1], [5]]


def test_long_curves_are_thinned_to_means() -> None:
    x = np.arange(4.0 * MOST)
    drawn = thinned(Curve(x, 2 * x))
    assert len(drawn.frames) == MOST and drawn.frames[0] == 1.5 and drawn.values[0] == 3.0
    assert drawn.frames.mean() == pytest.approx(x.mean())


# -- The runs below a folder as a table ------------------------------------------------------------------------------


def state(path: Path) -> tuple[str, str]:
    return state_of(StoredRun.read(path, path.name))


def ended(path: Path, error: type[BaseException] | None, message: str = "") -> Path:
    record_environment(path)
    try:
        with end_recorded(path):
            if error is not None:
                raise error(message)
    except BaseException as caught:
        assert isinstance(caught, error or ()), caught
    return path


def test_the_states_of_runs(tmp_path: Path) -> None:
    assert state(make_run(tmp_path / "done", config())) == ("finished", "")
    half = config(total_frames=400)
    assert state(make_run(tmp_path / "old", half)) == ("interrupted", "its process was killed without recording why")
    failed = ended(make_run(tmp_path / "failed", half), ValueError, "no such thing\nat all")
    assert state(failed) == ("failed", "ValueError no such thing")
    assert state(ended(failed, KeyboardInterrupt)) == ("interrupted", "Ctrl-C, or a signal")
    assert state(ended(failed, None)) == ("stopped", "")
    record_environment(failed)  # resumed, and killed
    assert state(failed)[0] == "interrupted"
    with taken(failed):
        assert state(failed) == ("running", "")


def test_what_a_row_says(tmp_path: Path) -> None:
    for name, minutes in (("old", 60), ("new", 1)):
        run = make_run(tmp_path / name, config(3))
        changed = time.time() - 60 * minutes
        for path in run.iterdir():
            os.utime(path, (changed, changed))
    new, old = listed(tmp_path)
    assert (new["run"], old["run"]) == (str(tmp_path / "new"), str(tmp_path / "old"))
    assert new.pop("age") == pytest.approx(60, abs=20) and shown([old], tmp_path)[0]["age"] in ("60 min", "61 min")
    del new["run"]
    assert new == {
        **{"agent": "ppo", "world": "toy", "seed": 3, "frames": 200, "total_frames": 200, "state": "finished"},
        **{"why": "", "metric": "eval/success", "score": 0.75, "seconds": 26.0, "configuration": "ppo, toy"},
    }


def test_configurations_with_several_seeds_come_first_by_their_mean(tmp_path: Path) -> None:
    for lr, scores in ((0.1, (0.25, 0.5)), (0.2, (0.75, 0.5, 1.0)), (0.3, (0.9,))):
        for seed, score in enumerate(scores):
            make_run(tmp_path / f"{lr}_{seed}", config(seed, lr), score_rows(score))
    make_run(tmp_path / "unfinished", config(7, 0.1), score_rows(1.0, 150))
    assert [tuple(row.values()) for row in configurations(listed(tmp_path))] == [
        ("lr=0.2", "3", "eval/success", "0.75", "0.5", "1"),
        ("lr=0.1", "2", "eval/success", "0.375", "0.25", "0.5"),
    ]


def test_a_usual_row_fits_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "acqn_marinenav_seed0_20261124_063712", config(agent="acqn", total_frames=36_000_000))
    ended(run, KeyboardInterrupt)
    row = {**shown(listed(tmp_path), tmp_path)[0], "world": "marinenav", "frames": "21.5M of 36M", "age": "12 min"}
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    print_rows([row], terminal)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80 and "interrupted" in lines[2]


@pytest.mark.parametrize(
    ("frames", "told"), [(0, "0 of 950"), (12_400, "12.4k of 950"), (999_999, "1M of 950"), (36_000_000, "36M of 950")]
)
def test_numbers_of_frames_are_short(frames: int, told: str, tmp_path: Path) -> None:
    make_run(tmp_path / "run", config())
    (row,) = listed(tmp_path)
    assert shown([{**row, "frames": frames, "total_frames": 950}], tmp_path)[0]["frames"] == told


def test_frames_are_those_of_the_newest_checkpoint_if_it_has_more(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", config(total_frames=400))
    (run / "checkpoints").mkdir()
    for name in ("checkpoint_000000000150", "checkpoint_000000000250", "best", "checkpoint_mine"):
        (run / "checkpoints" / f"{name}.pt").touch()
    assert listed(tmp_path)[0]["frames"] == 250


@pytest.mark.parametrize("after", [0, 10, 3000])
def test_a_long_table_is_read_from_its_end(after: int, tmp_path: Path) -> None:
    rows = [f"{k},1.0,,,,,1,1" for k in range(0, 4000)]
    rows += ["5000,,0.5,0.2,0.8,5.0,12,11", *(f"{6000 + k},2.0,,,,,20,18" for k in range(after))]
    path = make_run(tmp_path / "run", config(), tuple(rows))
    end, whole = (StoredRun.read(path, "run", way) for way in (False, True))
    assert end.frames == whole.frames and {name: end.last(name) for name in whole.curves} == {
        name: whole.last(name) for name in whole.curves
    }
    assert len(end.curves["time/seconds"].values) < len(whole.curves["time/seconds"].values)


def test_the_command(rlstack_command: Callable[..., Ended], tmp_path: Path) -> None:
    ended(make_run(tmp_path / "runs/a b", config(total_frames=400)), MemoryError, "the memory is full")
    make_run(tmp_path / "runs/deep/c", config())
    done = rlstack_command("report")
    assert done.status == 0, done.err
    head, *rows, reason = done.out.splitlines()
    assert head.split() == ["run", "agent", "world", "seed", "frames", "state", "eval/success", "age"]
    assert {row.split()[0] for row in rows} == {"a", "deep/c"}
    assert reason == "a b failed: MemoryError the memory is full"
    (tmp_path / "runs/deep/c/.best.0123456789abcdef.partial.pt").touch()
    told = "hidden files of killed processes: 1, 0.0 MB, such as runs/deep/c/.best.0123456789abcdef.partial.pt;"
    assert rlstack_command("report", "runs/deep", "page=false").out.splitlines()[-2] == told
    done = rlstack_command("report", "runs/deep", "--json")
    assert [row["state"] for row in json.loads(done.out)] == ["finished"]
    (tmp_path / "empty").mkdir()
    assert rlstack_command("report", "empty", "page=false").out == "no runs in empty, neither itself nor below\n"
    done = rlstack_command("report", "nowhere")
    assert done.status == 2 and done.err == "error: folder: nowhere is not a folder\n"
