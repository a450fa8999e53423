"""Runs as they are read from their folders, and listed."""

from __future__ import annotations

import io
import json
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from rlstack.config import ConfigError, to_plain
from rlstack.config.groups import compose_config
from rlstack.evaluation.figures import print_rows
from rlstack.reporting.charts import MOST, aligned, thinned
from rlstack.reporting.differences import (
    ABSENT,
    GroupComparison,
    GroupScore,
    compared_by,
    from_default,
    grouped,
    returns_of,
    varied,
)
from rlstack.reporting.improvement import compare, in_words, resampled
from rlstack.reporting.listing import configurations, listed, shown, state_of
from rlstack.reporting.runs import Curve, StoredRun, find, natural, read_curves, read_evaluations
from rlstack.reporting.sections import seconds_of
from rlstack.runs.run_directory import taken
from rlstack.training.environment import end_recorded, record_environment
from tests.conftest import Command
from tests.refusals import refused
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


def test_episodes_without_a_finite_return_are_left_out_of_their_distribution(tmp_path: Path) -> None:
    path = make_evaluation(tmp_path / "evaluations/000000000200.json", [1.0, math.nan, math.inf, 4.0])
    (entry,) = read_evaluations(path.parent, [])
    assert returns_of(entry) == [("all", 1.0), ("all", 4.0)]


def test_what_is_damaged_or_missing_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", None, (*ROWS[:2], "150,nonsense,,,,,1,1", "160,1", "170,nan,,,,,15,14"))
    with open(folder / "metrics.csv", "a") as file:
        file.write("200,9.0,,,,,2")
    make_evaluation(folder / "evaluations/000000000100.json", [1.0]).write_text('{"levels": [1')
    ((run,), _) = find(tmp_path)
    np.testing.assert_array_equal(run.curves["train/return"], [[100], [1]])
    assert run.frames == 170 and run.seed is None
    parts = ["config.yaml is missing", "the last row is cut off", "2 damaged rows", "NaN or infinite", "train/return"]
    for part in [*parts, "evaluations/000000000100.json is damaged"]:
        assert part in "\n".join(run.notes)


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


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    scratch = make_run(tmp_path / "scratch/run", config()).parent
    for name, target in (("runs", scratch), ("newest", scratch / "run")):
        (tmp_path / name).symlink_to(target)
        assert [run.name for run in find(tmp_path / name)[0]] == ["run"]


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
    done = make_run(tmp_path / "done", config())
    assert state(done) == state(ended(done, None)) == ("finished", "")
    assert state(ended(done, ValueError, "in the last evaluation")) == ("failed", "ValueError in the last evaluation")
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


