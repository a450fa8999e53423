"""One run in several processes: ``torchrun --nproc_per_node=2 -m rlstack.train ...``.

Worlds are shared out; every process gathers the batches of all, so that each one has what a single process would have
(replay memory, statistics, curriculum), and computes the gradient of its part of every batch. See the README.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from envs.world import World
from rlstack.agents import Agent
from rlstack.config import ConfigError
from rlstack.data.ranks import Ranks
from rlstack.runs.worlds import build_world, choose_device, size_key

from .config import TrainConfig

_PATIENCE = timedelta(minutes=30)
"""For the slowest process, which may have worlds to start."""


def join() -> Ranks | None:
    """Meets the other processes that torchrun has started; None where there are none.

    Raises:
        ConfigError: they cannot be reached.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        return None
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        try:
            dist.init_process_group(backend, timeout=_PATIENCE)
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"torchrun: the other processes cannot be reached ({reason})") from None
        atexit.register(dist.destroy_process_group)
    return Ranks()


def device_name(name: str) -> str:
    """Each process takes a GPU of its own.

    Raises:
        ConfigError: all were to take the same one.
    """
    if name == "cuda" or (name == "auto" and torch.cuda.is_available()):
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    if name.startswith("cuda:"):
        raise ConfigError(f"device: {name} is one GPU for several processes; give cuda, and each takes its own")
    return name


@contextlib.contextmanager
def aside(ranks: Ranks | None) -> Iterator[Path | None]:
    """None for the first process, which alone speaks and leaves files; for others a folder that is thrown away."""
    if ranks is None or ranks.first:
        yield None
        return
    with (
        tempfile.TemporaryDirectory(prefix="rlstack-rank-", ignore_cleanup_errors=True) as folder,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        yield Path(folder)


def of_rank(config: TrainConfig, ranks: Ranks | None) -> TrainConfig:
    """The configuration as a process follows it: its own device, and loggers for the first one alone.

    Raises:
        ConfigError: what cannot be done by several processes.
    """
    if ranks is None:
        return config
    key = size_key(config.env)
    if key is None:
        raise ConfigError(f"env: {config.env.get('name')} has no num_worlds that {ranks.count} processes could share")
    if int(config.env[key]) % ranks.count:
        total = config.env[key]
        raise ConfigError(f"env.{key}: {total} is no multiple of the {ranks.count} processes that share them")
    if config.env.get("opponents") is not None:
        raise ConfigError("env.opponents: cannot be combined with several processes, set it to null")
    worlds = config.collector.device
    config = replace(config, device=device_name(config.device))
    if worlds is not None:
        config = replace(config, collector=replace(config.collector, device=device_name(worlds)))
    device = choose_device(config.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if ranks.first:
        return config
    return replace(config, logger=replace(config.logger, tensorboard=False, wandb="disabled"))


def build_share(
    config: dict[str, Any], device: torch.device, seed: int, ranks: Ranks | None, **overrides: Any
) -> EnvBase:
    """The worlds of this process."""
    if ranks is None:
        return build_world(config, device, seed, **overrides)
    total = int(config[size_key(config)])
    here = total // ranks.count
    env = build_world(config, device, seed, num_worlds=here, **overrides)
    if isinstance(env, World):
        env.share(here * ranks.index, total, seed)
    else:
        env.set_seed(seed + here * ranks.index)
    return env


def learn_together(ranks: Ranks, agent: Agent) -> None:
    """All processes begin with the same networks and random numbers, and compute their gradients together."""
    for network in [*agent.networks.values(), *(target.network for target in agent.targets.values())]:
        ranks.follow_first([value for value in network.state_dict().values() if isinstance(value, torch.Tensor)])
    for optimizer in agent.optimizers.values():
        optimizer.ranks = ranks
    ranks.follow_random_numbers(agent.device)  # a checkpoint holds those of the first process's device


def collected_by(ranks: Ranks, collector: Any, env: EnvBase) -> Iterator[TensorDictBase]:
    """Batches ``[W, T]`` of all worlds, of which this process steps a share."""
    collected, worlds = iter(collector), env.batch_size.numel() * ranks.count
    while True:
        with ranks.drawing(worlds):
            batch = next(collected)
        batch = ranks.gather(batch)
        ranks.follow_random_numbers(batch.device or torch.device("cpu"))
        yield batch


def own_worlds(states: list[Any], ranks: Ranks | None) -> Any:
    """The state of this process's worlds.

    Args:
        states: of all processes of the run to resume.

    Raises:
        ConfigError: there are more or fewer processes now.
    """
    count, before = 1 if ranks is None else ranks.count, len(states)
    if count != before:
        command = f"torchrun --standalone --nproc_per_node={before}" if before > 1 else "python"
        raise ConfigError(
            f"resume: the run is one of {before} processes, not {count}; start it with {command} -m rlstack.train"
        )
    return states[0 if ranks is None else ranks.index]
