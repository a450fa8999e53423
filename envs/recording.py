"""Base classes of recordings of episodes, and of their recorders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from typing_extensions import Self

if TYPE_CHECKING:
    from .rendering.canvas import Legend, Picture
    from .rendering.films import Animation


class EpisodeRecording(ABC):
    """The recording of one world's episode, which can draw itself, and write itself if the world has replays.

    Attributes:
        overview_columns: greatest number of pictures in a row of a grid of overviews.
        has_page: whether :meth:`save_page` is available.
    """

    overview_columns: ClassVar[int] = 6
    has_page: ClassVar[bool] = False

    @abstractmethod
    def animation(self) -> Animation:
        """Returns the episode as pictures by time, for ``rlstack watch`` and ``best.mp4``."""

    @abstractmethod
    def overview(self) -> Picture:
        """Returns a small picture of the whole episode, uint8 ``[H, W, 3]``, for ``trajectories.png``."""

    def legend(self) -> Legend:
        """Returns the legend of its pictures, for ``trajectories.png`` and ``rlstack watch`` in a terminal."""
        return ()

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


Frame = TypeVar("Frame")
Recorded = TypeVar("Recorded", bound=EpisodeRecording)


class EpisodeRecorder(ABC, Generic[Frame, Recorded]):
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
        self._frames: list[list[Frame]] = [[] for _ in worlds]
        self._running = [True] * len(worlds)

    # -- to be implemented by a world ----------------------------------------------------------------------------

    @abstractmethod
    def _look(self, places: list[int]) -> Sequence[Frame]:
        """Returns the current states of the worlds at these places in the list."""

    @abstractmethod
    def _time(self, frame: Frame) -> float:
        """Returns a time that grows within an episode."""

    @abstractmethod
    def _is_over(self, frame: Frame) -> bool:
        """Returns whether the episode has ended."""

    @abstractmethod
    def _recording(self, frames: list[Frame], title: str) -> Recorded:
        """Makes the recording of an episode from its frames, at least one."""

    # -- interface -----------------------------------------------------------------------------------------------

    def add(self, done: Tensor | None = None) -> None:
        """Adds the current state of every recorded world whose episode has not ended.

        Args:
            done: worlds ``[W]`` whose episodes end with this state; None: those that the state itself shows to be over.
        """
        places = [place for place, running in enumerate(self._running) if running]
        ended = [False] * len(places) if done is None else done[self._worlds[places]].tolist()
        for place, frame, over in zip(places, self._look(places) if places else (), ended):
            kept = self._frames[place]
            restarted = bool(kept) and self._time(frame) <= self._time(kept[-1])
            if not restarted:
                kept.append(frame)
            self._running[place] = not (restarted or over or self._is_over(frame))

    def begin(self) -> None:
        """Adds the current state of those worlds that have no frames since :meth:`finish`."""
        places = [place for place, frames in enumerate(self._frames) if not frames]
        for place, frame in zip(places, self._look(places) if places else ()):
            self._frames[place].append(frame)

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
        return self._recording(list(self._frames[place]), self._titles[place])  # a copy, since frames may follow
