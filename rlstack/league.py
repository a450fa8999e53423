"""Lets players meet: ``python -m rlstack.league run|rank|play`` (tournaments), ``init|add|list|evaluate|train``
(candidates and commanders); see ``conf/league.yaml``, and ``conf/league_train.yaml`` of ``train``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from omegaconf import DictConfig

from envs.working import working
from rlstack.command import hydra_command
from rlstack.config import ConfigError, Interval, build
from rlstack.config.errors import missing_option

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    from rlstack.play.league import League
    from rlstack.play.matches import Arena
    from rlstack.play.players import Source
    from rlstack.play.replays import BestGames

TRAIN = "train"
COMMANDS = ("run", "rank", "play", "init", "add", "list", "evaluate", TRAIN)
_GAMES = {"evaluate": 10}
_GAMES_OF_OTHERS = 100


@dataclass
class RatingsConfig:
    """A rating system and its constructor's arguments."""

    system: str | None = None
    options: dict[str, Any] | None = None


@dataclass
class LeagueConfig:
    """See ``conf/league.yaml`` for what each key does."""

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
        """How many games of every pairing, or of a candidate."""
        return self.games or _GAMES.get(str(self.command), _GAMES_OF_OTHERS)


def positional(arguments: list[str]) -> list[str]:
    """The word ``run`` as ``command=run``, where it stands first or behind Hydra's options; so is any first word."""
    for index, entry in enumerate(arguments):
        if entry in COMMANDS:
            return [*arguments[:index], f"command={entry}", *arguments[index + 1 :]]
    if arguments and arguments[0].isalpha():
        return [f"command={arguments[0]}", *arguments[1:]]
    return arguments


def run(cfg: DictConfig) -> None:
    """Does what the command says."""
    config = build(LeagueConfig, cfg)
    if config.command is None:
        raise ConfigError(f"command: missing, one of {', '.join(COMMANDS)}")
    if config.command not in COMMANDS:
        raise ConfigError(missing_option("command", config.command, COMMANDS))
    if config.command == TRAIN:  # the command line itself goes elsewhere, see `main`
        raise ConfigError("command: 'train' has a configuration of its own, conf/league_train.yaml")
    dict(zip(COMMANDS, (run_league, rank, play, init, add, show, evaluate)))[config.command](config)


def init(config: LeagueConfig) -> None:
    """An empty league of a world, in which the world's own players have the ratings that they have."""
    from rlstack.play.challenge import anchored_ratings
    from rlstack.play.league import League

    if config.env is None:
        raise ConfigError("env: missing, which world to play in: env=rocket")
    arena = _arena(config, config.env)
    ratings = anchored_ratings(arena, config.ratings.system or "glicko2", config.ratings.options)
    league = League.create(config.folder, config.env, ratings)
    print(f"a league of {arena.world}, {ratings.kind}, in {league.folder}")


def add(config: LeagueConfig) -> None:
    """Files join as candidates."""
    from rlstack.play import candidates

    league = _open(config)
    given = config.players or []
    if not given:
        raise ConfigError("players: missing, who is to join: players=[runs/<run>], or {<name>: runs/<run>}")
    players = list(given.items()) if isinstance(given, dict) else [(None, source) for source in given]
    for name in candidates.add(league, _arena(config, league.env), players, config.note):
        print(f"{name} joined as candidate {league.members[name].id}")


def show(config: LeagueConfig) -> None:
    """Shows who is in a league."""
    from rlstack.play.ranking import show_members

    show_members(_open(config))


def evaluate(config: LeagueConfig) -> None:
    """Candidates play their matches, and become commanders if they are good enough."""
    from rlstack.play.commanders import PoolConfig
    from rlstack.play.ranking import show_members
    from rlstack.play.trials import evaluate_all, to_evaluate

    league, rules = _open(config), build(PoolConfig, config.pool, "pool")
    names = to_evaluate(league, config.players)
    if not names:
        print("no candidate waits for its evaluation; players=[<name>] evaluates one again")
    else:
        arena = _arena(config, league.env)
        evaluate_all(league, arena, names, rules, config.games_wanted, config.seed)
    show_members(league)


