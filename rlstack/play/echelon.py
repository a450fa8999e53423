"""Echelon's two teams, and its bots as opponents."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from envs.echelon.actions import chosen_for
from envs.echelon.opponents import BOTS, HEURISTIC, RUSH, VETERAN, bot_orders
from envs.echelon.simulation import EVENTS
from envs.echelon.specs import TEAMS
from envs.world import Scripted, Sides, Told
from rlstack.config import ConfigError


def _wins(following: TensorDictBase) -> Tensor:
    """1 for who has won by the world's rules; a draw is 0 to 0."""
    episode = following.get("episode")
    return torch.cat((episode.get("success"), episode.get("lost")), -1)


def _bot(kind: int) -> Scripted:
    def choose(env: Any, worlds: Tensor) -> Told:
        state, options = env.worlds.state, env.match_options
        if len(worlds) < state.steps.shape[-1]:
            state = state.map(lambda value: value.index_select(-1, worlds))
        kinds = torch.full_like(state.rival, kind)
        teams = [bot_orders(state, env.tables, team, kinds, options.vent_blocks_fire, (kind,)) for team in range(2)]
        orders = torch.stack(teams)  # [2, 10, n, W]
        action = chosen_for(options.actions, orders)
        if not isinstance(action, Tensor):
            raise ConfigError(f"{BOTS[kind]}: actions {options.actions!r} cannot be written as one tensor, use multi")
        return Told(action, orders.permute(3, 0, 1, 2).flatten(0, 1))

    return choose


SIDES = Sides(
    names=TEAMS,
    score=_wins,
    scripted={BOTS[kind]: _bot(kind) for kind in (HEURISTIC, VETERAN, RUSH)},
    anchors={"random": 800.0, "heuristic": 1200.0},
    mirrored=(
        ("success", "lost"),
        *((f"{name}_{TEAMS[0]}", f"{name}_{TEAMS[1]}") for name in ("score", *EVENTS, "damage")),
    ),
    one_sided=("reward_", "hp_margin"),
)
