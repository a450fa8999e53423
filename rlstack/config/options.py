"""What agents' options are made of: types with bounds, default schedules, and the options of several rooms.

An algorithm's options are a dataclass in its own file, ``rlstack/agents/<algorithm>.py``. It defines them completely:
types, bounds, defaults, and beside each a comment on its effect. ``conf/agent/*.yaml`` start from these defaults
(``defaults: [dqn_options, _self_]``) and only list what differs; ``rlstack agents dqn`` shows the declarations. Hydra
gets the defaults from the text of the file (:func:`declared`), as importing it imports torch, which takes seconds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from rlstack.config.errors import ConfigError, did_you_mean
from rlstack.config.schedules import ADAPTS, ScheduleConfig
from rlstack.config.typed import Interval, to_plain

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
AdaptiveLearningRate = Annotated[Scheduled, RATE, ADAPTS]
Probability = Annotated[Scheduled, Interval(low=0, high=1)]
Coefficient = Annotated[Scheduled, Interval(low=0, high=_LARGEST, why=_PRECISE)]
NoiseScale = Annotated[Scheduled, Interval(low=0, high=10, why="actions lie in [-1, 1]")]
Tau = Annotated[float, Interval(low=0, high=1, open_low=True)]
PerUpdate = Annotated[float, Interval(low=1e-4, high=_WHOLE, why="10,000 updates per frame at most")]
CriticInputs: TypeAlias = list[str] | None
Levels = Annotated[int, Interval(low=1, high=10_000)]
Level: TypeAlias = Annotated[float, Interval(low=0, high=1, open_low=True)]

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
class ReplayConfig:
    """The parts of a replay buffer."""

    storage: Literal["LazyTensorStorage", "LazyMemmapStorage"] = "LazyTensorStorage"
    #   LazyTensorStorage: in memory | LazyMemmapStorage: in files, which may exceed memory
    directory: str | None = None  # folder of these files, null: the system's temporary one
    sampler: str | dict[str, Any] = "uniform"  # uniform | prioritized (by errors, Schaul et al. 2016) |
    #   <package>:<Class>, a subclass of torchrl.data.replay_buffers.Sampler, or {name: <package>:<Class>, ...} with
    #   options of its own; arguments of its constructor may also be capacity, alpha, beta, eps and device

    def __post_init__(self) -> None:
        name = self.sampler if isinstance(self.sampler, str) else str(self.sampler.get("name"))
        if name not in ("uniform", "prioritized") and ":" not in name:
            guess = did_you_mean(name, ("uniform", "prioritized"))
            raise ValueError(f"sampler {name!r} is unknown, {guess}allowed: uniform, prioritized, package:Class")
        if name != self.sampler and ":" not in name:
            raise ValueError(f"sampler: {name} takes no options here, give sampler={name}")


_ENCODERS = {
    "flat": (),
    "mlp": ("hidden",),
    "set": ("hidden", "mask", "pool"),
    "attention": ("hidden", "mask", "pool", "heads"),
    "image": ("features", "layer_norm"),
    "impala": ("features", "layer_norm"),
    "skip": (),
}


@dataclass(frozen=True)
class EncoderConfig:
    """How one key of an observation is encoded.

    Attributes:
        kind: ``flat``: its numbers as they are; ``mlp``: its numbers through layers; ``set``: K objects ``[K, F]``,
            each through the same layers; ``attention``: the same, then self-attention (Vaswani et al. 2017);
            ``image``: through the convolutions of Mnih et al. 2015; ``impala``: through the residual ones of Espeholt
            et al. 2018; ``skip``: left out.
        hidden: ``mlp``, ``set``, ``attention``: widths of the layers.
        mask: ``set``, ``attention``: key of ``[K]``, above 0.5 where there is an object; null: everywhere.
        pool: ``set``, ``attention``: ``flatten`` concatenates the K encodings in order (empty ones are zero); the
            others pool the present ones into one, independent of their order and number (Zaheer et al. 2017), zero if
            there are none. null: ``flatten`` for a set, ``mean`` for attention.
        features: ``image``, ``impala``: width of the layer after the convolutions.
        heads: ``attention``: number of heads, which share the last width; null: 4.
        layer_norm: ``image``, ``impala``: whether layers are normalised, convolutions over their channels; null: no.
    """

    kind: Literal["flat", "mlp", "set", "attention", "image", "impala", "skip"]
    hidden: list[Count] | None = None
    mask: str | None = None
    pool: Literal["flatten", "mean", "max", "sum"] | None = None
    features: Count | None = None
    heads: Count | None = None
    layer_norm: bool | None = None

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
    """Returns a default schedule with the shape of half a cosine, over the whole run."""
    return field(default_factory=lambda: ScheduleConfig("cosine", start, end, 1.0))


_SHIPPED = (Path(__file__), *sorted((Path(__file__).parents[1] / "agents").glob("*.py")))


@cache
def _dataclasses() -> dict[str, ast.ClassDef]:
    """Returns the text of the options of all shipped agents, by the name of their dataclass."""
    nodes = [node for path in _SHIPPED for node in ast.parse(path.read_text(encoding="utf-8")).body]
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef) and node.name.endswith("Config")}


def declared(config: str) -> dict[str, Any]:
    """Returns what :func:`defaults_of` returns for a shipped dataclass, without importing its file."""
    node = _dataclasses()[config]
    base = ast.unparse(node.bases[0]) if node.bases else ""
    defaults = declared(base) if base in _dataclasses() else {}
    for entry in node.body:
        if isinstance(entry, ast.AnnAssign) and entry.value and "ClassVar" not in ast.unparse(entry.annotation):
            value = eval(compile(ast.Expression(entry.value), config, "eval"), globals())
            made: Any = value.default_factory if isinstance(value, Field) else lambda value=value: value
            defaults[ast.unparse(entry.target)] = _as_yaml(made())
    return defaults


def defaults_of(config: type[Any]) -> dict[str, Any]:
    """Returns the defaults of an agent's options as plain values for yaml; options without a default are left out."""
    made = {entry.name: entry.default_factory() for entry in fields(config) if entry.default_factory is not MISSING}
    values = {entry.name: made.get(entry.name, entry.default) for entry in fields(config)}
    return {name: _as_yaml(value) for name, value in values.items() if value is not MISSING}


def _as_yaml(value: Any) -> Any:
    if not isinstance(value, ScheduleConfig):
        return to_plain(value)
    return {entry.name: part for entry in fields(value) if (part := getattr(value, entry.name)) != entry.default}


def store_options() -> None:
    """Registers the defaults of our dataclasses with Hydra; needed before composing, as our yaml files start from them.

    Those of ``OffPolicyConfig`` are called ``off_policy_options``, and so on.
    """
    from hydra.core.config_store import ConfigStore

    for config in _dataclasses():
        name = re.sub("(?<=[a-z])(?=[A-Z][a-z])", "_", config.removesuffix("Config")).lower()
        ConfigStore.instance().store(f"{name}_options", declared(config), group="agent")
