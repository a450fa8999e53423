"""The pool of a learner's opponents: fixed players and snapshots of the learner on disk, and how they are drawn."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack.config import ConfigError, build
from rlstack.config.errors import missing_option
from rlstack.envs.foundation.files import write_json
from rlstack.runs.checkpoint import write_checkpoint

from .players import (
    SELF,
    Player,
    PolicyPlayer,
    RandomPolicy,
    Source,
    check_source,
    free_name,
    make_player,
    name_of,
    read_source,
)
from .ratings import ELO_SCALE, Elo, Positive, Scored, ratings_from

LEARNER = "learner"
INDEX = "pool.json"
_PREFIX = "snapshot_"


# -- samplers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standings:
    """Numbers of n opponents from which samplers compute weights.

    Attributes:
        ratings: ``[n]`` on Elo's scale.
        own: rating of the learner.
        frames: ``[n]``, frames of the learner when the opponent joined.
        wins: ``[n]``, share of games that the learner wins against each; a draw counts half.
    """

    ratings: Tensor
    own: float
    frames: Tensor
    wins: Tensor


Sampler = Callable[[Standings], Tensor]
"""Returns non-negative weights ``[n]``, at least one of them positive."""


@dataclass(frozen=True)
class EqualChances:
    """Draws all opponents equally often."""

    def __call__(self, standings: Standings) -> Tensor:
        return torch.ones_like(standings.ratings)


@dataclass(frozen=True)
class SimilarRating:
    """Prefers opponents of similar rating: ``exp(-|difference| / scale)``."""

    scale: Positive = 200.0

    def __call__(self, standings: Standings) -> Tensor:
        return torch.exp(-(standings.ratings - standings.own).abs() / self.scale)


@dataclass(frozen=True)
class LateJoiner:
    """Prefers opponents that joined late: ``exp(temperature * (frames - latest) / 1e6)``."""

    temperature: Positive = 1.0

    def __call__(self, standings: Standings) -> Tensor:
        return torch.exp(self.temperature * (standings.frames - standings.frames.amax()) / 1e6)


@dataclass(frozen=True)
class OpenOutcome:
    """Prefers opponents with an open outcome by the ratings: ``exp(-|expected score - 0.5| / scale)``."""

    scale: Positive = 0.5

    def __call__(self, standings: Standings) -> Tensor:
        expected = torch.sigmoid((standings.own - standings.ratings) * (math.log(10) / ELO_SCALE))
        return torch.exp(-(expected - 0.5).abs() / self.scale)


@dataclass(frozen=True)
class PrioritisedSelfPlay:
    """Prioritised fictitious self-play (Vinyals et al. 2019), by the share x of games that the learner wins.

    Attributes:
        weighting: ``hard``, ``(1 - x)^exponent``, prefers those who beat the learner; ``variance``, ``x (1 - x)``,
            those of its own strength.
        exponent: exponent of ``hard``.
        least: lower bound of the weights, so that every opponent is met.
    """

    weighting: Literal["hard", "variance"] = "hard"
    exponent: Positive = 2.0
    least: Positive = 0.01

    def __call__(self, standings: Standings) -> Tensor:
        x = standings.wins
        return ((1 - x) ** self.exponent if self.weighting == "hard" else x * (1 - x)).clamp_min(self.least)


SAMPLERS: dict[str, type[Any]] = {
    "uniform": EqualChances,
    "elo": SimilarRating,
    "recency": LateJoiner,
    "difficulty": OpenOutcome,
    "pfsp": PrioritisedSelfPlay,
}


def make_sampler(config: str | Mapping[str, Any]) -> Sampler:
    """Makes a sampler from its name, or from a mapping of ``name`` and options.

    Raises:
        ConfigError: there is no such sampler or option, or a value is impossible.
    """
    options = {"name": config} if isinstance(config, str) else dict(config)
    name = options.pop("name", None)
    if name not in SAMPLERS:
        raise ConfigError(missing_option("sampler", str(name), list(SAMPLERS)))
    return build(SAMPLERS[name], options, "sampler")


# -- the pool ------------------------------------------------------------------------------------------------------


@dataclass
class Opponent:
    """An opponent in a pool.

    Attributes:
        name: unique name in the pool.
        source: the player's source; see :func:`~rlstack.play.players.make_player`.
        frames: frames of the learner when it joined; 0 for an opponent from the beginning.
        wins, games: the learner's against it, with more weight on the latest (see :class:`Pool`); a draw is half a win.
    """

    name: str
    source: Any
    frames: int = 0
    wins: float = 0.0
    games: float = 0.0


class Pool:
    """The opponents of a learner in the order in which they joined, with ratings and results; loads them on demand.

    Args:
        players: opponents from the beginning.
        directory: folder of the learner's snapshots, made with the first; None: the pool has no snapshots.
        loaded: number of opponents whose networks stay in RAM, besides those that are playing.
        memory: number of games after which an old result counts 1/e of a new one.
        anchors: fixed ratings by name.
        keep: greatest number of snapshots; beyond it the one with the lowest rating (never the newest) is dropped.

    Raises:
        ConfigError: a source cannot be read, or ``directory`` is a file.

    Attributes:
        last_snapshot: frames of the newest snapshot.
        recent_wins, recent_games: the learner's since that snapshot; a draw counts half.
        waiting: results that the next :meth:`settle` counts; None: each result counts at once.
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
        if self.directory is not None and self.directory.exists() and not self.directory.is_dir():
            raise ConfigError(f"opponents.pool: {directory} is a file, but snapshots need a folder")
        self._most_loaded, self._decay, self.keep = loaded, 1.0 - 1.0 / memory, keep
        self.ratings = Elo(anchors=dict(anchors or {}))
        self.ratings.add(LEARNER)
        self.entries: list[Opponent] = []
        self._loaded: OrderedDict[str, Player] = OrderedDict()
        self._learner: PolicyPlayer | None = None
        self.waiting: list[tuple[str, float]] | None = None
        self.last_snapshot, self.recent_wins, self.recent_games = 0, 0.0, 0
        for source in players:
            plain = SELF if read_source(source) == (SELF, {}) else source
            taken = [LEARNER, *(entry.name for entry in self.entries)]
            self.join(Opponent(free_name(name_of(source), taken), plain))

    def check(self, env: EnvBase) -> None:
        """Raises a :class:`ConfigError` if a fixed player does not exist; loads none."""
        for entry in self.entries:
            if not entry.frames:
                check_source(entry.source, env, [SELF])

    def standings(self) -> Standings:
        """Returns the numbers of all opponents. One that was never met counts as an even match."""
        latest = max(entry.frames for entry in self.entries)
        rows = []
        for entry in self.entries:
            rating, frames = self.ratings.rating(entry.name), entry.frames
            if entry.source == SELF:  # rated as the learner, and the newest
                rating, frames = self.ratings.rating(LEARNER), latest
            rows.append((rating, frames, (entry.wins + 0.5) / (entry.games + 1.0)))
        columns = torch.tensor(rows, dtype=torch.float64)
        return Standings(columns[:, 0], self.ratings.rating(LEARNER), columns[:, 1], columns[:, 2])

    def record(self, results: Sequence[tuple[str, float]]) -> None:
        """Adds the learner's scores (1, 0.5, 0) in games against opponents by name.

        Games against itself neither change ratings nor count for a promotion.
        """
        if self.waiting is not None:
            self.waiting += results
            return
        entries = {entry.name: entry for entry in self.entries}
        for name, score in results:
            entry = entries.get(name)  # None: dropped while it played
            if entry is not None:
                entry.wins, entry.games = self._decay * entry.wins + score, self._decay * entry.games + 1.0
            if entry is None or entry.source != SELF:
                self.recent_wins, self.recent_games = self.recent_wins + score, self.recent_games + 1
                if entry is not None:
                    self.ratings.record([Scored(LEARNER, name, score)])

    def settle(self, everyone: Callable[[Any], list[Any]]) -> None:
        """Counts the waiting results.

        Args:
            everyone: gathers the results of all processes that learn together, given this one's.
        """
        results, self.waiting = everyone(self.waiting), None
        for part in results:
            self.record(part)
        self.waiting = []

    # -- players -------------------------------------------------------------------------------------------------

    def player(self, name: str, env: EnvBase, playing: Sequence[str] = ()) -> Player:
        """Returns an opponent, loading it if needed; unloads the least recently used ones except ``playing``.

        Raises:
            ConfigError: its file has disappeared or does not fit the world.
        """
        entry = next((entry for entry in self.entries if entry.name == name), None)
        # None: a surplus snapshot that still plays in the worlds of a checkpoint
        source = f"{name}.pt" if entry is None else entry.source
        if source == SELF:
            return self.learner(env)
        if (entry is None or entry.frames) and self.directory is not None:
            source = str(self.directory / source)  # a snapshot has only its file's name, so that runs can be moved
        self._loaded[name] = self._loaded.pop(name) if name in self._loaded else make_player(source, env, name)
        spare = [other for other in self._loaded if other != name and other not in playing]
        for other in spare[: max(len(self._loaded) - self._most_loaded, 0)]:
            del self._loaded[other]
        return self._loaded[name]

    def release(self, name: str) -> None:
        """Forgets a loaded opponent, which belongs to the caller from now on."""
        self._loaded.pop(name, None)

    def learner(self, env: EnvBase) -> PolicyPlayer:
        """Returns the player ``self``, always the same object."""
        if self._learner is None:
            self._learner = PolicyPlayer(RandomPolicy(env), SELF)
        return self._learner

    # -- snapshots -----------------------------------------------------------------------------------------------

    def add_snapshot(self, state: Mapping[str, Any], frames: int) -> Opponent:
        """Adds a snapshot of the learner; its checkpoint is complete on disk before the pool refers to it.

        Args:
            state: entries for :func:`rlstack.runs.loading.load`: ``agent``, ``config``, ``frames``.
            frames: frames that name the snapshot; one with the same number is replaced.

        Raises:
            ConfigError: the pool has no folder.
        """
        if self.directory is None:
            raise ConfigError("opponents.pool: a folder is needed for snapshots")
        fixed = [entry.name for entry in self.entries if not entry.frames]  # among them snapshots of other runs
        name = free_name(f"{_PREFIX}{frames:012d}", fixed)
        self.directory.mkdir(parents=True, exist_ok=True)
        write_checkpoint(self.directory / f"{name}.pt", dict(state), frames)
        self._loaded.pop(name, None)
        self.entries = [entry for entry in self.entries if entry.name != name]
        self.last_snapshot, self.recent_wins, self.recent_games = frames, 0.0, 0
        entry = Opponent(name, f"{name}.pt", frames)
        self.join(entry)
        self.ratings.set(name, self.ratings.rating(LEARNER))
        snapshots = [entry for entry in self.entries if entry.frames]
        if self.keep is not None and len(snapshots) > self.keep:
            worst = min(snapshots[:-1] or snapshots, key=lambda entry: self.ratings.rating(entry.name))
            self.entries.remove(worst)  # its file stays: a run resumed from an earlier checkpoint may need it
            self._loaded.pop(worst.name, None)
        # For people and other programs
        write_json(self.directory / INDEX, {"format": "rlstack-pool", "version": 1, **self.state_dict()}, nan=False)
        return entry

    def join(self, entry: Opponent) -> None:
        """Adds an opponent."""
        self.entries.append(entry)
        self.ratings.add(entry.name)

    # -- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns entries and ratings in the form of JSON and checkpoints."""
        return {
            "entries": [asdict(entry) for entry in self.entries],
            "ratings": self.ratings.state_dict(),
            "since": [self.last_snapshot, self.recent_wins, self.recent_games],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self.entries = [Opponent(**entry) for entry in state["entries"]]
        ratings = ratings_from(state["ratings"])
        assert isinstance(ratings, Elo)
        self.ratings = ratings
        self.last_snapshot, self.recent_wins, self.recent_games = state["since"]
        self._loaded.clear()
