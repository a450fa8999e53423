"""Runs whose worlds are stepped by workers: processes of this machine, or of a Ray cluster (``collector.backend``).

The learner's process keeps a small copy of the worlds, which it never steps: it knows their specs.
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any

import torch
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import EnvBase

from envs.world import World
from rlstack.agents import Agent, build_agent
from rlstack.config import ConfigError
from rlstack.data.collector import make_collector
from rlstack.data.remote import RemoteCollector
from rlstack.data.workers import Share
from rlstack.runs.seeding import seed_everything
from rlstack.runs.worlds import build_world, device_of_worlds, size_key

from .config import CollectorConfig, TrainConfig
from .curriculum import Curriculum

_CPU = torch.device("cpu")


def remote(config: TrainConfig) -> bool:
    """Workers step the worlds of the run."""
    return config.collector.backend != "direct"


def check_collector(config: TrainConfig) -> None:
    """Whether workers can do what is asked for.

    Raises:
        ConfigError: they cannot, or there is no Ray or no such cluster.
    """
    c = config.collector
    if not remote(config):
        return
    if config.env.get("opponents") is not None:
        raise ConfigError(f"env.opponents: cannot be combined with collector.backend={c.backend}, set it to null")
    key = size_key(config.env)
    if key is None:
        raise ConfigError(f"env: {config.env.get('name')} has no num_worlds that {c.workers} workers could share")
    if int(config.env[key]) % c.workers:
        raise ConfigError(f"env.{key}: {config.env[key]} is no multiple of the {c.workers} workers that share them")
    if c.backend == "ray":
        _check_cluster(c)
    else:
        device_of_worlds(c.device, _CPU)


def worlds_here(config: TrainConfig, device: torch.device) -> torch.device:
    """Where the worlds of this process are, whose learner is on a device."""
    return _CPU if remote(config) else device_of_worlds(config.collector.device, device)


def build_worlds(config: TrainConfig, device: torch.device, options: Mapping[str, Any]) -> EnvBase:
    """The worlds of this process; where workers step them, a copy of those of one of them.

    Args:
        options: of the worlds, see :class:`rlstack.training.acceleration.Acceleration`.
    """
    if not remote(config):
        return build_world(config.env, device, config.seed, **options)
    plain = {name: value for name, value in {"workers": 0, "compiled": False}.items() if name in config.env}
    return build_world(config.env, _CPU, config.seed, num_worlds=_share(config), **plain)


def start_collector(
    config: TrainConfig,
    env: EnvBase,
    agent: Agent,
    curriculum: Curriculum | None,
    options: Mapping[str, Any],
    saved: Sequence[dict[str, Any]] | None,
) -> Any:
    """What gathers batches for an agent: a collector over the worlds of this process, or workers.

    Args:
        curriculum: whose stage the workers' worlds are in.
        options: of the worlds, see :class:`rlstack.training.acceleration.Acceleration`.
        saved: states of the workers' worlds to go on from.

    Raises:
        CollectorFailed: workers do not begin.
    """
    c = config.collector
    if not remote(config):
        return make_collector(env, agent.policy(explore=True), c.steps_per_batch, policy_device=agent.device)
    steps = c.steps_per_batch * _share(config) * c.workers
    makers = [partial(_make_share, config, dict(options), index) for index in range(c.workers)]
    start = partial(_on_ray, c) if c.backend == "ray" else partial(MultiSyncCollector, num_threads=1)

    def level() -> int | None:
        return None if curriculum is None else curriculum.level

    return RemoteCollector(start, makers, steps, agent, level, config.seed, c.timeout, saved)


def _share(config: TrainConfig) -> int:
    return int(config.env[size_key(config.env)]) // config.collector.workers


def _make_share(config: TrainConfig, options: dict[str, Any], index: int, seed: int) -> Share:
    """In a worker: its worlds, and an agent whose networks are going to be the learner's."""
    here = _share(config)
    total = here * config.collector.workers
    torch.set_num_threads(config.threads or 1)
    seed_everything((seed + here * index) % 2**32)
    device = device_of_worlds(config.collector.device, _CPU)
    env = build_world(config.env, device, seed, num_worlds=here, **options)
    if isinstance(env, World):
        env.share(here * index, total, seed)
    else:
        env.set_seed(seed + here * index)
    agent = build_agent(config.agent, env, config.total_frames, device)
    return Share(env, agent, here * index, total)


# -- Ray -----------------------------------------------------------------------------------------------------------


def _check_cluster(c: CollectorConfig) -> None:
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("collector.backend: ray is not installed; pip install 'rlstack[ray]'")
    if c.address is None:
        return
    import ray

    ours = not ray.is_initialized()
    try:
        if c.address != "auto":  # Ray itself goes on trying for minutes
            host, _, port = c.address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        if ours:
            ray.init(**_cluster(c))
        has = ray.cluster_resources()
    except Exception as error:  # Ray has many, for whatever is not as it should be
        reason = str(error).strip().splitlines()
        raise ConfigError(
            f"collector.address: no Ray cluster can be reached at {c.address} "
            f"({type(error).__name__}: {reason[0] if reason else ''}); allowed: null, auto, <host>:<port>"
        ) from None
    finally:
        if ours:
            ray.shutdown()
    for name, each in (("CPU", c.cpus), ("GPU", c.gpus)):
        if each * c.workers > has.get(name, 0):
            raise ConfigError(
                f"collector.workers: {c.workers} with {each:g} {name}s each are more than the cluster has, "
                f"{has.get(name, 0):g}; see collector.{name.lower()}s"
            )


def _cluster(c: CollectorConfig) -> dict[str, Any]:
    """How Ray is begun."""
    quiet = {"log_to_driver": False, "logging_level": "error"}
    if c.address is not None:
        return {"address": c.address, **quiet}
    cpus, gpus = ceil(c.cpus * c.workers), ceil(c.gpus * c.workers)
    more = {"num_gpus": gpus} if gpus else {}
    return {"address": "local", "num_cpus": max(cpus, os.cpu_count() or 1), "include_dashboard": False, **more, **quiet}


def _on_ray(c: CollectorConfig, makers: list[Any], **options: Any) -> Any:
    from torchrl.collectors.distributed import RayCollector

    remote = {"num_cpus": c.cpus, "num_gpus": c.gpus}
    options |= {"remote_configs": remote, "ray_init_config": _cluster(c), "collector_kwargs": {}}
    return RayCollector(makers, sync=True, **options)
