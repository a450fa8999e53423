"""A short fight for tests of recordings, in which the teams begin close to each other."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from rlstack.envs.echelon.actions import chosen_for
from rlstack.envs.echelon.env import Echelon
from rlstack.envs.echelon.players import HEURISTIC, bot_orders
from rlstack.envs.echelon.recording import EchelonRecorder, EchelonRecording

DECISIONS = 32


def closer(env: Any) -> None:
    """Moves all mechs to a third of their distance from the middle, and heats the heavies almost to a shutdown."""
    state = env.worlds.state
    state.position[:2] = 32 + 0.35 * (state.position[:2] - 32)
    state.heat[:, 0] = 120.0


def fought(env: Any, recorder: EchelonRecorder, decisions: int, seed: int = 0) -> Any:
    """Bots on both sides that also fire smoke now and then."""
    torch.manual_seed(seed)
    root = env.reset()
    closer(env)
    recorder.add()
    for _ in range(decisions):
        state = env.worlds.state
        teams = [bot_orders(state, env.tables, team, torch.full_like(state.rival, HEURISTIC)) for team in range(2)]
        orders = torch.stack(teams[: env.match_options.teams])
        orders[:, 8] = (torch.rand_like(orders[:, 8]) < 0.08).to(orders.dtype)
        root["agents", "action"] = chosen_for("multi", orders)
        root = env.step(root)["next"]
        recorder.add()
    return root


@lru_cache(maxsize=1)
def fight() -> tuple[Echelon, EchelonRecording]:
    """Returns the world after the fight and the recording; the match has not ended."""
    env = Echelon(num_worlds=2, opponent="policy", seed=1, maps=2)
    recorder = EchelonRecorder(env, [1], ["a title"])
    fought(env, recorder, DECISIONS)
    recording = recorder.recordings()[0].named(("ours", "theirs"), "a title")
    return env, recording
