"""The worlds and the collector of a run: in this process, or through TorchRL's multi-process and Ray collectors.

Each worker holds a copy of the policy, draws its own random numbers and collects whole batches. Before each batch the
learner sends its weights. This module adds to TorchRL's collectors: the state of worlds and random generators for
checkpoints, a time limit for workers, and the replacement of lost workers. The learner's process keeps a small copy of
the workers' worlds for their specs, and never steps it.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import EnvBase
from torchrl.weight_update import SharedMemWeightSyncScheme
from torchrl.weight_update.weight_sync_schemes import WeightStrategy

from rlstack.agents import Agent, agent_class
from rlstack.agents.base import AgentPolicy, copy_on
from rlstack.agents.on_policy import FromRollouts, OnPolicy
from rlstack.config import ConfigError
from rlstack.data.collector import LEAN, LeanCollector, make_collector
from rlstack.envs.foundation.files import write_text
from rlstack.envs.foundation.packages import needs
from rlstack.envs.foundation.processes import place_of
from rlstack.envs.world import GROUP, MEMORY, World, hooks_of
from rlstack.files.safe_load import first_line, from_file, to_file
from rlstack.runs.seeding import restore_rng, rng_state, seed_everything
from rlstack.runs.worlds import build_world, device_of_worlds, size_key

from .config import CollectorConfig, TrainConfig
from .curriculum import Curriculum
from .hooks import Hook
from .recorded import OfflineCollector

ATTEMPTS = 3
"""Number of times in a row that workers are replaced before the run ends."""

PATIENCE = 20.0
"""Seconds that TorchRL's collector may take to end; on Ray it may wait for ever if the cluster's processes are gone."""

AHEAD = 4
"""Greatest number of batches of a worker that wait for those of slower ones."""
_OWNER = ("collector", "traj_ids")
"""Entry of a batch with the index of its worker; TorchRL's synchronous collector counts frames by it."""


class WorkerPolicy(TensorDictModuleBase):
    """The policy of workers, with the stage of their worlds (-1 for none) as a buffer beside the weights."""

    stage: Tensor

    def __init__(self, policy: Any, device: torch.device) -> None:
        super().__init__()
        self.in_keys, self.out_keys, self.policy = policy.in_keys, policy.out_keys, policy
        self.register_buffer("stage", torch.tensor(-1, device=device))
        if hasattr(policy, "entries"):  # for worlds that step many times in a call
            self.entries = policy.entries

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.policy(tensordict)


