"""Lets players meet: ``rlstack league run|rank|play`` (tournaments), ``init|add|list|evaluate|train``
(candidates and commanders); see ``conf/league.yaml``, and ``conf/league_train.yaml`` of ``train``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, words_as
from rlstack.config import ConfigError, Interval, build, to_plain
from rlstack.config.errors import missing_option
from rlstack.config.groups import option_files
from rlstack.config.overrides import given_keys
from rlstack.envs.foundation.work import working

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    from rlstack.play.league import League, PoolConfig
    from rlstack.play.matches import BestGames, GameRunner
    from rlstack.play.players import Source

TRAIN = "train"
FOLDER = "runs/league"


@dataclass
class RatingsConfig:
    """A rating system and its constructor's arguments."""

    system: str | None = None
    options: dict[str, Any] | None = None


@dataclass
class LeagueConfig:
    """The keys of ``conf/league.yaml``, which says what each does."""

    command: str | None
    folder: str
    players: list[Any] | dict[str, Any] | None
    mode: Literal["round_robin", "challenger"]
    games: Annotated[int, Interval(low=1)] | None
    round: Annotated[int, Interval(low=1)]
    ratings: RatingsConfig
    num_worlds: Annotated[int, Interval(low=1)]
    seed: Annotated[int, Interval(low=0, high=2**32 - 1)]
    device: str
    plots: bool
    save: Literal["best"] | None = None
    keep: Annotated[int, Interval(low=1)] = 3
    video: bool = True
    replay: str | None = None
    output: str | None = None
    env: dict[str, Any] | None = None
    pool: dict[str, Any] = field(default_factory=dict)
    note: str | None = None
    allow: list[str] = field(default_factory=list)

    @property
    def games_wanted(self) -> int:
        """Returns the number of games of each pairing, or of a candidate."""
        return self.games or (10 if self.command == "evaluate" else 100)


@dataclass
class LeagueTrainConfig:
    """The keys that ``conf/league_train.yaml`` adds to a run's configuration."""

    folder: str
    submit: bool
    games: Annotated[int, Interval(low=1)]
    note: str | None = None
    pool: dict[str, Any] = field(default_factory=dict)


@as_module
def league(*words: str, quiet: bool = False, **keys: Any) -> League | None:
    """Plays, rates and trains players as the command ``rlstack league`` does.

    Args:
        words: arguments as on the command line, such as ``"run"``, ``"play"`` or ``"train"``.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/league.yaml``, or ``conf/league_train.yaml``.

    Returns the league in the folder afterwards, or None if there is none.

    Example:
        >>> rlstack.league("run", players=["runs/<run>", "random"], games=20).ratings
    """
    if keys.get("command") == TRAIN or _trains(words):
        return _train_command.call(train, words, keys, quiet)
    return _command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> League | None:
    """Runs the command."""
    config = build(LeagueConfig, cfg)
    if config.command not in COMMANDS:
        raise ConfigError(missing_option("command", str(config.command), [*COMMANDS, TRAIN]))
    given = given_keys()
    for key in sorted(given):
        users = [name for name, keys in _USED.items() if key in keys]
        if users and config.command not in users:
            raise ConfigError(f"{key}: {config.command!r} does not use it, only {', '.join(users)}; leave it out")
    needed = {"keep": "save", "video": "save", "output": "replay"}
    for key in sorted(given & needed.keys()):
        if getattr(config, needed[key]) is None:
            raise ConfigError(f"{key}: has no effect without {needed[key]}=; give both or neither")
    COMMANDS[config.command](config)
    return _league(config.folder)


def _league(folder: str) -> League | None:
    from rlstack.play.league import FILE, League

    return League.open(folder) if (Path(folder) / FILE).is_file() else None


# -- candidates and commanders -------------------------------------------------------------------------------------


def init(config: LeagueConfig) -> None:
    """Creates an empty league of a world, in which the world's own players have fixed ratings."""
    from rlstack.play.league import League

    if config.env is None:
        raise ConfigError("env: missing; name the world to play in, such as env=rocket")
    runner = _runner(config.env, config.device)
    ratings = runner.ratings(config.ratings.system or "glicko2", config.ratings.options)
    league = League.create(config.folder, config.env, ratings)
    print(f"a league of {runner.world}, {ratings.kind}, in {league.folder}")


def add(config: LeagueConfig) -> None:
    """Adds files as candidates."""
    from rlstack.play.league import League, add_candidates

    league = League.open(config.folder)
    given = config.players or []
    if not given:
        raise ConfigError("players: missing; say who joins, as players=[runs/<run>] or {<name>: runs/<run>}")
    players = list(given.items()) if isinstance(given, dict) else [(None, source) for source in given]
    for name in add_candidates(league, _runner(league.env, config.device), players, config.note):
        print(f"{name} joined as candidate {league.members[name].id}")


