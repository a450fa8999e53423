"""Does PPO beat Rocket's rule-based player in 1v1? Trains seeds, plays 1000 games with each, draws the curve.

    python -m experiments.rocket.learning --seeds 0

Every seed is one ``python -m rlstack.train experiment=rocket/rules`` of one thread (further overrides can be
appended): two million decisions of the rules are imitated, then PPO learns against them. Its last checkpoint plays
games of kick-offs against the rules, both sides in turns, with actions sampled from the policy:
two players without chance would repeat the same few games, as there are five kick-offs. Results beside this file:
``rules.json``, ``rules.csv`` and ``rules.png`` (the training), ``rules.yaml`` (the resolved configuration),
``rules.mp4`` and ``rules.npz`` (the best game of the first seed, as film and replay).
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