def run_league(config: LeagueConfig) -> None:
    """Plays what is missing of a tournament, round by round, and shows the ranking."""
    from rlstack.play.challenge import anchored_ratings
    from rlstack.play.league import FILE, League
    from rlstack.play.players import named
    from rlstack.play.ranking import show_ranking
    from rlstack.play.tournaments import challenger, round_robin

    players = named(config.players)
    if (Path(config.folder) / FILE).is_file():
        league = League.open(config.folder)
        if config.env is not None:
            league.check_world(config.env)
        arena = _arena(config, league.env)
    else:
        env = config.env or _env_of(players)
        arena = _arena(config, env)
        ratings = anchored_ratings(arena, config.ratings.system or "elo", config.ratings.options)
        league = League(Path(config.folder), env, ratings)
    names = list(players or league.members)
    for name in names:
        arena.add(league.source(name) if name in league.members else players[name], name)
    try:
        pairs = round_robin(names, 1) if config.mode == "round_robin" else challenger(names[0], names[1:], 1)
    except (ValueError, IndexError) as error:
        raise ConfigError(f"players: at least two are needed ({error})") from None
    with league.changing():
        for name, source in players.items():
            league.join(name, source)
    best = _best(config, arena)
    missing = sum(max(config.games_wanted - league.between(*pair), 0) for pair in pairs)
    with working("playing", "games", missing):
        while schedule := _missing(league, pairs, config):
            league.play_round(arena, schedule, config.seed, best)
    for path in best.save(league.folder / "replays", config.video) if best is not None else []:
        print(f"wrote {path}")
    show_ranking(league, config.plots)


def _missing(league: League, pairs: list[tuple[str, str]], config: LeagueConfig) -> list[tuple[str, str]]:
    """The games of the next round: of every pair as many as are missing, sides swapped from its last one."""
    turns: list[list[tuple[str, str]]] = []
    for first, second in pairs:
        done = league.between(first, second)
        coming = range(done, min(done + config.round, config.games_wanted))
        turns.append([(first, second) if game % 2 == 0 else (second, first) for game in coming])
    longest = max(map(len, turns), default=0)
    return [games[turn] for turn in range(longest) for games in turns if turn < len(games)]


def rank(config: LeagueConfig) -> None:
    """Shows the ranking of a league and leaves its tables beside it."""
    from rlstack.play.ranking import show_ranking

    show_ranking(_open(config), config.plots)


def play(config: LeagueConfig) -> None:
    """The first player against each of the others, and what its rating becomes; no league is changed."""
    from rlstack.play.challenge import anchored_ratings, challenge, print_report, save_report
    from rlstack.play.players import named

    if config.replay is not None:
        play_back(config)
        return
    players = named(config.players)
    if len(players) < 2:
        raise ConfigError("players: play needs two at least, such as players=[runs/<run>,rule]")
    env = config.env or _env_of(players)
    arena = _arena(config, env)
    for name, source in players.items():
        arena.add(source, name)
    first, *others = players
    ratings = anchored_ratings(arena, config.ratings.system or "elo", config.ratings.options)
    best = _best(config, arena, first)
    report = challenge(arena, first, others, config.games_wanted, config.seed, ratings, 0, best)
    folder = Path(config.folder) / "play" / first
    written = save_report(folder, report, dict(arena.sides.anchors), config.plots, env=env, seed=config.seed)
    written += best.save(folder / "replays", config.video) if best is not None else []
    print_report(report, ratings.kind)
    for path in written:
        print(f"wrote {path}")


def play_back(config: LeagueConfig) -> None:
    """Makes a film of a replay."""
    from rlstack.play import replays

    assert config.replay is not None
    video = None if config.output is None else Path(config.output)
    print(f"wrote {replays.play_back(Path(config.replay), video)}")


def _best(config: LeagueConfig, arena: Arena, of: str | None = None) -> BestGames | None:
    from rlstack.play.replays import BestGames

    return None if config.save is None else BestGames(arena.world, config.keep, of)


# -- what the commands share -------------------------------------------------------------------------------------


def _open(config: LeagueConfig) -> League:
    from rlstack.play.league import League

    return League.open(config.folder)


def _arena(config: LeagueConfig, env: dict[str, Any]) -> Arena:
    from rlstack.play.matches import Arena
    from rlstack.play.option import without
    from rlstack.runs.worlds import choose_device, world_options

    if not env.get("name"):
        raise ConfigError("env.name: missing, which world to play in")
    options = world_options(without(env))
    return Arena(env["name"], options, config.num_worlds, choose_device(config.device))


def _env_of(players: dict[str, Source]) -> dict[str, Any]:
    """The world of the first player that is a run of ours."""
    from rlstack.play.option import without
    from rlstack.play.players import read_source
    from rlstack.runs.loading import load

    for source in players.values():
        path = Path(read_source(source)[0])
        if path.exists():
            return without(load(path).config["env"])
    raise ConfigError("env: missing, none of the players brings a world: env=rocket")


_main = hydra_command("league", positional)(run)


def main(cfg: DictConfig | None = None) -> Any:
    """The command line; ``train`` composes another configuration."""
    if cfg is None and f"command={TRAIN}" in positional(sys.argv[1:]):
        from rlstack.league_train import main as train

        return train()
    return _main(cfg)


if __name__ == "__main__":
    main()
