"""Checks that compare a device with the CPU."""

from __future__ import annotations

import contextlib
import math
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from rlstack import envs
from rlstack.agents import Agent, agent_class, build_agent
from rlstack.agents.base import Choosing
from rlstack.agents.off_policy import OffPolicy
from rlstack.agents.optimizer import CannotCompile, Compiler
from rlstack.config import load_group, to_plain
from rlstack.config.groups import compose_config
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.data.graphs import GRAPHS
from rlstack.diagnostics.training import waits
from rlstack.envs.foundation import tensors
from rlstack.runs.checkpoint import deciding, read_checkpoint
from rlstack.runs.run_directory import RunDirectory
from rlstack.runs.worlds import build_world
from rlstack.training import seeds
from rlstack.training.acceleration import missing_compiler
from rlstack.training.loggers import METRICS_FILE, read_metrics
from rlstack.training.monitor import Monitor, count_frames
from rlstack.training.run import train
from rlstack.training.verification import differences

from .runner import Found, LeftOut, Mismatch, Setting

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_WORLD_TOLERANCE = {"float32": 1e-3, "float64": 1e-7}
_SIZES = {"echelon": (16, 4), "rocket": (16, 4)}
"""Numbers of worlds and steps, elsewhere 64 and 16; without branches, a step of these worlds takes a second."""
_WORLDS_THAT_AGREE = {"rocket": {"float32": 0.5, "float64": 0.5}}
"""Share of worlds that must agree, elsewhere 99 % in float32, where rounding decides whether two things touch, and all
in float64. In Rocket, rounding decides it in float64 too: on a CPU, transcendental functions, sums and products with
an error in their last digit leave 56 to 88 % of 16 worlds alike after 4 steps, and those of every other world all.
"""
_LOSS_TOLERANCE = {"float32": 1e-2, "float64": 1e-6}
_UPDATE_TOLERANCE = {"float32": 5e-2, "float64": 1e-5}
"""Tolerance of parameters relative to their change: Adam's first steps follow the sign of a gradient."""

_MARINENAV = ["env=marinenav", "env.max_steps=12"]
_CHOICES = [*_MARINENAV, "env.continuous_actions=false"]
_WORLD_OF = {
    "ppo_published": ["env=arena", "env.max_steps=12"],
    "cql": ["env=echelon", "env.actions=box", "agent.frames_per_update=640"],
    "crossq": [*_MARINENAV, "agent.frames_per_update=640"],
}
"""Worlds of agents: Arena's original recipe, and a loss of TorchRL's that takes observations of one tensor.

CQL learns a few times there: no operation of its update is unstable (on a CPU, errors in the last digit change its
first gradient by 3e-7), but every update at least doubles a difference, which is 1e-1 after 24 and 5e-5 after 3. So
does CrossQ, whose layers are normalised over the batch: on a CPU such errors are 3e-2 of its gradient after 21.
"""

SMALL = {
    **{"steps_per_batch": 8, "minibatch_size": 128, "epochs": 2, "batch_size": 128, "buffer_size": 4096},
    **{"learning_starts": 128, "random_frames": 0, "frames_per_update": 80, "candidates": 4, "precision": "float32"},
}
"""Small values for the options that an agent has."""


