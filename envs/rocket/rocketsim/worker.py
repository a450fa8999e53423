"""What a worker process does: the ticks of its share of the worlds. It needs no torch, and so starts quickly."""

from __future__ import annotations

import importlib
from multiprocessing.connection import Connection
from typing import NamedTuple

from ...processes import Shared, serve
from .arena import Arena
from .layout import Arrays, World, parts


class Share(NamedTuple):
    """What one worker is given.

    Attributes:
        worlds: rows of the arrays, its own.
        cars: of a world.
        ticks: of a step.
        meshes: folder of the field's.
        arrays: parts of :class:`~envs.rocket.rocketsim.layout.Arrays`.
    """

    worlds: range
    cars: int
    ticks: int
    meshes: str
    arrays: tuple[Shared, ...]


class Arenas:
    """The matches of some rows of the arrays.

    Args:
        meshes: folder of the field's; within a process all matches have the same field.
    """

    def __init__(self, worlds: range, cars: int, ticks: int, meshes: str, arrays: Arrays) -> None:
        simulator = importlib.import_module("RocketSim")
        simulator.init(meshes)
        self._arrays, self._ticks = arrays, ticks
        views = parts(arrays.rows, cars)
        self._worlds = {row: World(*(part[row] for part in views)) for row in worlds}
        self._arenas = {row: Arena(simulator, cars) for row in worlds}

    def step(self) -> None:
        """A step of all; what is marked as fresh begins before it."""
        fresh = self._arrays.fresh.tolist()
        for row, arena in self._arenas.items():
            if fresh[row]:
                arena.place(self._worlds[row])
                self._arrays.fresh[row] = 0
            arena.play(self._arrays.controls[row], self._ticks)
            arena.write(self._arrays.rows[row])


def work(connection: Connection, share: Share) -> None:
    """What a worker runs."""

    def build() -> Arenas:
        arrays = Arrays(*(part.array() for part in share.arrays))
        return Arenas(share.worlds, share.cars, share.ticks, share.meshes, arrays)

    serve(connection, build, _obey)


def _obey(arenas: Arenas, _: bytes) -> bytes:
    """There is but one thing to ask for."""
    arenas.step()
    return b""
