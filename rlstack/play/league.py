"""A league on disk: players, their games and ratings in one readable file, which several processes may change."""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import envs
from envs.whole_files import write_json
from rlstack.agents.foreign import parse
from rlstack.config import ConfigError, Interval, build, convert
from rlstack.config.named_code import check_named
from rlstack.evaluation.evaluator import OURS
from rlstack.files.safe_load import read_json_object
from rlstack.runs.checkpoint import CheckpointError, write_checkpoint
from rlstack.runs.loading import checkpoint_file, read_agent
from rlstack.runs.opponents import without_opponents

from .games import GameResult, Schedule
from .matches import GameRunner
from .players import RANDOM, SELF, Source, check_source, free_name, name_of, read_source, with_kind
from .ratings import Ratings, ratings_from
from .replays import BestGames

FILE = "league.json"
PLAYERS = "players"
"""Folder of the candidates' copies, in the league's."""
SCHEMA_VERSION = 2
"""2 added what is known of candidates and commanders; in a file of version 1 everyone is a player."""
READABLE = (1, 2)
_LOCK = ".league.lock"
_GAME = tuple[str, str, float, float, int, bool]
"""The types of a :class:`GameResult`, which the file holds as a list."""
_NAME = re.compile(r"\w[\w.-]*")
OF_TRAINING = (*OURS, "opponents", "reward_weights", "rewards")
"""Options of a world that make no difference to who wins."""


@dataclass(frozen=True)
class LeagueMember:
    """A player in a league, as the file of the league says it.

    Attributes:
        name: unlike all others in its league.
        source: as it was given, see :func:`~rlstack.play.players.make_player`.
        created_at: when it joined, UTC.
        kind: ``candidate``: a file that was handed in; ``commander``: one that was among the best when it was
            evaluated, and remains one; ``player``: who only takes part in tournaments, or is there to be met.
        id: of a file that was handed in, see :func:`identity`; None: it is no file.
        file: a copy of its checkpoint, relative to the league's folder; None: it is played from its source.
        commander_name: of a commander.
        matches: how many it was evaluated by.
        meta: what is known of it besides: ``frames`` of training, ``agent``, ``note``.
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
        """The source to make it play by, in the league of this folder."""
        if self.file is None:
            return self.source
        copy = str(folder / self.file)
        if isinstance(self.source, str):
            return copy
        # Which of a run's checkpoints it was is settled; how it acts is not.
        return {"player": copy, "explore": self.source.get("explore", False)}


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
        self.members: dict[str, LeagueMember] = {}
        self.games: list[GameResult] = []
        self.rounds = 0

    # -- the file ------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path | str, env: Mapping[str, Any], ratings: Ratings) -> League:
        """A new league without players, on disk; a :class:`ConfigError` if the folder holds one already."""
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
                member = build(LeagueMember, entry, f"entries[{index}]")
                league.members[member.name] = member
            for index, row in enumerate(content["games"]):
                game = GameResult(*convert(_GAME, row, f"games[{index}]"))
                if game.first == game.second:
                    raise ConfigError(f"games[{index}]: {game.first!r} against itself")
                league.games.append(game)
            league.rounds = int(content["rounds"])
        except ConfigError as error:
            raise ConfigError(f"{path}: not a league ({error})") from None
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: not a league ({error!r})") from None
        return league

    def save(self) -> None:
        """Writes the file, wholly or not at all; a :class:`ConfigError` if that cannot be done."""
        content = {
            "schema_version": SCHEMA_VERSION,
            "env": self.env,
            "signature": signature(self.env),
            "rounds": self.rounds,
            "entries": [asdict(member) for member in self.members.values()],
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
        """Adds a player, unless it is there; a :class:`ConfigError` if another one has this name."""
        known = self.members.get(name)
        if known is None:
            self.admit(LeagueMember(name, source if isinstance(source, str) else dict(source), _now()))
        elif known.source != source:
            raise ConfigError(f"players: {name!r} is {known.source!r} in this league, give {source!r} another name")

    def admit(self, member: LeagueMember) -> None:
        """Adds a member, or replaces the one of its name."""
        self.members[member.name] = member
        self.ratings.add(member.name)

    def of_kind(self, kind: str) -> list[str]:
        """Names of the members of a kind, in the order in which they joined."""
        return [name for name, member in self.members.items() if member.kind == kind]

    def member_of(self, identified: str) -> LeagueMember | None:
        """The member that was handed in as the file of this :func:`identity`."""
        return next((member for member in self.members.values() if member.id == identified), None)

    def source(self, name: str) -> Source:
        """The source a member plays from, see :func:`~rlstack.play.players.make_player`.

        Raises:
            ConfigError: it is code that the user has not allowed.
        """
        source = self.members[name].played_from(self.folder)
        check_named(source, self.folder / FILE)
        return source

    def between(self, first: str, second: str) -> int:
        """The number of games that two players have played."""
        return sum({game.first, game.second} == {first, second} for game in self.games)

    def rate(self, games: Sequence[GameResult]) -> None:
        """Takes in games, as one rating period."""
        self.ratings.record([game.scored for game in games])
        self.games += games

    def play_round(
        self, runner: GameRunner, schedule: Schedule, seed: int, best: BestGames | None = None
    ) -> Sequence[GameResult]:
        """Plays the games of a schedule, rates them as one period, and saves: a killed league repeats one round.

        A round that another process has played meanwhile is not counted twice: then there are no games.
        """
        before = self.rounds
        games = runner.play(schedule, seed * 1_000_003 + before, best)
        with self.changing():
            if self.rounds != before:
                return []
            self.rate(games)
            self.rounds += 1
        return games


# -- candidates ----------------------------------------------------------------------------------------------------


def add_candidates(
    league: League, runner: GameRunner, players: Sequence[tuple[str | None, Source]], note: str | None = None
) -> list[str]:
    """Makes candidates of files; all of them join, or none does.

    Checkpoints of ours are copied, without replay buffer and the opponents they learned against, so that the league
    does not need their runs any more; files of other kinds stay where they are.

    Args:
        runner: of the league's world, where it is tried whether they can act.
        players: a name and a source each; without a name they are called as their source is, with a number if that is
            taken.
        note: for people.

    Returns their names.

    Raises:
        ConfigError: one line: no such file, one that is in the league already or cannot act in its world, or a name
            that is taken or cannot be a file's.
    """
    copies: list[Path] = []
    with league.changing():
        try:
            return [_add_candidate(league, runner, name, source, note, copies) for name, source in players]
        except ConfigError:
            for copy in copies:
                copy.unlink(missing_ok=True)
            raise


def _add_candidate(
    league: League, runner: GameRunner, wanted: str | None, source: Source, note: str | None, copies: list[Path]
) -> str:
    text, options = read_source(source)
    own = [RANDOM, *runner.sides.scripted]
    if text in own:
        raise ConfigError(
            f"players: {text!r} comes with the world and is no candidate; pool.players=[{text}] lets candidates meet it"
        )
    check_source(source, runner.sample)
    kind, path = parse(with_kind(text))
    file = checkpoint_file(Path(path), options.get("which", "latest")) if kind == "rlstack" else Path(path)
    if not file.is_file():
        raise ConfigError(f"players: {text!r} is no file; a candidate is a run, a checkpoint, or kind:path of a file")
    identified = identity(file)
    if (known := league.member_of(identified)) is not None:
        raise ConfigError(f"players: {file} is in this league already, as {known.name!r}")
    taken = [*league.members, SELF, *own]
    name = free_name(_checked(name_of(source)), taken) if wanted is None else _checked(wanted)
    if name in taken:
        raise ConfigError(f"players: the name {name!r} is taken in this league, give {source!r} another")
    plain = source if isinstance(source, str) else dict(source)
    meta = {"frames": None, "agent": kind, "note": note}
    member = LeagueMember(name, plain, _now(), "candidate", identified, meta=meta)
    if kind == "rlstack":
        member = replace(member, file=f"{PLAYERS}/{name}.pt")
        copies.append(league.folder / PLAYERS / f"{name}.pt")
        meta |= _copy(file, copies[-1])
    runner.add(member.played_from(league.folder), name)
    league.admit(member)
    return name


def _checked(name: str) -> str:
    """The name, if a file can be called so."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"players: {name!r} is no name for a candidate; letters, digits, _ - and . are allowed")
    return name


