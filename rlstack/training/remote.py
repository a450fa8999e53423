"""Runs whose worlds workers step: processes of this machine or of a Ray cluster (``collector.backend``).

The learner's process keeps a small copy of the worlds for their specs, and never steps it.
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any

import numpy as np
import torch
from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import EnvBase

from rlstack.agents import Agent, agent_class
from rlstack.agents.on_policy import FromRollouts, OnPolicy
from rlstack.config import ConfigError
from rlstack.data.collector import make_collector
from rlstack.envs.extras import needs
from rlstack.envs.world import World, hooks_of
from rlstack.runs.seeding import seed_everything
from rlstack.runs.worlds import build_world, device_of_worlds, size_key

from .config import CollectorConfig, TrainConfig
from .curriculum import Curriculum
from .offline import OfflineCollector
from .workers import RemoteCollector, WorkerCollector, WorkerPolicy, ignore_signals

_CPU = torch.device("cpu")


def remote(config: TrainConfig) -> bool:
    """Returns whether workers step the worlds of the run."""
    return config.collector.backend != "direct"


def check_collector(config: TrainConfig) -> None:
    """Checks that workers can meet the options.

    Raises:
        ConfigError: they cannot, Ray is not installed, or the cluster does not exist.
    """
    c = config.collector
    if not remote(config):
        return
    if c.backend == "multiasync":
        _check_corrected(config.agent)
    if config.env.get("opponents") is not None:
        raise ConfigError(f"env.opponents: cannot be combined with collector.backend={c.backend}, set it to null")
    key = size_key(config.env)
    if key is None:
        raise ConfigError(f"env: {config.env.get('name')} has no num_worlds that {c.workers} workers could share")
    if int(config.env[key]) % c.workers:
        raise ConfigError(f"env.{key}: {config.env[key]} is not a multiple of the {c.workers} workers that share them")
    if config.env.get("max_instances") is not None:
        raise ConfigError(
            "env.max_instances: each worker of a collector, and the learner, builds environments of its own; set "
            "collector=direct, where env.workers steps them in other processes"
        )
    if c.backend == "ray":
        _check_cluster(c)
    else:
        device_of_worlds(c.device, _CPU)


def _check_corrected(agent: Mapping[str, Any]) -> None:
    """Raises a :class:`ConfigError` if the agent cannot learn from batches of older policies."""
    name, remedy = agent["name"], "set collector=multiprocess"
    chosen = agent_class(agent["algorithm"])
    if issubclass(chosen, OnPolicy):
        if agent.get("advantage") == "vtrace":
            return
        remedy = f"correct for that with agent.advantage=vtrace, or {remedy}"
    elif not issubclass(chosen, FromRollouts) and agent.get("data") != "rollout":
        return
    raise ConfigError(
        f"collector.backend: multiasync brings what older policies have gathered, agent={name} learns from its present "
        f"policy's alone: {remedy}"
    )


def worlds_here(config: TrainConfig, device: torch.device) -> torch.device:
    """Returns the device of this process's worlds, given that of the learner."""
    return _CPU if remote(config) else device_of_worlds(config.collector.device, device)


def build_worlds(config: TrainConfig, device: torch.device, options: Mapping[str, Any]) -> EnvBase:
    """Builds the worlds of this process; with workers, a copy of one worker's worlds.

    Args:
        options: options of the worlds; see :class:`rlstack.training.acceleration.Acceleration`.
    """
    if not remote(config):
        env = build_world(config.env, device, config.seed, **options)
    else:
        plain = {name: value for name, value in {"workers": 0, "compiled": False}.items() if name in config.env}
        env = build_world(config.env, _CPU, config.seed, num_worlds=_share(config), **plain)
    if isinstance(env, World):
        env.run_type_checks = bool(config.debug)
    return env


