"""Finds out why training is slow: ``rlstack diagnose env=rocket agent=ppo test=all``."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module
from rlstack.config import ConfigError, Interval, build, to_plain
from rlstack.envs.foundation.files import write_json

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    from rlstack.diagnostics.measuring import MeasuredTraining


@dataclass
class DiagnoseConfig:
    """See ``conf/diagnose.yaml`` for what each key does."""

    test: Literal["all", "env", "inference", "learn", "collect", "gpu"]
    seconds: Annotated[float, Interval(low=0, open_low=True)]
    clock: Literal["wall", "cpu"]
    compare: str | None
    output: str | None
    plots: bool


@as_module
def diagnose(*words: str, quiet: bool = False, **keys: Any) -> dict[str, Any]:
    """Finds out why training is slow as the command ``rlstack diagnose`` does.

    Args:
        words: arguments as on the command line.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/diagnose.yaml``, and those of :func:`rlstack.train`.

    Returns the content of ``diagnosis.json``.
    """
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> dict[str, Any]:
    """Measures, prints tables and a verdict, and writes JSON and a picture into one folder."""
    plain = to_plain(cfg)
    ours = {field.name: plain.pop(field.name) for field in fields(DiagnoseConfig)}
    config = build(DiagnoseConfig, ours)
    if plain["resume"] is not None:
        raise ConfigError("resume: a diagnosis starts a new run; set the run's agent= and env= instead")

    from rlstack.diagnostics import comparison, report
    from rlstack.diagnostics import diagnosis as parts
    from rlstack.runs.run_directory import make_first_free, make_folder, removed_if_empty
    from rlstack.training.run import run_name

    before = None if config.compare is None else comparison.read(config.compare)
    measured = prepare(config, plain)
    name = run_name(measured.config.agent, measured.config.env, measured.config.seed)
    if config.output is None:
        folder = make_first_free(Path("runs") / f"diagnosis_{name}_{time.strftime('%Y%m%d-%H%M%S')}", "output")
    else:
        folder = make_folder(Path(config.output), "output")
    print(report.heading(parts.described(measured)), flush=True)
    with removed_if_empty(folder):
        diagnosis = parts.diagnose(
            measured, config.test, lambda name, found: print("\n".join(report.section(name, found)), flush=True)
        )
    written = [folder / "diagnosis.json"]
    write_json(written[0], diagnosis)
    picture = folder / "diagnosis.png"
    if config.plots and report.save_picture(picture, diagnosis):
        written.append(picture)
    print("\n".join(report.verdict_lines(diagnosis["verdict"])))
    if before is not None:
        print("\n" + "\n".join(comparison.lines(diagnosis, before, str(config.compare))))
    print()
    for path in written:
        print(f"wrote {path}")
    return diagnosis


def prepare(config: DiagnoseConfig, plain: dict[str, Any]) -> MeasuredTraining:
    """Returns the training to be measured, after checking that it can be built.

    Raises:
        ConfigError: an option does not exist or does not fit, or CPU time is requested for work in other processes.
    """
    from rlstack.training.config import TrainConfig

    # In one process, because workers cannot be inspected. Schedules are half-way through a run of any length.
    alone = {"collector": {**plain["collector"], "backend": "direct", "workers": 1}}
    training = build(TrainConfig, {**plain, **alone, "total_frames": plain["total_frames"] or 1_000_000})

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


command = HydraCommand("diagnose")
main = command.line(run)

if __name__ == "__main__":
    main()
