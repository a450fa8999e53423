"""Trains PPO against Rocket's rule-based player in 1v1, plays 1000 games with each seed, and draws the curve.

    python -m experiments.rocket.learning --seeds 0

Every seed is one ``python -m rlstack.train experiment=rocket/rules`` with one thread (further overrides can be
appended): it imitates two million decisions of the rules, then PPO learns against them. Its last checkpoint plays games
from kick-offs against the rules, on both sides in turn, with actions sampled from the policy, since two deterministic
players would repeat the same few games: there are five kick-offs. Results beside this file: ``rules.json``,
``rules.csv`` and ``rules.png`` (the training), ``rules.yaml`` (the resolved configuration), ``rules.mp4`` and
``rules.npz`` (the best game of the first seed, as film and replay).
"""

from __future__ import annotations

from pathlib import Path

from experiments.against import Experiment, run

RULES = Experiment(
    name="rules",
    config="rocket/rules",
    opponents=("rule",),
    games=1000,
    seeds=(0,),
    films=("mp4", "npz"),
    ylabel="share of all games won against the rules",
)

if __name__ == "__main__":
    run(RULES, Path(__file__).parent, __doc__)
