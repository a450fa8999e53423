"""Tries a run on a few of its worlds before its first frame: memory, specs, a forward pass, an update, a checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import nn
from torchrl import logger as torchrl_logger
from torchrl.data import Composite
from torchrl.envs import EnvBase
from torchrl.envs.utils import check_env_specs

from rlstack.agents import Agent, build_agent
from rlstack.agents.interface import Interface
from rlstack.agents.on_policy import OnPolicy
from rlstack.config import ConfigError
from rlstack.config.errors import did_you_mean
from rlstack.data.finite import find
from rlstack.data.flatten import flatten_agents
from rlstack.data.replay import usable_device
from rlstack.envs.foreign import LIMIT
from rlstack.envs.foundation.files import temporary
from rlstack.envs.foundation.packages import place_in_users_code
from rlstack.envs.foundation.processes import EnvironmentFailed, EnvironmentRaised
from rlstack.envs.registry import options_of
from rlstack.envs.world import World, hooks_of
from rlstack.evaluation.evaluator import Evaluation, interface_of
from rlstack.files.safe_load import out_of_memory
from rlstack.runs.checkpoint import read_checkpoint, write_checkpoint
from rlstack.runs.loading import initialise
from rlstack.runs.run_directory import RunDirectory
from rlstack.runs.seeding import rng_untouched
from rlstack.runs.worlds import build_world, choose_device, size_key, world_options

from .config import TrainConfig
from .curriculum import Curriculum
from .hooks import Hook, Training
from .summary import environment_errors
from .workers import check_followed, remote, worlds_here

FEW = 7
"""Greatest number of worlds that a run is tried on: a size that no other axis of a world's state has."""
_STEPS = 8
_COPIES = 4
"""Tensors of each parameter's size: the parameter, its gradient, and two moments."""
_EPISODE = 200
"""Least number of bytes that an evaluation keeps of an episode."""


@contextmanager
def few_worlds(config: TrainConfig) -> Iterator[EnvBase]:
    """A context with some worlds of a run, at most :data:`FEW`, on which everything is tried before the first frame.

    They are closed before the run builds its own, as a simulator may allow no more than these. Random generators are
    restored at the end.

    Raises:
        ConfigError: an option of the world is unknown, has the wrong type or is impossible.
        RunError: the environment cannot be used.
    """
    with rng_untouched(), environment_errors(config.env):
        given = world_options(config.env)
        usual = {name: entry.default for name, entry in options_of(config.env["name"]).items()}
        size = {**usual, **given}.get("num_envs" if "num_envs" in usual else "num_worlds")
        # Compiling takes half a minute and worker processes take seconds; neither is tried here.
        chosen: dict[str, Any] = {key: off for key, off in (("compiled", False), ("workers", 0)) if key in config.env}
        chosen |= {"num_worlds": min(size, FEW)} if isinstance(size, int | float) else {}  # else its own size
        with closing(build_world(config.env, choose_device(config.device), config.seed, **chosen)) as env:
            if isinstance(env, World):
                env.run_type_checks = True
            yield env


# -- memory ----------------------------------------------------------------------------------------------------------


class Need(NamedTuple):
    """The least number of bytes that a part of a run needs; its name includes the options that determine them."""

    part: str
    bytes: float
    device: torch.device


def check_fits(what: str, needed: Sequence[Need]) -> None:
    """Compares the least memory that the parts of ``what`` need with the free memory.

    Raises:
        ConfigError: it does not fit; the message names the parts, the options that determine them, and both sizes.
    """
    for device in dict.fromkeys(need.device for need in needed):
        parts = sorted((need for need in needed if need.device == device), key=lambda need: -need.bytes)
        total, free = sum(need.bytes for need in parts), free_bytes(device)
        if free is not None and total > free:
            large = ", ".join(f"{need.part} {need.bytes / 1e9:,.1f} GB" for need in parts if need.bytes > total / 20)
            sizes = f"{total / 1e9:,.1f} GB on {device}, where {free / 1e9:,.1f} GB are free"
            raise ConfigError(f"not enough memory: {what} needs {sizes}: {large}")


