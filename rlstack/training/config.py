"""The typed configuration of a training run: what ``conf/train.yaml`` composes."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from rlstack.config import ConfigError, Interval, convert
from rlstack.config.agents import Count, NonNegative, Positive, Whole

from .notices import check_address
from .stages import CurriculumConfig

_CORES = os.cpu_count() or 1
Threads = Annotated[int, Interval(low=1, high=max(64, _CORES), why=f"this machine has {_CORES} cores")]
Seed = Annotated[int, Interval(low=0, high=2**32 - 1)]
Often = Annotated[int | float, Interval(low=0, high=2**53, open_low=True)]
"""An interval: below 1 a share of the run, else a number of frames."""

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
    "notify",
    "imitation.only",
    "data",
    "resume",
    "allow",
)
"""Keys of a run's configuration that may change when it is resumed."""


@dataclass
class CollectorConfig:
    """Options of the collector.

    Attributes:
        steps_per_batch: env steps per world between two calls of the learner.
        count: what a frame is: one decision of one agent, or one step of one world however many agents it has (the
            unit of MarineNav's published schedules). This is the one place where the two are told apart.
        device: where the worlds are stepped, None for the learner's device; the policy acts where the learner is. Of
            workers it is where they step and act, None for their CPU.
        backend: who collects: this process, several of this machine that wait for the learner's weights before each
            batch (``multiprocess``) or do not (``multiasync``), or workers on a Ray cluster.
        workers: how many share the worlds.
        timeout: seconds that one of them may take to begin, or for a batch.
        address: of the cluster, ``auto`` for one that runs here, None for a new one on this machine alone.
        cpus, gpus: of each worker on a cluster.
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
        wandb_project: its project.
        wandb_entity: its team or user; None is the account's default.
        wandb_group: under which name several runs are grouped, or None.
        wandb_tags: tags of the run.
        wandb_name: of the run in W&B, None for that of its directory.
        wandb_timeout: seconds to wait for the service before the run is recorded offline instead; at the end, ten times
            as long for what is not uploaded yet, which otherwise stays in the run directory for ``wandb sync``.
        mlflow: whether to use MLflow.
        mlflow_uri: of its tracking server; None is ``MLFLOW_TRACKING_URI`` or, without it, a file in the run's folder.
        mlflow_experiment: under which runs stand there.
        trackio: whether to use Trackio.
        trackio_project: its project.
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
        """Raises a :class:`ConfigError` where the package of a logger is missing."""
        for name in ("mlflow", "trackio"):
            if getattr(self, name) and find_spec(name) is None:
                raise ConfigError(f"logger.{name}: {name} is not installed; pip install 'rlstack-torchrl[{name}]'")

    def without_services(self) -> LoggerConfig:
        """The same, but nothing leaves the run's folder."""
        return replace(self, wandb="disabled", mlflow=False, trackio=False)

    def names(self) -> list[str]:
        """Of the loggers that are used."""
        wandb = [] if self.wandb == "disabled" else [f"wandb ({self.wandb})"]
        others = [name for name in ("tensorboard", "mlflow", "trackio") if getattr(self, name)]
        return ["csv", *others, *wandb]


@dataclass
class EvalConfig:
    """Evaluation during training.

    Attributes:
        every: frames between evaluations, see :data:`Often`.
        episodes: episodes per level (or in all, for worlds without levels).
        seed: of the fixed evaluation episodes.
        max_steps: an episode that has not ended after so many steps is judged as it stands; None: the world's own.
    """

    every: Often
    episodes: Count
    seed: Seed
    max_steps: Count | None = None


@dataclass
class CheckpointConfig:
    """Checkpoints during training.

    Attributes:
        every: frames between checkpoints, see :data:`Often`.
        keep: how many of the latest to keep; the best is kept besides.
        replay: store the replay buffer too; without it a resumed run starts with an empty one.
    """

    every: Often
    keep: Count
    replay: bool


@dataclass
class GuardConfig:
    """Numbers that are not finite, in what is collected or learned.

    Attributes:
        non_finite: the run ends, such batches and steps are left out, or the agent goes back to what it was at the last
            log line, with other random numbers.
        limit: after so many batches in a row that are skipped, or so many ways back, the run ends nevertheless.
    """

    non_finite: Literal["error", "skip", "rollback"] = "error"
    limit: Count = 10