@pytest.mark.parametrize("rows", [ROWS[:3], ROWS[:1] + ROWS[2:3]], ids=["later evaluation", "only evaluation"])
def test_a_run_that_was_killed_in_its_last_evaluation_is_not_finished(rows: tuple[str, ...], tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", config(), rows)  # the row of its last frame comes before the evaluation there
    record_environment(path)
    assert state(path) == ("interrupted", "its process was killed without recording why")
    told = "incomplete: 200 of 200 frames (100%), without the evaluation at its end"
    assert told in StoredRun.read(path, "run").notes


def test_a_run_that_only_imitates_is_finished_once_its_clone_has_been_evaluated(tmp_path: Path) -> None:
    cloning = config(imitation={"only": True})
    begun = ended(make_run(tmp_path / "begun", cloning, ()), ValueError, "the expert is gone")
    assert state(begun) == ("failed", "ValueError the expert is gone")
    assert state(make_run(tmp_path / "cloned", cloning, ("0,,,,,,5,5",)))[0] == "interrupted"
    assert state(make_run(tmp_path / "done", cloning, ("0,,,,,,5,5", "0,,0.5,0.2,0.8,5.0,9,9"))) == ("finished", "")


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
    assert end.frames == whole.frames and all(end.last(name) == whole.last(name) for name in whole.curves)
    assert len(end.curves["time/seconds"].values) < len(whole.curves["time/seconds"].values)


def test_the_command(rlstack_command: Command, tmp_path: Path) -> None:
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


# -- What runs differ in, and whether one does better ----------------------------------------------------------------


def runs_of(*configs: dict[str, Any]) -> list[StoredRun]:
    return [StoredRun(Path(str(index)), str(index), settings) for index, settings in enumerate(configs)]


def test_mappings_are_looked_into_and_other_values_compared_whole() -> None:
    one = {"a": 1, "b": {"c": [1, 2], "d": 0}, "e": None}
    other = {"a": 1.0, "b": {"c": [1, 3], "d": 0}, "e": {"kind": "lstm"}, "f": 5}
    found = {"a": [1, 1.0], "b.c": [[1, 2], [1, 3]], "e": [None, {"kind": "lstm"}], "f": [ABSENT, 5]}
    assert varied([one, other]) == found
    assert varied([one, one]) == {}


def test_runs_that_differ_in_their_seed_alone_are_one_group() -> None:
    groups = grouped(
        runs_of(*(config(seed, lr, logger={"x": seed}, until=seed or None) for lr in (0.1, 0.2) for seed in (0, 1)))
    )
    assert [group.label for group in groups] == ["lr=0.1", "lr=0.2"]
    assert [[run.seed for run in group.runs] for group in groups] == [[0, 1], [0, 1]]
    together = config(1, compile=False, cudagraphs=False)  # as runs of seeds= are stored
    (alone,) = grouped(runs_of(config(0, compile="auto", cudagraphs="auto"), together))
    assert alone.label == "ppo · toy" and alone.values == {}


def test_options_that_follow_from_the_agent_or_change_with_another_are_no_difference_of_their_own() -> None:
    def settings(agent: str, lr: float, decay: float) -> dict[str, Any]:
        made = config(agent=agent, lr=lr, total_frames=100 if agent == "ppo" else 200)
        made["agent"] |= {"decay": decay, f"only_{agent}": 1}
        return made

    groups = grouped(runs_of(settings("ppo", 0.1, 1), settings("ppo", 0.2, 2), settings("sac", 0.7, 9)))
    for group, agent, lr in zip(groups, ("ppo", "ppo", "sac"), (0.1, 0.2, 0.7), strict=True):
        assert group.values == {"agent.name": agent, "agent.lr": lr} and group.label == f"{agent} · lr={lr}"


def test_groups_whose_long_values_end_differently_are_scored_apart(tmp_path: Path) -> None:
    start = "/data/recorded/with/a/path/of/more/than/forty/letters"
    for name, scores in (("a", (0.2, 0.4)), ("b", (0.6, 0.8))):
        for seed, score in enumerate(scores):
            make_run(tmp_path / f"{name}{seed}", config(seed, data=f"{start}/{name}.npz"), score_rows(score))
    comparison = GroupComparison.of(grouped(find(tmp_path)[0]))
    assert [score and pytest.approx(score.mean) for score in comparison.scores.values()] == [0.3, 0.7]
    assert [row["mean"] for row in configurations(listed(tmp_path))] == ["0.7", "0.3"]


def test_a_whole_number_is_the_same_option_in_either_notation(tmp_path: Path) -> None:
    for seed, total_frames in enumerate((200, 200.0)):  # as total_frames=2e2 is stored
        make_run(tmp_path / str(seed), config(seed, lr=[1, 1.0][seed], total_frames=total_frames))
    make_run(tmp_path / "other", config(2, lr=2))
    groups = grouped(find(tmp_path)[0])
    assert [(group.label, len(group.runs)) for group in groups] == [("lr=1", 2), ("lr=2", 1)]


def test_a_run_without_a_configuration_is_a_group_of_its_own() -> None:
    assert [len(group.runs) for group in grouped(runs_of(config(0), config(1), {}))] == [2, 1]


@pytest.mark.slow
def test_the_difference_from_the_default_is_what_was_given() -> None:
    plain = to_plain(compose_config("train", ["agent=ppo", "env=marinenav_published", "agent.gamma=0.5", "seed=4"]))
    (run,) = runs_of({**plain, "run_dir": "runs/x"})
    given, found = from_default(run)
    assert given == "agent=ppo env=marinenav_published"
    assert found == {"agent.gamma": [0.99, 0.5], "seed": [0, 4]}


def test_yaml_files_of_a_folder_have_defaults(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "mellow.yaml").write_text("defaults: [dqn, _self_]\nname: mellow\nlr: 0.5\n")
    default = to_plain(compose_config("train", ["agent=dqn", "env=cartpole"]))
    (run,) = runs_of({**default, "agent": {**default["agent"], "name": "mellow", "lr": 0.25}})
    assert from_default(run, [tmp_path]) == ("agent=mellow env=cartpole", {"agent.lr": [0.5, 0.25]})


@pytest.mark.slow
def test_what_auto_decides_is_no_difference_from_the_default() -> None:
    plain = to_plain(compose_config("train", ["agent=ppo", "env=arena"]))
    for precision, found in (("float32", {}), ("bfloat16", {}), ("float16", {"agent.precision": ["auto", "float16"]})):
        (run,) = runs_of({**plain, "agent": {**plain["agent"], "precision": precision}})
        assert from_default(run)[1] == found


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (config(agent="mine"), "agent: no option 'mine'"),
        (config(), "env: no option 'toy'"),
        ({}, "does not say which agent"),
    ],
)
def test_a_default_that_does_not_exist_is_told(settings: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, from_default, runs_of(settings)[0])


