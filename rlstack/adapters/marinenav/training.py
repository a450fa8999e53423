"""A trial of the published trainer: our training loop, its evaluation, its files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrl._utils import logger as torchrl_logger
from torchrl.envs import EnvBase

from envs.marinenav.episodes import Config, save_episodes
from envs.whole_files import write_text
from rlstack.agents import Agent, build_agent
from rlstack.config import ConfigError, build
from rlstack.config.named_code import granting
from rlstack.evaluation.evaluator import Evaluation
from rlstack.runs.run_directory import RunDirectory, taken
from rlstack.runs.seeding import own_randomness
from rlstack.runs.worlds import build_world
from rlstack.training.config import TrainConfig
from rlstack.training.failures import told_in_one_line
from rlstack.training.loop import Training
from rlstack.training.self_check import check_buildable
from rlstack.training.summary import describe

from .agents import published_agent, save_published
from .evaluations import Evaluations, read_evaluations
from .imitation import check_expert, check_wanted, stored_expert, train_config
from .rollouts import MAX_STEPS, play_episodes
from .trial import EVALUATION_SEED, Trial, read_trials

TRIAL, EPISODES, EVALUATIONS, OUTPUT = "trial_config.json", "eval_configs.json", "evaluations.npz", "output.txt"


class TrialTraining(Training):
    """The training of one trial.

    Evaluates when learning starts, then every ``eval_freq`` env steps, and at the end, on the trial's own episodes;
    writes ``evaluations.npz`` and the published network files each time. A trial that imitates does so once, at 0.

    Args:
        trial: what to do.
        run: the trial's folder.
        plain: ``imitation.train_config(trial, ...)``, possibly with other numbers.
    """

    def __init__(self, trial: Trial, run: RunDirectory, plain: dict[str, Any]) -> None:
        super().__init__(build(TrainConfig, plain), run, plain)
        self.trial, self.episode_set = trial, trial.eval_schedule.episodes()
        self.evaluations = Evaluations()

    def begin(self) -> None:
        """Takes over the networks of ``load_model``, and writes the evaluation episodes."""
        take_over(self.trial, self.agent, self.env)
        save_episodes(self.run.path / EPISODES, [*self._fresh_configs()])

    def restore(self) -> None:
        """Goes back to the newest checkpoint, and reads the evaluations before it."""
        super().restore()
        file = self.run.path / EVALUATIONS
        if self.frames and file.exists():
            self.evaluations = read_evaluations(file)  # those of a future left behind go when the next is added

    def evaluation_due(self, previous: int) -> bool:
        starts = self.config.agent["learning_starts"]
        if self.frames < starts:
            return self.frames >= self.config.total_frames
        return previous < starts or super().evaluation_due(previous)

    def evaluate(self) -> Evaluation:
        """The published evaluation of the trial's episodes; adds to the files."""
        with own_randomness(EVALUATION_SEED):
            episodes, statistics = play_episodes(
                self.agent.policy(explore=False),
                self.episode_set.configs,
                self._noise_robots,
                self.trial.continuous_actions,
                self.device,
                self.agent.interface.dtype,
                MAX_STEPS,
            )
        self.evaluations.add(self.frames, episodes)
        self.evaluations.save(self.run.path / EVALUATIONS)
        save_published(self.agent, self.run.path)
        name = self.config.agent["name"]
        return Evaluation(statistics, list(self.episode_set.levels), "marinenav", {}, EVALUATION_SEED, name)

    @property
    def _noise_robots(self) -> int:
        """The published trainer draws noise seeds by the number of robots of its last evaluation level."""
        return self.trial.eval_schedule.num_robots[-1]

    def _fresh_configs(self) -> Iterator[Config]:
        """The episodes with the beginnings of histories that the published trainer writes and ignores."""
        configs = self.episode_set.configs
        starts, _ = play_episodes(self.agent.policy(explore=False), configs, self._noise_robots, max_steps=0)
        for config, start in zip(configs, starts):
            histories = {
                "observation_history": [robot.observations for robot in start.robots],
                "action_history": [robot.actions for robot in start.robots],
                "trajectory": [robot.trajectories for robot in start.robots],
            }
            yield {**config, "robots": {**config["robots"], **histories}}


@dataclass(frozen=True)
class Job:
    """A trial to train, from its beginning or its latest checkpoint.

    Attributes:
        trial: what.
        folder: where.
        device: torch's name of it.
        alone: shows its progress; else it is written to ``output.txt`` in the folder.
        expert: whom to imitate, if the trial does that.
    """

    trial: Trial
    folder: Path
    device: str
    alone: bool = True
    expert: str | None = None

    def train_config(self) -> dict[str, Any]:
        """The complete ``rlstack.train`` configuration."""
        return train_config(self.trial, self.device, self.expert)

    def lay_out(self) -> None:
        """Makes the folder of a new trial, with what describes it.

        Raises:
            ConfigError: the folder cannot be made.
        """
        run = RunDirectory.create(self.folder, self.folder.name, keep=1)
        run.write_config(self.train_config())
        write_text(run.path / TRIAL, self.trial.to_json())


