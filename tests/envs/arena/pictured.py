"""Hand-made Arena worlds for pictures: one of everything, at known places."""

from __future__ import annotations

import math

import torch

from rlstack.envs.arena.recording import ArenaRecording, ArenaSnapshot, snapshot
from rlstack.envs.arena.rules import ArenaRules, make_rules
from rlstack.envs.arena.state import ArenaState, blank_state

SHIP_AT, ENEMY_AT, SPAWNER_AT, SHOT_AT, BULLET_AT = (500, 640), (400, 980), (1200, 360), (1000, 1000), (640, 300)
FIRST_SPAWNER = 8


def rules_of(style: int = 1) -> ArenaRules:
    return make_rules(style, None)


def two_worlds(style: int = 1) -> ArenaState:
    """Makes world 0 with the ship at its start alone and world 1 with one of everything, at step 200 of phase 1."""
    state = blank_state(rules_of(style), 8, 2, torch.float32, "cpu")
    state.step += 200
    state.phase += 1
    for field, slot, place in (
        ("targets", 0, ENEMY_AT),
        ("targets", FIRST_SPAWNER, SPAWNER_AT),
        ("shots", 0, SHOT_AT),
        ("bullets", 0, BULLET_AT),
    ):
        getattr(state, field)[:, slot, 1] = torch.tensor(place, dtype=torch.float32)
    state.position[:, 1] = torch.tensor(SHIP_AT, dtype=torch.float32)
    state.rotation[1] = math.pi / 2
    state.target_health[0, 1], state.target_health[FIRST_SPAWNER, 1] = 10, 100
    state.speed[0, 1], state.enemies[1] = 1.8, 1
    state.ready[0, 1], state.ready[FIRST_SPAWNER, 1], state.period[0, 1] = 230, 250, 108
    state.shot_velocity[0, 0, 1], state.shot_ends[0, 1] = 8, 260
    state.bullet_velocity[1, 0, 1], state.bullet_born[0, 1], state.bullet_ends[0, 1] = -8, 150, 260
    return state


def shown(state: ArenaState | None = None, style: int = 1) -> ArenaSnapshot:
    """Returns the state of world 1."""
    return snapshot(two_worlds(style) if state is None else state, 1, rules_of(style))


def recording(frames: int = 7, stride: int = 1) -> ArenaRecording:
    """Returns a recording of the ship, which moves 3 px a step to the right."""
    state, taken = two_worlds(), []
    for _ in range(frames):
        taken.append(shown(state.map(torch.clone)))
        state.step += stride
        state.position[0] += 3 * stride
    return ArenaRecording(taken, rules_of(), "episode 0")