@dataclass
class ImitationConfig:
    """Behaviour cloning before, or instead of, reinforcement learning; none without an expert or episodes.

    Attributes:
        expert: policy to imitate: a player of the world's own, a run directory or checkpoint, or ``kind:path`` of an
            agent from elsewhere.
        expert_options: of this kind of agent, see :func:`rlstack.agents.foreign.load_policy`.
        episodes: or a file of recorded episodes.
        frames: decisions of the expert to gather.
        epochs: passes over the data.
        batch_size: of one step.
        lr: learning rate at the beginning; it falls linearly to zero.
        only: the run ends with it.
        replay: the expert's experience also goes into the replay buffer of an off-policy agent.
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
            raise ValueError("give an expert or episodes, not both")
        if self.only and not self.wanted:
            raise ValueError("only=true needs an expert or episodes")
        if self.replay and self.expert is None:
            raise ValueError("replay=true needs an expert; recorded episodes hold no rewards")

    @property
    def wanted(self) -> bool:
        """There is something to imitate."""
        return self.expert is not None or self.episodes is not None


@dataclass
class ObjectiveConfig:
    """The one number of a run that sweeps compare.

    Attributes:
        metric: a column of ``metrics.csv``; None for ``eval/success``, or ``eval/return`` in a world without success.
        value: which of its values.
    """

    metric: str | None = None
    value: Literal["last", "max", "min", "mean"] = "last"


@dataclass
class TrainConfig:
    """One run. ``agent`` and ``env`` are checked by the agent's and the world's own types.

    ``compile`` and ``cudagraphs`` are told of in :mod:`rlstack.training.acceleration`.
    ``init`` is a checkpoint whose agent's networks a new run starts from; ``data`` is what an offline run learns from
    (:mod:`rlstack.training.offline`); without a ``curriculum`` the world is as its options say all the time.
    ``debug`` is a number of frames, or whether it is to be the usual one, see :func:`rlstack.train.debugged`. ``until``
    is where the run stops with a checkpoint, to be resumed: schedules go by ``total_frames``. ``log_every``,
    ``eval.every`` and ``checkpoint.every`` may be given as shares of ``total_frames``; here they are frames.
    ``notify`` is the address of a webhook, and a secret: no file of a run has it.
    ``allow`` is code that files may name, see :mod:`rlstack.config.named_code`; only that of the command line counts.
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
    curriculum: CurriculumConfig | None = None
    until: Count | None = None
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    notify: str | None = field(default=None, repr=False)
    allow: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_address(self.notify)
        self.log_every = _frames_between("log_every", self.log_every, self.total_frames)
        for name in ("eval", "checkpoint"):
            part = getattr(self, name)
            setattr(self, name, replace(part, every=_frames_between(f"{name}.every", part.every, self.total_frames)))
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
                raise ValueError(f"{name}: '' names no folder, give null or a path")


def _frames_between(key: str, every: int | float, total_frames: int) -> int:
    """A number of frames, of a share of the run so many that it happens as often as the share fits into the run."""
    if every < 1:
        return math.ceil(round(every * total_frames, 3)) or 1
    if every != int(every):
        raise ValueError(f"{key}: {every:g} is neither a whole number of frames nor, below 1, a share of total_frames")
    return int(every)


def with_length(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run whose length is known: a run of imitation alone needs none.

    Raises:
        ConfigError: ``total_frames`` is not given, and the world has none of its own.
    """
    imitation = plain["imitation"]
    if plain["total_frames"] is not None:
        return dict(plain)
    if imitation["only"] is True:
        return {**plain, "total_frames": imitation["frames"]}
    env = plain["env"].get("name") if isinstance(plain["env"], Mapping) else None
    raise ConfigError(
        f"total_frames: how long shall this run be? env={env} has no length of its own, give total_frames=1e5, say"
    )


def offline_options(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run with ``data``: an update for every batch that is drawn, and few worlds.

    Raises:
        ConfigError: what an offline run cannot have.
    """
    agent, env = dict(plain["agent"]), dict(plain["env"])
    for key, value in (("curriculum", plain.get("curriculum")), ("env.opponents", env.get("opponents"))):
        if value is not None:
            raise ConfigError(f"data: no world is stepped, set {key}=null")
    if any(plain["imitation"].get(key) is not None for key in ("expert", "episodes")):
        raise ConfigError("data: give imitation or data, not both; agent=bc clones data")
    if plain["collector"].get("backend", "direct") != "direct":
        raise ConfigError("data: nothing is collected, set collector=default")
    if agent.get("parameters", "shared") != "shared":
        raise ConfigError("data: the learners of two sides share no data, set agent.parameters=shared")
    if agent.get("correction") == "retrace":
        raise ConfigError("data: correction=retrace is for data that the agent collects, set agent.correction=none")
    if agent.get("batch_size") is None:
        raise ConfigError(f"data: {needs_memory(agent.get('name'))}")
    agent |= {"frames_per_update": agent["batch_size"], "learning_starts": 0, "random_frames": 0}
    few = {"num_worlds": 2, "num_envs": 2, "workers": 0, "compiled": False}
    env |= {key: value for key, value in few.items() if env.get(key) is not None}
    return {**plain, "agent": agent, "env": env}


def needs_memory(name: Any) -> str:
    """Says why an agent cannot learn from recorded data."""
    return f"agent={name} learns from fresh rollouts alone; choose one with a replay buffer: iql, cql, td3_bc, bc, sac"
