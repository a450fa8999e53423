"""``evaluations.npz``, the published trainer's record of its evaluations: playing, writing, reading, summing up.

Nine object arrays, first axis evaluation, second episode; see :class:`RobotHistory` for what one robot leaves in them.
The file is for ``numpy.load(path, allow_pickle=True)``, as the published one; reading it here runs nothing in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rlstack.config import ConfigError
from rlstack.envs.foundation.tensors import GROUP
from rlstack.envs.marinenav.env import MarineNav
from rlstack.envs.marinenav.episodes import Config, episode_options
from rlstack.envs.marinenav.noise import PublishedNoise, perception_seeds
from rlstack.evaluation.evaluator import MAX_WORLDS, EpisodeStatistics, evaluation_world
from rlstack.evaluation.figures import print_rows
from rlstack.files.pickles import read_object_arrays, write_object_arrays
from rlstack.files.safe_load import first_line

Array = NDArray[Any]
Row = dict[str, Any]

NUMBERS = {"rewards": "reward", "successes": "success", "times": "time", "energies": "energy"}
"""Arrays with one number per episode: the file's name of it to the field of :class:`Episode`."""
_HISTORIES = ("observations", "actions", "trajectories", "relations")
"""Arrays with one list per robot of every episode."""
_SELF, _OBJECT, _TRAJECTORY = 7, 5, 13


@dataclass(frozen=True, eq=False)
class RobotHistory:
    """One robot in one episode: n steps while it was active, m after it had been deactivated.

    Attributes:
        own: ``[n+1, 7]`` what it saw of itself: goal 2, velocity 2, yaw rate, thrusts 2, in its body frame; first the
            reset.
        objects: ``[n+1, K, 5]`` position 2, velocity 2 and radius of objects it saw, in its body frame.
        mask: ``[n+1, K]`` bool, which of them exist.
        action: ``[n, 2]`` thrust rates, or ``[n]`` choices.
        trajectory: ``[n+1, 13]`` x, y, heading, velocity relative to the water 3 (world axes), velocity over ground
            3, thruster angles 2, thrusts 2.
        absent: m; the published trainer continues to record observations of nothing in these steps.
        relations: empty in every file that the published trainer wrote.
    """

    own: Array
    objects: Array
    mask: Array
    action: Array
    trajectory: Array
    absent: int
    relations: list[Any] = field(default_factory=list)

    @property
    def observations(self) -> list[Any]:
        """``[own, objects]`` per perception call as plain lists, then m times ``[None, None]``."""
        seen = [
            [own, [row for row, exists in zip(objects, mask) if exists]]
            for own, objects, mask in zip(self.own.tolist(), self.objects.tolist(), self.mask.tolist())
        ]
        return [*seen, *([None, None] for _ in range(self.absent))]

    @classmethod
    def from_lists(cls, observations: Any, actions: Any, trajectories: Any, relations: Any) -> RobotHistory:
        """Reads the four lists of one robot in the file.

        Raises:
            ValueError: they do not fit together.
        """
        seen = [entry for entry in observations if entry[0] is not None]
        slots = max([_OBJECT, *(len(objects) for _, objects in seen)])
        objects = np.zeros((len(seen), slots, _OBJECT))
        mask = np.zeros((len(seen), slots), dtype=bool)
        for step, (_, rows) in enumerate(seen):
            objects[step, : len(rows)] = np.reshape(np.array(rows, dtype=np.float64), (len(rows), _OBJECT))
            mask[step, : len(rows)] = True
        own = np.array([entry[0] for entry in seen], dtype=np.float64).reshape(len(seen), _SELF)
        trajectory = np.array(trajectories, dtype=np.float64).reshape(len(trajectories), _TRAJECTORY)
        if not len(seen) == len(trajectory) == len(actions) + 1:
            raise ValueError(f"{len(seen)} observations, {len(trajectory)} positions, {len(actions)} actions")
        action = np.array(actions)
        if action.dtype.kind not in "fiu" or not (action.ndim == 1 or action.shape[1:] == (2,)):
            raise ValueError(f"actions of {action.dtype} {action.shape}")
        return cls(own, objects, mask, action, trajectory, len(observations) - len(seen), relations)


