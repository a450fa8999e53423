"""Measures speeds on a device by wall clock after a warm-up, and profiles them: kernels, and the time they take."""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, redirect_stdout, suppress
from io import StringIO
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch.profiler import ProfilerActivity, profile
from torchrl.data import Bounded, Composite, Unbounded

from experiments.marinenav.benchmark import SEED
from experiments.marinenav.benchmark import frozen as frozen_episodes
from rlstack import envs
from rlstack.agents import make_agent
from rlstack.config import build
from rlstack.data.collector import make_collector
from rlstack.diagnostics.measuring import DeviceClock
from rlstack.evaluation.evaluator import EpisodeSet, Evaluation, evaluate
from rlstack.runs.run_directory import RunDirectory
from rlstack.runs.worlds import world_options
from rlstack.training import seeds
from rlstack.training.acceleration import missing_compiler, set_determinism
from rlstack.training.config import TrainConfig
from rlstack.training.hooks import Hook
from rlstack.training.loop import Training

from .correctness import configured, quicken
from .runner import Found, LeftOut, Mismatch, Setting

_STEPS = 16  # steps of worlds in a call
_UPDATES = 32  # updates in a call
_WARM_UP = (6, 10.0)  # iterations, and seconds after the first, in which functions are recorded
_LONG = 3.0  # s of an iteration, above which it is not profiled
_NEVER = 2**52  # frames
_COMPILED = Found("compiled")
_TINY = {"steps_per_batch": 8, "learning_starts": 200, "minibatch_size": 64, "batch_size": 64, "frames_per_update": 100}

Events = list[tuple[str, float]]
"""Names and seconds of kernels, copies and fills on a GPU; on a CPU, where this is only rehearsed, of operations."""


class Profile:
    """Records what a device computes between :meth:`begin` and :meth:`end`."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu, self._clock = device.type == "cuda", DeviceClock("wall", device)
        self._profile = profile(activities=[ProfilerActivity.CUDA if self._on_gpu else ProfilerActivity.CPU])

    def begin(self) -> Profile:
        """Waits for the device, and begins."""
        self._clock()
        self._profile.start()
        return self

    def end(self) -> Events:
        """Waits for the device, and returns what it has computed since then."""
        self._clock()
        self._profile.stop()
        results = self._profile.profiler
        assert results is not None and results.kineto_results is not None
        return [
            (event.name(), event.duration_ns() / 1e9)
            for event in results.kineto_results.events()  # a hundred times as fast as ``profile.events()``
            if event.device_type().name == ("CUDA" if self._on_gpu else "CPU") and not event.is_user_annotation()
        ]


def profiled(work: Callable[[], Any], device: torch.device) -> Events:
    """Returns what a device computes for ``work``."""
    started = Profile(device).begin()
    work()
    return started.end()


def summed(events: Events, wall: float, device: torch.device) -> dict[str, Any]:
    """Returns the ``longest`` five by their total time, and what share of ``wall`` seconds a GPU is ``busy``."""
    seconds, calls = Counter[str](), Counter(name for name, _ in events)
    for name, took in events:
        seconds[name] += took  # type: ignore[assignment]
    longest = [{"name": name, "calls": calls[name], "ms": 1e3 * took} for name, took in seconds.most_common(5)]
    busy = {"busy": seconds.total() / wall} if device.type == "cuda" else {}  # on a CPU, operations contain others
    return {**busy, "longest": longest}


def rates(work: Callable[[], float], clock: Callable[[], float], seconds: float, repeats: int) -> list[float]:
    """Measures the rate of ``work`` per second: one number for each repetition of ``seconds``.

    Args:
        work: function that does some work and returns its amount.
        clock: clock that waits for the device.
    """
    work()
    begin = clock()
    work()
    times = max(1, round(seconds / max(clock() - begin, 1e-6)))  # calls in a repetition, without waits in between
    found = []
    for _ in range(repeats):
        begin, done = clock(), 0.0
        for _ in range(times):
            done += work()
        found.append(done / (clock() - begin))
    return found


def told(found: list[float], unit: str, **more: Any) -> Found:
    """Returns median and spread of rates, with what was profiled."""
    middle, low, high = statistics.median(found), min(found), max(found)
    line = f"{middle:,.0f} {unit} ({low:,.0f} to {high:,.0f}, {len(found)} repetitions)"
    for name, what in (("kernels_per_step", "a step"), ("kernels_per_update", "an update")):
        line += f", {more[name]:,.0f} kernels {what}" if more.get(name) else ""
    line += f", busy {more['busy']:.0%}" if "busy" in more else ""
    figures = {"unit": unit, "median": middle, "least": low, "most": high, "repetitions": len(found)}
    return Found(line, figures | more)


def _pace(setting: Setting) -> tuple[float, int]:
    """Returns seconds of a repetition and the number of repetitions."""
    return (0.05, 3) if setting.quick else (0.6, 5)


def _require_compiler(setting: Setting, compiles: bool) -> None:
    if compiles and setting.quick:
        raise LeftOut("quick=true: compiling takes a minute")
    if compiles and (absent := missing_compiler(torch.device(setting.device))):
        raise LeftOut(absent)


class Uniform(TensorDictModuleBase):
    """Draws actions from [-1, 1]; TorchRL's ``RandomPolicy`` reads bounds on the host, which cannot be recorded."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.in_keys, self.out_keys, self._device = [], list(env.action_keys), env.device
        self._shapes = {key: env.full_action_spec[key].shape for key in env.action_keys}

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        for key, shape in self._shapes.items():
            tensordict.set(key, 2 * torch.rand(shape, device=self._device) - 1)
        return tensordict


