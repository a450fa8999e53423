"""Schedules: values as pure functions of the frames so far, so that a resumed run needs no state for them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from omegaconf import DictConfig

from rlstack.config.errors import ConfigError
from rlstack.config.typed import Interval, build

Finite = Annotated[float, Interval()]
FractionOrFrames = Annotated[int | float, Interval(low=0)]

ADAPTS = "may be adaptive"
"""Stands beside the bounds of a field whose schedule may be of kind adaptive."""


@dataclass(frozen=True)
class ScheduleConfig:
    """The course of a value from ``start`` to ``end``; see :func:`make_schedule` for the formulas.

    Attributes:
        kind: the shape of the curve.
        start: the value after the warm-up; required unless the kind is adaptive.
        end: the value after ``duration``; required unless the kind is constant, which has none.
        duration: time at which ``end`` is reached, including the warm-up: a fraction of the run if at most 1, otherwise
            a number of frames. None is the whole run.
        warmup: time in which the value first moves from ``warmup_start`` to ``start``: a fraction of the run if at
            most 1, otherwise a number of frames.
        warmup_start: the value at the beginning of the warm-up.
        factor: for exponential: the factor by which the value changes over ``duration``, or until it reaches ``end``.
            None is ``end / start``, which reaches ``end`` after ``duration``. For adaptive: the factor of a change;
            None is 1.5.
        kl: only for adaptive, a learning rate that begins at ``start`` (None: 1e-3) and then follows the policy's
            updates: the KL divergence that they aim at; see :class:`rlstack.agents.optimizer.Optimizer`.
        low, high: only for adaptive: bounds of the value; None are 1e-5 and 1e-2.
    """

    in_words: ClassVar[str] = "a schedule such as {kind: linear, start: 1.0e-3, end: 0}"

    kind: Literal["constant", "linear", "cosine", "exponential", "adaptive"]
    start: Finite | None = None
    end: Finite | None = None
    duration: Annotated[int | float | None, Interval(low=0, open_low=True)] = None
    warmup: FractionOrFrames = 0
    warmup_start: Finite = 0.0
    factor: Annotated[float | None, Interval(low=0, open_low=True)] = None
    kl: Annotated[float | None, Interval(low=0, open_low=True)] = None
    low: Annotated[float | None, Interval(low=0, open_low=True)] = None
    high: Annotated[float | None, Interval(low=0, open_low=True)] = None

    def __post_init__(self) -> None:
        if self.kind == "adaptive":
            if self.kl is None:
                raise ValueError("kind 'adaptive' needs the KL divergence that updates aim at, such as kl: 0.01")
            if (self.end, self.duration, self.warmup) != (None, None, 0):
                raise ValueError("kind 'adaptive' takes kl, start, low, high and factor, no end, duration and warmup")
            if self.factor is not None and self.factor <= 1:
                raise ValueError(f"factor {self.factor:g} of kind 'adaptive' is not above 1")
            low, high, first = self.rates
            if not low <= first <= high:
                raise ValueError(f"kind 'adaptive' starts at {first:g}, outside [{low:g}, {high:g}]; give low and high")
            return
        if self.start is None:
            raise ValueError(f"kind {self.kind!r} needs a start")
        if (self.kl, self.low, self.high) != (None, None, None):
            raise ValueError(f"kind {self.kind!r} takes no kl, low and high, only 'adaptive' does")
        if self.kind == "constant" and (self.end, self.duration) != (None, None):
            raise ValueError("kind 'constant' takes only start and warmup, no end and no duration")
        if self.kind != "constant" and self.end is None:
            raise ValueError(f"kind {self.kind!r} needs an end")
        if self.kind == "exponential" and not (self.start > 0 and self.end is not None and self.end > 0):
            raise ValueError("kind 'exponential' needs start and end above 0")
        if self.factor is None:
            return
        if self.kind != "exponential":
            raise ValueError(f"kind {self.kind!r} takes no factor, only 'exponential' does")
        if self.end is not None and (self.factor - 1) * (self.end - self.start) <= 0:
            factor, start, end = self.factor, self.start, self.end
            raise ValueError(f"factor {factor:g} does not lead from {start:g} towards the end, {end:g}")

    @property
    def rates(self) -> tuple[float, float, float]:
        """The least, the greatest and the first value of kind adaptive."""
        low, high, start = self.low, self.high, self.start
        return 1e-5 if low is None else low, 1e-2 if high is None else high, 1e-3 if start is None else start


def make_schedule(
    config: float | Mapping[str, Any] | DictConfig | ScheduleConfig,
    total_frames: int,
    where: str = "schedule",
    bounds: Interval | None = None,
    adapts: bool = False,
) -> "Schedule":
    """Return ``value(frames)`` for a number (constant) or a mapping with the keys of :class:`ScheduleConfig`.

    With ``f`` frames so far, warm-up ``w`` and duration ``d`` in frames, and the progress
    ``p = clip((f - w) / (d - w), 0, 1)``:

    * warm-up (any kind, while ``f < w``): ``warmup_start + (start - warmup_start) * f / w``
    * constant: ``start``
    * linear: ``start + (end - start) * p``
    * cosine: ``end + (start - end) * (1 + cos(pi * p)) / 2``
    * exponential: ``start * (end / start) ** p``; with a factor ``start * factor ** p``, but never beyond ``end``

    Args:
        config: the number or the mapping.
        total_frames: length of the run in frames, for times given as a fraction of it.
        where: key of the schedule, for messages (``"agent.lr"``).
        bounds: bounds of ``start``, ``end`` and, if there is a warm-up, ``warmup_start``; None for no bounds.
        adapts: whether kind adaptive is possible; its function of the frames is constant.

    Raises:
        ConfigError: in one line, for a mapping that is not a valid schedule.
    """
    if total_frames <= 0:
        raise ConfigError(f"{where}: total_frames must be above 0, got {total_frames}")
    if isinstance(config, int | float) and not isinstance(config, bool):
        config = {"kind": "constant", "start": config}
    if not isinstance(config, ScheduleConfig):
        if not isinstance(config, Mapping):
            raise ConfigError(f"{where}: expected a number or a schedule, got {config!r}")
        config = build(ScheduleConfig, config, where)
    if config.kind == "adaptive":
        if not adapts:
            use = "follows the KL divergence of a policy's updates, which only the learning rate of ppo can"
            raise ConfigError(f"{where}: kind 'adaptive' {use}; give a number or another schedule")
        return Schedule(config, config.rates[-1], 0.0, math.inf)
    for value in (config.start, config.end, config.warmup_start if config.warmup else None):
        if value is not None and bounds is not None and value not in bounds:
            raise ConfigError(bounds.refusal(where, value))
    lengths = (config.warmup, config.duration or 1.0)
    warmup, duration = (length * total_frames if length <= 1 else float(length) for length in lengths)
    duration = math.inf if config.kind == "constant" else duration
    if warmup >= duration:
        raise ConfigError(f"{where}.warmup: {warmup:g} frames leave nothing of the duration, {duration:g} frames")
    assert config.start is not None
    return Schedule(config, config.start, warmup, duration)


def in_words(config: float | Mapping[str, Any]) -> str:
    """Describes a configured schedule in readable form: ``0.0003``, or ``0.001 to 1e-05 (linear)``."""
    if not isinstance(config, Mapping):
        return f"{config:g}"
    if config["kind"] == "adaptive":
        return f"{config.get('start') or 1e-3:g} at first (adaptive, KL {config['kl']:g})"
    end = config.get("end")
    moves = f"{config['start']:g}" if end is None else f"{config['start']:g} to {end:g}"
    more = f", warm-up {config['warmup']:g}" if config.get("warmup") else ""
    return f"{moves} ({config['kind']}{more})"


def make_schedules(config: Any, total_frames: int, where: str) -> dict[str, "Schedule"]:
    """Returns the schedules of all fields of a dataclass that may be a :class:`ScheduleConfig`, by name.

    Args:
        config: the dataclass; a field's ``Annotated`` :class:`Interval` bounds its schedule's values, and
            :data:`ADAPTS` beside it permits kind adaptive.
        total_frames, where: see :func:`make_schedule`; ``where`` is the key of the dataclass.

    Raises:
        ConfigError: as :func:`make_schedule`.
    """
    schedules = {}
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        annotated = get_origin(hint) is Annotated
        kind, *marks = get_args(hint) if annotated else (hint,)
        if ScheduleConfig in get_args(kind):
            bounds = next((part for part in marks if isinstance(part, Interval)), None)
            value, key = getattr(config, name), f"{where}.{name}"
            schedules[name] = make_schedule(value, total_frames, key, bounds, adapts=ADAPTS in marks)
    return schedules


@dataclass(frozen=True)
class Schedule:
    """Maps frames to a value: a number to a number, a tensor (0-d) to one on its device, without waiting for it.

    Its times are in frames. It is an object rather than a closure so that it can be pickled.
    """

    config: ScheduleConfig
    start: float
    warmup: float
    duration: float

    @property
    def constant(self) -> bool:
        """Whether the value is always the same."""
        return self.config.end is None and not self.warmup

    def __call__(self, frames: Any) -> Any:
        c, start, length = self.config, self.start, self.duration - self.warmup
        if isinstance(frames, int | float):
            if frames < self.warmup:
                return c.warmup_start + (start - c.warmup_start) * max(frames, 0) / self.warmup
            progress = min((frames - self.warmup) / length, 1.0)
            if c.end is None or progress <= 0:
                return start
            if c.factor is not None:
                return (max if c.factor < 1 else min)(self._between(progress, math.cos), c.end)
            return c.end if progress == 1.0 else self._between(progress, math.cos)  # the end exactly, without rounding
        frames = frames.double()
        # By tensors: instead of dividing by a number, a GPU multiplies by its reciprocal, which rounds differently.
        progress = ((frames - self.warmup) / frames.new_full((), length)).clamp(0, 1)
        value = progress * 0 + start if c.end is None else self._between(progress, lambda angle: angle.cos())
        if c.factor is not None:
            value = value.clamp(min=c.end) if c.factor < 1 else value.clamp(max=c.end)
        elif c.end is not None:
            value = value.where(progress < 1, c.end)
        value = value.where(progress > 0, start)
        if not self.warmup:
            return value
        early = c.warmup_start + (start - c.warmup_start) * frames / frames.new_full((), self.warmup)
        return early.where(frames < self.warmup, value)

    def _between(self, progress: Any, cosine: Callable[[Any], Any]) -> Any:
        """Returns the value at a progress between 0 and 1, by the formula of the kind."""
        c, start = self.config, self.start
        assert c.end is not None
        if c.kind == "linear":
            return start + (c.end - start) * progress
        if c.kind == "cosine":
            return c.end + (start - c.end) * (1 + cosine(math.pi * progress)) / 2
        return start * (c.end / start if c.factor is None else c.factor) ** progress
