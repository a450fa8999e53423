"""The options of the agents: types, bounds, defaults, and the effect of each one.

A dataclass defines an algorithm's options completely: ``conf/agent/*.yaml`` start from its defaults
(``defaults: [dqn_options, _self_]``) and only list what differs, and ``rlstack agents dqn`` shows the comments below.
The options of shipped algorithms are here, apart from the agents, so that mistakes are reported without importing
torch, which takes seconds. A user's algorithm has its options in its own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from rlstack.config.errors import ConfigError
from rlstack.config.schedules import ScheduleConfig, make_schedules
from rlstack.config.typed import Interval, build, to_plain

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
RATE = Interval(low=0, high=100, why="a step moves a parameter by about so much")
LearningRate = Annotated[Scheduled, RATE]
Probability = Annotated[Scheduled, Interval(low=0, high=1)]
Coefficient = Annotated[Scheduled, Interval(low=0, high=_LARGEST, why=_PRECISE)]
NoiseScale = Annotated[Scheduled, Interval(low=0, high=10, why="actions lie in [-1, 1]")]
Tau = Annotated[float, Interval(low=0, high=1, open_low=True)]
PerUpdate = Annotated[float, Interval(low=1e-4, high=_WHOLE, why="10,000 updates per frame at most")]
Levels = Annotated[int, Interval(low=1, high=10_000)]
Level: TypeAlias = Annotated[float, Interval(low=0, high=1, open_low=True)]

WITHOUT_ROLLOUTS = ("n_step", "target_every", "replay", "random_frames", "epsilon")
"""Options of agents of TorchRL's losses that have no effect with ``data: rollout``."""
_GONE = {"parameters": "shared"}
"""Former options, which runs and checkpoints have stored, with the value that stands for what is done now."""


def renewed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the stored configuration of a run without its agent's former options.

    Raises:
        ConfigError: one of them asks for what this version does not do.
    """
    agent = config.get("agent")
    if not isinstance(agent, Mapping):
        return dict(config)
    for key, value in _GONE.items():
        if agent.get(key, value) != value:
            raise ConfigError(f"agent: {key}={agent[key]} is no longer known; rlstack 0.1.0 reads such a run")
    return {**config, "agent": {key: value for key, value in agent.items() if key not in _GONE}}


@dataclass(frozen=True)
class AdaptiveLevel:
    """A level of risk that falls with the distance d to the nearest obstacle: ``clip(d / distance, low, high)``.

    Source: the adaptive IQN of arXiv 2307.16240.

    Attributes:
        distance: distance of an obstacle at which the level reaches ``high``, in the world's units.
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
    """The recurrent core of an agent.

    Attributes:
        kind: type of its cells.
        size: width of a layer.
        layers: number of stacked layers.
        sequence_length: number of steps through which gradients flow (truncated backpropagation through time, Williams
            & Peng 1990); the recurrent state at the start of a sequence represents everything before it.
    """

    kind: Literal["lstm", "gru"]
    size: Count = 128
    layers: Annotated[int, Interval(low=1, high=100)] = 1
    sequence_length: Steps = 32


@dataclass(frozen=True)
class ReplayedConfig(RecurrentConfig):
    """The recurrent core of an agent that learns from replayed sequences.

    Attributes:
        burn_in: number of steps before each sequence that only bring its first recurrent state up to date.
    """

    burn_in: Annotated[int, Interval(low=0, high=10_000, why="steps of an episode")] = 0


@dataclass(frozen=True)
class ReplayConfig:
    """The parts of a replay buffer."""

    storage: Literal["LazyTensorStorage", "LazyMemmapStorage"] = "LazyTensorStorage"
    #   LazyTensorStorage: in memory | LazyMemmapStorage: in files, which may exceed memory
    directory: str | None = None  # folder of these files, null: the system's temporary one
    sampler: Literal["uniform", "prioritized"] = "uniform"  # uniform | prioritized (by errors, Schaul et al. 2016)


@dataclass(frozen=True)
class RNDConfig:
    """Exploration by random network distillation (Burda et al. 2018).

    Attributes:
        coefficient: weight of the bonus, which is added to the reward; its discounted sum is scaled to a standard
            deviation of 1.
        gamma: discount of that sum.
        features: number of features of an observation that are predicted.
        hidden: widths of the hidden layers of both networks.
        lr: learning rate of the predictor.
    """

    coefficient: NonNegative = 1.0
    gamma: Fraction = 0.99
    features: Count = 32
    hidden: list[Count] = field(default_factory=lambda: [64, 64])
    lr: LearningRate = 3.0e-4

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ValueError("hidden [] has no layers, give one width at least")


_ENCODERS = {
    "flat": (),
    "mlp": ("hidden",),
    "set": ("hidden", "mask", "pool"),
    "attention": ("hidden", "mask", "pool", "heads"),
    "image": ("features",),
    "skip": (),
}


