"""Tables for the simulation: the numbers of classes and weapons by slot, and the bank of maps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import rules
from .maps import DIRECTIONS, LAVA, WATER, Maps
from .rules import GRID, HITSCAN, MAP, MOUNTS, PACK, PACK_CLASSES, SHOT_OWNERS, SHOTS, SLOTS


@dataclass(frozen=True)
class Tables:
    """Numbers as tensors that broadcast against ``[2, n, W]``, ``[2, mounts, W]`` or ``[2, shots, W]``.

    Attributes:
        packs: P, packs of five per team; mounts and shots of pack 1 follow those of pack 0.
        present: ``[2, n, 1]`` flag: the slot is filled.
    """

    maps: Maps
    packs: int
    present: Tensor
    # by slot, [n, 1]
    height: Tensor
    lift: Tensor  # [3, 1, n, 1] from the feet to the centre
    margin: Tensor  # least distance of a mech from the map's edge
    far_margin: Tensor  # greatest place of a mech
    wide: Tensor  # [2n, 1] of both teams: half of the margin, less the map's side
    slow_wet: Tensor  # [3, 1, 1, 1] share of speed lost in water, ahead, to the left, and up
    legged_speed: Tensor  # [3, 1, 1, 1] factor of the speed without a leg
    gravity: Tensor  # [3, 1, 1, 1] change of the velocity in a sub-step
    limits: Tensor  # [4, 1, n, 1] hp of the dead, of lost legs, heat cap, height of hazards
    water: Tensor  # [3, 1, 1, 1] change of hp, legs and heat by water in a sub-step
    lava: Tensor  # the same of lava
    stacked: Tensor  # [2n, 2n, 1] distance of centres above which two mechs are above each other
    speed: Tensor
    yaw_rate: Tensor
    jet: Tensor
    hp: Tensor
    leg_hp: Tensor
    heat_cap: Tensor
    cooling: Tensor  # heat per sub-step
    tonnage: Tensor
    noise: Tensor
    reach2: Tensor  # square of the radius of the sphere that shots hit
    low: Tensor  # height above the centre below which legs are hit
    scout: Tensor  # flag
    heavy: Tensor  # flag
    pack: Tensor  # 0, 1
    classes: Tensor  # [4, n, 1] one-hot in the order of rules.CLASSES
    slots: Tensor  # 0 to n - 1
    chances: Tensor  # [lucky_numbers, 1] numbers below which something happens; see simulation.step
    lower: Tensor  # a little for each slot, so that of equal values the lower slot's is smaller
    higher: Tensor  # factors by which of equal values the higher slot's is greater
    floor_base: Tensor  # where in ``maps.floors`` its layer begins, int32
    # by mount
    mount_slot: Tensor
    mount_button: Tensor
    mount_clock: Tensor
    mount_reach: Tensor
    mount_cone: Tensor
    mount_focus_cone: Tensor
    mount_blind: Tensor
    mount_free: Tensor
    mount_guided: Tensor
    mount_price: Tensor  # [5n, mounts] of a shot: heat by slot, then clocks of the weapons by slot
    upright: Tensor  # [4, n, 1] flag: the weapon fires without a target, and not while its mech lies on the ground
    beam_slot: Tensor
    beam_damage: Tensor  # [5, 1, 1] of lasers and flamer
    beam_burn: Tensor
    painter_slot: Tensor  # [4P, 1, 1]
    # by launcher of a pack: missile, gauss, two autocannons
    launcher_slot: Tensor
    launcher_speed: Tensor
    launcher_life: Tensor  # range over speed, in sub-steps
    launcher_drop: Tensor  # [3, 1, 1, 4, 1] times distance squared: how far to aim higher
    # by shot
    shot_launcher: Tensor  # of a pack
    shot_owner: Tensor
    shot_missile: Tensor  # which of the team's missiles it is, some for other shots
    shot_homes: Tensor  # bool: it is a missile
    shot_target: Tensor  # [n, S] slot of an enemy where it is a missile, otherwise -1
    shot_falls: Tensor  # [3, S] lost velocity
    shot_numbers: Tensor  # [5, S] damage, shock, suppression, splash at its centre, and per voxel from there
    # by weapon of the bots: laser, flamer, painter, missile, gauss, autocannon, [6, 1, 1]
    bot_reach: Tensor
    bot_arc: Tensor  # half of it, rad
    bot_blind: Tensor  # bool: it needs no line of sight
    bot_guided: Tensor  # bool: it also flies to marked enemies
    bot_free: Tensor  # [10, n, 1] bool: orders that are no fire
    bot_weapons: Tensor  # [3 (primary, secondary, tertiary), 6, n, 1] bool
    # of the ground
    directions: Tensor  # [2, 9]
    halves: Tensor  # [2, 1] shares of a sub-step
    hazards: Tensor  # [2, 1, 1, 1] kinds of ground: water, lava
    samples: Tensor  # [K, 1, 1, 1] places along a line of sight, -1 to 1
    grid: Tensor  # [2, 81, 1, 1, 1] places of an observed grid, ahead and to the left
    # of the other mechs that each observes: its team without itself, then its enemies; o = 2n - 1
    others: Tensor  # [2, n * o] among the mechs of both teams
    higher_than: Tensor  # [n, o, 1] how much higher their centres are, on the same ground
    fitness: Tensor  # [3, 1, n, o, 1] factors of hp, heat and stability
    other_classes: Tensor  # [4, n, o, 1] see classes
    contact_scale: Tensor  # [24, 1, 1, 1, 1]
    clock_scale: Tensor  # [CLOCKS, 1, 1] of observed clocks
    cloud_fading: Tensor  # [4, 1, 1, 1, 1] change of a cloud in a sub-step
    cloud_life: Tensor  # [5, 1, 1, 1] at the end of a decision, of one that starts in each sub-step
    shell_start: Tensor  # [6, 1, 1, 1] factors of a mech's centre and direction
    results: Tensor  # [3, 1] winner of matches that blue won, lost, nobody won
    shell_life: Tensor  # 0-dim
    none: Tensor  # 0-dim
    one: Tensor  # 0-dim
    nobody: Tensor  # 0-dim, -1
    suppressed: Tensor  # 0-dim, sub-steps
    balance: Tensor  # [3, 1, 1, 1] of a mech with both legs: stability, after a fall, gain in a sub-step
    legged_balance: Tensor  # the same without a leg
    never: Tensor  # 0-dim, a number above all times and distances

    @property
    def side(self) -> int:
        """Number of voxels along the side of every map."""
        return self.maps.side

    @property
    def mechs(self) -> int:
        """Number of slots of a team, n."""
        return self.packs * SLOTS


_SAMPLES = 24


def make_tables(maps: Maps, sizes: tuple[int, int], dtype: torch.dtype, device: torch.device | None) -> Tables:
    """Makes tables for the given team sizes.

    Raises:
        ValueError: the size of a team is impossible.
    """
    for team, size in zip(("blue", "red"), sizes):
        if not 1 <= size <= rules.MOST:
            raise ValueError(f"{team}: {size} mechs, a team has 1 to {rules.MOST}")
    packs = -(-max(sizes) // SLOTS)

    def real(values: Any, *shape: int) -> Tensor:
        made = torch.tensor(values, dtype=dtype, device=device)
        return made.view(*shape) if shape else made[:, None]

    def index(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    teams = [[float(slot in taken(size)) for slot in range(packs * SLOTS)] for size in sizes]
    cells = maps.size * maps.side**2
    floor = [[cells * (chassis is rules.HEAVY)] for chassis in PACK * packs]
    margin, lift = (real([getattr(c, name) / 2 for c in PACK * packs]) for name in ("width", "height"))
    slots = real(list(range(packs * SLOTS)))
    caps = real([chassis.heat_cap for chassis in PACK * packs])
    beams = HITSCAN.stop - HITSCAN.start
    ways = [(0.0, 0.0), *((x / (x * x + y * y) ** 0.5, y / (x * x + y * y) ** 0.5) for x, y in DIRECTIONS)]
    samples = max(_SAMPLES, -(-_SAMPLES * maps.side // MAP))
    middles = [(2 * place + 1) / samples - 1 for place in range(samples)]
    return Tables(
        maps=maps.to(device),
        packs=packs,
        present=real(teams, 2, -1, 1),
        classes=torch.stack([real([float(c == kind) for c in PACK_CLASSES * packs]) for kind in range(4)]),
        slots=slots,
        lower=slots * 1.0e-4,
        higher=(1 + slots * 1.0e-6)[:, None],
        lift=torch.stack((0 * lift, 0 * lift, lift))[:, None],
        margin=margin,
        far_margin=maps.side - margin,
        wide=(margin / 2 - maps.side).tile(2, 1),
        slow_wet=real([1 - rules.WATER_SPEED] * 2 + [0.0], 3, 1, 1, 1),
        legged_speed=1 - real([1 - rules.LEGGED_SPEED] * 2 + [1 - rules.LEGGED_JET], 3, 1, 1, 1),
        gravity=real([0.0, 0.0, -rules.GRAVITY * rules.DT], 3, 1, 1, 1),
        limits=torch.stack((0 * caps, 0 * caps, caps, 0 * caps + rules.HAZARD_HEIGHT))[:, None],
        water=real([0.0, 0.0, rules.WATER_HEAT * rules.DT], 3, 1, 1, 1),
        lava=real([-rules.LAVA_DAMAGE * rules.DT, 0.0, rules.LAVA_HEAT * rules.DT], 3, 1, 1, 1),
        chances=real([rules.LEG_CHANCE] * (2 * packs * beams) + [rules.AMS_CHANCE] * (4 * packs * packs)),
        stacked=(lift[:, None] + lift).tile(2, 2, 1),
        cooling=real([chassis.dissipation * rules.DT for chassis in PACK * packs]),
        pack=real([float(slot // SLOTS) for slot in range(packs * SLOTS)]),
        floor_base=torch.tensor(floor, dtype=torch.int32, device=device),
        scout=real([float(chassis is rules.SCOUT) for chassis in PACK * packs]),
        heavy=real([float(chassis is rules.HEAVY) for chassis in PACK * packs]),
        reach2=real([max(chassis.width, chassis.height) ** 2 / 4 for chassis in PACK * packs]),
        low=(2 * rules.LEG_HEIGHT - 1) * lift,
        directions=real(ways).squeeze(1).T.contiguous(),
        halves=real((0.5, 1.0)),
        hazards=torch.tensor((WATER, LAVA), dtype=torch.uint8, device=device).view(2, 1, 1, 1),
        samples=real(middles, -1, 1, 1, 1),
        grid=real(
            [
                [2.0 * (place // GRID - GRID // 2) for place in range(GRID**2)],
                [2.0 * (place % GRID - GRID // 2) for place in range(GRID**2)],
            ],
            2,
            -1,
            1,
            1,
            1,
        ),
        never=real([1.0e6]).squeeze(),
        **_other_tables(packs, real, index),
        **_bot_tables(packs, real),
        clock_scale=real(
            [1 / 12, 1 / 100, 1 / 80, 1 / 20, 1.0, 1 / rules.SUPPRESSED_TICKS, 1 / rules.AMS_TICKS, 1.0], -1, 1, 1
        ),
        cloud_fading=real([0.0, 0.0, 0.0, 1.0], 4, 1, 1, 1, 1),
        results=real([1.0, -1.0, 0.0]),
        cloud_life=real([rules.CLOUD_TICKS + 1 - left for left in range(rules.SUB_STEPS, 0, -1)], -1, 1, 1, 1),
        shell_start=real([1.0] * 3 + [rules.SMOKE_SPEED] * 3, 6, 1, 1, 1),
        shell_life=real([rules.SHELL_TICKS]).squeeze(),
        none=real([0.0]).squeeze(),
        one=real([1.0]).squeeze(),
        nobody=real([-1.0]).squeeze(),
        suppressed=real([rules.SUPPRESSED_TICKS]).squeeze(),
        balance=_balance(real([rules.STABILITY])),
        legged_balance=_balance(real([rules.STABILITY * rules.LEGGED_STABILITY])),
        **{name: real([getattr(c, name) for c in PACK * packs]) for name in _BY_SLOT},
        **_mount_tables(packs, real, index),
        **_launcher_tables(real, index),
        **_shot_tables(packs, real, index),
    )


def _balance(full: Tensor) -> Tensor:
    return torch.stack((full, full / 2, full * (rules.REGENERATION * rules.DT / rules.STABILITY)))[..., None]


_BY_SLOT = ("height", "speed", "yaw_rate", "jet", "hp", "leg_hp", "heat_cap", "tonnage", "noise")


def taken(size: int) -> list[int]:
    """Returns the slots that a team of a given size fills."""
    return [SLOTS * (place // SLOTS) + rules.FILLED[place % SLOTS] for place in range(size)]


def _other_tables(packs: int, real: Callable[..., Tensor], index: Callable[[list[int]], Tensor]) -> dict[str, Tensor]:
    mechs, pack, kinds = packs * SLOTS, PACK * packs, PACK_CLASSES * packs
    slots = [[*(other for other in range(mechs) if other != own), *range(mechs)] for own in range(mechs)]
    teams = [[team] * (mechs - 1) + [1 - team] * mechs for team in range(2)]
    fitness = [(1 / chassis.hp, 1 / chassis.heat_cap, 1 / rules.STABILITY) for chassis in pack]

    def by_other(value: Callable[[int], float]) -> list[list[float]]:
        return [[value(slot) for slot in row] for row in slots]

    lifts = [[(pack[slot].height - pack[own].height) / 2 for slot in row] for own, row in enumerate(slots)]
    classes = [by_other(lambda slot, kind=kind: float(kinds[slot] == kind)) for kind in range(4)]  # type: ignore[misc]
    return {
        "others": torch.stack([index([t * mechs + s for row in slots for t, s in zip(team, row)]) for team in teams]),
        "higher_than": real(lifts, mechs, -1, 1),
        "fitness": real([by_other(lambda slot, k=k: fitness[slot][k]) for k in range(3)], 3, 1, mechs, -1, 1),  # type: ignore[misc]
        "other_classes": real(classes, 4, mechs, -1, 1),
        "contact_scale": real([1 / MAP] * 3 + [0.1] * 3 + [1.0] * 15 + [4 / math.pi, -0.1, 1.0], -1, 1, 1, 1, 1),
    }


def _bot_tables(packs: int, real: Callable[..., Tensor]) -> dict[str, Tensor]:
    reach = (
        *(rules.LASER_RANGE, rules.FLAMER_RANGE, rules.PAINTER_RANGE),
        *(rules.MISSILE_RANGE, rules.GAUSS_RANGE, rules.AUTOCANNON_RANGE),
    )
    arc = [math.pi / 3, math.inf, math.pi / 6, math.pi / 2, math.pi / 6, math.pi / 6]
    laser, flamer, painter, missile, gauss, autocannon = range(6)
    # by class: scout, light, medium, heavy
    primary = ((painter,), (flamer,), (laser,), (laser,))
    secondary = ((), (laser,), (), (missile,))
    tertiary = ((), (painter,), (autocannon, painter), (gauss,))
    buttons = (primary, secondary, tertiary)
    fire = (rules.PRIMARY, rules.SECONDARY, rules.TERTIARY, rules.SPECIAL)
    free = [
        [float(row not in fire or (row == rules.SECONDARY and c == 0)) for c in PACK_CLASSES * packs]
        for row in range(rules.ORDERS)
    ]
    weapons = [[[float(k in button[c]) for c in PACK_CLASSES * packs] for k in range(6)] for button in buttons]
    return {
        "bot_reach": real(reach, 6, 1, 1),
        "bot_arc": real(arc, 6, 1, 1),
        "bot_blind": real([float(k in (flamer, gauss, autocannon)) for k in range(6)], 6, 1, 1) > 0,
        "bot_guided": real([float(k == missile) for k in range(6)], 6, 1, 1) > 0,
        "bot_free": real(free, rules.ORDERS, -1, 1) > 0,
        "bot_weapons": real(weapons, 3, 6, -1, 1) > 0,
    }


def _mount_tables(packs: int, real: Callable[..., Tensor], index: Callable[[list[int]], Tensor]) -> dict[str, Tensor]:
    mounts = MOUNTS * packs
    mechs = packs * SLOTS
    slots = [mount.slot + SLOTS * (place // len(MOUNTS)) for place, mount in enumerate(mounts)]
    price = [[0.0] * len(mounts) for _ in range(5 * mechs)]
    upright = [[0.0] * mechs for _ in range(4)]
    for place, (mount, slot) in enumerate(zip(mounts, slots)):
        price[slot][place], price[(1 + mount.clock) * mechs + slot][place] = mount.heat, mount.cooldown
        upright[mount.clock][slot] = float(mount.free)
    return {
        "mount_slot": index(slots),
        "mount_button": index([mount.button * mechs + slot for mount, slot in zip(mounts, slots)]),
        "mount_clock": index([mount.clock * mechs + slot for mount, slot in zip(mounts, slots)]),
        "painter_slot": real([float(slot) for slot in range(mechs) if slot % SLOTS], -1, 1, 1),
        "mount_price": real(price, 5 * mechs, -1),
        "upright": real(upright, 4, -1, 1),
        "mount_reach": real([mount.reach for mount in mounts], -1, 1, 1),
        "mount_cone": real([mount.cone for mount in mounts], -1, 1, 1),
        "mount_focus_cone": real([mount.focus_cone for mount in mounts], -1, 1, 1),
        "mount_blind": real([mount.blind for mount in mounts], -1, 1, 1) > 0,
        "mount_free": real([mount.free for mount in mounts]) > 0,
        "mount_guided": real([float(mount.clock == rules.MISSILE) for mount in mounts], -1, 1, 1) > 0,
    }


def _launcher_tables(real: Callable[..., Tensor], index: Callable[[list[int]], Tensor]) -> dict[str, Tensor]:
    speeds = (rules.MISSILE_SPEED, rules.GAUSS_SPEED, rules.AUTOCANNON_SPEED, rules.AUTOCANNON_SPEED)
    return {
        "beam_slot": index([mount.slot for mount in MOUNTS[HITSCAN]]),
        "beam_damage": real([rules.LASER_DAMAGE] * 4 + [rules.FLAMER_DAMAGE], 5, 1, 1),
        "beam_burn": real([rules.LASER_BURN] * 4 + [rules.FLAMER_BURN], 5, 1, 1),
        "launcher_slot": index([0, 0, 1, 2]),
        "launcher_speed": real(speeds),
        "launcher_life": real([83.0, 10.0, 10.0, 10.0]),
        "launcher_drop": real(
            [[0.0] * 4] * 2 + [[0.0, 0.5 * rules.GRAVITY / rules.GAUSS_SPEED**2, 0.0, 0.0]], 3, 1, 1, 4, 1
        ),
    }


def _shot_tables(packs: int, real: Callable[..., Tensor], index: Callable[[list[int]], Tensor]) -> dict[str, Tensor]:
    missile = _shot(rules.MISSILE_DAMAGE, rules.MISSILE_SHOCK, 0.0, rules.MISSILE_SPLASH)
    gauss = _shot(rules.GAUSS_DAMAGE, rules.GAUSS_SHOCK, 0.0, rules.GAUSS_SPLASH)
    shell = _shot(rules.AUTOCANNON_DAMAGE, rules.AUTOCANNON_SHOCK, rules.SUPPRESSED_TICKS, math.inf)
    falls = [[0.0] * SHOTS] * 2 + [[rules.GRAVITY * rules.DT * (place == 2) for place in range(SHOTS)]]
    return {
        "shot_launcher": index([0, 0, 1, 2, 2, 2, 3, 3, 3]),
        "shot_owner": index([slot + SLOTS * pack for pack in range(packs) for slot in SHOT_OWNERS]),
        "shot_missile": index([place + 2 * pack for pack in range(packs) for place in (0, 1, *[0] * (SHOTS - 2))]),
        "shot_homes": real([float(place < 2) for place in range(SHOTS)] * packs)[:, 0] > 0,
        "shot_target": real(
            [[float(slot) if place < 2 else -1.0 for place in range(SHOTS)] * packs for slot in range(packs * SLOTS)],
            packs * SLOTS,
            -1,
        ),
        "shot_falls": real([row * packs for row in falls], 3, -1),
        "shot_numbers": real([missile, missile, gauss, *[shell] * 6] * packs, SHOTS * packs, -1).T.contiguous(),
    }


def _shot(damage: float, shock: float, suppression: float, radius: float) -> tuple[float, ...]:
    """Returns a column of ``Tables.shot_numbers``."""
    splash = damage * rules.SPLASH_SCALE if radius < math.inf else 0.0
    return damage, shock, suppression, splash, -splash / radius