def having(**metrics: float) -> StoredRun:
    return StoredRun(Path("x"), "x", {}, {name.replace("__", "/"): Curve(*[[9.0], [v]]) for name, v in metrics.items()})


def test_runs_are_compared_by_what_all_that_were_evaluated_have() -> None:
    both, returns = having(eval__success=0.5, eval__return=1), having(eval__return=2)
    unjudged = having(train__success=0.1, train__return=3)
    assert compared_by([both, both, unjudged]) == "eval/success"
    assert compared_by([both, returns]) == "eval/return"
    assert compared_by([unjudged]) == "train/success"
    assert compared_by([StoredRun(Path("x"), "x")]) is None


def test_scores_are_summed_up_with_the_interval_that_there_is() -> None:
    values = [0.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 1000.0]
    score = GroupScore.of([having(eval__return=value) for value in values], "eval/return")
    assert score is not None and score.interval is not None
    assert score.iqm == 12.5 and score.mean == 134.375  # the lowest and the highest two are left out
    assert score.interval[0] < 134.375 < score.interval[1]
    few = GroupScore.of([having(eval__return=value) for value in values[:4]], "eval/return")
    assert few is not None and few.interval is None and few.spread == "0 to 12 in 4 seeds"
    single = GroupScore.of([having(eval__success=0.5, eval__success_low=0.3, eval__success_high=0.7)], "eval/success")
    assert single is not None and single.interval == (0.3, 0.7)
    alone = GroupScore.of([having(eval__return=1.0)], "eval/return")
    assert alone is not None and alone.interval is None
    assert GroupScore.of([having()], "eval/return") is None


# -- Two groups of runs against each other ---------------------------------------------------------------------------


def judged(folder: Path, returns: list[float], seed: int = 0, lr: float = 0.1) -> Path:
    run = make_run(folder, config(seed, lr), score_rows(float(np.mean(returns))))
    make_evaluation(run / "evaluations/000000000200.json", returns)
    return run


def test_one_run_against_another_by_the_same_episodes(tmp_path: Path) -> None:
    one = judged(tmp_path / "a", [1.0, 2.0, 3.0, 4.0, 2.0])
    other = judged(tmp_path / "b", [2.0, 2.0, 4.0, 5.0, 3.0], lr=0.2)
    found = compare([one], [other], "eval/return")
    assert (found.difference, found.probability) == pytest.approx((0.8, 0.9))  # four wins and a tie
    assert found.paired and found.between == "episodes"
    assert found.differences == {"agent.lr": ("0.1", "0.2")}
    low, high = found.difference_interval or (0.0, 0.0)
    assert 0 <= low < 0.8 < high < 1.001  # of the pairs' differences 1, 0, 1, 1, 1
    assert "second - first: +0.8 (95 % interval: " in "\n".join(in_words(found))


def test_groups_of_seeds_by_their_means(tmp_path: Path) -> None:
    for seed, score in enumerate((1.0, 2.0, 3.0)):
        judged(tmp_path / f"a/{seed}", [score, score], seed)
        judged(tmp_path / f"b/{seed}", [score + 1.5, score + 1.5], seed, 0.2)
    found = compare([tmp_path / "a"], [tmp_path / "b"], "eval/return")
    assert found.difference == 1.5 and found.between == "runs" and found.first.scores == [1.0, 2.0, 3.0]
    assert found.probability == pytest.approx(8 / 9)  # all pairs but 2.5 against 3
    assert found.p_value == pytest.approx(4 / 20)  # of the 20 divisions, two have differences as large, counted twice
    assert found.difference_interval is None and found.probability_interval is None  # of three seeds
    assert "second - first: +1.5 (-0.5 to 3.5 between single runs)" in in_words(found)


