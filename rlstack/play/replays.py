"""The best games of many, as data and as films, by the recorder, the file format and the renderer of the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchrl.envs import EnvBase

import envs
from rlstack.config import ConfigError
from rlstack.evaluation.evaluator import world_part

from .games import GameResult

_FILES = "replay"
"""The module beside a world that reads and writes its replays; ``ENDING`` there says how their names end."""
_PAGE = "player"
"""The module beside a world that makes a page for browsers of a replay."""


@dataclass(order=True)
class RecordedGame:
    """A game with its recording; the better one is the greater: first by ``lead``, then by being shorter."""

    lead: float
    shorter: int
    number: int = field(compare=False)
    game: GameResult = field(compare=False)
    recording: Any = field(compare=False)


class BestGames:
    """Records games as they are played and keeps the best: won by the most points, and of these the fastest.

    Args:
        world: name of the world.
        most: how many are kept.
        of: only games that this player won; None: whoever won them.

    Raises:
        ConfigError: a world that cannot be recorded or has no replays.
    """

    def __init__(self, world: str, most: int, of: str | None = None) -> None:
        if not self.can_record(world):
            raise ConfigError(f"save: {world!r} has no replays; worlds that do: {', '.join(_worlds())}")
        self.world, self.most, self.of = world, most, of
        self.games: list[RecordedGame] = []
        self._recorder: Any = None

    @staticmethod
    def can_record(world: str) -> bool:
        """Whether a world can be recorded and has replays."""
        return None not in (world_part(world, "recording"), world_part(world, _FILES))

    def watch(self, env: EnvBase) -> None:
        """Records all worlds of an env from now on; it has been reset just now."""
        self._recorder = _part(self.world, "recording").Recorder(env, range(env.batch_size[0]))
        self._recorder.add()

    def add(self) -> None:
        """To be called after every step, before worlds restart."""
        self._recorder.add()

    def finish(self, world: int, number: int, game: GameResult) -> None:
        """The game of a world has ended: keeps it if it is among the best so far.

        Args:
            number: of the game in its schedule, from 0.
        """
        recording = self._recorder.finish(world)
        seen = game.seen_by(self.of or game.first)
        lead = seen.points_first - seen.points_second if self.of else abs(seen.points_first - seen.points_second)
        if lead > 0:
            recording = recording.named((game.first, game.second), f"game {number + 1}")
            self.games.append(RecordedGame(lead, -game.steps, number, game, recording))
            self.games = sorted(self.games, reverse=True)[: self.most]

    def restarted(self) -> None:
        """To be called when worlds that had ended have restarted."""
        self._recorder.begin()

    def save(self, folder: Path, video: bool = True) -> list[Path]:
        """Writes ``best_1.npz`` (or the world's ending), ``best_2.npz``, ..., best first; returns what was written.

        Beside each are a film and, where the world has a ``player``, a page for browsers.
        """
        shown = [".html"] * (world_part(self.world, _PAGE) is not None) + [".mp4"] * video
        written = []
        for place, kept in enumerate(self.games, 1):
            path = folder / f"best_{place}{_ending(self.world)}"
            _part(self.world, _FILES).save_replay(kept.recording, path)
            written += [path, *(_show(self.world, kept.recording, path.with_suffix(ending)) for ending in shown)]
        return written


def play_back(replay: Path, video: Path | None = None) -> Path:
    """Makes a film of a replay; beside it, as MP4, unless said otherwise.

    Args:
        video: a path that ends in ``.mp4`` or ``.gif``; where the world has a ``player`` also ``.html``.

    Raises:
        ConfigError: one line: no replay of any world, or another ending.
    """
    world, recording = read_replay(replay)
    return _show(world, recording, video or replay.with_suffix(".mp4"))


def read_replay(replay: Path) -> tuple[str, Any]:
    """The world of a replay, and the recording in it.

    Raises:
        ConfigError: one line: no replay of any world.
    """
    faults = []
    worlds = _worlds()
    for world in [name for name in worlds if _ending(name) == replay.suffix] or worlds:
        try:
            return world, _part(world, _FILES).load_replay(replay)
        except ValueError as error:
            faults.append(str(error))
    raise ConfigError(f"replay: {faults[0] if faults else 'no world has replays'}")


def _show(world: str, recording: Any, path: Path) -> Path:
    """Writes a film, or a page for browsers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page = world_part(world, _PAGE) if path.suffix == ".html" else None
    save: Callable[..., None] = _part(world, "render").save_animation if page is None else page.save_page
    try:
        save(recording, path)
    except ValueError as error:
        raise ConfigError(f"video: {error}") from None
    return path


def _ending(world: str) -> str:
    return getattr(_part(world, _FILES), "ENDING", ".npz")


def _part(world: str, name: str) -> Any:
    part = world_part(world, name)
    assert part is not None, f"{world} has no module {name}"
    return part


def _worlds() -> list[str]:
    """Names of worlds with replays."""
    return [name for name in envs.names() if world_part(name, _FILES) is not None]
