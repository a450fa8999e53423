"""The generations of a population and their selection (Population Based Training, Jaderberg et al. 2017).

Every decision is written to ``population.json`` before it is carried out, and every step can be repeated, so a
population continues after its process was killed at any moment.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from omegaconf import OmegaConf

from rlstack.config import ConfigError, Interval, build
from rlstack.config.allowed import sign, sign_copy

from .space import Space, check_values, value_of
from .state import check_settings, read_state, reading, write_state

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

    Raises:
        ConfigError: the folder holds a population with other settings, or its file cannot be read.
    """

    def __init__(self, config: PopulationConfig, space: Space, total_frames: int, settings: dict[str, Any]) -> None:
        self.config, self.space, self.total_frames = config, space, total_frames
        self.folder = Path(config.folder)
        ours = {key: value for key, value in asdict(config).items() if key not in ("folder", "params")}
        described = {key: str(dimension) for key, dimension in space.items()}
        self.settings = {**settings, **ours, "space": described, "total_frames": total_frames}
        self.generations: list[Generation] = []
        if (self.folder / FILE).is_file():
            self._read()
        else:
            self._append([PopulationMember(self._drawn(index)) for index in range(config.members)])

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
                        self._copy(self.run(member.copied_from), self.run(index), member.hyperparameters)
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

        def merit(index: int) -> float:
            score = members[index].score
            return float("-inf") if score is None else sign * score

        return sorted(range(len(members)), key=merit)

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
            following[index] = PopulationMember(
                {
                    key: self.space[key].draw(rng)
                    if rng.random() < c.resample
                    else self.space[key].perturb(value, c.perturb, rng)
                    for key, value in members[source].hyperparameters.items()
                },
                copied_from=source,
            )
        return following

    def lineage(self, member: int) -> list[int]:
        """Returns a member's ancestry: itself, the member that it copied last, the one which that had copied, ..."""
        line = [member]
        for generation in reversed(self.generations):
            source = generation.members[line[-1]].copied_from
            line += [] if source is None else [source]
        return line

    def _drawn(self, index: int) -> dict[str, Any]:
        rng = Random(f"{self.config.seed} member {index}")
        return {key: dimension.draw(rng) for key, dimension in self.space.items()}

    def _append(self, members: list[PopulationMember]) -> None:
        turn = len(self.generations) + 1
        until = -(-self.total_frames * turn // self.config.generations)
        self.generations.append(Generation(until, members))
        self._write()

    @staticmethod
    def _copy(source: Path, target: Path, hyperparameters: dict[str, Any]) -> None:
        """Copies the source's run to the target with other hyperparameters. A source is never a target."""
        from rlstack.runs.manifest import MANIFEST
        from rlstack.runs.run_directory import RunDirectory
        from rlstack.training.loggers import OF_ONE_RUN

        temporary = target.with_name(f".{target.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(source, temporary, ignore=shutil.ignore_patterns(*OF_ONE_RUN, MANIFEST))
        stored = OmegaConf.create(RunDirectory(source).read_config())
        for key, value in hyperparameters.items():
            OmegaConf.update(stored, key, value_of(key, value), merge=False)
        stored["run_dir"] = str(target)
        RunDirectory(temporary).write_config(OmegaConf.to_container(stored))  # type: ignore[arg-type]
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        sign_copy(source, target)
        sign(target, OmegaConf.to_container(stored))

    # -- file ----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        generations = list(map(asdict, self.generations))
        write_state(self.folder / FILE, KIND, settings=self.settings, generations=generations)

    def _read(self) -> None:
        path = self.folder / FILE
        content = read_state(path, KIND)
        with reading(path, KIND):
            theirs: dict[str, Any] = content["settings"]
            self.generations = [build(Generation, generation) for generation in content["generations"]]
            if not self.generations or any(len(g.members) != theirs["members"] for g in self.generations):
                raise ValueError("members are missing")
        check_settings(path, KIND, theirs, self.settings)
        self._check_members(path)

    def _check_members(self, path: Path) -> None:
        """Checks that members hold only values of the options that vary, since they become command lines."""
        for member in (member for generation in self.generations for member in generation.members):
            values, copied = member.hyperparameters, member.copied_from
            check_values(path, KIND, self.space, values)
            if copied is not None and not 0 <= copied < self.config.members:
                raise ConfigError(f"{path}: not a population (there is no member {copied} to copy)")
