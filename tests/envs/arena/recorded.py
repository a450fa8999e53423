"""Recorded rollouts of the original game: their snapshots as states, their random draws, and a comparison."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlstack.envs.arena.events import draw_everywhere
from rlstack.envs.arena.rules import FAR, NEVER, ArenaRules, make_rules, make_tables
from rlstack.envs.arena.simulation import PLAIN, ArenaOutcome, advance, advance_densely
from rlstack.envs.arena.state import ArenaState, blank_state, rows_of
from rlstack.envs.foundation.tensors import counting

Array = NDArray[Any]
WIDTH, HEIGHT, LIFETIME, ENEMIES, SPAWNERS, SHOTS, MOST_BULLETS = 1600, 1280, 120, 8, 5, 12, 24
JITTER_X, JITTER_Y, FIRE, ANGLE, GAP, LAST_ANGLE = range(6)


@dataclass
class GivenDraws:
    """Random numbers made beforehand, one for everything that a step can draw."""

    fires: Tensor  # [E, W]
    angles: Tensor  # [attempts + 1, S, W]
    gaps: Tensor  # [attempts, S, W]
    jitters: Tensor  # [2, S, W]

    def fire(self, worlds: Tensor | None) -> Tensor:
        return self.fires if worlds is None else self.fires[:, worlds]

    def spawn(self, spawner: Tensor, worlds: Tensor | None) -> tuple[Tensor, Tensor]:
        everywhere = self.fires.shape[-1]
        places = counting(everywhere, torch.int64, spawner.device) if worlds is None else worlds
        row = spawner.long()
        return self.angles[:, row, places], self.gaps[:, row, places]

    def jitter(self, worlds: Tensor | None) -> Tensor:
        return self.jitters if worlds is None else self.jitters[..., worlds]


class Recording:
    """One file. Row t of an array is the state before step t, row T the last one."""

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.arrays: dict[str, Array] = dict(file.items())
        self.name, self.meta = path.stem, json.loads(str(self.arrays.pop("meta")))
        self.steps = len(self.arrays["actions"])

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    @property
    def game(self) -> tuple[int, int | None]:
        """Returns style and curriculum stage."""
        stage = self.meta["curriculum_stage"]
        return self.meta["style"], None if stage < 0 else stage

    @cached_property
    def spawner_slots(self) -> dict[int, int]:
        """Returns the place of each spawner, by id, in the list at the beginning of its phase."""
        slots: dict[int, int] = {}
        for ids in self["spawner_id"]:
            alive = ids[ids >= 0]
            if any(entity not in slots for entity in alive):
                slots.update({int(entity): place for place, entity in enumerate(alive)})
        return slots

    def draws(self, part: int) -> list[tuple[int, int, float]]:
        """Returns kind, entity and number of the draws of the set-up (0), or of step ``part - 1``."""
        span = slice(*self["draw_ptr"][part : part + 2])
        columns = (self[f"draw_{name}"][span] for name in ("kind", "entity", "unit"))
        return [(int(kind), int(entity), float(unit)) for kind, entity, unit in zip(*columns)]


def load_all(paths: list[Path]) -> dict[tuple[int, int | None], list[Recording]]:
    """Returns the recordings by game."""
    games: dict[tuple[int, int | None], list[Recording]] = {}
    for path in paths:
        recording = Recording(path)
        games.setdefault(recording.game, []).append(recording)
    return games


@dataclass
class Moment:
    """A recording before one of its steps."""

    recording: Recording
    t: int


def given_draws(moments: list[Moment], dtype: torch.dtype) -> GivenDraws:
    """Returns the draws of the step after each moment; NaN, which spoils whatever uses it, where none was recorded."""
    count = len(moments)
    fires, angles, gaps, jitters = (
        np.full((*shape, count), np.nan) for shape in ((ENEMIES,), (6, SPAWNERS), (5, SPAWNERS), (2, SPAWNERS))
    )
    for world, moment in enumerate(moments):
        record, tries = moment.recording, dict.fromkeys(range(SPAWNERS), 0)
        if moment.t >= record.steps:  # over: any number will do
            for values in (fires, angles, gaps, jitters):
                values[..., world] = 0.5
            continue
        enemies = record["enemy_id"][moment.t].tolist()
        for kind, entity, unit in record.draws(moment.t + 1):
            if kind in (JITTER_X, JITTER_Y):
                jitters[kind, entity, world] = unit
            elif kind == FIRE:
                fires[enemies.index(entity), world] = unit
            else:
                slot = record.spawner_slots[entity]
                if kind == GAP:
                    gaps[tries[slot], slot, world] = unit
                    tries[slot] += 1
                else:
                    angles[5 if kind == LAST_ANGLE else tries[slot], slot, world] = unit
    return GivenDraws(*(torch.as_tensor(values, dtype=dtype) for values in (fires, angles, gaps, jitters)))


def snapshot(moments: list[Moment], rules: ArenaRules, dtype: torch.dtype) -> ArenaState:
    """Returns the state at each moment."""
    state = blank_state(rules, MOST_BULLETS, len(moments), dtype, "cpu")

    def column(name: str) -> Tensor:
        values = np.stack([moment.recording[name][moment.t] for moment in moments])
        return torch.as_tensor(values, dtype=torch.float64)

    step = column("step")
    first = column("info_first_spawner_kill_step")
    new: dict[str, Tensor] = {
        **{"position": column("p_pos").T, "velocity": column("p_vel").T, "rotation": column("p_rot")},
        **{"health": column("p_health"), "shot_ready": step + column("p_cd"), "step": step, "phase": column("phase")},
        **{"phase_start": column("phase_start"), "returns": column("ep_rew"), "first_kill": first},
        **{"kills": column("info_total_enemies_destroyed"), "spawner_kills": column("info_total_spawners_destroyed")},
    }
    for name, value in new.items():
        setattr(state, name, value.to(getattr(state, name).dtype).contiguous())
    arrays = SimpleNamespace(**{name: value.numpy() for name, value in state.own})  # of the same memory
    for world, moment in enumerate(moments):
        _place(arrays, moment, world)
    return state


def _place(state: Any, moment: Moment, world: int) -> None:
    record, t = moment.recording, moment.t
    step = int(record["step"][t])
    alive = record["enemy_id"][t] >= 0
    enemies = record["enemy"][t][alive]
    state.enemies[world] = len(enemies)
    for row, (x, y, health, wait, speed) in enumerate(enemies.tolist()):
        _set_target(state, row, world, (x, y, health, step + wait))
        state.speed[row, world] = speed
    for entity, values in zip(record["spawner_id"][t].tolist(), record["spawner"][t].tolist()):
        if entity >= 0:
            slot = record.spawner_slots[entity]
            x, y, health, wait, period, _ = values
            _set_target(state, ENEMIES + slot, world, (x, y, health, step + wait))
            state.period[slot, world] = period
    mine = theirs = 0
    for x, y, vx, vy, life, owner in record["proj"][t][record["proj_id"][t] >= 0].tolist():
        ends = step + moves_left(x, y, vx, vy, life)
        if owner == 1:
            state.shots[:, mine, world], state.shot_velocity[:, mine, world] = (x, y), (vx, vy)
            state.shot_ends[mine, world] = ends
            mine += 1
        else:
            state.bullets[:, theirs, world], state.bullet_velocity[:, theirs, world] = (x, y), (vx, vy)
            state.bullet_ends[theirs, world] = ends
            state.bullet_born[theirs, world] = step + life - LIFETIME
            theirs += 1
    state.fired[world] = mine


def _set_target(state: Any, row: int, world: int, values: tuple[float, ...]) -> None:
    x, y, health, ready = values
    state.targets[:, row, world] = x, y
    state.target_health[row, world], state.ready[row, world] = health, ready


def moves_left(x: float, y: float, vx: float, vy: float, life: float) -> int:
    """Counts the moves until a projectile is gone, by making them."""
    for move in range(1, int(life) + 1):
        if not (0 <= x + move * vx <= WIDTH and 0 <= y + move * vy <= HEIGHT):
            return move
    return int(life)


class Replay:
    """Makes worlds that take recorded actions and draws.

    Args:
        moments: where each world begins, all of the same game.
        dense: replays :func:`advance_densely`.
    """

    def __init__(self, moments: list[Moment], dtype: torch.dtype = torch.float32, dense: bool = False) -> None:
        self.moments, self.dtype, self.dense = moments, dtype, dense
        self.rules = make_rules(*moments[0].recording.game)
        self.tables = make_tables(self.rules, dtype, "cpu")
        self.state = snapshot(moments, self.rules, dtype)
        if dense:
            self.state = self.state.with_bullet_slots(self.rules.enemy_shot_slots)

    def step(self) -> ArenaOutcome:
        """Takes one step in every world; those whose recording has ended repeat its last action."""
        action = torch.tensor([m.recording["actions"][min(m.t, m.recording.steps - 1)] for m in self.moments])
        draws = given_draws(self.moments, self.dtype)
        if self.dense:
            drawn = draw_everywhere(self.state, draws, self.rules)
            self.state, outcome = advance_densely(self.state, action, self.rules, self.tables, drawn)
        else:
            self.state, outcome = advance(self.state, action, self.rules, self.tables, draws, PLAIN)
        for moment in self.moments:
            moment.t += 1
        return outcome


@dataclass
class Differences:
    """The differences between worlds and their recordings: the largest absolute ones, and the integers that differ."""

    largest: dict[str, float]
    wrong: list[tuple[str, int, str]]  # recording, t, name


NEAR = (
    *("position", "velocity", "rotation", "returns", "targets", "speed", "period"),
    *("shots", "shot_velocity", "bullets", "bullet_velocity", "observation", "reward"),
)
"""What may differ by rounding; all else that is compared is whole numbers."""


def listed(state: ArenaState) -> dict[str, Tensor]:
    """Returns what is compared: shots by age, waits in place of times, zeros for what is not there."""
    whole = ("health", "step", "phase", "phase_start", "kills", "spawner_kills", "first_kill", "overflow", "enemies")
    seen = {name: getattr(state, name) for name in (*whole, *NEAR[:4], "target_health")}
    seen["shot_ready"] = (state.shot_ready - state.step).clamp_min(0)
    alive = state.target_health > 0
    targets = {"targets": state.targets, "speed": state.speed, "ready": (state.ready - state.step).clamp_min(0)}
    seen |= {name: torch.where(alive, value, 0.0) for name, value in targets.items()}
    seen["period"] = torch.where(alive[ENEMIES:], state.period, 0.0)
    (x, y), taken = state.shots, state.bullet_ends < NEVER
    flying = (state.shot_ends > state.step) & (x >= 0) & (x <= WIDTH) & (y >= 0) & (y <= HEIGHT)
    assert ((state.bullets[0] < FAR / 2) == taken).all()
    age = torch.remainder(rows_of(x) - state.fired, SHOTS)
    for kind, there, born in (("shot", flying, age), ("bullet", taken, state.bullet_born)):
        order = torch.where(there, born, NEVER).sort(dim=0, stable=True).indices[:MOST_BULLETS]
        seen[f"{kind} count"] = there.sum(0)
        for name in (f"{kind}s", f"{kind}_velocity", *(("bullet_born",) if kind == "bullet" else ())):
            value = torch.where(there, getattr(state, name), 0.0)
            seen[name] = value.gather(-2, order.expand(*value.shape[:-2], *order.shape))
    return seen


def compare(moments: list[Moment], state: ArenaState, outcome: ArenaOutcome, differences: Differences) -> None:
    """Compares worlds after a step with the snapshots that follow it; numbers only where all whole ones agree."""

    def recorded(name: str, back: int = 0) -> Tensor:
        return torch.as_tensor(np.stack([moment.recording[name][moment.t - back] for moment in moments], -1))

    rules = make_rules(*moments[0].recording.game)
    ours, theirs = listed(state), listed(snapshot(moments, rules, state.position.dtype))
    ours |= {"observation": outcome.observation.T, "reward": outcome.reward}
    theirs |= {"observation": recorded("obs"), "reward": recorded("reward", 1)}
    ours |= {"over": outcome.terminated | outcome.time_out, "won": state.phase == 5}
    theirs |= {"over": recorded("terminated", 1), "won": recorded("win")}
    apart = {
        name: (value.double() - theirs[name].double()).abs().nan_to_num(torch.inf).reshape(-1, len(moments))
        for name, value in ours.items()
    }
    wrong = {name: value.any(0) for name, value in apart.items() if name not in NEAR}
    for name, where in wrong.items():
        differences.wrong += [(moments[k].recording.name, moments[k].t, name) for k in where.nonzero()[:, 0]]
    agree = ~torch.stack([*wrong.values()]).any(0)
    for name in NEAR:
        most = float(apart[name][:, agree].max()) if agree.any() else 0.0
        differences.largest[name] = max(differences.largest.get(name, 0.0), most)
