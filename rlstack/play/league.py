"""A league on disk: its players, games and ratings in one readable file, its candidates, and runs that train in it."""

from __future__ import annotations

import fcntl
import hashlib
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch

from rlstack import envs
from rlstack.agents.legacy import parse
from rlstack.config import ConfigError, Interval, build, convert
from rlstack.config.allowed import check_named, links_in, sign
from rlstack.config.errors import writing
from rlstack.config.options import Count
from rlstack.envs.foundation.files import open_to_append, write_json
from rlstack.envs.foundation.work import working
from rlstack.evaluation.evaluator import OURS
from rlstack.files.safe_load import read_json_object
from rlstack.runs.checkpoint import CheckpointError, write_checkpoint
from rlstack.runs.loading import checkpoint_file, read_agent
from rlstack.runs.manifest import check, sealed
from rlstack.runs.run_directory import CONFIG, HUB, PREFIX, RunDirectory
from rlstack.runs.worlds import world_options
from rlstack.training.config import RESUMABLE
from rlstack.training.environment import utc_now

from .games import GameResult, Schedule, WinLossRecord
from .matches import BestGames, GameRunner
from .players import RANDOM, SELF, Source, check_source, free_name, name_of, read_source, with_kind
from .pool import Standings, make_sampler
from .ratings import Ratings, ratings_from
from .register import OPTION, without_opponents

FILE = "league.json"
PLAYERS = "players"
"""Name of the folder with copies of the candidates, within the league's."""
SCHEMA_VERSION = 2
"""Version 2 added candidates and commanders; in a file of version 1 every member is a player."""
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
    """

    def __init__(self, folder: Path, env: Mapping[str, Any], ratings: Ratings) -> None:
        self.folder, self.env, self.ratings = Path(folder), dict(env), ratings
        self.members: dict[str, LeagueMember] = {}
        self.games: list[GameResult] = []
        self.rounds = 0

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
        if not path.exists():
            raise ConfigError(f"folder: {folder} holds no league ({FILE}); 'init' or 'run' begins one")
        check(path)
        content = read_json_object(path)
        if (version := content.get("schema_version")) not in (1, SCHEMA_VERSION):
            raise ConfigError(f"{path}: schema_version {version}, this program reads versions 1 and {SCHEMA_VERSION}")
        try:
            league = cls(Path(folder), content["env"], ratings_from(content["ratings"]))
            for index, entry in enumerate(content["entries"]):
                member = build(LeagueMember, entry, f"entries[{index}]")
                league.members[member.name] = member
            league.games = [_game(row, f"games[{index}]") for index, row in enumerate(content["games"])]
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
                self.ratings = fresh.ratings
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
        member = self.members[name]
        if member.file is None:
            return member.source
        copy = str(self.folder / member.file)
        if isinstance(member.source, str):
            return copy
        # The copy fixes which of a run's checkpoints it is; the other options still apply.
        return {"player": copy, "explore": member.source.get("explore", False)}

    def between(self, first: str, second: str) -> int:
        """Returns the number of games between two players."""
        return sum({game.first, game.second} == {first, second} for game in self.games)

    def ahead(self, first: str, second: str) -> int:
        """Returns how many games more the first of two players has played on the first side than the second."""
        return sum((game[:2] == (first, second)) - (game[:2] == (second, first)) for game in self.games)

    def rate(self, games: Sequence[GameResult]) -> None:
        """Adds games as one rating period."""
        self.ratings.record([game.scored for game in games])
        self.games += games

    def play_round(
        self, runner: GameRunner, schedule: Schedule, seed: int, best: BestGames | None = None
    ) -> Sequence[GameResult]:
        """Plays the games of a schedule, rates them as one period, and saves.

        An interrupted round leaves no games: those that have ended are mostly short ones, which would count too often.
        If another process has played the round in the meantime, the result is empty and nothing is counted twice.
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
    own = [RANDOM, *runner.sides.scripted]
    names = []
    with ExitStack() as undo, league.changing():
        for wanted, source in players:
            text, options = read_source(source)
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
            league.admit(member)
            runner.add(league.source(name), name)
            names.append(name)
        undo.pop_all()
    return names


def identity(file: Path) -> str:
    """Returns ``stem:size:mtime`` of a file (time in ns), which is equal for copies that keep their time."""
    facts = file.stat()
    return f"{file.stem}:{facts.st_size}:{facts.st_mtime_ns}"


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


# -- the pool, and evaluations of candidates ---------------------------------------------------------------------------


