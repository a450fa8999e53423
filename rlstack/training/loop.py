"""The training loop: collect, learn, log, evaluate, checkpoint."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.agents import build_agent
from rlstack.agents.optimizer import decided
from rlstack.config import ConfigError
from rlstack.config.options import renewed
from rlstack.config.overrides import given_overrides
from rlstack.config.rooms import registered, target
from rlstack.data.collector import LeanCollector
from rlstack.data.flatten import flatten_agents
from rlstack.data.graphs import Recorded
from rlstack.envs import world_hooks
from rlstack.envs.foundation.compilation import telling, under_way
from rlstack.envs.foundation.work import Work, following
from rlstack.envs.world import hooks_of
from rlstack.evaluation.evaluator import Evaluation, evaluate
from rlstack.runs.checkpoint import state_digest
from rlstack.runs.loading import MISFITS, brief, initialise, unfinished
from rlstack.runs.run_directory import RunDirectory
from rlstack.runs.seeding import restore_rng, rng_state, seed_everything
from rlstack.runs.worlds import choose_device, world_options

from .acceleration import Acceleration, set_determinism
from .config import TrainConfig, differing, is_resumable
from .curriculum import Curriculum
from .distributed import Ranks
from .guard import Guard
from .hooks import AnyHook, DropBatch, Hook
from .imitation import Imitation
from .interrupt import Interrupted, Interrupts
from .loggers import MetricLogger
from .monitor import COLLECTING, EVALUATING, LEARNING, Clock, Hardware, Monitor, count_frames, is_due
from .preflight import BatchChecks
from .progress import Progress
from .summary import league_command, resume_command
from .workers import build_worlds, remote, start_collector, worlds_here

OWN_STATE = (
    *("frames", "time", "best_rank", "agent", "replay", "env", "other_ranks", "other_ranks_env", "rng", "config"),
    *(hook.name for hook in (Monitor, Curriculum, Imitation, Guard)),
)
"""Entries of a checkpoint that a user's hook must not take as its name."""


def _folded(group: str | None, unit: str, batch: TensorDictBase) -> tuple[TensorDictBase, int | Tensor]:
    """Returns the sequences of a batch, and its frames."""
    sequences = flatten_agents(batch, group)
    return sequences, count_frames(batch, sequences, unit)


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
        learning = training.clock.learning(training.at_once)
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


def hooks_of_run(training: Training, own: Sequence[Hook]) -> list[Hook]:
    """Returns all hooks of a run, in the order in which they are called.

    Args:
        own: the user's hooks.

    Raises:
        ValueError: two hooks have the same name, or one of the user's has a state and no name to save it under.
    """
    for hook in own:
        nameless = not hook.name and type(hook).state_dict is not Hook.state_dict
        if nameless and not type(hook).__module__.startswith("rlstack."):
            raise ValueError(f"hooks: {type(hook).__name__} has a state_dict, give it a name to be saved under")
    names = [*OWN_STATE, *(hook.name for hook in own if hook.name)]
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise ValueError(f"hooks: the name {twice[0]!r} is taken")
    c = training.config
    curriculum = None if c.curriculum is None else Curriculum(c.curriculum, training.env)
    hooks = [
        Interrupts(training.ranks),
        Hardware(training.device),
        Imitation(c),
        BatchChecks() if c.debug else None,
        Guard(c.guard, training.agent, training.run.path, training.ranks.seed(c.seed), c.collector.count),
        Monitor(c.cudagraphs is not False),
        curriculum,
        *(target(name)(training) for name in registered("HOOKS").values()),
        *own,
        Evaluations(),
    ]
    return [hook for hook in hooks if hook is not None]


