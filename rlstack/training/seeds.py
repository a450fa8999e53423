"""Several runs of one configuration in one process, which differ in their seed.

Each run has a thread, in which everything is as if it ran alone: its folder, worlds, replay buffer, evaluations and
checkpoints, and its own state of torch's random generator. One thread works at a time. On a CPU, when an agent is to
make a step of an optimiser, its thread waits; once all wait, the steps of all agents are made as one
(:mod:`rlstack.agents.together`), and each thread goes on with its result. On a GPU, threads take turns after every
batch. Each run has a stream of its own, so that the GPU computes its recordings beside those of the others.
"""

from __future__ import annotations

import io
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstack.config import ConfigError, build
from rlstack.runs.run_directory import CONFIG, RunDirectory, make_first_free, make_folder, removed_if_empty

from . import run as runs
from .config import TrainConfig, with_length
from .hooks import Hook, Training
from .interrupt import Interrupted, Interrupts, receiving

if TYPE_CHECKING:
    from rlstack.agents.together import Together

MOST = 15
"""Number of runs on a GPU: each has two streams, one of them for recording, of the 32 that torch has."""
ALGORITHMS = ("ppo", "dqn", "iqn", "sac", "td3", "acqn")
"""The algorithms whose updates are made as one batch."""

TOGETHER = "seeds"
"""Key of the number of runs in the checkpoints of those whose agents step together."""

LEARN, COLLECT, TURN = "learn", "collect", "turn"
"""Names of what agents do together beside the steps of optimisers; a turn is nothing but letting the others work."""


def check(plain: dict[str, Any], count: int) -> Callable[..., Callable[[], None]] | None:
    """Checks that the runs of a configuration with ``seeds`` can be made together.

    Returns :meth:`rlstack.data.graphs.CudaGraph.lane` for their GPU; None if they learn on a CPU.

    Args:
        plain: their configuration.
        count: number of runs.

    Raises:
        ConfigError: an option rules it out; the message names all such options and what is allowed.
    """
    config = build(TrainConfig, with_length(plain))
    from rlstack.data.graphs import GRAPHS  # imports torch, which takes seconds
    from rlstack.runs.worlds import choose_device

    device, agent = choose_device(config.device), config.agent
    graphs = GRAPHS.get(device.type)
    if graphs is None and device.type != "cpu":
        raise ConfigError(f"seeds: runs in one process learn on a CPU or an NVIDIA GPU, the device is {device}")
    if graphs is not None and count > MOST:
        raise ConfigError(f"seeds: {count} runs in one process; on a GPU at most {MOST} are allowed")
    anywhere = {
        "collector": config.collector.backend != "direct",
        "logger (services)": config.logger.without_services() != config.logger,
        "torchrun": int(os.environ.get("WORLD_SIZE", "1")) > 1,
    }
    batched = {
        f"agent.algorithm={agent.get('algorithm')}": agent.get("algorithm") not in ALGORITHMS,
        "agent.recurrent": agent.get("recurrent") is not None,
        "agent.rnd": agent.get("rnd") is not None,
        "agent.network": agent.get("network") is not None,
        "agent.critic_norm": agent.get("critic_norm", "none") != "none",
        "agent.critic=central": agent.get("critic") == "central",
        "agent.value_first": bool(agent.get("value_first")),
        "agent.lr (adaptive)": isinstance(agent.get("lr"), dict) and agent["lr"].get("kind") == "adaptive",
        f"agent.precision={agent.get('precision')}": agent.get("precision") in ("bfloat16", "float16"),
        "agent.accumulate": agent.get("accumulate", 1) != 1,
        "compile=true": config.compile is True,
        "cudagraphs=true": config.cudagraphs is True,
        "data": config.data is not None,
        "guard.non_finite": config.guard.non_finite != "error",
    }
    wrong = anywhere if graphs is not None else batched | anywhere
    if refused := [name for name, is_wrong in wrong.items() if is_wrong]:
        ours = "feed-forward networks of ours in float32, no compile, guard.non_finite=error"
        agents = "any agent" if graphs is not None else f"{', '.join(ALGORITHMS)} with {ours}"
        raise ConfigError(
            f"seeds: runs in one process on this device cannot have {', '.join(refused)}; allowed are {agents}, "
            "collector=default, and loggers without services; -m seed=0,1,... trains any runs one after the other"
        )
    return None if graphs is None else partial(graphs.lane, device)


