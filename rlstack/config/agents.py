"""The typed options of the agents: what ``conf/agent/*.yaml`` may hold, with the bounds of every number.

They stand apart from the agents themselves, so that a mistake is told without importing torch, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from rlstack.config.schedules import ScheduleConfig, make_schedules
from rlstack.config.typed import Interval, build

Activation: TypeAlias = Literal["relu", "tanh", "silu", "gelu", "elu"]
Precision: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
Squash: TypeAlias = Literal["arctan", "tanh"]

_LARGEST = 1e9
_PRECISE = "beyond that float32 can no longer tell the results apart"
_WHOLE = 2**53  # whole numbers that a float can still hold

Positive = Annotated[float, Interval(low=0, high=_LARGEST, open_low=True, why=_PRECISE)]
NonNegative = Annotated[float, Interval(low=0, high=_LARGEST, why=_PRECISE)]
Finite = Annotated[float, Interval(low=-_LARGEST, high=_LARGEST, why=_PRECISE)]
Fraction = Annotated[float, Interval(low=0, high=1)]
Count = Annotated[int, Interval(low=1, high=_WHOLE)]
Whole = Annotated[int, Interval(low=0, high=_WHOLE)]
Gain = Annotated[float, Interval(low=0, high=1000, open_low=True, why="of the usual size of weights")]
Noise = Annotated[float, Interval(low=0, high=10, why="actions lie in [-1, 1]")]
Steps = Annotated[int, Interval(low=1, high=10_000, why="steps of an episode")]

Scheduled = float | ScheduleConfig
_RATE = Interval(low=0, high=100, why="a step moves a parameter by about so much")
LearningRate = Annotated[Scheduled, _RATE]
Probability = Annotated[Scheduled, Interval(low=0, high=1)]
Coefficient = Annotated[Scheduled, Interval(low=0, high=_LARGEST, why=_PRECISE)]
NoiseScale = Annotated[Scheduled, Interval(low=0, high=10, why="actions lie in [-1, 1]")]
Level: TypeAlias = Annotated[float, Interval(low=0, high=1, open_low=True)]


@dataclass(frozen=True)
class AdaptiveLevel:
    """A level of risk that falls with the distance d to the nearest obstacle: ``clip(d / distance, low, high)``.

    Source: the adaptive IQN of arXiv 2307.16240.

    Attributes:
        distance: from which on the level is ``high``, in the world's units.
        low, high: bounds of the level.
    """

    distance: Positive
    low: Level = 0.1
    high: Level = 1.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")


CVaR: TypeAlias = Level | AdaptiveLevel


@dataclass(frozen=True)
class RecurrentConfig:
    """The memory of an agent.

    Attributes:
        kind: of its cells.
        size: width of a layer.
        layers: one above the other.
        sequence_length: steps that a gradient reaches back (truncated backpropagation through time, Williams & Peng
            1990); what is older is given as the state in which a sequence began.
    """

    kind: Literal["lstm", "gru"]
    size: Count = 128
    layers: Annotated[int, Interval(low=1, high=100)] = 1
    sequence_length: Steps = 32


@dataclass(frozen=True)
class ReplayedConfig(RecurrentConfig):
    """The memory of an agent that learns from replayed sequences.

    Attributes:
        burn_in: further steps before each sequence that only bring its first state up to date.
    """

    burn_in: Annotated[int, Interval(low=0, high=10_000, why="steps of an episode")] = 0


@dataclass(frozen=True)
class ReplayConfig:
    """The parts of a replay buffer.

    Attributes:
        storage: of TorchRL's, where transitions are kept: ``LazyTensorStorage`` in memory, ``LazyMemmapStorage`` in
            files that may be larger than memory.
        directory: where these files are put; None for the system's temporary one.
        sampler: which of them are drawn: ``uniform``, or ``prioritized`` by their errors (Schaul et al. 2016).
    """

    storage: Literal["LazyTensorStorage", "LazyMemmapStorage"] = "LazyTensorStorage"
    directory: str | None = None
    sampler: Literal["uniform", "prioritized"] = "uniform"


_ENCODERS = {"flat": (), "mlp": ("hidden",), "set": ("hidden", "mask", "pool"), "image": ("features",), "skip": ()}


@dataclass(frozen=True)
class EncoderConfig:
    """How one key of an observation is encoded.

    Attributes:
        kind: ``flat``: its numbers as they are; ``mlp``: these through layers; ``set``: K things ``[K, F]``, each
            through the same layers; ``image``: through convolutions; ``skip``: it is left out.
        hidden: ``mlp``, ``set``: widths of the layers.
        mask: ``set``: key of ``[K]``, above 0.5 where there is something; null: everywhere.
        pool: ``set``: ``flatten`` joins the K encodings in order (empty ones zero), the others join those that are
            there into one, whatever their order and number (Zaheer et al. 2017); without any it is zero.
        features: ``image``: width of the layer after the convolutions.
    """

    kind: Literal["flat", "mlp", "set", "image", "skip"]
    hidden: list[Count] | None = None
    mask: str | None = None
    pool: Literal["flatten", "mean", "max", "sum"] | None = None
    features: Count | None = None

    def __post_init__(self) -> None:
        allowed = _ENCODERS[self.kind]
        given = [field.name for field in fields(self)[1:] if getattr(self, field.name) is not None]
        if strange := [name for name in given if name not in allowed]:
            takes = ", ".join(allowed) or "no options"
            raise ValueError(f"kind {self.kind!r} has no {strange[0]}, it takes {takes}")
        for name in ("hidden", "features"):
            if name in allowed and not getattr(self, name):
                raise ValueError(f"kind {self.kind!r} needs {name}")


@dataclass
class AgentConfig:
    """What the configuration of every agent has; the yaml files say what each number does."""

    name: str
    algorithm: str
    steps_per_batch: Count
    # networks
    inputs: Literal["raw", "features"]
    self_features: Count
    object_features: list[Count]
    hidden: list[Count]
    activation: Activation
    normalize_observations: bool
    normalize_rewards: bool
    # optimisation
    gamma: Fraction
    precision: Precision
    accumulate: Count
    encoders: dict[str, EncoderConfig] | None = field(default=None, kw_only=True)
    parameters: Literal["shared", "split"] = field(default="shared", kw_only=True)
    bfloat16_pays: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("hidden", "object_features"):
            if not getattr(self, name):
                raise ValueError(f"{name} [] has no layers, give one width at least")


@dataclass
class OnPolicyConfig(AgentConfig):
    """The part of an on-policy agent's yaml that both have."""

    critic_hidden: list[Count] | None
    orthogonal: bool
    initial_std: Annotated[float, Interval(low=1e-8, high=148.0, why="its logarithm is kept within [-20, 5]")]
    gae_lambda: Fraction
    normalize_advantage: bool
    value_coefficient: NonNegative
    entropy_coefficient: Coefficient
    lr: LearningRate
    optimizer_eps: Positive
    max_grad_norm: Positive | None
    shared_layers: Whole = field(default=0, kw_only=True)
    policy_gain: Gain = field(default=0.01, kw_only=True)
    value_gain: Gain = field(default=1.0, kw_only=True)
    unbiased_statistics: bool = field(default=False, kw_only=True)
    greedy: Literal["mode", "sample"] = field(default="mode", kw_only=True)
    recurrent: RecurrentConfig | None = field(default=None, kw_only=True)
    critic: Literal["own", "central"] = field(default="own", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_layers >= len(self.hidden):
            raise ValueError(f"shared_layers {self.shared_layers} leaves none of the {len(self.hidden)} hidden layers")
        if self.shared_layers and self.critic_hidden is not None:
            raise ValueError("critic_hidden must be null where layers are shared")
        if self.critic_hidden == []:
            raise ValueError("critic_hidden [] has no layers, give one width at least, or null")


@dataclass
class PPOConfig(OnPolicyConfig):
    """See ``conf/agent/ppo.yaml`` for what each number does."""

    epochs: Annotated[int, Interval(low=1, high=10_000, why="passes over the same data")]
    minibatch_size: Annotated[int, Interval(low=2, high=_WHOLE)]
    clip: Annotated[Scheduled, Interval(low=0, high=100, open_low=True, why="probability ratios begin at 1")]
    clip_value: Positive | None
    target_kl: Positive | None
    normalize_over: Literal["minibatch", "rollout"] = field(default="minibatch", kw_only=True)
    short_minibatch: bool = field(default=False, kw_only=True)
    report_over: Literal["last", "all"] = field(default="last", kw_only=True)
    value_first: Whole = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_first and self.shared_layers:
            raise ValueError("value_first needs a value function of its own, shared_layers=0")
        if self.minibatch_size % self.accumulate:
            raise ValueError(f"accumulate {self.accumulate} does not divide minibatch_size {self.minibatch_size}")


@dataclass
class A2CConfig(OnPolicyConfig):
    """See ``conf/agent/a2c.yaml`` for what each number does."""


@dataclass
class OffPolicyConfig(AgentConfig):
    """The part of an off-policy agent's yaml that all of them have."""

    # targets
    n_step: Steps
    target_tau: Annotated[float, Interval(low=0, high=1, open_low=True)]
    target_every: Count | None
    # memory
    batch_size: Count
    buffer_size: Count
    replay_device: str | None
    # cadence
    random_frames: Whole
    learning_starts: Whole
    frames_per_update: Annotated[float, Interval(low=1e-4, high=_WHOLE, why="10,000 updates per frame at most")]
    replay: ReplayConfig = field(default_factory=ReplayConfig, kw_only=True)
    priority_exponent: Annotated[float, Interval(low=0, high=10)] = field(default=0.6, kw_only=True)
    importance_exponent: Probability = field(
        default_factory=lambda: ScheduleConfig("linear", start=0.4, end=1.0), kw_only=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replay.directory is not None and self.replay.storage != "LazyMemmapStorage":
            raise ValueError("replay.directory is for replay.storage=LazyMemmapStorage, give null")
        if self.batch_size > self.buffer_size:
            raise ValueError(f"batch_size {self.batch_size} is larger than buffer_size {self.buffer_size}")
        if self.n_step > self.buffer_size:
            raise ValueError(f"n_step {self.n_step} is more than buffer_size {self.buffer_size} holds")
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate {self.accumulate} does not divide batch_size {self.batch_size}")


@dataclass
class DQNConfig(OffPolicyConfig):
    """See ``conf/agent/dqn.yaml`` for what each number does."""

    double: bool
    dueling: bool
    lr: LearningRate
    max_grad_norm: Positive | None
    epsilon: Probability
    recurrent: ReplayedConfig | None = field(default=None, kw_only=True)


@dataclass
class RainbowConfig(OffPolicyConfig):
    """See ``conf/agent/rainbow.yaml`` for what each number does."""

    num_atoms: Annotated[int, Interval(low=2, high=100_000)]
    value_min: Finite
    value_max: Finite
    noise_std: Noise
    resample_noise: bool
    lr: LearningRate
    adam_eps: Positive
    max_grad_norm: Positive | None
    epsilon: Probability
    # memory
    memory: Literal["prioritized", "interleaved"]
    replay: ReplayConfig = field(default_factory=lambda: ReplayConfig(sampler="prioritized"), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_min >= self.value_max:
            raise ValueError("value_min must be below value_max")
        if self.memory == "interleaved" and self.steps_per_batch != 1:
            raise ValueError("memory=interleaved takes steps one by one: steps_per_batch must be 1")
        if self.replay.sampler == "uniform":
            raise ValueError("rainbow draws by priority; priority_exponent=0 draws uniformly")
        if self.memory == "interleaved" and self.replay.storage != "LazyTensorStorage":
            raise ValueError("memory=interleaved lives in memory: replay.storage must be LazyTensorStorage")
        if self.memory == "interleaved" and self.replay_device is not None:
            raise ValueError("memory=interleaved lives with the learner: replay_device must be null")


@dataclass
class IQNConfig(OffPolicyConfig):
    """See ``conf/agent/iqn.yaml`` for what each number does."""

    target_action: Literal["mean", "per_quantile"]
    double: bool
    num_quantiles: Annotated[int, Interval(low=1, high=10_000)]
    kappa: Positive
    lr: LearningRate
    max_grad_norm: Positive | None
    epsilon: Probability
    # acting
    act_quantiles: Annotated[int, Interval(low=1, high=10_000)]
    act_levels: Literal["midpoints", "random"]
    cvar: CVaR
    recurrent: ReplayedConfig | None = field(default=None, kw_only=True)


@dataclass
class DDPGConfig(OffPolicyConfig):
    """See ``conf/agent/ddpg.yaml`` for what each number does."""

    join: Literal["concat", "gated"]
    layer_norm: bool
    squash: Squash
    output_scale: Gain
    raw_penalty: NonNegative
    critic_loss: Literal["mse", "smooth_l1"]
    lr_actor: LearningRate
    lr_critic: LearningRate
    max_grad_norm: Positive | None
    # exploration
    epsilon: Probability
    noise: NoiseScale


@dataclass
class TD3Config(DDPGConfig):
    """See ``conf/agent/td3.yaml`` for what each number does."""

    target_noise: Noise
    target_noise_clip: NonNegative
    actor_every: Count


@dataclass
class SACConfig(OffPolicyConfig):
    """See ``conf/agent/sac.yaml`` for what each number does."""

    join: Literal["concat", "gated"]
    layer_norm: bool
    squash: Squash
    correction: Literal["exact", "tanh"]
    target_actor: bool
    # temperature
    alpha: Annotated[float, Interval(low=2.1e-9, high=22_000, why="its logarithm is kept within [-20, 10]")]
    learn_alpha: bool
    target_entropy: Annotated[float, Interval(low=-1000, high=1000, why="about -1 for each action")] | None
    lr_alpha: LearningRate
    # optimisation
    lr_actor: LearningRate
    lr_critic: LearningRate
    max_grad_norm: Positive | None
    # acting
    epsilon: Probability
    greedy: Literal["mode", "sample"]


@dataclass
class ACQNConfig(OffPolicyConfig):
    """See ``conf/agent/acqn.yaml`` for what each number does."""

    critic: Literal["gated", "late"]
    layer_norm: bool
    squash: Squash
    output_scale: Gain
    # losses
    num_quantiles: Annotated[int, Interval(low=1, high=10_000)]
    kappa: Positive
    shared_levels: bool
    target_noise: Noise
    raw_penalty: NonNegative
    # optimisation
    lr_actor: LearningRate
    lr_critic: LearningRate
    max_grad_norm_actor: Positive | None
    max_grad_norm_critic: Positive | None
    # exploration
    epsilon: Probability
    noise_low: Noise
    noise_high: Noise
    noise_scale: NoiseScale
    # acting
    greedy_actor: Literal["online", "target"]
    candidates: Annotated[int, Interval(low=1, high=100_000)]
    candidate_spread: Noise
    cvar: CVaR

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_low > self.noise_high:
            raise ValueError(f"noise_low {self.noise_low} is above noise_high {self.noise_high}")
        if self.critic == "gated" and (len(self.hidden) != 2 or self.hidden[0] != self.hidden[1]):
            raise ValueError("critic=gated has two hidden layers of one width, give hidden as [n, n]")
        if self.critic == "gated" and self.layer_norm:
            raise ValueError("critic=gated has no layer normalisation, give layer_norm=false")


@dataclass
class LegacyConfig:
    """See ``conf/agent/legacy.yaml`` for what each key does; those of other kinds than the agent's must be null."""

    name: str
    algorithm: str
    kind: str | None
    path: str | None
    vecnormalize: str | None
    normalization: str | None
    deterministic: bool | None
    agent_type: str | None
    protocol: Literal["auto", "callable", "act", "predict"] | None
    batched: bool | None
    arrays: Literal["auto", "numpy", "torch"] | None
    which: Literal["latest", "best"] | None
    steps_per_batch: Count

    normalize_observations: ClassVar[bool] = False
    normalize_rewards: ClassVar[bool] = False


CONFIGS: dict[str, type[Any]] = {
    "ppo": PPOConfig,
    "a2c": A2CConfig,
    "dqn": DQNConfig,
    "rainbow": RainbowConfig,
    "iqn": IQNConfig,
    "ddpg": DDPGConfig,
    "td3": TD3Config,
    "sac": SACConfig,
    "acqn": ACQNConfig,
    "legacy": LegacyConfig,
}
"""Of the algorithms that are shipped; those of a user's own agents stand in their classes."""


def check_agent(config: Mapping[str, Any], total_frames: int) -> None:
    """Checks everything about the options of a shipped agent that can be known without its world.

    Raises:
        ConfigError: an unknown key, a wrong type, or a number or a schedule out of its bounds.
    """
    algorithm = config.get("algorithm")
    if isinstance(algorithm, str) and algorithm in CONFIGS:
        make_schedules(build(CONFIGS[algorithm], config, "agent"), total_frames, "agent")
