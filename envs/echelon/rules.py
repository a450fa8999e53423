"""The rules of the game as numbers. Lengths in voxels, times in seconds, timers in sub-steps of 0.05 s."""

from __future__ import annotations

from typing import NamedTuple

TEAMS = ("blue", "red")
DT = 0.05
SUB_STEPS = 5
DECISION = DT * SUB_STEPS
MAP = 64
"""Default number of voxels along a map's side; observed lengths are shares of it in maps of any size."""
SIDES = (48, 128)
"""Least and greatest side; in smaller maps the starts would overlap the zone."""
CEILING = 20.0
GRAVITY = 9.81
DAMPING = 0.98  # of velocities, per sub-step
STEP_UP = 1.1
STEP_CALM = 1.0  # vertical speed below which a mech can step up


class Chassis(NamedTuple):
    """A class of mechs."""

    width: float
    height: float
    speed: float  # voxels/s
    yaw_rate: float  # rad/s
    jet: float  # voxels/s^2
    hp: float
    leg_hp: float
    heat_cap: float
    dissipation: float  # heat/s
    tonnage: float
    noise: float


HEAVY = Chassis(3.5, 4.0, 2.5, 0.6, 0.0, 200.0, 100.0, 130.0, 10.0, 85.0, 4.0)
MEDIUM = Chassis(2.5, 3.0, 5.5, 1.0, 0.0, 150.0, 75.0, 100.0, 11.0, 55.0, 2.5)
LIGHT = Chassis(1.5, 2.0, 6.8, 1.5, 16.0, 80.0, 40.0, 80.0, 12.0, 35.0, 1.5)
SCOUT = Chassis(1.2, 1.8, 7.0, 1.8, 18.0, 60.0, 30.0, 75.0, 13.0, 20.0, 1.0)
CLASSES = ("scout", "light", "medium", "heavy")
PACK = (HEAVY, MEDIUM, MEDIUM, LIGHT, SCOUT)
PACK_CLASSES = (3, 2, 2, 1, 0)
FILLED = (1, 0, 4, 2, 3)
"""Slots of a pack in the order in which small teams take them: a medium, the heavy, the scout, a medium, the light."""
SLOTS = len(PACK)
MOST = 2 * SLOTS

STABILITY = 100.0
REGENERATION = 10.0  # stability/s
FALL_TICKS = 60.0
LEGGED_SPEED, LEGGED_JET, LEGGED_STABILITY = 0.4, 0.5, 0.5

# weapons: range, damage, stability damage, own heat, cooldown
LASER_RANGE, FLAMER_RANGE, MISSILE_RANGE, GUIDED_RANGE = 8.0, 4.5, 12.0, 50.0
AUTOCANNON_RANGE, GAUSS_RANGE, PAINTER_RANGE, SMOKE_RANGE = 12.0, 20.0, 10.0, 20.0
LASER_DAMAGE, FLAMER_DAMAGE, MISSILE_DAMAGE, AUTOCANNON_DAMAGE, GAUSS_DAMAGE = 14.0, 4.0, 40.0, 8.0, 50.0
LASER_BURN, FLAMER_BURN = 6.0, 15.0  # heat added to a mech that is hit
MISSILE_SHOCK, AUTOCANNON_SHOCK, GAUSS_SHOCK = 15.0, 5.0, 60.0
MISSILE_SPEED, AUTOCANNON_SPEED, GAUSS_SPEED, SMOKE_SPEED = 12.0, 25.0, 40.0, 15.0
MISSILE_SPLASH, GAUSS_SPLASH, SPLASH_SCALE = 2.5, 1.5, 0.5
HOMING = 4.0  # rate per second at which a missile turns to its target
SUPPRESSED_TICKS, PAINTED_TICKS = 24.0, 100.0
SMOKE_HEAT, SMOKE_TICKS, SMOKE_RADIUS, CLOUD_TICKS = 10.0, 100.0, 4.0, 200.0
SHELL_TICKS = float(round(SMOKE_RANGE / SMOKE_SPEED / DT))
ECM_HEAT, ECCM_HEAT, EWAR_RANGE = 3.0, 2.0, 50.0
AMS_RANGE, AMS_CHANCE, AMS_TICKS = 5.5, 0.6, 20.0
REAR_COSINE, REAR_FACTOR, PAINT_FACTOR = 0.707, 1.5, 1.1
LEG_CHANCE, LEG_HEIGHT = 0.1, 0.3
GUIDED_QUALITY = 0.7

