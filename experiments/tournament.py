"""Plays a tournament of agents, everyone against everyone, and writes ratings and pairings.

    python -m experiments.tournament rocket experiments/rocket/league.json --games 200 \\
        rule=rule random=random parent=zoo:rocket child=runs/rocket/self_play/seed0

Players are ``<name>=<source>``, with sources as for ``rlstack league run``. An interrupted tournament continues.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rlstack
from experiments.against import won
from experiments.results import markdown, read_csv, saved
from rlstack.envs.foundation.files import write_json
from rlstack.training.environment import machine


def tournament(env: str, players: Mapping[str, str], games: int, folder: Path, out: Path, **options: Any) -> None:
    """Plays the missing games of a league and writes its results.

    Args:
        env: name of the world.
        players: source of each player by name, as for ``rlstack league run``.
        games: games of each pairing, half of them on either side.
        folder: folder of the league; an earlier one continues.
        out: JSON file of the results.
        options: further options of ``rlstack league``.
    """
    rlstack.league("run", env=env, players=dict(players), games=games, folder=str(folder), plots=False, **options)
    ranking, cross = (read_csv(folder / name) for name in ("ranking.csv", "cross_table.csv"))
    against = {row.pop("player"): row for row in cross}
    rows: list[dict[str, Any]] = []
    for row in ranking:
        rows.append({"player": row["player"], "elo": float(row["fitted_elo"])})
        rows[-1] |= {name: int(row[name]) for name in ("games", "wins", "draws", "losses")}
        rows[-1] |= {name: float(row[name]) for name in ("win_rate", "win_rate_low", "win_rate_high")}
        rows[-1]["against"] = {name: cell for name, cell in against[row["player"]].items() if name != "total"}
    write_json(out, {"machine": machine(), "games": games, "rows": rows})


def table(results: Mapping[str, Any]) -> str:
    """Returns a row for each player, best first, with its wins, draws and losses against each other player."""
    names = [row["player"] for row in results["rows"]]
    rows = []
    for row in results["rows"]:
        cells = [row["against"][name].replace("-", "–", 2) if name != row["player"] else "" for name in names]
        rows.append([row["player"], f"{row['elo']:.0f}", won(row), *cells])
    return markdown(f"player | Elo | won of all (95 %) | {' | '.join(names)}", rows)


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("env", help="name of the world")
    parser.add_argument("out", type=Path, help="JSON file of the results")
    parser.add_argument("players", nargs="+", metavar="name=source")
    parser.add_argument("--games", type=int, default=200, help="of each pairing")
    parser.add_argument("--folder", type=Path, default=Path("runs/tournament"), help="of the league")
    arguments = parser.parse_args()
    if wrong := [player for player in arguments.players if "=" not in player]:
        parser.error(f"players: {wrong[0]!r} is not <name>=<source>")
    players = dict(player.split("=", 1) for player in arguments.players)
    tournament(arguments.env, players, arguments.games, arguments.folder, arguments.out)
    print(table(saved(arguments.out)))


if __name__ == "__main__":
    main()