SEED_STEP = 9973
"""Difference between the seeds of two consecutive matches of a candidate."""
_ADJECTIVES = (
    *("Amber", "Ashen", "Bold", "Brazen", "Bright", "Calm", "Cobalt", "Crimson", "Daring", "Deft", "Fierce", "Frosty"),
    *("Gallant", "Gilded", "Grim", "Hidden", "Iron", "Ivory", "Keen", "Lone", "Lucid", "Noble", "Patient", "Quick"),
    *("Quiet", "Rapid", "Restless", "Scarlet", "Silent", "Steady", "Stern", "Sudden", "Tireless", "Velvet", "Wary"),
    "Wily",
)
_NOUNS = (
    *("Anchor", "Anvil", "Badger", "Bastion", "Beacon", "Bison", "Comet", "Condor", "Cougar", "Crane", "Falcon"),
    *("Glacier", "Hammer", "Harrier", "Heron", "Kestrel", "Lantern", "Lynx", "Mantis", "Marten", "Meteor", "Osprey"),
    *("Otter", "Panther", "Pike", "Raven", "Sabre", "Sentinel", "Spire", "Stag", "Sturgeon", "Tempest", "Tiger"),
    *("Viper", "Wolf", "Wren"),
)
_DIGITS = 4


@dataclass
class PoolConfig:
    """The members of a league that candidates, and learners in training, play against.

    Attributes:
        commanders: number of best commanders by conservative rating; a candidate that ranks within them is promoted.
        candidates: number of newest candidates.
        sampler: how opponents are drawn: a name of :data:`~rlstack.play.pool.SAMPLERS`, or a mapping with its options.
        players: opponents that are always included: the world's players, or any source.
    """

    commanders: Count = 20
    candidates: Annotated[int, Interval(low=0)] = 5
    sampler: str | dict[str, Any] = "uniform"
    players: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        make_sampler(self.sampler)


def pool(league: League, config: PoolConfig, but: str | None = None) -> list[str]:
    """Returns the names of the pool's members except ``but``: the best commanders, then the newest candidates."""
    best = sorted(league.of_kind("commander"), key=lambda name: -league.ratings.conservative(name))
    newest = league.of_kind("candidate")[::-1]
    chosen = [name for name in best if name != but][: config.commanders]
    return chosen + [name for name in newest if name != but][: config.candidates]


def join_fixed(league: League, config: PoolConfig) -> list[str]:
    """Adds the players that are always included to the league, if they are not members; returns their names."""
    names = []
    for source in config.players:
        name = source if isinstance(source, str) and source in league.members else name_of(source)
        if name not in league.members:
            league.join(name, source)
        names.append(name)
    return list(dict.fromkeys(names))


def weights(league: League, config: PoolConfig, name: str, rivals: Sequence[str]) -> torch.Tensor:
    """Returns the probabilities of a player to meet each rival in a match, ``[n]``, which sum to 1.

    The share of games won counts one game more than were played, with the score that the ratings predict.
    """
    ratings = league.ratings
    rows = []
    for rival in rivals:
        record = WinLossRecord.of(name, league.games, rival)
        won = record.wins + 0.5 * record.draws + ratings.expected(name, rival)
        frames = league.members[rival].meta.get("frames") or 0
        rows.append((ratings.rating(rival), frames, won / (record.games + 1)))
    columns = torch.tensor(rows, dtype=torch.float64)
    chances = make_sampler(config.sampler)(Standings(columns[:, 0], ratings.rating(name), columns[:, 1], columns[:, 2]))
    return chances / chances.sum()


def matches(
    league: League, config: PoolConfig, name: str, rivals: Sequence[str], numbers: Sequence[int], seed: int
) -> Schedule:
    """Draws a player's opponents in the matches ``numbers``; in those with even numbers it drives the first side."""
    chances = weights(league, config, name, rivals).numpy()
    schedule = []
    for number in numbers:
        rival = rivals[int(np.random.default_rng(seed + SEED_STEP * number).choice(len(rivals), p=chances))]
        schedule.append((name, rival) if number % 2 == 0 else (rival, name))
    return schedule


# -- evaluation ----------------------------------------------------------------------------------------------------


