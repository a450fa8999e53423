"""The published evaluation of MarineNav, with everything that its files hold: step by step, robot by robot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rlstack.envs.foundation.tensors import GROUP
from rlstack.envs.marinenav.env import MarineNav
from rlstack.envs.marinenav.episodes import Config
from rlstack.envs.marinenav.generator import episode_options
from rlstack.envs.marinenav.noise import PublishedNoise, perception_seeds
from rlstack.evaluation.evaluator import MAX_WORLDS, evaluation_world

from .evaluations import Episode, RobotHistory

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
