"""Recorded data as episodes, and the published actor, for the tests of the world."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack import envs
from rlstack.envs.marinenav.env import MarineNav
from rlstack.envs.marinenav.episodes import Config, default_robot, make_episode
from rlstack.envs.marinenav.noise import PublishedNoise

Table = dict[str, np.ndarray]
Policy = Callable[[TensorDict], Tensor]


def load(path: Path) -> Table:
    """All arrays of an npz file."""
    with np.load(path) as file:
        return dict(file.items())


def load_json(path: Path) -> Any:
    """Content of a ``.json`` or ``.json.gz`` file."""
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


def robot(start: Any, goal: Any = (1.0e3, 1.0e3), theta: float = 0.0, **changes: Any) -> Config:
    """Returns one robot of an episode; with the default goal it can never arrive."""
    return default_robot(start, goal, theta) | changes


def build(num_worlds: int, num_robots: int, **options: Any) -> MarineNav:
    """Returns a float64 world, by default without perception noise."""
    defaults: dict[str, Any] = {"perception_noise": False, "dtype": torch.float64, "num_obstacles": 0}
    env = envs.make("marinenav", num_worlds=num_worlds, num_robots=num_robots, **(defaults | options))
    assert isinstance(env, MarineNav)
    return env


def start_of(record: Table) -> tuple[MarineNav, TensorDict]:
    """Returns the env at the recorded initial state of a rollout, and its first tensordict."""
    robots = [robot(*where, float(theta)) for *where, theta in zip(record["start"], record["goal"], record["theta0"])]
    episode = make_episode(robots, record["cores"].tolist(), record["obstacles"].tolist())
    noisy = bool(record["noise"])
    env = build(1, len(robots), continuous_actions=bool(record["continuous"]), perception_noise=noisy)
    if noisy:
        env.set_noise_source(PublishedNoise([record["perception_seed"]], dtype=torch.float64))
    td = env.reset_to([episode])
    # A config cannot express these: the published random reset ignores the current, and rollouts may start late.
    env.worlds.steps += int(record["t0"])
    if not record["reset_mode"]:
        env.worlds.velocity.zero_()
    return env, td


def actions_of(record: Table) -> Tensor:
    """``[T, 1, A, ...]`` actions in the env's layout; -1, recorded for deactivated robots, is not one of them."""
    actions = torch.from_numpy(record["actions"])[:, None]
    return actions if record["continuous"] else actions.clamp_min(0)


def act(env: MarineNav, td: TensorDict, action: Tensor) -> TensorDict:
    """Makes one step by the public method; returns the entry ``"next"``."""
    return env.step(td.copy().set(("agents", "action"), action))["next"]


def actor(weights: Path) -> Policy:
    """Returns the published deterministic AC-IQN actor."""
    w = {name: torch.from_numpy(value).double() for name, value in load(weights).items()}

    def layer(name: str, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def policy(td: TensorDict) -> Tensor:
        observation = td["agents", "observation"]
        own = layer("self_encoder.0", observation["self"].double()).relu()
        objects = layer("object_encoder.0", observation["objects"].double()).relu()
        objects = (objects * observation["mask"][..., None]).flatten(-2)
        hidden = layer("hidden_layer", torch.cat((own, objects), -1)).relu()
        return layer("output_layer", layer("hidden_layer_2", hidden).relu()).arctan() * (2 / math.pi)

    return policy


def play(env: MarineNav, td: TensorDict, policy: Policy, watch: Callable[[], None] = lambda: None) -> list[TensorDict]:
    """Steps until every world has ended; returns for each world its last ``"next"``."""
    last: list[TensorDict | None] = [None] * env.num_worlds
    while any(end is None for end in last):
        following = act(env, td, policy(td))
        watch()
        for world in following["done"][:, 0].nonzero()[:, 0].tolist():
            if last[world] is None:
                last[world] = following[world].clone()
        td = following.exclude("done", "terminated", "truncated")
    return [end for end in last if end is not None]


def assert_close(ours: Tensor | np.ndarray, recorded: Any, what: str, tolerance: float = 1e-9) -> None:
    """Checks equality up to an absolute tolerance; the error names the quantity."""
    np.testing.assert_allclose(np.asarray(ours), np.asarray(recorded), rtol=0, atol=tolerance, err_msg=what)


def lively_episodes() -> list[Config]:
    """Returns four episodes that differ in all settings of a config: counts, vessels, thrusters, sensors, rewards."""
    rng = np.random.default_rng(5)

    def crowd(count: int, **changes: Sequence[Any] | Any) -> list[Config]:
        places = rng.uniform(15, 40, (count, 2, 2))
        return [robot(*place, float(rng.uniform(0, 6)), **changes) for place in places.tolist()]

    def discs(count: int) -> list[list[float]]:
        return [[*rng.uniform(5, 50, 2), rng.uniform(0.5, 2)] for _ in range(count)]

    cores = [[20.0, 22.0, 1, 9.4], [37.0, 30.0, 0, 5.0], [11.0, 40.0, 0, 12.0]]
    odd = {"m": 500.0, "Izz": 380.0, "xDotU": 35.0, "yDotV": -40.0, "yDotR": 12.0, "nDotV": 9.0, "nDotR": -700.0}
    odd |= {"yR": -5.0, "yRV": -3.0, "yVR": -2.0, "yRR": -4.0, "nV": -6.0, "nVV": -7.0, "nRV": 3.0, "nVR": 2.0}
    rates = {
        "left_thrust_change": [0.0, -100.0, -900.0, 300.0, 700.0],
        "right_thrust_change": [5.0, 4.0, 3.0, 2.0, 1.0],
    }
    senses = robot((0, 0))["perception"] | {"range": 12.0, "angle": 3.0, "max_obj_num": 3}
    plain = make_episode(crowd(5), obstacles=discs(7))
    heavy = make_episode(crowd(2, **odd, init_velocity_r=[0.3, -0.2, 0.1]), cores, discs(1))
    thrust = make_episode(
        [*crowd(2, **rates, init_left_pos=0.3, init_right_pos=-0.2), *crowd(1, N=6, dt=0.04, init_left_thrust=250.0)],
        cores[:1],
    )
    short = make_episode(crowd(4, perception=senses, detect_r=2.0, r=1.5, goal_dis=5.0, max_thrust=400.0), (), discs(3))
    short["env"] |= {"timestep_penalty": -0.3, "COLREGs_penalty": -1.0, "collision_penalty": -50.0, "goal_reward": 7.0}
    heavy["env"]["r"] = 0.8
    return [plain, heavy, thrust, short]
