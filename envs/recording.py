"""Recordings of episodes, and their recorders.

A recording is a list of states: what a world shows, by name. A world gives its state of one step
(:meth:`EpisodeRecorder._state`), makes its recording of all of them, and draws it; the rest is here and in
:mod:`rlstack.envs.rendering`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

if TYPE_CHECKING:
    from .rendering.canvas import Legend, Picture
    from .rendering.films import Animation

Array = NDArray[Any]
Row = dict[str, Array]
"""The state of one world at one time."""
Columns = Mapping[str, tuple[str, tuple[int | str, ...]]]
"""Type of each entry of :class:`Frames`, and its shape after T; a text stands for a size that recordings differ in."""


class Frames(SimpleNamespace):
    """T states of an episode, an array ``[T, ...]`` for each name, or a single state, ``[...]``."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def part(self, which: int | slice) -> Self:
        """Returns some of the states, or a single one."""
        return type(self)(**{name: value[which] for name, value in vars(self).items()})

    def blend(self, place: int, share: float, names: Sequence[str]) -> Row:
        """Interpolates the named entries linearly between a state (``share`` 0) and the next one (1)."""
        rows = {name: getattr(self, name) for name in names}
        return {name: row[place] + np.float32(share) * (row[place + 1] - row[place]) for name, row in rows.items()}


def find_time(times: Array, time: float) -> tuple[int, float]:
    """Returns the latest place in ascending times, and the share of the way to the next (0 outside of them)."""
    place = int(np.clip(np.searchsorted(times, time, side="right") - 1, 0, len(times) - 1))
    span = float(times[place + 1] - times[place]) if place + 1 < len(times) else 0.0
    return place, float(np.clip((time - float(times[place])) / span, 0, 1)) if span > 0 else 0.0


class EpisodeRecording(ABC):
    """The recording of one world's episode, which can draw itself, and write itself if the world has replays.

    Attributes:
        overview_columns: greatest number of pictures in a row of a grid of overviews.
        has_page: whether :meth:`save_page` is available.
        shown: the legend of its pictures.
    """

    overview_columns: ClassVar[int] = 6
    has_page: ClassVar[bool] = False
    shown: ClassVar[Legend] = ()

    @abstractmethod
    def animation(self) -> Animation:
        """Returns the episode as pictures by time, for ``rlstack watch`` and ``best.mp4``."""

    @abstractmethod
    def overview(self) -> Picture:
        """Returns a small picture of the whole episode, uint8 ``[H, W, 3]``, for ``trajectories.png``."""

    def legend(self) -> Legend:
        """Returns the legend of its pictures, for ``trajectories.png`` and ``rlstack watch`` in a terminal."""
        return self.shown

    def named(self, players: tuple[str, str], title: str = "") -> Self:
        """Returns the same game with the names of its players, for leagues."""
        raise NotImplementedError(f"nobody plays against anybody in a {type(self).__name__}")

    def save_replay(self, path: str | Path) -> None:
        """Writes a file for the world's ``load_replay`` atomically; makes missing folders.

        Raises:
            ValueError: the suffix is not the world's ``replay_ending``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no replays")

    def save_page(self, path: str | Path) -> None:
        """Writes a self-contained page for browsers.

        Raises:
            ValueError: the suffix is not ``.html``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no page")


Recorded = TypeVar("Recorded", bound=EpisodeRecording)


class EpisodeRecorder(ABC, Generic[Recorded]):
    """Records some worlds of an env, one episode of each.

    Call :meth:`add` after the reset and after every ``env.step`` (not ``step_and_maybe_reset``, which has already
    replaced the last state of a world that ended). A world's recording ends with its episode; :meth:`finish` returns
    it and begins another.

    Args:
        env: the batch of worlds.
        worlds: indices of the worlds to record.
        titles: one title per world, for pictures; by default ``world <index>``.

    Raises:
        ValueError: a world does not exist, or the numbers of titles and worlds differ.
    """

    def __init__(self, env: Any, worlds: Sequence[int], titles: Sequence[str] | None = None) -> None:
        if wrong := [world for world in worlds if not 0 <= world < env.num_worlds]:
            raise ValueError(f"worlds: {wrong} are not among the {env.num_worlds} worlds of the env")
        self._titles = [f"world {world}" for world in worlds] if titles is None else list(titles)
        if len(self._titles) != len(worlds):
            raise ValueError(f"{len(self._titles)} titles for {len(worlds)} worlds: give one per world")
        self._env = env
        self._worlds = torch.tensor(list(worlds), dtype=torch.int64, device=env.device)
        self._frames: list[list[Any]] = [[] for _ in worlds]
        self._clocks = [0.0] * len(worlds)
        self._running = [True] * len(worlds)

    # -- to be implemented by a world ----------------------------------------------------------------------------

    @abstractmethod
    def _state(self, worlds: Tensor) -> Mapping[str, Tensor]:
        """Returns the current state of the worlds of an index tensor, ``[..., k]`` by name, in tensors of its own.

        Among them are ``clock [k]``, a time that grows within an episode, and ``over [k]``: the episode has ended.
        """

    @abstractmethod
    def _recording(self, frames: list[Any], title: str) -> Recorded:
        """Makes the recording of an episode from its states, at least one."""

    def _frame(self, row: Row) -> Any:
        """Returns what to keep of a state of one world."""
        return row

    # -- interface -----------------------------------------------------------------------------------------------

    def add(self, done: Tensor | None = None) -> None:
        """Adds the current state of every recorded world whose episode has not ended.

        Args:
            done: worlds ``[W]`` whose episodes end with this state; None: those that the state itself shows to be over.
        """
        places = [place for place, running in enumerate(self._running) if running]
        ended = [False] * len(places) if done is None else done[self._worlds[places]].tolist()
        for place, row, over in zip(places, self._look(places), ended):
            restarted = bool(self._frames[place]) and float(row["clock"]) <= self._clocks[place]
            if not restarted:
                self._keep(place, row)
            self._running[place] = not (restarted or over or row["over"])

    def begin(self) -> None:
        """Adds the current state of those worlds that have no states since :meth:`finish`."""
        places = [place for place, frames in enumerate(self._frames) if not frames]
        for place, row in zip(places, self._look(places)):
            self._keep(place, row)

    def _keep(self, place: int, row: Row) -> None:
        self._frames[place].append(self._frame(row))
        self._clocks[place] = float(row["clock"])

    def finish(self, place: int) -> Recorded:
        """Returns the recording of the world at a place in the list; :meth:`begin` starts the next one.

        Raises:
            ValueError: no state has been added yet.
        """
        recording = self._recorded(place)
        self._frames[place], self._running[place] = [], True
        return recording

    def recordings(self) -> list[Recorded]:
        """Returns the recordings so far, in the order of the worlds.

        Raises:
            ValueError: no state has been added yet.
        """
        return [self._recorded(place) for place in range(len(self._frames))]

    def _recorded(self, place: int) -> Recorded:
        if not self._frames[place]:
            raise ValueError("nothing recorded: call add() after the reset and after each step")
        return self._recording(list(self._frames[place]), self._titles[place])  # a copy, since states may follow

    def _look(self, places: list[int]) -> list[Row]:
        """Returns the current states of the worlds at these places in the list."""
        if not places:
            return []
        state = {name: value.cpu().numpy() for name, value in self._state(self._worlds[places]).items()}
        return [{name: value[..., k] for name, value in state.items()} for k in range(len(places))]
