"""The constants of Rocket: field, ball, car, pick-ups, time.

Lengths are Unreal units (uu, 1 cm), speeds uu/s, angles radians, times ticks of 1/120 s unless a name says otherwise.
Axes of a car are forward, right, up; spins are right-handed in that order. Blue attacks +y.
"""

from __future__ import annotations

TICKS_PER_SECOND = 120
DT = 1.0 / TICKS_PER_SECOND
GRAVITY = 650.0

Curve = tuple[tuple[float, float], ...]
"""Points of a piecewise linear function, constant beyond its ends."""

# -- field -------------------------------------------------------------------------------------------------------------
HALF_WIDTH = 4096.0
HALF_LENGTH = 5120.0
HEIGHT = 2048.0
CORNER = 8064.0  # |x| + |y| on a corner plane
GOAL_HALF_WIDTH = 892.755
GOAL_HEIGHT = 642.775
GOAL_BACK = 6000.0
GOAL_LINE = 5124.25 + 91.25  # |y| of a ball's centre that counts
LOW_RAMP = 256.0  # radius of the quarter rounds at the floor
HIGH_RAMP = 512.0  # at the ceiling

# -- ball --------------------------------------------------------------------------------------------------------------
BALL_RADIUS = 91.25
BALL_REST = 93.15
BALL_MASS = 30.0
BALL_INERTIA = 0.4 * BALL_MASS * BALL_RADIUS**2
BALL_DRAG = 0.03  # lost per second
BALL_RESTITUTION = 0.6
BALL_FRICTION = 0.35
BALL_TOP_SPEED = 6000.0
BALL_TOP_SPIN = 6.0
CONTACT_GAP = BALL_REST - BALL_RADIUS + 2.0e-6  # a ball touches from this gap on; at rest it does

# -- car ---------------------------------------------------------------------------------------------------------------
CAR_MASS = 180.0
HITBOX = (120.507, 86.6994, 38.6591)
HITBOX_CENTRE = (13.87566, 0.0, 20.755)
SHRINKAGE = 0.1341  # of each dimension of the box that collides and has inertia
CAR_TOP_SPEED = 2300.0
CAR_TOP_SPIN = 5.5
CAR_REST = 17.0
SUPERSONIC = 2200.0
SUPERSONIC_KEPT = 2100.0
SUPERSONIC_GRACE = TICKS_PER_SECOND

_BOX = tuple(side - SHRINKAGE for side in HITBOX)
BOX_HALF = (_BOX[0] / 2, _BOX[1] / 2, _BOX[2] / 2)
CAR_INERTIA = (
    CAR_MASS / 12 * (_BOX[1] ** 2 + _BOX[2] ** 2),
    CAR_MASS / 12 * (_BOX[0] ** 2 + _BOX[2] ** 2),
    CAR_MASS / 12 * (_BOX[0] ** 2 + _BOX[1] ** 2),
)

# -- wheels: front left, front right, rear left, rear right ------------------------------------------------------------
WHEEL_X = (51.25, 51.25, -33.75, -33.75)
WHEEL_Y = (-25.9, 25.9, -29.5, 29.5)
WHEEL_Z = 20.755
WHEEL_RADIUS = (12.5, 12.5, 15.0, 15.0)
SUSPENSION_REST = (26.755, 26.755, 25.055, 25.055)
SUSPENSION_FORCE = (35.75, 35.75, 54.265, 54.265)
SUSPENSION_TRAVEL = 12.0
SUSPENSION_SHORTER = 2.5  # length by which the trace is shorter than rest and travel
STIFFNESS = 500.0
DAMPING_COMPRESSION = 25.0
DAMPING_EXTENSION = 40.0

ENGINE = 400.0  # per wheel, uu/s^2
BRAKE = 52.5
BRAKE_GRIP = 113.74
COASTING = 0.15
STOPPING_SPEED = 25.0
DEAD_ZONE = 0.001
ENGINE_CURVE: Curve = ((0.0, 1.0), (1400.0, 0.1), (1410.0, 0.0))
STEERING_CURVE: Curve = (
    (0.0, 0.53356),
    (500.0, 0.3193),
    (1000.0, 0.18203),
    (1500.0, 0.1057),
    (1750.0, 0.08507),
    (3000.0, 0.03454),
)
SLIDING_CURVE: Curve = ((0.0, 0.39235), (2500.0, 0.1261))  # steering angle with the handbrake
SLOPE_GRIP_CURVE: Curve = ((0.0, 0.1), (0.7075, 0.5), (1.0, 1.0))
HANDBRAKE_RISE = 5.0  # per second
HANDBRAKE_FALL = 2.0

