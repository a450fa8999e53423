"""Run directories as they are found: whole, unfinished, damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlstack.reporting.charts import MOST, aligned, thinned
from rlstack.reporting.runs import Curve, find, natural, read_curves
from rlstack.reporting.sections import seconds_of
from tests.reporting.made_runs import HEADER, ROWS, config, make_evaluation, make_run


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