def stepping(
    setting: Setting,
    name: str,
    options: Mapping[str, Any],
    num_worlds: int,
    unit: str,
    each: int,
    compiles: bool,
    once: bool = False,
) -> Found:
    """Measures the collection of steps of worlds alone under random actions, including resets.

    Args:
        each: number of units in a step of a world.
        once: whether to compile only, which keeps the code for a later process; so in the functions below.
    """
    _require_compiler(setting, compiles)
    count, device = 16 if setting.quick else num_worlds, torch.device(setting.device)
    torch.manual_seed(0)
    env = envs.make(name, num_worlds=count, device=setting.device, seed=0, compiled=compiles, **options)
    collector: Any = make_collector(env, Uniform(env), _STEPS)
    collector.lends = collector.records = True
    batches = iter(collector)
    for _ in range(1 if setting.quick or once else _WARM_UP[0]):
        next(batches)
    if once:
        return _COMPILED

    def advance() -> float:
        next(batches)
        return float(_STEPS * count * each)

    found = rates(advance, DeviceClock("wall", device), *_pace(setting))
    events = profiled(lambda: next(batches), device)
    wall = _STEPS * count * each / statistics.median(found)
    return told(found, unit, kernels_per_step=len(events) / _STEPS, **summed(events, wall, device), num_worlds=count)


# -- training ------------------------------------------------------------------------------------------------------


def training(setting: Setting, overrides: list[str], compiles: bool, once: bool = False) -> Found:
    """Measures the training loop in frames per second from the middle of its schedules, without evaluations."""
    _require_compiler(setting, compiles)
    device = torch.device(setting.device)
    raw = configured(*overrides, f"compile={compiles}", f"device={device}", small=_TINY if setting.quick else None)
    if setting.quick:
        raw["env"]["num_worlds"] = 8
    raw["checkpoint"]["every"] = _NEVER
    meter = Meter(device, _pace(setting)[0] * 5, 0 if once else 1 if setting.quick else _WARM_UP[0])
    _execute(raw, meter)
    if once:
        return _COMPILED
    found = _merged(meter.rates)
    sizes = {"num_worlds": raw["env"]["num_worlds"], "precision": raw["agent"]["precision"]}
    return told(found, "frames/s", **meter.kernels(statistics.median(found)), **sizes)


