"""Recordings of episodes: what every world's have in common, and who collects them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from typing_extensions import Self

if TYPE_CHECKING:
    from .rendering.canvas import Legend, Picture
    from .rendering.films import Animation


class EpisodeRecording(ABC):
    """The recording of an episode of one world. It draws itself, and writes itself where its world has replays.

    Attributes:
        overview_columns: pictures in a row of a grid of overviews at most.
        has_page: :meth:`save_page` writes something.
    """

    overview_columns: ClassVar[int] = 6
    has_page: ClassVar[bool] = False

    @abstractmethod
    def animation(self) -> Animation:
        """The episode as pictures by time. ``rlstack watch``, ``best.mp4`` of evaluations and leagues."""

    @abstractmethod
    def overview(self) -> Picture:
        """The whole episode in a small picture, uint8 ``[H, W, 3]``. ``trajectories.png`` of evaluations."""

    def legend(self) -> Legend:
        """What is to be seen in its pictures. ``trajectories.png``, ``rlstack watch`` in a terminal."""
        return ()

    def named(self, players: tuple[str, str], title: str = "") -> Self:
        """The same game with the names of its players. Leagues."""
        raise NotImplementedError(f"nobody plays against anybody in a {type(self).__name__}")

    def save_replay(self, path: str | Path) -> None:
        """Writes a file that the world's ``load_replay`` reads, wholly or not at all; makes missing folders.

        Raises:
            ValueError: another ending than the world's ``replay_ending``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no replays")

    def save_page(self, path: str | Path) -> None:
        """Writes a page for browsers, which needs nothing else.

        Raises:
            ValueError: another ending than ``.html``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no page")


Frame = TypeVar("Frame")
Recorded = TypeVar("Recorded", bound=EpisodeRecording)


class EpisodeRecorder(ABC, Generic[Frame, Recorded]):
    """Collects recordings of some worlds of an env, one episode of each.

    Call :meth:`add` after the reset and after every ``env.step`` (not ``step_and_maybe_reset``, which has already
    replaced the last state of a world that ended). A world's recording ends with its episode; :meth:`finish` takes it
    out and begins another one.

    Args:
        env: the world batch.
        worlds: indices of the worlds to record.
        titles: one per world, for pictures; ``world <index>`` where none are given.

    Raises:
        ValueError: there is no such world, or there are more or fewer titles than worlds.
    """

    def __init__(self, env: Any, worlds: Sequence[int], titles: Sequence[str] | None = None) -> None:
        if wrong := [world for world in worlds if not 0 <= world < env.num_worlds]:
            raise ValueError(f"worlds: {wrong} are not among the {env.num_worlds} worlds of the env")
        self._titles = [f"world {world}" for world in worlds] if titles is None else list(titles)
        if len(self._titles) != len(worlds):
            raise ValueError(f"{len(self._titles)} titles for {len(worlds)} worlds: give one per world")
        self._env = env
        self._worlds = torch.tensor(list(worlds), dtype=torch.int64, device=env.device)
        self._frames: list[list[Frame]] = [[] for _ in worlds]
        self._running = [True] * len(worlds)

    # -- what a world fills in -----------------------------------------------------------------------------------

    @abstractmethod
    def _look(self, places: list[int]) -> Sequence[Frame]:
        """The worlds at some places in the list as they stand."""

    @abstractmethod
    def _time(self, frame: Frame) -> float:
        """Grows within an episode."""

    @abstractmethod
    def _is_over(self, frame: Frame) -> bool:
        """The episode has ended."""

    @abstractmethod
    def _recording(self, frames: list[Frame], title: str) -> Recorded:
        """The recording of an episode's frames, one at least."""

    # -- what it does --------------------------------------------------------------------------------------------

    def add(self) -> None:
        """Adds the current state of every recorded world whose episode still runs."""
        places = [place for place, running in enumerate(self._running) if running]
        for place, frame in zip(places, self._look(places) if places else ()):
            kept = self._frames[place]
            restarted = bool(kept) and self._time(frame) <= self._time(kept[-1])
            if not restarted:
                kept.append(frame)
            self._running[place] = not (restarted or self._is_over(frame))

    def begin(self) -> None:
        """Adds the current state of those worlds alone of which nothing has been recorded since :meth:`finish`."""
        places = [place for place, frames in enumerate(self._frames) if not frames]
        for place, frame in zip(places, self._look(places) if places else ()):
            self._frames[place].append(frame)

    def finish(self, place: int) -> Recorded:
        """The recording of the world at a place in the list; :meth:`begin` begins another recording.

        Raises:
            ValueError: nothing has been added yet.
        """
        recording = self._recorded(place)
        self._frames[place], self._running[place] = [], True
        return recording

    def recordings(self) -> list[Recorded]:
        """The recordings so far, in the order of the worlds.

        Raises:
            ValueError: nothing has been added yet.
        """
        return [self._recorded(place) for place in range(len(self._frames))]

    def _recorded(self, place: int) -> Recorded:
        if not self._frames[place]:
            raise ValueError("nothing recorded: call add() after the reset and after each step")
        return self._recording(list(self._frames[place]), self._titles[place])  # a copy: more may be added
