"""Lets players meet: ``python -m rlstack.league run|rank|play``; see ``conf/league.yaml``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from omegaconf import DictConfig

from rlstack.command import hydra_command
from rlstack.config import ConfigError, Interval, build
from rlstack.config.errors import missing_option

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    from rlstack.play.league import League
    from rlstack.play.matches import Arena
    from rlstack.play.players import Source
    from rlstack.play.replays import BestGames

COMMANDS = ("run", "rank", "play")


@dataclass
class RatingsConfig:
    """A rating system and its constructor's arguments."""

    system: str = "elo"
    options: dict[str, Any] | None = None


@dataclass
class LeagueConfig:
    """See ``conf/league.yaml`` for what each key does."""

    command: str | None
    folder: str
    players: list[Any] | dict[str, Any] | None
    mode: Literal["round_robin", "challenger"]
    games: Annotated[int, Interval(low=1)]
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


def positional(arguments: list[str]) -> list[str]:
    """The word ``run`` as ``command=run``, where it stands first or behind Hydra's options."""
    for index, entry in enumerate(arguments):
        if entry in COMMANDS:
            return [*arguments[:index], f"command={entry}", *arguments[index + 1 :]]
    return arguments


def run(cfg: DictConfig) -> None:
    """Does what the command says."""
    config = build(LeagueConfig, cfg)
    if config.command not in COMMANDS:
        if config.command is None:
            raise ConfigError(f"command: missing, one of {', '.join(COMMANDS)}")
        raise ConfigError(missing_option("command", config.command, COMMANDS))
    {"run": run_league, "rank": rank, "play": play}[config.command](config)


def run_league(config: LeagueConfig) -> None:
    """Plays what is missing of a tournament, round by round, and shows the ranking."""
    from rlstack.play.challenge import anchored_ratings
    from rlstack.play.league import FILE, League
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
        league = League(
            Path(config.folder), env, anchored_ratings(arena, config.ratings.system, config.ratings.options)
        )
    for name, source in players.items():
        league.join(name, source)
    names = list(players or league.sources)
    for name in names:
        arena.add(league.sources[name], name)
    try:
        pairs = round_robin(names, 1) if config.mode == "round_robin" else challenger(names[0], names[1:], 1)
    except (ValueError, IndexError) as error:
        raise ConfigError(f"players: at least two are needed ({error})") from None
    best = _best(config, arena)
    while schedule := _missing(league, pairs, config):
        played = len(league.games)
        league.play_round(arena, schedule, config.seed, _progress(played, played + len(schedule)), best)
    league.save()
    for path in best.save(league.folder / "replays", config.video) if best is not None else []:
        print(f"wrote {path}")
    _show(league, config)


def _missing(league: League, pairs: list[tuple[str, str]], config: LeagueConfig) -> list[tuple[str, str]]:
    """The games of the next round: of every pair as many as are missing, sides swapped from its last one."""
    turns: list[list[tuple[str, str]]] = []
    for first, second in pairs:
        done = league.between(first, second)
        coming = range(done, min(done + config.round, config.games))
        turns.append([(first, second) if game % 2 == 0 else (second, first) for game in coming])
    longest = max(map(len, turns), default=0)
    return [games[turn] for turn in range(longest) for games in turns if turn < len(games)]


def rank(config: LeagueConfig) -> None:
    """Shows the ranking of a league and leaves its tables beside it."""
    from rlstack.play.league import League

    _show(League.open(config.folder), config)


def play(config: LeagueConfig) -> None:
    """The first player against each of the others, and what its rating becomes; no league is changed."""
    from rlstack.play.challenge import anchored_ratings, challenge, print_report, save_report

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
    ratings = anchored_ratings(arena, config.ratings.system, config.ratings.options)
    best = _best(config, arena, first)
    progress = _progress(0, config.games * len(others))
    report = challenge(arena, first, others, config.games, config.seed, ratings, 0, progress, best)
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


def named(players: list[Any] | dict[str, Any] | None) -> dict[str, Source]:
    """Players by name; a name that is taken gets a number.

    Raises:
        ConfigError: a source that is none.
    """
    from rlstack.play.players import name_of, read_source

    if isinstance(players, dict):
        for source in players.values():
            read_source(source)
        return dict(players)
    result: dict[str, Source] = {}
    for source in players or []:
        name, number = name_of(source), 1
        while name in result:
            number += 1
            name = f"{name_of(source)}-{number}"
        result[name] = source
    return result


def _arena(config: LeagueConfig, env: dict[str, Any]) -> Arena:
    from rlstack.play.matches import Arena
    from rlstack.play.option import without
    from rlstack.training.worlds import choose_device, world_options

    if not env.get("name"):
        raise ConfigError("env.name: missing, which world to play in")
    options = world_options(without(env))
    return Arena(env["name"], options, config.num_worlds, choose_device(config.device))


def _env_of(players: dict[str, Source]) -> dict[str, Any]:
    """The world of the first player that is a run of ours."""
    from rlstack.play.option import without
    from rlstack.play.players import read_source
    from rlstack.training.loading import load

    for source in players.values():
        path = Path(read_source(source)[0])
        if path.exists():
            return without(load(path).config["env"])
    raise ConfigError("env: missing, none of the players brings a world: env=rocket")


def _progress(before: int, total: int) -> Any:
    """Prints how many games have ended, on terminals."""
    if not sys.stderr.isatty():
        return None
    return lambda ended: print(f"\r{before + ended}/{total} games", end="", file=sys.stderr, flush=True)


def _show(league: League, config: LeagueConfig) -> None:
    from rlstack.play.challenge import print_results
    from rlstack.play.elo import Elo, fit_elo
    from rlstack.play.ratings import ratings_from
    from rlstack.play.records import cross_table
    from rlstack.play.tables import curves_of, save_curves, write_csv
    from rlstack.play.tournaments import standings

    if not league.sources:
        raise ConfigError(f"players: the league in {league.folder} has none")
    anchors = dict(league.ratings.state_dict()["parameters"]["anchors"])
    fitted = fit_elo([game.scored for game in league.games], anchors)
    rows = [{**row, "fitted_elo": fitted.get(row["player"])} for row in standings(league.games, league.ratings)]
    cross = cross_table(league.games, [row["player"] for row in rows])
    print_results(rows, "player")
    _print_rows(cross)
    write_csv(league.folder / "ranking.csv", rows)
    write_csv(league.folder / "cross_table.csv", cross)
    if config.plots and league.games:
        empty = Elo(anchors=anchors) if league.ratings.kind != "elo" else ratings_from(_without_players(league))
        save_curves(league.folder / "elo.png", curves_of(league.games, empty), anchors)
    print(f"{len(league.games)} games in {league.rounds} rounds, in {league.folder}")


def _without_players(league: League) -> dict[str, Any]:
    return {**league.ratings.state_dict(), "players": {}}


def _print_rows(rows: list[dict[str, Any]]) -> None:
    from rlstack.evaluation.table import print_rows

    print_rows(rows, sys.stdout)
    print()


main = hydra_command("league", positional)(run)

if __name__ == "__main__":
    main()
