"""Says why an agent does not learn (``rlstack explain <run>``) or why training is slow (``rlstack explain speed``)."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, words_as
from rlstack.config import ConfigError, Interval, build, convert, to_plain
from rlstack.config.overrides import Word
from rlstack.envs.foundation.files import write_json

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    from rlstack.diagnostics.measuring import MeasuredTraining


SPEED = "speed"
EXPLANATION = "explanation.json"


@dataclass
class ExplainConfig:
    """See ``conf/explain.yaml`` for what each key does; ``try``, a word of Python's, is read apart."""

    run: str | None
    minutes: Annotated[float, Interval(low=0, open_low=True)]
    seeds: Annotated[int, Interval(low=2, high=100)]
    output: str | None
    allow: list[str] = field(default_factory=list)


@dataclass
class SpeedConfig:
    """See ``conf/explain_speed.yaml`` for what each key does."""

    test: Literal["all", "env", "inference", "learn", "collect", "gpu"]
    seconds: Annotated[float, Interval(low=0, open_low=True)]
    clock: Literal["wall", "cpu"]
    compare: str | None
    output: str | None
    plots: bool


@as_module
def explain(*words: Word, quiet: bool = False, **keys: Any) -> Any:
    """Explains a run as the command ``rlstack explain`` does: ``rlstack.explain("runs/<run>")``.

    Args:
        words: arguments as on the command line; also paths, and results of :func:`rlstack.train`. With ``"speed"``
            among them, the others are those of :func:`rlstack.train`, and what is measured is the speed of training.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/explain.yaml``, or of ``conf/explain_speed.yaml``.

    Returns the list of :class:`rlstack.diagnostics.checks.Finding`, the likeliest cause first; for ``"speed"`` the
    content of ``diagnosis.json``.
    """
    if SPEED in words:
        return speed_command.call(speed, [word for word in words if word != SPEED], keys, quiet)
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> list[Any]:
    """Gathers the evidence about a run, prints what the checks find, and writes it into one file."""
    plain = to_plain(cfg)
    tries = convert(bool, plain.pop("try"), "try")
    config = build(ExplainConfig, plain)
    if config.run is None:
        raise ConfigError("run: missing; rlstack explain <run>, or rlstack explain speed agent=<agent> env=<env>")

    from rlstack.diagnostics import checks, evidence
    from rlstack.runs.loading import checkpoint_file
    from rlstack.runs.run_directory import named

    path = Path(named(config.run, "run"))
    checkpoint_file(path, "latest", "run")  # a missing one is reported under the option that the user gave
    known = evidence.gather(path, config.allow)
    facts, findings = known.facts(), checks.findings(known)
    print("\n".join(checks.heading(known, facts)))
    for number, finding in enumerate(findings, 1):
        print(f"\n{number}. {finding}")
    if not findings:
        print("\nNothing that usually keeps an agent from learning was found.")
    record: dict[str, Any] = {
        "schema": "rlstack.explanation/1",
        "frames": known.frames,
        "findings": [asdict(finding) for finding in findings],
        "facts": facts,
        "trial": None,
    }
    if tries:
        changed = next((finding for finding in findings if finding.options), None)
        if changed is None:
            print("\nThere is no change to try: none of the findings can be written as options.")
        else:
            result = checks.compare(known, changed, config.minutes, config.seeds)
            record["trial"] = asdict(result)
            print(f"\n{result}")
    output = Path(config.output) if config.output else path / EXPLANATION if path.is_dir() else None
    if output is not None:
        write_json(output, record)
        print(f"\nwrote {output}")
    return findings


# -- why training is slow ------------------------------------------------------------------------------------------


def speed(cfg: DictConfig) -> dict[str, Any]:
    """Measures, prints tables and a verdict, and writes JSON and a picture into one folder."""
    plain = to_plain(cfg)
    ours = {field.name: plain.pop(field.name) for field in fields(SpeedConfig)}
    config = build(SpeedConfig, ours)
    if plain["resume"] is not None:
        raise ConfigError("resume: a diagnosis starts a new run; set the run's agent= and env= instead")

    from rlstack.diagnostics import diagnosis as parts
    from rlstack.diagnostics import report
    from rlstack.runs.run_directory import make_first_free, make_folder, removed_if_empty
    from rlstack.training.run import run_name

    before = None if config.compare is None else report.read(config.compare)
    measured = prepare(config, plain)
    name = run_name(measured.config.agent, measured.config.env, measured.config.seed)
    if config.output is None:
        folder = make_first_free(Path("runs") / f"diagnosis_{name}_{time.strftime('%Y%m%d-%H%M%S')}", "output")
    else:
        folder = make_folder(Path(config.output), "output")
    print(report.heading(parts.described(measured)), flush=True)
    with removed_if_empty(folder):
        diagnosis = parts.diagnose(
            measured, config.test, lambda name, results: print("\n".join(report.section(name, results)), flush=True)
        )
    written = [folder / "diagnosis.json"]
    write_json(written[0], diagnosis)
    picture = folder / "diagnosis.png"
    if config.plots and report.save_picture(picture, diagnosis):
        written.append(picture)
    print("\n".join(report.verdict_lines(diagnosis["verdict"])))
    if before is not None:
        print("\n" + "\n".join(report.lines(diagnosis, before, str(config.compare))))
    print()
    for path in written:
        print(f"wrote {path}")
    return diagnosis


def prepare(config: SpeedConfig, plain: dict[str, Any]) -> MeasuredTraining:
    """Returns the training to be measured, after checking that it can be built.

    Raises:
        ConfigError: an option does not exist or does not fit, or CPU time is requested for work in other processes.
    """
    from rlstack.training.config import TrainConfig, offline_options

    # In one process, because workers cannot be inspected. Schedules are half-way through a run of any length.
    alone = {"collector": {**plain["collector"], "backend": "direct", "workers": 1}}
    plain = {**plain, **alone, "total_frames": plain["total_frames"] or 1_000_000}
    training = build(TrainConfig, plain)
    if training.data is not None:
        plain = offline_options(plain)
        training = build(TrainConfig, plain)

    import torch

    from rlstack.diagnostics.measuring import DeviceClock, MeasuredTraining
    from rlstack.runs.worlds import choose_device, with_defaults
    from rlstack.training.preflight import check_buildable, few_worlds

    training = replace(training, env=with_defaults(training.env))
    device = choose_device(training.device)
    measured = MeasuredTraining(training, plain, device, DeviceClock(config.clock, device), config.seconds)
    if config.clock == "cpu" and (device.type != "cpu" or measured.processes):
        raise ConfigError("clock: cpu cannot see a GPU or other processes; allowed there: wall")
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    with few_worlds(training) as env:
        check_buildable(training, env)
    return measured


command = HydraCommand("explain", words_as("run"))
speed_command = HydraCommand("explain_speed", lambda words: [word for word in words if word != SPEED])
_main, _speed_main = command.line(run), speed_command.line(speed)


def main() -> Any:
    """Runs the command line; ``speed`` composes another configuration."""
    return _speed_main() if SPEED in sys.argv[1:] else _main()


if __name__ == "__main__":
    main()
