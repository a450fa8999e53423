"""A league on disk: its players, games and ratings in one readable file, which several processes may change."""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from rlstack import envs
from rlstack.agents.foreign import parse
from rlstack.config import ConfigError, Interval, build, convert
from rlstack.config.allowed import check_named, links_in, sign
from rlstack.config.errors import writing
from rlstack.envs.foundation.files import open_to_append, write_json
from rlstack.evaluation.evaluator import OURS
from rlstack.files.safe_load import read_json_object
from rlstack.play.register import without_opponents
from rlstack.runs.checkpoint import CheckpointError, write_checkpoint
from rlstack.runs.loading import checkpoint_file, read_agent
from rlstack.runs.manifest import check, sealed
from rlstack.runs.run_directory import HUB, PREFIX

from .games import GameResult, Schedule
from .matches import GameRunner
from .players import RANDOM, SELF, Source, check_source, free_name, name_of, read_source, with_kind
from .ratings import Ratings, ratings_from
from .replays import BestGames

FILE = "league.json"
PLAYERS = "players"
"""Name of the folder with copies of the candidates, within the league's."""
SCHEMA_VERSION = 2
"""Version 2 added candidates and commanders; in a file of version 1 every member is a player."""
SAVED_EVERY = 10.0
"""Seconds between two saves of a round's finished games."""
_LOCK = ".league.lock"
_GAME = tuple[str, str, float, float, int, bool]
"""The types of a :class:`GameResult`, which the file stores as a list."""
_NAME = re.compile(r"\w[\w.-]*")
OF_TRAINING = (*OURS, "opponents", "reward_weights", "rewards")
"""Options of a world that do not influence who wins."""


@dataclass(frozen=True)
class LeagueMember:
    """An entry of a league's file: one of its players.

    Attributes:
        name: unique name in the league.
        source: the source that the user gave; see :func:`~rlstack.play.players.make_player`.
        created_at: time when it joined, in UTC.
        kind: ``candidate``, a file that was submitted; ``commander``, a candidate that was among the best when it was
            evaluated; ``player``, which only takes part in tournaments or serves as an opponent.
        id: :func:`identity` of a submitted file; None for other sources.
        file: path of its checkpoint's copy, relative to the league's folder; None: it plays from its source.
        commander_name: name of a commander.
        matches: number of matches in its evaluations.
        meta: further entries: ``frames`` of training, ``agent``, ``note``.
    """

    name: str
    source: str | dict[str, Any]
    created_at: str
    kind: Literal["player", "candidate", "commander"] = "player"
    id: str | None = None
    file: str | None = None
    commander_name: str | None = None
    matches: Annotated[int, Interval(low=0)] = 0
    meta: dict[str, Any] = field(default_factory=dict)

    def played_from(self, folder: Path) -> Source:
        """Returns the source that it plays from, in the league of this folder."""
        if self.file is None:
            return self.source
        copy = str(folder / self.file)
        if isinstance(self.source, str):
            return copy
        # The copy fixes which of a run's checkpoints it is; the other options still apply.
        return {"player": copy, "explore": self.source.get("explore", False)}


