"""The typed configuration of a training run, which ``conf/train.yaml`` composes."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from rlstack.config import ConfigError, Interval, convert
from rlstack.config.options import Count, NonNegative, Positive, Whole
from rlstack.envs.foundation.packages import needs

from .notices import check_address
from .stages import CurriculumConfig

_CORES = os.cpu_count() or 1
Threads = Annotated[int, Interval(low=1, high=max(64, _CORES), why=f"this machine has {_CORES} cores")]
Seed = Annotated[int, Interval(low=0, high=2**32 - 1)]
_USUAL = 0.1
"""Share of a run between two evaluations."""
Often = Annotated[int | float, Interval(low=0, high=2**53, open_low=True)]
"""An interval: a share of the run if below 1, otherwise a number of frames; one longer than the run ends with it."""

_Repeats = Annotated[int, Interval(low=1, high=10_000, why="each step of a batch takes so many")]
_OF_EVERY_WORLD = {"num_worlds": Count, "num_envs": Count, "action_repeat": _Repeats, "frame_stack": Count}

RESUMABLE = (
    "total_frames",
    "until",
    "log_every",
    "eval",
    "checkpoint",
    "logger",
    "objective",
    "guard",
    "agent.precision",
    "collector.timeout",
    "collector.address",
    "threads",
    "device",
    "compile",
    "cudagraphs",
    "deterministic",
    "notify",
    "imitation.only",
    "data",
    "resume",
    "allow",
)
"""Keys of a run's configuration that may change when the run is resumed."""


def is_resumable(key: str) -> bool:
    """Returns whether the value of a dotted key may change when a run is resumed."""
    return key in RESUMABLE or key.partition(".")[0] in RESUMABLE