@dataclass(frozen=True, eq=False)
class Episode:
    """One evaluated episode; numbers are means over its robots.

    Attributes:
        robots: what each robot did.
        reward: discounted return.
        success: every robot has reached its goal.
        time: seconds while active.
        energy: J.
    """

    robots: list[RobotHistory]
    reward: float
    success: bool
    time: float
    energy: float


@dataclass(eq=False)
class Evaluations:
    """All evaluations of one trial.

    Attributes:
        timesteps: environment steps before each evaluation.
        episodes: of each evaluation, in the order of ``eval_configs.json``.
    """

    timesteps: list[int] = field(default_factory=list)
    episodes: list[list[Episode]] = field(default_factory=list)

    def add(self, timestep: int, episodes: Sequence[Episode]) -> None:
        """Adds an evaluation, replacing those of this time step or later ones, which a resumed run has left behind."""
        kept = sum(earlier < timestep for earlier in self.timesteps)
        self.timesteps[kept:], self.episodes[kept:] = [timestep], [list(episodes)]

    def summary(self) -> list[Row]:
        """A row per evaluation: ``timestep``, ``success`` (share of episodes), ``return`` (mean over all), ``time`` in
        s and ``energy`` in J (means over successful episodes, None without one)."""
        rows: list[Row] = []
        for step, episodes in zip(self.timesteps, self.episodes):
            successes = [episode for episode in episodes if episode.success]
            row: Row = {"timestep": step, "success": len(successes) / len(episodes)}
            row["return"] = float(np.mean([episode.reward for episode in episodes]))
            for name in ("time", "energy"):
                values = [getattr(episode, name) for episode in successes]
                row[name] = float(np.mean(values)) if values else None
            rows.append(row)
        return rows

    def print_table(self) -> None:
        """Prints :meth:`summary`."""
        if rows := self.summary():
            print_rows(rows, sys.stdout)

    def save(self, path: str | Path) -> None:
        """Writes the nine arrays, replacing the file in one step."""

        def of_robots(value: Callable[[RobotHistory], list[Any]]) -> list[Any]:
            return [[[value(robot) for robot in each.robots] for each in part] for part in self.episodes]

        def arrays() -> Iterator[tuple[str, list[Any]]]:
            """Yields one after the other, since lists take several times the memory of the numbers in them."""
            yield "timesteps", self.timesteps
            yield "observations", of_robots(lambda robot: robot.observations)
            yield "actions", of_robots(lambda robot: robot.action.tolist())
            yield "trajectories", of_robots(lambda robot: robot.trajectory.tolist())
            for name, attribute in NUMBERS.items():
                yield name, [[getattr(episode, attribute) for episode in part] for part in self.episodes]
            yield "relations", of_robots(lambda robot: robot.relations)

        write_object_arrays(path, arrays())


def read_evaluations(path: str | Path) -> Evaluations:
    """An ``evaluations.npz``, ours or the published trainer's.

    Raises:
        ConfigError: no such file, not such a file, or one whose pickles name anything but numpy's arrays and numbers.

    Example:
        >>> read_evaluations("training_2026-01-31-12-00-00/seed_9/evaluations.npz").print_table()
    """
    arrays = read_object_arrays(path, ("timesteps", *_HISTORIES, *NUMBERS))
    evaluations = Evaluations()
    try:
        columns = [arrays[name] for name in (*_HISTORIES, *NUMBERS)]
        for timestep, *parts in zip(arrays["timesteps"], *columns, strict=True):
            episodes = []
            for *histories, reward, success, time, energy in zip(*parts, strict=True):
                robots = [RobotHistory.from_lists(*history) for history in zip(*histories, strict=True)]
                episodes.append(Episode(robots, float(reward), bool(success), float(time), float(energy)))
            if not episodes:
                raise ValueError("an evaluation without episodes")
            evaluations.timesteps.append(int(timestep))
            evaluations.episodes.append(episodes)
    except Exception as error:  # whatever the numbers of a broken or hostile file are no numbers of
        raise ConfigError(f"{path}: not a MarineNav evaluations.npz ({first_line(error)})") from None
    return evaluations


