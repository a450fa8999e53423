"""Results of evaluations: their statistics, tables and figures."""

from __future__ import annotations

import io
import json
import math
import re
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu

from rlstack.evaluation.figures import print_rows, saved_figure
from rlstack.evaluation.results import Evaluation
from rlstack.evaluation.statistics import bootstrap_interval, iqm, leader, permutation_p_value, wilson_interval
from tests.evaluation.scripted import play
from tests.refusals import refused


@cache
def played() -> Evaluation:
    return play(["arrives", "collides", "rests"], max_steps=40, name="full ahead")


@pytest.fixture
def result() -> Evaluation:
    return deepcopy(played())


def test_intervals_are_wilsons(result: Evaluation) -> None:
    summary = result.summary()
    assert summary["eval/success"] == pytest.approx(1 / 3)
    assert (summary["eval/success_low"], summary["eval/success_high"]) == wilson_interval(1, 3)
    assert summary["eval/success_levelarrives"] == 1.0 and summary["eval/success_levelrests"] == 0.0


def test_time_and_energy_are_of_successes_only(result: Evaluation) -> None:
    arrival, collision, rest, overall = result.table()
    assert overall["time"] == arrival["time"] == 0.5 * arrival["length"]
    assert collision["time"] is None and rest["energy"] is None
    for name in ("length", "return"):
        assert overall[name] == pytest.approx((arrival[name] + collision[name] + rest[name]) / 3)
    lost = replace(result, episodes={**result.episodes, "success": torch.zeros(3)}).summary()
    assert lost["eval/success"] == 0.0 and "eval/time" not in lost and "eval/energy" not in lost


def test_json_round_trip(result: Evaluation, tmp_path: Path) -> None:
    path = tmp_path / "new" / "evaluation.json"
    result.save(path)
    assert [file.name for file in path.parent.iterdir()] == ["evaluation.json"]
    back = Evaluation.from_json(path.read_text())
    assert back.table() == result.table() and back.summary() == result.summary()
    assert back.to_json() == result.to_json()
    assert (back.cut, back.max_steps) == (result.cut, 40) and result.cut == 1
    assert (back.levels, back.seed, back.policy, back.world) == (result.levels, 0, "full ahead", "marinenav")
    content = json.loads(path.read_text())
    assert content["options"]["dtype"] == "float64" and content["options"]["collision_penalty"] == -5.0
    assert set(content["summary"]) <= {f"eval/{name}" for name in content["definitions"]} | {
        f"eval/success_level{level}" for level in result.levels
    }
    refused(ValueError, "not an evaluation", Evaluation.from_json, "[]")


def test_the_better_one_wins_more_then_by_more_and_nan_is_never_better() -> None:
    def of(**columns: list[float]) -> list[float]:
        columns = {"return": [0.0, 0.0], **columns}
        values = {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}
        return Evaluation(values, ["all"] * 2, "any", {}, 0).rank("margin")

    ranks = [
        of(success=[0.0, 1.0], margin=[900.0, 900.0]),
        of(success=[1.0, 1.0], margin=[1.0, 2.0]),
        of(success=[1.0, 1.0], margin=[1.0, 3.0]),
    ]
    assert ranks[0] < ranks[1] < ranks[2]
    of_either_side = [of(**{"success": [1.0, 1.0], "return": [gained, 0.0]}) for gained in (1.0, 2.0)]  # without margin
    assert of_either_side[0] < of_either_side[1]
    lost = of(**{"return": [math.nan, 1.0]})
    assert lost > [] and of(**{"return": [-5.0, -5.0]}) > lost