def evaluate(
    league: League,
    runner: GameRunner,
    name: str,
    config: PoolConfig,
    fixed: Sequence[str] = (),
    games: int = 10,
    seed: int = 0,
) -> str | None:
    """Plays a member's matches against the pool, rates them as one period, and promotes it if it is good enough.

    If the pool is empty it meets the player ``random``, so that nobody is rated without games.

    Args:
        fixed: further members to play against.
        games: number of matches; sides are swapped in every other one.
        seed: match i, counted over all evaluations of the member, has the seed ``seed + 9973 i``, which draws the
            opponent and the worlds. Matches that are played at once use the seed of the first for their worlds.

    Returns a line about the result; None if another process has evaluated the member in the meantime, then these games
    do not count.

    Raises:
        ConfigError: a player's file has disappeared, or the league's file has become unreadable.
    """
    start = league.members[name].matches
    rivals = list(dict.fromkeys([*pool(league, config, name), *(other for other in fixed if other != name)]))
    if not rivals:
        with league.changing():
            league.join(RANDOM, RANDOM)
        rivals = [RANDOM]
    schedule = matches(league, config, name, rivals, range(start, start + games), seed)
    for player in (name, *rivals):
        if player not in runner.players and any(player in pair for pair in schedule):
            runner.add(league.source(player), player)
    played: list[GameResult] = []
    with working("playing", "games", games):
        for first in range(0, games, runner.num_worlds):  # at most as many at once as the runner has worlds
            turn = schedule[first : first + runner.num_worlds]
            played += runner.play(turn, seed + SEED_STEP * (start + first))
    with league.changing():
        member = league.members[name]
        if member.matches != start:
            return None
        before = league.ratings.rating(name)
        league.rate(played)
        league.admit(replace(member, matches=start + len(played)))
        after = promote(league, name, config)
        result = f"{WinLossRecord.of(name, played)} (won-drawn-lost) against a pool of {len(rivals)}"
        line = f"{name}: {result}, rating {before:.0f} -> {league.ratings.rating(name):.0f}"
    return line if after.kind == member.kind else f"{line}; now commander {after.commander_name}"


def to_evaluate(league: League, players: Sequence[Any] | Mapping[str, Any] | None) -> list[str]:
    """Returns the names of members to evaluate; None means the candidates that have not been evaluated.

    Raises:
        ConfigError: a name is not that of a candidate or commander of the league.
    """
    if players is None:
        return [name for name in league.of_kind("candidate") if not league.members[name].matches]
    for name in players:
        member = league.members.get(name) if isinstance(name, str) else None
        if member is None:
            known = ", ".join(league.members) or "nobody"
            raise ConfigError(f"players: {name!r} is not in the league in {league.folder}, which has {known}")
        if member.kind == "player":
            raise ConfigError(f"players: {name!r} is not a candidate; 'league add' makes a file a candidate")
    return list(dict.fromkeys(players))


def evaluate_all(
    league: League, runner: GameRunner, names: Sequence[str], config: PoolConfig, games: int, seed: int
) -> None:
    """Evaluates members one after the other and prints the results; first adds the players that are always included."""
    for source in config.players:
        if not (isinstance(source, str) and source in league.members) and name_of(source) not in runner.players:
            runner.add(source)
    with league.changing():
        fixed = join_fixed(league, config)
    for name in names:
        evaluation = evaluate(league, runner, name, config, fixed, games, seed)
        print(evaluation or f"{name}: another process has evaluated it meanwhile, and that result counts")


# -- promotion -----------------------------------------------------------------------------------------------------


def promote(league: League, name: str, config: PoolConfig) -> LeagueMember:
    """Promotes a candidate to commander if it ranks within the best; returns the updated member.

    It ranks behind commanders of the same conservative rating; without commanders any candidate is promoted.
    """
    member, worth = league.members[name], league.ratings.conservative
    commanders = league.of_kind("commander")
    ahead = sum(worth(other) >= worth(name) for other in commanders)
    if member.kind != "candidate" or ahead >= config.commanders:
        return member
    taken = {league.members[other].commander_name for other in commanders}
    called = commander_name(member.id or name, taken)
    league.admit(replace(member, kind="commander", commander_name=called))
    return league.members[name]


def commander_name(of: str, taken: Collection[str | None] = ()) -> str:
    """Returns ``adjective noun #hex`` from a hash of a text, with more hex digits if the name is taken."""
    digest = hashlib.sha256(of.encode()).hexdigest()
    adjective = _ADJECTIVES[int(digest[:8], 16) % len(_ADJECTIVES)]
    noun = _NOUNS[int(digest[8:16], 16) % len(_NOUNS)]
    for digits in range(_DIGITS, 49):
        name = f"{adjective} {noun} #{digest[16 : 16 + digits]}"
        if name not in taken:
            return name
    raise ConfigError(f"players: {of!r} is a commander already")


# -- training ----------------------------------------------------------------------------------------------------------


FOLDER = "runs"
"""Name of the folder of a league's runs."""
USUAL = {"refresh": 20, "loaded": 20}
"""Defaults of ``env.opponents`` in a league, where they differ from the usual ones."""


