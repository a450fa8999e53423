"""A mirrored action in a mirrored state leads to the mirror image with the same reward; for Rocket see its folder."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack import envs
from rlstack.envs.arena.rules import FAR, NEVER
from rlstack.envs.arena.state import ArenaState
from rlstack.envs.marinenav.state import WorldState
from rlstack.envs.world import Mirror

WORLDS, STEPS = 8, 6


def turned(vector: Tensor, row: int) -> Tensor:
    """Returns a vector ``[n, ...]`` with the sign of one component changed."""
    return torch.cat((vector[:row], -vector[row : row + 1], vector[row + 1 :]))


def marinenav(state: WorldState) -> WorldState:
    """Returns the state mirrored at the x axis: vortices turn the other way round."""
    x, y, heading = state.pose
    cores = turned(state.cores, 1)
    return state.replace(
        pose=torch.stack((x, -y, (-heading) % (2 * math.pi))),
        velocity=turned(turned(state.velocity, 1), 2),
        velocity_r=turned(turned(state.velocity_r, 1), 2),
        thrust=state.thrust.flip(0),
        goal=turned(state.goal, 1),
        obstacles=turned(state.obstacles, 1),
        cores=torch.stack((cores[0], cores[1], 1 - cores[2], cores[3])),
    )


def arena(state: ArenaState) -> ArenaState:
    """Returns the state mirrored at the middle of the field; spawners make no more enemies, which appear at random."""

    def placed(place: Tensor) -> Tensor:
        x = torch.where(place[0].abs() < FAR / 2, 1600 - place[0], place[0])
        return torch.stack((x, place[1]))

    heading = math.pi - state.rotation
    wraps = heading > math.pi if state.rotation.min() < 0 else heading < 0
    return state.map(torch.clone).replace(
        position=placed(state.position),
        velocity=turned(state.velocity, 0),
        rotation=torch.where(wraps, heading - 2 * math.pi * heading.sign(), heading),
        targets=placed(state.targets),
        shots=placed(state.shots),
        shot_velocity=turned(state.shot_velocity, 0),
        bullets=placed(state.bullets),
        bullet_velocity=turned(state.bullet_velocity, 0),
    )


def peaceful(state: ArenaState) -> ArenaState:
    ready = state.ready.clone()
    ready[-state.period.shape[0] :] = NEVER
    return replace(state, ready=ready)


def cartpole(state: Tensor) -> Tensor:
    return -state


CASES: dict[str, tuple[str, dict[str, Any], str, Callable[[Any], Any]]] = {
    **{
        f"marinenav continuous={continuous}": (
            "marinenav",
            {"perception_noise": False, "colregs_penalty": 0.0, "num_cores": 4, "continuous_actions": continuous},
            "worlds",
            marinenav,
        )
        for continuous in (True, False)
    },
    **{
        f"arena style={style} {kind}": ("arena", {"style": style, "observation": kind}, "worlds", arena)
        for style, kind in ((1, "flat"), (2, "flat"), (1, "dict"))
    },
    "cartpole": ("cartpole", {}, "state", cartpole),
}


def in_group(env: Any, tensordict: Any) -> Any:
    return tensordict.get("agents") if "agents" in env.observation_spec.keys() else tensordict  # noqa: SIM118


def mirror_of(env: Any) -> Mirror:
    mirror = env.mirror()
    assert isinstance(mirror, Mirror)
    return pickle.loads(pickle.dumps(mirror))


ANGLES = {"flat": (4, 11, 14, 17, 21, 25), "player_state": (4,), "combat_targets": (1, 4, 7, 11, 15)}
"""Arena's features that are angles: both ends of their range are the same direction."""


def close(one: Any, two: Any, angles: tuple[int, ...] = ()) -> None:
    if not isinstance(one, Tensor):
        for key, value in one.items():
            close(value, two.get(key), ANGLES.get(key, ()))
        return
    off = (one.double() - two.double()).abs()
    for column in angles:
        off[..., column] = torch.minimum(off[..., column], (off[..., column] - 1).abs())
    assert off.max() < 1e-6, off.nonzero()


@pytest.mark.parametrize("case", CASES)
def test_a_world_does_not_notice_its_mirror(case: str) -> None:
    name, options, where, image = CASES[case]
    env, other = (envs.make(name, num_worlds=WORLDS, dtype=torch.float64, seed=3, **options) for _ in range(2))
    for world in (env, other):
        torch.manual_seed(0)
        world.rollout(60 if name == "arena" else 5, break_when_any_done=False)
    if name == "arena":
        env.worlds = peaceful(env.worlds)
    setattr(other, where, image(getattr(env, where)))
    angles = ANGLES["flat"] if options.get("observation") == "flat" else ()
    mirror, generator = mirror_of(env), torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        action = in_group(env, env.rand_action(TensorDict({}, [WORLDS]))).get("action")
        if action.is_floating_point():
            action = torch.rand(action.shape, generator=generator, dtype=action.dtype) * 2 - 1
        following = []
        for world, chosen in ((env, action), (other, mirror.action(action))):
            given = TensorDict({}, [WORLDS])
            key: Any = ("agents", "action") if "agents" in world.observation_spec.keys() else "action"  # noqa: SIM118
            following.append(in_group(world, world.step(given.set(key, chosen))["next"]))
        ours, theirs = following
        torch.testing.assert_close(ours["reward"], theirs["reward"], rtol=0, atol=1e-9)
        assert (ours["done"] == theirs["done"]).all()
        close(mirror.observation(ours["observation"]), theirs["observation"], angles)
        close(mirror.observation(mirror.observation(ours["observation"])), ours["observation"], angles)
        assert (mirror.action(mirror.action(action)) == action).all()
    with pytest.raises(AssertionError):  # the image differs
        close(ours["observation"], theirs["observation"], angles)


def test_rules_of_the_road_have_no_mirror() -> None:
    """A right turn has a larger reward than a left one unless the rules' penalty is zero."""
    reason = envs.make("marinenav", num_worlds=1).mirror()
    assert isinstance(reason, str) and "env.colregs_penalty=0" in reason
