"""Worlds that hide part of their observation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchrl.envs.utils import check_env_specs

from rlstack import envs
from tests.refusals import refused


def pair(**options: Any) -> tuple[Any, Any]:
    made = [envs.make("gymnasium", id="CartPole-v1", num_envs=3, seed=1, **own) for own in ({}, options)]
    return made[0], made[1]


@pytest.mark.parametrize("keep", [[0, 2], [3, 1, 0]])
def test_only_what_is_kept_is_shown(keep: list[int]) -> None:
    whole, partial = pair(observation_keep=keep)
    spec = partial.observation_spec["observation"]
    assert torch.equal(spec.space.high, whole.observation_spec["observation"].space.high[:, keep])
    torch.manual_seed(0)
    one, other = whole.reset(), partial.reset()
    for _ in range(60):
        assert torch.equal(other["observation"], one["observation"][:, keep])
        action = torch.randint(2, (3,))
        one, first = whole.step_and_maybe_reset(one.set("action", action))[::-1]
        other, second = partial.step_and_maybe_reset(other.set("action", action))[::-1]
        assert torch.equal(second["next", "observation"], first["next", "observation"][:, keep])
        assert torch.equal(second["next", "done"], first["next", "done"])
    check_env_specs(partial)


def test_frames_are_stacked_of_what_is_shown() -> None:
    _, partial = pair(observation_keep=[0, 2], frame_stack=3)
    assert partial.reset()["observation"].shape == (3, 6)


@pytest.mark.parametrize("keep", [[4], [0, 0], [], [-1], [True], [0.5], "02", 2])
def test_impossible_choices_are_refused(keep: Any) -> None:
    refused(ValueError, "different indices from 0 to 3", pair, observation_keep=keep)


def test_objects_cannot_be_taken_apart() -> None:
    refused(ValueError, "not a vector", envs.make, "marinenav", num_worlds=1, observation_keep=[0])