def seeded(plain: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the configurations of new runs, with the seeds from ``seed`` on, each with its folder in a new one.

    The folder is ``run_dir``, or ``runs/<agent>_<env>_seeds<first>-<last>_<time>``.

    Raises:
        ConfigError: see :func:`check`; or the folder already holds runs.
    """
    check(plain, plain["seeds"])
    seeds = range(plain["seed"], plain["seed"] + plain["seeds"])
    plain = {**plain, "seeds": None}
    name = runs.run_name(plain["agent"], plain["env"], seeds[0]).removesuffix(str(seeds[0]))
    if plain["run_dir"] is None:
        folder = Path("runs") / f"{name}s{seeds[0]}-{seeds[-1]}_{time.strftime('%Y%m%d-%H%M%S')}"
        folder = make_first_free(folder, "run_dir")
    else:
        folder = make_folder(Path(plain["run_dir"]), "run_dir")
        if found_in(folder):
            raise ConfigError(f"run_dir: {folder} already holds runs; choose another, or resume={folder}")
    return [{**plain, "seed": seed, "run_dir": str(folder / f"{name}{seed}")} for seed in seeds]


def found_in(folder: str | Path | None) -> list[str]:
    """Returns the runs directly within a folder that is no run itself, in the order of their names' numbers."""
    if folder is None or not os.path.isdir(folder) or (Path(folder) / CONFIG).is_file():
        return []
    names = [path.parent for path in Path(folder).glob(f"*_seed*/{CONFIG}")]
    return [str(path) for path in sorted(names, key=lambda path: (len(path.name), path.name))]


def train(plains: Sequence[dict[str, Any]], hooks: Sequence[Hook] = ()) -> list[Path]:
    """Trains several runs together; returns their folders.

    Runs to resume that are complete stay as they are, unless all are.

    Args:
        plains: the configuration of each; they differ in seed and folder.
        hooks: hooks that take part in every run; of those with a state in checkpoints, each run has a copy.

    Raises:
        ConfigError: the configuration has a mistake; nothing has been written.
        RunError: a run cannot continue; the others have gone on to their end.
        KeyboardInterrupt: Ctrl-C, after a checkpoint of each run.
    """
    folders = [Path(plain["resume"] or plain["run_dir"]) for plain in plains]
    if left := [plain for plain in plains if not _is_complete(plain)]:
        plains = left
    lane = check(plains[0], len(plains))
    if lane is None:  # all updates are batched, so that none is compiled
        plains = [{**plain, "compile": False, "cudagraphs": False} for plain in plains]
    group = _Group(len(plains), lane)
    own = [[deepcopy(hook) if hook.name else hook for hook in hooks] for _ in plains]

    def one(number: int) -> None:
        with runs.begun(plains[number], [*own[number], _Joins(group, number)]) as training:
            training.execute()

    folder = folders[0].parent
    with removed_if_empty(folder), group.interruptible(folder):
        group.run(one)
    return folders


def _is_complete(plain: dict[str, Any]) -> bool:
    """Returns whether a run to resume has reached its end, or the frame to stop at."""
    config = build(TrainConfig, with_length(plain))
    if config.resume is None:
        return False
    run = RunDirectory.open(config.resume)
    try:
        run.check_unfinished(config.total_frames, min(config.total_frames, config.until or config.total_frames))
    except ConfigError:
        return True
    return False


@dataclass(eq=False)
class _Joins(Hook):
    """Lets the optimisers of a run's agent step together with those of the others; checkpoints hold how many these are.

    On a GPU it only gives turns to the others, and has no state.

    Args:
        group: the group of the runs.
        number: number of the run.
    """

    group: _Group
    number: int

    def __post_init__(self) -> None:
        self.name = TOGETHER if self.group.lane is None else ""

    def on_start(self, training: Training) -> None:
        group = self.group
        group.trainings[self.number] = training
        training.at_once = training.clock.runs = group.count
        if group.asked:  # while others had begun, and this run had not
            group.ask(training)
        place = f"run {self.number + 1} of {group.count}, seed {training.config.seed}"
        training.progress.latest("seeds", f"{place}, in one process")
        if group.lane is not None:
            return
        agent: Any = training.agent
        if hasattr(agent, "together"):  # PPO
            agent.together = partial(group.meet, self.number, LEARN)
            training.collector.together = partial(group.meet, self.number, COLLECT)
        for name, optimizer in agent.optimizers.items():
            optimizer.together = partial(group.meet, self.number, name)

    def on_batch(self, training: Training, batch: Any, metrics: Any) -> None:
        if self.group.lane is not None:
            self.group.meet(self.number, TURN)

    def state_dict(self) -> int:
        return self.group.count


class _Group:
    """Threads that take turns, and meet where their agents make a step.

    Args:
        count: number of threads.
        lane: makes what a thread needs on a GPU (:meth:`rlstack.data.graphs.CudaGraph.lane`); None on a CPU, where
            agents step together.
    """

    def __init__(self, count: int, lane: Callable[..., Callable[[], None]] | None) -> None:
        self.count, self.lane = count, lane
        self.trainings: dict[int, Training] = {}
        self.asked = False
        self._gates = [threading.Semaphore(0) for _ in range(count)]
        self._alive = list(range(count))
        self._waiting: dict[int, tuple[str, Any]] = {}
        self._stepped: dict[int, Any] = {}
        self._results: dict[int, Any] = {}
        self._errors: list[BaseException] = []
        self._output, self._ended = sys.stdout, False
        self._generators: list[Any] = []
        self._numpy: Any = None
        self._of_numpy: list[Any] = []
        self._of_python: list[Any] = []
        self._lanes: dict[int, Callable[[], None]] = {}
        self._together: Together | None = None

    def run(self, task: Callable[[int], Any]) -> list[Any]:
        """Returns the results of a task for each number, called in its thread.

        Raises:
            BaseException: that of the first thread that failed.
        """
        import numpy as np
        import torch

        self._generators = [torch.Generator() for _ in range(self.count)]
        self._numpy = np.random  # to NumPy's stubs, its two functions below are private
        self._of_numpy, before = [np.random.MT19937() for _ in range(self.count)], self._numpy.get_bit_generator()
        self._of_python = [random.getstate()] * self.count
        back = None if self.lane is None else self.lane(False)
        threads = [threading.Thread(target=self._work, args=(task, number)) for number in range(self.count)]
        for thread in threads:
            thread.start()
        self._gates[0].release()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            self._ended = True  # each thread ends where it would wait next
            raise
        finally:
            sys.stdout = self._output
            self._numpy.set_bit_generator(before)
            if back is not None:
                back()
        if self._errors:
            raise self._errors[0]
        return [self._results[number] for number in range(self.count)]

    @contextmanager
    def interruptible(self, folder: Path) -> Iterator[None]:
        """A context in which Ctrl-C ends all runs after their batch, with a checkpoint each; a second one at once."""

        def receive(number: int, frame: Any) -> None:
            if self.asked or not self.trainings:
                raise KeyboardInterrupt
            self.asked = True
            for training in self.trainings.values():
                self.ask(training)

        with receiving(receive):
            try:
                yield
            except Interrupted:
                print(f"all {self.count} runs have stopped; continue them with: rlstack train resume={folder}")
                raise

    def ask(self, training: Training) -> None:
        """Asks a run to end after its batch."""
        for hook in training.hooks:
            if isinstance(hook, Interrupts):
                hook.ask()

    def meet(self, number: int, name: str, *request: Any) -> Any:
        """Makes the step of an agent's optimiser of this name, or what else it says, with all others.

        Returns None if it is to be made alone.

        Args:
            request: the loss and its batch; to learn the rollout, to collect the collector.
        """
        self._waiting[number] = name, request
        self._leave(number)
        if not any(other not in self._waiting for other in self._alive):
            self._step()
        self._hand_on(number)
        self._gates[number].acquire()
        self._enter(number)
        stepped = self._stepped.pop(number)
        if isinstance(stepped, BaseException):
            raise stepped
        return stepped

    # -- turns -----------------------------------------------------------------------------------------------------

    def _work(self, task: Callable[[int], Any], number: int) -> None:
        self._gates[number].acquire()
        try:
            if self.lane is not None and not self._ended:
                self._lanes[number] = self.lane()
            self._enter(number)
            if not self._ended:
                self._results[number] = task(number)
        except BaseException as error:
            self._errors.append(error)
            if number not in self.trainings or isinstance(error, ConfigError):
                self._ended = True  # a mistake that all have
        finally:
            self._leave(number)
            self._alive.remove(number)
            if self._alive and all(other in self._waiting for other in self._alive):
                self._step()
            self._hand_on(number)

    def _hand_on(self, number: int) -> None:
        """Lets the next thread work that has something to do."""
        able = [other for other in self._alive if other not in self._waiting]
        if able:
            self._gates[min(able, key=lambda other: (other <= number, other))].release()

    def _enter(self, number: int) -> None:
        import torch

        if self._ended:
            self._stepped[number] = KeyboardInterrupt()
            return
        torch.set_rng_state(self._generators[number].get_state())
        self._numpy.set_bit_generator(self._of_numpy[number])
        if self.lane is not None:
            random.setstate(self._of_python[number])
            self._lanes[number]()
        sys.stdout = self._output if number == 0 else io.StringIO()

    def _leave(self, number: int) -> None:
        import torch

        self._generators[number].set_state(torch.get_rng_state())
        if self.lane is not None:  # on a CPU it would take a tenth of a step's time
            self._of_python[number] = random.getstate()

    def _step(self) -> None:
        """Makes the steps for which all threads wait."""
        waiting, self._waiting = self._waiting, {}
        names = {name for name, _ in waiting.values()}
        try:
            if len(names) > 1 or len(waiting) < self.count or TURN in names:
                self._stepped = dict.fromkeys(waiting)
                return
            if self._together is None:
                from rlstack.agents.together import Together

                agents = [self.trainings[number].agent for number in range(self.count)]
                self._together = Together(agents, self._generators)
            requests: list[Any] = [waiting[number][1] for number in range(self.count)]
            name = names.pop()
            if name in (LEARN, COLLECT):
                stepped = getattr(self._together, name)([given for (given,) in requests])
            else:
                stepped = self._together.minimize(name, requests)
            self._stepped = dict(enumerate(stepped or [None] * self.count))
        except Exception as error:
            self._stepped = dict.fromkeys(waiting, error)