def _copy(file: Path, copy: Path) -> dict[str, Any]:
    """Writes what plays of a checkpoint; returns what is known of it."""
    try:
        state = read_agent(file)
        config = {**state["config"], "env": without_opponents(state["config"]["env"])}
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(copy, {"frames": state["frames"], "agent": state["agent"], "config": config}, state["frames"])
    except (CheckpointError, OSError) as error:
        raise ConfigError(f"players: {error}") from None
    return {"frames": state["frames"], "agent": config["agent"]["name"]}


def identity(file: Path) -> str:
    """``stem:size:mtime`` of a file: the same for the same file and copies that kept their time (in ns)."""
    try:
        facts = file.stat()
    except OSError as error:
        raise ConfigError(f"players: {file} cannot be read ({error.strerror})") from None
    return f"{file.stem}:{facts.st_size}:{facts.st_mtime_ns}"


def _now() -> str:
    """The time, UTC, as ISO 8601 writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# -- reading and locking -------------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Inside there is one process at a time; the system lets the next one in when a process ends, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / _LOCK).open("a")
    except OSError as error:
        raise ConfigError(f"folder: {folder} cannot be written to ({error.strerror})") from None
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def signature(env: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an ``env`` group that decide who wins: without those of training alone, and without those that
    the world sets itself where it judges (``evaluation_options``)."""
    try:
        judging = envs.world_hooks(env["name"]).evaluation_options
    except (KeyError, ValueError):  # whoever builds the world tells
        judging = {}
    return {key: value for key, value in env.items() if key not in OF_TRAINING and key not in judging}


def _content(path: Path) -> dict[str, Any]:
    """The content of a league's file, of a version that can be read."""
    if not path.exists():
        raise ConfigError(f"folder: {path.parent} holds no league ({FILE}); 'init' or 'run' begins one")
    content = read_json_object(path)
    version = content.get("schema_version")
    if version not in READABLE:
        versions = " and ".join(map(str, READABLE))
        raise ConfigError(f"{path}: schema_version {version}, this program reads versions {versions}")
    return content