def configured(*overrides: str, small: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the configuration of a run, with ``small`` values for the options that its agent has.

    Without a world among the overrides, the agent's is MarineNav, with choices if it needs them.
    """
    if not any(one.startswith(("env=", "experiment=")) for one in overrides):
        overrides = (*overrides, *world_of(overrides[0].removeprefix("agent=")))
    plain = to_plain(compose_config("train", [*overrides, "logger=csv"]))
    small = dict(small or {})
    if plain["agent"]["algorithm"] == "rainbow_published":
        small.pop("steps_per_batch", None)  # this agent steps one by one
    named = {one.partition("=")[0] for one in overrides}
    plain["agent"] |= {k: value for k, value in small.items() if k in plain["agent"] and f"agent.{k}" not in named}
    return plain


def world_of(agent: str) -> list[str]:
    """Returns the overrides of a world that an agent of ``conf/agent`` can learn in."""
    options = load_group("agent", agent)
    judged = {network["kind"] for network in options.get("networks", {}).values()}
    chooses = issubclass(agent_class(options["algorithm"]), Choosing) or "action_values" in judged
    return _WORLD_OF.get(agent) or (_CHOICES if chooses else _MARINENAV)


def quicken(agent: Agent, device: torch.device, compiles: bool, backend: str = "inductor") -> None:
    """Lets an agent record its functions on a GPU, and compile them if asked to.

    Raises:
        LeftOut: it cannot.
    """
    try:
        agent.compile(Compiler(backend, compiles=compiles, graphs=device.type == "cuda"))
    except CannotCompile as reason:
        raise LeftOut(str(reason)) from None


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """A context in which a CPU computes as a GPU does: everything under masks, without branching on data."""
    free = set(tensors.FREE)
    tensors.FREE.clear()
    try:
        yield
    finally:
        tensors.FREE.update(free)


# -- random numbers that are equal on every device ------------------------------------------------------------------

_NOT_DRAWN = ("_cudnn_rnn", "miopen_rnn", "attention")
"""Parts of the names of operations that are tagged as drawing because of their dropout, which nothing here has.

They exist on a GPU alone.
"""


class DrawnOnCpu(TorchDispatchMode):
    """A context in which every random operation runs on the CPU, with its result moved to the requested device.

    Operations without a generator draw from the CPU's default one (``torch.manual_seed``); those with a generator draw
    from a copy on the CPU that begins with the generator's seed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[tuple[int, int], tuple[torch.Generator, torch.Generator]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if not draws or any(name in func._schema.name for name in _NOT_DRAWN):
            return func(*args, **kwargs)
        given = [entry for entry in (*args, *kwargs.values()) if isinstance(entry, Tensor)]
        asked = kwargs.get("device")
        device = torch.device(asked) if asked is not None else given[0].device if given else torch.device("cpu")
        copies = {id(entry): entry.cpu() for entry in given if entry.device.type != "cpu"}

        def here(value: Any) -> Any:
            if isinstance(value, torch.Generator):
                if value.device.type != device.type:  # torch would raise an error, too
                    raise RuntimeError(f"{func}: a generator on {value.device} for numbers on {device}")
                return self._copy(value)
            return copies.get(id(value), value)

        arguments, options = tree_map(here, args), {name: here(value) for name, value in kwargs.items()}
        if asked is not None:
            options["device"] = torch.device("cpu")
        drawn = func(*arguments, **options)
        for entry in given:  # operations in place, or with ``out``
            if id(entry) in copies and drawn is copies[id(entry)]:
                return entry.copy_(drawn)
        return tree_map(lambda value: value.to(device) if isinstance(value, Tensor) else value, drawn)

    def _copy(self, generator: torch.Generator) -> torch.Generator:
        # Torch hands in another Python object every time; the generator is kept, so that its address stays its own.
        key = generator._cdata, generator.initial_seed()  # type: ignore[attr-defined]
        if key not in self._copies:
            self._copies[key] = generator, torch.Generator().manual_seed(key[1])
        return self._copies[key][1]


# -- worlds --------------------------------------------------------------------------------------------------------


def world(setting: Setting, name: str, options: Mapping[str, Any]) -> Found:
    """Compares steps of worlds with equal initial states, actions and random numbers, including ends of episodes."""
    count, steps = _SIZES.get(name, (64, 16))
    if setting.quick:
        count, steps = count // 8, steps // 2
    told, figures = [], {}
    for dtype in list(_DTYPES)[:1] if setting.quick else _DTYPES:
        sides = [
            played(device, name, {**options, "num_worlds": count, "dtype": _DTYPES[dtype]}, steps)
            for device in ("cpu", setting.device)
        ]
        agree, largest = compare_worlds(*sides, _WORLD_TOLERANCE[dtype])
        figures[dtype] = {"worlds_that_agree": agree, "largest_difference": largest}
        told.append(f"{dtype}: {agree:.1%} of {count} worlds agree, largest difference {largest:.1e}")
        wanted = _WORLDS_THAT_AGREE.get(name, {"float32": 0.99, "float64": 1.0})[dtype]
        if agree < wanted:
            raise Mismatch(f"{told[-1]}, wanted {wanted:.0%} within {_WORLD_TOLERANCE[dtype]:.0e}")
    return Found(f"{'; '.join(told)} ({steps} steps)", figures)


def played(device: str, name: str, options: Mapping[str, Any], steps: int) -> list[dict[str, Tensor]]:
    """Returns the worlds' entries after each step, by name, on the CPU."""
    with as_on_a_gpu(), DrawnOnCpu():
        return _steps(device, name, options, steps)


def _steps(device: str, name: str, options: Mapping[str, Any], steps: int) -> list[dict[str, Tensor]]:
    torch.manual_seed(0)
    env = envs.make(name, device=device, seed=0, **options)
    root, shown = env.reset(), []
    for _ in range(steps):
        step, root = env.step_and_maybe_reset(env.rand_action(root.clone()))
        shown.append({**_leaves(step.get("next"), "next"), **_leaves(root, "root")})
    env.close(raise_if_closed=False)
    return shown


def _leaves(shown: TensorDictBase, prefix: str) -> dict[str, Tensor]:
    return {
        "/".join((prefix, *(key if isinstance(key, tuple) else (key,)))): value.detach().cpu()
        for key, value in shown.items(True, True)
    }


def compare_worlds(
    ours: list[dict[str, Tensor]], theirs: list[dict[str, Tensor]], tolerance: float
) -> tuple[float, float]:
    """Returns the share of worlds that agree in every step, and the largest difference among these.

    Args:
        tolerance: tolerance of numbers, relative for those above 1.
    """
    differences = []
    for one, other in zip(ours, theirs, strict=True):
        if one.keys() != other.keys():
            raise Mismatch(f"only one of them shows {', '.join(sorted(one.keys() ^ other.keys()))}")
        for name, value in one.items():
            if (value.shape, value.dtype) != (other[name].shape, other[name].dtype):
                raise Mismatch(
                    f"{name}: {value.dtype} {list(value.shape)} beside {other[name].dtype} {list(other[name].shape)}"
                )
            differences.append(_difference(value, other[name]))
    most = torch.stack(differences).amax(0)
    alike = most <= tolerance
    return float(alike.float().mean()), float(most[alike].max()) if alike.any() else math.inf


def _difference(one: Tensor, other: Tensor) -> Tensor:
    """Returns each world's largest difference ``[W]``, relative for numbers above 1; infinite if integers differ."""
    if one.is_floating_point():
        apart = (one - other).abs() / one.abs().clamp_min(1.0)
        apart = torch.where((one == other) | (one.isnan() & other.isnan()), 0.0, apart).nan_to_num(math.inf)
    else:
        apart = torch.where(one == other, 0.0, math.inf)
    return apart.reshape(len(one), -1).double().amax(1)


# -- agents --------------------------------------------------------------------------------------------------------


def agent(setting: Setting, overrides: list[str], dtypes: tuple[str, ...] = tuple(_DTYPES)) -> Found:
    """Compares losses and parameters of updates from equal parameters, batches and random numbers."""
    told, figures = [], {}
    plain = configured(*overrides, small=SMALL)
    for dtype in dtypes[:1] if setting.quick else dtypes:
        plain["env"] |= {"dtype": dtype, "num_worlds": 8 if setting.quick else 16}
        batches = gathered(plain)
        with as_on_a_gpu(), DrawnOnCpu():
            ours, theirs = (taught(plain, device, batches) for device in ("cpu", setting.device))
        line, figures[dtype] = _judged(ours, theirs, dtype)
        told.append(f"{dtype}: {line}")
    return Found(f"relative differences, {'; '.join(told)}, after {ours.updates} updates", figures)


def _judged(ours: Lessons, theirs: Lessons, dtype: str) -> tuple[str, dict[str, Any]]:
    """Returns how far lessons differ, in words and as :func:`compare_lessons` does; raises an error if too far."""
    found = compare_lessons(ours, theirs)
    line = f"losses {found['losses']:.0e}, parameters {found['parameters']:.0e}"
    if found["losses"] > _LOSS_TOLERANCE[dtype] or found["parameters"] > _UPDATE_TOLERANCE[dtype]:
        allowed = f"allowed {_LOSS_TOLERANCE[dtype]:.0e} and {_UPDATE_TOLERANCE[dtype]:.0e}"
        raise Mismatch(f"relative differences, {dtype}: {line}, {allowed} ({found['name']})")
    return line, found


@dataclass(frozen=True)
class Lessons:
    """The result of an agent's updates, on the CPU.

    Attributes:
        first, last: parameters by name before and after.
        metrics: metrics of every batch.
    """

    first: dict[str, Tensor]
    last: dict[str, Tensor]
    metrics: list[dict[str, float]]
    updates: int


def gathered(plain: Mapping[str, Any], steps: int = 24) -> list[TensorDictBase]:
    """Collects batches of ``steps`` steps in all with an exploring agent on the CPU."""
    torch.manual_seed(1)
    env = build_world(plain["env"], "cpu", seed=1)
    explorer = build_agent(plain["agent"], env, 100_000)
    length = plain["agent"]["steps_per_batch"]
    collector = make_collector(env, explorer.policy(explore=True), length)
    batches = [batch.clone() for _, batch in zip(range(steps // length), collector)]
    collector.shutdown()
    return batches


def learner(plain: Mapping[str, Any], device: str = "cpu") -> Agent:
    """Returns a new agent on a device."""
    torch.manual_seed(0)
    env = build_world(plain["env"], device, seed=1)
    agent = build_agent(plain["agent"], env, 100_000, device)
    env.close(raise_if_closed=False)
    return agent


def prepared(agent: Agent, batches: Iterable[TensorDictBase]) -> Iterator[tuple[TensorDictBase, TensorDictBase, Any]]:
    """Yields batches, the same as an agent learns from them, and the frames so far."""
    frames = 0
    for batch in batches:
        sequences = flatten_agents(batch, agent.interface.group)
        frames += count_frames(batch, sequences, "decisions")
        yield batch, sequences, frames


def taught(
    plain: Mapping[str, Any],
    device: str,
    batches: list[TensorDictBase],
    quick: Callable[[Agent], None] = lambda agent: None,
) -> Lessons:
    """Lets a new agent on a device learn from batches, after ``quick`` has prepared it."""
    agent, metrics = learner(plain, device), []
    first = _parameters(agent)
    quick(agent)
    for _, sequences, frames in prepared(agent, (batch.to(device) for batch in batches)):
        told = agent.learn(sequences, frames)
        metrics.append({name: float(torch.as_tensor(value).float().mean()) for name, value in told.items()})
    if not agent.updates:
        raise Mismatch("there was no update")
    return Lessons(first, _parameters(agent), metrics, agent.updates)


def _parameters(agent: Agent) -> dict[str, Tensor]:
    return {
        f"{network}.{name}": value.detach().double().cpu().clone()
        for network, module in agent.networks.items()
        for name, value in module.named_parameters()
    }


def compare_lessons(ours: Lessons, theirs: Lessons) -> dict[str, Any]:
    """Returns the largest relative differences of metrics and of parameters, and the ``name`` of the larger one.

    Differences of parameters are relative to the change of all parameters by the updates.
    """
    for name, value in ours.first.items():
        if not torch.allclose(value, theirs.first[name], rtol=1e-5, atol=1e-7):  # normalised ones differ by rounding
            raise Mismatch(f"{name}: they begin with other parameters")
    if ours.updates != theirs.updates:
        raise Mismatch(f"{theirs.updates} updates, on the CPU {ours.updates}")
    losses, told = 0.0, "losses"
    for one, other in zip(ours.metrics, theirs.metrics, strict=True):
        for name, number in one.items():
            apart = abs(number - other[name]) / max(abs(number), 1.0) if number != other[name] else 0.0
            if not apart <= losses:  # true for NaN, too
                losses, told = (math.inf if math.isnan(apart) else apart), name
    moved = math.sqrt(sum(float((ours.last[name] - value).square().sum()) for name, value in ours.first.items()))
    if moved == 0:
        raise Mismatch("the updates have moved nothing")
    apart = {name: float((value - theirs.last[name]).norm()) / moved for name, value in ours.last.items()}
    worst = max(apart, key=lambda name: math.inf if math.isnan(apart[name]) else apart[name])
    total = math.sqrt(sum(value**2 for value in apart.values()))
    return {
        "losses": losses,
        "parameters": math.inf if math.isnan(total) else total,
        "name": f"largest of {told} and {worst}",
    }


# -- runs ----------------------------------------------------------------------------------------------------------


def resumed(setting: Setting, overrides: list[str]) -> Found:
    """Compares a run that was stopped half-way and resumed with one that was not, to the last bit."""
    frames = 2000 if setting.quick else 10_000
    plain = _short_run(setting, [*overrides, "compile=false", "checkpoint.replay=true"], frames)
    with tempfile.TemporaryDirectory(prefix="rlstack-gpu-", ignore_cleanup_errors=True) as folder:
        whole, stopped = (str(Path(folder) / name) for name in ("whole", "stopped"))
        found = [_last_state(train({**plain, "run_dir": whole}))]
        train({**plain, "run_dir": stopped, "until": frames // 2})
        found.append(_last_state(train({**plain, "run_dir": None, "resume": stopped})))
    return _equal(found, f"the state after {frames:,} frames of a whole run, and of one that was stopped and resumed")


def many_seeds(setting: Setting, overrides: list[str], frames: int = 10_000, small: bool = True) -> Found:
    """Compares runs that share a process with the same runs alone, to the last bit.

    Args:
        small: whether networks and batches are small; larger ones take other kernels, with workspaces.
    """
    if torch.device(setting.device).type not in GRAPHS:
        raise LeftOut("on a CPU, runs in one process agree with runs alone to rounding")
    frames = min(frames, 2000) if setting.quick else frames
    plain = _short_run(setting, [*overrides, "compile=false"], frames, SMALL if small or setting.quick else {})
    plain["eval"]["every"] = frames // 2
    with tempfile.TemporaryDirectory(prefix="rlstack-gpu-", ignore_cleanup_errors=True) as folder:
        together = seeds.train(seeds.seeded({**plain, "seeds": 3, "run_dir": str(Path(folder) / "together")}))
        alone = [train({**plain, "seed": 3 + k, "run_dir": str(Path(folder) / f"alone{k}")}) for k in range(3)]
        found = [[_last_state(run) for run in runs] for runs in (map(RunDirectory, together), alone)]
    return _equal([dict(enumerate(states)) for states in found], f"3 runs of {frames:,} frames, together and alone")


def recorded(setting: Setting, overrides: list[str], frames: int = 6000) -> Found:
    """Compares a run whose steps, updates and evaluations are replayed with one that computes them, to the last bit."""
    frames = min(frames, 2000) if setting.quick else frames
    found = []
    with tempfile.TemporaryDirectory(prefix="rlstack-gpu-", ignore_cleanup_errors=True) as folder, _heeded():
        for graphs in (False, True):
            settings = [*overrides, "compile=false", f"cudagraphs={graphs}"]
            run = train({**_short_run(setting, settings, frames), "run_dir": str(Path(folder) / str(graphs))})
            metrics = {k: v for row in read_metrics(run.path / METRICS_FILE) for k, v in row.items() if "eval/" in k}
            found.append({"state": _last_state(run), "evaluation": metrics})
    return _equal(found, f"state and evaluation after {frames:,} frames, computed and replayed")


def _equal(found: list[dict[Any, Any]], what: str) -> Found:
    if apart := list(differences(*found)):
        raise Mismatch(f"{len(apart)} entries differ, the first is {apart[0]} ({what})")
    return Found(f"{what}, are equal to the last bit")


def _short_run(setting: Setting, overrides: list[str], frames: int, small: Mapping[str, Any] = SMALL) -> dict[str, Any]:
    """Returns the configuration of a run of some frames, with one evaluation and one checkpoint at its end."""
    every = [f"{name}={frames}" for name in ("total_frames", "log_every", "eval.every", "checkpoint.every")]
    return configured(
        *overrides, *every, f"device={setting.device}", "seed=3", "eval.episodes=4", "eval.max_steps=20", small=small
    )


def _last_state(run: RunDirectory) -> dict[str, Any]:
    path = run.checkpoints.latest()
    assert path is not None
    return deciding(read_checkpoint(path))


def waiting_for_nothing(setting: Setting, overrides: list[str]) -> Found:
    """Checks that steady iterations (collect, learn, statistics), once they are recorded, do not wait for the GPU."""
    plain = configured(*overrides, f"env.num_worlds={8 if setting.quick else 64}", small=SMALL)
    torch.manual_seed(0)
    env = build_world(plain["env"], setting.device, seed=0)
    agent = build_agent(plain["agent"], env, 100_000, setting.device)
    quicken(agent, torch.device(setting.device), compiles=False)
    collector: Any = make_collector(env, agent.policy(explore=True), plain["agent"]["steps_per_batch"])
    collector.lends = True
    monitor, batches = Monitor(), prepared(agent, collector)

    def iterate() -> None:
        batch, sequences, frames = next(batches)
        monitor.observe(batch, agent.learn(sequences, frames))

    for _ in range(6):
        iterate()
    updates, iterations = agent.updates, 2
    if not updates:
        raise Mismatch("there was no update")
    counted = torch.device(setting.device).type == "cuda"
    with waits() if counted else contextlib.nullcontext({}) as places:
        for _ in range(iterations):
            iterate()
    # A group's: how many frames there are, which decide about updates, and which of them a replay buffer keeps.
    allowed = iterations * (0 if agent.interface.group is None or not isinstance(agent, OffPolicy) else 2)
    total = sum(places.values())
    figures = {"iterations": iterations, "updates": agent.updates - updates, "waits": dict(places)}
    where = ", ".join(f"{place} {count} times" for place, count in sorted(places.items(), key=lambda one: -one[1])[:4])
    if total > allowed:
        raise Mismatch(f"{total} waits in {iterations} iterations, allowed {allowed}: {where}")
    told = f"{total} waits in {iterations} iterations, allowed {allowed}"
    return Found(told if counted else f"{iterations} iterations; a CPU has nothing to wait for", figures)


# -- compiled code -------------------------------------------------------------------------------------------------


def compiled_updates(setting: Setting, overrides: list[str]) -> Found:
    """Compares compiled updates, which a GPU records, with eager ones."""
    device, backend = torch.device(setting.device), "aot_eager" if setting.quick else "inductor"
    if not setting.quick and (absent := missing_compiler(device)):
        raise LeftOut(absent)
    small = {**SMALL, "frames_per_update": 40}  # more updates than the warm-up of a graph
    plain = configured(*overrides, "env.num_worlds=8", small=small)
    batches = gathered(plain)
    with _heeded():
        eager = taught(plain, setting.device, batches)
        quick = taught(plain, setting.device, batches, lambda agent: quicken(agent, device, True, backend))
    line, found = _judged(eager, quick, "float32")
    return Found(f"relative differences: {line}, after {eager.updates} updates ({backend})", found)


def compiled_world(setting: Setting, name: str, options: Mapping[str, Any]) -> Found:
    """Compares steps of compiled worlds with eager ones."""
    if absent := missing_compiler(torch.device(setting.device)):
        raise LeftOut(absent)
    if setting.quick:
        raise LeftOut("quick=true: compiling a world takes a minute")
    with _heeded():
        made = {**options, "num_worlds": 64}
        sides = [_steps(setting.device, name, {**made, "compiled": compiled}, 16) for compiled in (False, True)]
    agree, largest = compare_worlds(*sides, _WORLD_TOLERANCE["float32"])
    line = f"{agree:.1%} of 64 worlds agree, largest difference {largest:.1e} (16 steps)"
    if agree < 0.99:
        raise Mismatch(line)
    return Found(line, {"worlds_that_agree": agree, "largest_difference": largest})


@contextlib.contextmanager
def _heeded() -> Iterator[None]:
    """A context that raises an error if compiling or recording fails in it: eager code would pass every comparison."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    told = [str(entry.message) for entry in caught]
    failed = [line for line in told if "is not compiled" in line or "is not recorded" in line]
    if failed:
        raise Mismatch(failed[0])
