"""The constants of Arena: its objects, phases, curriculum stages and rewards.

Lengths are pixels, angles radians (y points down, angle 0 is +x), times steps (nominally 60 a second).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..world import check_known

FAR = 1.0e6
"""Coordinate of absent objects: too far away to be hit, observed or nearest."""
NEVER = 1.0e9
"""Step of events that do not happen."""
SURELY = 1.0e30
"""A factor that makes any positive number more than 1."""
MOST_STEPS = 100_000
"""Greatest length of an episode, limited because expired projectiles still move and must not reach FAR."""

_CORNERS = ((200.0, 200.0), (1400.0, 200.0), (200.0, 1080.0), (1400.0, 1080.0))


@dataclass(frozen=True)
class Phase:
    """One of the phases of an episode.

    Attributes:
        anchors: positions of its spawners before jitter.
        speed: factor of the enemies' speed.
        period: factor of the time between two enemies of a spawner.
    """

    anchors: tuple[tuple[float, float], ...]
    speed: float
    period: float


@dataclass(frozen=True)
class Stage:
    """A stage of the curriculum: factors relative to the game itself."""

    name: str
    period: float
    max_enemies: float
    spawner_health: float
    enemy_speed: float
    shaping: float
    damage_penalty: float


STAGES = (
    Stage("survival basics", 2.5, 0.3, 0.4, 0.2, 4.0, 0.3),
    Stage("enemy elimination", 2.0, 0.5, 0.5, 0.85, 3.0, 0.6),
    Stage("spawner targeting", 1.8, 0.6, 0.65, 0.9, 2.5, 0.9),
    Stage("multi-target management", 1.4, 0.75, 0.8, 0.95, 1.8, 1.2),
    Stage("aggressive combat", 1.15, 0.85, 0.9, 1.0, 1.0, 1.3),
    Stage("elite performance", 1.0, 1.0, 1.0, 1.0, 0.5, 1.0),
)
NO_STAGE = Stage("none", 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)

PHASES = (
    Phase(((800.0, 200.0),), 1.0, 1.0),
    Phase(((200.0, 640.0), (1400.0, 640.0)), 0.9, 0.9),
    Phase(((800.0, 200.0), (200.0, 1080.0), (1400.0, 1080.0)), 0.8, 0.85),
    Phase(_CORNERS, 0.7, 0.8),
    Phase((*_CORNERS, (800.0, 640.0)), 0.75, 0.75),
)


@dataclass(frozen=True)
class ArenaRules:
    """All numbers of the simulation for one style of control and one curriculum stage."""

    style: int = 1
    stage: Stage = NO_STAGE
    phases: tuple[Phase, ...] = PHASES
    # arena
    width: float = 1600.0
    height: float = 1280.0
    max_steps: int = 3000
    # player
    player_radius: float = 15.0
    max_health: float = 150.0
    start: tuple[float, float] = (800.0, 640.0)
    thrust: float = 0.3  # style 1
    friction: float = 0.97
    top_speed: float = 6.0
    turn: float = math.radians(5.0)
    walking_speed: float = 5.0  # style 2
    shot_cooldown: int = 10
    # enemies
    enemy_radius: float = 12.0
    enemy_health: float = 10.0
    enemy_speed: float = 2.0
    contact_damage: float = 10.0
    fire_probability: float = 0.3
    fire_cooldown: int = 60
    max_enemies: int = 8
    # spawners
    spawner_radius: float = 25.0
    spawner_health: float = 100.0
    spawn_period: int = 120
    spawn_attempts: int = 5
    spawn_gap: tuple[float, float] = (5.0, 50.0)  # between the rims of spawner and new enemy
    spawn_clearance: float = 150.0
    jitter: float = 30.0
    heal: float = 75.0
    # projectiles
    shot_radius: float = 3.0
    shot_speed: float = 8.0
    shot_damage: float = 10.0
    shot_lifetime: int = 120
    enemy_shot_slots: int = 48
    # observation
    danger_radius: float = 150.0
    danger_count: float = 5.0
    # reward
    step_reward: float = 0.01
    hit_enemy: float = 2.0
    kill_enemy: float = 5.0
    hit_spawner: float = 10.0
    kill_spawner: float = 75.0
    quick_kill: float = 50.0
    quick_steps: int = 500
    damage: float = -2.0  # per hit taken
    clear_phase: float = 100.0
    death: float = -100.0
    shaping: float = 0.01
    shaping_limit: float = 0.2
    shaping_kill: float = 5.0
    shaping_damage: float = 0.8

    @property
    def diagonal(self) -> float:
        """Unit of observed distances."""
        return math.hypot(self.width, self.height)

    @property
    def num_actions(self) -> int:
        """5 in style 1 (wait, thrust, turn left, turn right, shoot), 6 in style 2 (wait, four directions, shoot)."""
        return 5 if self.style == 1 else 6

    @property
    def num_spawners(self) -> int:
        """Number of slots for spawners, as many as the fullest phase needs."""
        return max(len(phase.anchors) for phase in self.phases)

    @property
    def shot_slots(self) -> int:
        """Greatest number of the player's shots at once."""
        flight = min(self.shot_lifetime, math.ceil(self.diagonal / self.shot_speed))
        return math.ceil(flight / self.shot_cooldown)

    @property
    def enemy_cap(self) -> int:
        """Greatest number of enemies at once."""
        return int(self.max_enemies * self.stage.max_enemies)

    @property
    def new_spawner_health(self) -> float:
        """Health of a spawner at the beginning of a phase."""
        return float(int(self.spawner_health * self.stage.spawner_health))

    def period(self, phase: int) -> int:
        """Returns the number of steps between two enemies of a spawner."""
        return int(self.spawn_period * (self.phases[phase].period * self.stage.period))

    def new_enemy_speed(self, phase: int) -> float:
        """Returns the speed in pixels per step that an enemy made now keeps."""
        return self.enemy_speed * self.phases[phase].speed * self.stage.enemy_speed


