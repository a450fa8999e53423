"""A league on disk: players, their games and ratings in one readable file, which several processes may change."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import envs
from envs.whole_files import write_json
from rlstack.config import ConfigError, build
from rlstack.config.named_code import check_named
from rlstack.evaluation.evaluator import OURS

from .matches import Arena
from .members import Member, now
from .players import Source
from .ratings import Ratings, ratings_from
from .records import Game
from .replays import BestGames
from .tournaments import Schedule, rated

FILE = "league.json"
SCHEMA_VERSION = 2
"""2 added what is known of candidates and commanders; in a file of version 1 everyone is a player."""
READABLE = (1, 2)
_LOCK = ".league.lock"
OF_TRAINING = (*OURS, "opponents", "reward_weights", "rewards")
"""Options of a world that make no difference to who wins."""


class League:
    """Players who meet in one world.

    Args:
        folder: of ``league.json``.
        env: group of the world, as it is signed.
        ratings: of its players.

    Attributes:
        members: the players by name, in the order in which they joined.
        games: all that were played, in order.
        rounds: how many times :meth:`play_round` was done.
    """

    def __init__(self, folder: Path, env: Mapping[str, Any], ratings: Ratings) -> None:
        self.folder, self.env, self.ratings = Path(folder), dict(env), ratings
        self.members: dict[str, Member] = {}
        self.games: list[Game] = []
        self.rounds = 0

    # -- the file ------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path | str, env: Mapping[str, Any], ratings: Ratings) -> League:
        """A new league without players, on disk.

        Raises:
            ConfigError: the folder holds one already, or cannot be written to.
        """
        league = cls(Path(folder), env, ratings)
        with locked(league.folder):
            if (league.folder / FILE).exists():
                raise ConfigError(f"folder: {folder} already holds a league ({FILE}); choose another")
            league.save()
        return league

    @classmethod
    def open(cls, folder: Path | str) -> League:
        """The league in a folder.

        Raises:
            ConfigError: there is none, its file is damaged or of another version, or its world is code that the user
                has not allowed.
        """
        path = Path(folder) / FILE
        content = _content(path)
        check_named(content.get("env"), path)
        try:
            league = cls(Path(folder), content["env"], ratings_from(content["ratings"]))
            for index, entry in enumerate(content["entries"]):
                member = build(Member, entry, f"entries[{index}]")
                league.members[member.name] = member
            league.games = [_game(row) for row in content["games"]]
            league.rounds = int(content["rounds"])
        except ConfigError as error:
            raise ConfigError(f"{path}: not a league ({error})") from None
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: not a league ({error!r})") from None
        return league

    def save(self) -> None:
        """Writes the file, wholly or not at all.

        Raises:
            ConfigError: it cannot be written; a file that was there is untouched.
        """
        content = {
            "schema_version": SCHEMA_VERSION,
            "env": self.env,
            "signature": signature(self.env),
            "rounds": self.rounds,
            "entries": [member.as_row() for member in self.members.values()],
            "ratings": self.ratings.state_dict(),
            "games": [list(game) for game in self.games],
        }
        try:
            write_json(self.folder / FILE, content, nan=False)
        except OSError as error:
            raise ConfigError(f"{self.folder / FILE}: cannot be written ({error.strerror})") from None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Around every change: takes in what other processes have written, and saves what the block makes of it.

        Processes take turns, so blocks are short: no games inside. After an exception nothing is saved.

        Raises:
            ConfigError: the file has become unreadable, or a league of another world, or cannot be written.
        """
        with locked(self.folder):
            if (self.folder / FILE).exists():
                fresh = League.open(self.folder)
                fresh.check_world(self.env)
                self.members, self.games, self.rounds = fresh.members, fresh.games, fresh.rounds
                self.ratings = fresh.ratings
            yield
            self.save()

    # -- members and games ---------------------------------------------------------------------------------------

    def check_world(self, env: Mapping[str, Any]) -> None:
        """Raises a one-line :class:`ConfigError` unless games in this world are comparable with the league's."""
        ours, theirs = signature(self.env), signature(env)
        for key in sorted(ours.keys() | theirs.keys(), key=lambda key: (key != "name", key)):
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
        known = self.members.get(name)
        if known is None:
            self.admit(Member(name, source if isinstance(source, str) else dict(source), now()))
        elif known.source != source:
            raise ConfigError(f"players: {name!r} is {known.source!r} in this league, give {source!r} another name")

    def admit(self, member: Member) -> None:
        """Adds a member, or replaces the one of its name."""
        self.members[member.name] = member
        self.ratings.add(member.name)

    def source(self, name: str) -> Source:
        """What a member plays from, see :func:`~rlstack.play.players.make_player`.

        Raises:
            ConfigError: it is code that the user has not allowed.
        """
        source = self.members[name].played_from(self.folder)
        check_named(source, self.folder / FILE)
        return source

    def between(self, first: str, second: str) -> int:
        """How many games two players have played."""
        return sum({game.first, game.second} == {first, second} for game in self.games)

    def rate(self, games: Sequence[Game]) -> None:
        """Takes in games, as one rating period."""
        for _ in rated(games, self.ratings):
            pass
        self.games += games

    def play_round(
        self,
        arena: Arena,
        schedule: Schedule,
        seed: int,
        best: BestGames | None = None,
    ) -> Sequence[Game]:
        """Plays the games of a schedule, rates them as one period, and saves: a killed league repeats one round.

        A round that another process has played meanwhile is not counted twice: then there are no games.
        """
        before = self.rounds
        games = arena.play(schedule, seed * 1_000_003 + before, best)
        with self.changing():
            if self.rounds != before:
                return []
            self.rate(games)
            self.rounds += 1
        return games


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Inside there is one process at a time; the system lets the next one in when a process ends, however it ends.

    Raises:
        ConfigError: the folder cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / _LOCK).open("a")
    except OSError as error:
        raise ConfigError(f"folder: {folder} cannot be written to ({error.strerror})") from None
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def signature(env: Mapping[str, Any]) -> dict[str, Any]:
    """What of an ``env`` group decides whether games are comparable: neither what only training is about, nor what
    the world sets itself where it judges (``evaluation_options``)."""
    try:
        judging = envs.world_hooks(env["name"]).evaluation_options
    except (KeyError, ValueError):  # whoever builds the world tells
        judging = {}
    return {key: value for key, value in env.items() if key not in OF_TRAINING and key not in judging}


def _content(path: Path) -> dict[str, Any]:
    """What is in a league's file, of a version that can be read.

    Raises:
        ConfigError: there is no file, no JSON in it, or another version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"folder: {path.parent} holds no league ({FILE}); 'init' or 'run' begins one") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a league ({error})") from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version not in READABLE:
        versions = " and ".join(map(str, READABLE))
        raise ConfigError(f"{path}: schema_version {version}, this program reads versions {versions}")
    return content


def _game(row: Any) -> Game:
    """A game as JSON holds it.

    Raises:
        TypeError, ValueError: it is none.
    """
    game = Game(*row)
    numbers = (game.points_first, game.points_second, game.steps)
    if not (isinstance(game.first, str) and isinstance(game.second, str) and game.first != game.second):
        raise ValueError(f"{row!r} is no game of two players")
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        raise ValueError(f"{row!r} has no points and steps")
    return game
