"""A league on disk: players, their games and ratings in one readable file, saved after every round."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlstack.config import ConfigError
from rlstack.evaluation.evaluator import OURS

from .matches import Arena
from .players import Source
from .pool import write_json
from .ratings import Ratings, ratings_from
from .records import Game
from .replays import BestGames
from .tournaments import Schedule, rated

FILE = "league.json"
SCHEMA_VERSION = 1
_OF_TRAINING = (*OURS, "opponents", "reward_weights", "rewards")
"""Options of a world that make no difference to who wins."""


class League:
    """Players who meet in one world.

    Args:
        folder: of ``league.json``.
        env: group of the world, as it is signed.
        ratings: of its players.

    Attributes:
        sources: of the players by name.
        games: all that were played, in order.
        rounds: how many times :meth:`play_round` was done.
    """

    def __init__(self, folder: Path, env: Mapping[str, Any], ratings: Ratings) -> None:
        self.folder, self.env, self.ratings = Path(folder), dict(env), ratings
        self.sources: dict[str, Source] = {}
        self.added: dict[str, str] = {}
        self.games: list[Game] = []
        self.rounds = 0

    @classmethod
    def open(cls, folder: Path | str) -> League:
        """The league in a folder.

        Raises:
            ConfigError: there is none, or its file is damaged or of another version.
        """
        path = Path(folder) / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise ConfigError(f"folder: {folder} holds no league ({FILE}); 'run' begins one") from None
        except ValueError as error:
            raise ConfigError(f"{path}: not a league ({error})") from None
        version = content.get("schema_version") if isinstance(content, dict) else None
        if version != SCHEMA_VERSION:
            raise ConfigError(f"{path}: schema_version {version}, this program reads version {SCHEMA_VERSION}")
        try:
            league = cls(Path(folder), content["env"], ratings_from(content["ratings"]))
            for entry in content["entries"]:
                league.sources[entry["name"]], league.added[entry["name"]] = entry["source"], entry["created_at"]
            league.games = [Game(*row) for row in content["games"]]
            league.rounds = int(content["rounds"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: not a league ({error!r})") from None
        return league

    def save(self) -> None:
        """Writes the file, wholly or not at all."""
        entries = [
            {"name": name, "source": source, "created_at": self.added[name]} for name, source in self.sources.items()
        ]
        content = {
            "schema_version": SCHEMA_VERSION,
            "env": self.env,
            "signature": signature(self.env),
            "rounds": self.rounds,
            "entries": entries,
            "ratings": self.ratings.state_dict(),
            "games": [list(game) for game in self.games],
        }
        write_json(self.folder / FILE, content)

    def check_world(self, env: Mapping[str, Any]) -> None:
        """Raises a one-line :class:`ConfigError` unless games in this world are comparable with the league's."""
        ours, theirs = signature(self.env), signature(env)
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key):
                raise ConfigError(
                    f"env.{key}: {theirs.get(key)!r}, but the league in {self.folder} plays with {ours.get(key)!r}; "
                    "choose another folder"
                )

    def join(self, name: str, source: Source) -> None:
        """Adds a player; one of this name must have the same source.

        Raises:
            ConfigError: another player has this name.
        """
        if name in self.sources and self.sources[name] != source:
            raise ConfigError(
                f"players: {name!r} is {self.sources[name]!r} in this league, give {source!r} another name"
            )
        self.sources[name] = source
        self.added.setdefault(name, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        self.ratings.add(name)

    def between(self, first: str, second: str) -> int:
        """How many games two players have played."""
        return sum({game.first, game.second} == {first, second} for game in self.games)

    def play_round(
        self,
        arena: Arena,
        schedule: Schedule,
        seed: int,
        progress: Callable[[int], None] | None = None,
        best: BestGames | None = None,
    ) -> Sequence[Game]:
        """Plays the games of a schedule, rates them as one period, and saves: a killed league repeats one round."""
        games = arena.play(schedule, seed * 1_000_003 + self.rounds, progress, best)
        for _ in rated(games, self.ratings):
            pass
        self.games += games
        self.rounds += 1
        self.save()
        return games


def signature(env: Mapping[str, Any]) -> dict[str, Any]:
    """What of an ``env`` group decides whether games are comparable."""
    return {key: value for key, value in env.items() if key not in _OF_TRAINING}
