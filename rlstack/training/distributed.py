"""Data parallelism: one run in several processes, ``torchrun --nproc_per_node=2 -m rlstack.train ...``.

Each rank has its own random numbers and a share of the worlds, of the batch sizes and of the replay capacity. Frames
are counted over all ranks, gradients and metrics are averaged at every optimiser step, running statistics and episodes
are merged. Only the first rank evaluates, logs and writes the run.
See the README of this folder.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack.agents import Agent
from rlstack.config import ConfigError
from rlstack.config.errors import RunError
from rlstack.data.normalizers import RunningMoments
from rlstack.envs.world import World
from rlstack.files.safe_load import from_file, to_file
from rlstack.runs.checkpoint import state_digest
from rlstack.runs.seeding import seed_everything
from rlstack.runs.worlds import choose_device, size_key

from .config import TrainConfig

_NO_LIMIT = timedelta(days=20)
"""The other ranks wait for the first rank's evaluations, however long they take. The limit of 2^31 ms is 24.8 days."""
_SHARED = ("batch_size", "minibatch_size", "buffer_size")
"""Options of an agent that count over all ranks together."""
_OWN = ("agent", "env", "monitor", "rng", "replay", "curriculum", "data")
_EQUAL = ("networks", "targets", "optimizers")
"""Parts of an agent's state that are usually equal on all ranks."""


class Ranks:
    """This process among those that learn together. With a single process every method returns its input.

    All ranks must call every method that combines their values, in the same order.

    Args:
        index: number of this process, from 0.
        count: number of processes.

    Attributes:
        first: whether this is the process that evaluates, logs and writes files.
    """

    def __init__(self, index: int = 0, count: int = 1) -> None:
        self.index, self.count, self.first = index, count, index == 0
        self._attached = count == 1

    # -- numbers and states of all ranks ---------------------------------------------------------------------------

    def sum(self, *numbers: float, kind: str = "SUM") -> list[float]:
        """Returns sums over the ranks, exact up to 2^53."""
        if self.count == 1:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64)
        self._meet(lambda: dist.all_reduce(values, getattr(dist.ReduceOp, kind)))
        return values.tolist()

    def least(self, number: int) -> int:
        """Returns the smallest of the ranks' numbers."""
        return int(self.sum(number, kind="MIN")[0])

    def any(self, flag: bool) -> bool:
        """Returns whether the flag is true on any rank."""
        return self.sum(flag)[0] > 0

    def of_first(self, *numbers: float) -> list[float]:
        """Returns the first rank's numbers."""
        return self.sum(*(number if self.first else 0.0 for number in numbers))

    def mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns means over the ranks, by one all-reduce in the first tensor's type."""
        flat = torch.cat([tensor.detach().flatten().to(tensors[0]) for tensor in tensors])
        self._meet(lambda: dist.all_reduce(flat))
        parts = flat.div_(self.count).split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors)]

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Returns the tensors of all ranks, which have the same shape."""
        parts = [torch.empty_like(tensor) for _ in range(self.count)] if self.count > 1 else [tensor]
        self._meet(lambda: dist.all_gather(parts, tensor))
        return parts

    def everyone(self, state: Any, to_first: bool = False) -> list[Any]:
        """Returns the nested dicts of tensors and numbers of all ranks; with ``to_first`` on the first rank only."""
        if self.count == 1:
            return [state]
        own = torch.frombuffer(bytearray(to_file(state)), dtype=torch.uint8)
        sizes = [int(size) for size in self.gather(torch.tensor(len(own)))]
        padded = torch.nn.functional.pad(own, (0, max(sizes) - len(own)))
        if not to_first:
            parts = self.gather(padded)
        else:
            parts = [torch.empty_like(padded) for _ in sizes] if self.first else []
            self._meet(lambda: dist.gather(padded, parts or None))
        return [from_file(part[:size].numpy().tobytes()) for part, size in zip(parts, sizes)]

    def _meet(self, send: Callable[[], Any]) -> None:
        if self.count == 1:
            return
        try:
            send()
        except RuntimeError as error:
            if isinstance(error, dist.DistError) or "onnection" in str(error) or "imed out" in str(error):
                raise RunError("another process of this run has ended, so this one does, too") from error
            raise

    # -- worlds and agent ------------------------------------------------------------------------------------------

    def place(self, env: EnvBase, seed: int) -> None:
        """Gives this rank's worlds their own random numbers, and lets them count the steps of all ranks' worlds."""
        here = env.batch_size.numel()
        if isinstance(env, World) and self.count > 1:
            env.share(here * self.index, here * self.count, self.seed(seed))
        elif self.count > 1:
            env.set_seed(self.seed(seed))

    def seed(self, seed: int) -> int:
        """Returns the seed of this rank, which for the first rank is the run's."""
        return seed if self.first else int(np.random.SeedSequence((seed, self.index)).generate_state(1)[0])

    def attach(self, agent: Agent, seed: int | None) -> None:
        """Lets the agents of all ranks learn together from now on; does nothing if they do already.

        Args:
            seed: seed of a new run, in which all take the first rank's networks and each draws its own random numbers.
                None for a resumed run, whose ranks have loaded their states.
        """
        if self._attached:
            return
        self._attached = True
        networks = [*agent.networks.values(), *(target.network for target in agent.targets.values())]
        if seed is not None:
            for value in [value for network in networks for value in network.state_dict().values()]:
                if isinstance(value, Tensor):
                    self._meet(lambda data=value.data: dist.broadcast(data, 0))  # type: ignore[misc]
            if not self.first:
                seed_everything(self.seed(seed))
        for module in [module for network in networks for module in network.modules()]:
            if isinstance(module, RunningMoments):
                module.gather = self.gather
        for optimizer in agent.optimizers.values():
            optimizer.mean = self.mean
        agent.least = self.least

    # -- checkpoint ------------------------------------------------------------------------------------------------

    def join_states(self, state: dict[str, Any]) -> bool:
        """Adds the other ranks' own states to the first rank's; returns whether this is the first rank."""
        if self.count == 1:
            return True
        own = {key: state[key] for key in _OWN if key in state}
        others = self.everyone(None if self.first else own, to_first=True)[1:]
        for other in others:
            for kind in _EQUAL:
                first = state["agent"][kind]
                other["agent"][kind] = {
                    name: theirs
                    for name, theirs in other["agent"][kind].items()
                    if state_digest({"agent": theirs}) != state_digest({"agent": first[name]})
                }
        if self.first:
            state["other_ranks"] = others
        return self.first

    def own(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns this rank's part of the state of all ranks.

        Raises:
            ConfigError: the state is of another number of ranks.
        """
        others = state.pop("other_ranks", [])
        before = len(others) + 1
        if self.count != before:
            command = f"torchrun --standalone --nproc_per_node={before}" if before > 1 else "python"
            raise ConfigError(
                f"resume: the run is one of {before} processes, not {self.count}; "
                f"start it with {command} -m rlstack.train"
            )
        if self.first:
            return state
        other, first = others[self.index - 1], state["agent"]
        agent = {**other["agent"], **{kind: {**first[kind], **other["agent"][kind]} for kind in _EQUAL}}
        return {**state, **other, "agent": agent}


def join() -> Ranks:
    """Connects to the other processes that torchrun has started.

    Raises:
        ConfigError: they cannot be reached.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        return Ranks()
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        try:
            dist.init_process_group(backend, timeout=_NO_LIMIT)
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"torchrun: the other processes cannot be reached ({reason})") from None
        atexit.register(dist.destroy_process_group)
    return Ranks(dist.get_rank(), dist.get_world_size())


