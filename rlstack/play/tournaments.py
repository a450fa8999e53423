"""Who meets whom, and what everyone's rating is after every game."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from .matches import pairing
from .ratings import Ratings
from .records import Game, Record

Schedule = list[tuple[str, str]]
"""The players of each game, who drives the first side first."""


def round_robin(names: Sequence[str], games: int) -> Schedule:
    """Everyone against everyone, so many games each pair, sides swapped in every other one; pairs take turns.

    Raises:
        ValueError: fewer than two players, or two of one name.
    """
    _distinct(names, 2)
    return _in_turns([pairing(first, second, games) for first, second in combinations(names, 2)])


def challenger(name: str, opponents: Sequence[str], games: int) -> Schedule:
    """One against each of the others, so many games each, sides swapped in every other one; opponents take turns.

    Raises:
        ValueError: no opponents, or two of one name.
    """
    _distinct([name, *opponents], 2)
    return _in_turns([pairing(name, opponent, games) for opponent in opponents])


def _in_turns(series: Sequence[Schedule]) -> Schedule:
    return [game for turn in zip(*series) for game in turn]


def _distinct(names: Sequence[str], least: int) -> None:
    if len(names) < least:
        raise ValueError(f"players: {', '.join(names) or 'none'}, at least {least} are needed")
    if len(set(names)) < len(names):
        raise ValueError(f"players: {', '.join(names)} are not all different")


def rated(games: Sequence[Game], ratings: Ratings) -> Iterator[dict[str, Any]]:
    """Records games one by one and tells of each; systems of rating periods record all of them as one, before.

    Yields ``game`` (from 1), ``player``, ``opponent``, ``player_score`` and ``opponent_score`` (points), ``goal_diff``,
    ``result`` (1, 0.5, 0), ``expected_score``, ``elo_before``, ``elo_after``, ``elo_change``, ``steps``: numbers of the
    player, who drove the first side.
    """
    by_period = ratings.kind != "elo"
    before = {name: ratings.rating(name) for game in games for name in (game.first, game.second)}
    expected = [ratings.expected(game.first, game.second) for game in games] if by_period else []
    if by_period:
        ratings.record([game.scored for game in games])
    for index, game in enumerate(games):
        hoped = expected[index] if by_period else ratings.expected(game.first, game.second)
        old = before[game.first] if by_period else ratings.rating(game.first)
        if not by_period:
            ratings.record([game.scored])
        new = ratings.rating(game.first)
        yield {
            "game": index + 1,
            "player": game.first,
            "opponent": game.second,
            "player_score": game.points_first,
            "opponent_score": game.points_second,
            "goal_diff": game.points_first - game.points_second,
            "result": game.score,
            "expected_score": hoped,
            "elo_before": old,
            "elo_after": new,
            "elo_change": new - old,
            "steps": game.steps,
        }


def standings(games: Sequence[Game], ratings: Ratings) -> list[dict[str, Any]]:
    """A row a player, best first: rank, name, rating, deviation (where there is one), and its record."""
    rows = []
    for place, name in enumerate(ratings.ranking(), start=1):
        row: dict[str, Any] = {"rank": place, "player": name, "rating": ratings.rating(name)}
        if ratings.deviation(name) is not None:
            row |= {"deviation": ratings.deviation(name), "conservative": ratings.conservative(name)}
        rows.append(row | Record.of(name, games).as_row())
    return rows
