"""Checks that a run fits into RAM and GPU memory before it allocates anything large.

The estimate is a lower bound: a run that fits is never refused.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.envs import EnvBase

from rlstack.agents import build_agent
from rlstack.agents.interface import Interface
from rlstack.config import ConfigError
from rlstack.data.devices import usable_device
from rlstack.envs.world import hooks_of
from rlstack.runs.worlds import choose_device, size_key

from .config import TrainConfig
from .remote import worlds_here

_COPIES = 4
"""Tensors of each parameter's size: the parameter, its gradient, and two moments."""

_EPISODE = 200
"""Least number of bytes that an evaluation keeps of an episode."""

_RESERVED = 8
"""Multiple of the free memory that may be reserved without being used."""


class Need(NamedTuple):
    """Memory that a part of a run needs.

    Attributes:
        part: name of the part, and the options that determine its size.
        bytes: least number of bytes.
        device: device of the memory.
    """

    part: str
    bytes: float
    device: torch.device


def check_memory(config: TrainConfig, env: EnvBase) -> None:
    """Compares the least memory that a run needs with the free memory, given a few of its worlds.

    Raises:
        ConfigError: it does not fit; the message names the parts, the options that determine them, and both sizes.
    """
    check_fits("the run", needs(config, env))


def check_fits(what: str, needed: Iterable[Need]) -> None:
    """Raises the :class:`ConfigError` of :func:`check_memory` if these parts of ``what`` do not fit."""
    by_device: dict[torch.device, list[Need]] = defaultdict(list)
    for need in needed:
        by_device[need.device].append(need)
    for device, found in by_device.items():
        total, free = sum(need.bytes for need in found), free_bytes(device)
        if free is not None and total > free:
            large = sorted((need for need in found if need.bytes > total / 20), key=lambda need: -need.bytes)
            parts = ", ".join(f"{need.part} {need.bytes / 1e9:,.1f} GB" for need in large)
            sizes = f"{total / 1e9:,.1f} GB on {device}, where {free / 1e9:,.1f} GB are free"
            raise ConfigError(f"not enough memory: {what} needs {sizes}: {parts}")


def needs(config: TrainConfig, env: EnvBase) -> list[Need]:
    """Estimates the memory of each part of a run, from a few of its worlds and from networks without data."""
    device, key = choose_device(config.device), size_key(config.env)
    worlds_device = worlds_here(config, device)
    worlds = (config.env[key] if key else env.batch_size.numel()) // config.collector.workers
    shown = _shown(env)
    state = sum(entry.nbytes for entry in _of_each_world(env)) / env.batch_size.numel()
    agents, parameters = Interface.of(env).agents, _parameters(config, env)
    c, agent = config.collector, config.agent
    found = [
        Need(f"worlds ({key and f'env.{key}'}, env.frame_stack)", worlds * (state + shown), worlds_device),
        Need(
            f"a batch of {worlds:,.0f} worlds and {c.steps_per_batch:,} steps (agent.steps_per_batch)",
            2.0 * worlds * c.steps_per_batch * shown,
            device,
        ),
        Need("networks (agent.hidden and other widths)", _COPIES * parameters, device),
        episodes_of(config.eval.episodes, "eval.episodes"),
    ]
    on_disk = (agent.get("replay") or {}).get("storage") == "LazyMemmapStorage"
    remembers = agent.get("data") != "rollout"
    if isinstance(capacity := agent.get("buffer_size"), int | float) and remembers and not on_disk:
        # The next observation is stored too, except within sequences; Retrace stores that of every step of a return.
        states = 1 if agent.get("recurrent") else 1 + agent["n_step"] if agent.get("correction") == "retrace" else 2
        where = agent.get("replay_device")
        allowed = "null, cpu, cuda, cuda:<k>"
        storage = device if where is None else usable_device(str(where), "agent.replay_device", allowed)
        row = states * shown / agents
        decisions = config.total_frames / int(os.environ.get("WORLD_SIZE", "1"))
        decisions *= agents if c.count == "env_steps" else 1
        decisions += config.imitation.frames if config.imitation.replay else 0
        # RAM is taken as the buffer fills, but the system refuses to reserve many times the free memory.
        lazy = storage.type == "cpu" and capacity * row < _RESERVED * (free_bytes(storage) or 0.0)
        filled = min(capacity, decisions) if lazy else capacity
        found.append(Need("the replay buffer (agent.buffer_size)", float(filled * row), storage))
    if isinstance(steps := agent.get("n_step"), int | float) and steps > 1:
        found.append(Need("n-step returns (agent.n_step)", float(worlds * steps * shown), device))
    return found


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
    found: dict[int, nn.Parameter] = {}

    def note(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if parameter is not None:
            found[id(parameter)] = parameter

    hook = nn.modules.module.register_module_parameter_registration_hook(note)
    try:
        with torch.device("meta"), suppress(Exception):  # some operations lack it; mistakes are reported elsewhere
            build_agent(config.agent, env, config.total_frames, "meta")
    finally:
        hook.remove()
    return float(sum(parameter.numel() * parameter.element_size() for parameter in found.values()))


def _shown(env: EnvBase) -> float:
    """Returns the bytes of what a world shows in a step."""
    leaves = env.observation_spec.values(include_nested=True, leaves_only=True)
    return sum(spec.shape.numel() * spec.dtype.itemsize for spec in leaves) / env.batch_size.numel()


def _of_each_world(env: EnvBase) -> Iterator[Tensor]:
    """Yields the tensors of the worlds' state with a row for each world; none for simulators that cannot be saved."""
    if not hooks_of(env).saves_episodes:
        return
    env.reset()
    pending: list[Any] = [env.state_dict()]
    while pending:
        entry = pending.pop()
        if isinstance(entry, Tensor) and entry.dim() and len(entry) == env.batch_size.numel():
            yield entry
        elif isinstance(entry, dict | TensorDictBase):
            pending += entry.values()
        elif isinstance(entry, list | tuple):
            pending += entry