@dataclass(frozen=True)
class EncoderConfig:
    """How one key of an observation is encoded.

    Attributes:
        kind: ``flat``: its numbers as they are; ``mlp``: its numbers through layers; ``set``: K objects ``[K, F]``,
            each through the same layers; ``attention``: the same, then self-attention (Vaswani et al. 2017);
            ``image``: through convolutions; ``skip``: left out.
        hidden: ``mlp``, ``set``, ``attention``: widths of the layers.
        mask: ``set``, ``attention``: key of ``[K]``, above 0.5 where there is an object; null: everywhere.
        pool: ``set``, ``attention``: ``flatten`` concatenates the K encodings in order (empty ones are zero); the
            others pool the present ones into one, independent of their order and number (Zaheer et al. 2017), zero if
            there are none. null: ``flatten`` for a set, ``mean`` for attention.
        features: ``image``: width of the layer after the convolutions.
        heads: ``attention``: number of heads, which share the last width; null: 4.
    """

    kind: Literal["flat", "mlp", "set", "attention", "image", "skip"]
    hidden: list[Count] | None = None
    mask: str | None = None
    pool: Literal["flatten", "mean", "max", "sum"] | None = None
    features: Count | None = None
    heads: Count | None = None

    def __post_init__(self) -> None:
        allowed = _ENCODERS[self.kind]
        given = [field.name for field in fields(self)[1:] if getattr(self, field.name) is not None]
        if strange := [name for name in given if name not in allowed]:
            takes = ", ".join(allowed) or "no options"
            raise ValueError(f"kind {self.kind!r} has no {strange[0]}, it takes {takes}")
        for name in ("hidden", "features"):
            if name in allowed and not getattr(self, name):
                raise ValueError(f"kind {self.kind!r} needs {name}")
        heads = self.heads or 4
        if self.kind == "attention" and self.hidden and self.hidden[-1] % heads:
            raise ValueError(f"{heads} heads cannot share the last width of hidden, {self.hidden[-1]}, equally")


def layers(*widths: int) -> Any:
    """Returns a default list of widths."""
    return field(default_factory=lambda: list(widths))


def linear(start: float, end: float, duration: float | None = None) -> Any:
    """Returns a default schedule from one number to another, over a share of the run (None: all of it)."""
    return field(default_factory=lambda: ScheduleConfig("linear", start, end, duration))


def cosine(start: float, end: float) -> Any:
    """Returns the same with the shape of half a cosine, over the whole run."""
    return field(default_factory=lambda: ScheduleConfig("cosine", start, end, 1.0))


@dataclass
class AgentConfig:
    """The options of every agent."""

    name: str
    algorithm: str

    # networks
    network: str | dict[str, str] | None = None  # your own, package.module:Net; or some of them by role:
    #   {actor: package.module:Actor}, see rlstack/agents/README.md
    network_options: dict[str, Any] = field(default_factory=dict)  # further arguments of your network
    inputs: Literal["raw", "features"] = "features"  # features: the world's own scaled inputs, if any; raw: as they are
    self_features: Count = 64  # width of the encoding of the agent's own state in worlds with objects, or of an image
    object_features: list[Count] = layers(32, 32)  # widths of the layers that every perceived object goes through
    encoders: dict[str, EncoderConfig] | None = None  # of single keys of a dict observation:
    #   {<key>: {kind: mlp, hidden: [64]}}, see rlstack/networks/keyed.py
    hidden: list[Count] = layers(256, 256)  # hidden widths
    activation: Activation = "relu"  # relu | tanh | silu | gelu | elu
    normalize_observations: bool = False  # by running mean and variance; a replay buffer keeps raw observations
    normalize_rewards: bool = False  # divided by the running std of the return; no mean is subtracted

    # data
    steps_per_batch: Count = 1  # env steps per world between two calls of the learner
    gamma: Fraction = 0.99  # discount per decision
    symmetry: Literal["none", "augment"] = "none"
    #   augment: also learn from mirror images, in a world that has a mirror, see rlstack/agents/symmetry.py

    # optimisation
    precision: Precision = "auto"  # of forward passes: float32 | bfloat16 | float16 (with loss scaling) |
    #   auto: see bfloat16_pays
    bfloat16_pays: bool = False  # auto uses bfloat16 if this is true, the device has units for it, and there is no
    #   recurrent core; otherwise float32
    accumulate: Count = 1  # number of equal parts into which a batch is split; their gradients are summed

    def __post_init__(self) -> None:
        for name in ("hidden", "object_features"):
            if not getattr(self, name):
                raise ValueError(f"{name} [] has no layers, give one width at least")
        if self.symmetry == "augment" and getattr(self, "recurrent", None) is not None:
            raise ValueError("symmetry=augment is for agents without a recurrent core, recurrent must be null")
        if self.network_options and not self.network:
            raise ValueError("network_options are those of a network of yours, which agent.network names")
        part = "batch_size" if hasattr(self, "batch_size") else "minibatch_size"
        if (size := getattr(self, part, 0)) % self.accumulate:
            raise ValueError(f"accumulate {self.accumulate} does not divide {part} {size}")