REWARDS = (
    *("step_reward", "hit_enemy", "kill_enemy", "hit_spawner", "kill_spawner", "quick_kill", "damage"),
    *("clear_phase", "death"),
)
"""Rewards of :class:`ArenaRules` that a training may weigh anew."""


def make_rules(
    style: int, stage: int | None, max_steps: int | None = None, rewards: Mapping[str, float] | None = None
) -> ArenaRules:
    """Returns the rules of a game.

    Args:
        style: 1 (turn and thrust) or 2 (four directions).
        stage: stage of the curriculum; None for the game itself.
        max_steps: time limit in steps; None for the game's own.
        rewards: some of :data:`REWARDS`, in place of the game's own.

    Raises:
        ValueError: the style, stage or time limit is impossible, or a reward is unknown.
    """
    if style not in (1, 2):
        raise ValueError(f"style: {style} is unknown, allowed: 1 (turn and thrust), 2 (four directions)")
    if stage is not None and stage not in range(len(STAGES)):
        raise ValueError(f"stage: {stage} is unknown, allowed: null and 0 to {len(STAGES) - 1}")
    check_known("reward_weights", rewards or (), REWARDS)
    changed: dict[str, Any] = dict(rewards or {})
    rules = ArenaRules(style=style, stage=NO_STAGE if stage is None else STAGES[stage], **changed)
    if max_steps is None:
        return rules
    if not 1 <= max_steps <= MOST_STEPS:
        raise ValueError(f"max_steps: {max_steps} is not between 1 and {MOST_STEPS}")
    return replace(rules, max_steps=max_steps)


# -- the rules as tensors ------------------------------------------------------------------------------------------


class ArenaTables(NamedTuple):
    """``P`` phases and, like the last one, the time after a victory; ``A`` actions."""

    anchors: Tensor  # [2, S, P] the least coordinates after jitter
    spawner_health: Tensor  # [S, P] of new spawners, 0 where there is none
    periods: Tensor  # [P]
    speeds: Tensor  # [P] of new enemies
    shares: Tensor  # [P] what one spawner is of all in its phase
    controls: Tensor  # [3, A] style 1: thrust, turn, 0; style 2: velocity, heading in half turns (NaN: as it was)
    scale: Tensor  # [32, 1] observation = scale x raw + shift
    shift: Tensor  # [32, 1]
    pay: Tensor  # [8, 1] float64, reward of what collisions are counted as


def make_tables(rules: ArenaRules, dtype: torch.dtype, device: torch.device | str) -> ArenaTables:
    """The tables of a game."""
    slots, phases = rules.num_spawners, (*range(len(rules.phases)), len(rules.phases) - 1)
    places = [rules.phases[phase].anchors for phase in phases]
    anchors = [[*own, *[(FAR, FAR)] * (slots - len(own))] for own in places]
    health = [[rules.new_spawner_health * (slot < len(own)) for slot in range(slots)] for own in places]

    def real(values: object, kind: torch.dtype = dtype) -> Tensor:
        return torch.tensor(values, dtype=kind, device=device)

    # Scale and shift of each observed number.
    x, y, distance = 1 / rules.width, 1 / rules.height, 1 / rules.diagonal
    speed, one, hurt = 1 / rules.top_speed, (1.0, 0.0), 1 / rules.spawner_health
    enemy, spawner = ((distance, 0.0), one, one), ((distance, 0.0), one, one, (hurt, 0.0))
    scaling = [
        *((x, 0.0), (y, 0.0), (speed, 0.0), (speed, 0.0), (0.5 / math.pi, 0.0), (1 / rules.max_health, 0.0)),
        *((1 / rules.shot_cooldown, 0.0), (1 / len(rules.phases), 0.0), one, (-1 / rules.max_steps, 1.0)),
        *(*enemy, *enemy, *spawner, *spawner, (distance, 0.0), one, (1 / rules.danger_count, 0.0)),
        *((x, 0.0), (-x, 1.0), (y, 0.0), (-y, 1.0), (1 / rules.max_enemies, 0.0)),
    ]
    scale, shift = zip(*scaling)
    controls: list[tuple[float, float, float]] = [(0, 0, 0), (rules.thrust, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, 0)]
    if rules.style == 2:
        walk, kept = rules.walking_speed, (0.0, 0.0, math.nan)
        controls = [kept, (0.0, -walk, -0.5), (0.0, walk, 0.5), (-walk, 0.0, 1.0), (walk, 0.0, 0.0), kept]
    pay = [
        *(rules.hit_enemy, rules.kill_enemy, rules.hit_spawner, rules.kill_spawner, rules.quick_kill),
        *(rules.damage * rules.stage.damage_penalty, rules.clear_phase, rules.death),
    ]
    return ArenaTables(
        real(anchors).permute(2, 1, 0).contiguous() - rules.jitter,
        real(health).T.contiguous(),
        real([rules.period(phase) for phase in phases]),
        real([rules.new_enemy_speed(phase) for phase in phases]),
        real([1 / len(own) for own in places]),
        real(controls).T.contiguous(),
        real(scale)[:, None],
        real(shift)[:, None],
        real(pay, torch.float64)[:, None],
    )
