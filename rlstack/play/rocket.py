"""Rocket's two teams, and its player of rules as an opponent."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from envs.rocket.actions import chosen_for
from envs.rocket.rule_policy import rule_controls
from envs.rocket.specs import COUNTED, TEAMS
from envs.world import Sides


def _goals(following: TensorDictBase) -> Tensor:
    episode = following.get("episode")
    return torch.cat((episode.get("goals_for"), episode.get("goals_against")), -1)


def _rules(env: Any, worlds: Tensor) -> Tensor:
    state = env.worlds.world
    if len(worlds) < state.clock.shape[-1]:
        state = state.map(lambda value: value.index_select(-1, worlds))
    wanted = rule_controls(state)
    return chosen_for(_kind(env), wanted)


def _kind(env: Any) -> str:
    """How actions are written, told by their spec, which wrappers show, too."""
    spec = env.full_action_spec["agents", "action"]
    if spec.dtype.is_floating_point:
        return "box8"
    return "multi" if spec.ndim == 3 else "lookup90"


SIDES = Sides(
    names=TEAMS,
    score=_goals,
    scripted={"rule": _rules},
    anchors={"random": 800.0, "rule": 1200.0},
    mirrored=(("goals_for", "goals_against"), *((f"{name}_{TEAMS[0]}", f"{name}_{TEAMS[1]}") for name in COUNTED)),
    one_sided=("reward_",),
)