def show(config: LeagueConfig) -> None:
    """Shows the members of a league."""
    from rlstack.play.league import League
    from rlstack.play.results import show_members

    show_members(League.open(config.folder))


def evaluate(config: LeagueConfig) -> None:
    """Plays the matches of candidates, which become commanders if they are good enough."""
    from rlstack.play.league import League, PoolConfig, evaluate_all, to_evaluate
    from rlstack.play.results import show_members

    league, rules = League.open(config.folder), build(PoolConfig, config.pool, "pool")
    names = to_evaluate(league, config.players)
    if not names:
        print("no candidate is waiting to be evaluated; players=[<name>] evaluates one again")
    else:
        runner = _runner(league.env, config.device, num_worlds=config.num_worlds)
        evaluate_all(league, runner, names, rules, config.games_wanted, config.seed)
    show_members(league)


# -- tournaments and games beside a league -------------------------------------------------------------------------


def run_league(config: LeagueConfig) -> None:
    """Plays the missing games of a tournament, round by round, and shows the ranking."""
    from rlstack import envs
    from rlstack.play.games import in_turns, pairing, pairs
    from rlstack.play.league import FILE, League
    from rlstack.play.players import named
    from rlstack.play.results import show_ranking

    players = named(config.players)
    if (Path(config.folder) / FILE).is_file():
        league = League.open(config.folder)
        if config.env is not None:
            league.check_world(config.env)
        runner = _runner(league.env, config.device, num_worlds=config.num_worlds)
    else:
        env = config.env or _env_of(players)
        runner = _runner(env, config.device, num_worlds=config.num_worlds)
        replaced = envs.world_hooks(runner.world).evaluation_options
        for key in sorted(given_keys("env") & replaced.keys()):
            raise ConfigError(f"env.{key}: a league plays with {replaced[key]}, as evaluations do; leave it out")
        ratings = runner.ratings(config.ratings.system or "elo", config.ratings.options)
        league = League(Path(config.folder), env, ratings)
    names = list(players or league.members)
    for name in names:
        runner.add(league.source(name) if name in league.members else players[name], name)
    met = pairs(names, config.mode)
    with league.changing():
        for name, source in players.items():
            league.join(name, source)

    def missing(pair: tuple[str, str]) -> int:
        return max(config.games_wanted - league.between(*pair), 0)

    best, begun = _best(config, runner), len(league.games)
    replays = league.folder / "replays" / f"from_game_{begun + 1}"  # replays of earlier calls stay
    with working("playing", "games", sum(map(missing, met))):
        while schedule := in_turns(
            [pairing(*pair, min(missing(pair), config.round), league.ahead(*pair)) for pair in met]
        ):
            league.play_round(runner, schedule, config.seed, best)
            if best is not None:
                best.save(replays, video=False)  # the games of a round are never played again
    if best is not None and len(league.games) == begun:
        print("save: no game was missing, so none was recorded")
    for path in best.save(replays, config.video) if best is not None else []:
        print(f"wrote {path}")
    show_ranking(league, config.plots)


def rank(config: LeagueConfig) -> None:
    """Shows the ranking of a league and writes its tables into the league's folder."""
    from rlstack.play.league import League
    from rlstack.play.results import show_ranking

    show_ranking(League.open(config.folder), config.plots)


def play(config: LeagueConfig) -> None:
    """Plays the first player against each of the others and rates it, or films a replay; changes no league."""
    from rlstack.evaluation.evaluator import as_evaluated
    from rlstack.play.matches import play_back
    from rlstack.play.players import named
    from rlstack.play.results import challenge

    if config.replay is not None:
        print(f"wrote {play_back(Path(config.replay), None if config.output is None else Path(config.output))}")
        return
    players = named(config.players)
    if len(players) < 2:
        raise ConfigError("players: play needs at least two, such as players=[runs/<run>,rule]")
    env, kept = config.env or _env_of(players), given_keys("env")
    runner = _runner(env, config.device, num_worlds=config.num_worlds, kept=kept)
    for name, source in players.items():
        runner.add(source, name)
    first, *others = players
    ratings = runner.ratings(config.ratings.system or "elo", config.ratings.options)
    best = _best(config, runner, first)
    games, seed, folder = config.games_wanted, config.seed, Path(config.folder) / "play" / first
    played = as_evaluated(runner.world, env, kept)
    written = challenge(runner, first, others, games, seed, ratings, folder, 0, best, config.plots, env=played)
    for path in written + (best.save(folder / "replays", config.video) if best is not None else []):
        print(f"wrote {path}")


def _best(config: LeagueConfig, runner: GameRunner, of: str | None = None) -> BestGames | None:
    from rlstack.play.matches import BestGames

    return None if config.save is None else BestGames(runner.world, config.keep, of)


