"""Shows leagues beside the runs: their players, ratings and results."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlstack.config import ConfigError

from .blocks import Block, DataTable, Panels, Paragraphs, Section, number
from .charts import Line, chart, thinned
from .results import win_rate
from .runs import Curve

_CURVES, _CROSSED = 8, 20
"""Numbers of best players whose curves are drawn, and who are in the cross table."""


def leagues(folders: list[Path], notes: list[tuple[str, str]]) -> list[Section]:
    """Returns a section with all leagues, or no section without leagues. One that cannot be read gets a note."""
    blocks: list[Block] = []
    for folder in folders:
        try:
            blocks += _league(folder)
        except ConfigError as error:
            notes.append((folder.name, str(error)))
    return [Section("League", blocks)] if blocks else []


def _league(folder: Path) -> list[Block]:
    # Imported here, since players and worlds import torch, which takes seconds.
    from rlstack.play.league import League
    from rlstack.play.results import cross_table, rating_curves, standings

    league = League.open(folder)
    rows = []
    for row in standings(league):
        rates = [row[f"decided_win_rate{end}"] for end in ("", "_low", "_high")]
        counts = [number(row[key]) for key in ("games", "wins", "draws", "losses")]
        told = [str(row[key] or "–") for key in ("kind", "commander")]
        rated = [number(row["rating"]), number(row.get("deviation"))]
        rows.append([row["player"], *told, *rated, *counts, win_rate(rates)])
    name = f"{folder.name}: {len(league.members)} players, {len(league.games):,} games, {league.ratings.kind}"
    if not rows:
        return [Paragraphs([f"{name}. It has no players yet."])]
    head = ["player", "kind", "commander", "rating", "deviation", "games", "won", "drawn", "lost", "of decided (95 %)"]
    blocks: list[Block] = [DataTable(head, rows, 3, name)]
    if league.games:
        names = [row[0] for row in rows if row[5] != "0"]
        cross = cross_table(league.games, names[:_CROSSED])
        caption = "Wins, draws and losses of the row against the column."
        blocks.append(DataTable(list(cross[0]), [list(row.values()) for row in cross], caption=caption))
        curves, lines = rating_curves(league), []
        for index, player in enumerate(names[:_CURVES]):
            values = np.array(curves[player])
            lines.append(Line(player, index, *thinned(Curve(np.arange(1.0, len(values) + 1), values))))
        legend = [(line.label, f"c{line.colour}") for line in lines]
        drawn = chart("rating over games", lines, axes=("games of the player", "rating"))
        blocks.append(Panels([("Rating over a player's games", drawn)], legend=legend))
    return blocks
