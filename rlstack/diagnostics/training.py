"""Times the parts of an iteration while the training loop runs, profiles its updates, and watches a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import pkgutil
import re
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch.profiler import ProfilerActivity, profile
from torchrl.envs import EnvBase

from rlstack.agents import Agent
from rlstack.agents.off_policy import OffPolicy
from rlstack.agents.on_policy import FromRollouts
from rlstack.data.collector import make_collector
from rlstack.data.graphs import GRAPHS
from rlstack.envs.foundation.packages import needs
from rlstack.envs.registry import world_hooks
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.hooks import Hook
from rlstack.training.loggers import MetricLogger
from rlstack.training.loop import Training
from rlstack.training.monitor import GpuWatch, Monitor
from rlstack.training.progress import Progress
from rlstack.training.recorded import OfflineData

from .measuring import MeasuredTraining, over_threads, repeat

OTHER = "other"
PARTS = {
    "simulate": "steps of the worlds",
    "observe": "making observations of their state",
    "reset": "new episodes",
    "opponents": "the other side's players",
    "policy": "choosing actions",
    "store": "stacking steps, folding agents, replay buffer",
    "learn": "advantages and updates",
    "log": "statistics, metrics, progress",
    OTHER: "everything else",
}
"""The parts of an iteration in order, with the functions that belong to each."""
_UPDATE_PARTS = {
    "backward": ("autograd::engine::evaluate_function",),
    "optimiser": ("Optimizer.step#", "aten::_fused_"),
}
"""The parts of an update that torch's profiler tells apart, with the beginnings of their events' names."""
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
_WORLD = {
    **{"_advance": "simulate", "_step": "simulate", "_take": "simulate"},
    **{"_restart": "reset", "_reset": "reset", "_restart_rows": "reset"},
}
_PATIENCE = 60.0  # s to wait for the first update
_NEVER = 2**62  # frames
_FACTORS = (0.25, 1, 4, 16)  # multiples of the batch size


class Sections(contextlib.ExitStack):
    """Measures seconds by section; functions are assigned to sections.

    A section's time excludes that of sections inside it; the time outside all sections is ``other``. Leaving the
    context restores the functions.

    Args:
        clock: function that returns seconds; one that waits for a GPU waits at every border of a section.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock, self._last = clock, 0.0
        self._stack, self._closed, self._running = [OTHER], False, False
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.callback(self.end)

    def begin(self) -> None:
        """Starts counting from zero."""
        self.seconds = defaultdict(float)
        self._running, self._last = True, self._clock()

    def end(self) -> dict[str, float]:
        """Stops counting; returns seconds by section."""
        self._account()
        self._running = False
        return dict(self.seconds)

    def watch(self, owner: Any, attribute: str, section: str, whole: bool = False) -> None:
        """Assigns ``owner.attribute``, a function of an object, class or module, to a section.

        Args:
            whole: whether sections inside it count towards this one.
        """
        original = getattr(owner, attribute)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._running or self._closed:
                return original(*args, **kwargs)
            self._account()
            self._stack.append(section)
            self._closed = whole
            try:
                return original(*args, **kwargs)
            finally:
                self._closed = False
                self._account()
                self._stack.pop()

        self.enter_context(mock.patch.object(owner, attribute, timed))

    def watch_named(self, name: str, section: str, whole: bool = False) -> None:
        """Assigns ``package.module:function`` or ``package.module:Class.method`` to a section."""
        owner, attribute = re.split(r"[:.](?=\w+$)", name)
        self.watch(pkgutil.resolve_name(owner), attribute, section, whole)

    def _account(self) -> None:
        if self._running:
            now = self._clock()
            self.seconds[self._stack[-1]] += now - self._last
            self._last = now


class Iteration(NamedTuple):
    """Seconds of an iteration, those of its learning and of its sections, and its frames and updates."""

    seconds: float
    learning: float
    frames: int
    updates: int
    parts: Mapping[str, float]


class _TimeIsUp(Exception):
    """Ends the loop."""