class _Read(TorchFunctionMode):
    """A context that collects the tensors given to torch's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for given in (*args, *(kwargs or {}).values()):
            parts = given if isinstance(given, list | tuple) else (given,)
            self.tensors += [part for part in parts if isinstance(part, Tensor)]
        return func(*args, **(kwargs or {}))


def check_followed(agent: Agent, seen: TensorDictBase) -> None:
    """Checks that workers will act with the learner's weights, which replace the tensors of their policy's parameters.

    Args:
        agent: the learner.
        seen: entries that its policy reads.

    Raises:
        ConfigError: the policy acts with other tensors than its own parameters and buffers.
    """
    policy = copy_on(agent.policy(explore=True), agent.device)
    for part in policy.modules():
        if isinstance(part, AgentPolicy):
            part.frames.fill_(agent.total_frames)  # at the beginning of a run many act at random
    policy(seen.copy())
    before = TensorDict.from_module(policy)
    WeightStrategy().apply_weights(policy, before.data.clone(), inplace=False)  # as TorchRL's collectors do
    with _Read() as read:
        policy(seen.copy())
    held, sent = ({*map(id, weights.values(True, True))} for weights in (before, TensorDict.from_module(policy)))
    for tensor in read.tensors:
        if id(tensor) not in sent and (id(tensor) in held or isinstance(tensor, nn.Parameter)):
            fault = f"agent={agent.config.name} acts with a parameter {list(tensor.shape)} that they are not sent"
            remedy = "give add_network every network that acts, not only a loss that holds it, or set collector=default"
            raise ConfigError(f"collector.backend: workers would never follow the learner: {fault}; {remedy}")


class WorkerCollector(LeanCollector):
    """The collector within a worker, given to TorchRL's multi-process and Ray collectors as ``collector_class``.

    Its batches always lie in the same shared memory, so that only the first is sent: a new batch would cost a file
    descriptor and .3 ms for each of its tensors, as much as a step of small worlds.

    Args:
        create_env_fn: function that builds the worker's worlds.
        policy: a :class:`WorkerPolicy`, or a ``policy_factory`` in its place.
        frames_per_batch: number of steps in a batch, over all its worlds.
        worker_idx: index of the worker.
        errors: folder for the error that ends the worker; None raises it, and Ray forwards it to the learner.
        options: options of TorchRL's collectors, of which those in ``LEAN`` apply.
    """

    def __init__(
        self,
        create_env_fn: Callable[..., EnvBase],
        policy: Any = None,
        *,
        frames_per_batch: int,
        worker_idx: int,
        errors: str | None = None,
        policy_factory: Any = None,
        **options: Any,
    ) -> None:
        self.worker_idx, self._errors = worker_idx, errors
        self._sent: TensorDictBase | None = None
        self._stage = -1
        given = {"policy_factory": policy_factory, "worker_idx": worker_idx, "total_frames": -1}
        with self._telling():
            super().__init__(create_env_fn, policy, frames_per_batch=frames_per_batch, **given, **LEAN)
        self._use_buffers = True  # makes TorchRL's loop send only the first batch

    def shutdown(self, *args: Any, **options: Any) -> None:
        self._use_buffers = False  # keeps TorchRL from releasing a buffer that does not exist
        super().shutdown(*args, **options)

    def iterator(self) -> Iterator[TensorDictBase]:
        """Yields batches ``[W, T]`` on the CPU without end."""
        for collected in super().iterator():
            batch = collected.cpu().set(_OWNER, torch.full(collected.batch_size, self.worker_idx))
            self._sent = batch if self._sent is None else self._sent.update_(batch)
            yield self._sent

    def rollout(self) -> TensorDictBase:
        """Collects a batch in the stage that came with the weights."""
        with self._telling():
            self._enter_stage()
            return super().rollout()

    def _enter_stage(self) -> None:
        stage = int(self.policy.stage)
        if stage != self._stage:
            hooks_of(self.env).set_stage(stage)
            self._stage = stage

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """A context that reports every error to the learner, including those that would end this process silently."""
        try:
            yield
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, SystemExit):  # raised by the world's code
                world = type(self.env).__name__ if hasattr(self, "env") else "a world"
                reason = f"{world} called sys.exit({error.code!r}) in {place_of(error)}"
            if self._errors is None:
                raise _Mistake(reason) from error
            text = "".join(traceback.format_exception(error))
            write_text(Path(self._errors) / str(self.worker_idx), f"{reason}\n{text}")
            raise SystemExit(1) from None

    def state_dict(self) -> Any:
        """Returns as one tensor the states that batches depend on: worlds, random generators, recurrent states."""
        remembered = self._carrier.select(MEMORY, (GROUP, MEMORY), strict=False).to_dict()
        return _packed({"world": self.env.state_dict(), "random": rng_state(), "remembered": remembered})

    def load_state_dict(self, state_dict: Any, **_: Any) -> None:
        """Restores :meth:`state_dict`; worlds that cannot be saved begin new episodes."""
        state = _unpacked(state_dict)
        self._enter_stage()  # in which worlds that cannot be saved begin
        self.env.load_state_dict(state["world"])
        self._stage = -1  # the state may hold the stage of the batch before
        self._enter_stage()
        self.reset()
        if hooks_of(self.env).saves_episodes and state["remembered"]:
            self._carrier.update(state["remembered"])
        restore_rng(state["random"])


def _packed(state: dict[str, Any]) -> dict[str, Tensor]:
    """Packs a state into a tensor, the one kind of entry that TorchRL's collectors forward unchanged."""
    return {"file": torch.frombuffer(bytearray(to_file(state)), dtype=torch.uint8)}


def _unpacked(state: dict[str, Tensor]) -> dict[str, Any]:
    return from_file(state["file"].numpy().tobytes())