def differing(given: Any, stored: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields each dotted key with different values in two configurations, and both values; an absent one is None."""
    if isinstance(given, Mapping) and isinstance(stored, Mapping):
        for name in {**given, **stored}:
            yield from differing(given.get(name), stored.get(name), f"{key}.{name}".lstrip("."))
    elif given != stored:
        yield key, given, stored


@dataclass
class CollectorConfig:
    """Options of the collector.

    Attributes:
        steps_per_batch: env steps of each world in a batch.
        count: what counts as a frame: one decision of one agent, or one step of one world however many agents it has
            (the unit of MarineNav's published schedules). Only this option distinguishes the two.
        device: device that the worlds are stepped on; None for the learner's device. The policy acts on the learner's
            device. Workers both step and act on this device; None is their CPU.
        backend: which processes collect: this one, several on this machine that wait for the learner's weights before
            each batch (``multiprocess``) or do not wait (``multiasync``), or workers on a Ray cluster.
        workers: number of workers among which the worlds are divided.
        timeout: seconds that a worker may take to begin, or to collect a batch.
        address: address of the Ray cluster; ``auto`` for one that runs on this machine, None to start one here.
        cpus, gpus: resources of each worker on a cluster.
    """

    steps_per_batch: Count
    count: Literal["decisions", "env_steps"]
    device: str | None = None
    backend: Literal["direct", "multiprocess", "multiasync", "ray"] = "direct"
    workers: Count = 1
    timeout: Positive = 300.0
    address: str | None = None
    cpus: Positive = 1.0
    gpus: NonNegative = 0.0

    def __post_init__(self) -> None:
        if self.backend == "direct" and self.workers > 1:
            raise ValueError("several workers need collector=multiprocess, multiasync or ray")


@dataclass
class LoggerConfig:
    """The options of the ``logger`` group.

    Attributes:
        tensorboard: whether to write TensorBoard event files.
        wandb: whether and how to use Weights & Biases.
        wandb_project: project in W&B.
        wandb_entity: team or user in W&B; None is the account's default.
        wandb_group: name under which W&B groups several runs, or None.
        wandb_tags: tags of the run in W&B.
        wandb_name: name of the run in W&B; None for the name of its directory.
        wandb_timeout: seconds to wait for the service before the run is recorded offline instead. At the end, uploads
            may take ten times as long; the rest stays in the run directory for ``wandb sync``.
        mlflow: whether to use MLflow.
        mlflow_uri: URI of the tracking server; None is ``MLFLOW_TRACKING_URI`` or, without it, a file of the run.
        mlflow_experiment: MLflow experiment that the run belongs to.
        trackio: whether to use Trackio.
        trackio_project: project in Trackio.
    """

    tensorboard: bool
    wandb: Literal["online", "offline", "disabled"]
    wandb_project: str
    wandb_entity: str | None
    wandb_group: str | None
    wandb_tags: list[str]
    wandb_timeout: Annotated[float, Interval(low=0, open_low=True)]
    wandb_name: str | None = None
    mlflow: bool = False
    mlflow_uri: str | None = None
    mlflow_experiment: str = "rlstack"
    trackio: bool = False
    trackio_project: str = "rlstack"

    def check_installed(self) -> None:
        """Raises a :class:`ConfigError` if the package of a logger is missing."""
        for name in ("mlflow", "trackio"):
            if getattr(self, name) and find_spec(name) is None:
                raise ConfigError(f"logger.{name} {needs(name)}")

    def without_services(self) -> LoggerConfig:
        """Returns the same options with every service switched off: nothing leaves the run's folder."""
        return replace(self, wandb="disabled", mlflow=False, trackio=False)

    def names(self) -> list[str]:
        """Returns the names of the loggers that are used."""
        wandb = [] if self.wandb == "disabled" else [f"wandb ({self.wandb})"]
        others = [name for name in ("tensorboard", "mlflow", "trackio") if getattr(self, name)]
        return ["csv", *others, *wandb]


@dataclass
class EvalConfig:
    """Evaluation during training.

    Attributes:
        every: frames between evaluations, see :data:`Often`; None: a tenth of the run, if they take little of its time,
            see :class:`rlstack.training.loop.Evaluations`.
        episodes: number of episodes per level, or in all for worlds without levels.
        seed: seed of the fixed evaluation episodes.
        max_steps: number of steps after which an unfinished episode is scored as it stands; None: the world's limit.
    """

    every: Annotated[int | float | None, Interval(low=0, high=2**53, open_low=True)]
    episodes: Count
    seed: Seed
    max_steps: Count | None = None


@dataclass
class CheckpointConfig:
    """Checkpoints during training.

    Attributes:
        every: frames between checkpoints; see :data:`Often`.
        keep: number of the latest checkpoints to keep, besides the best.
        replay: whether a checkpoint stores the replay buffer too; without it a resumed run starts with an empty one.
    """

    every: Often
    keep: Count
    replay: bool


@dataclass
class GuardConfig:
    """What to do about numbers that are not finite, in batches or in updates.

    Attributes:
        non_finite: ends the run, skips such batches and updates, or restores the agent of the last log line and
            continues with other random numbers.
        limit: number of batches skipped in a row, or of restorations, after which the run ends nevertheless.
    """

    non_finite: Literal["error", "skip", "rollback"] = "error"
    limit: Count = 10


@dataclass
class ImitationConfig:
    """Behaviour cloning before, or instead of, reinforcement learning; there is none without an expert or episodes.

    Attributes:
        expert: policy to imitate: one of the world's players, a run directory or checkpoint, or ``kind:path`` of a
            agent from elsewhere.
        expert_options: options of an agent from elsewhere; see :func:`rlstack.agents.legacy.load_policy`.
        episodes: file of recorded episodes, instead of an expert.
        frames: number of the expert's decisions to gather.
        epochs: number of passes over the data.
        batch_size: number of decisions in a step of the optimiser.
        lr: learning rate at the beginning; it falls linearly to zero.
        only: whether the run ends after the imitation.
        replay: whether the expert's experience also enters the replay buffer of an off-policy agent.
    """

    expert: str | None
    expert_options: dict[str, Any]
    episodes: str | None
    frames: Count
    epochs: Count
    batch_size: Count
    lr: Annotated[float, Interval(low=0, high=100, open_low=True)]
    only: bool
    replay: bool

    def __post_init__(self) -> None:
        if self.expert is not None and self.episodes is not None:
            raise ValueError("set expert or episodes, not both")
        if self.only and not self.wanted:
            raise ValueError("only=true needs an expert or episodes")
        if self.replay and self.expert is None:
            raise ValueError("replay=true needs an expert; recorded episodes hold no rewards")

    @property
    def wanted(self) -> bool:
        """Returns whether there is something to imitate."""
        return self.expert is not None or self.episodes is not None


@dataclass
class ObjectiveConfig:
    """The number by which sweeps compare runs.

    Attributes:
        metric: column of ``metrics.csv``; None for ``eval/success``, or ``eval/return`` in a world without success.
        value: which value of the column to take.
    """

    metric: str | None = None
    value: Literal["last", "max", "min", "mean"] = "last"


@dataclass
class TrainConfig:
    """The configuration of one run. The agent's and the world's own types check ``agent`` and ``env``.

    :mod:`rlstack.training.acceleration` describes ``compile``, ``cudagraphs`` and ``deterministic``.
    ``init`` names a checkpoint; a new run starts from the networks of its agent. ``data`` names the data that an
    offline run learns from (:mod:`rlstack.training.recorded`). Without a ``curriculum`` the world keeps its options.
    ``debug`` is a number of frames, or True for the usual number (:func:`rlstack.training.run.debugged`). The run stops
    at ``until`` frames with a checkpoint and can be resumed; schedules refer to ``total_frames``. ``log_every``,
    ``eval.every`` and ``checkpoint.every`` may be given as shares of ``total_frames``; here they are frames.
    ``seeds`` is the number of runs in one process (:mod:`rlstack.training.seeds`), None in the configuration of each.
    ``notify`` is the address of a webhook and a secret: no file of a run contains it.
    ``allow`` lists what files may name beyond data (:mod:`rlstack.config.allowed`); only the command line can set it.
    """

    agent: dict[str, Any]
    env: dict[str, Any]
    collector: CollectorConfig
    logger: LoggerConfig
    eval: EvalConfig
    checkpoint: CheckpointConfig
    total_frames: Count
    log_every: Often
    seed: Seed
    device: str
    threads: Threads | None
    run_dir: str | None
    resume: str | None
    debug: bool | Whole
    imitation: ImitationConfig
    init: str | None = None
    data: str | None = None
    compile: bool | Literal["auto"] = False
    cudagraphs: bool | Literal["auto"] = "auto"
    deterministic: bool | Literal["auto"] = "auto"
    curriculum: CurriculumConfig | None = None
    until: Count | None = None
    seeds: Annotated[int, Interval(low=1, high=1000)] | None = None
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    notify: str | None = field(default=None, repr=False)
    allow: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_address(self.notify)
        self.log_every = _frames_between("log_every", self.log_every, self.total_frames)
        for name in ("eval", "checkpoint"):
            part = getattr(self, name)
            if part.every is not None:
                every = _frames_between(f"{name}.every", part.every, self.total_frames)
                setattr(self, name, replace(part, every=every))
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device: {self.device!r} is unknown, allowed: auto, cpu, cuda, cuda:<k>")
        for group, key in ((self.agent, "agent.algorithm"), (self.env, "env.name")):
            value = group.get(key.partition(".")[2], "")
            if not isinstance(value, str):
                raise ValueError(f"{key}: expected a name, got {value!r}")
        for name, kind in _OF_EVERY_WORLD.items():
            if self.env.get(name) is not None:
                convert(kind, self.env[name], f"env.{name}")
        for name in ("run_dir", "resume", "init", "data"):
            if getattr(self, name) == "":
                raise ValueError(f"{name}: '' names no folder; set a path or null")

    @property
    def evaluation_every(self) -> int:
        """Returns the frames between evaluations, of which some may be left out if ``eval.every`` is None."""
        return int(self.eval.every or _frames_between("eval.every", _USUAL, self.total_frames))


def _frames_between(key: str, every: int | float, total_frames: int) -> int:
    """Returns an interval in frames; a share of the run is rounded so that it fits a whole number of times."""
    if every < 1:
        return math.ceil(round(every * total_frames, 3)) or 1
    if every != int(every):
        raise ValueError(f"{key}: {every:g} is neither a whole number of frames nor, below 1, a share of total_frames")
    return int(every)


def with_length(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration with its length: a run of imitation alone needs none.

    Raises:
        ConfigError: ``total_frames`` is not given, and the world has no default.
    """
    imitation = plain["imitation"]
    if plain["total_frames"] is not None:
        return dict(plain)
    if imitation["only"] is True:
        return {**plain, "total_frames": imitation["frames"]}
    env = plain["env"].get("name") if isinstance(plain["env"], Mapping) else None
    raise ConfigError(
        f"total_frames: missing, since env={env} has no default length; set it, for example total_frames=1e5"
    )


def check_learns(config: TrainConfig) -> None:
    """Raises a :class:`ConfigError` if the agent would learn nothing: too late, or only to do what it does."""
    if config.data is not None or config.imitation.only:
        return
    if config.agent.get("loss") == "rlstack.losses.cloning.CloningLoss":
        raise ConfigError(
            "agent: it only clones recorded data; set data=<run, file or folder>, or choose another agent"
        )
    starts = None if config.agent.get("data") == "rollout" else config.agent.get("learning_starts")
    if isinstance(starts, int | float) and starts > config.total_frames:
        raise ConfigError(
            f"agent.learning_starts: {starts:,} frames, but the run ends at total_frames={config.total_frames:,}; it "
            "would learn nothing"
        )


def offline_options(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration of a run with ``data``: an update for each batch drawn, and few worlds.

    Raises:
        ConfigError: an option that an offline run cannot have.
    """
    agent, env = dict(plain["agent"]), dict(plain["env"])
    for key, value in (("curriculum", plain.get("curriculum")), ("env.opponents", env.get("opponents"))):
        if value is not None:
            raise ConfigError(f"data: no world is stepped, set {key}=null")
    if any(plain["imitation"].get(key) is not None for key in ("expert", "episodes")):
        raise ConfigError("data: set imitation or data, not both; agent=bc clones data")
    if plain["collector"].get("backend", "direct") != "direct":
        raise ConfigError("data: nothing is collected, set collector=default")
    if agent.get("correction") == "retrace":
        raise ConfigError("data: correction=retrace is for data that the agent collects, set agent.correction=none")
    if agent.get("batch_size") is None:
        raise ConfigError(f"data: {needs_memory(agent.get('name'))}")
    agent |= {"frames_per_update": agent["batch_size"], "learning_starts": 0, "random_frames": 0}
    few = {"num_worlds": 2, "num_envs": 2, "workers": 0, "compiled": False}
    env |= {key: value for key, value in few.items() if env.get(key) is not None}
    return {**plain, "agent": agent, "env": env}


def needs_memory(name: Any) -> str:
    """Returns the message that an agent cannot learn from recorded data."""
    return f"agent={name} learns from fresh rollouts alone; choose one with a replay buffer: iql, cql, td3_bc, bc, sac"
