"""Population-based training on Hydra's launchers: generations as batches of jobs of ``rlstack.train``."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlstack.config import ConfigError, build, to_plain
from rlstack.config.named_code import allowing, code_in, granting

from .folder import take_results
from .population import FILE, Generation, Population, PopulationConfig
from .space import split

Launch = Callable[[Sequence[Sequence[str]], int], Any]


def train_population(
    options: Mapping[str, Any], arguments: Sequence[str], compose: Callable[[list[str]], DictConfig], launch: Launch
) -> None:
    """Trains a new population, or goes on with the one in its folder, and prints the result.

    Args:
        options: of the sweeper, see :class:`PopulationConfig`.
        arguments: the command line of a run, some of it as ranges.
        compose: from overrides to a run's configuration.
        launch: runs jobs, given as overrides, and the number of the first one; returns when all have ended.

    Raises:
        ConfigError: a mistake in either, before any work; or all members fail.
    """
    from rlstack.training.config import TrainConfig, with_length
    from rlstack.training.loggers import score
    from rlstack.training.run import debugged

    config = build(PopulationConfig, to_plain(options), "hydra.sweeper")
    space, fixed = split([*(f"{key}={value}" for key, value in config.params.items()), *arguments])
    composed = compose([*fixed, *(f"++{key}={dimension.draw(Random(0))}" for key, dimension in space.items())])
    plain = debugged(to_plain(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])))
    run = build(TrainConfig, with_length(plain))
    population = Population(config, space, run.total_frames, {"arguments": fixed})
    allowed = code_in(plain)

    def train(generation: Generation) -> None:
        number = population.generations.index(generation)
        print(f"generation {number + 1} of {config.generations}: members train to {generation.until:,} frames")
        until = "null" if generation.until >= run.total_frames else str(generation.until)
        jobs = [
            job(population.run(index), member.hyperparameters, until, fixed, run.seed + index, allowed)
            for index, member in enumerate(generation.members)
            if not reached(population.run(index), generation.until)
        ]
        if jobs:
            for index in range(config.members):
                wait_for(population.run(index))
            launch(jobs, number * config.members)
        for result in take_results(Path(composed.hydra.sweep.dir)):
            if "error" in result:  # its member goes on as a copy of another
                failed = f"{result['error']} ({' '.join(result['overrides'])})"
                print(f"a member failed: {failed}", file=sys.stderr, flush=True)
        for index, member in enumerate(generation.members):
            if reached(population.run(index), generation.until):
                value = score(population.run(index), run.objective)
                member.score = value if math.isfinite(value) else None

    with granting(allowed):
        population.evolve(train)
    show(population)


def job(
    run: Path,
    hyperparameters: Mapping[str, Any],
    until: str,
    arguments: Sequence[str],
    seed: int,
    allowed: Sequence[str] = (),
) -> list[str]:
    """The overrides that bring a member's run to ``until`` frames, or with ``null`` to its end; it may have begun.

    Args:
        allowed: code that the user's command line names, so that the run's files may.
    """
    if (run / "config.yaml").is_file():
        return [f"resume={run}", f"until={until}", *([allowing(allowed)] if allowed else [])]
    varied = [f"++{key}={value}" for key, value in hyperparameters.items()]
    return [*arguments, *varied, f"seed={seed}", f"run_dir={run}", f"until={until}"]


def wait_for(run: Path) -> None:
    """Returns once no job that a killed command has left behind trains this run."""
    from rlstack.runs.run_directory import taken

    told = False
    while True:
        try:
            with taken(run):
                return
        except ConfigError as error:
            if not told:
                print(f"waiting: {error}", flush=True)
            told = True
            time.sleep(1)


def reached(run: Path, until: int) -> bool:
    """The run has a checkpoint of so many frames; it was evaluated before that was written."""
    from rlstack.runs.checkpoint import CheckpointStore

    latest = CheckpointStore(run / "checkpoints").latest()
    return latest is not None and int(latest.stem.partition("_")[2]) >= until


def show(population: Population) -> None:
    """Prints a table of the members, the best one last, and the paths of everything."""
    from rlstack.evaluation.table import print_rows

    members = population.generations[-1].members
    order = population.ranked(members)
    rows = [
        {
            "member": str(index),
            "score": members[index].score,
            **{
                key: f"{value:.3g}" if isinstance(value, float) else str(value)
                for key, value in members[index].hyperparameters.items()
            },
            "by way of": " < ".join(map(str, population.lineage(index)[1:])) or "-",
        }
        for index in order
    ]
    print(f"\npopulation finished: {population.folder}")
    print_rows(rows, sys.stdout)
    print(f"who copied whom, scores and hyperparameters of every generation: {population.folder / FILE}")
    print(f"evaluate the best:   python -m rlstack.evaluate checkpoint={population.run(order[-1])}")