def needs(config: TrainConfig, env: EnvBase) -> list[Need]:
    """Lists the buffers of a run, from a few of its worlds and from networks without data."""
    c, agent, device = config.collector, config.agent, choose_device(config.device)
    key = size_key(config.env)
    worlds = (config.env[key] if key else env.batch_size.numel()) / c.workers
    leaves = env.observation_spec.values(include_nested=True, leaves_only=True)
    shown = sum(spec.shape.numel() * spec.dtype.itemsize for spec in leaves) / env.batch_size.numel()  # of a world
    batch = f"a batch of {worlds:,.0f} worlds and {c.steps_per_batch:,} steps (agent.steps_per_batch)"
    parts = [
        Need(f"worlds ({key and f'env.{key}'}, env.frame_stack)", worlds * shown, worlds_here(config, device)),
        Need(batch, 2.0 * worlds * c.steps_per_batch * shown, device),
        Need("networks (agent.hidden and other widths)", _COPIES * _parameters(config, env), device),
        episodes_of(config.eval.episodes, "eval.episodes"),
    ]
    on_disk = (agent.get("replay") or {}).get("storage") == "LazyMemmapStorage"
    if isinstance(agent.get("buffer_size"), int | float) and agent.get("data") != "rollout" and not on_disk:
        parts.append(_replay(config, device, shown, Interface.of(env).agents))
    if isinstance(steps := agent.get("n_step"), int | float) and steps > 1:
        parts.append(Need("n-step returns (agent.n_step)", float(worlds * steps * shown), device))
    return parts


def _replay(config: TrainConfig, device: torch.device, shown: float, agents: int) -> Need:
    agent, where = config.agent, config.agent.get("replay_device")
    # The next observation is stored too, except within sequences; Retrace stores that of every step of a return.
    states = 1 if agent.get("recurrent") else 1 + agent["n_step"] if agent.get("correction") == "retrace" else 2
    allowed = "null, cpu, cuda, cuda:<k>"
    storage = device if where is None else usable_device(str(where), "agent.replay_device", allowed)
    rows = agent["buffer_size"]
    if storage.type == "cpu":  # RAM is taken as the buffer fills
        decisions = config.total_frames / int(os.environ.get("WORLD_SIZE", "1"))
        decisions *= agents if config.collector.count == "env_steps" else 1
        rows = min(rows, decisions + (config.imitation.frames if config.imitation.replay else 0))
    return Need("the replay buffer (agent.buffer_size)", float(rows * states * shown / agents), storage)


def episodes_of(count: int, key: str) -> Need:
    """Returns the memory of the results of ``count`` episodes, a number that the option ``key`` sets."""
    return Need(f"episodes of an evaluation ({key})", float(count * _EPISODE), torch.device("cpu"))


