"""Trains against a league and hands in the agent: ``python -m rlstack.league train``; ``conf/league_train.yaml``."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from omegaconf import DictConfig

from rlstack.command import given_keys, hydra_command
from rlstack.config import ConfigError, Interval, build, catalogue, conf_dir, to_plain

if TYPE_CHECKING:
    from rlstack.play.commanders import PoolConfig
    from rlstack.play.league import League

FOLDER = "runs/league"
_WORDS = ("train", "command=train")


@dataclass
class LeagueTrainConfig:
    """What ``conf/league_train.yaml`` adds to a run's configuration."""

    folder: str
    submit: bool
    games: Annotated[int, Interval(low=1)]
    note: str | None = None
    pool: dict[str, Any] = field(default_factory=dict)


def arguments(given: list[str]) -> list[str]:
    """Without the word ``train``, and with the league's world in its place, so that recipes for it are found."""
    opened = [f"++{entry}" if entry.startswith(("agent.", "env.")) else entry for entry in given]
    world = [] if any(entry.startswith("env=") for entry in given) else _group_of(given)
    result: list[str] = []
    for entry in opened:
        result += world if entry in _WORDS else [entry]
    return result


def _group_of(given: list[str]) -> list[str]:
    """``env=<name>`` where the league's world has a yaml; whatever is wrong with the league is told later."""
    folder = next((entry.partition("=")[2] for entry in reversed(given) if entry.startswith("folder=")), FOLDER)
    try:
        name = json.loads((Path(folder) / "league.json").read_text(encoding="utf-8"))["env"]["name"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [f"env={name}"] if name in catalogue.names("env", [conf_dir()]) else []


def run(cfg: DictConfig) -> None:
    """Trains a new run, or goes on with one that did not come to its end; then it joins and is evaluated."""
    from rlstack.training.run import debugged, run_name, train

    plain = to_plain(cfg)
    ours = build(LeagueTrainConfig, {key: plain.pop(key) for key in LeagueTrainConfig.__dataclass_fields__})
    if plain["resume"] is not None:
        raise ConfigError("resume: 'train' finds by itself what to go on with; rlstack.train resume=<run> resumes one")

    from rlstack.play.commanders import PoolConfig
    from rlstack.play.league import League
    from rlstack.play.league_runs import OpenRun, training_world

    league, rules = League.open(ours.folder), build(PoolConfig, ours.pool, "pool")
    plain["env"] = training_world(league, rules, plain.get("env") or {}, given_keys("env"))
    plain = debugged(plain)
    with closing(OpenRun(league, plain, run_name(plain["agent"], plain["env"], plain["seed"]), ours.submit)) as opened:
        if not opened.complete:
            configuration = opened.configuration(plain)
            print(f"{opened.path}: {'goes on' if opened.begun else 'begins'} against {met(configuration['env'])}")
            train(configuration)
        if ours.submit:
            submit(League.open(ours.folder), opened.path, ours, rules, plain)


def submit(league: League, run: Path, ours: LeagueTrainConfig, rules: PoolConfig, plain: dict[str, Any]) -> None:
    """A complete run joins as candidate, unless it has, and is evaluated."""
    from rlstack.play.candidates import add, member_of
    from rlstack.play.matches import Arena
    from rlstack.play.members import identity
    from rlstack.play.option import without
    from rlstack.play.ranking import show_members
    from rlstack.play.trials import evaluate_all
    from rlstack.runs.loading import checkpoint_file
    from rlstack.runs.worlds import choose_device, world_options

    arena = Arena(league.env["name"], world_options(without(league.env)), device=choose_device(plain["device"]))
    known = member_of(league, identity(checkpoint_file(run, "latest")))
    name = known.name if known is not None else add(league, arena, [(None, str(run))], ours.note)[0]
    evaluate_all(league, arena, [name], rules, ours.games, plain["seed"])
    show_members(league)


def met(env: dict[str, Any]) -> str:
    """The opponents in an ``env`` group, for people."""
    from rlstack.play.players import name_of

    return ", ".join(map(name_of, env["opponents"]["players"]))


main = hydra_command("league_train", arguments)(run)

if __name__ == "__main__":
    main()
