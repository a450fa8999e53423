"""Results of games in files: CSV and JSON of published columns, and a picture of ratings over games."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.whole_files import replacing, write_text

from .ratings import Ratings
from .records import Game, Record
from .tournaments import rated

SUMMARY = (
    *("timestamp", "timestep", "opponent", "games", "wins", "draws", "losses", "win_rate", "win_rate_low"),
    *("win_rate_high", "decided_win_rate", "decided_win_rate_low", "decided_win_rate_high", "score", "goals_for"),
    *("goals_against", "goal_diff", "elo_before", "elo_after", "elo_change"),
)
"""Columns of ``summary.csv``; the published ones are among them."""


def challenge_report(name: str, games: Sequence[Game], ratings: Ratings, timestep: int = 0) -> dict[str, Any]:
    """What one player's games came to; ratings take them in, in their order.

    Args:
        name: of the player, who took part in all games.
        ratings: before the games; after the call they are those after them.
        timestep: frames that the player had trained for.

    Returns JSON: ``player``, ``total_games``, ``wins``, ``losses``, ``draws``, rates with intervals; ``opponents``, a
    row of :data:`SUMMARY` each; ``elo_history`` with ``game``, ``opponent``, ``elo``; ``elo_ratings``, ``final_elo``,
    ``game_by_game``.
    """
    start = ratings.rating(name)
    rows = list(rated([_as_first(game, name) for game in games], ratings))
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    opponents = []
    for opponent in dict.fromkeys(row["opponent"] for row in rows):
        gained = sum(row["elo_change"] for row in rows if row["opponent"] == opponent)
        theirs = [row for row in rows if row["opponent"] == opponent]
        entry = {"timestamp": now, "timestep": timestep, "opponent": opponent}
        entry |= Record.of(name, games, opponent).as_row()
        entry |= {"elo_before": theirs[0]["elo_before"], "elo_after": theirs[-1]["elo_after"], "elo_change": gained}
        opponents.append(entry)
    whole = Record.of(name, games).as_row()
    history = [{"game": row["game"], "opponent": row["opponent"], "elo": row["elo_after"]} for row in rows]
    return {
        "player": name,
        "total_games": whole.pop("games"),
        **whole,
        "opponents": opponents,
        "elo_history": history,
        "elo_ratings": {each: ratings.rating(each) for each in ratings.names()},
        "initial_elo": start,
        "final_elo": ratings.rating(name),
        "game_by_game": rows,
    }


def _as_first(game: Game, name: str) -> Game:
    if game.first == name:
        return game
    return Game(game.second, game.first, game.points_second, game.points_first, game.steps, game.finished)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
    """Writes rows of the same keys, wholly or not at all; missing numbers are left empty."""
    chosen = list(columns or (rows[0] if rows else ()))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, chosen, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def save_curves(path: Path, curves: Mapping[str, Sequence[float]], anchors: Mapping[str, float] | None = None) -> None:
    """Draws ratings over games, a line a player; anchors as dashed lines.

    Args:
        path: of the picture; its ending says of which kind.
        curves: ratings after each of a player's games, by name.
        anchors: fixed ratings by name.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, values in curves.items():
        if name not in (anchors or {}):
            axes.plot(range(1, len(values) + 1), values, label=name, linewidth=1.2)
    for name, value in (anchors or {}).items():
        axes.axhline(value, color="gray", linestyle="--", linewidth=0.8)
        axes.annotate(name, (1.0, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="gray")
    axes.set(xlabel="game", ylabel="rating")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    with replacing(path) as (partial,):
        figure.savefig(partial, dpi=120)


def curves_of(games: Sequence[Game], ratings: Ratings) -> dict[str, list[float]]:
    """Ratings of both players after each of their games, by name; ``ratings``, of before the games, take them in."""
    curves: dict[str, list[float]] = {}
    for game in games:
        ratings.record([game.scored])
        for name in (game.first, game.second):
            curves.setdefault(name, []).append(ratings.rating(name))
    return curves