# -- on-policy ---------------------------------------------------------------------------------------------------


@dataclass
class OnPolicyConfig(AgentConfig):
    """The options that PPO and A2C share."""

    # networks
    hidden: list[Count] = layers(64, 64)  # hidden widths of policy and value function
    activation: Activation = "tanh"
    shared_layers: Whole = 0  # number of first hidden layers that both share; 0: separate networks
    critic_hidden: list[Count] | None = None  # hidden widths of the value function, if they differ from the policy's
    critic: Literal["own", "central"] = "own"
    #   own: sees its agent's observation; central: also sees, in training, those of the others in its world
    recurrent: RecurrentConfig | None = None
    #   a recurrent core: {kind: lstm, size: 128, layers: 1, sequence_length: 32}, or kind: gru
    orthogonal: bool = True  # orthogonal initial weights with gain sqrt 2, except for the outputs:
    policy_gain: Gain = 0.01  # gain of the policy's output
    value_gain: Gain = 1.0  # gain of the value function's output
    initial_std: Annotated[float, Interval(low=1e-8, high=148.0, why="its logarithm is kept within [-20, 5]")] = 1.0
    #   of Gaussian actions; learned, independent of the state
    greedy: Literal["mode", "sample"] = "mode"
    #   in evaluation: mode: the mean or most probable choice; sample: a sample

    # data
    advantage: Literal["gae", "vtrace"] = "gae"
    #   gae: for data of the present policy; vtrace: corrects for data of older ones (collector=multiasync)
    gae_lambda: Fraction = 0.95  # of generalised advantages, and decay of vtrace's traces
    rho_clip: Positive = 1.0  # advantage=vtrace: bound of the probability ratio that weights an error ...
    c_clip: Positive = 1.0  # ... and of the one that weights later errors
    normalize_advantage: bool = True  # zero mean and unit standard deviation

    # exploration
    rnd: RNDConfig | None = None  # an exploration bonus for novel observations: {coefficient: 1.0}; null: none

    # optimisation
    value_coefficient: NonNegative = 0.5  # weight of the value function's error
    entropy_coefficient: Coefficient = 0.0  # weight of the entropy bonus
    lr: LearningRate = 3.0e-4
    optimizer_eps: Positive = 1.0e-5
    max_grad_norm: Positive | None = 0.5  # null: gradients are not clipped

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_layers >= len(self.hidden):
            raise ValueError(f"shared_layers {self.shared_layers} leaves none of the {len(self.hidden)} hidden layers")
        if self.symmetry == "augment" and self.critic == "central":
            raise ValueError("symmetry=augment needs critic=own: a central one looks up what others saw")
        if self.shared_layers and self.network:
            raise ValueError("network: networks of yours share no layers with others, give shared_layers=0")
        if self.shared_layers and self.critic_hidden is not None:
            raise ValueError("critic_hidden must be null where layers are shared")
        if self.c_clip > self.rho_clip:
            raise ValueError(f"c_clip {self.c_clip} is above rho_clip {self.rho_clip}, give at most that")
        if self.critic_hidden == []:
            raise ValueError("critic_hidden [] has no layers, give one width at least, or null")


@dataclass
class PPOConfig(OnPolicyConfig):
    """The options of PPO."""

    # data
    steps_per_batch: Count = 128  # env steps per world between two updates
    normalize_over: Literal["minibatch", "rollout"] = "minibatch"
    #   advantages are normalised over each minibatch, or the whole rollout

    # optimisation
    epochs: Annotated[int, Interval(low=1, high=10_000, why="passes over the same data")] = 10  # passes over the data
    minibatch_size: Annotated[int, Interval(low=2, high=_WHOLE)] = 256  # about: the data are split into equal parts
    clip: Annotated[Scheduled, Interval(low=0, high=100, open_low=True, why="probability ratios begin at 1")] = 0.2
    #   of the probability ratio
    clip_value: Positive | None = None  # value predictions are clipped to this distance from the old; null: no limit
    target_kl: Positive | None = None  # an update stops after an epoch in which the policy moved this far
    value_first: Whole = 0  # initial frames in which only the value function learns: about 1e6 after imitation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_first and self.shared_layers:
            raise ValueError("value_first needs a value function of its own, shared_layers=0")


@dataclass
class A2CConfig(OnPolicyConfig):
    """The options of A2C: RMSprop (smoothing 0.99), one step on all the fresh data."""

    steps_per_batch: Count = 5
    gae_lambda: Fraction = 1.0
    normalize_advantage: bool = False
    lr: LearningRate = 7.0e-4


