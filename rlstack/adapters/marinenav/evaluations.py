"""``evaluations.npz``, the published trainer's record of its evaluations: writing, reading, summing up.

Nine object arrays, first axis evaluation, second episode; see :class:`RobotHistory` for what one robot leaves in them.
The file is for ``numpy.load(path, allow_pickle=True)``, as the published one; reading it here runs nothing in it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from rlstack.config import ConfigError
from rlstack.evaluation.table import print_rows
from rlstack.files.pickles import read_object_arrays, write_object_arrays
from rlstack.files.safe_load import first_line

Array = NDArray[Any]
Row = dict[str, Any]

NUMBERS = {"rewards": "reward", "successes": "success", "times": "time", "energies": "energy"}
"""Arrays with one number per episode: the file's name of it to the field of :class:`Episode`."""
HISTORIES = ("observations", "actions", "trajectories", "relations")
"""Arrays with one list per robot of every episode, a property of :class:`RobotHistory` each."""
_ORDER = ("observations", "actions", "trajectories", *NUMBERS, "relations")
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

    @property
    def actions(self) -> list[Any]:
        """``action`` as plain lists."""
        return self.action.tolist()

    @property
    def trajectories(self) -> list[list[float]]:
        """``trajectory`` as plain lists."""
        return self.trajectory.tolist()

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
        return [{"timestep": step, **_summary(episodes)} for step, episodes in zip(self.timesteps, self.episodes)]

    def print_table(self, stream: TextIO | None = None) -> None:
        """Prints :meth:`summary` to a stream (default: stdout)."""
        rows = self.summary()
        if rows:
            print_rows(rows, stream or sys.stdout)

    def save(self, path: str | Path) -> None:
        """Writes the nine arrays, replacing the file in one step."""
        write_object_arrays(path, self._arrays())

    def _arrays(self) -> Iterator[tuple[str, list[Any]]]:
        """One after the other, since lists take several times the memory of the numbers in them."""
        yield "timesteps", self.timesteps
        for name in _ORDER:
            yield name, [[_entry(episode, name) for episode in episodes] for episodes in self.episodes]


def _entry(episode: Episode, name: str) -> Any:
    """A number of the episode, or a history of each of its robots."""
    if name in NUMBERS:
        return getattr(episode, NUMBERS[name])
    return [getattr(robot, name) for robot in episode.robots]


def _summary(episodes: Sequence[Episode]) -> Row:
    successes = [episode for episode in episodes if episode.success]
    return {
        "success": len(successes) / len(episodes),
        "return": float(np.mean([episode.reward for episode in episodes])),
        "time": float(np.mean([episode.time for episode in successes])) if successes else None,
        "energy": float(np.mean([episode.energy for episode in successes])) if successes else None,
    }


def read_evaluations(path: str | Path) -> Evaluations:
    """An ``evaluations.npz``, ours or the published trainer's.

    Raises:
        ConfigError: no such file, not such a file, or one whose pickles name anything but numpy's arrays and numbers.

    Example:
        >>> read_evaluations("training_2026-01-31-12-00-00/seed_9/evaluations.npz").print_table()
    """
    arrays = read_object_arrays(path, ("timesteps", *HISTORIES, *NUMBERS))
    try:
        evaluations = Evaluations()
        columns = [arrays[name] for name in (*HISTORIES, *NUMBERS)]
        for timestep, *parts in zip(arrays["timesteps"], *columns, strict=True):
            evaluations.timesteps.append(int(timestep))
            evaluations.episodes.append([_episode(*entries) for entries in zip(*parts, strict=True)])
            if not evaluations.episodes[-1]:
                raise ValueError("an evaluation without episodes")
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


def _episode(*entries: Any) -> Episode:
    """An episode of its :data:`HISTORIES` and :data:`NUMBERS`."""
    *histories, reward, success, time, energy = entries
    robots = [RobotHistory.from_lists(*history) for history in zip(*histories, strict=True)]
    return Episode(robots, float(reward), bool(success), float(time), float(energy))
