"""Elo and Glicko-2 against numbers worked out by hand or published."""

from __future__ import annotations

import json
import math

import pytest

from rlstack.config import ConfigError
from rlstack.play.ratings import (
    GLICKO_SCALE,
    Elo,
    Glicko2,
    Rating,
    Scored,
    fit_elo,
    rate,
    rating_system,
    ratings_from,
)
from tests.refusals import refused

# -- Elo ---------------------------------------------------------------------------------------------------------


def test_an_advantage_of_400_points_is_odds_of_ten_to_one() -> None:
    ratings = Elo(anchors={"a": 1900, "b": 1500})
    assert ratings.expected("a", "b") == pytest.approx(10 / 11)
    assert ratings.expected("b", "a") == pytest.approx(1 / 11)


def test_a_game_moves_both_by_k_times_the_surprise() -> None:
    ratings = Elo(k=32)
    ratings.record([Scored("a", "b", 1.0)])
    assert (ratings.rating("a"), ratings.rating("b")) == (1516, 1484)
    ratings.record([Scored("b", "a", 0.5)])  # b was expected to score 1 / (1 + 10^0.08) = 0.45408
    assert ratings.rating("b") == pytest.approx(1484 + 32 * (0.5 - 0.454078), abs=1e-3)
    assert ratings.rating("a") + ratings.rating("b") == pytest.approx(3000)
    assert ratings.state_dict()["players"]["a"]["games"] == 2


def test_anchors_stay_and_give_the_scale() -> None:
    ratings = Elo(anchors={"rule": 1200})
    ratings.record([Scored("rule", "new", 0.0)])
    assert ratings.rating("rule") == 1200
    # The newcomer at 1500 was expected to score 1 / (1 + 10^-0.75) = 0.849020.
    assert ratings.rating("new") == pytest.approx(1500 + 32 * 0.150980, abs=1e-3)
    assert ratings.ranking() == ["new", "rule"]


def test_fitted_ratings_reproduce_the_scores_in_any_order() -> None:
    wins, losses = [Scored("a", "rule", 1.0)] * 300, [Scored("rule", "a", 1.0)] * 100
    fitted = fit_elo(wins + losses, anchors={"rule": 1200}, prior=1e-6)
    assert fitted["a"] == pytest.approx(1200 + 400 * math.log10(3), abs=0.01)
    assert fit_elo(losses + wins, anchors={"rule": 1200}, prior=1e-6)["a"] == pytest.approx(fitted["a"])


def test_fitted_ratings_of_who_always_wins_are_finite_and_ordered() -> None:
    games = [Scored("a", "b", 1.0)] * 20 + [Scored("b", "c", 1.0)] * 20
    fitted = fit_elo(games)
    assert fitted["a"] > fitted["b"] > fitted["c"]
    assert all(math.isfinite(value) for value in fitted.values())
    assert fitted["b"] == pytest.approx(1500, abs=1e-6)  # by symmetry
    assert fit_elo([]) == {}


@pytest.mark.parametrize(("prior", "odds"), [(1.0, 7.0), (2.0, 4.0)])  # 3.5 of 4 games, 4 of 5
def test_the_prior_of_a_fit_is_drawn_games_against_a_beginner(prior: float, odds: float) -> None:
    fitted = fit_elo([Scored("a", "beginner", 1.0)] * 3, anchors={"beginner": 1500.0}, prior=prior)
    assert fitted["a"] == pytest.approx(1500 + 400 * math.log10(odds))


# -- Glicko-2: the example in Glickman's paper -------------------------------------------------------------------

PLAYER = Rating(1500, 200, 0.06)
OPPONENTS = [(Rating(1400, 30), 1.0), (Rating(1550, 100), 0.0), (Rating(1700, 300), 0.0)]


def test_the_published_example() -> None:
    new = rate(PLAYER, OPPONENTS, tau=0.5)
    assert new.rating == pytest.approx(1464.06, abs=0.01)
    assert new.deviation == pytest.approx(151.52, abs=0.005)
    assert new.volatility == pytest.approx(0.05999, abs=1e-5)


def test_who_does_not_play_grows_less_sure() -> None:
    new = rate(PLAYER, [])
    assert (new.rating, new.volatility) == (1500, 0.06)
    assert new.deviation == pytest.approx(math.sqrt(200**2 + (0.06 * GLICKO_SCALE) ** 2))


def test_a_great_surprise_raises_the_volatility() -> None:
    assert rate(Rating(1500, 60, 0.06), [(Rating(2200, 30), 1.0)] * 4).volatility > 0.06
    assert rate(Rating(1500, 60, 0.06), [(Rating(800, 30), 1.0)] * 4).volatility <= 0.06


def test_a_period_rates_everyone_from_the_ratings_before_it() -> None:
    ratings = Glicko2()
    games = [Scored("a", "b", 1.0), Scored("b", "c", 1.0)]
    ratings.record(games)
    fresh = Rating()
    assert ratings.whole("a") == rate(fresh, [(fresh, 1.0)])
    assert ratings.whole("b") == rate(fresh, [(fresh, 0.0), (fresh, 1.0)])
    again = Glicko2()
    again.record(list(reversed(games)))
    assert again.whole("b").rating == pytest.approx(ratings.whole("b").rating)
    assert ratings.conservative("a") == ratings.rating("a") - 2 * ratings.deviation("a")


def test_an_idle_player_is_never_less_sure_than_a_beginner() -> None:
    ratings = Glicko2()
    ratings.add("idle")
    ratings.record([Scored("a", "b", 0.5)])
    assert ratings.deviation("idle") == 350


def test_glicko_anchors_stay() -> None:
    ratings = Glicko2(anchors={"rule": 1200})
    ratings.record([Scored("a", "rule", 1.0)])
    assert (ratings.rating("rule"), ratings.deviation("rule")) == (1200, 30)
    assert ratings.rating("a") > 1500


# -- both --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["elo", "glicko2"])
def test_states_go_through_json(kind: str) -> None:
    ratings = rating_system(kind, anchors={"rule": 1200})
    ratings.record([Scored("a", "b", 1.0), Scored("a", "rule", 0.5)])
    copy = ratings_from(json.loads(json.dumps(ratings.state_dict())))
    for each in (ratings, copy):
        each.record([Scored("b", "rule", 0.0)])
    assert copy.state_dict() == ratings.state_dict()
    assert copy.ranking() == ratings.ranking()
    assert 0.5 < ratings.expected("a", "b") < 1


def test_wrong_systems_are_refused_in_one_line() -> None:
    refused(ConfigError, r"ratings.system: no option 'eloo', did you mean 'elo'", rating_system, "eloo")
    refused(ConfigError, r"ratings.kk: unknown key.*allowed: anchors, k, start", rating_system, "elo", kk=3)
    refused(ConfigError, r"ratings.k: -1.0 is outside \(0, inf\)", rating_system, "elo", k=-1)
    refused(ConfigError, "not a state of a rating system .*system", ratings_from, {"players": {}})
    with pytest.raises(ConfigError, match="not a state of a rating system"):
        ratings_from({"system": "glicko2", "parameters": {}, "players": {"a": {}}})