@dataclass
class PQNConfig(AgentConfig):
    """The options of PQN: values of choices from fresh data of many worlds, without replay buffer or target network."""

    # networks
    hidden: list[Count] = layers(128, 128)
    layer_norm: bool = True  # in every hidden layer: keeps the values bounded, instead of a target network

    # data
    steps_per_batch: Count = 32  # env steps per world between two updates
    td_lambda: Fraction = 0.65  # of the returns: 0 looks one step ahead, 1 to the end of the sequence

    # optimisation
    epochs: Annotated[int, Interval(low=1, high=10_000, why="passes over the same data")] = 4  # passes over the data
    minibatch_size: Count = 128  # about: the data are split into equal parts
    lr: LearningRate = linear(5.0e-4, 0.0)
    max_grad_norm: Positive | None = 10.0  # null: gradients are not clipped

    # exploration
    epsilon: Probability = linear(1.0, 0.05, duration=0.2)  # probability of a uniform random action
    rnd: RNDConfig | None = None  # an exploration bonus for novel observations: {coefficient: 1.0}; null: none


# -- off-policy --------------------------------------------------------------------------------------------------


@dataclass
class OffPolicyConfig(AgentConfig):
    """The options of every agent with a replay buffer."""

    # targets
    n_step: Steps = 1  # rewards summed before bootstrapping
    target_tau: Tau = 0.005
    #   target <- tau network + (1 - tau) target
    target_every: Count | None = None  # frames between target updates, null: after every update

    # replay and cadence
    batch_size: Count = 256  # transitions per update
    buffer_size: Count = 200_000  # transitions
    replay_device: str | None = None  # device of the replay buffer; null: the learner's; cpu saves GPU memory
    replay: ReplayConfig = field(default_factory=ReplayConfig)  # where transitions are stored, and how they are sampled
    priority_exponent: Annotated[float, Interval(low=0, high=10)] = 0.6  # of sampler=prioritized, 0: uniform
    importance_exponent: Probability = linear(0.4, 1.0)  # of the weights that correct for it
    random_frames: Whole = 0  # frames of uniform random actions at the start
    learning_starts: Whole = 1000  # frames before the first update
    frames_per_update: PerUpdate = 1  # frames per gradient step; 0.5 means two updates per frame

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replay.directory is not None and self.replay.storage != "LazyMemmapStorage":
            raise ValueError("replay.directory is for replay.storage=LazyMemmapStorage, give null")
        if self.batch_size > self.buffer_size:
            raise ValueError(f"batch_size {self.batch_size} is larger than buffer_size {self.buffer_size}")
        if self.n_step > self.buffer_size:
            raise ValueError(f"n_step {self.n_step} is more than buffer_size {self.buffer_size} holds")


@dataclass
class ValueBasedConfig(OffPolicyConfig):
    """The options that DQN, QR-DQN, IQN and Rainbow share."""

    # networks
    hidden: list[Count] = layers(128, 128)
    layer_norm: bool = False  # in every hidden layer: keeps the values of rarely chosen actions bounded

    # targets
    target_tau: Tau = 1.0
    target_every: Count | None = 500
    batch_size: Count = 64
    buffer_size: Count = 100_000
    steps_per_batch: Count = 4
    frames_per_update: PerUpdate = 4

    # optimisation
    lr: LearningRate = 5.0e-4
    max_grad_norm: Positive | None = 10.0  # null: gradients are not clipped

    # exploration
    epsilon: Probability = linear(1.0, 0.05, duration=0.1)  # probability of a uniform random action

    # targets
    correction: Literal["none", "retrace"] = "none"
    #   of n-step returns for actions that the greedy policy would not take: none | retrace (Munos et al. 2016)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.correction == "retrace" and self.n_step == 1:
            raise ValueError("correction=retrace corrects returns of several steps, n_step is 1")
        if self.correction == "retrace" and getattr(self, "recurrent", None) is not None:
            raise ValueError("correction=retrace is for agents without a recurrent core, recurrent must be null")


@dataclass
class DQNConfig(ValueBasedConfig):
    """The options of DQN."""

    # networks
    dueling: bool = False  # separate streams for the state's value and the actions' advantages
    recurrent: ReplayedConfig | None = None
    #   a recurrent core: {kind: lstm, size: 128, layers: 1, sequence_length: 32, burn_in: 0}, or kind: gru

    # targets
    double: bool = True  # the target's action is chosen by the online network
    retrace_lambda: Fraction = 1.0  # decay of the traces of correction=retrace
    retrace_epsilon: Fraction = 0.0  # share of random actions of the policy whose value it learns; 0: greedy


