"""A curriculum: the stages of a world in order, the stage that a run has reached, and a picture of its progress."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack.config import ConfigError
from rlstack.config.errors import did_you_mean
from rlstack.envs.world import hooks_of
from rlstack.evaluation.figures import saved_figure

from .hooks import Hook, Training
from .loggers import FRAMES as FRAMES_COLUMN
from .loggers import METRICS_FILE, read_metrics
from .stages import CLOCKS, FRAMES, OF_SUCCESSES, CurriculumConfig

STAGE = "curriculum/stage"
SUCCESS = "success"
SHOWN = ("train/success", "train/return")
"""Metrics for the lower panel of the picture, which shows the first that was logged."""
PICTURE = "curriculum.png"
_BLUE, _GREY = "#1f5fa8", "#888888"


class Curriculum(Hook):
    """Moves a world through its stages. It checks after every batch and advances by at most one stage.

    Args:
        config: list of the stages.
        env: any env with ``num_stages`` and ``set_stage``, which every :class:`rlstack.envs.world.World` has; it is set
            to the first stage.

    Raises:
        ConfigError: a metric that the world's episodes lack, or a stage that the world lacks.

    Attributes:
        stage: number of the current stage, from 0.
    """

    name = "curriculum"

    def __init__(self, config: CurriculumConfig, env: EnvBase) -> None:
        if not hooks_of(env).num_stages:
            raise ConfigError(
                f"curriculum: {type(env).__name__} has no stages as it is configured; curriculum=null trains without"
            )
        self.config, self._env = config.within(hooks_of(env).stage_names), env
        used = {stage.name for stage in self.config.stages}
        self._left_out = [stage.name for stage in config.stages if stage.name not in used]
        config = self.config
        self._rules, self._levels = config.rules(), config.levels
        known = hooks_of(env).num_stages
        for index, level in enumerate(self._levels):
            if level >= known:
                raise ConfigError(
                    f"curriculum.stages[{index}]: {type(env).__name__} has {known} stages, level {level} is none"
                )
        self._with_opponents = any(stage.opponents is not None for stage in config.stages)
        if self._with_opponents:
            if not hasattr(env, "who_can_be_met"):
                raise ConfigError(
                    "curriculum.stages: for opponents of stages set env.opponents, such as {players: [random]}"
                )
            allowed = env.who_can_be_met()
            for index, stage in enumerate(config.stages):
                for name in set(stage.opponents or ()).difference(allowed):
                    where, guess = f"curriculum.stages[{index}].opponents", did_you_mean(name, allowed)
                    raise ConfigError(f"{where}: {name!r} is unknown, {guess}allowed: {', '.join(allowed)}")
        metrics = list(dict.fromkeys(metric for rule in self._rules for metric in rule.metrics))
        waits = max((rule.episodes for rule in self._rules), default=0)
        self._episodes = LatestEpisodes(_statistics(metrics, env), config.window, waits)
        self._frames, self._begun = 0, 0
        self._older = torch.zeros(0, dtype=torch.bool)  # worlds [W] whose episode began in an earlier stage
        self._passed: dict[str, float] = {}
        self._enter(0)

    def _enter(self, stage: int) -> None:
        self.stage = stage
        world: Any = self._env
        world.set_stage(self.level)
        if self._with_opponents:
            world.meet(self.config.stages[stage].opponents)

    @property
    def level(self) -> int:
        """Returns the world's number of the current stage."""
        return self._levels[self.stage]

    # -- called by the loop --------------------------------------------------------------------------------------

    def on_prepare(self, training: Training) -> None:
        print(*self.notes(), sep="\n", end="\n" if self.notes() else "")

    def on_batch(self, training: Training, batch: TensorDictBase, metrics: Mapping[str, Any]) -> None:
        """Advances between two batches, so that a checkpoint holds the stage that the next batch begins in."""
        self.observe(batch, training.ranks.everyone)
        if self.check(training.frames):
            training.log(self.metrics())
            training.event(f"curriculum at {training.frames:,} frames: {self}")

    def on_log(self, training: Training) -> Mapping[str, Any]:
        return self.metrics()

    def on_end(self, training: Training) -> None:
        save_curriculum(training.run.path, [stage.name for stage in self.config.stages])

    # -- rules -------------------------------------------------------------------------------------------------

    def observe(self, batch: TensorDictBase, everyone: Callable[[Any], list[Any]] = lambda own: [own]) -> None:
        """Adds the episodes that end in a collector batch ``[W, T]``.

        Args:
            everyone: gathers the episodes of all processes that learn together, given those of this one.
        """
        done = batch.get(("next", "done"))[..., 0]
        if self._older.shape != done.shape[:-1]:
            self._older = torch.zeros_like(done[..., 0])
        older = self._older.to(done.device)
        for episodes in everyone(self._episodes.finished(batch, older)):
            self._episodes.take(episodes)
        self._older = older & ~done.any(-1)

    def check(self, frames: int) -> bool:
        """Advances after ``frames`` frames of the run if the current stage is passed; returns whether it did."""
        self._frames = frames
        if self.stage >= len(self._rules):  # the last stage
            return False
        rule = self._rules[self.stage]
        if not rule.holds(len(self._episodes), self._mean):
            return False
        self._passed = {metric: self._mean(metric) for metric in rule.metrics}
        self._begun = frames
        if self.config.forget:
            self._episodes.clear()
            self._older = torch.ones_like(self._older)
        self._enter(self.stage + 1)
        return True

    def _mean(self, metric: str) -> float:
        if metric in CLOCKS:
            return float(self._frames if metric == FRAMES else self._frames - self._begun)
        return self._episodes.mean(metric)

    # -- reporting -----------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Returns ``curriculum/stage`` and the means that decide about the current stage, as far as they are known."""
        asked = self._rules[self.stage].metrics if self.stage < len(self._rules) else []
        means = {metric: self._mean(metric) for metric in asked if metric not in CLOCKS}
        return {STAGE: float(self.stage)} | {
            f"curriculum/{metric}": mean for metric, mean in means.items() if math.isfinite(mean)
        }

    def __str__(self) -> str:
        """Describes the stage, and how the run passed the one before."""
        name, count = self.config.stages[self.stage].name, len(self.config.stages)
        means = {
            metric: f"{mean:,.0f}" if abs(mean) >= 1000 else f"{mean:.4g}" for metric, mean in self._passed.items()
        }
        reached = ", ".join(f"{metric} {mean}" for metric, mean in means.items())
        return f"stage {self.stage + 1} of {count}, {name}" + (f" ({reached})" if reached else "")

    def notes(self) -> list[str]:
        """Returns lines to print before the run, such as stages of the world that the curriculum leaves out."""
        known = hooks_of(self._env)
        names = known.stage_names or [str(level) for level in range(known.num_stages)]
        unused = [name for level, name in enumerate(names) if level not in self._levels]
        lines = []
        if self._left_out:
            lines.append(f"curriculum: {', '.join(self._left_out)} left out, the world is too small for them")
        if unused:
            last, rest = self.config.stages[-1].name, ", ".join(unused)
            lines.append(f"curriculum: ends with {last}; stages of the world that it leaves unused: {rest}")
        return lines

    # -- checkpoint ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns a nested dict of numbers and lists."""
        counted = {"episodes": self._episodes.state_dict(), "older": self._older.tolist()}
        return {"stage": self.stage, "begun": self._begun, **counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict` and sets the world to that stage."""
        self._begun = state["begun"]
        self._episodes.load_state_dict(state["episodes"])
        self._older = torch.tensor(state.get("older", []), dtype=torch.bool)  # absent from older checkpoints
        self._enter(state["stage"])


def _statistics(metrics: list[str], env: EnvBase) -> list[str]:
    """Returns the names of the world's episode statistics; raises an error if one that a metric needs is missing."""
    spec: Any = env.observation_spec["episode"] if "episode" in env.observation_spec.keys() else {}  # noqa: SIM118
    known = [name for name, leaf in spec.items() if leaf.shape.numel() == env.batch_size.numel()]
    for metric in metrics:
        name, only_successes, rest = metric.partition(OF_SUCCESSES)
        needed = () if metric in CLOCKS else (name, SUCCESS) if only_successes else (name,)
        missing = [statistic for statistic in needed if statistic not in known]
        if missing or rest:
            allowed = ", ".join(("episodes", *CLOCKS, *known))
            guess = did_you_mean((missing or [metric])[0], known)
            raise ConfigError(f"curriculum: no metric {metric!r} in this world, {guess}allowed: {allowed}")
    return known


class LatestEpisodes:
    """The last ``capacity`` finished episodes; means are taken over the last ``window`` of them.

    Args:
        statistics: names of the world's episode statistics to keep.
    """

    def __init__(self, statistics: Iterable[str], window: int, capacity: int) -> None:
        self._window, self._capacity = window, max(window, capacity)
        self._columns = {name: deque[float](maxlen=self._capacity) for name in statistics}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def finished(self, batch: TensorDictBase, older: Tensor) -> dict[str, Any]:
        """Returns the episodes that end in a batch, by time, then by world, in :meth:`state_dict`'s form.

        Args:
            batch: ``[W, T]``.
            older: worlds ``[W]`` whose first end does not count.
        """
        done = batch.get(("next", "done"))[..., 0]
        ended = (done & ~(older.unsqueeze(-1) & (done.cumsum(-1) == 1))).movedim(-1, 0)
        count = int(ended.sum())
        if not self._columns or not count:  # a world may have no episode statistics
            return {"columns": {}, "count": count}
        entries = [batch.get(("next", "episode", name)) for name in self._columns]
        as_ended = [entry.movedim(ended.dim() - 1, 0).reshape(ended.shape).double() for entry in entries]  # [T, W]
        rows = torch.stack(as_ended, -1)[ended]
        return {"columns": dict(zip(self._columns, rows.T.tolist(), strict=True)), "count": count}

    def take(self, episodes: dict[str, Any]) -> None:
        """Adds the result of :meth:`finished`."""
        self._count = min(self._count + episodes["count"], self._capacity)
        for name, values in episodes["columns"].items():
            self._columns[name].extend(values)

    def mean(self, metric: str) -> float:
        """Returns the mean over the window; NaN if no episode counts."""
        name, only_successes, _ = metric.partition(OF_SUCCESSES)
        values = list(self._columns[name])[-self._window :]
        if only_successes:
            successes = list(self._columns[SUCCESS])[-self._window :]
            values = [value for value, success in zip(values, successes) if success > 0]
        return math.fsum(values) / len(values) if values else math.nan

    def clear(self) -> None:
        """Removes all episodes."""
        for column in self._columns.values():
            column.clear()
        self._count = 0

    def state_dict(self) -> dict[str, Any]:
        """Returns the episodes by statistic, oldest first, and their number."""
        return {"columns": {name: list(column) for name, column in self._columns.items()}, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self.clear()
        self._count = state["count"]
        for name, column in self._columns.items():
            column.extend(state["columns"][name])


# -- picture -----------------------------------------------------------------------------------------------------


def save_curriculum(run: Path, names: Sequence[str] = ()) -> Path | None:
    """Draws the stages of a run over its frames from its ``metrics.csv`` into ``curriculum.png``.

    Args:
        run: the run directory.
        names: names of the stages; without names the picture shows their numbers.

    Returns the path of the picture, or None for a run without a curriculum.
    """
    rows = read_metrics(run / METRICS_FILE) if (run / METRICS_FILE).is_file() else []
    curves = {name: [(row[FRAMES_COLUMN], row[name]) for row in rows if name in row] for name in (STAGE, *SHOWN)}
    stages = curves[STAGE]
    if not stages:
        return None
    below = next((name for name in SHOWN if curves[name]), None)
    with saved_figure(
        run / PICTURE, f"Curriculum of {run.name}", 2 if below else 1, 1, (8, 2.7), sharex=True
    ) as panels:
        axis = panels[0]
        points = [(0.0, 0.0), *stages]
        axis.step(*zip(*points, strict=True), where="post", color=_BLUE, linewidth=1.6)
        top = max(len(names) - 1, int(max(stage for _, stage in points)))
        labels = [names[k] if k < len(names) else str(k) for k in range(top + 1)]
        axis.set_yticks(range(top + 1), labels, parse_math=False)
        axis.set(ylim=(-0.3, top + 0.3), ylabel="stage")
        if below is not None:
            panels[1].plot(*zip(*curves[below], strict=True), color=_BLUE, linewidth=1.2)
            share = below == SHOWN[0]
            panels[1].set(ylabel="success, share of episodes" if share else "return per episode")
            if share:
                panels[1].set_ylim(-0.02, 1.02)
            for (_, before), (frames, stage) in pairwise(points):
                if stage != before:
                    panels[1].axvline(frames, color=_GREY, linewidth=0.6, linestyle=":")
        panels[-1].set_xlabel("frames")
    return run / PICTURE
