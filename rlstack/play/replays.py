"""Keeps the best of many games as data and films, with the recorder, file format and renderer of the world."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.config import ConfigError
from rlstack.envs.recording import EpisodeRecording
from rlstack.envs.rendering.films import save_animation
from rlstack.envs.world import hooks_of

from .games import GameResult


class RecordedGame(NamedTuple):
    """A recorded game with its margin in points, its number and its length in steps."""

    lead: float
    number: int
    steps: int
    recording: Any


class BestGames:
    """Records games and keeps the best: those won by the most points, and among these the fastest.

    Args:
        world: name of the world.
        most: number of games to keep.
        of: the player whose wins are kept; None keeps the wins of every player.

    Raises:
        ConfigError: the world cannot be recorded or has no replays.
    """

    def __init__(self, world: str, most: int, of: str | None = None) -> None:
        if not self.can_record(world):
            raise ConfigError(f"save: {world!r} has no replays; worlds that have them: {', '.join(_worlds())}")
        self.world, self.most, self.of = world, most, of
        self.games: list[RecordedGame] = []
        self._recorder: Any = None

    @staticmethod
    def can_record(world: str) -> bool:
        """Returns whether a world has replays."""
        return envs.world_hooks(world).replay_ending is not None

    def watch(self, env: EnvBase) -> None:
        """Records all worlds of an env that has just been reset."""
        self._recorder = hooks_of(env).recorder(range(env.batch_size[0]))
        self._recorder.add()

    def add(self) -> None:
        """Records a step; call it after every step, before worlds restart."""
        self._recorder.add()

    def finish(self, world: int, number: int, game: GameResult) -> None:
        """Ends the game of a world, and keeps it if it is among the best so far.

        Args:
            number: number of the game in its schedule, from 0.
        """
        recording = self._recorder.finish(world)
        seen = game.seen_by(self.of or game.first)
        lead = seen.points_first - seen.points_second if self.of else abs(seen.points_first - seen.points_second)
        if lead > 0:
            recording = recording.named((game.first, game.second), f"game {number + 1}")
            games = [*self.games, RecordedGame(lead, number, game.steps, recording)]
            self.games = sorted(games, key=lambda kept: (-kept.lead, kept.steps))[: self.most]

    def restarted(self) -> None:
        """Records the restart of worlds whose games had ended."""
        self._recorder.begin()

    def save(self, folder: Path, video: bool = True) -> list[Path]:
        """Writes ``best_1.npz`` (or with the world's suffix), ``best_2.npz``, ..., best first; returns the paths.

        Each comes with a film and, if the world has one, a page for browsers.
        """
        written = []
        for place, kept in enumerate(self.games, 1):
            path = folder / f"best_{place}{envs.world_hooks(self.world).replay_ending}"
            kept.recording.save_replay(path)
            written.append(path)
            endings = [".html"] * kept.recording.has_page + [".mp4"] * video
            written += [_shown(kept.recording, path.with_suffix(ending)) for ending in endings]
        return written


def play_back(replay: Path, video: Path | None = None) -> Path:
    """Makes a film of a replay, by default an MP4 file beside it.

    Args:
        video: a path that ends in ``.mp4`` or ``.gif``, or in ``.html`` if the world has pages.

    Raises:
        ConfigError: the file is not a replay, or the suffix is another.
    """
    return _shown(read_replay(replay), video or replay.with_suffix(".mp4"))


def read_replay(replay: Path) -> EpisodeRecording:
    """Reads the recording in a replay of any world.

    Raises:
        ConfigError: the file is not a replay.
    """
    faults = []
    endings = {name: envs.world_hooks(name).replay_ending for name in _worlds()}
    for world in [name for name in endings if endings[name] == replay.suffix] or endings:
        try:
            return envs.world_hooks(world).load_replay(replay)
        except ValueError as error:
            faults.append(str(error))
    raise ConfigError(f"replay: {faults[0] if faults else 'no world has replays'}")


def _shown(recording: EpisodeRecording, path: Path) -> Path:
    """Makes a film or a page for browsers."""
    try:
        if path.suffix == ".html" and recording.has_page:
            recording.save_page(path)
        else:
            save_animation(recording.animation(), path)
    except ValueError as error:
        raise ConfigError(f"video: {error}") from None
    except OSError as error:
        raise ConfigError(f"video: {path} cannot be written ({error.strerror or error})") from None
    return path


def _worlds() -> list[str]:
    """Returns the names of worlds with replays."""
    return [name for name in envs.names() if BestGames.can_record(name)]