@dataclass
class RainbowConfig(ValueBasedConfig):
    """The options of Rainbow."""

    # networks
    noise_std: Noise = 0.5  # initial std of the noisy layers, over the square root of their width
    resample_noise: bool = True  # new noise for every update, as in the paper; false: the online network keeps its own

    # targets
    num_atoms: Annotated[int, Interval(low=2, high=100_000)] = 51  # evenly spaced returns ...
    value_min: Finite = -10.0  # ... from here to value_max (returns outside are clamped)
    value_max: Finite = 100.0
    n_step: Steps = 3

    # replay and cadence
    replay: ReplayConfig = field(default_factory=lambda: ReplayConfig(sampler="prioritized"))
    priority_exponent: Annotated[float, Interval(low=0, high=10)] = 0.5

    # optimisation
    adam_eps: Positive = 1.0e-8

    # exploration
    epsilon: Probability = linear(1.0, 0.0, duration=0.05)  # probability of a random action, in addition to the noise

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_min >= self.value_max:
            raise ValueError("value_min must be below value_max")
        if self.replay.sampler == "uniform":
            raise ValueError("rainbow draws by priority; priority_exponent=0 draws uniformly")


@dataclass
class QRDQNConfig(ValueBasedConfig):
    """The options of QR-DQN."""

    # targets
    double: bool = True  # the target's action is chosen by the online network
    num_quantiles: Levels = 32  # of each action's return, at evenly spaced levels
    kappa: Positive = 1.0  # Huber threshold of the quantile loss

    # acting
    cvar: CVaR = 1.0  # conditional value at risk: act by the mean of the worst fraction of returns; or, in worlds
    #   that report distances, {distance: 10.0, low: 0.1, high: 1.0}: lower near obstacles


@dataclass
class IQNConfig(ValueBasedConfig):
    """The options of IQN."""

    # networks
    recurrent: ReplayedConfig | None = None
    #   a recurrent core: {kind: lstm, size: 128, layers: 1, sequence_length: 32, burn_in: 0}, or kind: gru

    # targets
    target_action: Literal["mean", "per_quantile"] = "mean"  # mean: the action with the best mean;
    #   per_quantile: the best for each quantile separately
    double: bool = True  # target_action=mean: chosen by the online network
    num_quantiles: Levels = 8
    #   levels drawn per update, for prediction and target
    kappa: Positive = 1.0  # Huber threshold of the quantile loss

    # acting
    act_quantiles: Levels = 32  # levels over which an action's value is averaged
    act_levels: Literal["midpoints", "random"] = "midpoints"
    #   midpoints: evenly spaced; random: drawn for every decision
    cvar: CVaR = 1.0  # conditional value at risk: act by the mean of the worst fraction of returns; or, in worlds
    #   that report distances, {distance: 10.0, low: 0.1, high: 1.0}: lower near obstacles


@dataclass
class CriticsConfig(OffPolicyConfig):
    """The options that DDPG, TD3, SAC and TQC share."""

    # networks
    layer_norm: bool = False  # in the critics
    join: Literal["concat", "gated"] = "concat"
    #   concat: the action joins the encoded observation; gated: it multiplies a hidden layer
    critic_norm: Literal["none", "batch"] = "none"
    #   batch: batch renormalisation in the critics in the place of target networks (CrossQ, Bhatt et al. 2024)
    weight_norm: bool = False  # keeps the weights of each hidden unit of the critics at norm 1
    squash: Squash = "tanh"  # tanh | arctan

    def __post_init__(self) -> None:
        super().__post_init__()
        named = isinstance(self.network, str) or "critic" in (self.network or ())
        if self.weight_norm and self.critic_norm == "none" and not self.layer_norm:
            raise ValueError("weight_norm needs layers that are normalised: critic_norm=batch or layer_norm=true")
        if (self.weight_norm or self.critic_norm == "batch") and named:
            raise ValueError("critic_norm and weight_norm are for critics of ours, network may name no critic")
        if self.critic_norm == "none":
            return
        if self.layer_norm:
            raise ValueError("critic_norm=batch is in the place of layer_norm, give layer_norm=false")
        if self.join == "gated":
            raise ValueError("critic_norm=batch needs join=concat")
        if self.target_every is not None:
            raise ValueError("critic_norm=batch has no target networks, target_every must be null")
        if self.target_tau != OffPolicyConfig.target_tau:
            raise ValueError("critic_norm=batch has no target networks, leave out target_tau")