@pytest.mark.parametrize(
    ("seeds", "lr", "verdict"),
    [
        (1, 0.2, "single seeds cannot tell configurations apart, but four of each can"),
        (1, 0.1, "two seeds of one configuration, so neither is better"),
        (3, 0.2, "not separated (p = 0.1; 3 against 3 seeds cannot reach p < 0.05; 4 against 4 can)"),
        (4, 0.2, "the second is better (p = 0.029)"),
        (4, 0.1, "the second is better (p = 0.029); both sides have the same configuration"),
    ],
)
def test_few_seeds_decide_nothing(seeds: int, lr: float, verdict: str, tmp_path: Path) -> None:
    for seed in range(seeds):
        judged(tmp_path / f"a/{seed}", [seed / 10] * 5, seed)
        judged(tmp_path / f"b/{seed}", [1 + seed / 10] * 5, 10 + seed, lr)
    told = in_words(compare([tmp_path / "a"], [tmp_path / "b"], "eval/return"))
    (line,) = (line for line in told if line.startswith("verdict: "))
    assert line.endswith(verdict)


def test_a_single_run_against_several_is_too_few(tmp_path: Path) -> None:
    one = judged(tmp_path / "a", [0.2] * 9, lr=0.2)
    others = [judged(tmp_path / f"b{n}", [0.5 + n / 10] * 9, n) for n in range(5)]
    found = compare([one], others, "eval/return")
    assert found.probability is None and found.difference_interval is None
    assert "verdict: not separated (1 against 5 seeds cannot reach p < 0.05; 4 against 4 can)" in in_words(found)


def test_a_side_of_several_configurations_is_told(tmp_path: Path) -> None:
    ppo, sac, other = (
        make_run(tmp_path / str(index), config(index, agent=agent)) for index, agent in enumerate(("ppo", "sac", "ppo"))
    )
    told = "first pools runs of 2 configurations: ppo (1 seed); sac (1 seed)"
    assert compare([ppo, sac], [other]).notes[0] == told and "pools" not in str(compare([ppo, other], [sac]).notes)


def test_files_of_an_earlier_evaluation_do_not_stand_for_the_last_one(tmp_path: Path) -> None:
    one, other = judged(tmp_path / "a", [1.0, 2.0]), judged(tmp_path / "b", [2.0, 3.0], 1)
    make_evaluation(one / "evaluations/000000000100.json", [0.0, 0.0])
    (one / "evaluations/000000000200.json").unlink()
    found = compare([one], [other], "eval/return")
    assert found.first.scores == [1.5] and found.first.episodes == [1]
    assert found.notes == [f"{one}: the file of the evaluation at 200 frames is missing"]
    (other / "evaluations/000000000200.json").write_text('{"levels": [{"level": "all"}], "episodes": [1, 2]}')
    assert compare([one], [other], "eval/return").second.scores == [2.5]


def test_a_probability_is_at_most_one() -> None:
    assert resampled(np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]), paired=False)[1].max() == 1.0


def test_the_interval_of_a_difference_is_that_of_normal_samples() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(0, 1, 400), rng.normal(0.5, 2, 300)
    differences, chances = resampled(one, other, paired=False)
    error = np.sqrt(one.var() / 400 + other.var() / 300)
    assert differences[0] == pytest.approx(other.mean() - one.mean())
    assert differences[1:].std() == pytest.approx(error, rel=0.06)
    assert chances[0] == pytest.approx(mannwhitneyu(other, one).statistic / (400 * 300))


def test_pairs_leave_out_what_is_hard_for_both() -> None:
    rng = np.random.default_rng(0)
    hardness = rng.normal(0, 10, 100)
    one, other = hardness, hardness + rng.normal(1, 0.1, 100)
    paired, _ = resampled(one, other, paired=True)
    alone, _ = resampled(one, other, paired=False)
    assert paired[1:].std() < 0.02 < 1 < alone[1:].std()


def timed(folder: Path, seed: int, rows: list[tuple[float, float | None]]) -> Path:
    """Makes a run with ``eval/success`` and ``eval/time`` of each evaluation."""
    lines = [f"{100 * n},{success},{'' if time is None else time}" for n, (success, time) in enumerate(rows, 1)]
    return make_run(folder, config(seed), tuple(lines), "frames,eval/success,eval/time")


def test_what_the_last_evaluation_leaves_out_is_not_that_of_one_before(tmp_path: Path) -> None:
    runs = [timed(tmp_path / "a", 0, [(0.5, 20.0), (0.0, None)]), timed(tmp_path / "b", 1, [(0.5, 60.0), (0.9, 40.0)])]
    assert [StoredRun.read(run, "x").last("eval/time") for run in runs] == [None, 40.0]
    with pytest.raises(ConfigError, match=r"score: eval/time is undefined in the last evaluation of .*a$"):
        compare(runs[:1], runs[1:], "eval/time")
    assert compare(runs[:1], runs[1:], "eval/success").difference == 0.9