class League:
    """Players who play against one another in one world.

    Args:
        folder: folder of ``league.json``.
        env: ``env`` group of the world, reduced to its :func:`signature`.
        ratings: ratings of its players.

    Attributes:
        members: the players by name, in the order in which they joined.
        games: all games in order.
        rounds: number of rounds played with :meth:`play_round`.
        unrated: finished games of a round that has not ended, or has been interrupted.
    """

    def __init__(self, folder: Path, env: Mapping[str, Any], ratings: Ratings) -> None:
        self.folder, self.env, self.ratings = Path(folder), dict(env), ratings
        self.members: dict[str, LeagueMember] = {}
        self.games: list[GameResult] = []
        self.rounds = 0
        self.unrated: list[GameResult] = []

    # -- the file ------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path | str, env: Mapping[str, Any], ratings: Ratings) -> League:
        """Creates a league without players on disk; raises a :class:`ConfigError` if the folder holds one already."""
        league = cls(Path(folder), env, ratings)
        with locked(league.folder):
            if (league.folder / FILE).exists():
                raise ConfigError(f"folder: {folder} already holds a league ({FILE}); choose another")
            league.save()
        return league

    @classmethod
    def open(cls, folder: Path | str) -> League:
        """Opens the league in a folder.

        Raises:
            ConfigError: there is no league, its file is damaged or of another version, or names something that the user
                has not allowed.
        """
        path = Path(folder) / FILE
        content = _content(path)
        try:
            league = cls(Path(folder), content["env"], ratings_from(content["ratings"]))
            for index, entry in enumerate(content["entries"]):
                member = build(LeagueMember, entry, f"entries[{index}]")
                league.members[member.name] = member
            league.games = [_game(row, f"games[{index}]") for index, row in enumerate(content["games"])]
            league.unrated = [_game(row, f"unrated[{index}]") for index, row in enumerate(content.get("unrated", []))]
            league.rounds = int(content["rounds"])
        except ConfigError as error:
            raise ConfigError(f"{path}: not a league ({error})") from None
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: not a league ({error!r})") from None
        check_named(league._named, path)
        return league

    def save(self) -> None:
        """Writes the file atomically; raises a :class:`ConfigError` if it cannot be written."""
        content = {
            "schema_version": SCHEMA_VERSION,
            "env": self.env,
            "signature": signature(self.env),
            "rounds": self.rounds,
            "entries": [asdict(member) for member in self.members.values()],
            "ratings": self.ratings.state_dict(),
            "games": [list(game) for game in self.games],
            "unrated": [list(game) for game in self.unrated],
        }
        with writing(self.folder / FILE), sealed(self.folder, FILE):
            sign(self.folder, self._named)
            write_json(self.folder / FILE, content, nan=False)

    @property
    def _named(self) -> list[Any]:
        """Returns all that playing in the league builds, loads and writes through."""
        sources = [(member.source, member.file) for member in self.members.values()]
        return [self.env, sources, links_in(self.folder)]

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A context for every change: reads what other processes have written, then saves the changes of the block.

        Processes take turns, so blocks must be short and play no games. After an exception nothing is saved.

        Raises:
            ConfigError: the file has become unreadable or that of another world, or cannot be written.
        """
        with locked(self.folder):
            if (self.folder / FILE).exists():
                fresh = League.open(self.folder)
                fresh.check_world(self.env)
                self.members, self.games, self.rounds = fresh.members, fresh.games, fresh.rounds
                self.ratings, self.unrated = fresh.ratings, fresh.unrated
            yield
            self.save()

    # -- members and games ---------------------------------------------------------------------------------------

    def check_world(self, env: Mapping[str, Any]) -> None:
        """Raises a :class:`ConfigError` unless games in this world are comparable with the league's."""
        ours, theirs = signature(self.env), signature(env)
        for key in sorted(ours.keys() | theirs.keys(), key=lambda key: (key != "name", key)):
            if ours.get(key) != theirs.get(key):
                ours_is = f"the league in {self.folder} plays with {ours.get(key)!r}; choose another folder"
                raise ConfigError(f"env.{key}: {theirs.get(key)!r}, but {ours_is}")

    def join(self, name: str, source: Source) -> None:
        """Adds a player unless it is a member; raises a :class:`ConfigError` if another member has this name."""
        known = self.members.get(name)
        if known is None:
            self.admit(LeagueMember(name, source if isinstance(source, str) else dict(source), utc_now()))
        elif known.source != source:
            raise ConfigError(f"players: {name!r} is {known.source!r} in this league; give {source!r} another name")

    def admit(self, member: LeagueMember) -> None:
        """Adds a member, or replaces the one with its name."""
        self.members[member.name] = member
        self.ratings.add(member.name)

    def of_kind(self, kind: str) -> list[str]:
        """Returns the names of the members of a kind, in the order in which they joined."""
        return [name for name, member in self.members.items() if member.kind == kind]

    def member_of(self, identified: str) -> LeagueMember | None:
        """Returns the member that was submitted as the file with this :func:`identity`."""
        return next((member for member in self.members.values() if member.id == identified), None)

    def source(self, name: str) -> Source:
        """Returns the source that a member plays from; see :func:`~rlstack.play.players.make_player`."""
        return self.members[name].played_from(self.folder)

    def between(self, first: str, second: str) -> int:
        """Returns the number of games between two players."""
        return sum({game.first, game.second} == {first, second} for game in self.games)

    def rate(self, games: Sequence[GameResult]) -> None:
        """Adds games as one rating period."""
        self.ratings.record([game.scored for game in games])
        self.games += games

    def play_round(
        self, runner: GameRunner, schedule: Schedule, seed: int, best: BestGames | None = None
    ) -> Sequence[GameResult]:
        """Plays the games of a schedule, rates them as one period, and saves.

        Finished games are saved as ``unrated`` every :data:`SAVED_EVERY` seconds. If another process has played the
        round in the meantime, the result is empty and nothing is counted twice.
        """
        before, finished, saved = self.rounds, list[GameResult](), time.monotonic()

        def keep(game: GameResult) -> None:
            nonlocal saved
            finished.append(game)
            if time.monotonic() - saved >= SAVED_EVERY:
                with self.changing():
                    self.unrated = finished if self.rounds == before else self.unrated
                saved = time.monotonic()

        games = runner.play(schedule, seed * 1_000_003 + before, best, keep)
        with self.changing():
            if self.rounds != before:
                return []
            self.end_round(games)
        return games

    def end_round(self, games: Sequence[GameResult]) -> None:
        """Rates the games of a round, or the ``unrated`` ones of an interrupted round, which then counts as played."""
        self.rate(games)
        self.unrated = []
        self.rounds += 1


# -- candidates ----------------------------------------------------------------------------------------------------


