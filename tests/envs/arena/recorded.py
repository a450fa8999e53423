"""Recorded rollouts of the original game: their snapshots as states, their random draws, and a comparison."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlstack.envs.arena.events import draw_everywhere
from rlstack.envs.arena.rules import FAR, NEVER, ArenaRules, make_rules, make_tables
from rlstack.envs.arena.simulation import PLAIN, ArenaOutcome, advance, advance_densely
from rlstack.envs.arena.state import ArenaState, blank_state
from rlstack.envs.foundation.tensors import counting

Array = NDArray[Any]
WIDTH, HEIGHT, LIFETIME, ENEMIES, SPAWNERS, SHOTS = 1600, 1280, 120, 8, 5, 12
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
    state = blank_state(rules, 24, len(moments), dtype, "cpu")

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
    for world, moment in enumerate(moments):
        _place(state, moment, world)
    return state


def _place(state: ArenaState, moment: Moment, world: int) -> None:
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
            state.shots[:, mine, world], state.shot_velocity[:, mine, world] = torch.tensor([[x, y], [vx, vy]])
            state.shot_ends[mine, world] = ends
            mine += 1
        else:
            state.bullets[:, theirs, world], state.bullet_velocity[:, theirs, world] = torch.tensor([[x, y], [vx, vy]])
            state.bullet_ends[theirs, world] = ends
            state.bullet_born[theirs, world] = step + life - LIFETIME
            theirs += 1
    state.fired[world] = mine


def _set_target(state: ArenaState, row: int, world: int, values: tuple[float, ...]) -> None:
    x, y, health, ready = values
    state.targets[0, row, world], state.targets[1, row, world] = x, y
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

    def see(self, name: str, ours: Any, theirs: Any) -> None:
        """Records the largest difference."""
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        if ours.size:
            self.largest[name] = max(self.largest.get(name, 0.0), float(np.abs(ours - theirs).max()))

    def exact(self, moment: Moment, name: str, ours: Any, theirs: Any) -> bool:
        """Records whether integers differ."""
        same = np.array_equal(np.asarray(ours, np.float64), np.asarray(theirs, np.float64))
        if not same:
            self.wrong.append((moment.recording.name, moment.t, name))
        return same


def compare(replay: Replay, outcome: ArenaOutcome, differences: Differences, worlds: list[int] | None = None) -> None:
    """Compares worlds after a step with the snapshots that follow it."""
    state = {name: value.double().numpy() for name, value in replay.state.items()}
    seen, reward = outcome.observation.double().numpy(), outcome.reward.numpy()
    over = (outcome.terminated | outcome.time_out).numpy()
    for world in range(len(replay.moments)) if worlds is None else worlds:
        moment = replay.moments[world]
        record, t = moment.recording, moment.t
        one = {name: value[..., world] for name, value in state.items()}
        differences.see("observation", seen[world], record["obs"][t])
        differences.see("reward", reward[world], record["reward"][t - 1])
        differences.see("returns", one["returns"], record["ep_rew"][t])
        differences.exact(moment, "over", over[world], record["terminated"][t - 1])
        _compare_player(one, moment, differences)
        _compare_targets(one, moment, differences)
        _compare_projectiles(one, moment, differences)


def _compare_player(one: dict[str, Array], moment: Moment, differences: Differences) -> None:
    record, t = moment.recording, moment.t
    for ours, theirs in (("position", "p_pos"), ("velocity", "p_vel"), ("rotation", "p_rot")):
        differences.see(ours, one[ours], record[theirs][t])
    whole = {
        "health": (one["health"], "p_health"),
        "shot_ready": (max(one["shot_ready"] - one["step"], 0), "p_cd"),
        "step": (one["step"], "step"),
        "phase": (one["phase"], "phase"),
        "phase_start": (one["phase_start"], "phase_start"),
        "won": (one["phase"] == 5, "win"),
        "kills": (one["kills"], "info_total_enemies_destroyed"),
        "spawner_kills": (one["spawner_kills"], "info_total_spawners_destroyed"),
        "first_kill": (one["first_kill"], "info_first_spawner_kill_step"),
    }
    for name, (value, theirs) in whole.items():
        differences.exact(moment, name, value, record[theirs][t])
    differences.exact(moment, "overflow", one["overflow"], 0)


def _compare_targets(one: dict[str, Array], moment: Moment, differences: Differences) -> None:
    record, t = moment.recording, moment.t
    alive = one["target_health"] > 0
    wait = np.maximum(one["ready"] - one["step"], 0)
    for name, rows, columns in (("enemy", slice(0, ENEMIES), 5), ("spawner", slice(ENEMIES, None), 5)):
        theirs = record[name][t][record[f"{name}_id"][t] >= 0][:, :columns]
        here = alive[rows]
        if not differences.exact(moment, f"{name} count", here.sum(), len(theirs)):
            continue
        last = one["speed"][rows] if name == "enemy" else one["period"]
        ours = np.stack([*one["targets"][:, rows], one["target_health"][rows], wait[rows], last], 1)[here]
        differences.see(f"{name} position", ours[:, :2], theirs[:, :2])
        differences.exact(moment, f"{name} health, wait", ours[:, 2:4], theirs[:, 2:4])
        differences.see("enemy speed" if name == "enemy" else "period", ours[:, 4], theirs[:, 4])
    differences.exact(moment, "enemies", one["enemies"], alive[:ENEMIES].sum())


def _compare_projectiles(one: dict[str, Array], moment: Moment, differences: Differences) -> None:
    record, t = moment.recording, moment.t
    theirs = record["proj"][t][record["proj_id"][t] >= 0]
    x, y = one["shots"]
    alive = (one["shot_ends"] > one["step"]) & (x >= 0) & (x <= WIDTH) & (y >= 0) & (y <= HEIGHT)
    shots = np.concatenate((one["shots"], one["shot_velocity"])).T[alive]
    age = np.mod(np.arange(SHOTS) - one["fired"], SHOTS)[alive]
    flying = one["bullet_ends"] < NEVER
    bullets = np.concatenate((one["bullets"], one["bullet_velocity"], one["bullet_born"][None])).T[flying]
    bullets = bullets[np.argsort(bullets[:, 4], kind="stable")]
    for name, owner, ours in (("shots", 1, shots[np.argsort(age)]), ("bullets", 0, bullets)):
        recorded = theirs[theirs[:, 5] == owner]
        if differences.exact(moment, f"{name} count", len(ours), len(recorded)):
            differences.see(f"{name}", ours[:, :2], recorded[:, :2])
            differences.see(f"{name} velocity", ours[:, 2:4], recorded[:, 2:4])
            if name == "bullets":
                differences.exact(moment, "bullets life", LIFETIME - one["step"] + ours[:, 4], recorded[:, 4])
    differences.exact(moment, "empty slots", (one["bullets"][0] >= FAR / 2), ~flying)