def test_a_mean_over_successes_is_taken_as_it_was_logged(tmp_path: Path) -> None:
    runs = []
    for name, logged, paths in (("a", 50.0, [50.0, 5.0]), ("b", 48.5, [48.5, 48.5])):
        runs.append(make_run(tmp_path / name, config(len(runs)), (f"200,{logged}",), "frames,eval/path"))
        episodes = [{"level": "all", "path": value} for value in paths]
        (runs[-1] / "evaluations").mkdir()
        (runs[-1] / "evaluations/000000000200.json").write_text(json.dumps({"levels": [], "episodes": episodes}))
    assert compare(runs[:1], runs[1:], "eval/path").difference == -1.5


def test_other_options_of_the_evaluation_are_named_and_its_episodes_are_no_pairs(tmp_path: Path) -> None:
    runs = [judged(tmp_path / name, [1.0, 2.0, 3.0], lr=lr) for name, lr in (("a", 0.1), ("b", 0.2))]
    assert compare(runs[:1], runs[1:], "eval/return").paired
    for blue, run in enumerate(runs, 1):
        file = run / "evaluations/000000000200.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "options": {"blue": blue, "orange": 1}}))
    found = compare(runs[:1], runs[1:], "eval/return")
    assert not found.paired and "different options of the world (blue)" in found.notes[0]


def test_scores_of_different_worlds_do_not_compare(tmp_path: Path) -> None:
    one = make_run(tmp_path / "a", config())
    other = make_run(tmp_path / "b", config(env={"name": "another"}))
    told = "\n".join(in_words(compare([one], [other], "eval/success")))
    assert "verdict: different worlds (toy, another), whose scores do not compare" in told
    assert "probability" not in told and "second - first" not in told and "env.name: toy -> another" in told
    assert "minimum" not in told  # of a single run each


@pytest.mark.parametrize(
    ("returns", "verdict"),
    [
        ([1.0, 2.0] * 4, "no difference in these episodes"),
        ([2.0, 3.0] * 4, "the second run did better in these episodes"),
        ([0.0, 1.0] * 4, "the first run did better in these episodes"),
        ([0.0, 3.0] * 4, "not separated in these episodes"),
        ([2.0, 3.0] * 2, "not separated, since the runs have fewer than 5 episodes each"),
    ],
)
def test_a_line_says_which_run_did_better(returns: list[float], verdict: str, tmp_path: Path) -> None:
    one, other = judged(tmp_path / "a", ([1.0, 2.0] * 4)[: len(returns)]), judged(tmp_path / "b", returns, lr=0.2)
    found = compare([one], [other], "eval/return")
    assert f"verdict: {verdict}; single seeds cannot tell configurations apart, but four of each can" in in_words(found)


def test_single_runs_differ_in_their_seed_and_whole_numbers_are_shown_as_such(tmp_path: Path) -> None:
    one = make_run(tmp_path / "a", config())
    other = make_run(tmp_path / "b", config(1, total_frames=5e5))
    found = compare([one], [other], "eval/success")
    assert found.differences == {"seed": ("0", "1"), "total_frames": ("200", "500000")}


def test_the_command_compares(rlstack_command: Command, tmp_path: Path) -> None:
    judged(tmp_path / "runs/a", [1.0, 2.0] * 4), judged(tmp_path / "runs/b", [2.0, 4.0] * 4, 1, 0.2)
    done = rlstack_command("report", "runs/a", "runs/b", "score=eval/return")
    assert done.status == 0, done.err
    assert "second - first: +1.5 (95 % interval: 1.125 to 1.875)" in done.out and "  agent.lr: 0.1 -> 0.2" in done.out
    done = rlstack_command("report", "runs/a", "runs/b", "--json")
    assert json.loads(done.out)["metric"] == "eval/success"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", ","], "error: other: ',' names an empty path"),
        (["a", "no"], "error: other: no is not a folder"),
        (["a", "a"], "error: other: a run is given twice"),
        (["a", "b", "score=eval/retrn"], "error: score: a has not logged 'eval/retrn', did you mean 'eval/return'"),
    ],
)
def test_a_mistake_in_comparing_is_one_line(
    words: list[str], message: str, tmp_path: Path, rlstack_command: Command
) -> None:
    for name in "ab":
        make_run(tmp_path / name, config())
    assert rlstack_command("report", *words).refused().startswith(message)


def test_runs_without_numbers_are_told(tmp_path: Path) -> None:
    one, other = (make_run(tmp_path / name, config(), ("1,2",), "frames,loss/actor") for name in "ab")
    refused(ConfigError, "has not logged success or return", compare, [one], [other])