@dataclass
class DDPGConfig(CriticsConfig):
    """The options of DDPG."""

    # networks
    layer_norm: bool = False  # in actor and critics
    output_scale: Gain = 1.0  # shrinks the actor's first actions towards zero
    raw_penalty: NonNegative = 0.0
    #   weight of the squared actor output before squashing: a saturated actor stops learning

    # replay and cadence
    random_frames: Whole = 1000

    # optimisation
    critic_loss: Literal["mse", "smooth_l1"] = "mse"  # mse | smooth_l1
    lr_actor: LearningRate = 1.0e-3
    lr_critic: LearningRate = 1.0e-3
    max_grad_norm: Positive | None = None  # null: gradients are not clipped

    # exploration
    epsilon: Probability = 0.0  # probability of a uniform random action
    noise: NoiseScale = 0.1  # std of Gaussian noise on actions in [-1, 1]


@dataclass
class TD3Config(DDPGConfig):
    """The options of TD3."""

    # targets
    target_noise: Noise = 0.2  # std of the noise on target actions ...
    target_noise_clip: NonNegative = 0.5  # ... which is clipped to this

    # optimisation
    actor_every: Count = 2  # critic updates per update of actor and targets


@dataclass
class SACConfig(CriticsConfig):
    """The options of SAC."""

    # targets
    target_actor: bool = False  # target actions come from a target network of the actor (published)

    # temperature
    alpha: Annotated[float, Interval(low=2.1e-9, high=22_000, why="its logarithm is kept within [-20, 10]")] = 1.0
    #   initial weight of the entropy, or the fixed one
    learn_alpha: bool = True  # tuned towards the target entropy
    target_entropy: Annotated[float, Interval(low=-1000, high=1000, why="about -1 for each action")] | None = None
    #   null: minus the number of action dimensions, or 0.89 log n for n (legal) choices
    lr_alpha: LearningRate = 3.0e-4

    # replay and cadence
    random_frames: Whole = 100
    learning_starts: Whole = 100

    # optimisation
    lr_actor: LearningRate = 3.0e-4
    lr_critic: LearningRate = 3.0e-4
    actor_every: Count = 1  # critic updates per update of actor and temperature; targets follow every critic update
    max_grad_norm: Positive | None = None  # null: gradients are not clipped

    # acting
    epsilon: Probability = 0.0  # probability of a uniform random action while exploring
    greedy: Literal["mode", "sample"] = "mode"  # mode: the squashed mean, or the most probable choice; sample: a sample
    #   (published)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic_norm == "batch" and self.target_actor:
            raise ValueError("critic_norm=batch has no target networks, target_actor must be false")


@dataclass
class TQCConfig(SACConfig):
    """The options of TQC: those of SAC with continuous actions."""

    # networks
    num_critics: Annotated[int, Interval(low=1, high=100)] = 5

    # targets
    num_quantiles: Levels = 25  # quantiles that each critic predicts
    drop: Whole = 2  # number of largest quantiles left out per critic: more makes values more cautious
    kappa: Positive = 1.0  # Huber threshold of the quantile loss

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic_norm != "none":
            raise ValueError("critic_norm is for ddpg, td3 and sac, give none")
        if self.drop >= self.num_quantiles:
            raise ValueError(f"drop {self.drop} leaves none of the {self.num_quantiles} num_quantiles")


@dataclass
class ACQNConfig(OffPolicyConfig):
    """The options of AC-IQN: many worlds, large batches, n-step returns."""

    # networks
    hidden: list[Count] = layers(128, 128)  # hidden widths of actor and critic
    critic: Literal["gated", "late"] = "late"  # late: quantile level enters at the end (cheap); gated: as published
    #   (layer_norm: false)
    layer_norm: bool = True  # in the late critic: bounds the values of untried actions
    squash: Squash = "tanh"  # tanh | arctan
    output_scale: Gain = 0.1  # shrinks the actor's first actions towards zero

    # targets
    gamma: Fraction = 0.995
    n_step: Steps = 4
    num_quantiles: Levels = 16  # levels drawn per update
    kappa: Positive = 1.0  # Huber threshold of the quantile loss
    shared_levels: bool = True  # one stratified set of levels for a whole batch: a matrix product instead of a loop
    target_noise: Noise = 0.1  # std of the noise on target actions (TD3's smoothing)
    raw_penalty: NonNegative = 0.001  # weight of the squared actor output before squashing: a saturated actor stops
    #   learning

    # replay and cadence
    batch_size: Count = 512
    buffer_size: Count = 400_000
    steps_per_batch: Count = 8
    learning_starts: Whole = 20_000
    frames_per_update: PerUpdate = 1200

    # optimisation
    lr_actor: LearningRate = cosine(5.0e-4, 1.0e-5)  # high for most of the run, then settles
    lr_critic: LearningRate = cosine(1.0e-3, 2.0e-5)  # the critic leads the actor
    max_grad_norm_actor: Positive | None = 1.0  # gradient norms are clipped to these
    max_grad_norm_critic: Positive | None = 20.0  # null: gradients are not clipped

    # exploration
    epsilon: Probability = linear(0.05, 0.01, duration=1.0)  # probability of a uniform random action
    noise_low: Noise = 0.05  # Gaussian noise on actions: its std goes from low to high over the worlds, log-spaced
    noise_high: Noise = 0.6
    noise_scale: NoiseScale = linear(1.0, 0.2, duration=1.0)  # factor on that std

    # acting greedily
    greedy_actor: Literal["online", "target"] = "target"  # which networks act: online | target (their moving average)
    candidates: Annotated[int, Interval(low=1, high=100_000)] = 16
    #   actions compared by the critic: the actor's own and others around it; 1: the actor's own
    candidate_spread: Noise = 1.0  # std of the others
    cvar: CVaR = 0.25  # conditional value at risk: compared by the mean of the worst fraction of returns; or, in
    #   worlds that report distances, {distance: 10.0, low: 0.1, high: 1.0}: lower near obstacles;
    #   1.0 with candidates 1, where nothing is compared

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_low > self.noise_high:
            raise ValueError(f"noise_low {self.noise_low} is above noise_high {self.noise_high}")
        if self.candidates == 1 and self.cvar != 1.0:
            told = "cvar has no effect with candidates=1, where nothing is compared"
            raise ValueError(f"{told}; give candidates=16, or cvar=1.0")
        if self.critic == "gated" and (len(self.hidden) != 2 or self.hidden[0] != self.hidden[1]):
            raise ValueError("critic=gated has two hidden layers of one width, give hidden as [n, n]")
        if self.critic == "gated" and self.layer_norm:
            raise ValueError("critic=gated has no layer normalisation, give layer_norm=false")