GRID = 9
"""Number of places along a side of the grid of heights that a mech observes."""

# hazards, per second
LAVA_HEAT, LAVA_DAMAGE, WATER_HEAT, WATER_SPEED = 40.0, 5.0, -30.0, 0.6
HAZARD_HEIGHT = 1.0

# zone
ZONE_HEIGHT = 6.0
SPAWN_SQUARE = 16
SPAWN_PITCH, SPAWN_JITTER, SPAWN_TURN = 3.5, 0.25, 0.15


class Mount(NamedTuple):
    """A weapon on a slot of a pack.

    Attributes:
        button, clock: rows of the orders and of the state's clocks.
        reach: greatest distance of a target.
        cone, focus_cone: cosine of half the arc, for any target and for the chosen one.
        blind: whether it needs no line of sight.
        free: whether it fires without a target, except while fallen.
    """

    slot: int
    button: int
    clock: int
    reach: float
    heat: float
    cooldown: float
    cone: float
    focus_cone: float
    blind: bool = False
    free: bool = False


# rows of orders
FORWARD, STRAFE, JET, YAW, PRIMARY, VENT, SECONDARY, TERTIARY, SPECIAL, TARGET = range(10)
ORDERS = 10
# rows of clocks
LASER, MISSILE, KINETIC, PAINTER, PAINTED, SUPPRESSED, AMS, FALLEN = range(8)
CLOCKS = 8

_SIXTY, _FORTY_FIVE, _RIGHT, _THIRTY = 0.5, 0.7071068, 0.0, 0.8660254
_FOCUS, _AIM = 0.9800666, 0.9950042  # cosines of 0.2 and 0.1 rad, within which kinetics aim at a target

MOUNTS = (
    *(Mount(slot, PRIMARY, LASER, LASER_RANGE, 22.0, 12.0, _SIXTY, _SIXTY) for slot in (0, 1, 2)),
    Mount(3, SECONDARY, LASER, LASER_RANGE, 22.0, 12.0, _SIXTY, _SIXTY),
    Mount(3, PRIMARY, KINETIC, FLAMER_RANGE, 10.0, 3.0, _FORTY_FIVE, _FORTY_FIVE),
    Mount(0, SECONDARY, MISSILE, MISSILE_RANGE, 45.0, 60.0, _RIGHT, _RIGHT),
    Mount(0, TERTIARY, KINETIC, GAUSS_RANGE, 15.0, 80.0, _AIM, _FOCUS, True, True),
    *(Mount(slot, TERTIARY, KINETIC, AUTOCANNON_RANGE, 6.0, 4.0, _AIM, _FOCUS, True, True) for slot in (1, 2)),
    *(Mount(slot, TERTIARY, PAINTER, PAINTER_RANGE, 5.0, 20.0, _THIRTY, _THIRTY) for slot in (1, 2, 3)),
    Mount(4, PRIMARY, PAINTER, PAINTER_RANGE, 5.0, 20.0, _THIRTY, _THIRTY),
)
"""The weapons of a pack: lasers 0 to 3, flamer 4, missiles 5, gauss 6, autocannons 7 and 8, painters 9 to 12."""
HITSCAN, LAUNCHERS, PAINTERS = slice(0, 5), slice(5, 9), slice(9, 13)

SHOT_OWNERS = (0, 0, 0, 1, 1, 1, 2, 2, 2)
"""Slots of the nine shots of a pack: two missiles, a gauss slug, three shells of each autocannon."""
SHOTS = len(SHOT_OWNERS)
