"""A league beside the runs: who is in it, how they rank, and against whom they won."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlstack.config import ConfigError

from .bands import Line, thinned
from .blocks import Block, Panels, Section, Table, Text, interval, number
from .charts import chart
from .runs import Curve

_CURVES, _CROSSED = 8, 20
"""The best players, as many as are drawn, and as are in the table of everyone against everyone."""


def leagues(folders: list[Path], notes: list[tuple[str, str]]) -> list[Section]:
    """A section with all leagues; none without any. One that cannot be read gets a note."""
    blocks: list[Block] = []
    for folder in folders:
        try:
            blocks += _league(folder)
        except ConfigError as error:
            notes.append((folder.name, str(error)))
    return [Section("League", blocks)] if blocks else []


def _league(folder: Path) -> list[Block]:
    # Only here: players and worlds need torch, which takes seconds to import.
    from rlstack.play.league import League
    from rlstack.play.ranking import member_rows, rating_curves
    from rlstack.play.records import cross_table
    from rlstack.play.tournaments import standings

    league = League.open(folder)
    members = {row["name"]: row for row in member_rows(league)}
    rows = []
    for row in standings(league.games, league.ratings):
        member = members.get(row["player"], {})
        rates = [row[key] for key in ("decided_win_rate", "decided_win_rate_low", "decided_win_rate_high")]
        rate = "–" if None in rates else f"{number(rates[0])} ({interval(rates[1:])})"
        counts = [number(row[key]) for key in ("games", "wins", "draws", "losses")]
        told = [str(member.get(key) or "–") for key in ("kind", "commander")]
        rows.append([row["player"], *told, number(row["rating"]), number(row.get("deviation")), *counts, rate])
    name = f"{folder.name}: {len(league.members)} players, {len(league.games):,} games, {league.ratings.kind}"
    head = ["player", "kind", "commander", "rating", "deviation", "games", "won", "drawn", "lost", "of decided, 95 %"]
    if not rows:
        return [Text([f"{name}. Nobody is in it yet."])]
    blocks: list[Block] = [Table(head, rows, 3, name)]
    if league.games:
        names = [row[0] for row in rows if row[5] != "0"]
        cross = cross_table(league.games, names[:_CROSSED])
        caption = "Wins, draws and losses of the row against the column."
        blocks.append(Table(list(cross[0]), [list(row.values()) for row in cross], caption=caption))
        curves = rating_curves(league)
        blocks.append(_ratings({name: curves[name] for name in names[:_CURVES]}))
    return blocks


def _ratings(curves: dict[str, list[float]]) -> Panels:
    lines = []
    for index, (name, values) in enumerate(curves.items()):
        curve = thinned(Curve(np.arange(1.0, len(values) + 1), np.array(values)))
        lines.append(Line(name, index, curve.frames, curve.values))
    legend = [(line.label, f"c{line.colour}") for line in lines]
    return Panels([("Rating over a player's games", chart("rating over games", lines))], legend=legend)