def start_collector(
    config: TrainConfig,
    env: EnvBase,
    agent: Agent,
    curriculum: Curriculum | None,
    options: Mapping[str, Any],
    saved: Sequence[dict[str, Any]] | None,
) -> Any:
    """Returns the collector of a run: over the worlds of this process, or over workers.

    Args:
        curriculum: curriculum that sets the stage of the workers' worlds.
        options: options of the worlds; see :class:`rlstack.training.acceleration.Acceleration`.
        saved: states that the workers' worlds resume from.

    Raises:
        CollectorFailed: workers do not start.
    """
    c = config.collector
    if config.data is not None:
        return OfflineCollector.of(config, env)
    if not remote(config):
        collector: Any = make_collector(env, agent.policy(explore=True), c.steps_per_batch, policy_device=agent.device)
        collector.lends = True
        if config.cudagraphs is False:
            collector.records = False
        return collector

    def level() -> int | None:
        return None if curriculum is None else curriculum.level

    start = partial(_start_workers, config, dict(options))
    device, waits = device_of_worlds(c.device, _CPU), c.backend != "multiasync"
    return RemoteCollector(start, agent, device, c.workers, level, config.seed, c.timeout, waits, saved)


def _share(config: TrainConfig) -> int:
    return int(config.env[size_key(config.env)]) // config.collector.workers


def _start_workers(
    config: TrainConfig, options: dict[str, Any], policy: WorkerPolicy, seed: int, steps: int, sync: Any, errors: str
) -> Callable[[], Any]:
    """Returns a function that starts TorchRL's collector of all workers; see :class:`RemoteCollector`."""
    c = config.collector
    worlds = [partial(_worlds_of, config, options, index, seed, steps) for index in range(c.workers)]
    each = c.steps_per_batch * _share(config)
    together = {"frames_per_batch": each * c.workers}
    if c.backend == "ray":
        import ray
        from torchrl.collectors.distributed import RayCollector

        if not ray.is_initialized():  # initialised here, since it ends with the thread that began it
            ray.init(**_cluster(c))
        remote = {"num_cpus": c.cpus, "num_gpus": c.gpus}
        more: dict[str, Any] = {"sync": True, "total_frames": 2**62, "remote_configs": remote, "collector_kwargs": {}}
        return partial(RayCollector, worlds, policy, collector_class=WorkerCollector, **together, **more)
    more = {"collector_class": partial(WorkerCollector, errors=errors), "use_buffers": True, "num_threads": 1}
    more |= {"init_fn": ignore_signals, "auto_register_policy_transforms": False}
    more["weight_sync_schemes"] = {"policy": sync}
    if c.backend == "multiasync":
        return partial(MultiAsyncCollector, worlds, policy, frames_per_batch=each, **more)
    return partial(MultiSyncCollector, worlds, policy, cat_results=0, **together, **more)


def _worlds_of(config: TrainConfig, options: dict[str, Any], index: int, seed: int, steps: int) -> EnvBase:
    """Builds a worker's worlds after ``steps`` steps; all its random numbers depend on the seed and its index."""
    here, own = _share(config), int(np.random.SeedSequence((seed, index)).generate_state(1)[0])
    torch.set_num_threads(config.threads or 1)
    seed_everything(own)
    env = build_world(config.env, device_of_worlds(config.collector.device, _CPU), seed, num_worlds=here, **options)
    if isinstance(env, World):
        env.run_type_checks = bool(config.debug)
        env.share(here * index, here * config.collector.workers, seed)
    else:
        env.set_seed(own)
    hooks_of(env).count_on_from(steps)
    return env


# -- Ray -----------------------------------------------------------------------------------------------------------


def _check_cluster(c: CollectorConfig) -> None:
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"collector.backend: ray {needs('ray')}")
    if c.address is None:
        return
    import ray

    ours = not ray.is_initialized()
    try:
        if c.address != "auto":  # Ray itself would retry for minutes
            host, _, port = c.address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        if ours:
            ray.init(**_cluster(c))
        has = ray.cluster_resources()
    except Exception as error:  # Ray raises errors of many types
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
    """Returns the arguments of ``ray.init``."""
    quiet = {"log_to_driver": False, "logging_level": "error"}
    if c.address is not None:
        return {"address": c.address, **quiet}
    cpus, gpus = ceil(c.cpus * c.workers), ceil(c.gpus * c.workers)
    more = {"num_gpus": gpus} if gpus else {}
    return {"address": "local", "num_cpus": max(cpus, os.cpu_count() or 1), "include_dashboard": False, **more, **quiet}
