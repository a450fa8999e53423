"""MarineNav's own command line: ``python -m rlstack.adapters.marinenav -C config.json [-P num_procs] [-D device]``.

Trains the published agents from an unchanged JSON configuration of the published trainer, by the published rules, and
leaves the files that it leaves: each trial is a run of ours. ``-R <folder>`` continues interrupted trials.
``-I <expert>`` says whom trials with ``imitation_learning: true`` clone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import Tensor
from torchrl.envs import EnvBase

from rlstack.adapters import Parser, command
from rlstack.agents import Agent, build_agent
from rlstack.config import ConfigError, Interval, build, to_plain
from rlstack.config.allowed import allowing, granting
from rlstack.config.errors import INTERRUPTED_STATUS, USER_ERROR_STATUS, RunError, prefixed
from rlstack.config.groups import compose_config
from rlstack.config.options import Count
from rlstack.envs.foundation.files import open_to_append, write_text
from rlstack.envs.marinenav.episodes import generate_episodes, save_episodes
from rlstack.evaluation.evaluator import EpisodeSet, Evaluation
from rlstack.files.safe_load import read_json_object
from rlstack.runs.run_directory import RunDirectory
from rlstack.runs.seeding import own_randomness
from rlstack.runs.worlds import build_world, choose_device
from rlstack.training.config import ObjectiveConfig, Seed, TrainConfig
from rlstack.training.hooks import Hook
from rlstack.training.imitation import Imitation
from rlstack.training.loggers import score
from rlstack.training.loop import Training
from rlstack.training.run import train

from .agents import CONFIGURATIONS, CONTINUOUS, published_agent, save_published
from .evaluations import MAX_STEPS, Episode, Evaluations, play_episodes, read_evaluations

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

    def train_config(self, device: str, expert: str | None = None) -> dict[str, Any]:
        """The trial as a complete ``rlstack.train`` configuration: the published training of its agent.

        Args:
            device: torch's name of it.
            expert: whom a trial that imitates clones: a policy, or recorded episodes in a file ``*.npz``.
        """
        overrides = ["experiment=marinenav_published", f"agent={CONFIGURATIONS[self.agent_type]}", "logger=csv"]
        plain: dict[str, Any] = to_plain(compose_config("train", overrides))
        levels = asdict(self.training_schedule)
        plain["env"] |= {"curriculum": levels, "continuous_actions": self.agent_type in CONTINUOUS}
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


# -- a trial as a run --------------------------------------------------------------------------------------------------


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
        file, imitation = training.run.path / EVALUATIONS, training.hook(Imitation)
        if training.frames and file.exists():
            self.evaluations = read_evaluations(file)  # those of a future left behind go when the next is added
        elif not training.frames and (imitation is None or not imitation.done):
            take_over(self.trial, training.agent, training.env)

    def on_start(self, training: Training) -> None:
        """Writes the episodes with the beginnings of histories that the published trainer writes and ignores."""
        episodes = []
        for config, start in zip(self.episode_set.configs, self._play(training, max_steps=1)[0]):
            histories = {
                "observation_history": [robot.observations[:1] for robot in start.robots],
                "action_history": [[] for _ in start.robots],
                "trajectory": [robot.trajectory[:1].tolist() for robot in start.robots],
            }
            episodes.append({**config, "robots": {**config["robots"], **histories}})
        save_episodes(training.run.path / EPISODES, episodes)

    def evaluation_due(self, training: Training) -> bool | None:
        starts = training.config.agent["learning_starts"]
        if training.frames < starts:
            return training.frames >= training.config.total_frames
        return True if training.previous < starts else None

    def evaluate(self, training: Training) -> Evaluation:
        episodes, statistics = self._play(training, MAX_STEPS)
        self.evaluations.add(training.frames, episodes)
        self.evaluations.save(training.run.path / EVALUATIONS)
        save_published(training.agent, training.run.path)
        name = training.config.agent["name"]
        return Evaluation(statistics, list(self.episode_set.levels), "marinenav", {}, EVALUATION_SEED, name)

    def _play(self, training: Training, max_steps: int) -> tuple[list[Episode], dict[str, Tensor]]:
        policy, dtype = training.agent.policy(explore=False), training.agent.interface.dtype
        noise_robots = self.trial.eval_schedule.num_robots[-1]  # of the last level, as published
        continuous, configs = self.trial.agent_type in CONTINUOUS, self.episode_set.configs
        with own_randomness(EVALUATION_SEED):
            return play_episodes(policy, configs, noise_robots, continuous, training.device, dtype, max_steps)


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


# -- before anything is written ----------------------------------------------------------------------------------------


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
            reason = str(error).partition("; set env.")[0]  # the agent type sets it here
            raise ConfigError(f"{IMITATE}: {trial.agent_type} cannot imitate {who}: {reason}") from None


# -- folders -----------------------------------------------------------------------------------------------------------


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


def resumable(path: Path) -> list[Path]:
    """The unfinished trials in a trial's folder, or in a folder of trials.

    Raises:
        ConfigError: there is none.
    """
    files = [path / TRIAL] if (path / TRIAL).is_file() else sorted(path.glob(f"*/{TRIAL}"))
    if not files:
        raise ConfigError(f"{path}: neither a trial's folder nor one of trials, there is no {TRIAL}")
    left = []
    for file in files:
        (trial,), run = read_trials(file), RunDirectory(file.parent)
        latest = run.checkpoints.latest()
        frames = -1 if latest is None else int(latest.stem.rpartition("_")[2])
        # Cloning ends with its first checkpoint, and the evaluation after it.
        enough = 0 if trial.imitation_learning else trial.total_timesteps
        if frames < enough or not run.evaluation(frames).is_file():
            RunDirectory.open(file.parent).read_config()
            left.append(file.parent)
    if not left:
        raise ConfigError(f"{path}: every trial is finished")
    return left


# -- the command -------------------------------------------------------------------------------------------------------


OUTPUT = "output.txt"
"""The file for what a trial prints that is trained beside others."""


def _parser() -> Parser:
    parser = Parser(prog="python -m rlstack.adapters.marinenav", description="Trains the published MarineNav agents.")
    parser.add_argument("-C", "--config-file", type=Path, help="JSON configuration of the published trainer")
    parser.add_argument("-P", "--num-procs", type=int, default=1, help="trials trained at once, default 1")
    parser.add_argument("-D", "--device", default="cpu", help="cpu (default), cuda, cuda:<k> or auto")
    parser.add_argument("-R", "--resume", type=Path, help="folder of an interrupted training, instead of -C")
    parser.add_argument(
        "-I",
        "--imitate",
        metavar="EXPERT",
        help="whom trials with imitation_learning: true clone: a run directory, a checkpoint, kind:path of an agent "
        "from elsewhere (marinenav:<published files>), or recorded episodes (evaluations.npz)",
    )
    parser.add_argument(
        "allow",
        nargs="?",
        type=_allowed,
        default=[],
        metavar="allow=[NAME,...]",
        help="with -R: what the files of trials that others began may name, such as allow=[package.module:function]",
    )
    return parser


def _allowed(argument: str) -> list[str]:
    match = re.fullmatch(r"allow=\[(.*)\]", argument)
    if match is None:
        raise argparse.ArgumentTypeError(f"{argument!r} is not of the form allow=[package.module:attribute]")
    return match[1].split(",")


def trials_to_train(arguments: argparse.Namespace) -> list[Path]:
    """The folders of the trials to train, all of it checked.

    Raises:
        ConfigError: in one line, what is wrong; nothing has been written then.
    """
    if (arguments.config_file is None) == (arguments.resume is None):
        raise ConfigError("use -C/--config-file, or -R/--resume to continue a training")
    if arguments.num_procs < 1:
        raise ConfigError(f"-P/--num-procs: {arguments.num_procs} is not a positive number of processes")
    choose_device(arguments.device)
    if arguments.resume is not None:
        if arguments.imitate is not None:
            raise ConfigError("-I/--imitate: with -R/--resume, trials imitate whom they began to imitate; leave it out")
        return resumable(arguments.resume)
    trials = read_trials(arguments.config_file)
    check(trials, arguments.device, arguments.imitate)
    places = folders(trials, time.strftime("%Y-%m-%d-%H-%M-%S"))
    try:
        for trial, place in zip(trials, places):
            run = RunDirectory.create(place, place.name, keep=1)
            run.write_config(trial.train_config(arguments.device, arguments.imitate))
            content = {key: value for key, value in asdict(trial).items() if (key, value) != ("load_model", None)}
            write_text(place / TRIAL, json.dumps(content, indent=4))
    except OSError as error:
        raise ConfigError(f"save_dir: {error}") from None
    return places


def train_together(places: Sequence[Path], num_procs: int, argv: Callable[[Path], Sequence[str]]) -> None:
    """Trains ``num_procs`` trials at a time, each by a command of its own; says which begin and end.

    Ctrl-C or SIGTERM here makes every running trial save a checkpoint and stop; once more stops them at once.

    Args:
        places: the trials' folders, in this order.
        argv: the command that trains the trial of a folder.

    Raises:
        KeyboardInterrupt: it was stopped.
        ConfigError, RunError: after all others have ended, for the first trial that failed.
    """
    running: list[subprocess.Popen[bytes]] = []
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    pool = ThreadPoolExecutor(num_procs)
    try:
        errors = list(pool.map(lambda place: _trained(place, argv(place), running), places))
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        pool.shutdown()
        raise
    finally:
        for process in running:
            process.kill()
        signal.signal(signal.SIGTERM, before)
    if error := next(filter(None, errors), None):
        raise error


def _trained(place: Path, argv: Sequence[str], running: list[subprocess.Popen[bytes]]) -> Exception | None:
    """Trains a trial by a command, says how it ended, and returns what went wrong.

    Ctrl-C does not reach its process: a terminal sends it to a whole session, but only this one decides.
    """
    print(f"{place}: begins", flush=True)
    with open_to_append(place / OUTPUT) as output:
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    running.append(process)
    status = process.wait()
    if status == 0:
        print(f"{place}: finished, success {score(place, ObjectiveConfig()):.3f}", flush=True)
    elif status in (INTERRUPTED_STATUS, -signal.SIGTERM, -signal.SIGKILL):
        print(f"{place}: stopped", flush=True)
    else:
        last = (place / OUTPUT).read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        known = last.startswith("error: ")
        reason = last.removeprefix("error: ") if known else f"its process ended with status {status}, see {OUTPUT}"
        print(f"{place}: failed, {reason}", flush=True)
        return (ConfigError if status == USER_ERROR_STATUS else RunError)(f"{place}: {reason}")
    return None


@command
def main(arguments: Sequence[str] | None = None) -> None:
    """Trains the trials of a command line."""
    parsed = _parser().parse_args(arguments)
    with granting(parsed.allow):
        places = trials_to_train(parsed)
        try:
            if min(parsed.num_procs, len(places)) == 1:
                for place in places:
                    plain, (trial,) = RunDirectory.open(place).read_config(), read_trials(place / TRIAL)
                    training = {**plain, "resume": str(place), "device": parsed.device, "notify": None}
                    train(training, [PublishedFiles(trial)])
            else:
                program = [sys.executable, "-m", "rlstack.adapters.marinenav", "-D", parsed.device]
                option = [allowing(parsed.allow)] if parsed.allow else []
                train_together(places, parsed.num_procs, lambda place: [*program, "-R", str(place), *option])
        except KeyboardInterrupt:
            folder = places[0] if len(places) == 1 else places[0].parent
            print(f"continue with: python -m rlstack.adapters.marinenav -R {folder}")
            raise


if __name__ == "__main__":
    main()
