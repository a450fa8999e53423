"""What a world shows beside what its agents perceive, and what they perceive in part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlstack import envs

ROBOTS, OBSTACLES = 3, 2


def marinenav(**options: Any) -> Any:
    own = {"num_robots": ROBOTS, "num_obstacles": OBSTACLES, "min_start_goal_dis": 8.0, "max_steps": 40, "seed": 3}
    return envs.make("marinenav", num_worlds=12, **{**own, "perception_noise": False, "num_cores": 2, **options})


def test_marinenav_shows_what_robots_perceive_and_what_lies_beyond() -> None:
    """Without noise, the published observation is a part of it: itself, and every object within reach."""
    played = marinenav(state=True).rollout(30, break_when_any_done=False)["agents"]
    played = played[played["active"].all(-1)]  # a robot that has just collided is still perceived
    state, seen = played["state"], played["observation"]
    assert state.shape[-1] == 10 + 7 * (ROBOTS - 1) + 4 * OBSTACLES
    own, mates, things = state.split((10, 7 * (ROBOTS - 1), 4 * OBSTACLES), -1)
    mates, things = mates.unflatten(-1, (-1, 7)), things.unflatten(-1, (-1, 4))
    scale = own.new_tensor([50, 50, 3, 3, 0.7, 1000, 1000])
    torch.testing.assert_close(own[..., :7] * scale, seen["self"], rtol=1e-4, atol=1e-4)
    # Position, velocity and radius of all objects, with hulls of 0.8 m for robots, as observations have them
    robots = torch.cat((mates[..., 1:3] * 50, mates[..., 3:5] * 3), -1)
    rocks = torch.cat((things[..., 1:3] * 50, torch.zeros_like(things[..., 1:3])), -1)
    every = torch.cat((robots, rocks), -2)
    there = torch.cat((mates[..., 0], things[..., 0]), -1) > 0
    apart = (seen["objects"][..., :, None, :4] - every[..., None, :, :]).abs().amax(-1)
    nearest = apart.masked_fill(~there[..., None, :], torch.inf).amin(-1)
    assert nearest[seen["mask"]].max() < 1e-3
    assert there.sum() > seen["mask"].sum(), "some are out of reach"
    for rows in (mates, things):
        far = rows[..., 1:3].norm(dim=-1).masked_fill(rows[..., 0] == 0, torch.inf)
        assert (far[..., 1:] >= far[..., :-1]).all(), "the nearest come first"


def test_marinenav_shows_currents_goals_and_time() -> None:
    env = marinenav(state=True)
    env.reset()
    worlds = env.worlds
    shown = env.step(env.rand_action(env.reset()))["next", "agents", "state"]
    worlds = env.worlds
    heading: Tensor = worlds.pose[2].T
    current = (worlds.velocity[:2] - worlds.velocity_r[:2]).permute(2, 1, 0)
    ahead = current[..., 0] * heading.cos() + current[..., 1] * heading.sin()
    active = worlds.active.T
    torch.testing.assert_close(shown[..., 7][active] * 3, ahead[active], rtol=1e-4, atol=1e-5)
    assert (ahead[active].abs() > 1e-3).any()
    torch.testing.assert_close(shown[..., 9][active], torch.full((int(active.sum()),), 1 / 40))
    assert (shown[~active] == 0).all()


def test_echelon_shows_what_full_visibility_would() -> None:
    options: dict[str, Any] = {"blue": 2, "red": 2, "maps": 4, "size": 48, "num_worlds": 4, "seed": 5}
    partial = envs.make("echelon", visibility="partial", state=True, **options)
    full = envs.make("echelon", visibility="full", **options)
    first, second = partial.reset()["agents"], full.reset()["agents"]
    torch.testing.assert_close(first["state"], second["observation"])
    assert not torch.allclose(first["observation"], second["observation"])


def test_only_if_they_are_asked_to() -> None:
    assert "state" not in marinenav().observation_spec["agents"].keys()  # noqa: SIM118
    with pytest.raises(ValueError, match="state: with visibility=full agents see all of it already"):
        envs.make("echelon", num_worlds=1, state=True)


def test_a_loaded_world_shows_the_same() -> None:
    env, other = marinenav(state=True), marinenav(state=True, seed=4)
    last = env.rollout(3)["next"][:, -1]
    assert not last["done"].any()
    other.reset()
    other.load_state_dict(env.state_dict())
    assert torch.equal(last["agents", "state"], other.reset()["agents", "state"])
