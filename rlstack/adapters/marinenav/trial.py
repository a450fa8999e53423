"""The published trainer's JSON configuration as typed trials, and each trial as a run of ours."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rlstack.adapters.command import composed
from rlstack.config import ConfigError, Interval, build
from rlstack.config.errors import prefixed
from rlstack.config.options import Count
from rlstack.envs.marinenav.episodes import generate_episodes
from rlstack.evaluation.evaluator import EpisodeSet
from rlstack.files.safe_load import read_json_object
from rlstack.training.config import Seed

from .agents import CONFIGURATIONS
from .weights import CONTINUOUS

EVALUATION_SEED = 253
"""The seed of the evaluation episodes, whatever the seed of the trial."""
_UPDATE_EVERY, _LOG_EVERY = 4, 10_000
_EVALUATIONS_PER_CHECKPOINT = 10
# The networks see raw numbers and the published actors steer in jerks: with a third of the decisions and half the
# epochs a clone of AC-IQN succeeds in 3 % of the published episodes, with these in 67 %; the actor itself in 80 %.
_CLONING = {"frames": 600_000, "epochs": 20}
_EXPERT_WORLDS = 16

AgentType = Literal["AC-IQN", "IQN", "DDPG", "DQN", "SAC", "Rainbow"]
Whole = Annotated[int, Interval(low=0)]
Metres = Annotated[float, Interval(low=0, high=70)]


@dataclass(frozen=True)
class _Levels:
    """The random worlds of a schedule, one entry per level."""

    num_robots: list[Count]
    num_cores: list[Whole]
    num_obstacles: list[Whole]
    min_start_goal_dis: list[Metres]

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in asdict(self).items()}
        if len(set(lengths.values())) != 1 or not self.num_robots:
            listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ValueError(f"its lists need one entry per level, all as many; got {listed}")


@dataclass(frozen=True)
class TrainingSchedule(_Levels):
    """The curriculum: level k begins after ``timesteps[k]`` env steps."""

    timesteps: list[Whole]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.timesteps[0] != 0 or self.timesteps != sorted(self.timesteps):
            raise ValueError(f"timesteps {self.timesteps} must ascend from 0")


@dataclass(frozen=True)
class EvalSchedule(_Levels):
    """The evaluation: ``num_episodes[k]`` episodes of level k."""

    num_episodes: list[Count]

    def episodes(self) -> EpisodeSet:
        """The episodes that the published trainer evaluates on, in level order.

        Raises:
            ConfigError: a level has no room for a single robot.
        """
        levels = [level for level, count in enumerate(self.num_episodes) for _ in range(count)]
        keys = ("num_robots", "num_cores", "num_obstacles", "min_start_goal_dis")
        options = [{key: getattr(self, key)[level] for key in keys} for level in levels]
        try:
            return EpisodeSet(generate_episodes(EVALUATION_SEED, options, 1), [str(level) for level in levels])
        except ValueError as error:
            raise ConfigError(f"eval_schedule: {error}") from None


@dataclass(frozen=True)
class Trial:
    """One training, with the keys of the published configuration file.

    Attributes:
        seed: of networks, worlds and exploration.
        total_timesteps: env steps.
        eval_freq: env steps between evaluations; the first comes when learning starts, after 2000.
        save_dir: under which the trial's folder is made.
        training_schedule: the curriculum.
        eval_schedule: the evaluation episodes.
        agent_type: the published agent to train.
        imitation_learning: clone an expert instead, whom the command line names. Nothing is learnt from rewards: the
            trial ends with the cloning, and is evaluated once, at timestep 0.
        load_model: a folder of published network files to begin with.
    """

    seed: Seed
    total_timesteps: Count
    eval_freq: Count
    save_dir: str
    training_schedule: TrainingSchedule
    eval_schedule: EvalSchedule
    agent_type: AgentType
    imitation_learning: bool = False
    load_model: str | None = None

    def to_json(self) -> str:
        """The trial as a configuration file; without ``load_model`` where there is none."""
        content = asdict(self)
        if self.load_model is None:
            del content["load_model"]
        return json.dumps(content, indent=4)

    @property
    def continuous_actions(self) -> bool:
        """Thrust rates, else 25 choices."""
        return self.agent_type in CONTINUOUS

    def train_config(self, device: str, expert: str | None = None) -> dict[str, Any]:
        """The trial as a complete ``rlstack.train`` configuration: the published training of its agent.

        Args:
            device: torch's name of it.
            expert: whom a trial that imitates clones: a policy, or recorded episodes in a file ``*.npz``.
        """
        overrides = ["experiment=marinenav_published", f"agent={CONFIGURATIONS[self.agent_type]}", "logger=csv"]
        plain = composed(overrides)
        levels = asdict(self.training_schedule)
        plain["env"] |= {"curriculum": levels, "continuous_actions": self.continuous_actions}
        # Evaluations and the end may fall on any env step; updates stay one per four steps.
        plain["collector"]["steps_per_batch"] = math.gcd(_UPDATE_EVERY, self.eval_freq, self.total_timesteps)
        plain["eval"] |= {"every": self.eval_freq, "episodes": max(self.eval_schedule.num_episodes)}
        plain["eval"]["seed"] = EVALUATION_SEED
        # The best is kept besides; each holds the whole replay buffer, a third of a gigabyte in the end.
        plain["checkpoint"] |= {"every": _EVALUATIONS_PER_CHECKPOINT * self.eval_freq, "keep": 1}
        plain |= {"total_frames": self.total_timesteps, "seed": self.seed, "device": device}
        # The networks are too small for more than one thread.
        plain |= {"threads": 1, "log_every": min(_LOG_EVERY, self.total_timesteps)}
        if self.imitation_learning and expert is not None:
            recorded = expert.endswith(".npz") and (":" not in expert or Path(expert).exists())
            plain["imitation"] |= _CLONING | {"episodes" if recorded else "expert": expert, "only": True}
            # The expert acts on all levels, drawn evenly: a curriculum is for who learns by trying.
            plain["env"] |= {"num_worlds": _EXPERT_WORLDS, "curriculum": {**levels, "timesteps": None}}
        return plain


def read_trials(path: str | Path) -> list[Trial]:
    """The trials of a configuration file: every list outside of the schedules spans the grid.

    Raises:
        ConfigError: no such file, not JSON, or a key that is unknown, missing or of the wrong type or value.
    """
    content = read_json_object(path)
    if empty := next((key for key, value in content.items() if value == []), None):
        raise ConfigError(f"{path}: {empty}: an empty list, which makes no trial")
    axes = [value if isinstance(value, list) else [value] for value in content.values()]
    with prefixed(path):
        return [build(Trial, dict(zip(content, values))) for values in itertools.product(*axes)]