# -- boost, jumps, flips, air ------------------------------------------------------------------------------------------
BOOST_MOST = 100.0
BOOST_START = 100.0 / 3
BOOST_USE = 100.0 / 3  # per second
BOOST_SHORTEST = 12
BOOST_GROUND = 991.66667
BOOST_AIR = 1058.33333
AIR_THROTTLE = 66.666667
JUMP_SPEED = 291.66667
JUMP_ACCELERATION = 1458.33333
JUMP_EARLY = 3
JUMP_EARLY_SHARE = 0.62
JUMP_LONGEST = 24
JUMP_RESET = 6
SECOND_JUMP_LATEST = 150
FLIP_INPUT = 0.5
FLIP_SPEED = 500.0
FLIP_ROLL = 260.0
FLIP_PITCH = 224.0
FLIP_TICKS = 79
FLIP_LOCK = 36
FLIP_DAMPING = 0.65
FLIP_DAMPING_FROM = 18
FLIP_DAMPING_ALWAYS = 25  # before this tick, later only while falling
AIR_SCALE = 0.09587380290031433
AIR_TORQUE = (400.0, 130.0, 95.0)  # roll, pitch, yaw
AIR_DAMPING = (50.0, 30.0, 20.0)
AUTO_ROLL_FORCE = 100.0
AUTO_ROLL_TORQUE = 80.0
AUTO_FLIP_SPEED = 200.0
AUTO_FLIP_SPIN = 50.0
AUTO_FLIP_TICKS = 48.0
AUTO_FLIP_SLOPE = 0.70710677
AUTO_FLIP_ROLL = 2.8

# -- contacts ----------------------------------------------------------------------------------------------------------
SWEEPS = 10
SOFT = 10.0  # speed below which nothing bounces
PUSH = 0.8  # share of a penetration that a tick removes
PUSH_TURN = 0.1  # share of the rotation that goes with it
HIT_FRICTION = 2.0
CORE_MARGIN = 2.0
EDGE_RADIUS = 1.933
HIT_SPEED_MOST = 4600.0
HIT_CURVE: Curve = ((0.0, 0.65), (500.0, 0.65), (2300.0, 0.55), (4600.0, 0.3))
HIT_UP = 0.35
HIT_FORWARD = 0.35  # share of its forward component that the extra hit loses
BODY_FRICTION = 0.3
BODY_RESTITUTION = 0.3
BODY_GAP = 2.03  # gap below which the body touches
BUMPER_FRICTION = 0.09
BUMPER_RESTITUTION = 0.1

# -- bumps and demolitions ---------------------------------------------------------------------------------------------
BUMP_FRONT = 64.5  # contact this far ahead of a car's origin is its bumper's
BUMP_COOLDOWN = 30
BUMP_GROUND: Curve = ((0.0, 0.8333333), (1400.0, 1100.0), (2200.0, 1530.0))
BUMP_AIR: Curve = ((0.0, 0.8333333), (1400.0, 1390.0), (2200.0, 1945.0))
BUMP_UP: Curve = ((0.0, 0.3333333), (1400.0, 278.0), (2200.0, 417.0))
RESPAWN_TICKS = 3 * TICKS_PER_SECOND
RESPAWN_HEIGHT = 36.0

# -- pick-ups ----------------------------------------------------------------------------------------------------------
BIG_PADS = ((-3584.0, 0.0), (3584.0, 0.0), (-3072.0, 4096.0), (3072.0, 4096.0), (-3072.0, -4096.0), (3072.0, -4096.0))
_SMALL_SOUTH = (
    *((0.0, -4240.0), (-1792.0, -4184.0), (1792.0, -4184.0), (-940.0, -3308.0), (940.0, -3308.0), (0.0, -2816.0)),
    *((-3584.0, -2484.0), (3584.0, -2484.0), (-1788.0, -2300.0), (1788.0, -2300.0), (-2048.0, -1036.0)),
    *((0.0, -1024.0), (2048.0, -1036.0)),
)
SMALL_PADS = (*_SMALL_SOUTH, (-1024.0, 0.0), (1024.0, 0.0), *((-x, -y) for x, y in reversed(_SMALL_SOUTH)))
PADS = tuple(sorted((*BIG_PADS, *SMALL_PADS), key=lambda place: (place[1], place[0])))
"""South to north, west to east: pad k turned by pi is pad 33 - k."""
PAD_Z, PAD_REACH = 70.0, 95.0
BIG_RADIUS, SMALL_RADIUS = 208.0, 144.0
BIG_BOOST, SMALL_BOOST = 100.0, 12.0
BIG_TICKS, SMALL_TICKS = 10 * TICKS_PER_SECOND, 4 * TICKS_PER_SECOND

# -- places: x, y, yaw of blue; orange has them turned by pi -----------------------------------------------------------
KICK_OFFS = (
    *((-2048.0, -2560.0, 0.7853981633974483), (2048.0, -2560.0, 2.356194490192345)),
    *((-256.0, -3840.0, 1.5707963267948966), (256.0, -3840.0, 1.5707963267948966)),
    (0.0, -4608.0, 1.5707963267948966),
)
RESPAWNS = ((-2304.0, -4608.0), (-2688.0, -4608.0), (2304.0, -4608.0), (2688.0, -4608.0))