def _runner(env: dict[str, Any], device: str, **options: Any) -> GameRunner:
    from rlstack.play.matches import GameRunner
    from rlstack.play.register import without_opponents
    from rlstack.runs.worlds import choose_device, world_options

    if not env.get("name"):
        raise ConfigError("env.name: missing; name the world to play in")
    world = world_options(without_opponents(env))
    return GameRunner(env["name"], world, device=choose_device(device), **options)


def _env_of(players: dict[str, Source]) -> dict[str, Any]:
    """Returns the world of the first player that is a run."""
    from rlstack.play.players import read_source
    from rlstack.play.register import without_opponents
    from rlstack.runs.loading import load
    from rlstack.runs.run_directory import HUB, PREFIX

    for source in players.values():
        text, _ = read_source(source)
        if text.startswith((PREFIX, HUB)) or Path(text).exists():
            return without_opponents(load(text).config["env"])
    raise ConfigError("env: missing, since no player names a world: env=rocket")


_GAMES = {"games", "num_worlds", "seed"}
_USED = {
    "run": {"env", "players", "mode", "round", "ratings", "plots", "save", "keep", "video", *_GAMES},
    "rank": {"plots"},
    "play": {"env", "players", "ratings", "plots", "save", "keep", "video", "replay", "output", *_GAMES},
    "init": {"env", "ratings"},
    "add": {"players", "note"},
    "evaluate": {"players", "pool", *_GAMES},
}
"""The keys that only some commands use."""

COMMANDS: dict[str, Callable[[LeagueConfig], None]] = {
    "run": run_league,
    "rank": rank,
    "play": play,
    "init": init,
    "add": add,
    "list": show,
    "evaluate": evaluate,
}

# -- training ------------------------------------------------------------------------------------------------------


def train_arguments(given: list[str]) -> list[str]:
    """Replaces the word ``train`` by the league's world, if that has a yaml, so that its recipes are found."""
    world: list[str] = []
    if not any(entry.startswith("env=") for entry in given):
        folder = next((entry.partition("=")[2] for entry in reversed(given) if entry.startswith("folder=")), FOLDER)
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):  # reported later
            name = json.loads((Path(folder) / "league.json").read_text(encoding="utf-8"))["env"]["name"]
            world = [f"env={name}"] if name in option_files("env") else []
    result: list[str] = []
    for entry in given:
        result += world if entry in (TRAIN, f"command={TRAIN}") else [entry]
    return result


def train(cfg: DictConfig) -> League | None:
    """Trains a new run, or continues an unfinished one; then adds it to the league and evaluates it."""
    plain = to_plain(cfg)
    ours = build(LeagueTrainConfig, {key: plain.pop(key) for key in LeagueTrainConfig.__dataclass_fields__})
    if plain["resume"] is not None:
        advice = "'league train' finds the run to continue by itself; rlstack train resume=<run> resumes one"
        raise ConfigError(f"resume: {advice}")

    from rlstack.play.league import League, OpenRun, PoolConfig, training_world
    from rlstack.play.players import name_of
    from rlstack.training import run as training

    league, rules = League.open(ours.folder), build(PoolConfig, ours.pool, "pool")
    plain["env"] = training_world(league, rules, plain.get("env") or {}, given_keys("env"))
    plain = training.debugged(plain)
    name = training.run_name(plain["agent"], plain["env"], plain["seed"])
    with closing(OpenRun(league, plain, name, ours.submit)) as opened:
        if not opened.complete:
            configuration = opened.configuration(plain)
            met = ", ".join(map(name_of, configuration["env"]["opponents"]["players"]))
            print(f"{opened.path}: {'continues' if opened.begun else 'begins'} against {met}")
            training.train(configuration)
        if ours.submit:
            submit(League.open(ours.folder), opened.path, ours, rules, plain)
    return _league(ours.folder)


def submit(league: League, run: Path, ours: LeagueTrainConfig, rules: PoolConfig, plain: dict[str, Any]) -> None:
    """Adds a complete run as a candidate, unless it is one, and evaluates it."""
    from rlstack.play.league import add_candidates, evaluate_all, identity
    from rlstack.play.results import show_members
    from rlstack.runs.loading import checkpoint_file

    runner = _runner(league.env, plain["device"])
    known = league.member_of(identity(checkpoint_file(run, "latest")))
    name = known.name if known is not None else add_candidates(league, runner, [(None, str(run))], ours.note)[0]
    evaluate_all(league, runner, [name], rules, ours.games, plain["seed"])
    show_members(league)


_command = HydraCommand("league", words_as("command"))
_main = _command.line(run)
_train_command = HydraCommand("league_train", train_arguments)
_train_main = _train_command.line(train)


def main() -> Any:
    """Runs the command line; ``train`` composes another configuration."""
    return _train_main() if _trains(sys.argv[1:]) else _main()


def _trains(words: Sequence[str]) -> bool:
    return TRAIN in words or f"command={TRAIN}" in words


if __name__ == "__main__":
    main()
