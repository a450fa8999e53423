"""The published trainer: its JSON configuration as typed trials, and each trial as a run of ours with its files."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack.adapters.command import composed
from rlstack.agents import Agent, build_agent
from rlstack.config import ConfigError, Interval, build
from rlstack.config.errors import prefixed
from rlstack.config.options import Count
from rlstack.envs.foundation.files import write_text
from rlstack.envs.foundation.tensors import GROUP
from rlstack.envs.marinenav.env import MarineNav
from rlstack.envs.marinenav.episodes import Config, episode_options, generate_episodes, save_episodes
from rlstack.envs.marinenav.noise import PublishedNoise, perception_seeds
from rlstack.evaluation.evaluator import MAX_WORLDS, EpisodeSet, Evaluation, evaluation_world
from rlstack.files.safe_load import read_json_object
from rlstack.runs.run_directory import RunDirectory
from rlstack.runs.seeding import own_randomness
from rlstack.runs.worlds import build_world, choose_device
from rlstack.training.config import Seed, TrainConfig
from rlstack.training.hooks import Hook
from rlstack.training.imitation import Imitation
from rlstack.training.loop import Training
from rlstack.training.run import train

from .agents import CONFIGURATIONS, published_agent, save_published
from .evaluations import Episode, Evaluations, RobotHistory, read_evaluations
from .files import CONTINUOUS

# -- trials ------------------------------------------------------------------------------------------------------------


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


# -- runs --------------------------------------------------------------------------------------------------------------


MAX_STEPS = 1000
_NUMBERS = {"reward": "discounted_return", "time": "time", "energy": "energy"}
Frame = dict[str, Tensor]


def play_episodes(
    policy: TensorDictModuleBase,
    configs: Sequence[Config],
    noise_robots: int,
    continuous_actions: bool = True,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    max_steps: int = MAX_STEPS,
) -> tuple[list[Episode], dict[str, Tensor]]:
    """Plays every episode to its end, many at once, in float64 worlds and with the published noise streams.

    An episode ends at the first collision, when all robots have finished, or after ``max_steps``.

    Args:
        policy: acts on ``(GROUP, "observation")``.
        configs: the episodes.
        noise_robots: number of robots below five times which noise seeds are drawn, see ``perception_seeds``.
        continuous_actions: thrust rates, else choices.
        device: of the worlds and the policy.
        dtype: in which the policy observes.
        max_steps: 0 records the reset alone.

    Returns:
        The episodes, and the world's own statistics of each, float64 ``[E]`` by name.

    Raises:
        ValueError: a config is invalid.
    """
    options = {"continuous_actions": continuous_actions, "dtype": torch.float64, **episode_options(configs)}
    episodes: list[Episode] = []
    parts: list[dict[str, Tensor]] = []
    for first in range(0, len(configs), MAX_WORLDS):
        turn = configs[first : first + MAX_WORLDS]
        env = evaluation_world("marinenav", options, len(turn), device)
        assert isinstance(env, MarineNav)
        seeds = [perception_seeds(config, noise_robots) for config in turn]
        env.set_noise_source(PublishedNoise(seeds, _kappa(turn), torch.float64))
        played = _play(env, policy, turn, dtype, max_steps)
        episodes += _episodes(turn, played)
        parts.append(played.statistics)
    return episodes, {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}


class _Played(NamedTuple):
    """T steps of W worlds: T + 1 frames, T actions, and of each world its length and statistics when it ended."""

    frames: list[Frame]
    actions: list[Tensor]
    lengths: Tensor
    statistics: dict[str, Tensor]


def _play(
    env: MarineNav, policy: TensorDictModuleBase, configs: Sequence[Config], dtype: torch.dtype, max_steps: int
) -> _Played:
    shown = env.reset_to(configs)
    frames, actions, statistics = [_frame(env, shown)], [], _statistics(shown)
    running = torch.ones(len(configs), dtype=torch.bool, device=env.device)
    lengths = torch.zeros(len(configs), dtype=torch.int64, device=env.device)
    with torch.no_grad():
        for _ in range(max_steps):
            seen = shown.select((GROUP, "observation"))
            seen = seen.apply(lambda value: value.to(dtype) if value.is_floating_point() else value)
            actions.append(policy(seen).get((GROUP, "action")))
            following = env.step(shown.set((GROUP, "action"), actions[-1])).get("next")
            frames.append(_frame(env, following))
            lengths += running
            for name, value in _statistics(following).items():
                statistics[name] = torch.where(running, value, statistics[name])
            running = running & ~following.get("done")[:, 0]
            if not running.any():
                break
            shown = env.step_mdp(shown)  # an episode that has ended goes on unwatched until the last has
    return _Played(frames, actions, lengths, statistics)


def _kappa(configs: Sequence[Config]) -> list[list[float]]:
    rows = [config["robots"]["perception"]["r_kappa"] for config in configs]
    most = max(map(len, rows))
    return [[*row, *[row[0]] * (most - len(row))] for row in rows]


def _frame(env: MarineNav, shown: TensorDictBase) -> Frame:
    """The recorded values of the current step, ``[W, A, ...]``."""
    state, observation = env.state, shown.get((GROUP, "observation"))
    return {
        "own": observation.get("self"),
        "objects": observation.get("objects"),
        "mask": observation.get("mask"),
        "motion": torch.cat((state.pose, state.velocity_r, state.velocity), -1),
        "thrust": state.thrust,
        "active": shown.get((GROUP, "active")),
    }


def _statistics(shown: TensorDictBase) -> dict[str, Tensor]:
    return {key: value[:, 0].double() for key, value in shown.get("episode").items() if key != "level"}


def _episodes(configs: Sequence[Config], played: _Played) -> list[Episode]:
    recorded = {name: torch.stack([frame[name] for frame in played.frames]).cpu().numpy() for name in played.frames[0]}
    recorded["action"] = torch.stack(played.actions).cpu().numpy() if played.actions else recorded["thrust"][:0]
    episodes = []
    for world, (config, length) in enumerate(zip(configs, played.lengths.tolist())):
        robots = [
            _history(config, robot, {name: values[: length + 1, world, robot] for name, values in recorded.items()})
            for robot in range(config["env"]["num_robots"])
        ]
        numbers = {name: float(played.statistics[key][world]) for name, key in _NUMBERS.items()}
        episodes.append(Episode(robots, success=played.statistics["success"][world].item() > 0, **numbers))
    return episodes


def _history(config: Config, robot: int, recorded: dict[str, NDArray[Any]]) -> RobotHistory:
    """One robot's part of the recording, up to the step in which it was deactivated."""
    steps = int(recorded["active"][:-1].sum())
    own, objects, mask, motion, thrust = (
        recorded[name][: steps + 1].copy() for name in ("own", "objects", "mask", "motion", "thrust")
    )
    angles = [config["robots"][name][robot] for name in ("init_left_pos", "init_right_pos")]  # they never change
    trajectory = np.concatenate((motion, np.tile(angles, (steps + 1, 1)), thrust), axis=1)
    absent = len(recorded["active"]) - 1 - steps
    return RobotHistory(own, objects, mask, recorded["action"][:steps].copy(), trajectory, absent)


