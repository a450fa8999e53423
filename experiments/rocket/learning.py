"""Trains PPO in Rocket, plays 1000 games with each seed, and draws the curve.

    python -m experiments.rocket.learning rules --seeds 0
    python -m experiments.rocket.learning self_play
    python -m experiments.rocket.learning two

Every seed is one ``rlstack train experiment=rocket/<name>`` with one thread (further overrides can be
appended). ``rules`` imitates two million decisions of the rule-based player, then PPO learns against it, 1v1; ``two``
does the same 2v2; ``self_play`` continues from the agent of ``rules`` (``zoo:rocket``). The last checkpoint plays games
from kick-offs, on both sides in turn, with actions sampled from the policy, since two deterministic players would
repeat the same few games: there are five kick-offs. Results beside this file: ``<name>.json``, ``<name>.csv`` and
``<name>.png`` (the training), ``<name>.yaml`` (the configuration), ``<name>.mp4`` and ``<name>.npz`` (the best
game of the first seed, as film and replay).
"""

from __future__ import annotations

from pathlib import Path

from experiments.against import Experiment, run

FILMS = ("mp4", "npz")
RULES = Experiment(
    "rules", "rocket/rules", ("rule",), 1000, (0, 1, 2), FILMS, "share of all games won against the rules"
)
SELF_PLAY = Experiment(
    "self_play", "rocket/self_play", ("zoo:rocket", "rule"), 1000, (0,), FILMS, "share of games won against the pool"
)
TWO = Experiment("two", "rocket/two", ("rule",), 1000, (0,), FILMS, "share of all games won against two rules")

if __name__ == "__main__":
    run([RULES, SELF_PLAY, TWO], Path(__file__).parent, __doc__)
