"""Trains generations of teams, each against all before it, and lets them play a tournament with the bots.

    python -m experiments.echelon.generations runs/echelon/bots/seed0

The first generation is the given run against the bots (``experiment=echelon/bots``). Each further one begins with the
weights of the one before and is one ``rlstack train experiment=echelon/generation`` with one thread, against
every generation so far, the bots, and itself. Everyone then plays everyone on unseen maps. The results are in
``generations.json`` beside this file; an interrupted study continues.
"""

from __future__ import annotations

from pathlib import Path

from experiments.runs import options, train
from experiments.tournament import tournament

BOTS = ("heuristic", "veteran")


def main() -> None:
    """Command line."""
    parser = options(__doc__, __file__)
    parser.add_argument("first", help="run, checkpoint or agent of the zoo that is the first generation")
    parser.add_argument("--generations", type=int, default=5)
    parser.add_argument("--games", type=int, default=512, help="of each pairing")
    parser.add_argument("--folder", type=Path, default=Path("runs/echelon/generations"))
    parser.add_argument("overrides", nargs="*", help="further overrides of rlstack.train")
    arguments = parser.parse_intermixed_args()
    players = {"generation_1": arguments.first}
    for number in range(2, arguments.generations + 1):
        opponents = ",".join(["self", *players.values(), *BOTS])
        overrides = ["experiment=echelon/generation", f"init={players[f'generation_{number - 1}']}"]
        overrides += [f"env.opponents.players=[{opponents}]", *arguments.overrides]
        players[f"generation_{number}"] = str(*train([(number, arguments.folder, overrides)]))
    out = arguments.out / "generations.json"
    tournament("echelon", players | {bot: bot for bot in BOTS}, arguments.games, arguments.folder / "league", out)


if __name__ == "__main__":
    main()