def share_of(config: TrainConfig, ranks: Ranks) -> TrainConfig:
    """Returns a rank's configuration: its share of the worlds, batches and replay buffer, its own device, no loggers.

    Batch sizes and capacities that the number of ranks does not divide are rounded up, so that all ranks have the same.

    Raises:
        ConfigError: an option that several processes cannot have.
    """
    if ranks.count == 1:
        return config
    key = size_key(config.env)
    if key is None:
        raise ConfigError(f"env: {config.env.get('name')} has no num_worlds that {ranks.count} processes could share")
    if int(config.env[key]) % ranks.count:
        total = config.env[key]
        raise ConfigError(f"env.{key}: {total} is not a multiple of the {ranks.count} processes that share them")
    if config.collector.backend != "direct":
        name = config.collector.backend
        raise ConfigError(f"collector.backend: {name} cannot be combined with torchrun, set collector=default")
    shared = {name: -(-config.agent[name] // ranks.count) for name in _SHARED if config.agent.get(name)}
    worlds = config.collector.device
    config = replace(
        config,
        env={**config.env, key: int(config.env[key]) // ranks.count},
        agent={**config.agent, **shared},
        device=_device_name(config.device),
        collector=replace(config.collector, device=worlds and _device_name(worlds)),
    )
    device = choose_device(config.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if ranks.first:
        return config
    if isinstance(opponents := config.env.get("opponents"), dict):  # each has snapshots of its own, all the same
        config = replace(config, env={**config.env, "opponents": {**opponents, "pool": None}})
    return replace(config, logger=replace(config.logger.without_services(), tensorboard=False))


def _device_name(name: str) -> str:
    """Returns this process's own GPU; raises a :class:`ConfigError` if all processes would take the same one."""
    if name == "cuda" or (name == "auto" and torch.cuda.is_available()):
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    if name.startswith("cuda:"):
        raise ConfigError(
            f"device: {name} is one GPU for several processes; set device=cuda, so that each takes its own"
        )
    return name


@contextlib.contextmanager
def aside(ranks: Ranks) -> Iterator[Path | None]:
    """Yields None on the first rank, which alone prints and keeps files; on others a folder that is deleted."""
    if ranks.first:
        yield None
        return
    with (
        tempfile.TemporaryDirectory(prefix="rlstack-rank-", ignore_cleanup_errors=True) as folder,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        yield Path(folder)
