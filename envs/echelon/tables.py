"""Tables for the simulation: the numbers of classes and weapons by slot, and the bank of maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import rules
from .maps import DIRECTIONS, Maps
from .rules import MAP, MOUNTS, PACK, PACK_CLASSES, SHOT_OWNERS, SHOTS, SLOTS


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
    width: Tensor
    height: Tensor
    speed: Tensor
    yaw_rate: Tensor
    jet: Tensor
    hp: Tensor
    leg_hp: Tensor
    heat_cap: Tensor
    dissipation: Tensor
    tonnage: Tensor
    noise: Tensor
    reach: Tensor  # radius of the sphere that shots hit
    scout: Tensor  # flag
    heavy: Tensor  # flag
    pack: Tensor  # 0, 1
    classes: Tensor  # [4, n, 1] one-hot in the order of rules.CLASSES
    slots: Tensor  # 0 to n - 1
    floor_base: Tensor  # where in ``maps.floors`` its layer begins
    # by mount
    mount_slot: Tensor
    mount_button: Tensor
    mount_clock: Tensor
    mount_able: Tensor
    mount_heat: Tensor
    mount_cooldown: Tensor
    mount_reach: Tensor
    mount_cone: Tensor
    mount_focus_cone: Tensor
    mount_blind: Tensor
    mount_free: Tensor
    mount_guided: Tensor
    heat_sources: Tensor  # [3n] mounts of each slot, the last mount plus 1 where there are fewer
    clock_sources: Tensor  # [4n] the mount that sets each weapon's clock
    beam_damage: Tensor  # [5, 1, 1] of lasers and flamer
    beam_burn: Tensor
    # by launcher of a pack: missile, gauss, two autocannons
    launcher_slot: Tensor
    launcher_speed: Tensor
    launcher_life: Tensor  # range over speed, in sub-steps
    launcher_drop: Tensor  # times distance squared: how far a slug falls
    # by shot
    shot_launcher: Tensor  # of a pack
    shot_owner: Tensor
    shot_missile: Tensor  # which of the team's missiles it is, some for other shots
    shot_numbers: Tensor  # [7, S] gravity, damage, shock, suppression, radius of splash, splash, flag: missile
    # of the ground
    directions: Tensor  # [2, 9]
    halves: Tensor  # [2, 1] shares of a sub-step
    samples: Tensor  # [K, 1, 1, 1] places along a line of sight, -1 to 1

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
    floor = [cells * float(chassis is rules.HEAVY) for chassis in PACK * packs]
    ways = [(0.0, 0.0), *((x / (x * x + y * y) ** 0.5, y / (x * x + y * y) ** 0.5) for x, y in DIRECTIONS)]
    samples = max(_SAMPLES, -(-_SAMPLES * maps.side // MAP))
    middles = [(2 * place + 1) / samples - 1 for place in range(samples)]
    return Tables(
        maps=maps.to(device),
        packs=packs,
        present=real(teams, 2, -1, 1),
        classes=torch.stack([real([float(c == kind) for c in PACK_CLASSES * packs]) for kind in range(4)]),
        slots=real(list(range(packs * SLOTS))),
        pack=real([float(slot // SLOTS) for slot in range(packs * SLOTS)]),
        floor_base=real(floor),
        scout=real([float(chassis is rules.SCOUT) for chassis in PACK * packs]),
        heavy=real([float(chassis is rules.HEAVY) for chassis in PACK * packs]),
        reach=real([max(chassis.width, chassis.height) / 2 for chassis in PACK * packs]),
        directions=real(ways).squeeze(1).T.contiguous(),
        halves=real((0.5, 1.0)),
        samples=real(middles, -1, 1, 1, 1),
        **{name: real([getattr(c, name) for c in PACK * packs]) for name in _BY_SLOT},
        **_mount_tables(packs, real, index),
        **_launcher_tables(real, index),
        **_shot_tables(packs, real, index),
    )


_BY_SLOT = (
    *("width", "height", "speed", "yaw_rate", "jet", "hp", "leg_hp", "heat_cap", "dissipation", "tonnage", "noise"),
)


def taken(size: int) -> list[int]:
    """Returns the slots that a team of a given size fills."""
    return [SLOTS * (place // SLOTS) + rules.FILLED[place % SLOTS] for place in range(size)]


def _mount_tables(packs: int, real: Callable[..., Tensor], index: Callable[[list[int]], Tensor]) -> dict[str, Tensor]:
    mounts = MOUNTS * packs
    mechs, none = packs * SLOTS, len(mounts)
    slots = [mount.slot + SLOTS * (place // len(MOUNTS)) for place, mount in enumerate(mounts)]
    owned = [[place for place, slot in enumerate(slots) if slot == mine] for mine in range(mechs)]
    setters = {(mount.clock, slot): place for place, (mount, slot) in enumerate(zip(mounts, slots))}
    return {
        "mount_slot": index(slots),
        "mount_button": index([mount.button * mechs + slot for mount, slot in zip(mounts, slots)]),
        "mount_clock": index([mount.clock * mechs + slot for mount, slot in zip(mounts, slots)]),
        "mount_able": index([mount.free * mechs + slot for mount, slot in zip(mounts, slots)]),
        "mount_heat": real([mount.heat for mount in mounts]),
        "mount_cooldown": real([mount.cooldown for mount in mounts]),
        "mount_reach": real([mount.reach for mount in mounts], -1, 1, 1),
        "mount_cone": real([mount.cone for mount in mounts], -1, 1, 1),
        "mount_focus_cone": real([mount.focus_cone for mount in mounts], -1, 1, 1),
        "mount_blind": real([mount.blind for mount in mounts], -1, 1, 1) > 0,
        "mount_free": real([mount.free for mount in mounts]) > 0,
        "mount_guided": real([float(mount.clock == rules.MISSILE) for mount in mounts], -1, 1, 1) > 0,
        "heat_sources": index([own[k] if k < len(own) else none for k in range(3) for own in owned]),
        "clock_sources": index([setters.get((clock, slot), none) for clock in range(4) for slot in range(mechs)]),
    }


def _launcher_tables(real: Callable[..., Tensor], index: Callable[[list[int]], Tensor]) -> dict[str, Tensor]:
    speeds = (rules.MISSILE_SPEED, rules.GAUSS_SPEED, rules.AUTOCANNON_SPEED, rules.AUTOCANNON_SPEED)
    return {
        "beam_damage": real([rules.LASER_DAMAGE] * 4 + [rules.FLAMER_DAMAGE], 5, 1, 1),
        "beam_burn": real([rules.LASER_BURN] * 4 + [rules.FLAMER_BURN], 5, 1, 1),
        "launcher_slot": index([0, 0, 1, 2]),
        "launcher_speed": real(speeds),
        "launcher_life": real([83.0, 10.0, 10.0, 10.0]),
        "launcher_drop": real([0.0, 0.5 * rules.GRAVITY / rules.GAUSS_SPEED**2, 0.0, 0.0]),
    }


def _shot_tables(packs: int, real: Callable[..., Tensor], index: Callable[[list[int]], Tensor]) -> dict[str, Tensor]:
    scale = rules.SPLASH_SCALE
    missile = (
        0.0,
        rules.MISSILE_DAMAGE,
        rules.MISSILE_SHOCK,
        0.0,
        rules.MISSILE_SPLASH,
        rules.MISSILE_DAMAGE * scale,
        1.0,
    )
    drop = rules.GRAVITY * rules.DT
    gauss = (drop, rules.GAUSS_DAMAGE, rules.GAUSS_SHOCK, 0.0, rules.GAUSS_SPLASH, rules.GAUSS_DAMAGE * scale, 0.0)
    shell = (0.0, rules.AUTOCANNON_DAMAGE, rules.AUTOCANNON_SHOCK, rules.SUPPRESSED_TICKS, 1.0, 0.0, 0.0)
    return {
        "shot_launcher": index([0, 0, 1, 2, 2, 2, 3, 3, 3]),
        "shot_owner": index([slot + SLOTS * pack for pack in range(packs) for slot in SHOT_OWNERS]),
        "shot_missile": index([place + 2 * pack for pack in range(packs) for place in (0, 1, *[0] * (SHOTS - 2))]),
        "shot_numbers": real([missile, missile, gauss, *[shell] * 6] * packs, SHOTS * packs, -1).T.contiguous(),
    }