class IterationTimer(Hook):
    """Times the iterations of a run without evaluations, and ends the run after some seconds.

    Args:
        measured: the training.
        sections: sections that measure the run, or None.
        profiler: profiles the learning of one more iteration at the end; or None.

    Attributes:
        iterations: iterations so far, from the first with an update; the last one is profiled, if any is.
        sequences: last batch that the agent learned from.
    """

    def __init__(self, measured: MeasuredTraining, sections: Sections | None, profiler: profile | None = None) -> None:
        self._clock, self._seconds = measured.clock, measured.seconds
        self._sections, self._profiler = sections, profiler
        self._spent, self._learning, self._over = 0.0, 0.0, False
        self.iterations: list[Iteration] = []
        self.sequences: TensorDictBase

    def on_start(self, training: Training) -> None:
        self._first = self._clock()
        self._begin(training)

    def _begin(self, training: Training) -> None:
        if self._sections is not None:
            self._sections.begin()
        self._before = self._clock(), training.frames, training.agent.updates

    def on_collected(self, training: Training, batch: TensorDictBase, sequences: TensorDictBase) -> None:
        self.sequences = sequences
        if self._over and self._profiler is not None:
            self._profiler.start()
        self._began_to_learn = self._clock()

    def on_batch(self, training: Training, batch: TensorDictBase, metrics: Mapping[str, Any]) -> None:
        self._learning = self._clock() - self._began_to_learn
        if self._over and self._profiler is not None:
            self._profiler.stop()

    def evaluation_due(self, training: Training) -> bool:
        return False

    def on_iteration(self, training: Training) -> None:
        parts = {} if self._sections is None else self._sections.end()
        now = self._clock()
        took, frames, updates = (a - b for a, b in zip((now, training.frames, training.agent.updates), self._before))
        is_late = now - self._first > _PATIENCE + 20 * self._seconds
        if training.agent.updates or is_late:
            self.iterations.append(Iteration(took, self._learning, int(frames), int(updates), parts))
            # The first iteration warms up: it counts only if a second would take too long.
            self._spent += took if len(self.iterations) > 1 or took >= self._seconds else 0.0
            if self._over and (updates or is_late):
                raise _TimeIsUp
            self._over = is_late or self._spent >= self._seconds
            if self._over and self._profiler is None:
                raise _TimeIsUp
        self._begin(training)


