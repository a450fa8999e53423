"""Batches of worlds that workers step, on this machine or on several: TorchRL's multi-process and Ray collectors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from typing import Any

import torch
from tensordict import TensorDictBase

from rlstack.agents.base import Agent

from .messages import from_file, to_file
from .workers import Share, Worker, acting_state, joined

ATTEMPTS = 3
"""So many times in a row workers are replaced before the run ends."""

Maker = Callable[[int], Share]


class CollectorFailed(RuntimeError):
    """Workers fail again and again, or by a mistake that others would make, too; the message is one line.

    Attributes:
        traceback: of the worker, empty where it has left none.
    """

    def __init__(self, reason: str, traceback: str = "") -> None:
        super().__init__(reason)
        self.traceback = traceback


class _Lost(RuntimeError):
    """A worker has died or does not answer."""


class RemoteCollector:
    """Batches ``[W, T]`` of worlds that workers step; iterate over it.

    They are those that one process would gather, up to rounding, where the worlds are the same (see
    :meth:`envs.world.World.share`). A worker that dies or hangs is replaced, all others with it: their worlds begin new
    episodes.

    Args:
        start: starts workers of TorchRL's, given the options that all its collectors know.
        makers: what each of them builds.
        steps: of all worlds in a batch.
        agent: the learner.
        level: says which stage the worlds are to be in, None where there are none.
        seed: of the worlds.
        timeout: seconds that a worker may take for an answer, that it has begun included.
        saved: states of the worlds to go on from, see :meth:`worlds`.

    Attributes:
        worker_failures: how many times workers have been replaced.
    """

    def __init__(
        self,
        start: Callable[..., Any],
        makers: Sequence[Maker],
        steps: int,
        agent: Agent,
        level: Callable[[], int | None],
        seed: int,
        timeout: float,
        saved: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        self._start, self._makers, self._steps = start, list(makers), steps
        self._agent, self._seed, self._timeout = agent, seed, timeout
        self._level, self._world_steps = level, 0
        self.worker_failures = 0
        self._inner: Any = None
        try:
            self._begin()
            if saved is not None:
                self._ask("go_on", [(to_file(state),) for state in saved])
        except _Lost as error:
            raise CollectorFailed(f"workers do not begin: {error}") from error
        except BaseException:
            self.shutdown()
            raise

    # -- what the loop calls -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[TensorDictBase]:
        while True:
            answers = self._insist("collect", self._acting)
            torch.set_rng_state(torch.tensor(answers[0][1]))
            self._world_steps = answers[0][2]
            yield joined([answer[0] for answer in answers], self._agent.device)

    def _acting(self) -> tuple[Any, ...]:
        return acting_state(self._agent), torch.get_rng_state().numpy(), self._level()

    def reset(self) -> None:
        """All worlds begin new episodes."""
        self._insist("reset")

    def worlds(self) -> list[dict[str, Any]]:
        """The states of all workers' worlds."""
        return [from_file(saved) for saved in self._insist("worlds")]

    def shutdown(self, close_env: bool = True) -> None:
        """Ends the workers."""
        inner, self._inner, threads = self._inner, None, torch.get_num_threads()
        if inner is not None:
            with suppress(Exception):  # of workers that have gone already
                inner.shutdown()
            torch.set_num_threads(threads)  # TorchRL's processes give back more

    # -- workers -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        threads = torch.get_num_threads()
        options: dict[str, Any] = {"frames_per_batch": self._steps, "weight_sync_schemes": {}}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # TorchRL's own ways to send weights are not used
                self._inner = self._start(self._makers, collector_class=Worker, **options)
        except Exception as error:
            raise _Lost(_line(error)) from error
        finally:
            torch.set_num_threads(threads)  # TorchRL's processes take some away
        self._ask("begin", [(self._seed, self._world_steps)] * len(self._makers))

    def _insist(self, task: str, given: Callable[[], tuple[Any, ...]] = tuple) -> list[Any]:
        """All workers' answers; those that are lost are replaced."""
        for attempt in range(ATTEMPTS + 1):
            try:
                if attempt:
                    self._replace()
                return self._ask(task, [given()] * len(self._makers))
            except _Lost as error:
                lost = error
                self.worker_failures += 1
        raise CollectorFailed(f"workers were replaced {ATTEMPTS} times in vain: {lost}") from lost

    def _replace(self) -> None:
        self.shutdown()
        self._agent.begin_episodes()
        self._seed = (self._seed + self._agent.frames + self.worker_failures) % 2**32
        self._begin()

    def _ask(self, task: str, given: list[tuple[Any, ...]]) -> list[Any]:
        """All workers' answers, in their order."""
        pool = ThreadPoolExecutor(1)  # to wait for an answer no longer than the time-out: TorchRL would for ever
        try:
            arguments = [(task, *own) for own in given]
            answers = pool.submit(self._inner.map_fn, "obey", arguments).result(self._timeout)
        except NoAnswer:
            self.shutdown()
            raise _Lost(f"no answer within {self._timeout:g} s (collector.timeout)") from None
        except Exception as error:
            self.shutdown()
            raise _Lost(_line(error)) from error
        finally:
            pool.shutdown(wait=False)
        for answer in answers:
            if "failed" in answer:
                raise CollectorFailed(*answer["failed"])
        return [answer["done"] for answer in answers]


def _line(error: Exception) -> str:
    """The last line of what is often many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