@dataclass
class LegacyConfig:
    """The options of an agent from elsewhere; options of other kinds than the agent's must be null."""

    name: str
    algorithm: str
    kind: str | None = None  # rlstack, or one of those that rlstack/adapters registers
    path: str | None = None  # its file or folder, or package.module:attribute of a callable
    epsilon: Probability = 0.0  # probability of a uniform random action while exploring

    # of one kind only; null: that kind's default
    vecnormalize: str | None = None  # sb3: file of the VecNormalize statistics it was trained with
    normalization: str | None = None  # arena: file of its statistics, or none; null: the file next to the checkpoint
    deterministic: bool | None = None  # sb3, arena: false samples actions; null: true
    agent_type: str | None = None
    #   marinenav: AC-IQN | IQN | DDPG | DQN | SAC | Rainbow, if the files do not tell
    protocol: Literal["auto", "callable", "act", "predict"] | None = None  # callable: its interface: callable | act |
    #   predict; null: detected
    batched: bool | None = None  # callable: false calls it once per observation; null: true
    arrays: Literal["auto", "numpy", "torch"] | None = None  # callable: numpy | torch; null: detected
    which: Literal["latest", "best"] | None = None  # rlstack: latest | best of a run; null: latest
    steps_per_batch: Count = 1  # env steps per world between two calls

    normalize_observations: ClassVar[bool] = False
    normalize_rewards: ClassVar[bool] = False


@dataclass(frozen=True)
class LossNetwork:
    """A network of a TorchRL loss.

    Attributes:
        kind: kind of its output: ``actor``: a distribution of actions; ``deterministic``: an action; ``value``: the
            value of a state; ``action_value``: that of a state and a continuous action; ``action_values``: those of
            all choices.
        hidden: widths of the hidden layers; None for the agent's.
        layer_norm: normalise each hidden layer.
        batch_norm: normalise over the batch before every layer, by batch renormalisation.
        copies: number of copies, each with its own weights: an ensemble.
        out_key: key of its values in the output; None for TorchRL's default.
    """

    kind: Literal["actor", "deterministic", "value", "action_value", "action_values"]
    hidden: list[Count] | None = None
    layer_norm: bool = False
    batch_norm: bool = False
    copies: Annotated[int, Interval(low=1, high=1000)] = 1
    out_key: str | None = None


@dataclass(frozen=True)
class LossOptimizer:
    """An optimiser of some parameters of a TorchRL loss.

    Attributes:
        networks: prefixes of the names of the parameters that it trains.
        lr: its learning rate.
        every: number of updates per step of this optimiser.
    """

    networks: list[str]
    lr: LearningRate
    every: Count = 1