class TimedRun(NamedTuple):
    """A training whose loop has run for some seconds."""

    agent: Agent
    env: EnvBase
    iterations: list[Iteration]
    sequences: TensorDictBase

    def update_of(self, factor: float) -> tuple[int, Callable[[], Any]] | None:
        """Returns a batch size, ``factor`` times the usual, and an update with it; None if the agent has no choice."""
        agent: Any = self.agent
        if isinstance(agent, FromRollouts):
            with torch.no_grad():
                batch = agent.rollout(self.sequences)
            usual, row_size = len(batch), agent.row_size
            if hasattr(agent.config, "minibatch_size"):
                usual = min(agent.config.minibatch_size // row_size, usual)
            elif factor != 1:
                return None

            def update(part: TensorDictBase) -> Any:
                if hasattr(agent, "step"):  # around a loss of TorchRL, with one optimiser or several
                    return agent.step(part)
                return agent.optimizer.minimize(agent.objective, agent.for_step(part))

        elif isinstance(agent, OffPolicy):
            batch, update = agent.prepared(agent.sample()), agent.update  # type: ignore[assignment]
            recurrent = getattr(agent.config, "recurrent", None)
            usual, row_size = len(batch), 1 if recurrent is None else recurrent.sequence_length
        else:
            return None
        size = int(factor * usual)
        if size < min(2, usual):
            return None
        part = batch[torch.arange(size, device=batch.device) % len(batch)]
        return size * row_size, lambda: update(part)


@contextlib.contextmanager
def timed_run(
    measured: MeasuredTraining,
    sections: Sections | None = None,
    profiler: profile | None = None,
    gpu: GpuWatch | None = None,
) -> Iterator[TimedRun]:
    """A context that runs the loop for some seconds from the middle of its schedules, in a temporary folder.

    Args:
        sections: sections that measure the run, or None.
        profiler: see :class:`IterationTimer`.
        gpu: watches the GPU while the loop runs, or None.
    """
    config = measured.config
    config = dataclasses.replace(
        config,
        logger=config.logger.without_services(),
        imitation=dataclasses.replace(config.imitation, expert=None, episodes=None, only=False, replay=False),
        checkpoint=dataclasses.replace(config.checkpoint, every=_NEVER),
        total_frames=_NEVER,
    )
    timer = IterationTimer(measured, sections, profiler)
    hooks: list[Hook] = [timer] if config.data is None else [OfflineData(config), timer]
    with (
        tempfile.TemporaryDirectory(prefix="rlstack-diagnose-", ignore_cleanup_errors=True) as folder,
        contextlib.closing(Training(config, RunDirectory(Path(folder)), measured.raw, hooks=hooks)) as training,
    ):
        # Schedules keep the length of the original run; only its end moves.
        training.agent, training.frames = measured.agent(training.env), measured.halfway
        if measured.device.type in GRAPHS:
            training.acceleration.apply(training.agent)
        if sections is not None:
            watch_iteration(sections, training)
        with contextlib.ExitStack() as stack:
            if gpu is not None:
                gpu.start()
                stack.callback(gpu.stop)
            with contextlib.suppress(_TimeIsUp), contextlib.redirect_stdout(io.StringIO()):
                training.execute()
        yield TimedRun(training.agent, training.env, timer.iterations, timer.sequences)


# -- an iteration ------------------------------------------------------------------------------------------------


def measure_iterations(measured: MeasuredTraining) -> dict[str, Any]:
    """Measures frames per second of the training loop without evaluations, and seconds by part of an iteration."""
    env = measured.config.env  # the parts of a compiled world cannot be timed
    observing = () if env.get("compiled") else world_hooks(env["name"]).observing
    with Sections(measured.clock) as sections:
        for name in observing:  # before the worlds are built, since they may store the functions
            sections.watch_named(name, "observe")
        with timed_run(measured, sections) as run:
            pass
    return {**summary(run.iterations), "observing_apart": bool(observing)}


def watch_iteration(sections: Sections, training: Training) -> None:
    """Assigns the functions of a training to sections."""
    env: Any = training.env
    for name, section in _WORLD.items():
        if hasattr(type(env), name):
            sections.watch(env, name, section)
    with contextlib.suppress(ModuleNotFoundError):  # the room may have been removed
        sections.watch_named("rlstack.play.players:Seats.act", "opponents", whole=True)
    agent: Any = training.agent
    make = agent.policy

    def policy(explore: bool) -> TensorDictModuleBase:
        made = make(explore)
        for name in ("forward", "entries"):
            if hasattr(type(made), name):
                sections.watch(made, name, "policy", whole=True)
        return made

    vars(agent)["policy"] = policy
    sections.watch(agent, "learn", "learn")
    if hasattr(agent, "extend"):
        sections.watch(agent, "extend", "store", whole=True)
    sections.watch_named("rlstack.training.loop:flatten_agents", "store")
    sections.watch_named("rlstack.data.collector:stack_steps", "store", whole=True)
    sections.watch_named("rlstack.data.collector:LeanCollector.rollout", "store")
    for name in ("observe", "metrics"):
        sections.watch(training.hook(Monitor), name, "log", whole=True)
    sections.watch(MetricLogger, "log", "log", whole=True)
    sections.watch(Progress, "update", "log", whole=True)


def summary(iterations: Sequence[Iteration]) -> dict[str, Any]:
    """Returns means of seconds, frames and parts over iterations, without the first if there is another."""
    counted = iterations[1:] or iterations
    count, seconds = len(counted), sum(iteration.seconds for iteration in counted)
    frames = sum(iteration.frames for iteration in counted)
    parts = {name: sum(iteration.parts.get(name, 0.0) for iteration in counted) / count for name in PARTS}
    return {
        "iterations": count,
        "warmed_up": len(iterations) > 1,
        "seconds_per_iteration": seconds / count,
        "frames_per_iteration": frames / count,
        "frames_per_second": frames / seconds,
        "parts_seconds": {name: took for name, took in parts.items() if took},
    }


# -- an update ---------------------------------------------------------------------------------------------------


def measure_learning(measured: MeasuredTraining) -> dict[str, Any]:
    """Measures an update and its parts in milliseconds, updates and samples per second, and a sweep of batch sizes."""
    on_gpu = measured.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    profiler = profile(activities=activities, with_flops=True)
    with timed_run(measured, profiler=profiler) as run:
        pass
    *timed, profiled = run.iterations
    counted = timed[1:] or timed
    took = 1e3 * sum(iteration.learning for iteration in counted) / sum(iteration.updates for iteration in counted)
    usual = run.update_of(1)
    batch = usual[0] if usual else run.sequences.numel()
    events = profiler.key_averages()

    def share(names: tuple[str, ...], whole: bool) -> float:
        """Returns the share of the learning that events take, with those inside them or alone."""
        kind = f"{'' if whole else 'self_'}{'device' if on_gpu else 'cpu'}_time_total"
        spent = sum(getattr(event, kind) for event in events if event.key.startswith(names))
        return min(1e-6 * float(spent) / profiled.learning, 1.0)

    parts = {name: took * share(beginnings, whole=True) for name, beginnings in _UPDATE_PARTS.items()}
    mflop = 1e-6 * sum(event.flops for event in events if event.key in _PRODUCTS) / max(profiled.updates, 1)
    products = share(_PRODUCTS, whole=False)
    cost = {"mflop": mflop, "gflops": mflop / (took * products) if products else 0.0, "ms": took * products}
    return {
        "updates": sum(iteration.updates for iteration in counted),
        "batch": batch,
        "ms_per_update": took,
        "updates_per_second": 1e3 / took,
        "samples_per_second": 1e3 * batch / took,
        "parts_ms": {"sampling, forward, loss, ...": took - sum(parts.values()), **parts},
        "matrix_products": {**cost, "share": products} if products else None,
        "threads": [] if usual is None else over_threads(measured, usual[1]),
        "sweep": _sweep(measured, run),
    }


def _sweep(measured: MeasuredTraining, run: TimedRun) -> list[dict[str, Any]]:
    points = []
    for factor in _FACTORS:
        measurable = run.update_of(factor)
        if measurable is None:
            continue
        samples, update = measurable
        durations = repeat(update, measured.seconds / len(_FACTORS), measured.clock)
        took = sum(durations) / len(durations)
        points.append({"batch": samples, "ms_per_update": 1e3 * took, "samples_per_second": samples / took})
        if factor >= 1 and 4 * took > measured.seconds:
            break
    return points


_STEPS, _UPDATES = 8, 8  # numbers that are profiled
_PLACES = 5
_KINDS = {
    "copies_to_gpu": re.compile(r"^Memcpy HtoD"),
    "copies_from_gpu": re.compile(r"^Memcpy DtoH"),
    "synchronisations": re.compile(r"^cuda(Stream|Device|Event)Synchronize$"),
}
_ROOT = Path(__file__).resolve().parents[2]


def measure_gpu(measured: MeasuredTraining) -> dict[str, Any]:
    """Measures utilisation and memory of the training loop, and copies, waits and kernels of a step and an update."""
    if measured.device.type != "cuda":
        there = torch.cuda.is_available()
        why = "a GPU is there, use it with device=cuda" if there else "torch sees no GPU here"
        return {"note": f"the device is {measured.device}, there is nothing to measure ({why})", "available": there}
    torch.cuda.reset_peak_memory_stats(measured.device)
    watch = GpuWatch(measured.device, every=0.1)
    with timed_run(measured, gpu=watch) as run:
        measurements = {
            **watch.read(),
            "gpu_peak_memory_mb": torch.cuda.max_memory_allocated(measured.device) / 1e6,
            "frames_per_second": summary(run.iterations)["frames_per_second"],
        }
        if not watch.sees_utilisation:
            measurements["note"] = f"utilisation {needs('gpu')}"
        collector = make_collector(run.env, run.agent.policy(explore=True), _STEPS)
        batches = iter(collector)
        next(batches)
        try:
            measurements["step"] = _inspected(measured, lambda: next(batches), _STEPS)
        finally:
            collector.shutdown(close_env=False)
        if (update := run.update_of(1)) is not None:
            measurements["update"] = _inspected(measured, lambda: [update[1]() for _ in range(_UPDATES)], _UPDATES)
    return measurements


def _inspected(measured: MeasuredTraining, work: Callable[[], Any], times: int) -> dict[str, Any]:
    """Counts copies, waits and kernels of ``work``, divided by ``times``."""
    begin = measured.clock()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work()
        seconds = measured.clock() - begin
    counts = count_events((event.name, event.device_type.name == "CUDA") for event in profiler.events())
    with waits() as places:
        work()
    return {
        **{name: count / times for name, count in counts.items()},
        "kernels_per_second": counts["kernels"] / seconds,
        "waits_at": {place: count / times for place, count in places.most_common(_PLACES)},
    }


def count_events(events: Iterable[tuple[str, bool]]) -> dict[str, int]:
    """Counts copies, waits and kernels among profiled events, given by name and whether they ran on the GPU."""
    counts = Counter[str]()
    for name, on_gpu in events:
        kind = next((kind for kind, pattern in _KINDS.items() if pattern.match(name)), None)
        if kind is not None:
            counts[kind] += 1
        elif on_gpu and not name.startswith(("Memcpy", "Memset")):
            counts["kernels"] += 1
    return {name: counts[name] for name in (*_KINDS, "kernels")}


@contextlib.contextmanager
def waits() -> Iterator[Counter[str]]:
    """A context that counts, by line of code, where the program waits for the GPU."""
    places = Counter[str]()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode(before)
            places.update(places_of(caught))


def places_of(caught: Iterable[warnings.WarningMessage]) -> Counter[str]:
    """Counts the warnings about a wait by ``file:line``."""
    places = Counter[str]()
    for entry in caught:
        if "called a synchronizing" in str(entry.message):  # not torch's note that this mode is a prototype
            path = Path(entry.filename).resolve()
            inside = path.is_relative_to(_ROOT)
            name = str(path.relative_to(_ROOT)) if inside else f"{path.parent.name}/{path.name}"
            places[f"{name}:{entry.lineno}"] += 1
    return places