def test_many_statistics_have_rows_of_their_own(result: Evaluation) -> None:
    for index in range(20):
        result.episodes[f"part{index}"] = torch.full_like(result.episodes["return"], index)
    text = io.StringIO()
    result.print_table(text)
    head, *_, last = text.getvalue().splitlines()
    assert "part0" not in head and len(head) < 120 and last.split() == ["part19", *["19.000"] * 4]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_words_are_folded_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("TERM", "xterm")
    terminal, row = Terminal(), {"run": "long_" * 12, "score": 1.0, "state": "interrupted " * 4}
    print_rows([row, row], terminal)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= 70 and len(lines) > 4
    assert "".join(line.split()[0] for line in lines[2 : 2 + (len(lines) - 2) // 2]) == row["run"]


def test_a_table_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal, name = Terminal(), "pp[/o] [red]x :smile:"
    print_rows([{"[agent]": name, "[b]": "[1, 2]", "c": "\x1b[2J"}], terminal)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert [line.split("  ") for line in shown.splitlines()][-1][0].strip() == name
    assert all(part in shown for part in ("[agent]", "[b]", "[1, 2]")) and "\x1b" not in shown


def test_a_figure_takes_no_name_for_a_formula(tmp_path: Path) -> None:
    name = r"$\wrong$"
    with saved_figure(tmp_path / "a.png", name) as (axes,):
        axes.plot([0, 1], label=name)
        axes.annotate(name, (0, 0))
        axes.set_title(name)


def test_table_as_text(result: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    plain, terminal = io.StringIO(), Terminal()
    result.print_table(plain)
    result.print_table(terminal)
    lines = plain.getvalue().splitlines()
    assert plain.getvalue().isascii() and len({len(line) for line in lines}) == 1
    assert lines[0].split()[:3] == ["level", "episodes", "success"]
    assert lines[-1].split()[:3] == ["all", "3", "0.333"]
    low, high = wilson_interval(1, 3)
    assert all(text in terminal.getvalue() for text in ("collision", "0.333", f"{low:.3f}-{high:.3f}", "\x1b["))


# -- Intervals against published values and against what theory says of simple cases ---------------------------------


@pytest.mark.parametrize(
    ("successes", "n", "expected"),
    [
        # Success rates of the released MarineNav agents, computed independently of this code.
        (554, 720, (0.7372972220589586, 0.7987316549771222)),
        (345, 480, (0.6769128916357682, 0.7571134508697129)),
        (231, 480, (0.4368772137168773, 0.5259205283540814)),
        (0, 12, (0.0, 0.2425007574992425)),
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3 (printed to four digits).
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ],
)
def test_wilson_matches_published_intervals(successes: int, n: int, expected: tuple[float, float]) -> None:
    # The first source takes z = 1.96, the second prints four digits.
    assert wilson_interval(successes, n) == pytest.approx(expected, abs=5e-5)


def test_wilson_is_exact_at_the_ends() -> None:
    assert wilson_interval(0, 5)[0] == 0.0 and wilson_interval(5, 5)[1] == 1.0


@pytest.mark.parametrize(("successes", "n"), [(3, 2), (-1, 2), (0, 0)])
def test_wilson_refuses_impossible_arguments(successes: int, n: int) -> None:
    refused(ValueError, "got", wilson_interval, successes, n)


def test_iqm_drops_a_quarter_at_each_end() -> None:
    assert iqm([1, 2, 3, 4, 5, 6, 7, 100]) == 4.5
    assert iqm([[-1000.0, 2.0], [3.0, 4.0], [5.0, 1000.0]]) == 3.5  # one of six at each end, shape ignored
    assert iqm([3.0]) == 3.0


def test_bootstrap_of_a_mean_approaches_the_normal_interval() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, size=400)
    half = 1.96 * values.std() / 20
    expected = (values.mean() - half, values.mean() + half)
    assert bootstrap_interval(values) == pytest.approx(expected, abs=0.02)


def test_bootstrap_is_stratified_by_task() -> None:
    # Tasks differ, seeds do not: resampling across tasks would see a spread that is not there.
    assert bootstrap_interval(np.tile([0.0, 10.0, 500.0], (8, 1))) == pytest.approx((170.0, 170.0))
    # Seeds that compensate each other between tasks: resampling whole rows would see none of the spread.
    gain = np.arange(10.0)
    low, high = bootstrap_interval(np.stack((gain, -gain), axis=1))
    assert low < -0.5 and high > 0.5


def test_bootstrap_takes_any_statistic_and_repeats_itself() -> None:
    values = [0.0, 1.0, 2.0, 3.0, 1e6, 2.5, 1.5, -1e6]
    first = bootstrap_interval(values, statistic=np.max)
    assert first == bootstrap_interval(values, statistic=np.max)
    assert first[1] == 1e6


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], np.zeros((2, 2, 2))])
def test_bootstrap_refuses_what_it_cannot_resample(values: list[float]) -> None:
    refused(ValueError, "values must be", bootstrap_interval, values)


def test_p_value_is_the_share_of_divisions_that_differ_as_much() -> None:
    assert permutation_p_value([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == pytest.approx(2 / 20)  # these and their exchange
    assert permutation_p_value([1.0, 6.0], [2.0, 5.0]) == 1.0
    shifted = permutation_p_value([1000.3, 1000.1, 1000.5, 1000.2], [1000.0, 999.9, 999.6, 1000.1])
    assert shifted == permutation_p_value([3, 1, 5, 2], [0, -1, -4, 1]) == pytest.approx(4 / 70)  # ties among sums


def test_p_value_of_many_values_is_drawn_the_same_each_time() -> None:
    values = np.arange(15.0)
    found = permutation_p_value(values, values + 4)
    assert found == permutation_p_value(values, values + 4)
    assert found == pytest.approx(mannwhitneyu(values, values + 4).pvalue, abs=0.03)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ({"a": [1.0, 2.0, 3.0, 4.0], "b": [9.0, 8.0, 7.0, 6.0]}, ("b", "best", "p = 0.029 against a")),
        ({"a": [1.0, 2.0, 3.0], "b": [9.0, 8.0, 7.0]}, ("b", "highest mean", "not separated from a (p = 0.1; ")),
        ({"a": [1.0], "b": [2.0]}, ("b", "highest score", "not separated from a (1 against 1 seeds cannot")),
        # Far above one group and not above the other, which has a lower mean but a wide spread.
        (
            {"a": [6.0, 6.1, 6.2, 6.3], "b": [9.0, 8.0, 7.0, 8.5], "c": [0.0, 0.0, 0.0, 20.0]},
            ("b", "highest mean", "not separated from c (p = "),
        ),
        ({"a": [1.0]}, ("a", "mean", "")),
    ],
)
def test_a_group_is_the_best_if_it_is_separated_from_every_other(
    groups: dict[str, list[float]], told: tuple[str, str, str]
) -> None:
    *found, why = leader(groups)
    assert tuple(found) == told[:2] and why.startswith(told[2])


# -- Figures of matplotlib as files ----------------------------------------------------------------------------------


def test_panels_stand_in_rows_below_a_title(tmp_path: Path) -> None:
    with saved_figure(tmp_path / "a.png", "title", 3, 2, (2.0, 1.5)) as panels:
        panels[0].plot([1, 2], label="line")
    assert len(panels) == 3 and panels[0].get_legend() is not None and panels[1].get_legend() is None
    assert imageio.imread(tmp_path / "a.png").shape[:2] == (360, 480)  # two rows of two, 120 pixels an inch


def test_an_error_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), saved_figure(tmp_path / "a.png", "title"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