def demonstrations(path: str | Path) -> dict[str, Array]:
    """The decisions to imitate in an ``evaluations.npz``, as arrays by name.

    These are the successful episodes of the evaluation with the highest success rate, the latest of several: other
    evaluations are of other, worse policies.

    Raises:
        ConfigError: see :func:`read_evaluations`.
        ValueError: no episode succeeded.
    """
    evaluations = read_evaluations(path)
    rates = [row["success"] for row in evaluations.summary()]
    best = max(range(len(rates)), key=lambda index: (rates[index], index), default=None)
    if best is None or not rates[best]:
        raise ValueError("no episode in it succeeded")
    robots = [robot for episode in evaluations.episodes[best] if episode.success for robot in episode.robots]
    return {  # after the last action comes one more observation
        "observation/self": np.concatenate([robot.own[:-1] for robot in robots]),
        "observation/objects": np.concatenate([robot.objects[:-1] for robot in robots]),
        "observation/mask": np.concatenate([robot.mask[:-1] for robot in robots]),
        "action": np.concatenate([robot.action for robot in robots if len(robot.action)]),
    }


# -- playing -----------------------------------------------------------------------------------------------------------


MAX_STEPS = 1000


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
        max_steps: at least 1.

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
        kappas = [config["robots"]["perception"]["r_kappa"] for config in turn]
        most = max(map(len, kappas))
        kappas = [[*kappa, *[kappa[0]] * (most - len(kappa))] for kappa in kappas]
        seeds = [perception_seeds(config, noise_robots) for config in turn]
        env.set_noise_source(PublishedNoise(seeds, kappas, torch.float64))
        frames, actions, statistics = _play(env, policy, turn, dtype, max_steps)
        parts.append(statistics)
        for world, config in enumerate(turn):
            length = int(statistics["length"][world])
            robots = []
            for robot in range(config["env"]["num_robots"]):
                steps = int(frames["active"][:length, world, robot].sum())  # up to that in which it was deactivated
                own, objects, mask, motion, thrust = (
                    frames[name][: steps + 1, world, robot].numpy().copy()
                    for name in ("own", "objects", "mask", "motion", "thrust")
                )
                angles = [config["robots"][name][robot] for name in ("init_left_pos", "init_right_pos")]  # never change
                trajectory = np.concatenate((motion, np.tile(angles, (steps + 1, 1)), thrust), axis=1)
                action = actions[:steps, world, robot].numpy().copy()
                robots.append(RobotHistory(own, objects, mask, action, trajectory, length - steps))
            reward, success, time, energy = (
                float(statistics[name][world]) for name in ("discounted_return", "success", "time", "energy")
            )
            episodes.append(Episode(robots, reward, success > 0, time, energy))
    return episodes, {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _play(
    env: MarineNav, policy: TensorDictModuleBase, configs: Sequence[Config], dtype: torch.dtype, max_steps: int
) -> tuple[TensorDict, Tensor, dict[str, Tensor]]:
    """Returns T + 1 frames ``[T + 1, W, A]``, the T actions between them, and statistics ``[W]``, on the CPU."""

    def frame() -> TensorDict:
        state, observation = env.state, shown.get((GROUP, "observation"))
        recorded = {
            "own": observation.get("self"),
            "objects": observation.get("objects"),
            "mask": observation.get("mask"),
        }
        recorded["motion"] = torch.cat((state.pose, state.velocity_r, state.velocity), -1)
        recorded |= {"thrust": state.thrust, "active": shown.get((GROUP, "active"))}
        return TensorDict(recorded, recorded["active"].shape)

    shown = env.reset_to(configs)
    frames, actions, scores = [frame()], list[Tensor](), EpisodeStatistics(env, shown)
    with torch.no_grad():
        for step in range(max_steps):
            seen = shown.select((GROUP, "observation"))
            seen = seen.apply(lambda value: value.to(dtype) if value.is_floating_point() else value)
            actions.append(policy(seen).get((GROUP, "action")))
            stepped = env.step(shown.set((GROUP, "action"), actions[-1]))
            left = scores.take(stepped, step)
            shown = env.step_mdp(stepped)  # an episode that has ended goes on unwatched until the last has
            frames.append(frame())
            if not left:
                break
    return torch.stack(frames).cpu(), torch.stack(actions).cpu(), {name: v.cpu() for name, v in scores.values.items()}
