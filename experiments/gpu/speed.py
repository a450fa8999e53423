"""Measures speeds on a device by wall clock: medians of repetitions after a warm-up, and the GPU's utilisation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded

from rlstack import envs
from rlstack.agents import make_agent
from rlstack.agents.compilation import CannotCompile, Compiler
from rlstack.config import build
from rlstack.diagnostics.measuring import DeviceClock, MeasuredTraining
from rlstack.diagnostics.training import timed_run
from rlstack.diagnostics.worlds import Stepper
from rlstack.training.acceleration import missing_compiler
from rlstack.training.config import TrainConfig

from .correctness import configured
from .machine import Use
from .runner import Found, LeftOut, Mismatch, Setting


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


def told(found: list[float], unit: str, use: Use | None = None, **more: Any) -> Found:
    """Returns median and spread of rates."""
    middle, low, high = statistics.median(found), min(found), max(found)
    busy = None if use is None else use.percent
    line = f"{middle:,.0f} {unit} ({low:,.0f} to {high:,.0f}, {len(found)} repetitions)"
    line += "" if busy is None else f", GPU busy {busy:.0f}% of the time"
    figures = {"unit": unit, "median": middle, "least": low, "most": high, "repetitions": len(found)}
    return Found(line, figures | {"gpu_percent": busy, **more})


def _pace(setting: Setting) -> tuple[float, int]:
    """Returns seconds of a repetition and the number of repetitions."""
    return (0.05, 3) if setting.quick else (1.0, 5)


def stepping(
    setting: Setting, name: str, options: Mapping[str, Any], num_worlds: int, unit: str, each: int = 1
) -> Found:
    """Measures steps of worlds alone under random actions, including resets.

    Args:
        each: number of units in a step of a world.
    """
    if options.get("compiled"):
        if setting.quick:
            raise LeftOut("quick=true: compiling a world takes a minute")
        if absent := missing_compiler(torch.device(setting.device)):
            raise LeftOut(absent)
    count = 16 if setting.quick else num_worlds
    torch.manual_seed(0)
    env = envs.make(name, num_worlds=count, device=setting.device, seed=0, **options)
    stepper, clock = Stepper(env), DeviceClock("wall", setting.device)
    for _ in range(1 if setting.quick else 16):
        stepper()
    before = stepper.steps

    def advance() -> float:
        first = stepper.steps
        stepper()
        return float((stepper.steps - first) * count * each)

    with Use(torch.device(setting.device)) as use:
        found = rates(advance, clock, *_pace(setting))
    return told(found, unit, use, num_worlds=count, steps=stepper.steps - before)


def training(setting: Setting, overrides: list[str], unit: str) -> Found:
    """Measures the training loop with its shipped configuration in frames per second, without evaluations."""
    device = torch.device(setting.device)
    small = [f"env.num_worlds={8 if 'env=cartpole' not in overrides else 64}"] if setting.quick else []
    tiny = {
        "steps_per_batch": 8,
        "learning_starts": 200,
        "minibatch_size": 64,
        "batch_size": 64,
        "frames_per_update": 100,
    }
    raw = configured(*overrides, *small, f"device={setting.device}", small=tiny if setting.quick else None)
    compiles = raw["compile"] is True
    if compiles and (absent := missing_compiler(device)):
        raise LeftOut(absent)
    seconds, _ = _pace(setting)
    measured = MeasuredTraining(build(TrainConfig, raw), raw, device, DeviceClock("wall", device), 5 * seconds)
    use = Use(device)
    with timed_run(measured, around=use) as trained:
        pass
    found = [one.frames / one.seconds for one in trained.iterations[1:] or trained.iterations]
    return told(_merged(found), unit, use, num_worlds=raw["env"]["num_worlds"], precision=raw["agent"]["precision"])


def _merged(found: list[float], most: int = 20) -> list[float]:
    """Merges many short iterations into fewer longer ones by means of neighbours."""
    size = -(-len(found) // most)
    parts = [found[first : first + size] for first in range(0, len(found), size)]
    return [statistics.harmonic_mean(part) for part in parts]


class _Shapes:
    """The sizes of HalfCheetah, from which an agent can be built."""

    def __init__(self, device: str) -> None:
        self.batch_size, self.device = torch.Size([]), torch.device(device)
        self.observation_spec = Composite({"observation": Unbounded((17,), device=device)})
        self.full_action_spec = Composite({"action": Bounded(-1.0, 1.0, shape=(6,), device=device)})


def updating(setting: Setting, name: str, how: str = "eager") -> Found:
    """Measures updates per second with batches of 256 and networks of 256 x 256, including sampling and targets.

    Args:
        how: ``eager``, ``graphs`` or ``compiled`` (with graphs).
    """
    device = torch.device(setting.device)
    if how == "graphs" and device.type != "cuda":
        raise LeftOut("a CPU records no CUDA graphs")
    if how == "compiled":
        if setting.quick:
            raise LeftOut("quick=true: compiling an update takes half a minute")
        if absent := missing_compiler(device):
            raise LeftOut(absent)
    torch.manual_seed(0)
    shapes: Any = _Shapes(setting.device)
    size = {"hidden": [256, 256], "batch_size": 256, "buffer_size": 100_000, "precision": "float32"}
    agent: Any = make_agent(name, shapes, 1_000_000, device, **size, learning_starts=0, random_frames=0)
    rows = 2048 if setting.quick else 65_536
    agent.remember(made_up(rows, device))
    if how != "eager":
        try:
            agent.compile(Compiler(compiles=how == "compiled", graphs=device.type == "cuda"))
        except CannotCompile as reason:
            raise LeftOut(str(reason)) from None

    def update() -> float:
        agent.update(agent.prepared(agent.sample()))
        agent.updates += 1
        agent.move_targets()
        return 1.0

    for _ in range(10):
        update()
    with Use(device) as use:
        found = rates(update, DeviceClock("wall", device), *_pace(setting))
    if float(agent.optimizers[next(iter(agent.optimizers))].refused):
        raise Mismatch("updates were refused: a loss or gradient is not finite")
    return told(found, "updates/s", use, batch=256, hidden=[256, 256])


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