def free_bytes(device: torch.device) -> float | None:
    """Returns the free memory of a device in bytes, with what the kernel could free and swap space; None if unknown."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    with suppress(OSError, ValueError, KeyError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        sizes = {name: float(size) * 1024 for name, size, *_ in lines}
        return sizes["MemAvailable:"] + sizes["SwapFree:"]
    return None


def _parameters(config: TrainConfig, env: EnvBase) -> float:
    """Returns the bytes of the parameters that an agent trains; builds its networks without data."""
    if config.agent.get("algorithm") == "legacy":
        return 0.0
    parameters: dict[int, nn.Parameter] = {}

    def note(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if parameter is not None:
            parameters[id(parameter)] = parameter

    hook = nn.modules.module.register_module_parameter_registration_hook(note)
    try:
        with torch.device("meta"), suppress(Exception):  # some operations lack it; mistakes are reported elsewhere
            build_agent(config.agent, env, config.total_frames, "meta")
    finally:
        hook.remove()
    return float(sum(parameter.nbytes for parameter in parameters.values()))


# -- agent and worlds ------------------------------------------------------------------------------------------------


def check_buildable(config: TrainConfig, env: EnvBase) -> Agent:
    """Builds the agent for a few worlds of a run without running it, to find bad options before anything is written.

    Returns the agent, which is not the one that the run trains.

    Raises:
        ConfigError: an unknown key, a wrong type, an impossible value, an agent that cannot act or learn in the world,
            networks of ``init`` that do not fit it, or a curriculum that the world does not have.
    """
    agent = build_agent(config.agent, env, config.total_frames, choose_device(config.device))
    agent.check_learning()
    steps, core = config.collector.steps_per_batch, getattr(agent.config, "recurrent", None)
    if isinstance(agent, OnPolicy):
        if steps * env.batch_size.numel() * agent.interface.agents < agent.LEAST_DECISIONS:
            raise ConfigError(
                f"collector.steps_per_batch: a rollout of one decision teaches agent={agent.config.name} nothing; "
                "give collector.steps_per_batch=128, or more worlds"
            )
        if core is not None and core.sequence_length > max(steps, type(core).sequence_length) and not config.debug:
            raise ConfigError(
                f"agent.recurrent.sequence_length: {core.sequence_length} steps are more than a rollout's {steps}; "
                f"give at most {steps}, or collector.steps_per_batch={core.sequence_length}"
            )
    if config.init is not None and config.resume is None:
        initialise(agent, config.init)
    if config.curriculum is not None:
        Curriculum(config.curriculum, env)
    return agent


def check_objective(config: TrainConfig, env: EnvBase) -> None:
    """Checks ``objective.metric``, which is only read once a run has ended.

    Raises:
        ConfigError: evaluations have no such metric, or it names no group, or is almost one of a known name.
    """
    metric, shown = config.objective.metric, env.observation_spec
    spec: Any = shown["episode"] if "episode" in shown.keys() else ("return", "length")  # noqa: SIM118
    statistics = [name for name in spec if name != "level"]
    evaluated = Evaluation({name: torch.ones(1) for name in statistics}, ["all"], "", {}, 0).summary()
    known = [*evaluated, "eval/non_finite", *(f"train/{name}" for name in statistics)]
    if metric is None or metric in known or metric.startswith("eval/success_level"):
        return
    guess = did_you_mean(metric, known)
    if guess or "/" not in metric or (metric.startswith("eval/") and config.env.get("opponents") is None):
        raise ConfigError(f"objective.metric: no metric {metric!r}, {guess}evaluations have {', '.join(evaluated)}")


def self_check(config: TrainConfig, run: RunDirectory, env: EnvBase, agent: Agent) -> list[str]:
    """Tries specs, a forward pass, an update and a checkpoint on a few worlds; returns a line for each.

    Args:
        agent: the agent of :func:`check_buildable`.

    Raises:
        ConfigError: names the first thing that does not work, and what to change.
    """
    checks, lines = _Checks(config, run, env, agent), []
    with environment_errors(config.env):
        for check, hint in (
            (checks.specs, "the world's observation_spec, action_spec and outputs must agree (env.*)"),
            (checks.forward, "agent.* does not fit the env's observations or actions"),
            (checks.update, "try smaller learning rates or input scaling (agent.lr_*, agent.inputs)"),
            (checks.checkpoint, "run_dir must be a writable folder with space left"),
        ):
            try:
                lines.append(f"[OK] {check.__name__}: {check()}")
            except (ConfigError, EnvironmentRaised):
                raise
            except EnvironmentFailed as error:
                raise ConfigError(f"env: {error}") from error
            except Exception as error:
                if out_of_memory(error):
                    raise
                what = f"{type(error).__name__}: {error}{place_in_users_code(error)}"
                raise ConfigError(f"self-check {check.__name__} failed: {what}; {hint}") from error
    return lines


@dataclass(eq=False)
class _Checks:
    """A few worlds of a run and an agent like its own; every check describes its result in words."""

    config: TrainConfig
    run: RunDirectory
    env: EnvBase
    agent: Agent

    def specs(self) -> str:
        env, world = self.env, type(self.env).__name__
        seen, ends, further = env.full_observation_spec, env.full_done_spec, (env.full_state_spec, env.full_action_spec)
        root = env.reset()
        _check_entries(f"{world}: reset", root, (seen,), (ends, *further))
        drawn = env.rand_action(root)
        # TorchRL's own step would fill in flags that a world forgets.
        following = env._advance(drawn) if isinstance(env, World) else env.step(drawn)["next"]
        _check_entries(f"{world}: step", following, (seen, env.full_reward_spec, ends), further)
        level = torchrl_logger.level
        torchrl_logger.setLevel("WARNING")
        try:
            check_env_specs(env)
        finally:
            torchrl_logger.setLevel(level)
        if not hooks_of(env).saves_episodes and self.config.env.get("max_instances") is None:
            try:  # a simulator may allow no more than the worlds of the training
                interface_of(self.config.env)
            except ConfigError as error:
                why = "evaluations play in environments of their own, beside those of the training"
                raise ConfigError(f"{error}; {why}: if there can be no more, set {LIMIT}") from error
        return f"{world} matches its specs"

    def forward(self) -> str:
        agent, key = self.agent, self.agent.interface.key("action")
        self.batch = self.env.rollout(_STEPS, agent.policy(explore=True), break_when_any_done=False)
        _check_finite("forward failed", self.batch)
        action = self.batch.get(key)
        seen = self.batch[..., 0].exclude("next")
        greedy = agent.policy(explore=False)(seen.copy()).get(key)
        if not all(torch.isfinite(agent.interface.from_env(part).float()).all() for part in (action, greedy)):
            raise ValueError("the policy's actions are not finite")
        if remote(self.config):
            check_followed(agent, seen)
        return f"policy acts, actions {tuple(action.shape)}"

    def update(self) -> str:
        agent = self.agent
        metrics = agent.update_once(flatten_agents(self.batch, agent.interface.group))
        bad = [name for name, value in metrics.items() if not torch.isfinite(torch.as_tensor(value)).all()]
        bad += [f"gradients of {name}" for name, optimizer in agent.optimizers.items() if optimizer.refused]
        if bad:
            raise ValueError(f"{', '.join(bad)} not finite after one update")
        return f"one update of {sum(p.numel() for p in agent.parameters()):,} parameters, all losses finite"

    def checkpoint(self) -> str:
        state = {"agent": self.agent.state_dict(), "env": self.env.state_dict()}
        with temporary(self.run.path / "self_check.pt") as path:
            write_checkpoint(path, state, frames=0)
            size = path.stat().st_size
            self.agent.load_state_dict(read_checkpoint(path)["agent"])
        free = shutil.disk_usage(self.run.path).free
        return f"written and read back ({size / 1e6:.1f} MB without replay, {free / 1e9:.0f} GB free)"


def _check_entries(call: str, given: TensorDictBase, specs: Sequence[Composite], further: Sequence[Composite]) -> None:
    """Compares the entries that a call returns with their specs.

    Args:
        call: its name, for the message.
        specs: specs of the entries that it must return.
        further: specs of entries that it may return.

    Raises:
        ConfigError: an entry is missing, has no spec, has another shape or type than its spec, or is not finite.
    """
    wanted = {key: spec for part in specs for key, spec in part.items(include_nested=True, leaves_only=True)}
    known = {*wanted, *(key for part in further for key in part.keys(include_nested=True, leaves_only=True))}
    entries = dict(given.items(include_nested=True, leaves_only=True))
    if missing := ", ".join(sorted(map(repr, wanted.keys() - entries))):
        raise ConfigError(f"self-check specs failed: {call} does not return {missing}, which the specs declare")
    if surplus := ", ".join(sorted(map(repr, entries.keys() - known))):
        raise ConfigError(f"self-check specs failed: {call} returns {surplus}, which the specs do not declare")
    for key, spec in wanted.items():
        value = entries[key]
        if not isinstance(value, torch.Tensor) or -1 in spec.shape:
            continue
        if (value.shape, value.dtype) != (spec.shape, spec.dtype):
            name = key if isinstance(key, str) else " ".join(key)
            raise ConfigError(
                f"self-check specs failed: {call} gives {name} {list(value.shape)} of {value.dtype}, the spec says "
                f"{list(spec.shape)} of {spec.dtype}"
            )

    _check_finite(f"specs failed: {call}", given.unsqueeze(-1))


def _check_finite(call: str, batch: TensorDictBase) -> None:
    if bad := find(batch, only=frozenset({"observation", "reward"})):
        raise ConfigError(f"self-check {call}: {bad}")


# -- debug mode ------------------------------------------------------------------------------------------------------


def check_batch(batch: TensorDictBase, env: EnvBase, frames: int) -> None:
    """Debug mode: checks that a batch is finite, and its observations and actions lie within their specs.

    Raises:
        ConfigError: names the key, and the world and step of the batch.
    """
    if bad := find(batch, only=frozenset()):
        raise ConfigError(f"debug: {bad.name} is not finite in world {bad.world}, step {bad.step} after frame {frames}")
    for step, now in enumerate(batch.unbind(-1)):
        # With workers a batch has a multiple of these worlds.
        for own in now.split(env.batch_size.numel()) if now.ndim else (now,):
            for spec, part in ((env.observation_spec, own["next"]), (env.full_action_spec, own)):
                for key, leaf in spec.items(include_nested=True, leaves_only=True):
                    if not leaf.is_in(part.get(key)):
                        raise ConfigError(f"debug: {key} is outside its spec in step {step} after frame {frames}")


class BatchChecks(Hook):
    """Debug mode: checks every batch with :func:`check_batch`."""

    def on_collected(self, training: Training, batch: TensorDictBase, sequences: TensorDictBase) -> None:
        check_batch(batch, training.env, training.previous)