def solving(setting: Setting, overrides: list[str], metric: str, wanted: float, frozen: bool = False) -> Found:
    """Measures the time that a shipped recipe takes from its first batch to an evaluation that solves its world.

    Args:
        metric, wanted: a metric of evaluations, and its value in a world that is solved.
        frozen: whether the last agent also plays MarineNav's frozen episodes, which must reach that value.
    """
    device = torch.device(setting.device)
    raw = configured(*overrides, f"device={device}")
    if setting.quick:
        raw |= {"total_frames": 40_000}
        raw["eval"]["episodes"] = 2
        raw["env"]["num_worlds"] = min(raw["env"]["num_worlds"], 64)
    watch = StopWatch(device, metric, frozen_episodes() if frozen and not setting.quick else None)
    _execute(raw, watch, whole=True)
    learnt, judged = watch.learnt - watch.first, watch.judged - watch.first
    name, digits = metric.partition("/")[2], 0 if wanted > 1 else 3
    line = (
        f"{name} {watch.score:.{digits}f} {judged:.2f} s after the first batch, {watch.spent:.2f} s of them evaluation"
    )
    line += "" if watch.frozen is None else f", {watch.frozen:.3f} over the frozen episodes"
    least = min(watch.score, watch.score if watch.frozen is None else watch.frozen)
    if least < wanted and not setting.quick:
        raise Mismatch(f"{line}; solved is {wanted}")
    figures = {"unit": "s", "median": judged, "least": judged, "most": judged, "repetitions": 1, name: watch.score}
    return Found(line, figures | {"frozen": watch.frozen, "learning_s": learnt, "frames": raw["total_frames"]})


def many_seeds(setting: Setting, overrides: list[str], count: int = 8) -> Found:
    """Measures the time of an iteration of several runs in one process, over that of one run."""
    device = torch.device(setting.device)
    raw = configured(*overrides, f"device={device}", "compile=false", small=_TINY if setting.quick else None)
    if setting.quick:
        raw["env"]["num_worlds"] = 8
    iterations = 20 if setting.quick else 220
    raw["total_frames"] = iterations * raw["env"]["num_worlds"] * raw["collector"]["steps_per_batch"]
    raw["log_every"] = raw["checkpoint"]["every"] = _NEVER
    raw["eval"] |= {"every": _NEVER, "episodes": 1, "max_steps": 8}
    seconds = []
    for runs in (1, count):
        lap = Lap(device, _WARM_UP[0], iterations - 1)
        with tempfile.TemporaryDirectory(prefix="rlstack-gpu-") as folder, redirect_stdout(StringIO()):
            seeds.train(seeds.seeded({**raw, "seeds": runs, "run_dir": folder}), [lap])
        seconds.append(lap.seconds)
    one, all_runs = seconds
    line = f"an iteration takes {1e3 * one:.1f} ms for one run, {1e3 * all_runs:.1f} ms for {count}"
    cost = all_runs / one
    figures = {"unit": "times", "median": cost, "least": cost, "most": cost, "repetitions": 1}
    return Found(f"{line}, {cost:.2f} times as long", figures | {"one_ms": 1e3 * one, "all_ms": 1e3 * all_runs})


class Lap(Hook):
    """Measures the time between two iterations of the first of several runs, in ``seconds`` an iteration."""

    def __init__(self, device: torch.device, first: int, last: int) -> None:
        self._clock, self._first, self._last = DeviceClock("wall", device), first, last
        self._run: Any = None
        self._count, self._begin, self.seconds = 0, 0.0, 0.0

    def on_start(self, training: Training) -> None:
        self._run = self._run or training

    def on_iteration(self, training: Training) -> None:
        if training is not self._run:
            return
        self._count += 1
        if self._count == self._first:
            self._begin = self._clock()
        elif self._count == self._last:
            self.seconds = (self._clock() - self._begin) / (self._last - self._first)