def ignore_signals() -> None:
    """Ignores signals in a worker: the learner handles them and ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


# -- the learner's side ----------------------------------------------------------------------------------------------


class CollectorFailed(RuntimeError):
    """Workers fail repeatedly, or by an error that every worker would raise; the message is one line.

    Attributes:
        traceback: traceback of the worker, empty if there is none.
    """

    def __init__(self, reason: str, traceback: str = "") -> None:
        super().__init__(reason)
        self.traceback = traceback


class _Mistake(RuntimeError):
    """An error that ends a worker on Ray, which forwards it to the learner."""


class _Lost(RuntimeError):
    """A worker has died or does not answer."""


class RemoteCollector:
    """Iterates over batches ``[W, T]`` of all workers' worlds, in the workers' order.

    If a worker dies or hangs, all workers are replaced and their worlds begin new episodes.

    Args:
        start: function of a :class:`WorkerPolicy`, a seed, the steps that each worker's worlds have counted (for their
            schedules), TorchRL's scheme that sends weights to processes, and the folder ``errors``; returns a function
            that starts a TorchRL collector.
        agent: the learner.
        device: device that workers act on.
        workers: number of workers.
        level: function that returns the stage of the worlds; None if they have no stages.
        seed: seed of the run.
        timeout: seconds that workers may take to start, or to collect a batch.
        waits: whether workers wait for new weights before each batch; otherwise they continue, and their state is not
            saved.
        saved: states that the workers resume from; see :meth:`worlds`.

    Attributes:
        worker_failures: number of times workers have been replaced.
    """

    def __init__(
        self,
        start: Callable[..., Callable[[], Any]],
        agent: Agent,
        device: torch.device,
        workers: int,
        level: Callable[[], int | None],
        seed: int,
        timeout: float,
        waits: bool = True,
        saved: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        self._start, self._agent, self._device, self._workers = start, agent, device, workers
        self._level, self._seed, self._timeout, self._waits = level, seed, timeout, waits
        self._policy, self._steps, self.worker_failures = agent.policy(explore=True), 0, 0
        self._inner: Any = None
        self._errors = tempfile.TemporaryDirectory(prefix="rlstack-workers-", ignore_cleanup_errors=True)
        try:
            self._begin()
            if saved is not None:
                self._within(lambda: self._go_on(saved))
        except BaseException as error:
            self.shutdown()
            if isinstance(error, _Lost):
                raise CollectorFailed(f"workers do not begin: {error}") from error
            raise

    def __iter__(self) -> Iterator[TensorDictBase]:
        while True:
            batch = self._insist(self._next)
            self._steps += batch.numel() // self._workers
            yield batch.to(self._agent.device)

    def reset(self) -> None:
        """Begins new episodes in all worlds.

        Workers that do not wait are replaced, since TorchRL would wait in vain for their unfinished batches.
        """
        if self._waits:
            self._insist(lambda: self._inner.reset())
        else:
            self._insist(lambda: None, anew=True)

    def worlds(self) -> list[dict[str, Any]]:
        """Returns the state of each worker; empty if workers do not wait."""
        return self._insist(self._states) if self._waits else [{}]

    def shutdown(self, close_env: bool = True) -> None:
        """Ends the workers."""
        inner, self._inner, threads = self._inner, None, torch.get_num_threads()

        def end() -> None:
            with suppress(Exception):  # workers may have ended already
                inner.shutdown()

        if inner is not None:
            ending = threading.Thread(target=end, daemon=True)
            ending.start()
            ending.join(PATIENCE)
        self._sync.shutdown()  # which otherwise begins a thread when Python ends, and waits for it for ever
        torch.set_num_threads(threads)  # TorchRL raises the number when its processes end

    # -- requests to workers -------------------------------------------------------------------------------------

    def _next(self) -> TensorDictBase:
        """Returns the next batch of every worker; each row continues that of the previous call.

        Where a faster worker is :data:`AHEAD` batches ahead, its oldest one is dropped, and all rows begin anew.
        """
        batches, come = self._batches, self._come  # replaced together with the workers
        self._inner.update_policy_weights_(self._weights())
        dropped = False
        while not all(come):
            batch = next(batches)
            if batch.ndim == 3:  # from Ray: [workers, W / workers, T]
                batch = batch.flatten(0, 1)
            for part in batch.chunk(self._workers if self._waits else 1):
                parts = come[int(part[_OWNER][0, 0])]
                dropped |= len(parts) == AHEAD  # the queue's greatest length
                parts.append(part.exclude("collector"))
        if dropped:
            self._agent.begin_episodes()
        return torch.cat([parts.popleft() for parts in come])

    def _weights(self) -> TensorDict:
        level = self._level()
        weights = TensorDict.from_module(self._policy).data
        return TensorDict({"policy": weights, "stage": torch.tensor(-1 if level is None else level)})

    def _states(self) -> list[dict[str, Any]]:
        states = self._inner.state_dict()  # from Ray: a list
        own = states if isinstance(states, list) else [states[f"worker{index}"] for index in range(self._workers)]
        return [_unpacked(state) for state in own]

    def _go_on(self, saved: Sequence[dict[str, Any]]) -> None:
        if not self._waits:
            self._agent.begin_episodes()
            return
        self._steps = saved[0]["world"].get("total_steps", 0)
        self._inner.update_policy_weights_(self._weights())
        states = {f"worker{index}": _packed(state) for index, state in enumerate(saved)}
        on_ray = not hasattr(self._inner, "procs")
        self._inner.load_state_dict(list(states.values()) if on_ray else {**states, "frames": 0, "iter": -1})

    # -- lost workers ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._sync, threads = SharedMemWeightSyncScheme(), torch.get_num_threads()
        policy = WorkerPolicy(copy_on(self._policy, self._device), self._device)
        self._inner = self._within(self._start(policy, self._seed, self._steps, self._sync, self._errors.name))
        torch.set_num_threads(threads)  # TorchRL lowers the number when it starts processes
        self._come: list[deque[TensorDictBase]] = [deque(maxlen=AHEAD) for _ in range(self._workers)]
        self._batches = iter(self._inner)

    def _insist(self, task: Callable[[], Any], anew: bool = False) -> Any:
        """Returns the result of a task; replaces lost workers and repeats it (``anew``: with new workers at once)."""
        for attempt in range(ATTEMPTS + 1):
            try:
                if attempt or anew:
                    self.shutdown()
                    self._agent.begin_episodes()
                    self._seed = (self._seed + self._agent.frames + self.worker_failures) % 2**32
                    self._begin()
                return self._within(task)
            except _Lost as error:
                lost = error
                self.worker_failures += 1
        raise CollectorFailed(f"workers were replaced {ATTEMPTS} times in vain: {lost}") from lost

    def _within(self, task: Callable[[], Any]) -> Any:
        """Returns the result of a task within the time limit; TorchRL would wait for ever for workers that hang."""
        before, answer, starts = multiprocessing.active_children(), futures.Future[Any](), self._inner is None

        def run() -> None:
            try:
                answer.set_result(task())
            except BaseException as error:
                answer.set_exception(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        begun = time.monotonic()
        try:
            while not futures.wait([answer], timeout=0.5).done:
                if time.monotonic() - begun > self._timeout:
                    raise _Lost(f"no answer within {self._timeout:g} s (collector.timeout)")
                if not all(map(_lives, getattr(self._inner, "procs", ()))):  # the result may never come
                    raise _Lost("a worker has died")
            return answer.result()
        except (Exception, SystemExit) as error:
            self.shutdown()
            for _ in range(50 if starts else 0):  # the thread may go on to start workers for a while
                for process in multiprocessing.active_children():
                    if process not in before:
                        process.kill()
                thread.join(0.1)
                if not thread.is_alive():
                    break
            for left in sorted(Path(self._errors.name).glob("[0-9]*")):
                reason, _, trace = left.read_text().partition("\n")
                raise CollectorFailed(reason, trace) from None
            if isinstance(mistake := getattr(error, "cause", None), _Mistake):
                raise CollectorFailed(str(mistake), str(error)) from None
            last = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
            raise error if isinstance(error, _Lost) else _Lost(last) from error


def _lives(process: Any) -> bool:
    try:
        return process.is_alive()
    except ValueError:  # TorchRL has closed it
        return False


# -- the worlds and the collector of a run ----------------------------------------------------------------------------

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
        kind = agent_class(config.agent["algorithm"])
        from_rollouts = issubclass(kind, OnPolicy | FromRollouts) or config.agent.get("data") == "rollout"
        corrects = issubclass(kind, OnPolicy) and config.agent.get("advantage") == "vtrace"
        if from_rollouts and not corrects:
            name = config.agent["name"]
            remedy = "correct for that with agent.advantage=vtrace, or " if issubclass(kind, OnPolicy) else ""
            raise ConfigError(
                f"collector.backend: multiasync brings what older policies have gathered, agent={name} learns from its "
                f"present policy's alone: {remedy}set collector=multiprocess"
            )
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
    hooks: Sequence[Hook],
    options: Mapping[str, Any],
    saved: Sequence[dict[str, Any]] | None,
) -> Any:
    """Returns the collector of a run: over the worlds of this process, or over workers.

    Args:
        hooks: hooks of the run; a curriculum among them sets the stage of the workers' worlds.
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
        return next((hook.level for hook in hooks if isinstance(hook, Curriculum)), None)

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
        what = f"no Ray cluster can be reached at {c.address} ({type(error).__name__}: {first_line(error)})"
        raise ConfigError(f"collector.address: {what}; allowed: null, auto, <host>:<port>") from None
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
