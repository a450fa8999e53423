"""Opponents to learn against: fixed ones, and the learner's own earlier selves on disk."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torchrl.envs import EnvBase

from envs.whole_files import write_json
from rlstack.config import ConfigError
from rlstack.runs.checkpoint import write_checkpoint

from .elo import Elo
from .players import SELF, LearnerPlayer, Player, Source, check_source, make_player, name_of, read_source
from .ratings import Scored
from .samplers import Standings

LEARNER = "learner"
INDEX = "pool.json"
_PREFIX = "snapshot_"


@dataclass(frozen=True)
class Entry:
    """An opponent.

    Attributes:
        name: unlike all others in its pool.
        source: see :func:`~rlstack.play.players.make_player`.
        frames: of the learner when it joined; 0 for who was there at the beginning.
        wins, games: of the learner against it, the latest counting most (see :class:`Pool`); a draw is half a win.
    """

    name: str
    source: Any
    frames: int = 0
    wins: float = 0.0
    games: float = 0.0


class Pool:
    """Opponents in the order in which they joined, what the learner's games against them told, and who is loaded.

    Args:
        players: who is there from the beginning.
        directory: of the learner's snapshots; it is made with the first. None: there can be none.
        loaded: how many opponents' networks are kept in memory; those that play stay besides.
        memory: games after which an old result counts 1/e of a new one.
        anchors: fixed ratings by name.
        keep: most snapshots there are: one too many drops the one with the lowest rating (never the newest).

    Raises:
        ConfigError: a source that cannot be read.

    Attributes:
        last_snapshot: frames of the newest snapshot.
        recent_wins, recent_games: of the learner since then, a draw counting half.
    """

    def __init__(
        self,
        players: Sequence[Source],
        directory: Path | str | None = None,
        loaded: int = 20,
        memory: int = 100,
        anchors: Mapping[str, float] | None = None,
        keep: int | None = None,
    ) -> None:
        self.directory = None if directory is None else Path(directory)
        self._most_loaded, self._decay, self.keep = loaded, 1.0 - 1.0 / memory, keep
        self.ratings = Elo(anchors=anchors)
        self.ratings.add(LEARNER)
        self.entries: list[Entry] = []
        self._loaded: OrderedDict[str, Player] = OrderedDict()
        self._learner: LearnerPlayer | None = None
        self.last_snapshot, self.recent_wins, self.recent_games = 0, 0.0, 0
        for source in players:
            plain = SELF if read_source(source) == (SELF, {}) else source
            self._join(Entry(self._free_name(name_of(source)), plain))

    def __len__(self) -> int:
        return len(self.entries)

    def check(self, env: EnvBase) -> None:
        """Raises a one-line :class:`ConfigError` for a fixed player that there is not, without loading any."""
        for entry in self.entries:
            if not entry.name.startswith(_PREFIX):
                text, options = read_source(entry.source)
                check_source(text, options, env, [SELF])

    def standings(self) -> Standings:
        """What samplers weigh by. An opponent that was never met is thought to be an even match."""
        latest = max(entry.frames for entry in self.entries)
        rows = []
        for entry in self.entries:
            rating, frames = self.ratings.rating(entry.name), entry.frames
            if entry.source == SELF:  # as good as the learner, and newer than all
                rating, frames = self.ratings.rating(LEARNER), latest
            rows.append((rating, frames, (entry.wins + 0.5) / (entry.games + 1.0)))
        columns = torch.tensor(rows, dtype=torch.float64)
        return Standings(columns[:, 0], self.ratings.rating(LEARNER), columns[:, 1], columns[:, 2])

    # -- results -------------------------------------------------------------------------------------------------

    def record(self, results: Sequence[tuple[str, float]]) -> None:
        """Takes in the learner's scores (1, 0.5, 0) in games against opponents by name.

        Games against itself say nothing of how good it is: they neither rate it nor count for its promotion.
        """
        places = {entry.name: place for place, entry in enumerate(self.entries)}
        for name, score in results:
            itself = name in places and self.entries[places[name]].source == SELF
            if not itself:
                self.recent_wins, self.recent_games = self.recent_wins + score, self.recent_games + 1
            if name not in places:  # pruned while it played
                continue
            entry = self.entries[places[name]]
            wins, games = (self._decay * entry.wins + score, self._decay * entry.games + 1.0)
            self.entries[places[name]] = replace(entry, wins=wins, games=games)
            if not itself:
                self.ratings.record([Scored(LEARNER, name, score)])

    # -- players -------------------------------------------------------------------------------------------------

    def player(self, name: str, env: EnvBase, playing: Sequence[str] = ()) -> Player:
        """An opponent ready to play, loaded if it is not; the least recently used ones but ``playing`` make room.

        Raises:
            ConfigError: its file is gone or does not fit the world.
        """
        entry = next(entry for entry in self.entries if entry.name == name)
        if entry.source == SELF:
            return self.learner(env)
        player = self._loaded.pop(name, None)
        if player is None:
            player = make_player(self._located(entry.source), env, name)
        self._loaded[name] = player
        for other in list(self._loaded):
            if len(self._loaded) <= self._most_loaded:
                break
            if other != name and other not in playing:
                del self._loaded[other]
        return player

    def learner(self, env: EnvBase) -> LearnerPlayer:
        """The player ``self``, always the same one."""
        if self._learner is None:
            self._learner = LearnerPlayer(env)
        return self._learner

    def _located(self, source: Any) -> Any:
        """A snapshot's file by its name alone, so that a run's folder can be moved."""
        if isinstance(source, str) and source.startswith(_PREFIX) and self.directory is not None:
            return str(self.directory / source)
        return source

    # -- snapshots -----------------------------------------------------------------------------------------------

    def add_snapshot(self, state: Mapping[str, Any], frames: int) -> Entry:
        """Adds the learner as it is: a checkpoint file, whole on disk before the pool knows of it.

        Args:
            state: what :func:`rlstack.runs.loading.load` needs: ``agent``, ``config``, ``frames``.
            frames: which name the snapshot; one of as many frames is replaced.

        Raises:
            ConfigError: the pool has no folder.
        """
        if self.directory is None:
            raise ConfigError("opponents.pool: a folder is needed for snapshots")
        self.directory.mkdir(parents=True, exist_ok=True)
        name = f"{_PREFIX}{frames:012d}"
        write_checkpoint(self.directory / f"{name}.pt", dict(state), frames)
        self._loaded.pop(name, None)
        self.entries = [entry for entry in self.entries if entry.name != name]
        self.last_snapshot, self.recent_wins, self.recent_games = frames, 0.0, 0
        entry = Entry(name, f"{name}.pt", frames)
        self._join(entry, self.ratings.rating(LEARNER))
        self._prune()
        self.write_index()
        return entry

    def add_fixed(self, name: str) -> None:
        """Adds a player that needs no file: ``random``, ``self``, or one of the world's own."""
        self._join(Entry(name, name))

    def _join(self, entry: Entry, rating: float | None = None) -> None:
        self.entries.append(entry)
        self.ratings.add(entry.name)
        if rating is not None:
            self.ratings.set(entry.name, rating)

    def _prune(self) -> None:
        """Files stay: a run resumed from an earlier checkpoint may know them still."""
        snapshots = [entry for entry in self.entries if entry.name.startswith(_PREFIX)]
        if self.keep is None or len(snapshots) <= self.keep:
            return
        worst = min(snapshots[:-1] or snapshots, key=lambda entry: self.ratings.rating(entry.name))
        self.entries.remove(worst)
        self._loaded.pop(worst.name, None)

    def _free_name(self, name: str) -> str:
        taken, free, number = {entry.name for entry in self.entries} | {LEARNER}, name, 1
        while free in taken:
            number += 1
            free = f"{name}-{number}"
        return free

    # -- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Entries and ratings, as JSON and checkpoints hold them."""
        return {
            "entries": [asdict(entry) for entry in self.entries],
            "ratings": self.ratings.state_dict(),
            "since": [self.last_snapshot, self.recent_wins, self.recent_games],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self.entries = [Entry(**entry) for entry in state["entries"]]
        self.ratings = Elo.from_state(state["ratings"])
        self.last_snapshot, self.recent_wins, self.recent_games = state["since"]
        self._loaded.clear()

    def write_index(self) -> None:
        """Writes :meth:`state_dict` as ``pool.json`` for people and other programs, in one step."""
        if self.directory is None:
            return
        write_json(self.directory / INDEX, {"format": "rlstack-pool", "version": 1, **self.state_dict()}, nan=False)
