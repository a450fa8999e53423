"""Intervals against published values and against what theory says of simple cases."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from rlstack.evaluation.statistics import bootstrap_interval, iqm, leader, permutation_p_value, wilson_interval
from tests.refusals import refused


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


@pytest.mark.shared
def test_wilson_matches_every_recorded_interval(shared_dir: Path) -> None:
    agents = json.loads((shared_dir / "facts/marinenav_pretrained_eval.json").read_text())["agents"]
    for agent in agents.values():
        overall = agent["overall"]
        successes = round(overall["success_rate"] * overall["n"])
        assert wilson_interval(successes, overall["n"]) == pytest.approx(overall["success_ci95"], abs=1e-5)


def test_wilson_is_symmetric_exact_at_the_ends_and_widens_with_confidence() -> None:
    low, high = wilson_interval(7, 20)
    assert wilson_interval(13, 20) == pytest.approx((1 - high, 1 - low), abs=1e-15)
    assert wilson_interval(0, 5)[0] == 0.0 and wilson_interval(5, 5)[1] == 1.0
    assert wilson_interval(7, 20, 0.99)[0] < low < 7 / 20 < high < wilson_interval(7, 20, 0.99)[1]


def test_wilson_covers_the_true_rate_as_often_as_it_says() -> None:
    successes = np.random.default_rng(0).binomial(50, 0.9, size=4000)
    bounds = {k: wilson_interval(int(k), 50) for k in np.unique(successes)}
    covered = np.mean([bounds[k][0] <= 0.9 <= bounds[k][1] for k in successes])
    assert 0.93 < covered < 0.98


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
    assert bootstrap_interval(values, resamples=4000) == pytest.approx(expected, abs=0.02)


def test_bootstrap_is_stratified_by_task() -> None:
    # Tasks differ, seeds do not: resampling across tasks would see a spread that is not there.
    assert bootstrap_interval(np.tile([0.0, 10.0, 500.0], (8, 1))) == pytest.approx((170.0, 170.0))
    # Seeds that compensate each other between tasks: resampling whole rows would see none of the spread.
    gain = np.arange(10.0)
    low, high = bootstrap_interval(np.stack((gain, -gain), axis=1))
    assert low < -0.5 and high > 0.5


def test_bootstrap_takes_any_statistic_and_repeats_itself() -> None:
    values = [0.0, 1.0, 2.0, 3.0, 1e6, 2.5, 1.5, -1e6]
    first = bootstrap_interval(values, statistic=np.max, resamples=200, seed=3)
    assert first == bootstrap_interval(values, statistic=np.max, resamples=200, seed=3)
    assert first[1] == 1e6
    assert bootstrap_interval(values, iqm, 0.5)[0] > bootstrap_interval(values, iqm, 0.95)[0]


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