def _execute(raw: dict[str, Any], hook: Hook, whole: bool = False) -> None:
    """Runs a training in a temporary folder: the whole one, or from the middle until the hook ends it."""
    with (
        tempfile.TemporaryDirectory(prefix="rlstack-gpu-", ignore_cleanup_errors=True) as folder,
        closing(Training(build(TrainConfig, raw), RunDirectory(folder), raw, hooks=[hook])) as trained,
        redirect_stdout(StringIO()),
        suppress(_Over),
    ):
        if not whole:
            late = max(int(raw["agent"].get(name) or 0) for name in ("learning_starts", "random_frames"))
            trained.frames, trained.last_frame = max(trained.config.total_frames // 2, late), _NEVER
            trained.agent.set_frames(trained.frames)
        trained.execute()


class _Over(Exception):
    """Ends a run."""


class Meter(Hook):
    """Measures iterations of a run for some seconds after a warm-up, profiles another one, and ends the run.

    Without a warm-up it ends the run after the first iteration.

    Attributes:
        rates: frames per second of each iteration.
    """

    def __init__(self, device: torch.device, seconds: float, warm_up: int) -> None:
        self._device, self._seconds, self._warm_up = device, seconds, warm_up
        self._clock = DeviceClock("wall", device)
        self._iterations, self._spent, self._first = 0, 0.0, 0.0
        self._before, self._frames, self._updates = 0.0, 0, 0
        self._profile: Profile | None = None
        self._parts: list[tuple[Events, int]] = []  # of collecting and of learning, with their steps and updates
        self.rates: list[float] = []

    def evaluation_due(self, training: Training) -> bool:
        return False

    def on_iteration(self, training: Training) -> None:
        if not training.agent.updates:
            return
        if not self._warm_up:
            raise _Over
        now, self._iterations = self._clock(), self._iterations + 1
        if self._iterations == 1:
            self._first = now
        elif self._iterations > self._warm_up or now - self._first > _WARM_UP[1]:
            took = now - self._before
            self.rates.append((training.frames - self._frames) / took)
            self._spent += took
            if self._spent >= self._seconds:
                if took > _LONG:
                    raise _Over
                self._profile = Profile(self._device).begin()
        self._before, self._frames, self._updates = self._clock(), training.frames, training.agent.updates

    def on_collected(self, training: Training, batch: TensorDictBase, sequences: TensorDictBase) -> None:
        if self._profile is not None:
            self._parts.append((self._profile.end(), batch.shape[-1]))
            self._profile = Profile(self._device).begin()

    def on_batch(self, training: Training, batch: TensorDictBase, metrics: Mapping[str, Any]) -> None:
        if self._profile is not None:
            self._parts.append((self._profile.end(), training.agent.updates - self._updates))
            self._frames = training.frames - self._frames
            raise _Over

    def kernels(self, rate: float) -> dict[str, Any]:
        """Returns kernels per step and per update, and :func:`summed` at a rate in frames per second."""
        if not self._parts:
            return {}
        (collected, steps), (learnt, updates) = self._parts
        each = {"kernels_per_step": len(collected) / steps, "kernels_per_update": len(learnt) / max(updates, 1)}
        return each | summed([*collected, *learnt], self._frames / rate, self._device)


class StopWatch(Hook):
    """Reads the clock when a run has learnt from its ``first`` and last batch (``learnt``) and was ``judged``.

    Attributes:
        score: the metric of the last evaluation.
        spent: seconds of evaluations.
        frozen: success of the last agent over the given episodes; None without any.
    """

    def __init__(self, device: torch.device, metric: str, episodes: EpisodeSet | None) -> None:
        self._clock, self._metric, self._episodes = DeviceClock("wall", device), metric, episodes
        self.first, self.spent, self._began = 0.0, 0.0, 0.0
        self.frozen: float | None = None

    def on_batch(self, training: Training, batch: TensorDictBase, metrics: Mapping[str, Any]) -> None:
        if not self.first:
            self.first = self._clock()

    def evaluation_due(self, training: Training) -> None:
        self._began = self._clock()
        if training.frames >= training.last_frame:
            self.learnt = self._began

    def on_evaluation(self, training: Training, evaluation: Evaluation, is_best: bool) -> None:
        self.judged, self.score = self._clock(), evaluation.summary()[self._metric]
        self.spent += self.judged - self._began
        if self._episodes is not None and training.frames >= training.last_frame:
            policy, env = training.agent.policy(explore=False), training.config.env
            options = world_options(env)
            played = evaluate(policy, env["name"], options, 1, SEED, training.device, episode_set=self._episodes)
            self.frozen = played.summary()["eval/success"]


def _merged(found: list[float], most: int = 20) -> list[float]:
    """Merges many short iterations into fewer longer ones by means of neighbours."""
    size = -(-len(found) // most)
    parts = [found[first : first + size] for first in range(0, len(found), size)]
    return [statistics.harmonic_mean(part) for part in parts]


# -- updates -------------------------------------------------------------------------------------------------------


class _Shapes:
    """The sizes of HalfCheetah, from which an agent can be built."""

    def __init__(self, device: str) -> None:
        self.batch_size, self.device = torch.Size([]), torch.device(device)
        self.observation_spec = Composite({"observation": Unbounded((17,), device=device)})
        self.full_action_spec = Composite({"action": Bounded(-1.0, 1.0, shape=(6,), device=device)})


def updating(setting: Setting, name: str, compiles: bool, deterministic: bool = True, once: bool = False) -> Found:
    """Measures updates per second with batches of 256 and networks of 256 x 256, including sampling and targets."""
    _require_compiler(setting, compiles)
    device = torch.device(setting.device)
    torch.manual_seed(0)
    shapes: Any = _Shapes(setting.device)
    size = {"hidden": [256, 256], "batch_size": 256, "buffer_size": 100_000, "precision": "float32"}
    pace = {"frames_per_update": 1, "learning_starts": 0, "random_frames": 0}
    agent: Any = make_agent(name, shapes, 1_000_000, device, **size, **pace)
    set_determinism(deterministic, agent)
    agent.extend(made_up(2048 if setting.quick else 65_536, device))
    quicken(agent, device, compiles)
    fresh, seen, metrics = made_up(_UPDATES, device), 0, {}

    def update() -> float:
        nonlocal seen, metrics
        seen += _UPDATES
        metrics = agent.learn(fresh, seen)
        return float(_UPDATES)

    update()
    if once:
        return _COMPILED
    found = rates(update, DeviceClock("wall", device), *_pace(setting))
    if agent.updates != seen or not all(torch.as_tensor(value).isfinite().all() for value in metrics.values()):
        raise Mismatch(f"{agent.updates:,} of {seen:,} updates were made, or the last one's metrics are not finite")
    events = profiled(update, device)
    shares = summed(events, _UPDATES / statistics.median(found), device)
    return told(found, "updates/s", kernels_per_update=len(events) / _UPDATES, **shares, batch=256, hidden=[256, 256])


def made_up(rows: int, device: torch.device) -> TensorDict:
    """Returns random experience ``[rows, 1]`` in the form of :func:`~rlstack.data.flatten.flatten_agents`."""
    ended = torch.rand(rows, 1, 1, device=device) < 0.01
    following = {
        "observation": torch.randn(rows, 1, 17, device=device),
        "reward": torch.randn(rows, 1, 1, device=device),
        "terminated": ended,
        "done": ended,
    }
    entries = {
        "observation": torch.randn(rows, 1, 17, device=device),
        "action": 2 * torch.rand(rows, 1, 6, device=device) - 1,
        "active": torch.ones(rows, 1, dtype=torch.bool, device=device),
        "next": following,
    }
    return TensorDict(entries, [rows, 1], device=device)