def training_world(
    league: League, config: PoolConfig, env: Mapping[str, Any], given: Collection[str]
) -> dict[str, Any]:
    """Returns the ``env`` group to train with: the league's world, with the pool as opponents.

    Args:
        config: members of the pool.
        env: the composed group, from which options that do not change the games are taken, such as ``num_worlds``.
        given: names of the options that the user gave.

    Raises:
        ConfigError: a given option is unknown, or makes the world another one than the league's.
    """
    signed = signature(league.env)
    free = {key: value for key, value in env.items() if key in OF_TRAINING or key in given or key not in signed}
    world = {**league.env, **free, "name": env.get("name", league.env["name"])}
    if world["name"] == league.env["name"]:
        world_options(without_opponents(world))
    league.check_world({key: value for key, value in world.items() if key in signed or key in given})
    # The option ``opponents``: the pool beside the given ones; without either, a random player
    given = world.get(OPTION) or {}
    players = [league.source(name) for name in pool(league, config)]
    for source in [*config.players, *(given.get("players") or [])]:
        known = isinstance(source, str) and source in league.members
        players.append(league.source(str(source)) if known else source)
    different = [source for place, source in enumerate(players) if source not in players[:place]]
    return {**world, OPTION: {"sampler": config.sampler, **USUAL, **given, "players": different or ["random"]}}


class OpenRun:
    """The folder of a run, locked against other processes while this object is open.

    It is a new folder, one that the user named, or that of an unfinished run of the same configuration.

    Args:
        league: the league that the run belongs to.
        plain: configuration of the run.
        name: name of a new run.
        submit: whether a trained run counts as finished only after its evaluation.

    Raises:
        ConfigError: the user named a folder with another run, or one that another process trains.
    """

    def __init__(self, league: League, plain: Mapping[str, Any], name: str, submit: bool) -> None:
        folder, named = league.folder / FOLDER, plain.get("run_dir")
        with locked(folder):
            runs = [Path(named)] if named else sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
            begun = [path for path in runs if _goes_on(league, path, plain, submit)]
            if named and not begun and (runs[0] / CONFIG).exists():
                raise ConfigError(f"run_dir: {named} already holds another run, or one at its end; choose another")
            first = folder / f"{name}_{time.strftime('%Y%m%d-%H%M%S')}"
            numbered = chain([first], (first.with_name(f"{first.name}-{number}") for number in count(2)))
            fresh = runs if named else (path for path in numbered if not path.exists())
            for self.path in chain(begun, fresh):  # the first that no other process has locked
                self._stream = open_to_append(folder / f".{self.path.name}.lock")
                try:
                    fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with this process
                except OSError:
                    self._stream.close()
                else:
                    return
            raise ConfigError(f"run_dir: another process trains {self.path}; choose another")

    @property
    def begun(self) -> bool:
        """Returns whether a run has begun in the folder."""
        return (self.path / CONFIG).is_file()

    @property
    def complete(self) -> bool:
        """Returns whether the run has been trained to its end."""
        return self.begun and _complete(RunDirectory(self.path))

    def configuration(self, plain: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the configuration to train with: that of a begun run is stored, except for keys that may change."""
        if not self.begun:
            return {**plain, "run_dir": str(self.path)}
        changes = {key: value for key, value in plain.items() if key in RESUMABLE}
        return {**RunDirectory(self.path).read_config(), **changes, "resume": str(self.path)}

    def close(self) -> None:
        """Releases the folder."""
        self._stream.close()


def _goes_on(league: League, path: Path, plain: Mapping[str, Any], submit: bool) -> bool:
    run = RunDirectory(path)
    try:
        same = _essence(run.read_config()) == _essence(plain)
    except (ConfigError, KeyError, TypeError, ValueError):  # not a run that this one could continue
        return False
    if not same or not _complete(run):
        return same
    file = run.checkpoints.latest()
    member = None if file is None else league.member_of(identity(file))
    return submit and (member is None or (member.kind == "candidate" and not member.matches))


def _complete(run: RunDirectory) -> bool:
    config, latest = run.read_config(), run.checkpoints.latest()
    if latest is None:
        return False
    return bool(config["imitation"]["only"]) or int(latest.stem.rpartition("_")[2]) >= config["total_frames"]


def _essence(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a configuration that distinguishes runs, without the members of the league's pool."""
    env, agent = dict(plain["env"]), {**plain["agent"], "precision": None}  # auto decides it by the machine
    env[OPTION] = {key: value for key, value in (env.get(OPTION) or {}).items() if key != "players"}
    imitation = {key: value for key, value in plain["imitation"].items() if key != "only"}
    kept = {key: value for key, value in plain.items() if key not in (*RESUMABLE, "run_dir")}
    return {**kept, "agent": agent, "env": env, "imitation": imitation}