@dataclass(kw_only=True)
class TorchRLConfig(OffPolicyConfig):
    """The options of an agent with a TorchRL ``LossModule``."""

    loss: str  # torchrl.objectives.<Loss>, rlstack.losses.<Loss>, or package.module:Class of yours
    networks: dict[str, LossNetwork]  # by the names of the loss's arguments: {actor_network: {kind: actor}, ...}
    data: Literal["replay", "rollout"] = "replay"  # replay: from a buffer; rollout: fresh, by the present policy

    # the loss
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of the loss
    keys: dict[str, str | list[str]] = field(default_factory=dict)  # of the loss's set_keys, such as {reward: cost}
    loss_weights: dict[str, Finite] = field(default_factory=dict)  # of its terms in the minimised sum, else 1:
    #   {loss_actor_bc: 0}
    value_estimator: Literal["td0", "td1", "td_lambda", "gae"] = "td0"  # that the loss makes itself, for data=rollout
    #   (replay: td0); not vtrace, which in TorchRL 0.14.1 uses the probability of a newly drawn action
    estimator_options: dict[str, Any] = field(default_factory=dict)  # of it, such as {lmbda: 0.95}; gamma is above

    # optimisation
    lr: LearningRate = 3.0e-4
    optimizers: dict[str, LossOptimizer] = field(default_factory=dict)  # instead of one for all networks:
    #   {actor: {networks: [actor_network], lr: 1.0e-3, every: 2}, ...}, a forward pass for each
    optimizer_eps: Positive = 1.0e-8
    max_grad_norm: Positive | None = None  # null: gradients are not clipped

    # exploration
    epsilon: Probability = 0.0  # probability of a uniform random action
    noise: NoiseScale = 0.1  # std of the Gaussian noise on the actions of a deterministic actor

    # rollouts
    epochs: Annotated[int, Interval(low=1, high=10_000, why="passes over the same data")] = 1  # passes over the data
    minibatch_size: Count = 256  # about: the data are split into nearly equal parts
    normalize_advantage: bool = False  # over the rollout: zero mean and unit standard deviation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data == "replay" and self.value_estimator != "td0":
            told = "needs sequences, data=rollout; with replay give td0"
            raise ValueError(f"value_estimator={self.value_estimator} {told}")
        if self.optimizers and self.lr != TorchRLConfig.lr:
            raise ValueError("lr is for agents without optimizers, whose rates are optimizers.<name>.lr")
        if self.data == "rollout":
            for name, value in defaults_of(TorchRLConfig).items():
                if name in WITHOUT_ROLLOUTS and to_plain(getattr(self, name)) != value:
                    raise ValueError(f"{name} is for data=replay, leave it out")
        if self.symmetry == "augment" and self.data == "rollout":
            told = "of own losses, ppo and a2c take it with rollouts"
            raise ValueError(f"symmetry=augment is for data=replay here; {told}")


CONFIGS: dict[str, type[Any]] = {
    "ppo": PPOConfig,
    "a2c": A2CConfig,
    "pqn": PQNConfig,
    "dqn": DQNConfig,
    "rainbow": RainbowConfig,
    "qrdqn": QRDQNConfig,
    "iqn": IQNConfig,
    "ddpg": DDPGConfig,
    "td3": TD3Config,
    "sac": SACConfig,
    "tqc": TQCConfig,
    "acqn": ACQNConfig,
    "torchrl": TorchRLConfig,
    "legacy": LegacyConfig,
    "ppo_published": PPOConfig,
    "sac_published": SACConfig,
    "rainbow_published": RainbowConfig,
}
"""The options of the shipped algorithms; those of a user's own agents are in their classes."""

OPTIONS: dict[str, type[Any]] = {
    **{f"{name}_options": config for name, config in CONFIGS.items()},
    "on_policy_options": OnPolicyConfig,
    "off_policy_options": OffPolicyConfig,
    "value_based_options": ValueBasedConfig,
}
"""The names by which yaml files start from the defaults of a dataclass: ``defaults: [dqn_options]``."""


def store_options() -> None:
    """Registers :data:`OPTIONS` with Hydra; needed before composing, as our yaml files start from them."""
    from hydra.core.config_store import ConfigStore

    for name, config in OPTIONS.items():
        ConfigStore.instance().store(name, defaults_of(config), group="agent")


def defaults_of(config: type[Any]) -> dict[str, Any]:
    """Returns the defaults of an agent's options, for those that have one, as plain values for yaml."""
    made = {entry.name: entry.default_factory() for entry in fields(config) if entry.default_factory is not MISSING}
    values = {entry.name: made.get(entry.name, entry.default) for entry in fields(config)}
    return {name: _as_yaml(value) for name, value in values.items() if value is not MISSING}


def _as_yaml(value: Any) -> Any:
    if not isinstance(value, ScheduleConfig):
        return to_plain(value)
    return {entry.name: found for entry in fields(value) if (found := getattr(value, entry.name)) != entry.default}


def check_agent(config: Mapping[str, Any], total_frames: int) -> None:
    """Checks the options of a shipped agent as far as possible without its world.

    Raises:
        ConfigError: an unknown key, a wrong type, or a number or schedule out of its bounds.
    """
    algorithm = config.get("algorithm")
    if isinstance(algorithm, str) and algorithm in CONFIGS:
        make_schedules(build(CONFIGS[algorithm], config, "agent"), total_frames, "agent")
