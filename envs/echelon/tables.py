"""Tables for the simulation: the numbers of classes and weapons by slot, and the bank of maps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import rules
from .maps import DIRECTIONS, LAVA, WATER, Maps
from .rules import GRID, HITSCAN, MAP, MOUNTS, PACK, PACK_CLASSES, SHOT_OWNERS, SHOTS, SLOTS

_SAMPLES = 24


class Tables:
    """Numbers as tensors that broadcast against ``[2, n, W]``, ``[2, mounts, W]`` or ``[2, shots, W]``.

    Those by slot are ``[n, 1]`` unless another shape is given.

    Args:
        maps: bank of maps.
        sizes: number of mechs of blue and of red, 1 to 10.

    Attributes:
        packs: P, packs of five per team; mounts and shots of pack 1 follow those of pack 0.
        side: number of voxels along the side of every map.
        mechs: number of slots of a team, n.
    """

    def __init__(self, maps: Maps, sizes: tuple[int, int], dtype: torch.dtype, device: torch.device | None) -> None:
        def real(values: Any, *shape: int) -> Tensor:
            made = torch.tensor(values, dtype=dtype, device=device)
            return made.view(*shape) if shape else made[:, None]

        def index(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        self.maps, self.side = maps.to(device), maps.side
        self.packs = packs = -(-max(sizes) // SLOTS)
        self.mechs = mechs = packs * SLOTS
        pack, kinds = PACK * packs, PACK_CLASSES * packs
        self.none, self.one = real([0.0]).squeeze(), real([1.0]).squeeze()  # 0-dim
        self.nobody = real([-1.0]).squeeze()  # 0-dim
        self.never = real([1.0e6]).squeeze()  # 0-dim, a number above all times and distances

        # of slots
        self.slots = real(list(range(mechs)))  # 0 to n - 1
        self.pack = real([float(slot // SLOTS) for slot in range(mechs)])  # 0, 1
        filled = [[float(slot in slots_taken(size)) for slot in range(mechs)] for size in sizes]
        self.present = real(filled, 2, -1, 1)  # flag: the slot is filled
        self.classes = torch.stack([real([float(c == kind) for c in kinds]) for kind in range(4)])  # [4, n, 1] one-hot
        self.scout, self.heavy = self.classes[0], self.classes[3]  # flags
        self.speed, self.yaw_rate, self.jet, self.hp, self.leg_hp, self.heat_cap, self.tonnage, self.noise = (
            real([getattr(chassis, name) for chassis in pack])
            for name in ("speed", "yaw_rate", "jet", "hp", "leg_hp", "heat_cap", "tonnage", "noise")
        )
        self.cooling = real([chassis.dissipation * rules.DT for chassis in pack])  # heat per sub-step
        # A little for each slot, so that of equal values the lower slot's is smaller, and factors by which the higher
        # slot's is greater.
        self.lower, self.higher = self.slots * 1.0e-4, (1 + self.slots * 1.0e-6)[:, None]

        # of bodies and their motion
        margin, lift = (real([getattr(chassis, name) / 2 for chassis in pack]) for name in ("width", "height"))
        self.lift = torch.stack((0 * lift, 0 * lift, lift))[:, None]  # [3, 1, n, 1] from the feet to the centre
        self.margin, self.far_margin = margin, maps.side - margin  # least and greatest place of a mech
        self.wide = (margin / 2 - maps.side).tile(2, 1)  # [2n, 1] of both teams: half of the margin, less the side
        self.stacked = (lift[:, None] + lift).tile(2, 2, 1)  # [2n, 2n, 1] distance of centres of mechs that overlap not
        self.reach2 = real([max(chassis.width, chassis.height) ** 2 / 4 for chassis in pack])  # of the sphere of hits
        self.low = (2 * rules.LEG_HEIGHT - 1) * lift  # height above the centre below which legs are hit
        self.slow_wet = real([1 - rules.WATER_SPEED] * 2 + [0.0], 3, 1, 1, 1)  # share of speed lost in water
        lame = [1 - rules.LEGGED_SPEED] * 2 + [1 - rules.LEGGED_JET]
        self.legged_speed = 1 - real(lame, 3, 1, 1, 1)  # factor of the speed without a leg
        self.gravity = real([0.0, 0.0, -rules.GRAVITY * rules.DT], 3, 1, 1, 1)  # change of the velocity in a sub-step

        # of their conditions
        caps = self.heat_cap
        heights = 0 * caps + rules.HAZARD_HEIGHT
        # [4, 1, n, 1] hp of the dead, of lost legs, heat cap, height of hazards
        self.limits = torch.stack((0 * caps, 0 * caps, caps, heights))[:, None]
        # [3, 1, 1, 1] change of hp, legs and heat in a sub-step
        self.water = real([0.0, 0.0, rules.WATER_HEAT * rules.DT], 3, 1, 1, 1)
        self.lava = real([-rules.LAVA_DAMAGE * rules.DT, 0.0, rules.LAVA_HEAT * rules.DT], 3, 1, 1, 1)
        # [3, 1, 1, 1] with both legs, and without one: stability, after a fall, gain in a sub-step
        self.balance, self.legged_balance = (
            torch.stack((full, full / 2, full * (rules.REGENERATION * rules.DT / rules.STABILITY)))[..., None]
            for full in (real([rules.STABILITY]), real([rules.STABILITY * rules.LEGGED_STABILITY]))
        )
        self.suppressed = real([rules.SUPPRESSED_TICKS]).squeeze()  # 0-dim, sub-steps
        beams = HITSCAN.stop - HITSCAN.start
        chances = [rules.LEG_CHANCE] * (2 * packs * beams) + [rules.AMS_CHANCE] * (4 * packs * packs)
        self.chances = real(chances)  # [lucky_numbers, 1] numbers below which something happens; see simulation.step
        self.results = real([1.0, -1.0, 0.0])  # [3, 1] winner of matches that blue won, lost, nobody won

        # of mounts, [mounts, 1, 1] unless said otherwise
        mounts = MOUNTS * packs
        slots = [mount.slot + SLOTS * (place // len(MOUNTS)) for place, mount in enumerate(mounts)]
        price, upright = [[0.0] * len(mounts) for _ in range(5 * mechs)], [[0.0] * mechs for _ in range(4)]
        for place, (mount, slot) in enumerate(zip(mounts, slots)):
            price[slot][place], price[(1 + mount.clock) * mechs + slot][place] = mount.heat, mount.cooldown
            upright[mount.clock][slot] = float(mount.free)
        self.mount_slot = index(slots)
        self.mount_button = index([mount.button * mechs + slot for mount, slot in zip(mounts, slots)])
        self.mount_clock = index([mount.clock * mechs + slot for mount, slot in zip(mounts, slots)])
        self.mount_reach = real([mount.reach for mount in mounts], -1, 1, 1)
        self.mount_cone = real([mount.cone for mount in mounts], -1, 1, 1)
        self.mount_focus_cone = real([mount.focus_cone for mount in mounts], -1, 1, 1)
        self.mount_blind = real([mount.blind for mount in mounts], -1, 1, 1) > 0
        self.mount_free = real([mount.free for mount in mounts]) > 0  # [mounts, 1]
        self.mount_guided = real([float(mount.clock == rules.MISSILE) for mount in mounts], -1, 1, 1) > 0
        self.mount_price = real(price, 5 * mechs, -1)  # of a shot: heat by slot, then clocks of the weapons by slot
        # [4, n, 1] flag: the weapon fires without a target, and not while its mech lies on the ground
        self.upright = real(upright, 4, -1, 1)
        self.painter_slot = real([float(slot) for slot in range(mechs) if slot % SLOTS], -1, 1, 1)  # [4P, 1, 1]
        self.beam_slot = index([mount.slot for mount in MOUNTS[HITSCAN]])
        self.beam_damage = real([rules.LASER_DAMAGE] * 4 + [rules.FLAMER_DAMAGE], 5, 1, 1)
        self.beam_burn = real([rules.LASER_BURN] * 4 + [rules.FLAMER_BURN], 5, 1, 1)

        # of the launchers of a pack: missile, gauss, two autocannons
        self.launcher_slot = index([0, 0, 1, 2])
        self.launcher_speed = real(
            [rules.MISSILE_SPEED, rules.GAUSS_SPEED, rules.AUTOCANNON_SPEED, rules.AUTOCANNON_SPEED]
        )
        self.launcher_life = real([83.0, 10.0, 10.0, 10.0])  # range over speed, in sub-steps
        drop = [0.0, 0.5 * rules.GRAVITY / rules.GAUSS_SPEED**2, 0.0, 0.0]
        self.launcher_drop = real([[0.0] * 4, [0.0] * 4, drop], 3, 1, 1, 4, 1)  # times distance squared: aims higher

        # of shots
        homes = [place < 2 for place in range(SHOTS)] * packs
        self.shot_launcher = index([0, 0, 1, 2, 2, 2, 3, 3, 3])  # of a pack
        self.shot_owner = index([slot + SLOTS * pack for pack in range(packs) for slot in SHOT_OWNERS])
        # Which of the team's missiles it is, some for other shots.
        self.shot_missile = index([place + 2 * pack for pack in range(packs) for place in (0, 1, *[0] * (SHOTS - 2))])
        self.shot_homes = torch.tensor(homes, device=device)  # it is a missile
        targets = [[float(slot) if missile else -1.0 for missile in homes] for slot in range(mechs)]
        self.shot_target = real(targets, mechs, -1)  # [n, S] slot of an enemy where it is a missile, otherwise -1
        falls = [rules.GRAVITY * rules.DT * (place == 2) for place in range(SHOTS)] * packs
        self.shot_falls = real([[0.0] * len(falls), [0.0] * len(falls), falls], 3, -1)  # [3, S] lost velocity
        missile = _shot(rules.MISSILE_DAMAGE, rules.MISSILE_SHOCK, 0.0, rules.MISSILE_SPLASH)
        gauss = _shot(rules.GAUSS_DAMAGE, rules.GAUSS_SHOCK, 0.0, rules.GAUSS_SPLASH)
        shell = _shot(rules.AUTOCANNON_DAMAGE, rules.AUTOCANNON_SHOCK, rules.SUPPRESSED_TICKS, math.inf)
        # [5, S] see _shot
        self.shot_numbers = real([missile, missile, gauss, *[shell] * 6] * packs, SHOTS * packs, -1).T.contiguous()

        # of smoke
        self.shell_start = real([1.0] * 3 + [rules.SMOKE_SPEED] * 3, 6, 1, 1, 1)  # times a mech's centre and direction
        self.shell_life = real([rules.SHELL_TICKS]).squeeze()  # 0-dim
        self.cloud_fading = real([0.0, 0.0, 0.0, 1.0], 4, 1, 1, 1, 1)  # change of a cloud in a sub-step
        # At the end of a decision, of a cloud that starts in each sub-step.
        ages = [rules.CLOUD_TICKS + 1 - left for left in range(rules.SUB_STEPS, 0, -1)]
        self.cloud_life = real(ages, -1, 1, 1, 1)

        # by weapon of the bots, [6, 1, 1]
        laser, flamer, painter, missiles, rifle, cannon = range(6)
        reach = [rules.LASER_RANGE, rules.FLAMER_RANGE, rules.PAINTER_RANGE]
        self.bot_reach = real([*reach, rules.MISSILE_RANGE, rules.GAUSS_RANGE, rules.AUTOCANNON_RANGE], 6, 1, 1)
        # Half of the arc, rad.
        self.bot_arc = real([math.pi / 3, math.inf, math.pi / 6, math.pi / 2, math.pi / 6, math.pi / 6], 6, 1, 1)
        # It needs no line of sight; it also flies to marked enemies.
        self.bot_blind = real([float(k in (flamer, rifle, cannon)) for k in range(6)], 6, 1, 1) > 0
        self.bot_guided = real([float(k == missiles) for k in range(6)], 6, 1, 1) > 0
        fire = (rules.PRIMARY, rules.SECONDARY, rules.TERTIARY, rules.SPECIAL)
        free = [
            [float(row not in fire or (row == rules.SECONDARY and kind == 0)) for kind in kinds]
            for row in range(rules.ORDERS)
        ]
        self.bot_free = real(free, rules.ORDERS, -1, 1) > 0  # [10, n, 1] bool: orders that are no fire
        buttons = (  # primary, secondary, tertiary of a scout, light, medium, heavy
            ((painter,), (flamer,), (laser,), (laser,)),
            ((), (laser,), (), (missiles,)),
            ((), (painter,), (cannon, painter), (rifle,)),
        )
        weapons = [[[float(k in button[kind]) for kind in kinds] for k in range(6)] for button in buttons]
        self.bot_weapons = real(weapons, 3, 6, -1, 1) > 0  # [3, 6, n, 1]

        # of the ground
        ways = [(0.0, 0.0), *((x / (x * x + y * y) ** 0.5, y / (x * x + y * y) ** 0.5) for x, y in DIRECTIONS)]
        self.directions = real(ways).squeeze(1).T.contiguous()  # [2, 9]
        self.halves = real((0.5, 1.0))  # [2, 1] shares of a sub-step
        self.hazards = torch.tensor((WATER, LAVA), dtype=torch.uint8, device=device).view(2, 1, 1, 1)
        samples = max(_SAMPLES, -(-_SAMPLES * maps.side // MAP))
        # [K, 1, 1, 1] places along a line of sight, -1 to 1
        self.samples = real([(2 * place + 1) / samples - 1 for place in range(samples)], -1, 1, 1, 1)
        ahead = [2.0 * (place // GRID - GRID // 2) for place in range(GRID**2)]
        left = [2.0 * (place % GRID - GRID // 2) for place in range(GRID**2)]
        self.grid = real([ahead, left], 2, -1, 1, 1, 1)  # [2, 81, 1, 1, 1] places of an observed grid
        floors = [[maps.size * maps.side**2 * (chassis is rules.HEAVY)] for chassis in pack]
        self.floor_base = torch.tensor(floors, dtype=torch.int32, device=device)  # where in ``maps.floors`` they begin

        # of the other mechs that each observes: its team without itself, then its enemies; o = 2n - 1
        seen = [[*(other for other in range(mechs) if other != own), *range(mechs)] for own in range(mechs)]

        def by_other(value: Callable[[int], float]) -> list[list[float]]:
            return [[value(slot) for slot in row] for row in seen]

        teams = [[team] * (mechs - 1) + [1 - team] * mechs for team in range(2)]
        others = [index([t * mechs + s for row in seen for t, s in zip(team, row)]) for team in teams]
        self.others = torch.stack(others)  # [2, n * o] among the mechs of both teams
        lifts = [[(pack[slot].height - pack[own].height) / 2 for slot in row] for own, row in enumerate(seen)]
        self.higher_than = real(lifts, mechs, -1, 1)  # [n, o, 1] how much higher their centres are, on the same ground
        fitness = [(1 / chassis.hp, 1 / chassis.heat_cap, 1 / rules.STABILITY) for chassis in pack]
        shares = [by_other(lambda slot, k=k: fitness[slot][k]) for k in range(3)]  # type: ignore[misc]
        self.fitness = real(shares, 3, 1, mechs, -1, 1)  # [3, 1, n, o, 1] factors of hp, heat and stability
        flags = [by_other(lambda slot, kind=kind: float(kinds[slot] == kind)) for kind in range(4)]  # type: ignore[misc]
        self.other_classes = real(flags, 4, mechs, -1, 1)  # [4, n, o, 1] see classes
        scale = [1 / MAP] * 3 + [0.1] * 3 + [1.0] * 15 + [4 / math.pi, -0.1, 1.0]
        self.contact_scale = real(scale, -1, 1, 1, 1, 1)  # [24, 1, 1, 1, 1]
        clocks = [1 / 12, 1 / 100, 1 / 80, 1 / 20, 1.0, 1 / rules.SUPPRESSED_TICKS, 1 / rules.AMS_TICKS, 1.0]
        self.clock_scale = real(clocks, -1, 1, 1)  # [CLOCKS, 1, 1] of observed clocks


def slots_taken(size: int) -> list[int]:
    """Returns the slots that a team of a given size fills."""
    return [SLOTS * (place // SLOTS) + rules.FILLED[place % SLOTS] for place in range(size)]


def _shot(damage: float, shock: float, suppression: float, radius: float) -> tuple[float, ...]:
    """Returns a shot's damage, shock, suppression, splash at its centre, and splash per voxel from there."""
    splash = damage * rules.SPLASH_SCALE if radius < math.inf else 0.0
    return damage, shock, suppression, splash, -splash / radius
