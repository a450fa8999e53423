"""All that is known of an episode of Echelon: the map, the mechs, their states, and what happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from ..recording import EpisodeRecording
from . import rules
from .rules import SLOTS, Chassis
from .specs import TEAMS

if TYPE_CHECKING:
    from ..rendering.canvas import Picture
    from ..rendering.films import Animation

Array = NDArray[Any]

WEAPONS = ("missile", "gauss", "autocannon", "smoke")
"""What flies."""
TYPES = (
    *("laser_hit", "flamer_hit", "missile_launch", "kinetic_fire", "projectile_hit", "explosion", "smoke_launch"),
    *("smoke_cloud", "paint", "assist", "ams_intercept", "kill", "knock_down", "legged", "shutdown"),
)
"""Types of events."""

COLUMNS: Mapping[str, tuple[str, tuple[int | str, ...]]] = {
    "tick": ("int32", ()),
    "score": ("float32", (2,)),
    "control": ("float32", ()),
    **dict.fromkeys(("position", "velocity"), ("float32", ("M", 3))),
    **dict.fromkeys(("yaw", "hp", "legs", "heat", "stability"), ("float32", ("M",))),
    **dict.fromkeys(("quality", "jam", "damage"), ("float32", ("M",))),
    "clocks": ("int16", ("M", rules.CLOCKS)),
    **dict.fromkeys(("ewar", "target", "kills"), ("int16", ("M",))),
    "inside": ("bool", ("M",)),
}
"""Type of each column of :class:`Frames`, and its shape after T, ``"M"`` for the number of mechs."""


def mech_id(team: int, slot: int) -> str:
    """Such as ``red_3``."""
    return f"{TEAMS[team]}_{slot}"


@dataclass(frozen=True, eq=False)
class Frames:
    """T states of a match, ``[T, ...]`` each; mechs stand in the order of :attr:`Story.mechs`."""

    tick: Array  # sub-steps of 0.05 s since the start
    score: Array  # of blue and red, s
    control: Array  # of the zone, 1: blue's, -1: red's
    position: Array  # of the feet, voxels
    velocity: Array  # voxels/s
    yaw: Array  # rad, 0 along x, counter-clockwise
    hp: Array  # 0 or less: dead
    legs: Array
    heat: Array
    stability: Array
    quality: Array  # of sensors
    jam: Array  # 0 to 1
    damage: Array  # hp taken from enemies so far
    clocks: Array  # sub-steps left, in the order of rules.LASER to rules.FALLEN
    ewar: Array  # 0 off, 1 ECM, 2 ECCM
    target: Array  # place of the chosen target among the mechs, -1: none
    kills: Array  # so far
    inside: Array  # the zone

    def __len__(self) -> int:
        return len(self.tick)

    def part(self, which: slice) -> Frames:
        """Some of the states."""
        return Frames(**{name: value[which] for name, value in vars(self).items()})


class Mech(NamedTuple):
    """Who takes part."""

    team: int  # 0 blue, 1 red
    slot: int

    @property
    def name(self) -> str:
        """Its id, such as ``red_3``."""
        return mech_id(self.team, self.slot)

    @property
    def kind(self) -> str:
        """Its class."""
        return rules.CLASSES[rules.PACK_CLASSES[self.slot % SLOTS]]

    @property
    def chassis(self) -> Chassis:
        """Its class's numbers."""
        return rules.PACK[self.slot % SLOTS]


@dataclass(frozen=True, eq=False)
class Ground:
    """A map: heights and kinds of its cells, ``[side, side]`` uint8, row y; the zone's centre and radius."""

    height: Array
    kind: Array
    zone: tuple[float, float, float]
    number: int = 0  # in its bank

    @property
    def side(self) -> int:
        """Voxels along its side."""
        return len(self.height)


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Attributes:
        tick: sub-steps of 0.05 s since the start.
        type: one of :data:`TYPES`.
        details: who (ids such as ``blue_0``), where (x, y, z), how much; see :mod:`envs.echelon.replay`.
    """

    tick: int
    type: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Flight:
    """The way of something that flew, from its launch to its end.

    Attributes:
        weapon: one of :data:`WEAPONS`.
        owner, target: ids; the target of what was aimed at nobody is None.
        ticks: ``[k]`` sub-steps since the start, ascending.
        places: ``[k, 3]``.
    """

    number: int
    weapon: str
    owner: str
    target: str | None
    ticks: Array
    places: Array


@dataclass(frozen=True, eq=False)
class Story:
    """All of an episode.

    Attributes:
        smoke: clouds at each of the T times, ``[k, 4]``: centre, sub-steps left.
        winner: 1 blue, -1 red, 0 nobody, or nobody yet.
        to_win: score that wins, s.
    """

    ground: Ground
    mechs: tuple[Mech, ...]
    frames: Frames
    smoke: tuple[Array, ...]
    events: tuple[Event, ...]
    flights: tuple[Flight, ...]
    winner: int
    to_win: float


@dataclass(frozen=True, eq=False)
class Recording(EpisodeRecording):
    """One episode.

    Args:
        source: tells what happened; asked once, when somebody wants to know.
        options: of the world.
        players: who drove blue and red.
        title: for pictures.
    """

    overview_columns = 2
    has_page = True

    source: Callable[[], Story] = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    players: tuple[str, str] = TEAMS
    title: str = ""

    @cached_property
    def story(self) -> Story:
        """What happened."""
        return self.source()

    @property
    def frames(self) -> Frames:
        """The states."""
        return self.story.frames

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        tick = self.frames.tick
        return float(tick[-1] - tick[0]) * rules.DT

    def named(self, players: tuple[str, str], title: str = "") -> Recording:
        """The same with other names."""
        return replace(self, players=players, title=title)

    def animation(self) -> Animation:
        """Of a picture every sub-step or more."""
        from .film import Film
        from .render import SIZE

        return Film(self, SIZE)

    def overview(self) -> Picture:
        """The end, with the ways of all mechs, which brighten with time."""
        from .film import Film
        from .render import TILE

        return Film(self, TILE).draw(ways=True)

    def save_replay(self, path: str | Path) -> None:
        """See :mod:`envs.echelon.replay`."""
        from .replay import save_replay

        save_replay(self, path)

    def save_page(self, path: str | Path) -> None:
        """See :mod:`envs.echelon.player`."""
        from .player import save_page

        save_page(self, path)
