"""Evaluations during a run: when one is due, how it is made, and which are left out to save time."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from rlstack.evaluation.evaluator import Evaluation, evaluate
from rlstack.runs.worlds import world_options

from .hooks import Hook
from .monitor import EVALUATING

if TYPE_CHECKING:
    from rlstack.envs.foundation.work import Work

    from .loop import Training

_SHARE = 0.2
"""Greatest share of a run's time for evaluations before the last one, and for one as long as these."""


class EvaluationLeftOut(Exception):
    """Ends an evaluation that takes too long a part of the run's time."""


class Evaluations(Hook):
    """Evaluates the greedy policy on the run's fixed episodes when that is due, unless another hook does.

    If ``eval.every`` is null, evaluations but the last one take at most a fifth of the run's time. An evaluation is
    begun if, with the last one, it may fit into the fifth, and given up when it does not; the next one is begun when
    there is time for one that takes twice as long. Evaluations change nothing in how a run trains, so a run is the
    same, to the last bit, whichever of them are made.
    """

    def __init__(self) -> None:
        self._needed = 0.0  # seconds that an evaluation has taken, or twice those after which it was given up
        self._begun, self._end = 0.0, math.inf

    def evaluation_due(self, training: Training) -> bool | None:
        due, self._end = training.due(training.config.evaluation_every), math.inf
        if training.config.eval.every is not None or not due or training.is_over():
            return due
        learning = training.clock.learning()
        allowed = (learning * _SHARE / (1 - _SHARE) - training.clock.total[EVALUATING]) / 2  # half is for the last one
        (fits,) = training.ranks.of_first(allowed >= self._needed)
        self._begun = time.monotonic()
        if fits:
            self._end = self._begun + allowed
        elif training.ranks.first:
            training.event(_left_out(training))
        return bool(fits)

    def evaluate(self, training: Training) -> Evaluation:
        c = training.config
        lends = c.env.get("max_instances") is not None  # the run's worlds, if there can be no others
        state = training.env.state_dict() if lends else {}
        evaluation = evaluate(
            training.agent.policy(explore=False),
            c.env["name"],
            world_options(c.env),
            episodes=c.eval.episodes,
            seed=c.eval.seed,
            device=training.device,
            max_steps=c.eval.max_steps,
            env=training.env if lends else None,
        )
        if lends:  # their episodes begin anew
            training.env.load_state_dict(state)
            training.agent.begin_episodes()
            training.collector.reset()
        return evaluation

    def on_work(self, training: Training, work: Work) -> None:
        if time.monotonic() > self._end and not work.over and work.what == "evaluating":
            self._needed, self._end = 2 * (self._end - self._begun), math.inf
            raise EvaluationLeftOut(_left_out(training))

    def on_evaluation(self, training: Training, evaluation: Evaluation, is_best: bool) -> None:
        self._needed, self._end = time.monotonic() - self._begun, math.inf


def _left_out(training: Training) -> str:
    every = training.config.evaluation_every
    return f"no evaluation at {training.frames:,} frames, to save time; eval.every={every} makes every one"
