"""Trains PPO for a team of five against the bots, plays 512 games with each seed, and draws the curve.

    python -m experiments.echelon.learning bots --parallel 2

Every seed is one ``rlstack train experiment=echelon/bots`` with one thread (further overrides can be
appended). Its last checkpoint plays on unseen maps, at full fire, against both bots of its training, half of the games
on either side, with actions sampled from the policy. Results beside this file: ``bots.json``, ``bots.csv`` and
``bots.png`` (the training), ``bots.yaml`` (the configuration), ``bots.mp4`` and ``bots.html`` (the best game
of the first seed as a film and as a replay to scrub through).
"""

from __future__ import annotations

from pathlib import Path

from experiments.against import Experiment, run

BOTS = Experiment(
    name="bots",
    config="echelon/bots",
    opponents=("heuristic", "veteran"),
    games=512,
    seeds=(0, 1, 2),
    films=("mp4", "html"),
    ylabel="share of games won against heuristic and veteran",
)

if __name__ == "__main__":
    run([BOTS], Path(__file__).parent, __doc__)
