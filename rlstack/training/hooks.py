"""Hooks of a run: objects that the loop calls at fixed points, beside collecting and learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # commands import hooks before torch, which takes seconds
    from tensordict import TensorDictBase

    from envs.working import Work
    from rlstack.evaluation.evaluator import Evaluation

    from .loop import Training
    from .notices import Notices


class DropBatch(Exception):
    """Raised by a hook: nothing further is made of this batch, and all worlds begin new episodes."""


class Hook:
    """Takes part in a run; every method does nothing unless it is overridden.

    A run calls each method of all its hooks in their order. What they may use of it: ``frames``, ``agent``, ``env``,
    ``config``, ``run`` (its directory); ``log(metrics)`` and ``event(text)``; ``save()``; and ``finish()``, which makes
    the present batch the last one.

    Attributes:
        name: the key of its state in checkpoints, none of the run's own; empty for a hook that has no state.

    Example:
        >>> class EarlyStop(Hook):
        ...     def on_evaluation(self, training, evaluation, is_best):
        ...         if evaluation.summary()["eval/return"] > 475:
        ...             training.finish()
        >>> rlstack.train(agent="ppo", env="cartpole", hooks=[EarlyStop()])
    """

    name = ""

    def on_prepare(self, training: Training) -> None:
        """Before anything of the run is written; a :class:`ConfigError` says why it cannot be done."""

    def on_start(self, training: Training) -> None:
        """Before the first batch; a resumed run is where it was left."""

    def on_collected(self, training: Training, batch: TensorDictBase, sequences: TensorDictBase) -> None:
        """Before the agent learns from a collector batch ``[W, T]``, given also as folded sequences ``[B, T]``.

        ``training.frames`` counts it already. May raise :class:`DropBatch`.
        """

    def on_batch(self, training: Training, batch: TensorDictBase, metrics: Mapping[str, Any]) -> None:
        """After the agent has learned from a batch ``[W, T]`` and told these metrics. May raise :class:`DropBatch`."""

    def on_log(self, training: Training) -> Mapping[str, Any]:
        """Adds metrics ``group/name`` to a line of the log."""
        return {}

    def on_work(self, training: Training, work: Work) -> None:
        """After each step of an evaluation or of imitation."""

    def evaluation_due(self, training: Training) -> bool | None:
        """Decides if this batch is followed by an evaluation; None leaves that to ``eval.every``."""
        return None

    def evaluate(self, training: Training) -> Evaluation | None:
        """Judges the agent in place of the run's own evaluation; None leaves it to that."""
        return None

    def on_evaluation(self, training: Training, evaluation: Evaluation, is_best: bool) -> None:
        """After an evaluation; ``is_best`` says that none before was better."""

    def on_checkpoint(self, training: Training) -> None:
        """Before a checkpoint is written; an error keeps it from being written."""

    def on_iteration(self, training: Training) -> None:
        """After a batch has been learned from, logged, evaluated and saved, as far as that was due."""

    def on_end(self, training: Training) -> None:
        """After the last batch of a run that has come to its end."""

    def close(self) -> None:
        """Lets go of what the hook has taken, however the run ends."""

    def state_dict(self) -> Any:
        """The hook's part of a checkpoint: tensors, numbers, strings, and containers of them."""

    def load_state_dict(self, state: Any) -> None:
        """Restores :meth:`state_dict`."""


class NoticesHook(Hook):
    """Tells people elsewhere of every new best, and of the end."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices

    def on_evaluation(self, training: Training, evaluation: Evaluation, is_best: bool) -> None:
        if is_best:
            self._notices.tell(f"new best at {training.frames:,} frames: {evaluation.in_words()}")

    def on_end(self, training: Training) -> None:
        if training.evaluation is not None:
            self._notices.tell(f"ended at {training.frames:,} frames: {training.evaluation.in_words()}")
