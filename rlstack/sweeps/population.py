"""Population-based training (Jaderberg et al. 2017) on Hydra's launchers: each generation is a batch of runs.

Every decision is written to ``population.json`` before it is carried out, and every step can be repeated, so a
population continues after its process was killed at any moment.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import starmap
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from rlstack.config import ConfigError, Interval, build, to_plain
from rlstack.config.allowed import check_named, links_in, sign, sign_copy
from rlstack.config.errors import writing
from rlstack.config.overrides import override, readable
from rlstack.envs.foundation.files import check_regular, write_json
from rlstack.runs.manifest import check, sealed

from .folder import JOBS, telling
from .jobs import (
    Compose,
    Launch,
    check_settings,
    checked,
    composed,
    job,
    reached,
    scores_so_far,
    show_scores,
    tell_failures,
    wait_for,
    with_three_digits,
)
from .space import Space, assignment, check_values, split

KIND = "population"
FILE = "population.json"


@dataclass
class PopulationConfig:
    """The options of ``conf/hydra/sweeper/pbt.yaml``."""

    folder: str
    members: Annotated[int, Interval(low=2)]
    generations: Annotated[int, Interval(low=1)]
    quantile: Annotated[float, Interval(low=0, high=0.5, open_low=True)]
    perturb: list[Annotated[float, Interval(low=0, open_low=True)]]
    resample: Annotated[float, Interval(low=0, high=1)]
    direction: Literal["maximize", "minimize"]
    seed: int
    params: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.perturb:
            raise ValueError("perturb: name at least one factor")


@dataclass
class PopulationMember:
    """A member of a population in one generation.

    Attributes:
        hyperparameters: values by key.
        copied_from: the member whose run of the previous generation it continues; None for its own.
        score: score at the end of the generation; None before it, and for a failed run.
    """

    hyperparameters: dict[str, Any]
    copied_from: int | None = None
    score: float | None = None


@dataclass
class Generation:
    """One generation, up to ``until`` frames: planned, then training (once copies are made), then finished."""

    until: int
    members: list[PopulationMember]
    state: Literal["planned", "training", "finished"] = "planned"


class Population:
    """The generations so far, and the rules for the next.

    Args:
        config: configuration of the population.
        space: the options that vary.
        total_frames: length of a member's run over all generations.
        settings: other settings by name that must stay equal for a population to continue.
        composed: function that returns the configuration of a run with these hyperparameters, some of whose options may
            refer to them (``${agent.lr}``).

    Raises:
        ConfigError: the folder holds a population with other settings, or its file cannot be read.
    """

    def __init__(
        self,
        config: PopulationConfig,
        space: Space,
        total_frames: int,
        settings: dict[str, Any],
        composed: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
    ) -> None:
        self.config, self.space, self.total_frames, self._composed = config, space, total_frames, composed
        self.folder = Path(config.folder)
        ours = {key: value for key, value in asdict(config).items() if key not in ("folder", "params")}
        described = {key: str(dimension) for key, dimension in space.items()}
        self.settings = {**settings, **ours, "space": described, "total_frames": total_frames}
        self.generations: list[Generation] = []
        if (self.folder / FILE).is_file():
            self._read(self.folder / FILE)
        else:
            draws = [Random(f"{config.seed} member {index}") for index in range(config.members)]
            self._append([PopulationMember({key: entry.draw(rng) for key, entry in space.items()}) for rng in draws])

    def run(self, member: int) -> Path:
        """Returns the folder of a member's run."""
        return self.folder / f"member_{member}"

    def evolve(self, train: Callable[[Generation], None]) -> None:
        """Trains the remaining generations.

        Args:
            train: function that trains every member to the end of a generation and fills in the scores.

        Raises:
            ConfigError: all members have failed.
        """
        while True:
            generation = self.generations[-1]
            if generation.state == "planned":
                for index, member in enumerate(generation.members):
                    if member.copied_from is not None:
                        self._copy(self.run(member.copied_from), self.run(index), self.overrides(member))
                generation.state = "training"
                self._write()
            if generation.state == "training":
                train(generation)
                if all(member.score is None for member in generation.members):
                    raise ConfigError(f"{self.folder}: every member of generation {len(self.generations)} has failed")
                generation.state = "finished"
                self._write()
            if len(self.generations) == self.config.generations:
                return
            self._append(self.selected(generation.members))

    def ranked(self, members: Sequence[PopulationMember]) -> list[int]:
        """Returns indices from worst to best; failed members come first."""
        sign = 1 if self.config.direction == "maximize" else -1
        merits = [-math.inf if member.score is None else sign * member.score for member in members]
        return sorted(range(len(members)), key=merits.__getitem__)

    def selected(self, members: Sequence[PopulationMember]) -> list[PopulationMember]:
        """Returns the next generation by truncation selection: the worst and failed ones become copies of the best."""
        c, rng = self.config, Random(f"{self.config.seed} {len(self.generations)}")
        order, half = self.ranked(members), len(members) // 2  # nobody is among the best and the worst
        count = max(1, min(round(c.quantile * len(members)), half))
        failed = {index for index, member in enumerate(members) if member.score is None}
        best = [index for index in order[-count:] if index not in failed]
        following = [PopulationMember(dict(member.hyperparameters)) for member in members]
        for index in sorted(failed.union(order[:count])):
            source = rng.choice(best)
            values = {}
            for key, value in members[source].hyperparameters.items():
                space = self.space[key]
                values[key] = space.draw(rng) if rng.random() < c.resample else space.perturb(value, c.perturb, rng)
            following[index] = PopulationMember(values, copied_from=source)
        return following

    def overrides(self, member: PopulationMember) -> list[str]:
        """Returns the hyperparameters of a member of the latest generation as overrides.

        Those of a copy include the options that change with the hyperparameters to which they refer.
        """
        from rlstack.training.config import differing

        now = member.hyperparameters
        words = [*starmap(assignment, now.items())]
        if member.copied_from is not None:
            before = self.generations[-2].members[member.copied_from].hyperparameters
            for key, value, _ in differing(self._composed(now), self._composed(before)):
                if not any(f"{key}.".startswith(f"{name}.") for name in now):
                    words += readable(override(key, value))
        return words

    def lineage(self, member: int) -> list[int]:
        """Returns a member's ancestry: itself, the member that it copied last, the one which that had copied, ..."""
        line = [member]
        for generation in reversed(self.generations):
            source = generation.members[line[-1]].copied_from
            line += [] if source is None else [source]
        return line

    def _append(self, members: list[PopulationMember]) -> None:
        turn = len(self.generations) + 1
        until = -(-self.total_frames * turn // self.config.generations)
        self.generations.append(Generation(until, members))
        self._write()

    @staticmethod
    def _copy(source: Path, target: Path, overrides: Sequence[str]) -> None:
        """Copies the source's run to the target with other options. A source is never a target."""
        from rlstack.runs.manifest import MANIFEST
        from rlstack.runs.run_directory import RunDirectory
        from rlstack.training.loggers import OF_ONE_RUN

        temporary = target.with_name(f".{target.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(source, temporary, ignore=shutil.ignore_patterns(*OF_ONE_RUN, MANIFEST))
        stored = OmegaConf.create(RunDirectory(source).read_config())
        for entry in OverridesParser.create().parse_overrides(list(overrides)):  # as a command line sets them
            OmegaConf.update(stored, entry.key_or_group, entry.value(), merge=False)
        stored["run_dir"] = str(target)
        RunDirectory(temporary).write_config(OmegaConf.to_container(stored))  # type: ignore[arg-type]
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        sign_copy(source, target)
        sign(target, OmegaConf.to_container(stored))

    # -- file ----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        content = {"format": f"rlstack-{KIND}", "version": 1, "settings": self.settings}
        with writing(self.folder / FILE), sealed(self.folder, FILE):
            sign(self.folder, links_in(self.folder))
            write_json(self.folder / FILE, {**content, "generations": list(map(asdict, self.generations))})

    def _read(self, path: Path) -> None:
        """Reads the generations, checking all that becomes a part of a command line or a path."""
        check(path)
        check_named(links_in(path.parent), path)
        try:
            content: dict[str, Any] = json.loads(check_regular(path).read_text(encoding="utf-8"))
            if (content["format"], content["version"]) != (f"rlstack-{KIND}", 1):
                raise ValueError("another format")
            theirs: dict[str, Any] = content["settings"]
            self.generations = [build(Generation, generation) for generation in content["generations"]]
            if not self.generations or any(len(g.members) != theirs["members"] for g in self.generations):
                raise ValueError("members are missing")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{path}: not a {KIND} ({error})") from None
        check_settings(path, KIND, theirs, self.settings)
        for member in (member for generation in self.generations for member in generation.members):
            check_values(path, KIND, self.space, member.hyperparameters)
            if member.copied_from is not None and not 0 <= member.copied_from < self.config.members:
                raise ConfigError(f"{path}: not a population (there is no member {member.copied_from} to copy)")


# -- on launchers ---------------------------------------------------------------------------------------------------


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
    config = build(PopulationConfig, to_plain(options), "hydra.sweeper")
    space, fixed = split([*(f"{key}={value}" for key, value in config.params.items()), *arguments])
    run = checked(compose, space, fixed)
    population = Population(config, space, run.total_frames, {"arguments": fixed}, partial(composed, compose, fixed))

    def train(generation: Generation) -> None:
        number = population.generations.index(generation)
        print(f"generation {number + 1} of {config.generations}: members train to {generation.until:,} frames")
        until = "null" if generation.until >= run.total_frames else str(generation.until)
        jobs = [
            job(
                population.run(index),
                [*fixed, f"seed={run.seed + index}"],
                [*population.overrides(member), f"until={until}"],
            )
            for index, member in enumerate(generation.members)
            if not reached(population.run(index), generation.until)
        ]
        if jobs:
            for index in range(config.members):
                wait_for(population.run(index))
            first = number * config.members
            with telling(config.generations * config.members, list(space), first):
                launch(jobs, first)
        tell_failures(population.folder / JOBS)  # a failed member continues as a copy of another
        for index, member in enumerate(generation.members):
            if reached(population.run(index), generation.until):
                *_, value = math.nan, *scores_so_far(population.run(index), run.objective)
                member.score = value if math.isfinite(value) else None

    population.evolve(train)
    show(population)


def show(population: Population) -> None:
    """Prints a table of the members, the one with the best score last, and the paths of the files."""
    members = population.generations[-1].members
    order = population.ranked(members)
    rows = []
    for index in order:
        member, above = members[index], " < ".join(map(str, population.lineage(index)[1:])) or "-"
        varied = with_three_digits(member.hyperparameters)
        rows.append({"member": str(index), "score": member.score, **varied, "ancestors": above})
    print(f"\npopulation finished: {population.folder}")
    show_scores(rows, population.run(order[-1]), population.config.direction)
    print(f"who copied whom, scores and hyperparameters of every generation: {population.folder / FILE}")