def check(trials: list[Trial], device: str, expert: str | None = None) -> None:
    """Everything that can be known before anything is written.

    Raises:
        ConfigError: in one line, what is wrong.
    """
    check_wanted(trials, expert)
    seen = set()
    for trial in trials:
        # All else that agents and worlds depend on is common to the grid.
        kind = (trial.agent_type, trial.load_model, trial.imitation_learning)
        if kind in seen:
            continue
        seen.add(kind)
        trial.eval_schedule.episodes()
        plain = train_config(trial, device, expert)
        config = build(TrainConfig, plain)
        check_buildable(config)
        check_expert(plain, trial.agent_type)
        if trial.load_model is not None:
            env = build_world(config.env)
            take_over(trial, build_agent(config.agent, env, config.total_frames), env)


def take_over(trial: Trial, agent: Agent, env: EnvBase) -> None:
    """Gives the agent, targets included, the networks of ``load_model``, if the trial has it.

    Raises:
        ConfigError: no such files, or networks of other widths than the agent's.
    """
    if trial.load_model is None:
        return
    try:
        given = published_agent(trial.load_model, env, trial.total_timesteps, trial.agent_type, agent.device)
        agent.load_state_dict(given.state_dict())
    except ConfigError as error:
        raise ConfigError(f"load_model: {error}") from None
    except RuntimeError:
        raise ConfigError(f"load_model: {trial.load_model} has networks of other widths than published") from None


def run_trial(job: Job) -> float:
    """Trains one trial to its end; returns the success rate of the last evaluation."""
    torchrl_logger.setLevel("WARNING")  # it tells of its own workings
    plain = job.train_config()
    run = RunDirectory.open(job.folder, plain["checkpoint"]["keep"])
    with contextlib.ExitStack() as stack:
        stack.enter_context(taken(run.path))
        stack.enter_context(granting(job.expert))  # from the command line, or allowed there
        if not job.alone:
            output = stack.enter_context((run.path / OUTPUT).open("a", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(output))
        training = TrialTraining(job.trial, run, plain)
        print(describe(training.config, run, training.acceleration.describe(training.agent)))
        training.restore()
        if training.frames:
            print(f"resuming at {training.frames:,} env steps")
        with told_in_one_line(run.path):
            evaluation = training.execute()
        assert evaluation is not None, "this is the only process"
        evaluation.print_table()
        print(f"trial finished: {run.path}")
    return evaluation.summary()["eval/success"]


def resumable(path: Path) -> list[tuple[Trial, Path, str | None]]:
    """The unfinished trials in a trial's folder, or in a folder of trials: each with its folder and its expert.

    Raises:
        ConfigError: there is none, or it is not known whom one imitates.
    """
    files = [path / TRIAL] if (path / TRIAL).is_file() else sorted(path.glob(f"*/{TRIAL}"))
    if not files:
        raise ConfigError(f"{path}: neither a trial's folder nor one of trials, there is no {TRIAL}")
    found = [(read_trials(file)[0], file.parent) for file in files]
    left = [(trial, folder) for trial, folder in found if not _finished(trial, folder)]
    if not left:
        raise ConfigError(f"{path}: every trial is finished")
    return [(trial, folder, stored_expert(trial, folder)) for trial, folder in left]


def _finished(trial: Trial, folder: Path) -> bool:
    latest = RunDirectory(folder).checkpoints.latest()
    if latest is None:
        return False
    # Cloning ends with its first checkpoint.
    return trial.imitation_learning or int(latest.stem.rpartition("_")[2]) >= trial.total_timesteps


def folders(trials: list[Trial], stamp: str) -> list[Path]:
    """A new folder per trial: ``<save_dir>/training_<stamp>/seed_<seed>``, then ``seed_<seed>_1``, ... where other keys
    than the seed span the grid. Trainings that begin within one second get ``training_<stamp>_1``, ..."""
    roots: dict[str, Path] = {}
    chosen: list[Path] = []
    for trial in trials:
        if trial.save_dir not in roots:
            roots[trial.save_dir] = _free(Path(trial.save_dir).expanduser() / f"training_{stamp}", [])
        chosen.append(_free(roots[trial.save_dir] / f"seed_{trial.seed}", chosen))
    return chosen


def _free(path: Path, taken: list[Path]) -> Path:
    candidate, number = path, 0
    while candidate in taken or os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}_{number}")
    return candidate
