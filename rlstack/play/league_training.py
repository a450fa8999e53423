"""Training in a league: the world with the league's pool as opponents, and runs that can be continued."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Collection, Iterable, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any, TextIO

from rlstack.config import ConfigError
from rlstack.envs.foundation.files import open_to_append
from rlstack.runs.run_directory import CONFIG, RunDirectory
from rlstack.runs.worlds import world_options
from rlstack.training.config import RESUMABLE

from .candidates import PoolConfig, pool
from .league import OF_TRAINING, League, identity, locked, signature
from .register import OPTION, without_opponents

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
            self._stream, self.path = _take(folder, chain(begun, fresh))

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


def _take(folder: Path, runs: Iterable[Path]) -> tuple[TextIO, Path]:
    """Returns the first run that no other process has locked, and its lock, which ends with this process."""
    path = Path()
    for path in runs:
        stream = open_to_append(folder / f".{path.name}.lock")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.close()
            continue
        return stream, path
    raise ConfigError(f"run_dir: another process trains {path}; choose another")