TRIAL, EPISODES, EVALUATIONS = "trial_config.json", "eval_configs.json", "evaluations.npz"
IMITATE = "-I/--imitate"


class PublishedFiles(Hook):
    """Evaluates as the published trainer does, and leaves its files in the folder of the run.

    Evaluations come when learning starts, then every ``eval_freq`` env steps, and at the end, on the trial's own
    episodes; each writes ``evaluations.npz`` and the network files. A trial that imitates is evaluated once, at 0.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial, self.episode_set, self.evaluations = trial, trial.eval_schedule.episodes(), Evaluations()

    def on_prepare(self, training: Training) -> None:
        """Takes over the networks of ``load_model``; where the run continues, the evaluations before that."""
        file = training.run.path / EVALUATIONS
        if training.frames and file.exists():
            self.evaluations = read_evaluations(file)  # those of a future left behind go when the next is added
        elif not training.frames:
            take_over(self.trial, training.agent, training.env)

    def on_start(self, training: Training) -> None:
        """Writes the episodes with the beginnings of histories that the published trainer writes and ignores."""
        configs, episodes = self.episode_set.configs, []
        with own_randomness(EVALUATION_SEED):
            starts, _ = play_episodes(training.agent.policy(explore=False), configs, self._noise_robots, max_steps=0)
        for config, start in zip(configs, starts):
            histories = {
                "observation_history": [robot.observations for robot in start.robots],
                "action_history": [robot.actions for robot in start.robots],
                "trajectory": [robot.trajectories for robot in start.robots],
            }
            episodes.append({**config, "robots": {**config["robots"], **histories}})
        save_episodes(training.run.path / EPISODES, episodes)

    def evaluation_due(self, training: Training) -> bool | None:
        starts = training.config.agent["learning_starts"]
        if training.frames < starts:
            return training.frames >= training.config.total_frames
        return True if training.previous < starts else None

    def evaluate(self, training: Training) -> Evaluation:
        agent, folder = training.agent, training.run.path
        with own_randomness(EVALUATION_SEED):
            episodes, statistics = play_episodes(
                agent.policy(explore=False),
                self.episode_set.configs,
                self._noise_robots,
                self.trial.continuous_actions,
                training.device,
                agent.interface.dtype,
                MAX_STEPS,
            )
        self.evaluations.add(training.frames, episodes)
        self.evaluations.save(folder / EVALUATIONS)
        save_published(agent, folder)
        name = training.config.agent["name"]
        return Evaluation(statistics, list(self.episode_set.levels), "marinenav", {}, EVALUATION_SEED, name)

    @property
    def _noise_robots(self) -> int:
        """The published trainer draws noise seeds by the number of robots of its last evaluation level."""
        return self.trial.eval_schedule.num_robots[-1]


def run_trial(folder: Path, device: str) -> None:
    """Trains the trial in a folder to its end, from its beginning or its latest checkpoint."""
    plain = RunDirectory.open(folder).read_config()
    (trial,) = read_trials(folder / TRIAL)
    train({**plain, "resume": str(folder), "device": device, "notify": None}, [PublishedFiles(trial)])


def take_over(trial: Trial, agent: Agent, env: EnvBase) -> None:
    """Gives the agent, targets included, the networks of ``load_model``, if the trial has it.

    Raises:
        ConfigError: no such files, or networks of other widths than the agent's.
    """
    if trial.load_model is None:
        return
    try:
        with prefixed("load_model"):
            given = published_agent(trial.load_model, env, trial.total_timesteps, trial.agent_type, agent.device)
        agent.load_state_dict(given.state_dict())
    except RuntimeError:
        raise ConfigError(f"load_model: {trial.load_model} has networks of other widths than published") from None


# -- before anything is written ----------------------------------------------------------------------------------


def check(trials: Sequence[Trial], device: str, expert: str | None = None) -> None:
    """Everything that can be known before anything is written.

    Raises:
        ConfigError: in one line, what is wrong.
    """
    imitate = any(trial.imitation_learning for trial in trials)
    if imitate and expert is None:
        raise ConfigError(
            f"imitation_learning: true needs {IMITATE} <expert>: a run directory, a checkpoint, kind:path of an agent "
            "from elsewhere, or recorded episodes (.npz)"
        )
    if expert is not None and not imitate:
        raise ConfigError(f"{IMITATE}: there is nothing to imitate for, imitation_learning is false")
    # All else that agents and worlds depend on is common to the grid.
    different = {(trial.agent_type, trial.load_model, trial.imitation_learning): trial for trial in reversed(trials)}
    for trial in reversed(different.values()):
        trial.eval_schedule.episodes()
        config = build(TrainConfig, trial.train_config(device, expert))
        on = choose_device(config.device)
        env = build_world(config.env, on, config.seed)
        agent = build_agent(config.agent, env, config.total_frames, on)
        take_over(trial, agent, env)
        if not config.imitation.wanted:
            continue
        who = config.imitation.expert or config.imitation.episodes
        try:
            Imitation(config).find(agent)
        except ConfigError as error:
            reason = str(error).removeprefix("imitation.expert: ").removeprefix("imitation.episodes: ")
            reason = reason.removeprefix(f"{who}: ").partition("; set env.")[0]  # the agent type sets it here
            raise ConfigError(f"{IMITATE}: {trial.agent_type} cannot imitate {who}: {reason}") from None


# -- folders -----------------------------------------------------------------------------------------------------


def folders(trials: Sequence[Trial], stamp: str) -> list[Path]:
    """A new folder per trial: ``<save_dir>/training_<stamp>/seed_<seed>``, then ``seed_<seed>_1``, ... where other keys
    than the seed span the grid. Trainings that begin within one second get ``training_<stamp>_1``, ..."""
    roots: dict[str, Path] = {}
    chosen: list[Path] = []
    for trial in trials:
        if trial.save_dir not in roots:
            roots[trial.save_dir] = _free(Path(trial.save_dir).expanduser() / f"training_{stamp}", [])
        chosen.append(_free(roots[trial.save_dir] / f"seed_{trial.seed}", chosen))
    return chosen


def _free(path: Path, others: Sequence[Path]) -> Path:
    candidate, number = path, 0
    while candidate in others or os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}_{number}")
    return candidate


def lay_out(trials: Sequence[Trial], places: Sequence[Path], device: str, expert: str | None = None) -> None:
    """Makes the folders of new trials, with what describes them.

    Raises:
        ConfigError: a folder cannot be made, or written to.
    """
    for trial, place in zip(trials, places):
        try:
            RunDirectory.create(place, place.name, keep=1).write_config(trial.train_config(device, expert))
            write_text(place / TRIAL, trial.to_json())
        except OSError as error:
            raise ConfigError(f"save_dir: {error}") from None


def resumable(path: Path) -> list[Path]:
    """The unfinished trials in a trial's folder, or in a folder of trials.

    Raises:
        ConfigError: there is none.
    """
    files = [path / TRIAL] if (path / TRIAL).is_file() else sorted(path.glob(f"*/{TRIAL}"))
    if not files:
        raise ConfigError(f"{path}: neither a trial's folder nor one of trials, there is no {TRIAL}")
    left = [file.parent for file in files if not _finished(read_trials(file)[0], file.parent)]
    if not left:
        raise ConfigError(f"{path}: every trial is finished")
    for folder in left:
        RunDirectory.open(folder).read_config()
    return left


def _finished(trial: Trial, folder: Path) -> bool:
    latest = RunDirectory(folder).checkpoints.latest()
    if latest is None:
        return False
    # Cloning ends with its first checkpoint.
    return trial.imitation_learning or int(latest.stem.rpartition("_")[2]) >= trial.total_timesteps