class Training:
    """One run, from its first or a later frame to its last.

    Args:
        config: configuration of the run.
        run: directory of the run.
        raw_config: the configuration as plain values, for loggers.
        ranks: the processes that learn together; None for this one alone.
        hooks: hooks that take part in the run; see :class:`rlstack.training.hooks.Hook`.

    Attributes:
        frames: frames so far, of which ``previous`` or more came before the current batch. On a GPU that counts them,
            reading this number waits for it.
        deterministic: whether a GPU computes the same bits every time, in words; None on a CPU.
        last_frame: number of frames at which the run ends.
        clock: time of the run so far.
        hooks: all hooks, in the order in which they are called.
        at_once: number of runs that take turns in this process.
    """

    at_once = 1
    logger: MetricLogger
    progress: Progress
    collector: Any
    _frames: int
    _most: int
    _counted: Tensor | None  # frames so far, on a GPU that counts them; they are at most _most

    def __init__(
        self,
        config: TrainConfig,
        run: RunDirectory,
        raw_config: dict[str, Any],
        ranks: Ranks | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self.ranks = ranks or Ranks()
        self.device = choose_device(config.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # on whose current stream functions are recorded
        if config.agent.get("precision") == "auto":  # decided once, and kept when the run resumes on another machine
            (half,) = self.ranks.of_first(decided(config.agent, self.device) == "bfloat16")
            precision = {"precision": "bfloat16" if half else "float32"}
            config = replace(config, agent={**config.agent, **precision})
            raw_config = {**raw_config, "agent": {**raw_config["agent"], **precision}}
        self.config, self.run, self.raw_config = config, run, raw_config
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        seed_everything(config.seed)
        worlds_device = worlds_here(config, self.device)
        self.acceleration = Acceleration(config, self.device, worlds_device, shared=self.ranks.count > 1)
        self.env = build_worlds(config, worlds_device, self.acceleration.world)
        self.ranks.place(self.env, config.seed)
        self.agent = build_agent(config.agent, self.env, config.total_frames, self.device)
        self.deterministic = set_determinism(config.deterministic, self.agent)
        self.acceleration.apply(self.agent)
        self.last_frame = min(config.total_frames, config.until or config.total_frames)
        self.frames = self.previous = 0
        self._evaluated = -1  # frames at the latest evaluation
        self._best_at: int | None = None  # frames of the best checkpoint of this process
        self.evaluation: Evaluation | None = None  # the latest
        self.best_rank: list[float] = []  # rank of the best evaluation, see Evaluation.rank
        self.digest = ""
        self.clock = Clock(self.device.type == "cuda")
        self._pending_rng: dict[str, Any] | None = None
        self._worlds: list[dict[str, Any]] | None = None  # states that workers resume from
        self._prepared = False
        self.hooks = hooks_of_run(self, hooks)
        self._open = list(self.hooks)  # hooks that have not been closed

    def begin(self) -> None:
        """Loads the networks that ``init`` names into the agent of a new run.

        Raises:
            ConfigError: there is no such checkpoint, or its networks do not fit.
        """
        if self.config.init is not None:
            initialise(self.agent, self.config.init)

    def prepare(self) -> None:
        """Lets the hooks prepare, for example find the expert to imitate; :meth:`execute` calls it if nobody has.

        Raises:
            ConfigError: something that a hook needs does not exist or does not fit.
        """
        if not self._prepared:
            self._call("on_prepare")
            self._prepared = True

    def close(self) -> None:
        """Closes the worlds of the run, and what hooks hold."""
        self._close_hooks()
        self.env.close(raise_if_closed=False)

    def _close_hooks(self) -> None:
        while self._open:
            self._open.pop().close()

    # -- the loop ------------------------------------------------------------------------------------------------

    def execute(self) -> Evaluation | None:
        """Trains to ``until`` or the end; returns the last evaluation, which only the first rank makes.

        It opens the collector, the loggers and the hooks, and closes them at the end. Ctrl-C saves a checkpoint first.
        """
        self.prepare()
        c = self.config
        self._logged = self.frames
        self.clock.start(self.frames)
        with ExitStack() as stack:
            self.collector = start_collector(c, self.env, self.agent, self.hooks, self.acceleration.world, self._worlds)
            stack.callback(self.collector.shutdown, close_env=False)
            if self._pending_rng is not None:  # last, since building a collector may draw random numbers
                restore_rng(self._pending_rng)
            self.logger = stack.enter_context(MetricLogger(self.run.path, c.logger, self.raw_config))
            self.logger.truncate_after(self.frames)  # drops rows beyond the checkpoint of a resumed run
            self.run.drop_evaluations_after(self.frames)
            title = f"{c.agent.get('name')}, {c.env.get('id') or c.env.get('name')}, seed {c.seed}"
            self.progress = Progress(self.last_frame, None, title, self.frames, self.agent.updates)
            self.progress.rows["compiling"] = under_way
            stack.callback(self.progress.close)
            for note in self.acceleration.notes:
                self.event(note)
            stack.enter_context(telling(self.event))
            stack.enter_context(following(self.progress.work))
            stack.callback(self._close_hooks)
            self._call("on_start")
            self.ranks.attach(self.agent, c.seed if self._pending_rng is None else None)
            if self.frames >= self.last_frame:  # a hook has ended it, or the evaluation at the end was interrupted
                self._judge()
            fold: Any = partial(_folded, self.agent.interface.group, c.collector.count)
            if self.agent.compiler is not None and self.agent.compiler.graphs:
                fold = Recorded(fold, "folding agents into a batch", (), self.device, lent=True)
            lean = isinstance(self.collector, LeanCollector)
            collect: Any = self.collector.rollout if lean else partial(next, iter(self.collector))
            while not self.is_over():
                with self.clock.spending(COLLECTING):
                    batch = collect()
                sequences, count = fold(batch)
                self._count(count, sequences.get("active").numel())
                try:
                    self._call("on_collected", batch, sequences)
                    with self.clock.spending(LEARNING):
                        metrics = self.agent.learn(sequences, self.frames if self._counted is None else self._counted)
                    self._call("on_batch", batch, metrics)
                except DropBatch:
                    self.agent.begin_episodes()
                    self.collector.reset()
                self._follow_up()
            self._call("on_end")
        assert self.evaluation is not None or not self.ranks.first, "the last batch is always evaluated"
        return self.evaluation

    def _follow_up(self) -> None:
        """Logs, evaluates and saves after a batch, as far as they are due."""
        if self.progress.due:
            seen = {} if self.device.type == "cuda" else self.metrics()  # to read them would wait for the GPU
            self.progress.update(self.frames, {**seen, **self._updates(), **self.clock.read()})
        self._log_row()
        try:
            self._judge()
            ended = self.is_over()
            self._call("on_iteration")
            if not ended and self.is_over():  # a hook has just made this batch the last one
                self._judge()
        except Interrupted:
            self.progress.update(self.frames)
            self.event(f"saved {self.save().name}; continue with: {self.resume_command()}")
            raise

    def _log_row(self) -> None:
        """Writes the metrics since the last such row, if it is due and not done at these frames."""
        if not self.due(self.config.log_every) or self._logged == self.frames:
            return
        self._logged = self.frames
        row = self._updates() | self.agent.schedule_metrics()
        for hook in self.hooks:
            row |= hook.on_log(self)
        self.log(row | {"time/frames_per_second": self.clock.rate(self.frames)})
        self.progress.update(self.frames, row | self.clock.total)

    def _judge(self) -> None:
        """Evaluates and saves, as far as they are due and not done at these frames."""
        decisions = (hook.evaluation_due(self) for hook in self.hooks)
        due = next(decision for decision in decisions if decision is not None)  # at the end of the run it always is
        is_best = due and self._evaluated != self.frames and self.evaluate_and_log()
        self._log_row()  # a hook may have ended the run
        if is_best or self.due(self.config.checkpoint.every):
            name = self.save(is_best).name
            self._best_at = self.frames if is_best else self._best_at
            best = "" if self._best_at is None else f"; the best is of {self._best_at:,} frames"
            self.progress.latest("checkpoint", f"{name}{' (best so far)' if is_best else best}")

    def _count(self, count: int | Tensor, most: int) -> None:
        """Adds the frames of a batch of all processes, of which this one has at most ``most``."""
        self.previous = self._frames
        if self.config.data is not None:  # the number of transitions drawn
            count = int(self.collector.frames)
        if isinstance(count, Tensor) and self.ranks.count == 1 and self.agent.follows_tensors:
            if self._counted is None:
                self._counted = torch.full_like(count, self._frames)
            self._counted += count
            self._most += most
            return
        (total,) = self.ranks.sum(int(count))
        self.frames += int(total)

    @property
    def frames(self) -> int:
        if self._counted is not None and self._most > self._frames:
            self._frames = self._most = int(self._counted)
            self.agent.know(self._frames)
        return self._frames

    @frames.setter
    def frames(self, frames: int) -> None:
        self._frames = self._most = frames
        self._counted = None

    def is_over(self) -> bool:
        """Returns whether the run has made all its frames."""
        return self._most >= self.last_frame and self.frames >= self.last_frame

    def _call(self, event: str, *arguments: Any) -> None:
        for hook in self.hooks:
            getattr(hook, event)(self, *arguments)

    # -- for hooks -----------------------------------------------------------------------------------------------

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Writes metrics ``group/name`` at the current frame to every logger of the run."""
        self.logger.log(self.frames, {**metrics, **self.clock.read()})

    def metrics(self) -> dict[str, Any]:
        """Returns the metrics since the last log line."""
        return {name: value for hook in self.hooks for name, value in hook.on_progress(self).items()}

    def hook(self, kind: type[AnyHook]) -> AnyHook | None:
        """Returns the run's hook of a kind; None if it has none."""
        return next((hook for hook in self.hooks if isinstance(hook, kind)), None)

    def event(self, text: str) -> None:
        """Shows the user a line about something that happened once."""
        self.progress.event(text)

    def resume_command(self) -> str:
        """Returns the command line that continues this run."""
        return league_command() or resume_command(self.run, self.ranks.count)

    def finish(self) -> None:
        """Makes the current batch the last one, which is evaluated and saved; the run can be resumed."""
        self.last_frame = self.frames

    def following_work(self) -> AbstractContextManager[None]:
        """A context in which work (:mod:`rlstack.envs.foundation.work`) is displayed and reported to all hooks."""

        def follow(work: Work) -> None:
            self.progress.work(work)
            self._call("on_work", work)

        return following(follow)

    def due(self, every: float) -> bool:
        """Returns whether something that happens every ``every`` frames is due; at the end of the run everything is."""
        # No call before this one found it due: frames that have not been read since are on the same side of it.
        span = (every, self.previous)
        return is_due(*span, self._most, self.last_frame) and is_due(*span, self.frames, self.last_frame)

    @property
    def worker_failures(self) -> int:
        """Returns how many times processes with worlds have been replaced."""
        return self.collector.worker_failures if remote(self.config) else hooks_of(self.env).worker_failures

    def _updates(self) -> dict[str, Any]:
        return {"train/updates": float(self.agent.updates_made())}

    # -- evaluation ----------------------------------------------------------------------------------------------

    def evaluate(self) -> Evaluation:
        """Evaluates the agent as the first hook does that evaluates; the last one always does."""
        evaluations = (hook.evaluate(self) for hook in self.hooks)
        return next(evaluation for evaluation in evaluations if evaluation is not None)

    def evaluate_and_log(self) -> bool:
        """Evaluates on the first rank and writes the results to the run; returns whether none was better before.

        All ranks learn whether this was the best, whether it was interrupted, and whether the run ends with it.
        """
        is_best = interrupted = False
        if self.ranks.first:
            try:
                with self.following_work(), self.clock.spending(EVALUATING):
                    evaluation = self.evaluation = self.evaluate()
            except EvaluationLeftOut as why:
                self.event(str(why))
            except Interrupted:
                interrupted = True
            else:
                summary = evaluation.summary()
                evaluation.save(self.run.evaluation(self.frames))
                rank = evaluation.rank(world_hooks(self.config.env["name"]).tie_breaker)
                is_best = rank > self.best_rank and rank[0] > -math.inf
                self.best_rank = max(rank, self.best_rank)
                self.log(summary)
                self.progress.update(self.frames, summary)
                self.progress.latest("evaluation", f"at {self.frames:,} frames: {evaluation.in_words()}")
                self._call("on_evaluation", evaluation, is_best)
        best, stop, last = self.ranks.of_first(is_best, interrupted, self.last_frame)
        self.last_frame = int(last)
        if stop:
            raise Interrupted
        self._evaluated = self.frames
        return bool(best)

    # -- checkpoint ----------------------------------------------------------------------------------------------

    def save(self, best: bool = False) -> Any:
        """Writes a checkpoint of :meth:`state`; returns its path.

        Raises:
            RunError: the agent's networks are not finite.
        """
        if (state := self.state()) is None:
            return self.run.path
        if self.frames >= self.config.total_frames:
            self.digest = state_digest(state)
        return self.run.checkpoints.save(state, self.frames, best)

    def state(self) -> dict[str, Any] | None:
        """Returns everything that determines how the run continues, of all ranks; None on all but the first.

        Raises:
            RunError: the agent's networks are not finite.
        """
        self._call("on_checkpoint")
        worlds = self.collector.worlds() if remote(self.config) else [self.env.state_dict()]
        state: dict[str, Any] = {
            "frames": self.frames,
            "time": dict(self.clock.read()),
            "best_rank": self.best_rank,
            "agent": self.agent.state_dict(),
            "env": worlds[0],
            "curriculum": None,
            "rng": rng_state(),
            "config": self.raw_config,
        } | {hook.name: hook.state_dict() for hook in self.hooks if hook.name}
        if len(worlds) > 1:
            state["other_ranks_env"] = worlds[1:]
        if self.config.checkpoint.replay and self.config.data is None:
            state["replay"] = None if self.agent.replay is None else self.agent.replay.state_dict()
        return state if self.ranks.join_states(state) else None

    def restore(self) -> None:
        """Restores the newest intact checkpoint of the run; without one the run starts over, with the same result.

        Raises:
            ConfigError: no checkpoint is intact, one does not fit this agent or world, or the run is complete.
        """
        run = self.run if self.ranks.first else RunDirectory.open(str(self.config.resume))  # only the first rank writes
        state = unfinished(run, self.config.total_frames, self.last_frame)
        if state is None:
            self.begin()
            return
        self._check_config(state)
        state = self.ranks.own(state)
        opponents = self.raw_config["env"].get("opponents") or {}
        snapshots = Path(opponents.get("pool") or run.path / "opponents")
        if not self.ranks.first and snapshots.is_dir():
            shutil.copytree(snapshots, self.run.path / "opponents")
        try:
            self.frames, self.best_rank = state["frames"], list(state["best_rank"])
            self.clock.total |= state["time"]
            self.agent.load_state_dict(state["agent"])
            for hook in self.hooks:  # before the worlds, which continue within the curriculum's stage
                if hook.name in state:
                    hook.load_state_dict(state[hook.name])
            if remote(self.config):
                self._worlds = [state["env"], *state.get("other_ranks_env", [])]
            else:
                self.env.load_state_dict(state.get("env"))
            if not hooks_of(self.env).saves_episodes:
                self.agent.begin_episodes()
            if state.get("replay") is not None:
                self.agent.replay.load_state_dict(state["replay"])
            restore_rng(state["rng"])  # raises an error now if it cannot be restored
        except MISFITS as error:
            what = "the checkpoint does not fit this version of the program"
            raise ConfigError(f"resume: {what} ({brief(error)})") from None
        self._pending_rng = state["rng"]

    def _check_config(self, state: Mapping[str, Any]) -> None:
        """Compares the configuration with that of the checkpoint, except for keys that the command line names.

        Raises:
            ConfigError: a key has changed that may not change when resuming.
        """
        named = {word.lstrip("+~").partition("=")[0] for word in given_overrides()}
        changes: dict[bool, list[str]] = {True: [], False: []}
        for key, now, before in differing(self.raw_config, renewed(state["config"])):
            if key not in ("run_dir", "resume", "allow") and not any(f"{key}.".startswith(f"{one}.") for one in named):
                changes[is_resumable(key)].append(f"{key}={now!r:.60} (the checkpoint has {before!r:.60})")
        if changes[False]:
            raise ConfigError(
                f"resume: {self.config.resume}/config.yaml was changed: {', '.join(changes[False])}; restore it, or "
                "confirm a new value by writing it on the command line, too"
            )
        if changes[True] and self.ranks.first:
            print(f"changed since the checkpoint: {', '.join(changes[True])}")
