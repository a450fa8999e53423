"""Trains an agent: ``python -m rlstack.train agent=acqn env=marinenav``."""

from __future__ import annotations

import math
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlstack.command import hydra_command, open_group
from rlstack.config import ConfigError, build, convert, to_plain
from rlstack.config.groups import is_own
from rlstack.training.config import RESUMABLE, ObjectiveConfig, TrainConfig, with_length
from rlstack.training.run import debugged, run_name, train


def run(cfg: DictConfig) -> float:
    """One run, new or resumed, from configuration to report; returns its score, for sweeps."""
    plain = to_plain(cfg)
    plain = debugged(plain if plain["resume"] is not None else _completed(plain))
    plain |= _named(plain)
    plain = _resumed(plain) if plain["resume"] is not None else _placed(plain)
    directory = train(plain)
    if directory is None:
        return math.nan

    from rlstack.sweeps.folder import note_result
    from rlstack.training.loggers import score

    result = score(directory.path, build(ObjectiveConfig, plain.get("objective", {}), "objective"))
    note_result(score=result, run=str(directory.path))
    return result


def _named(plain: dict[str, Any]) -> dict[str, str]:
    """The runs that this one goes on from, ``latest`` by its own name, which stays the same."""
    from rlstack.runs.run_directory import named

    given = {key: convert(str | None, plain[key], key) for key in ("resume", "init")}
    return {key: named(value, key) for key, value in given.items() if value is not None}


def _placed(plain: dict[str, Any]) -> dict[str, Any]:
    """Puts the run's folder into that of a sweep unless it was given."""
    from rlstack.sweeps.folder import in_sweep, run_of_job

    named = isinstance(plain["agent"], dict) and isinstance(plain["env"], dict)  # if not, that is told later
    if plain["run_dir"] is not None or not named or not in_sweep():
        return plain
    return {**plain, "run_dir": run_of_job(run_name(plain["agent"], plain["env"], plain["seed"]))}


def _completed(plain: dict[str, Any]) -> dict[str, Any]:
    """Adds all options of a world or an algorithm without a yaml of ours, which its class alone knows."""
    world, algorithm = (_named_in(plain, *place) for place in (("env", "name"), ("agent", "algorithm")))
    own_world, own_algorithm = is_own(world), ":" in algorithm
    if not own_world and not own_algorithm:
        return plain
    build(TrainConfig, with_length(debugged(plain)))  # what is wrong elsewhere is told before torch is imported
    from rlstack.agents import completed
    from rlstack.runs.worlds import with_defaults

    plain = {**plain, "env": with_defaults(plain["env"])} if own_world else plain
    return {**plain, "agent": completed(plain["agent"])} if own_algorithm else plain


def _named_in(plain: dict[str, Any], group: str, key: str) -> str:
    found = plain[group].get(key) if isinstance(plain.get(group), dict) else None
    return found if isinstance(found, str) else ""


def _resumed(plain: dict[str, Any]) -> dict[str, Any]:
    """The stored configuration of the run to resume, with what this command line may change about it."""
    from hydra.core.hydra_config import HydraConfig

    from rlstack.runs.run_directory import RunDirectory

    stored = OmegaConf.create({**RunDirectory.open(plain["resume"]).read_config(), "notify": None})
    for override in HydraConfig.get().overrides.task:
        key = override.lstrip("+~").partition("=")[0]
        value = OmegaConf.select(OmegaConf.create(plain), key)
        if key in RESUMABLE or key.partition(".")[0] in RESUMABLE:
            OmegaConf.update(stored, key, value)
        elif value != OmegaConf.select(stored, key):
            allowed = ", ".join(name for name in RESUMABLE if name != "resume")
            raise ConfigError(f"{key}: cannot change when resuming; allowed: {allowed}")
    return to_plain(stored)


main = hydra_command("train", open_group("agent"), makes_runs=True)(run)

if __name__ == "__main__":
    main()
