"""The training loop: collect, learn, log, evaluate, checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDictBase

from envs import world_hooks
from envs.compilation import telling
from envs.working import Follower, Work, following
from envs.world import hooks_of
from rlstack.agents import build_agent
from rlstack.agents.precision import decided
from rlstack.config import ConfigError
from rlstack.data.flatten import flatten_agents
from rlstack.data.ranks import Ranks
from rlstack.evaluation.evaluator import Evaluation, evaluate
from rlstack.play.self_play import SelfPlay
from rlstack.runs.checkpoint import state_digest
from rlstack.runs.loading import MISFITS, brief, initialise, unfinished
from rlstack.runs.run_directory import RunDirectory
from rlstack.runs.seeding import restore_rng, rng_state, seed_everything
from rlstack.runs.worlds import choose_device, size_key, world_options

from .acceleration import Acceleration
from .clock import Clock, Due
from .config import TrainConfig
from .curriculum.course import Curriculum
from .distributed import collected_by, learn_together, own_worlds
from .guard import Guard
from .hardware import Hardware
from .imitation import Imitation, outcome
from .interrupt import StopRequest
from .loggers import MetricLogger
from .monitor import Monitor, count_frames
from .progress import Progress
from .remote import build_worlds, remote, start_collector, worlds_here
from .self_check import check_batch


class _Left(KeyboardInterrupt):
    """Work was left between two of its steps, as Ctrl-C asked for."""


class Training:
    """One run, from its first or a later frame to its last.

    Args:
        config: what to do.
        run: where to leave it.
        raw_config: the same as plain values, for loggers.
        ranks: the processes that it runs in, None for this one alone.
    """

    def __init__(
        self, config: TrainConfig, run: RunDirectory, raw_config: dict[str, Any], ranks: Ranks | None = None
    ) -> None:
        self.device = choose_device(config.device)
        if config.agent.get("precision") == "auto":  # decided once, and kept wherever the run goes on
            precision = decided(config.agent, self.device)
            if ranks is not None:
                precision = "bfloat16" if ranks.of_first(precision == "bfloat16") else "float32"
            agent = {**config.agent, "precision": precision}
            config, raw_config = replace(config, agent=agent), {**raw_config, "agent": agent}
        self.config, self.run, self.raw_config, self.ranks = config, run, raw_config, ranks
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        seed_everything(config.seed)
        worlds_device = worlds_here(config, self.device)
        self.acceleration = Acceleration(config, self.device, worlds_device, shared=ranks is not None)
        self.env = build_worlds(config, worlds_device, ranks, self.acceleration.world)
        self.agent = build_agent(config.agent, self.env, config.total_frames, self.device)
        self.acceleration.apply(self.agent)
        self.curriculum = None if config.curriculum is None else Curriculum(config.curriculum, self.env)
        self.self_play = SelfPlay.of(self.env, run.path / "opponents", raw_config, self.agent)
        self.monitor = Monitor()
        self.last_frame = min(config.total_frames, config.until or config.total_frames)
        self.frames = 0
        self.best_rank: list[float] = []  # of the best evaluation, see Evaluation.rank
        self._time = {"time/seconds": 0.0, "time/cpu_seconds": 0.0}
        self._pending_rng: dict[str, Any] | None = None
        self._collector: Any = None
        self._worlds: list[dict[str, Any]] | None = None  # of workers, to go on from
        self.imitated, self.digest = False, ""
        self._imitation: Imitation | None = None
        self.tell: Callable[[str], None] = lambda message: None
        """Takes messages about the run for people elsewhere."""

    @cached_property
    def guard(self) -> Guard:
        """Over the agent as it is when the run begins or goes on."""
        c = self.config
        return Guard(c.guard, self.agent, self.run.path, c.seed, c.collector.count)

    def begin(self) -> None:
        """Gives the agent of a new run the networks that it is to start from, if there are any.

        Raises:
            ConfigError: no such checkpoint, or networks that do not fit.
        """
        if self.config.init is not None:
            initialise(self.agent, self.config.init)

    def prepare(self) -> None:
        """Finds whom to imitate, if the run begins with that; :meth:`execute` does it at the latest.

        Raises:
            ConfigError: there is no such expert, or it does not fit.
        """
        if self.config.imitation.wanted and not (self.frames or self.imitated or self._imitation):
            self._imitation = Imitation(self.config, self.agent)

    def execute(self) -> Evaluation:
        """Trains to ``until`` or the end; returns the last evaluation. Ctrl-C saves a checkpoint before it leaves."""
        self.prepare()
        c, clock, frames_before = self.config, Clock(self._time), self.frames
        collector = self._collector = start_collector(
            c, self.env, self.agent, self.curriculum, self.acceleration.world, self._worlds
        )
        if self._pending_rng is not None:  # only now: building a collector may draw random numbers
            restore_rng(self._pending_rng)
        evaluation = None
        hardware = Hardware(self.device, self.frames)
        with (
            _ending(collector),
            self._logging() as (logger, progress),
            StopRequest(insist=self.ranks is None) as stop,
            hardware,
        ):
            if self._imitation is not None:
                evaluation = self._imitate(self._imitation, logger, progress, clock, stop)
                if c.imitation.only:
                    return evaluation
            if self.ranks is not None:
                learn_together(self.ranks, self.agent)
            for batch in self._batches(collector):
                previous = self.frames
                if c.debug:
                    check_batch(batch, self.env, self.frames)
                if (metrics := self._learn(batch)) is None:
                    self.agent.begin_episodes()
                    collector.reset()
                else:
                    self.monitor.observe(batch, metrics)
                    self._follow_curriculum(batch, logger, progress)
                self._time = clock.read()
                if self.self_play is not None and (joined := self.self_play.observe(self.frames, self.agent)):
                    progress.event(joined)
                if progress.due:
                    progress.update(self.frames, {**self.monitor.metrics(), **self._updates()})
                due = Due(previous, self.frames, self.last_frame)
                if due(c.log_every):
                    rate = (self.frames - frames_before) / clock.elapsed
                    row = {**self.monitor.flush(), **self._updates()}
                    row |= self.curriculum.metrics() if self.curriculum is not None else {}
                    row |= self.self_play.metrics() if self.self_play is not None else {}
                    row |= self.agent.schedule_metrics()
                    replaced = collector.worker_failures if remote(c) else hooks_of(self.env).worker_failures
                    row |= hardware.read(self.frames, replaced) | self.guard.report()
                    logger.log(self.frames, {**row, **self._time, "time/frames_per_second": rate})
                    progress.update(self.frames, row)
                best = left = False
                if self.evaluation_due(previous):
                    try:  # several processes end it together, or not at all
                        with following(self._until(stop, progress) if self.ranks is None else progress.work):
                            evaluation, best = self._evaluate(logger, progress, clock)
                    except _Left:
                        left = True
                if best or (due(c.checkpoint.every) and not left):
                    progress.event(f"checkpoint {self.save(best).name}{' (best so far)' if best else ''}")
                if left or (self._any(stop.requested) and self.frames < self.last_frame):
                    how = "" if self.frames >= self.last_frame else f", go on with resume={self.run.path}"
                    progress.event(f"interrupted; saved {self.save().name}{how}")
                    raise KeyboardInterrupt
        assert evaluation is not None, "the last batch is always evaluated"
        return evaluation

    def _updates(self) -> dict[str, float]:
        return {"train/updates": float(self.agent.updates)}

    def _imitate(
        self, imitation: Imitation, logger: MetricLogger, progress: Progress, clock: Clock, stop: StopRequest
    ) -> Evaluation:
        """Behaviour cloning, and a checkpoint that says it is done; interrupted, it is done anew."""
        logger.truncate_after(-1)  # rows of an attempt that was interrupted
        progress.event(f"imitating {imitation}")

        stop.patient = False  # a step may take minutes where worlds are compiled first
        try:
            with following(self._until(stop, progress)):
                metrics = imitation.learn()
        except KeyboardInterrupt:
            progress.event(f"interrupted; resume={self.run.path} begins anew")
            raise
        stop.patient = True
        self.imitated, self._imitation, self._time = True, None, clock.read()
        logger.log(self.frames, {**metrics, **self._time})
        progress.event(f"imitation: {outcome(metrics)}")
        evaluation, best = self._evaluate(logger, progress, clock)
        progress.event(f"checkpoint {self.save(best).name}")
        return evaluation

    def _until(self, stop: StopRequest, progress: Progress) -> Follower:
        """Shows work, and ends it between two steps once that is asked for."""

        def follow(work: Work) -> None:
            progress.work(work)
            if stop.requested and not work.over:
                raise _Left

        return follow

    def _batches(self, collector: Any) -> Iterator[TensorDictBase]:
        """Batches until the last frame."""
        for batch in iter(collector) if self.ranks is None else collected_by(self.ranks, collector, self.env):
            yield batch
            if self.frames >= self.last_frame:
                return

    def _any(self, flag: bool) -> bool:
        """Whether it is so in one of the processes."""
        return flag if self.ranks is None else self.ranks.any(flag)

    def _learn(self, batch: TensorDictBase) -> dict[str, Any] | None:
        """What the agent tells of its learning; None where it must not learn from this batch."""
        sequences = flatten_agents(batch, self.agent.interface.group)
        self.frames += count_frames(batch, sequences, self.config.collector.count)
        return self.guard.learn(batch, sequences, self.frames)

    def _follow_curriculum(self, batch: TensorDictBase, logger: MetricLogger, progress: Progress) -> None:
        """Between two batches, so that a checkpoint holds the stage that the next one begins in."""
        if self.curriculum is None:
            return
        self.curriculum.observe(batch)
        if self.curriculum.check(self.frames):
            logger.log(self.frames, self.curriculum.metrics())
            progress.event(f"curriculum at {self.frames:,} frames: {self.curriculum}")

    def evaluation_due(self, previous: int) -> bool:
        """Whether to evaluate now, after a batch that began at ``previous`` frames; always at the end of the run."""
        return Due(previous, self.frames, self.last_frame)(self.config.eval.every)

    def evaluate(self) -> Evaluation:
        """Judges the greedy policy on the run's fixed episodes. Another way to judge: a subclass overrides this."""
        c = self.config
        return evaluate(
            self.agent.policy(explore=False),
            c.env["name"],
            world_options(c.env),
            episodes=c.eval.episodes,
            seed=c.eval.seed,
            device=self.device,
            max_steps=c.eval.max_steps,
        )

    def _evaluate(self, logger: MetricLogger, progress: Progress, clock: Clock) -> tuple[Evaluation, bool]:
        """Evaluates and logs; also says whether it is the best so far."""
        evaluation = self.evaluate()
        summary = evaluation.summary()
        evaluation.save(self.run.evaluations / f"{self.frames:012d}.json")
        rank = evaluation.rank(world_hooks(self.config.env["name"]).tie_breaker)
        if self.ranks is not None:  # whether to save must not depend on what two devices round differently
            rank = [self.ranks.of_first(number) for number in rank]
        best = rank > self.best_rank and rank[0] > -math.inf
        self.best_rank = max(rank, self.best_rank)
        self._time = clock.read()
        logger.log(self.frames, {**summary, **self._time})
        progress.event(f"evaluation at {self.frames:,} frames: {evaluation.in_words()}")
        if best:
            self.tell(f"new best at {self.frames:,} frames: {evaluation.in_words()}")
        return evaluation, best

    @contextmanager
    def _logging(self) -> Iterator[tuple[MetricLogger, Progress]]:
        with MetricLogger(self.run.path, self.config.logger, self.raw_config) as logger:
            logger.truncate_after(self.frames)  # rows of a future that a resumed run has left behind
            progress = Progress(self.last_frame, start_frames=self.frames, start_updates=self.agent.updates)
            for note in self.acceleration.notes:
                progress.event(note)
            try:
                with telling(progress.event), following(progress.work):
                    yield logger, progress
            finally:
                progress.close()

    # -- checkpoint ----------------------------------------------------------------------------------------------

    def save(self, best: bool = False) -> Any:
        """Writes a checkpoint of everything that decides how the run goes on; returns its path.

        Raises:
            RunError: the agent's networks are not finite.
        """
        self.guard.check()
        worlds = self._collector.worlds() if remote(self.config) else [self.env.state_dict()]
        if self.ranks is not None:
            worlds = self.ranks.states(worlds[0])
            if not self.ranks.first:
                return self.run.path
        state: dict[str, Any] = {
            "frames": self.frames,
            "time": self._time,
            "best_rank": self.best_rank,
            "imitated": self.imitated,
            "agent": self.agent.state_dict(),
            "env": worlds[0],
            "monitor": self.monitor.state_dict(),
            "curriculum": None if self.curriculum is None else self.curriculum.state_dict(),
            "rng": rng_state(),
            "config": self.raw_config,
        }
        if len(worlds) > 1:
            state["other_ranks_env"] = worlds[1:]
        if self.config.checkpoint.replay:
            state["replay"] = self.agent.replay_state()
        if self.frames >= self.config.total_frames:
            self.digest = state_digest(state)
        return self.run.checkpoints.save(state, self.frames, best)

    def restore(self) -> None:
        """Goes back to the newest sound checkpoint of the run; a run without one starts over, which is the same run.

        Raises:
            ConfigError: no checkpoint is sound, one does not fit this agent or world, or the run is complete.
        """
        run = self.run if self.ranks is None else RunDirectory.open(str(self.config.resume))  # the first alone writes
        state = unfinished(run.checkpoints, self.config.total_frames, self.last_frame)
        if state is None:
            self.begin()
            return
        self._check_size(state)
        worlds = [state.get("env"), *state.get("other_ranks_env", [])]
        world = None if remote(self.config) else own_worlds(worlds, self.ranks)
        self.imitated = state.get("imitated", False)
        if self.imitated and self.config.imitation.only:
            raise ConfigError("resume: the run is complete; imitation.only=false goes on with reinforcement learning")
        try:
            self.frames, self._time, self.best_rank = state["frames"], dict(state["time"]), list(state["best_rank"])
            self.agent.load_state_dict(state["agent"])
            if self.curriculum is not None:  # before the worlds, which go on within its stage
                self.curriculum.load_state_dict(state["curriculum"])
            if world is None:
                self._worlds = worlds
            else:
                self.env.load_state_dict(world)
            if not hooks_of(self.env).saves_episodes:
                self.agent.begin_episodes()
            self.monitor.load_state_dict(state["monitor"])
            if state.get("replay") is not None:
                self.agent.load_replay_state(state["replay"])
            restore_rng(state["rng"])  # to see that it can be
        except MISFITS as error:
            what = "the checkpoint does not fit this version of the program"
            raise ConfigError(f"resume: {what} ({brief(error)})") from None
        self._pending_rng = state["rng"]

    def _check_size(self, state: dict[str, Any]) -> None:
        """Raises a :class:`ConfigError` where a checkpoint is of more or fewer worlds than the configuration says."""
        env, stored = self.config.env, state.get("config")
        before = stored.get("env") if isinstance(stored, dict) else None
        key = size_key(env)
        if isinstance(before, dict) and key is not None and before.get(key, env[key]) != env[key]:
            raise ConfigError(
                f"resume: env.{key} is {env[key]} in {self.config.resume}/config.yaml, the checkpoint is of "
                f"{before[key]}; it cannot change"
            )


@contextmanager
def _ending(collector: Any) -> Iterator[None]:
    try:
        yield
    finally:
        collector.shutdown(close_env=False)
