"""Population-based training on Hydra's launchers: each generation is a batch of jobs of ``rlstack.train``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any

from rlstack.config import build, to_plain

from .folder import JOBS
from .jobs import Compose, Launch, checked, job, reached, show_scores, tell_failures, wait_for
from .population import FILE, Generation, Population, PopulationConfig
from .space import assignment, split


def train_population(options: Mapping[str, Any], arguments: Sequence[str], compose: Compose, launch: Launch) -> None:
    """Trains a new population, or continues the one in its folder, and prints the result.

    Args:
        options: options of the sweeper; see :class:`PopulationConfig`.
        arguments: the command line of a run with ranges for some options.
        compose: function that composes a run's configuration from overrides.
        launch: function that runs jobs; see :data:`rlstack.sweeps.jobs.Launch`.

    Raises:
        ConfigError: options or arguments have a mistake, before any work; or all members fail.
    """
    from rlstack.training.loggers import score

    config = build(PopulationConfig, to_plain(options), "hydra.sweeper")
    space, fixed = split([*(f"{key}={value}" for key, value in config.params.items()), *arguments])
    run = checked(compose, space, fixed)
    population = Population(config, space, run.total_frames, {"arguments": fixed})

    def train(generation: Generation) -> None:
        number = population.generations.index(generation)
        print(f"generation {number + 1} of {config.generations}: members train to {generation.until:,} frames")
        until = "null" if generation.until >= run.total_frames else str(generation.until)
        jobs = [
            job(
                population.run(index),
                [*fixed, f"seed={run.seed + index}"],
                [*starmap(assignment, member.hyperparameters.items()), f"until={until}"],
            )
            for index, member in enumerate(generation.members)
            if not reached(population.run(index), generation.until)
        ]
        if jobs:
            for index in range(config.members):
                wait_for(population.run(index))
            launch(jobs, number * config.members)
        tell_failures(population.folder / JOBS)  # a failed member continues as a copy of another
        for index, member in enumerate(generation.members):
            if reached(population.run(index), generation.until):
                value = score(population.run(index), run.objective)
                member.score = value if math.isfinite(value) else None

    population.evolve(train)
    show(population)


def show(population: Population) -> None:
    """Prints a table of the members, the one with the best score last, and the paths of the files."""
    members = population.generations[-1].members
    order = population.ranked(members)
    rows = [
        (
            {"member": str(index), "score": members[index].score},
            members[index].hyperparameters,
            {"ancestors": " < ".join(map(str, population.lineage(index)[1:])) or "-"},
        )
        for index in order
    ]
    print(f"\npopulation finished: {population.folder}")
    show_scores(rows, population.run(order[-1]), population.config.direction)
    print(f"who copied whom, scores and hyperparameters of every generation: {population.folder / FILE}")
