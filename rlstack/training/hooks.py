"""Hooks of a run: objects that the loop calls at fixed points, beside collecting and learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # commands import hooks before torch, which takes seconds
    from tensordict import TensorDictBase

    from rlstack.envs.foundation.work import Work
    from rlstack.evaluation.evaluator import Evaluation

    from .loop import Training as Training
else:  # hooks take the name of the run's class from here
    Training = Any


AnyHook = TypeVar("AnyHook", bound="Hook")


class DropBatch(Exception):
    """Raised by a hook: the run drops this batch, and all worlds begin new episodes."""


class Hook:
    """Takes part in a run; every method does nothing unless it is overridden.

    A run calls each method of all its hooks in their order. Hooks may use the run's ``frames``, ``agent``, ``env``,
    ``config`` and ``run`` (its directory), and its methods ``log(metrics)``, ``event(text)``, ``save()`` and
    ``finish()``, which makes the current batch the last one. On a GPU the next batch and metrics are written into the
    same tensors, so a hook copies what it keeps.

    Attributes:
        name: key of the hook's state in checkpoints, not one of the run's own; empty for a hook without ``state_dict``.

    Example:
        >>> class EarlyStop(Hook):
        ...     def on_evaluation(self, training, evaluation, is_best):
        ...         if evaluation.summary()["eval/return"] > 475:
        ...             training.finish()
        >>> rlstack.train(agent="ppo", env="cartpole", hooks=[EarlyStop()])
    """

    name = ""

    def on_prepare(self, training: Training) -> None:
        """Called before the run writes anything; may raise a :class:`ConfigError` if the run cannot begin."""

    def on_start(self, training: Training) -> None:
        """Called before the first batch, when a resumed run has been restored."""

    def on_collected(self, training: Training, batch: TensorDictBase, sequences: TensorDictBase) -> None:
        """Called before the agent learns from a collector batch ``[W, T]``, given also as folded sequences ``[B, T]``.

        ``training.frames`` includes the batch. May raise :class:`DropBatch`.
        """

    def on_batch(self, training: Training, batch: TensorDictBase, metrics: Mapping[str, Any]) -> None:
        """Called after the agent has learned from a batch ``[W, T]``; may raise :class:`DropBatch`."""

    def on_progress(self, training: Training) -> Mapping[str, Any]:
        """Returns metrics since the last log line for the display, which changes more often."""
        return {}

    def on_log(self, training: Training) -> Mapping[str, Any]:
        """Returns metrics ``group/name`` to add to a log line."""
        return {}

    def on_work(self, training: Training, work: Work) -> None:
        """Called after each step of an evaluation or of imitation."""

    def evaluation_due(self, training: Training) -> bool | None:
        """Decides whether an evaluation follows this batch; None leaves that to other hooks
        and ``eval.every``."""
        return None

    def evaluate(self, training: Training) -> Evaluation | None:
        """Evaluates the agent in place of the run's own evaluation; None leaves it to the run."""
        return None

    def on_evaluation(self, training: Training, evaluation: Evaluation, is_best: bool) -> None:
        """Called after an evaluation; ``is_best`` says that none before was better."""

    def on_checkpoint(self, training: Training) -> None:
        """Called before a checkpoint is written; an error prevents it."""

    def on_iteration(self, training: Training) -> None:
        """Called at the end of each iteration, after whatever of logging, evaluating and saving was due."""

    def on_end(self, training: Training) -> None:
        """Called after the last batch of a run that has reached its end."""

    def close(self) -> None:
        """Releases the hook's resources, however the run ends."""

    def state_dict(self) -> Any:
        """Returns the hook's part of a checkpoint: tensors, numbers, strings, and containers of them."""

    def load_state_dict(self, state: Any) -> None:
        """Restores :meth:`state_dict`."""