def add_candidates(
    league: League, runner: GameRunner, players: Sequence[tuple[str | None, Source]], note: str | None = None
) -> list[str]:
    """Adds files as candidates; either all of them join or none does.

    Checkpoints of rlstack are copied without replay buffer and opponents, so that the league no longer needs their
    runs; agents from elsewhere stay where they are.

    Args:
        runner: runner of the league's world, in which each candidate is tried.
        players: a name and a source each; None as a name means that of the source, with a number if it is taken.
        note: a note to store with them.

    Returns their names.

    Raises:
        ConfigError: a file does not exist, is in the league already or cannot act in its world, or a name is taken or
            not possible for a file.
    """
    with ExitStack() as undo, league.changing():
        names = [_add_candidate(league, runner, name, source, note, undo) for name, source in players]
        undo.pop_all()
    return names


def _add_candidate(
    league: League, runner: GameRunner, wanted: str | None, source: Source, note: str | None, undo: ExitStack
) -> str:
    text, options = read_source(source)
    own = [RANDOM, *runner.sides.scripted]
    if text in own:
        advice = f"pool.players=[{text}] lets candidates meet it"
        raise ConfigError(f"players: {text!r} comes with the world and is not a candidate; {advice}")
    check_source(source, runner.sample)
    kind, path = ("rlstack", text) if text.startswith((PREFIX, HUB)) else parse(with_kind(text))
    file = checkpoint_file(Path(path), options.get("which", "latest")) if kind == "rlstack" else Path(path)
    if not file.is_file():
        what = "a candidate is a run, a checkpoint, or kind:path of a file"
        raise ConfigError(f"players: {text!r} is not a file; {what}")
    identified = identity(file)
    if (known := league.member_of(identified)) is not None:
        raise ConfigError(f"players: {file} is in this league already, as {known.name!r}")
    taken = [*league.members, SELF, *own]
    name = name_of(source) if wanted is None else wanted
    if not _NAME.fullmatch(name):
        raise ConfigError(f"players: {name!r} cannot name a candidate; letters, digits, _ - and . are allowed")
    name = free_name(name, taken) if wanted is None else name
    if name in taken:
        raise ConfigError(f"players: the name {name!r} is taken in this league; give {source!r} another")
    plain = source if isinstance(source, str) else dict(source)
    meta = {"frames": None, "agent": kind, "note": note}
    member = LeagueMember(name, plain, utc_now(), "candidate", identified, meta=meta)
    if kind == "rlstack":
        member = replace(member, file=f"{PLAYERS}/{name}.pt")
        copy = league.folder / PLAYERS / f"{name}.pt"
        undo.callback(copy.unlink, missing_ok=True)
        try:  # the parts of the checkpoint that playing needs
            state = read_agent(file)
            config = {**state["config"], "env": without_opponents(state["config"]["env"])}
            kept = {"frames": state["frames"], "agent": state["agent"], "config": config}
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_checkpoint(copy, kept, state["frames"])
        except (CheckpointError, OSError) as error:
            raise ConfigError(f"players: {error}") from None
        meta |= {"frames": state["frames"], "agent": config["agent"]["name"]}
    runner.add(member.played_from(league.folder), name)
    league.admit(member)
    return name


def identity(file: Path) -> str:
    """Returns ``stem:size:mtime`` of a file (time in ns), which is equal for copies that keep their time."""
    try:
        facts = file.stat()
    except OSError as error:
        raise ConfigError(f"players: {file} cannot be read ({error.strerror})") from None
    return f"{file.stem}:{facts.st_size}:{facts.st_mtime_ns}"


def utc_now() -> str:
    """Returns the time in UTC as ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# -- reading and locking -------------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A context for one process at a time; the system releases the lock when a process ends, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = open_to_append(folder / _LOCK)
    except OSError as error:
        raise ConfigError(f"folder: {folder} cannot be written to ({error.strerror})") from None
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def signature(env: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of an ``env`` group that influence who wins.

    These exclude options of training, and those that the world itself sets for evaluations (``evaluation_options``).
    """
    try:
        judging = envs.world_hooks(env["name"]).evaluation_options
    except (KeyError, ValueError):  # building the world reports the mistake
        judging = {}
    return {key: value for key, value in env.items() if key not in OF_TRAINING and key not in judging}


def _game(row: Any, key: str) -> GameResult:
    game = GameResult(*convert(_GAME, row, key))
    if game.first == game.second:
        raise ConfigError(f"{key}: {game.first!r} against itself")
    return game


def _content(path: Path) -> dict[str, Any]:
    """Reads a league's file and checks its version."""
    if not path.exists():
        raise ConfigError(f"folder: {path.parent} holds no league ({FILE}); 'init' or 'run' begins one")
    check(path)
    content = read_json_object(path)
    if (version := content.get("schema_version")) not in (1, SCHEMA_VERSION):
        raise ConfigError(f"{path}: schema_version {version}, this program reads versions 1 and {SCHEMA_VERSION}")
    return content
